//! `cargo xtask report`: the page with plots, from an optimised simulator. It knows its own arguments, which are handed on as
//! they are; see `tests/report`.

use std::process::ExitCode;

use anyhow::Result;

use crate::build;
use crate::handed_on::{self, Arguments};

/// Writes the page.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut command =
        build::cargo(&["run", "--quiet", "--release", "-p", "metaroce-report", "--"])?;
    command.args(&arguments.given);
    handed_on::run(command)
}
