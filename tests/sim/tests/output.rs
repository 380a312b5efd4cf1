//! The program `sim` as others use it.

use std::process::{Command, Stdio};

#[test]
fn that_nobody_reads_on_is_no_failure() {
    for arguments in [
        &["calm", "--count", "1"][..],
        &["calm", "--count", "1", "--trace"],
        &["moves", "--json"],
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
        assert!(ended.status.success(), "{arguments:?}: {complaint}");
        assert_eq!(complaint, "", "{arguments:?}");
    }
}
