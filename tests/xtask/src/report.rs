//! `cargo xtask report`: the page with plots, from an optimised simulator. It knows its own arguments, which are handed on as
//! they are; see `tests/report`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::build;

/// Arguments of `report`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Where the page goes, and how much is run (`--help` tells them all).
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    arguments: Vec<String>,
}

/// Writes the page.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut command =
        build::cargo(&["run", "--quiet", "--release", "-p", "metaroce-report", "--"])?;
    command.args(&arguments.arguments);
    let right = build::run(command)?.success();
    Ok(if right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
