//! `cargo xtask report`: writes the page. `--help` tells the arguments.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use metaroce_report::{Extent, write};

/// Runs the transport, and the model of RoCEv2, in the simulator, and draws what was found on one HTML page.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask report", bin_name = "cargo xtask report")]
struct Arguments {
    /// Where the page goes.
    #[arg(long, value_name = "FILE", default_value = "target/report/index.html")]
    out: PathBuf,
    /// Few points, few hosts, few bytes: a look at the page within seconds.
    #[arg(long)]
    quick: bool,
    /// Seed of all runs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn run(arguments: &Arguments) -> Result<()> {
    let extent = if arguments.quick {
        Extent::quick(arguments.seed)
    } else {
        Extent::full(arguments.seed)
    };
    write(&arguments.out, &extent, &mut |section| {
        eprintln!("{section}");
    })?;
    println!("{}", arguments.out.display());
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
