//! Tools that know their own arguments (`sim`, `report`, `conformance`, `dissect`): what they are asked is handed on as it is.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;

use crate::build;

/// Arguments of such a tool, `--help` included.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// What the tool is asked (`--help` tells all of it).
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub given: Vec<OsString>,
}

/// Runs the tool by way of cargo.
pub fn run(command: Command) -> Result<ExitCode> {
    Ok(match build::run(command)?.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn nothing_is_taken_away() {
        for line in [
            &["x"][..],
            &["x", "--help"],
            &["x", "-h", "file"],
            &["x", "--loss", "0.01", "--", "--json"],
        ] {
            let parsed = Line::try_parse_from(line).expect("all of it is handed on");
            assert_eq!(parsed.arguments.given, &line[1..]);
        }
    }
}
