//! Tests of `metaroce stat` without a device: finding names, asking sockets that answer, keep silent or are gone, and
//! what becomes of the answers.

use super::ask::{self, Answer, Engine};
use super::find::{self, Namespace};
use super::sample::{Heard, Sample, understand};
use super::*;
use metaroce::telemetry::SocketName;
use serde_json::{Value, json};
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

fn listener(udp_port: u16) -> (SocketName, UnixListener) {
    let name = SocketName::of_engine(&format!("stat-test-{}", std::process::id()), udp_port);
    let address = SocketAddr::from_abstract_name(name.to_string()).unwrap();
    (name, UnixListener::bind_addr(&address).unwrap())
}

fn answer_once(listener: UnixListener, text: String) {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(text.as_bytes()).unwrap();
    });
}

fn ask_names(names: &[&SocketName], was_silent: bool) -> Vec<(Engine, Answer)> {
    let namespace = Namespace {
        inode: 1,
        entrance: None,
        names: names.iter().map(|name| (*name).clone()).collect(),
    };
    ask::all(&[namespace], |_| true, |_| was_silent).answers
}

fn parse(line: &[&str]) -> Result<Options, clap::Error> {
    use clap::Parser;
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }
    Line::try_parse_from([&["stat"], line].concat()).map(|line| line.options)
}

fn text(sample: &Sample, before: Option<&Sample>) -> String {
    text::show(sample, before, &parse(&[]).unwrap())
}

#[test]
fn only_listening_sockets_with_our_names_are_engines() {
    let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000000000000000: 00000002 00000000 00010000 0001 01 100 @metaroce-stat/7/metaroce0/25000\n\
        0000000000000000: 00000003 00000000 00000000 0001 03 101 @metaroce-stat/7/metaroce0/25000\n\
        0000000000000000: 00000002 00000000 00010000 0001 01 102 /run/metaroce-stat/8/metaroce0/25000\n\
        0000000000000000: 00000002 00000000 00010000 0001 01 103 @metaroce-stat/9/metaroce0\n\
        0000000000000000: 00000003 00000000 00000000 0001 03 104\n";
    let names = find::names(table.as_bytes());
    assert_eq!(names.len(), 1);
    assert_eq!((names[0].pid, names[0].udp_port), (7, 25000));
    assert!(find::names(b"\xff\xfe\n\0").is_empty());
}

#[test]
fn a_real_socket_is_found() {
    let (name, _listener) = listener(1);
    let namespaces = find::namespaces().unwrap();
    let own = namespaces
        .iter()
        .find(|namespace| namespace.entrance.is_none())
        .unwrap();
    assert!(own.names.contains(&name), "{own:?}");
}

#[test]
fn the_silent_do_not_keep_the_others_waiting_for_long() {
    let (silent, _listener) = listener(2);
    let (talker, talks) = listener(3);
    let (gone, listens) = listener(4);
    drop(listens);
    answer_once(talks, "{}".into());
    let began = Instant::now();
    let answers = ask_names(&[&silent, &talker, &gone], false);
    let taken = began.elapsed();
    assert!(
        taken >= ask::ANSWER_WITHIN && taken < 3 * ask::ANSWER_WITHIN,
        "{taken:?}"
    );
    let texts: Vec<_> = answers.iter().map(|(_, answer)| answer.clone()).collect();
    assert!(
        matches!(&texts[0], Answer::Silence(why) if why.contains("does not answer")),
        "{texts:?}"
    );
    assert_eq!(texts[1..], [Answer::Text(b"{}".to_vec()), Answer::Gone]);
    // The next time nobody waits that long for it.
    let began = Instant::now();
    ask_names(&[&silent], true);
    assert!(
        began.elapsed() < ask::ANSWER_WITHIN,
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn a_socket_that_takes_no_more_callers_is_silent() {
    let (name, listener) = listener(5);
    // The queue of a listener that never accepts fills up: the kernel's default is 4,096.
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
    for _ in 0..4 {
        ask_names(&[&name], true);
    }
    let answers = ask_names(&[&name], true);
    assert!(matches!(&answers[0].1, Answer::Silence(_)), "{answers:?}");
}

fn report(age_ns: u64, packets: u64, connection: &str) -> Value {
    let path = json!({
        "path": 3, "state": "busy", "local": "10.0.0.1", "source_port": 4000, "srtt_ns": 95_430,
        "min_rtt_ns": 60_000, "window_packets": 16.5, "in_flight_packets": 7, "data_packets_sent": packets,
        "data_bytes_sent": packets * 1000, "retransmissions": 5, "packets_lost": 6, "probes_sent": 1, "moves": 2,
        "ce_echoed": 9,
    });
    let from = json!({
        "path": 1, "from": "10.0.0.2", "local": "10.0.0.1", "data_packets_received": 4,
        "data_bytes_received": 400, "duplicates_received": 3, "ce_received": 2,
    });
    json!({
        "version": 1, "pid": 4242, "program": "ib_write_bw\u{1b}[2J", "device": "metaroce0", "interface": "eth0",
        "udp_port": 25000, "age_ns": age_ns, "queue_pairs": 1, "new_field": [1],
        "counters": {"data_packets_sent": packets, "data_bytes_sent": packets * 1000, "dropped_control": 3, "moves": 2,
            "packets_lost": 727, "spurious_retransmissions": 637},
        "connections": [{
            "id": connection, "source": "::ffff:10.0.0.1", "destination": "::ffff:10.0.0.2", "peer": "10.0.0.2:24800",
            "state": "open", "streams": 1, "silent_ns": 100_000, "payload_bytes": 1384, "most_payload_bytes": 4096,
            "in_flight_bytes": 28_000, "window_bytes": 4_194_304,
            "grant_bytes_per_s": null, "paths": [path, {"path": 4, "state": "idle"}], "receiving_paths": [from],
        }],
    })
}

fn sample_of(reports: &[Value], at: Instant) -> Sample {
    let engines = reports.iter().map(|report| {
        let (raw, understood) = understand(report.to_string().as_bytes()).unwrap();
        let engine = Engine {
            name: "metaroce-stat/1/metaroce0/25000".parse().unwrap(),
            pid: 4242,
            namespace: 5,
        };
        Heard {
            engine,
            raw,
            report: understood,
        }
    });
    Sample::of_test(at, engines.collect())
}

#[test]
fn totals_come_first_and_rates_after_that() {
    let start = Instant::now();
    let first = sample_of(&[report(1_000_000_000, 1_000, "a")], start);
    let shown = text(&first, None);
    for wanted in [
        "ib_write_bw?[2J  pid 4242  metaroce0 (eth0)  UDP 25000  1 queue pair  1 connection  1 s old",
        "sent 1000 kB, 1000 data packets  received 0 B, 0 data packets",
        "lost 727, spurious 637  dropped 3",
        "10.0.0.1 -> 10.0.0.2:24800  open  1 stream  payload 1384 of 4096 B  in flight 28 kB of 4194 kB  grant unlimited  silent 0.1 ms",
        "PACKETS",
        "busy   10.0.0.1:4000    95.4    60.0    16.5       7",
        "1 path unused",
        "DUPLICATES",
    ] {
        assert!(shown.contains(wanted), "{wanted:?} is not in\n{shown}");
    }
    let mut whole = report(1_000_000_000, 1_000, "a");
    whole["connections"][0]["payload_bytes"] = json!(4096);
    let shown = text(&sample_of(&[whole], start), None);
    assert!(shown.contains("  payload 4096 B  in flight"), "{shown}");
    let second = sample_of(
        &[report(3_000_000_000, 51_000, "a")],
        start + Duration::from_secs(2),
    );
    let shown = text(&second, Some(&first));
    for wanted in [
        "sent 200 Mb/s, 25k data packets/s  received 0 b/s, 0 data packets/s",
        "lost 0/s, spurious 0/s  dropped 0/s",
        "TOTALS: RETX  LOST  PROBES",
        "TOTALS: DUPLICATES",
        "PKT/s",
        "25k   200M",
    ] {
        assert!(shown.contains(wanted), "{wanted:?} is not in\n{shown}");
    }
    let brief = parse(&["--brief"]).unwrap();
    assert!(!text::show(&second, Some(&first), &brief).contains("PATH"));
}

#[test]
fn json_has_rates_of_the_same_engine_connection_and_path_only() {
    let start = Instant::now();
    let first = sample_of(&[report(1_000_000_000, 1_000, "a")], start);
    let json = first.json(None);
    assert_eq!(json["interval_s"], Value::Null);
    assert_eq!(json["engines"][0]["pid"], 4242);
    assert_eq!(
        json["engines"][0]["new_field"],
        json!([1]),
        "what is unknown here is passed on"
    );
    assert_eq!(json["engines"][0]["per_second"], Value::Null);

    let second = sample_of(
        &[report(3_000_000_000, 51_000, "a")],
        start + Duration::from_secs(2),
    );
    let json = second.json(Some(&first));
    assert_eq!(
        json["engines"][0]["per_second"]["data_packets_sent"],
        25_000.0
    );
    let path = &json["engines"][0]["connections"][0]["paths"][0];
    assert_eq!(path["per_second"]["data_bytes_sent"], 25_000_000.0);
    assert_eq!(path["per_second"]["moves"], 0.0);
    assert_eq!(path["per_second"]["srtt_ns"], Value::Null, "no counter");

    let other = sample_of(
        &[report(3_000_000_000, 51_000, "b")],
        start + Duration::from_secs(2),
    );
    let json = other.json(Some(&first));
    assert_eq!(
        json["engines"][0]["connections"][0]["paths"][0]["per_second"],
        Value::Null
    );
    // A younger engine under the same name is another one.
    let young = sample_of(
        &[report(500_000_000, 10, "a")],
        start + Duration::from_secs(2),
    );
    assert_eq!(
        young.json(Some(&first))["engines"][0]["per_second"],
        Value::Null
    );
}

#[test]
fn answers_that_cannot_be_read_are_explained() {
    assert!(
        understand(b"{\"version\":")
            .unwrap_err()
            .contains("damaged")
    );
    assert!(
        understand(b"{\"version\":99}")
            .unwrap_err()
            .contains("version 99")
    );
    assert!(
        understand(b"{\"version\":1,\"connections\":7}")
            .unwrap_err()
            .contains("damaged")
    );
}

#[test]
fn filters_and_limits() {
    let options = parse(&["--pid", "7", "-d", "mr0", "-i", "0.5", "-c", "3"]).unwrap();
    assert!(options.wants(&[7, 1], "mr0") && options.wants(&[100, 7], "mr0"));
    assert!(!options.wants(&[8], "mr0") && !options.wants(&[7], "mr1"));
    assert!(parse(&[]).unwrap().wants(&[1], "x"));
    assert_eq!(options.filter().as_deref(), Some("--pid 7 --device mr0"));
    assert_eq!(parse(&["-b"]).unwrap().filter(), None);
    for wrong in [
        &["-i", "0"][..],
        &["-i", "nan"],
        &["-c", "0"],
        &["--once", "-c", "2"],
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_path_that_is_new_since_the_last_sample_began_with_nothing() {
    let mut before = report(1_000_000_000, 1_000, "a");
    before["connections"][0]["paths"] = json!([]);
    before["connections"][0]["receiving_paths"] = json!([]);
    let start = Instant::now();
    let first = sample_of(&[before], start);
    let now = report(3_000_000_000, 51_000, "a");
    let shown = text(&sample_of(&[now], start), Some(&first));
    // 51,000 packets and 4 received ones in two seconds, under heads that say rates.
    for wanted in ["25.5k   204M", "      2   1600"] {
        assert!(shown.contains(wanted), "{wanted:?} is not in\n{shown}");
    }
}

#[test]
fn what_is_said_of_nobody() {
    let explain = |sample: &Sample, line: &[&str]| nothing::explain(sample, &parse(line).unwrap());
    let mut sample = sample_of(&[], Instant::now());
    let text = explain(&sample, &[]);
    assert!(text.starts_with("no process of this user uses metaroce (start programs"));
    let text = explain(&sample, &["-p", "7"]);
    assert!(text.starts_with("no process of this user matches --pid 7: none uses metaroce"));
    sample.others = 2;
    assert!(explain(&sample, &[]).ends_with("\n2 of other users (root sees them)"));
    // Root sees everybody's.
    (sample.others, sample.as_root) = (0, true);
    assert!(explain(&sample, &[]).starts_with("no process uses metaroce (start"));

    let engine = |pid| Engine {
        name: "metaroce-stat/1/mr\u{1b}0/25000".parse().unwrap(),
        pid,
        namespace: 5,
    };
    sample.passed_over = (1..=3).map(engine).collect();
    let text = explain(&sample, &["-p", "7", "-d", "x"]);
    let expected =
        "no process matches --pid 7 --device x; there are:\n  pid 1  mr?0  UDP 25000\n  pid 2  ";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(text.lines().count(), 4);
    sample.passed_over = (1..=20).map(engine).collect();
    let text = explain(&sample, &["-d", "x"]);
    assert_eq!(text.lines().count(), 18);
    assert!(text.ends_with("\n  and 4 more"), "{text}");
}

#[test]
fn those_that_are_not_wanted_are_told_unless_they_are_gone() {
    let (there, _listener) = listener(6);
    let (gone, listens) = listener(7);
    drop(listens);
    let namespace = Namespace {
        inode: 1,
        entrance: None,
        names: vec![there.clone(), gone],
    };
    let asked = ask::all(&[namespace], |_| false, |_| false);
    assert_eq!(asked.answers, []);
    let names: Vec<_> = asked
        .passed_over
        .iter()
        .map(|engine| &engine.name)
        .collect();
    assert_eq!(names, [&there]);
}

#[test]
fn a_frame_fits_the_terminal() {
    let size = |columns, rows| Some(screen::Size { columns, rows });
    let lines = |frame: &str| -> Vec<String> {
        let frame = frame.strip_prefix("\x1b[H").unwrap();
        let frame = frame.strip_suffix("\x1b[J").unwrap();
        frame.lines().map(str::to_owned).collect()
    };
    let text = "0123456789\nabc\n\nfour\n";
    // All of it, if nobody knows the size.
    let whole = ["0123456789\x1b[K", "abc\x1b[K", "\x1b[K", "four\x1b[K"];
    assert_eq!(lines(&screen::frame(text, None)), whole);
    assert_eq!(lines(&screen::frame(text, size(80, 5))), whole);
    // A line that is as wide as the terminal would lose its last character to the erasing.
    assert_eq!(lines(&screen::frame(text, size(10, 9)))[0], "0123456789");
    assert_eq!(lines(&screen::frame(text, size(9, 9)))[0], "01234567>");
    // From the top; one row is the cursor's.
    let small = lines(&screen::frame(text, size(80, 4)));
    assert_eq!(small[..2], whole[..2]);
    assert!(small[2].starts_with("2 more lines (all: --once, one process: -p PID)"));
    assert_eq!(small.len(), 3);
    for rows in 0..3 {
        assert_eq!(lines(&screen::frame(text, size(7, rows))), ["4 more>"]);
    }
    // Two columns each.
    let wide = lines(&screen::frame("\u{6f22}\u{5b57}\u{6f22}", size(5, 9)));
    assert_eq!(wide, ["\u{6f22}\u{5b57}>\x1b[K"]);
    assert_eq!(lines(&screen::frame("abc", size(0, 9))), [">"]);
}

#[test]
fn help_explains_whatever_is_shown() {
    let first = sample_of(&[report(1_000_000_000, 1_000, "a")], Instant::now());
    let later = sample_of(&[report(2_000_000_000, 2_000, "a")], Instant::now());
    let shown = text(&first, None) + &text(&later, Some(&first));
    let is_head = |word: &&str| {
        word.len() > 1
            && word
                .chars()
                .all(|letter| letter.is_ascii_uppercase() || letter == ':')
    };
    let heads = shown.split_whitespace().filter(is_head);
    let heads: std::collections::BTreeSet<&str> =
        heads.map(|head| head.trim_end_matches(':')).collect();
    assert!(heads.len() >= 15, "{heads:?}");
    let words = [
        "retransmitted",
        "lost",
        "spurious",
        "dropped",
        "overflows",
        "held",
        "held back",
        "refused",
        "in flight",
        "grant",
        "silent",
        "idle",
        "busy",
        "probing",
        "resting",
        "PKT/s",
        "bit/s",
    ];
    // What verbs and networks call by these names.
    let known = ["UDP", "LOCAL", "TCP"];
    for word in heads.into_iter().chain(words) {
        assert!(
            known.contains(&word) || legend::LONG.contains(word),
            "{word} is not explained"
        );
    }
    assert!(legend::LONG.lines().all(|line| line.len() <= 100));
    assert!(legend::SHORT.contains("--help"));
}

#[test]
fn what_is_held_back_is_shown_where_something_was() {
    let of = |packets: u64| {
        let mut report = report(1_000_000_000, 1_000, "a");
        report["held_bytes"] = json!(65_000);
        report["hold_limit_bytes"] = json!(4_194_304);
        report["counters"]["packets_held"] = json!(packets);
        report["counters"]["hold_refusals"] = json!(2);
        text(&sample_of(&[report], Instant::now()), None)
    };
    let line = "  held 65 kB of 4194 kB  held back 700 packets  refused 2\n";
    assert!(of(700).contains(line), "{}", of(700));
    assert!(!of(0).contains("held"));
}

#[test]
fn planes_are_shown_where_there_are_several() {
    let start = Instant::now();
    let plane = |plane: u64, up, sent: u64| {
        json!({"plane": plane, "local": format!("10.{plane}.0.1"), "destination": format!("10.{plane}.0.2:24791"), "up": up,
            "enabled": plane != 2, "proved": true, "speed_mbps": 1000, "peer_speed_mbps": 100, "paths": 4, "resting_paths": 1,
            "data_bytes_sent": sent})
    };
    let mut one = report(1_000_000_000, 1_000, "a");
    one["connections"][0]["planes"] = json!([plane(0, true, 0)]);
    assert!(!text(&sample_of(&[one.clone()], start), None).contains("PLANE"));
    one["connections"][0]["planes"] = json!([
        plane(0, true, 1_000_000),
        plane(1, false, 0),
        plane(2, true, 0)
    ]);
    let first = sample_of(&[one.clone()], start);
    let lines = |shown: &str| -> Vec<Vec<String>> {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        let table = shown.lines().skip_while(|line| !line.contains("PLANE"));
        table.skip(1).take(3).map(words).collect()
    };
    let shown = lines(&text(&first, None));
    let wanted = [
        "0",
        "works",
        "10.0.0.1",
        "10.0.0.2:24791",
        "1.0",
        "0.1",
        "4",
        "1",
    ];
    assert_eq!(shown[0][..8], wanted.map(str::to_owned));
    assert_eq!(
        (shown[0][9].as_str(), shown[0][10].as_str()),
        ("1000k", "400")
    );
    assert_eq!(
        (shown[1][1].as_str(), shown[2][1].as_str()),
        ("down", "off")
    );
    one["age_ns"] = json!(3_000_000_000_u64);
    one["connections"][0]["planes"][0]["data_bytes_sent"] = json!(3_000_000);
    let second = sample_of(&[one], start + Duration::from_secs(2));
    assert_eq!(lines(&text(&second, Some(&first)))[0][9], "8000k");
}
