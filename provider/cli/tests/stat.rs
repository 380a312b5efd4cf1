//! `metaroce stat` as a program: its exit status and messages, and the live screen on a terminal. The engine that it
//! finds is a socket of this test that answers as one.

use metaroce::telemetry::SocketName;
use nix::pty::{Winsize, openpty};
use std::fs::File;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A sample takes a second where some process on this host keeps silent.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
const PROGRAM: &str = env!("CARGO_BIN_EXE_metaroce");

/// Answers as an engine with so many connections until the test ends; gives its device's name.
fn engine(name: &str, connections: usize) -> String {
    let device = format!("{name}-{}", std::process::id());
    let socket = SocketName::of_engine(&device, 25_000).to_string();
    let address = SocketAddr::from_abstract_name(socket).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("a socket");
    let connection = |index: usize| {
        let peer = format!("10.0.0.{index}:24800");
        serde_json::json!({"id": index.to_string(), "peer": peer})
    };
    let report = serde_json::json!({
        "version": 1, "program": "test", "device": device, "age_ns": 1,
        "connections": (0..connections).map(connection).collect::<Vec<_>>(),
    });
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The asker may be gone, if it wanted another device.
            let _ = stream.and_then(|mut stream| stream.write_all(report.to_string().as_bytes()));
        }
    });
    device
}

/// Its end, or the end of the test.
fn wait(mut child: Child) -> Output {
    let end = Instant::now() + ENDS_WITHIN;
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() >= end {
            child.kill().expect("a child");
            child.wait().expect("a child");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("a child")
}

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = wait(command.spawn().expect("the program"));
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn stat(options: &[&str]) -> (Option<i32>, String, String) {
    run(Command::new(PROGRAM).arg("stat").args(options))
}

#[test]
fn a_filter_that_matches_nobody_is_an_error_that_names_who_there_is() {
    let device = engine("nobody", 0);
    let me = format!("pid {}  {device}", std::process::id());
    for filter in [["-p", "999999999"], ["-d", "no-such-device"]] {
        for count in [&["--once"][..], &["-c", "2", "-i", "0.05"]] {
            let (status, shown, error) = stat(&[&filter[..], count].concat());
            assert_eq!(status, Some(125), "{shown}{error}");
            assert!(error.contains("matches --") && error.contains(filter[1]));
            assert!(error.contains(&me), "{error}");
            assert_eq!(shown.is_empty(), count.len() == 1, "{shown}");
        }
        // Whoever reads JSON gets the sample all the same.
        let (status, shown, error) = stat(&[&filter[..], &["--once", "--json"]].concat());
        assert_eq!(status, Some(125), "{error}");
        let sample: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(sample["engines"], serde_json::json!([]));
    }
    let (status, shown, error) = stat(&["--once", "-d", &device]);
    assert_eq!((status, error.as_str()), (Some(0), ""), "{shown}");
    assert!(shown.contains(&me), "{shown}");
}

#[test]
fn nobody_is_written_to_for_ever() {
    let shell = |line: &str| run(Command::new("sh").args(["-c", line, PROGRAM]));
    for line in [
        "exec \"$0\" stat >&-",
        "exec \"$0\" stat --json >&-",
        "exec \"$0\" stat >/dev/full",
    ] {
        let (status, shown, error) = shell(line);
        assert_eq!((status, shown.as_str()), (Some(125), ""), "{line}: {error}");
        assert!(
            error.starts_with("metaroce: cannot write to standard output: "),
            "{line}: {error}"
        );
    }
    // Whoever asks for the exit status alone is not in the wrong.
    let device = engine("quiet", 0);
    for null in [">/dev/null", "<>/dev/null >&0"] {
        let line = format!("exec \"$0\" stat -c 1 -d {device} {null}");
        let (status, _, error) = shell(&line);
        assert_eq!((status, error.as_str()), (Some(0), ""), "{line}");
    }
}

#[test]
fn the_live_screen_is_as_large_as_the_terminal() {
    let device = engine("live", 30);
    let size = Winsize {
        ws_row: 10,
        ws_col: 40,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(&size, None).expect("a terminal");
    let child = Command::new(PROGRAM)
        .args(["stat", "-c", "2", "-i", "0.05", "-d", &device])
        .stdout(pty.slave)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    // The terminal takes more than two small frames without a reader.
    let output = wait(child);
    assert!(output.status.success(), "{output:?}");
    let mut drawn = Vec::new();
    // Once all is read it fails: nobody has the other end.
    let _ = File::from(pty.master).read_to_end(&mut drawn);
    let drawn = String::from_utf8(drawn).expect("text");
    let frames: Vec<&str> = drawn.split("\u{1b}[H").skip(1).collect();
    assert_eq!(frames.len(), 2, "{drawn:?}");
    for frame in frames {
        let frame = frame.strip_suffix("\u{1b}[J").expect("erased below");
        let lines: Vec<&str> = frame.lines().collect();
        assert_eq!(lines.len(), 9, "one is left to the cursor: {frame:?}");
        let wide = |line: &&str| line.replace("\u{1b}[K", "").len() <= 40;
        assert!(lines.iter().all(wide), "{frame:?}");
        assert!(lines[0].starts_with("test  pid "), "{frame:?}");
        // A head, two lines of counts and 30 connections: 33 lines.
        assert!(
            lines[8].starts_with("25 more lines (all: --once"),
            "{frame:?}"
        );
    }
    assert!(!drawn.contains("\u{1b}[3J") && !drawn.contains("\u{1b}[2J"));
}
