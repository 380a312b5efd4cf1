//! `cargo xtask sim`: the simulator, optimised. It knows its own arguments, which are handed on as they are; see
//! `tests/sim/src/bin/sim.rs`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::build;

/// Arguments of `sim`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// What the simulator is asked: a scenario, and options (`--help` tells them all).
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    arguments: Vec<String>,
}

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
    command.args(arguments.arguments.iter().filter(|one| *one != "--"));
    let right = build::run(command)?.success();
    Ok(if right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
