//! `cargo xtask sim`: the simulator, optimised, with what it needs to be asked most often. Everything else is told to it
//! after `--`; what it can do is in `tests/sim`.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use clap::Args;

use crate::build;

/// Arguments of `sim`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A named scenario instead of random ones; `list` shows the names. Those that measure: loss, tail, incast, planes.
    scenario: Option<String>,
    /// First seed (1; of --forever: one that was not tried before).
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds in a row.
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// Random scenarios from fresh seeds until Ctrl-C, or for so many seconds if they are given.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "0", conflicts_with = "scenario")]
    forever: Option<u64>,
    #[command(flatten)]
    measuring: Measuring,
    /// More arguments for the simulator (`-- --help`).
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Options of the scenarios that measure, handed on as they are.
#[derive(Debug, Args)]
struct Measuring {
    /// Part of all packets that is lost, data and acknowledgements alike (1 % is 0.01).
    #[arg(long, value_name = "P", requires = "scenario")]
    loss: Option<String>,
    /// Packets that are lost in a row at most.
    #[arg(long, value_name = "N", requires = "scenario")]
    burst: Option<String>,
    /// Round trip of a packet of no length.
    #[arg(long, value_name = "R", requires = "scenario")]
    rtt_us: Option<String>,
    /// Length of a message.
    #[arg(long, value_name = "N", requires = "scenario")]
    bytes: Option<String>,
    /// Hosts that send to one.
    #[arg(long, value_name = "N", requires = "scenario")]
    senders: Option<String>,
    /// Planes.
    #[arg(long, value_name = "N", requires = "scenario")]
    planes: Option<String>,
    /// Hosts on the planes.
    #[arg(long, value_name = "N", requires = "scenario")]
    nodes: Option<String>,
    /// Connections between the hosts.
    #[arg(long, value_name = "N", requires = "scenario")]
    connections: Option<String>,
    /// Print one JSON object (of other scenarios: packets and events as JSON, with `-- --trace`).
    #[arg(long)]
    json: bool,
}

impl Measuring {
    fn add_to(&self, command: &mut Command) {
        let options = [
            ("--loss", &self.loss),
            ("--burst", &self.burst),
            ("--rtt-us", &self.rtt_us),
            ("--bytes", &self.bytes),
            ("--senders", &self.senders),
            ("--planes", &self.planes),
            ("--nodes", &self.nodes),
            ("--connections", &self.connections),
        ];
        for (name, value) in options {
            if let Some(value) = value {
                command.args([name, value]);
            }
        }
        if self.json {
            command.arg("--json");
        }
    }
}

/// Seeds of one call of the simulator while it runs for ever: each says how many were right, every ten seconds or so.
const BATCH: u64 = 500;

/// Fresh seeds begin here, where random scenarios have all faults, moves for no reason included.
const FIRST_FRESH_SEED: u64 = 2_000_000;

/// Runs the simulator.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match arguments.forever {
        Some(seconds) => run_forever(arguments, seconds),
        None => {
            let mut command = simulator(arguments.seed.unwrap_or(1), arguments.count)?;
            if let Some(name) = &arguments.scenario {
                command.args(["--name", name]);
            }
            arguments.measuring.add_to(&mut command);
            command.args(&arguments.rest);
            let right = build::run(command)?.success();
            Ok(if right {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
    }
}

fn simulator(seed: u64, count: u64) -> Result<Command> {
    let mut command = build::cargo(&["run", "--quiet", "--release", "-p", "metaroce-sim", "--"])?;
    command.args(["--seed", &seed.to_string(), "--count", &count.to_string()]);
    Ok(command)
}

fn run_forever(arguments: &Arguments, seconds: u64) -> Result<ExitCode> {
    let began = Instant::now();
    let mut seed = arguments.seed.unwrap_or_else(fresh_seed);
    println!(
        "seeds from {seed} on, {}",
        match seconds {
            0 => "until Ctrl-C".to_owned(),
            _ => format!("for {seconds} s"),
        }
    );
    while seconds == 0 || began.elapsed() < Duration::from_secs(seconds) {
        let mut command = simulator(seed, BATCH)?;
        command.args(&arguments.rest);
        if !build::run(command)?.success() {
            return Ok(ExitCode::FAILURE);
        }
        ensure!(seed < u64::MAX - BATCH, "no seeds left");
        seed += BATCH;
    }
    Ok(ExitCode::SUCCESS)
}

/// One that nobody used: from the clock, far enough from that of the next second.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    FIRST_FRESH_SEED + now.map_or(0, |now| now.as_secs() << 16)
}
