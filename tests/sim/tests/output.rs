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
