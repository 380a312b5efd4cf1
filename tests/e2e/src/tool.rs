//! Running the system's own tools (`ip`, `tc`, `bpftool`, `clang`, `apt-get` …) for set-up work.
//!
//! Answers for one thing: a tool that is missing or fails ends in a message that names the tool, what
//! it said and how to mend it. Called by `fabric`, `packages` and `c_program`; programs under test are
//! started by `program` instead, which bounds their time.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use crate::{interrupt, packages};

/// Folders searched beside `PATH`: a plain user's or a chroot's `PATH` often lacks them.
const EXTRA_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The absolute path of `program`, from `PATH` and the sbin folders.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(EXTRA_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// The absolute path of `program`, or an error that names the Debian package which has it.
pub fn require(program: &str) -> Result<PathBuf> {
    find(program).ok_or_else(|| match packages::package_of(program) {
        Some(package) => anyhow!(
            "`{program}` is not installed: apt-get install {package} (Debian), or the package of \
             your distribution that has it"
        ),
        None => anyhow!("`{program}` is not installed"),
    })
}

/// Runs a tool to its end and returns what it wrote to standard output.
///
/// # Errors
/// The tool is missing, or it exited with a status other than 0: the message has its standard error; or "interrupted".
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    run_with_input(program, arguments, "")
}

/// Like [`run`], with `input` on the tool's standard input.
///
/// # Errors
/// As [`run`].
pub fn run_with_input(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    let path = require(program)?;
    let mut child = Command::new(path)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{program}`"))?;
    // A tool that ends before it has read its input is judged by its exit status below, so a broken
    // pipe here is no error of its own. The inputs are far smaller than what its output pipe holds.
    if let Some(mut pipe) = child.stdin.take() {
        let _ = pipe.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("cannot wait for `{program}`"))?;
    if !output.status.success() {
        // A terminal's Ctrl-C reaches the tool, too.
        interrupt::check()?;
        bail!(
            "`{program} {}` failed ({}): {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a tool that prints JSON and parses what it printed; no output at all is JSON's null.
///
/// # Errors
/// As [`run`], or the output is not JSON.
pub fn run_json(program: &str, arguments: &[&str]) -> Result<serde_json::Value> {
    let text = run(program, arguments)?;
    if text.trim().is_empty() {
        return Ok(serde_json::Value::Null);
    }
    serde_json::from_str(&text)
        .with_context(|| format!("`{program} {}` printed no JSON", arguments.join(" ")))
}

/// Whether this process has user number 0 as its effective user.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_its_package() {
        let message = require("ib_no_such_program").unwrap_err().to_string();
        assert!(message.contains("not installed"), "{message}");
        assert_eq!(packages::package_of("ib_write_bw"), Some("perftest"));
    }

    #[test]
    fn a_failing_tool_tells_its_standard_error() {
        let message = run("sh", &["-c", "echo why >&2; exit 3"])
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("why") && message.contains('3'),
            "{message}"
        );
    }

    #[test]
    fn input_reaches_the_tool() {
        assert_eq!(run_with_input("cat", &[], "abc").unwrap(), "abc");
        assert_eq!(run_json("true", &[]).unwrap(), serde_json::Value::Null);
    }
}
