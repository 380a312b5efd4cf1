//! `cargo xtask dissect`: builds the dissector and hands it the arguments.
//!
//! It is a program of its own (tests/dissect), because it needs the protocol, and this tool is to build without it. It
//! runs in the caller's folder with the caller's standard input, so that relative paths and pipes work.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use metaroce_e2e::artefacts;

use crate::build;
use crate::handed_on::Arguments;

/// Builds and runs the dissector.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    build::run_cargo(&["build", "--quiet", "-p", "metaroce-dissect"], &[])?;
    let program = artefacts::target_folder()?.join("debug/metaroce-dissect");
    let status = Command::new(&program)
        .args(&arguments.given)
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    // None: a signal ended it.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
