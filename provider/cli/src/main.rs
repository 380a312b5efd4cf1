//! The metaroce command: run programs on a metaroce device, list devices, watch what they do, diagnose.
//!
//! `run` shows the command the device tree ([`run`]), `devices` lists what it would show ([`devices`]), `doctor` says
//! what is missing and how to mend it ([`doctor`]), `stat` what running programs do ([`stat`]). The work is done by the library's `device` module and by the two
//! shared libraries that [`artefacts`] finds. Read first: [`run`].

mod artefacts;
mod devices;
mod doctor;
mod libibverbs;
mod run;
mod stat;

use clap::{Parser, Subcommand};
use metaroce::device::{DEVICES_VARIABLE, Device, Selection, discover};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// RDMA verbs over ordinary Ethernet NICs, without RDMA hardware, kernel modules or root.
#[derive(Parser)]
#[command(name = "metaroce", version, about)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a program that uses libibverbs on metaroce devices.
    Run {
        /// Devices to show: "eth0,eth1", "metaroce0=eth0,…", or "mr0=eth0+eth1" for one device of two planes [default:
        /// METAROCE_DEVICES, else every usable interface].
        #[arg(long, value_name = "LIST")]
        devices: Option<String>,
        /// The program and its arguments.
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "COMMAND"
        )]
        command: Vec<OsString>,
    },
    /// List the devices of this host.
    Devices {
        /// As for `run`.
        #[arg(long, value_name = "LIST")]
        devices: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what every process that uses metaroce is doing: rates, losses, round trips, path by path.
    Stat(stat::Options),
    /// Check what metaroce needs of this host; say what is missing and how to mend it.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Also look whether this program can be run on a metaroce device.
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
}

/// Exit status when the launcher itself fails, as `env`, `timeout` and the like have it.
const LAUNCHER_FAILED: u8 = 125;

fn main() -> ExitCode {
    let result = match Arguments::parse().action {
        Action::Run { devices, command } => return run::run(devices.as_deref(), &command),
        Action::Devices { devices, json } => devices::list(devices.as_deref(), json),
        Action::Stat(options) => stat::run(&options),
        Action::Doctor { json, command } => {
            return doctor::examine(json, &command).unwrap_or_else(|error| fail(&error));
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Prints to stdout. That nobody reads it (any more) is no failure: `metaroce devices | head -1`; it gives false then.
///
/// # Errors
/// Anything else, such as a full disk.
fn print(text: &str) -> anyhow::Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
    }
}

/// Prints what went wrong, and the exit status that says so.
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("metaroce: {error:#}");
    ExitCode::from(LAUNCHER_FAILED)
}

/// The devices that the option, or else the environment, selects.
fn select(option: Option<&str>) -> anyhow::Result<Vec<Device>> {
    let selection = match option {
        Some(list) => Selection::parse(list),
        None => Selection::from_environment(),
    };
    // The message speaks of the variable, which the option stands for.
    let found = selection.and_then(|selection| discover(&selection));
    found.map_err(|error| match option {
        Some(_) => anyhow::anyhow!(
            "{}",
            error.to_string().replace(DEVICES_VARIABLE, "--devices")
        ),
        None => error.into(),
    })
}

#[cfg(test)]
mod tests;
