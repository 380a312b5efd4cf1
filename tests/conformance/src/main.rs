//! `cargo xtask conformance`: runs the scripts against an endpoint, and reports what tests each sentence of WIRE.md.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use metaroce_conformance::bench::Place;
use metaroce_conformance::report::{Others, Report, read_others};
use metaroce_conformance::scripts;
use metaroce_conformance::target::Start;

/// Packet scripts against an endpoint that speaks WIRE.md.
///
/// Without --target against ours, on the loopback interface. tests/conformance/README.md tells how another one is tested.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask conformance", bin_name = "cargo xtask conformance")]
struct Arguments {
    /// Only scripts whose name has this in it (`acks::`, `RNR` …).
    filter: Option<String>,
    /// Write the report of all sentences to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Only list the scripts, and the sentences that each tests.
    #[arg(long)]
    list: bool,
    /// Only check that every sentence has a test.
    #[arg(long)]
    no_scripts: bool,
    /// Command that starts the endpoint under test, for the shell; it obeys lines on its standard input.
    #[arg(long, value_name = "COMMAND")]
    target: Option<String>,
    /// Address of this host for the suite's own endpoint [default: one of the loopback interface].
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
    /// Another address of this host, for packets of strangers [default: one of the loopback interface].
    #[arg(long, value_name = "ADDRESS")]
    stranger: Option<IpAddr>,
    /// First UDP port of the endpoints' range [default: 24791].
    #[arg(long, value_name = "PORT")]
    port_base: Option<u16>,
    /// Verdicts of other tests: lines `NAME ok` or `NAME FAILED`.
    #[arg(long, value_name = "FILE")]
    verdicts: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A line about what goes on. That nobody reads on (`| head`) is no failure.
fn line(text: impl Display) {
    let _ = writeln!(io::stdout(), "{text}");
}

fn run(arguments: &Arguments) -> Result<bool> {
    let filter = arguments.filter.as_deref().unwrap_or_default();
    let chosen: Vec<_> = scripts::all()
        .into_iter()
        .enumerate()
        .filter(|(_, script)| script.name.contains(filter))
        .collect();
    if chosen.is_empty() {
        bail!("no script has {filter:?} in its name: --list shows them all");
    }
    if arguments.list {
        for (_, script) in &chosen {
            line(format_args!(
                "{:<55} {}",
                script.name,
                script.cites.join(" ")
            ));
        }
        return Ok(true);
    }
    let usual = Place::default();
    let place = Place {
        peer: arguments.peer.unwrap_or(usual.peer),
        stranger: arguments.stranger.unwrap_or(usual.stranger),
        port_base: arguments.port_base.unwrap_or(usual.port_base),
    };
    let mut verdicts = Vec::new();
    if !arguments.no_scripts {
        let start = match &arguments.target {
            Some(command) => Start::Command(command.clone()),
            None => Start::ours()?,
        };
        for (number, script) in &chosen {
            let verdict = script.run(&start, &place, *number);
            let word = verdict.error.as_ref().map_or("ok", |_| "FAILED");
            line(format_args!(
                "{:<55} {word:<6} {:6.2} s",
                script.name,
                verdict.took.as_secs_f64()
            ));
            if let Some(error) = &verdict.error {
                line(error);
            }
            verdicts.push(verdict);
        }
    }
    let others = match &arguments.verdicts {
        Some(file) => read_others(
            &fs::read_to_string(file).with_context(|| format!("no {}", file.display()))?,
        ),
        None => Others::new(),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let report = Report::collect(&root, &verdicts, &others)?;
    if let Some(file) = &arguments.report {
        fs::write(file, report.text())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let failed = verdicts
        .iter()
        .filter(|verdict| verdict.error.is_some())
        .count();
    line(format_args!(
        "\n{} scripts, {failed} failed",
        verdicts.len()
    ));
    line(report.summary());
    let untested = report.untested();
    for sentence in &untested {
        line(format_args!("no test cites {sentence}"));
    }
    Ok(failed == 0 && untested.is_empty())
}
