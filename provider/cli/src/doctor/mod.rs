//! `metaroce doctor`: what this host lacks, why it matters and how to mend it.
//!
//! Each check is a function from what it looked at to findings, so that each can be tested with what no test machine has;
//! nothing is changed, and nothing needs root. [`libraries`] looks at files, [`environment`] at what a launcher
//! left behind, [`kernel`] at limits, [`network`] at interfaces and ports, [`firewall`] at firewalls, [`program`] at one program.

mod environment;
mod firewall;
mod kernel;
mod libraries;
mod network;
mod program;
#[cfg(test)]
mod tests;

use crate::{print, select};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name of the check, for programs.
    check: &'static str,
    grade: Grade,
    /// What is the case.
    text: String,
    /// What to do about it; empty where nothing is to be done, or the text says it.
    cure: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    /// As it should be.
    Good,
    /// Works, but not as well as it could; or may not work.
    Warning,
    /// Does not work.
    Bad,
}

impl Grade {
    const fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Bad => "problem",
        }
    }
}

impl Finding {
    fn good(check: &'static str, text: impl Into<String>) -> Self {
        Self {
            check,
            grade: Grade::Good,
            text: text.into(),
            cure: String::new(),
        }
    }

    fn warning(check: &'static str, text: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            check,
            grade: Grade::Warning,
            text: text.into(),
            cure: cure.into(),
        }
    }

    fn bad(check: &'static str, text: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            check,
            grade: Grade::Bad,
            text: text.into(),
            cure: cure.into(),
        }
    }

    fn json(&self) -> Value {
        json!({"check": self.check, "grade": self.grade.name(), "text": self.text, "cure": self.cure})
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.grade {
            Grade::Bad => "PROBLEM",
            other => other.name(),
        };
        writeln!(f, "{mark:8} {}", self.text)?;
        if !self.cure.is_empty() {
            writeln!(f, "{:8} -> {}", "", self.cure)?;
        }
        Ok(())
    }
}

/// What no check can mend.
const OUT_OF_REACH: &str = "Out of reach whatever the host has: statically linked and setuid programs (the dynamic \
    linker does not preload into them; `metaroce doctor -- COMMAND` looks at one), and programs started on other hosts \
    without the launcher (start \"metaroce run -- COMMAND\" there).";

/// Runs every check and prints what it found. Fails if something does not work; warnings do not fail.
///
/// # Errors
/// It cannot be printed.
pub(crate) fn examine(json: bool, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let findings = findings(command);
    let bad = findings.iter().any(|finding| finding.grade == Grade::Bad);
    print(&if json {
        let findings: Vec<Value> = findings.iter().map(Finding::json).collect();
        json!({"ok": !bad, "findings": findings}).to_string() + "\n"
    } else {
        let report: String = findings.iter().map(Finding::to_string).collect();
        format!("{report}\n{OUT_OF_REACH}\n")
    })?;
    Ok(if bad {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn findings(command: &[OsString]) -> Vec<Finding> {
    // Who can open no file sees none of what the others look for, and would name wrong cures.
    let open_files = kernel::check_open_files(kernel::open_files());
    if open_files.grade == Grade::Bad {
        return vec![open_files];
    }
    let mut findings = libraries::check();
    findings.extend(environment::check());
    match select(None) {
        Ok(devices) => {
            findings.extend(network::check(&devices));
            findings.extend(firewall::check(&devices, metaroce::port_range()));
        }
        Err(error) => findings.push(Finding::bad("devices", format!("{error:#}"), "")),
    }
    findings.extend(kernel::check());
    if let Some(program) = command.first() {
        findings.push(program::check(program));
    }
    findings
}

/// What is to be said before a program starts that could not get a port; `None` in the ordinary case.
pub(crate) fn ports_exhausted() -> Option<String> {
    let finding = network::check_ports();
    (finding.grade == Grade::Bad).then(|| format!("{}. Cure: {}", finding.text, finding.cure))
}

/// What a helper program printed (stdout, then stderr); `None` if it is not there, failed to start, or took too long.
fn output_of(command: &mut Command, within: Duration) -> Option<String> {
    let spawned = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.ok()?;
    let (mut stdout, mut stderr) = (child.stdout.take()?, child.stderr.take()?);
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.read_to_end(&mut text);
        let _ = stderr.read_to_end(&mut text);
        let _ = send.send(text);
    });
    let text = receive.recv_timeout(within).ok();
    // Either it has ended, or it hangs.
    if text.is_none() {
        let _ = child.kill();
    }
    let _ = child.wait();
    text.map(|text| String::from_utf8_lossy(&text).into_owned())
}
