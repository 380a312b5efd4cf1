//! `cargo xtask sim`: the simulator, optimised. It knows its own arguments, which are handed on as they are; see
//! `tests/sim/src/bin/sim.rs`.

use std::process::ExitCode;

use anyhow::Result;

use crate::build;
use crate::handed_on::{self, Arguments};

/// Runs the simulator.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut command = build::cargo(&[
        "run",
        "--quiet",
        "--profile",
        "sim",
        "-p",
        "metaroce-sim",
        "--",
    ])?;
    // A "--" before what is meant for the simulator is not needed, and does not hurt.
    command.args(arguments.given.iter().filter(|one| *one != "--"));
    handed_on::run(command)
}
