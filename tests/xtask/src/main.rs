//! `cargo xtask`: the one tool of this repository.
//!
//! `demo` and `test` are the two commands of the README, `ci` is `test` with the lints in front, `fabric`
//! makes the virtual network that they use for work by hand, `dissect` shows what is on the wire. Each command has a file of its own; the
//! fabric and the running of programs are in the library `metaroce-e2e`.

mod build;
mod conformance;
mod demo;
mod dissect;
mod fabric;
mod fuzz;
mod handed_on;
mod output;
mod ping_pong;
mod report;
mod sanitize;
mod sim;
mod tcp_stream;
mod test;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use metaroce_e2e::interrupt;

/// The one tool of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run unmodified ib_write_bw over four planes, without and with loss, beside TCP (needs root).
    Demo(demo::Arguments),
    /// Run every test, from unit to end-to-end; the latter need root.
    Test(test::Arguments),
    /// Check the format, lints and documentation, then run every test.
    Ci(test::Arguments),
    /// Make, use, impair and remove a virtual network of hosts (needs root).
    #[command(subcommand)]
    Fabric(fabric::Command),
    /// Show the metaroce packets of a capture file; make the dissector for Wireshark (--help tells more).
    Dissect(handed_on::Arguments),
    /// Look for inputs that break the codec, the paths, the connections or the C entry points (needs a C++ compiler).
    Fuzz(fuzz::Arguments),
    /// Run the packet scripts of WIRE.md against our endpoint, or another's; tell what tests each sentence (--help tells more).
    Conformance(handed_on::Arguments),
    /// Run the transport in simulated networks, by seeds; `sim --help` of the simulator tells all arguments.
    Sim(handed_on::Arguments),
    /// Draw what the transport does in simulated fabrics, and RoCEv2 beside it, on one HTML page (--help tells more).
    Report(handed_on::Arguments),
    /// Run the tests of the unsafe corners under the address sanitizer, or valgrind where there is none.
    Sanitize(sanitize::Arguments),
    /// Try every order of the threads in models of the concurrent corners.
    Loom,
    /// A TCP stream of large writes, for comparison.
    #[command(subcommand)]
    TcpStream(tcp_stream::Command),
    /// A ping-pong over a plain socket, for comparison.
    #[command(subcommand)]
    PingPong(ping_pong::Command),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    interrupt::install();
    match run(arguments.command) {
        Ok(code) => code,
        // Whatever failed then was told to stop, and is not to blame.
        Err(error) => match interrupt::exit_status() {
            Some(status) => {
                eprintln!("interrupted");
                ExitCode::from(status)
            }
            None => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(arguments) => demo::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Test(arguments) => test::run(&arguments),
        Command::Ci(arguments) => test::run_with_lints(&arguments),
        Command::Fabric(command) => fabric::run(command),
        Command::Dissect(arguments) => dissect::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Conformance(arguments) => conformance::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Sanitize(arguments) => sanitize::run(&arguments),
        Command::Loom => sanitize::loom(),
        Command::TcpStream(command) => tcp_stream::run(&command).map(|()| ExitCode::SUCCESS),
        Command::PingPong(command) => ping_pong::run(&command).map(|()| ExitCode::SUCCESS),
    }
}
