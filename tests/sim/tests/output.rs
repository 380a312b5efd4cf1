//! The program `sim` as others use it.

use std::process::{Command, Stdio};

use metaroce_sim::scenario::WRONG;

#[test]
fn that_nobody_reads_on_is_no_failure_and_hides_none() {
    for (arguments, right) in [
        (&["calm", "--count", "1"][..], true),
        (&["calm", "--count", "1", "--trace"], true),
        (&["moves", "--json"], true),
        (&[WRONG, "--count", "1"], false),
        (&[WRONG, "--count", "1", "--trace"], false),
        (&[WRONG, "--forever", "60"], false),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ended = Command::new(env!("CARGO_BIN_EXE_sim"))
            .args(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .and_then(|child| child.wait_with_output())
            .expect("it runs");
        let complaint = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.success(), right, "{arguments:?}: {complaint}");
        assert_eq!(complaint, "", "{arguments:?}");
    }
}

fn sim(arguments: &[&str]) -> (bool, String, String) {
    let ended = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(arguments)
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        ended.status.success(),
        text(&ended.stdout),
        text(&ended.stderr),
    )
}

#[test]
fn wrong_arguments_are_refused_by_what_is_wrong_with_them() {
    for (arguments, complaint) in [
        (&["loss", "--loss", "-0.1"][..], "must be a part from 0"),
        (&["loss", "--rtt-us", "-5"], "invalid value '-5'"),
        (&["loss", "--seed", "-1"], "must be a whole number"),
        (&["--seed", "x"], "must be a whole number"),
        (&["--count", "0"], "0 is not in 1.."),
        (&["--bulk", "--messages", "0"], "0 is not in 1.."),
        (&["--trace", "loss"], "has no option --trace"),
        (&["--count", "3", "incast"], "has no option --count"),
        (
            &["loss", "--transport", "rocev2", "--congestion", "delay"],
            "--congestion is metaroce's",
        ),
        (&["plane-death", "--planes", "1"], "--planes must be 2"),
        (&["calm", "loss"], "calm is too much"),
    ] {
        let (right, _, said) = sim(arguments);
        assert!(!right && said.contains(complaint), "{arguments:?}: {said}");
    }
}

#[test]
fn list_shows_the_scenarios_that_check() {
    let (right, said, _) = sim(&["list"]);
    assert!(right);
    assert!(said.lines().any(|line| line == "calm"), "{said}");
}
