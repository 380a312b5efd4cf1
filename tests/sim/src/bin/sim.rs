//! Runs scenarios from seeds and says what was found. `--help` tells the arguments; those of the scenarios that measure
//! come from `performance`.

use std::io::{self, ErrorKind, Write, stdout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser};
use metaroce_sim::performance::{self, Measuring};
use metaroce_sim::scenario::{FIRST_CROWD_SEED, NAMES, Scenario, bulk, named, random};
use metaroce_sim::trace::Show;
use metaroce_sim::world::World;

/// Runs the transport in simulated networks and checks what programs may rely on.
///
/// Without a scenario, random ones; with one of those below that measure, their figures, on links of 100 Gb/s with packets
/// of 4 KiB (`SCENARIO --help` has its options).
#[derive(Debug, Parser)]
#[command(
    name = "sim",
    subcommand_help_heading = "Scenarios that measure",
    subcommand_value_name = "SCENARIO",
    disable_help_subcommand = true
)]
struct Arguments {
    /// A scenario that checks; `list` shows their names.
    name: Option<String>,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    all: All,
}

/// What every scenario has.
#[derive(Debug, Args)]
struct All {
    /// First seed (1; of --forever: one that was not tried before).
    #[arg(long, global = true, allow_negative_numbers = true, value_parser = whole)]
    seed: Option<u64>,
    /// Print figures, or of runs that check what --trace and --events show, as JSON, one object a line.
    #[arg(long, global = true)]
    json: bool,
}

/// How scenarios are run that check.
#[derive(Debug, Args)]
struct Runs {
    /// How many seeds in a row.
    #[arg(long, value_name = "M", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Fresh seeds until Ctrl-C, or for so many seconds if they are given.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "0", conflicts_with = "count",
        value_parser = whole)]
    forever: Option<u64>,
    /// Print every packet and every event of the endpoints (scenarios that measure do not have it).
    #[arg(long)]
    trace: bool,
    /// Print the events only.
    #[arg(long)]
    events: bool,
    /// Do not stop at the first wrong run.
    #[arg(long)]
    keep_going: bool,
    /// Also print runs in which a request took longer than that.
    #[arg(long, value_name = "MS", default_value_t = u64::MAX, hide_default_value = true)]
    slow: u64,
    /// Measure throughput on a 10 Gb/s link at several loss rates.
    #[arg(long)]
    bulk: bool,
    /// Messages of 256 KiB for --bulk.
    #[arg(long, value_name = "M", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
}

/// Seeds of --forever between two lines of what was found: some seconds.
const BATCH: u64 = 500;

/// Fresh seeds begin here, where random scenarios have all faults.
const FIRST_FRESH_SEED: u64 = FIRST_CROWD_SEED;

/// Nobody reads what is said any more: `| head`.
static UNHEARD: AtomicBool = AtomicBool::new(false);

/// Prints a line. That nobody reads it is no failure, and does not keep one from being told by the exit status.
macro_rules! say {
    ($($line:tt)*) => {
        hear(writeln!(stdout(), $($line)*))
    };
}

fn hear(said: io::Result<()>) -> io::Result<()> {
    match said {
        Err(problem) if problem.kind() == ErrorKind::BrokenPipe => {
            UNHEARD.store(true, Ordering::Relaxed);
            Ok(())
        }
        other => other,
    }
}

fn whole(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("must be a whole number from 0 to {}", u64::MAX))
}

fn scenario_of(name: Option<&str>, seed: u64) -> Result<Scenario> {
    let Some(name) = name else {
        return Ok(random(seed));
    };
    named(name, seed).ok_or_else(|| {
        let measuring: Vec<&str> = performance::SCENARIOS.iter().map(|one| one.name).collect();
        anyhow!(
            "no scenario '{name}'; there are: {}; and to measure: {}",
            NAMES.join(", "),
            measuring.join(", ")
        )
    })
}

fn measure_bulk(seed: u64, messages: u32) -> Result<()> {
    for planes in [1, 4] {
        let mut lossless = 0.0;
        for loss in [0.0, 0.001, 0.01, 0.1] {
            let started = Instant::now();
            let outcome = World::run(&bulk(seed, loss, planes, messages), false);
            let seconds = started.elapsed().as_secs_f64();
            let goodput = outcome.goodput_bits_per_s();
            if loss == 0.0 {
                lossless = goodput;
            }
            say!("{outcome}")?;
            say!(
                "{planes} planes, loss {:.1} %: {:.2} Gb/s, {:.1} % kept, {:.0} packets per second of real time\n",
                loss * 100.0,
                goodput / 1e9,
                goodput / lossless * 100.0,
                outcome.packets as f64 / seconds
            )?;
        }
    }
    Ok(())
}

/// Runs `count` seeds from `first` on; whether all were right.
fn run(arguments: &Arguments, first: u64, count: u64) -> Result<bool> {
    let started = Instant::now();
    let (mut packets, mut wrong, mut runs) = (0, 0, 0);
    let Runs { trace, events, .. } = arguments.runs;
    let name = arguments.name.as_deref();
    for seed in first..first.saturating_add(count) {
        let scenario = scenario_of(name, seed)?;
        let show = Show {
            packets: trace,
            events: trace || events,
            json: arguments.all.json,
        };
        let outcome = World::run_showing(&scenario, show);
        packets += outcome.packets;
        runs += 1;
        if !outcome.is_right() {
            wrong += 1;
            if arguments.runs.keep_going {
                say!("seed {seed}: {}", outcome.violations[0])?;
            } else {
                say!("{outcome}")?;
                let name = name.map(|name| format!(" {name}")).unwrap_or_default();
                say!("again: cargo xtask sim{name} --seed {seed} --count 1 --trace")?;
                break;
            }
        } else if outcome.longest_wait_ns / 1_000_000 >= arguments.runs.slow {
            say!("{}", outcome.summary())?;
        } else if count == 1 || trace {
            say!("{outcome}")?;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    say!(
        "{runs} runs, {wrong} wrong, {packets} packets, {seconds:.1} s, {:.0} packets/s",
        packets as f64 / seconds
    )?;
    Ok(wrong == 0)
}

/// Until `seconds` are over, or for ever if they are 0; whether all were right.
fn run_forever(arguments: &Arguments, seconds: u64) -> Result<bool> {
    let began = Instant::now();
    let mut seed = arguments.all.seed.unwrap_or_else(fresh_seed);
    let until = match seconds {
        0 => "until Ctrl-C".to_owned(),
        _ => format!("for {seconds} s"),
    };
    say!("seeds from {seed} on, {until}")?;
    let mut right = true;
    while seconds == 0 || began.elapsed() < Duration::from_secs(seconds) {
        right &= run(arguments, seed, BATCH)?;
        let unheard = UNHEARD.load(Ordering::Relaxed);
        if unheard || (!right && !arguments.runs.keep_going) {
            break;
        }
        seed = seed
            .checked_add(BATCH)
            .ok_or_else(|| anyhow!("no seeds left"))?;
    }
    Ok(right)
}

/// One that nobody used: from the clock, far enough from that of the next second.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    FIRST_FRESH_SEED + now.map_or(0, |now| now.as_secs() << 16)
}

/// Runs a scenario that measures.
fn measure(scenario: &Measuring, options: &performance::Options, json: bool) -> Result<()> {
    let started = Instant::now();
    let figures = scenario.run(options).map_err(|problem| anyhow!(problem))?;
    let seconds = started.elapsed().as_secs_f64();
    if json {
        say!("{}", figures.json())?;
    } else {
        say!("{figures}")?;
        say!(
            "{} packets, {seconds:.1} s, {:.0} packets/s",
            figures.packets,
            figures.packets as f64 / seconds
        )?;
    }
    Ok(())
}

/// Scenarios that measure have none of the options of those that check: better said than ignored.
fn refuse_runs_options(matches: &ArgMatches, scenario: &str) -> Result<()> {
    let given =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    if let Some(name) = matches.get_one::<String>("name") {
        return Err(anyhow!(
            "{scenario} measures and takes no other scenario: {name} is too much"
        ));
    }
    let runs = Runs::augment_args(Command::new("runs"));
    match runs.get_arguments().find(given).and_then(Arg::get_long) {
        Some(option) => Err(anyhow!(
            "{scenario} measures and has no option --{option}; `{scenario} --help` tells those that it has"
        )),
        None => Ok(()),
    }
}

fn answer() -> Result<bool> {
    let measuring = performance::SCENARIOS.iter().map(Measuring::command);
    let all = Arguments::command().subcommands(measuring).get_matches();
    let arguments = Arguments::from_arg_matches(&all)?;
    let seed = arguments.all.seed.unwrap_or(1);
    if let Some((name, matches)) = all.subcommand()
        && let Some(scenario) = performance::find(name)
    {
        refuse_runs_options(&all, name)?;
        let options = scenario
            .options(matches)
            .map_err(|problem| anyhow!(problem))?;
        let options = performance::Options { seed, ..options };
        return measure(scenario, &options, arguments.all.json).map(|()| true);
    }
    if arguments.name.as_deref() == Some("list") {
        for name in NAMES {
            say!("{name}")?;
        }
        return Ok(true);
    }
    if arguments.runs.bulk {
        return measure_bulk(seed, arguments.runs.messages).map(|()| true);
    }
    match arguments.runs.forever {
        Some(seconds) => run_forever(&arguments, seconds),
        None => run(&arguments, seed, arguments.runs.count),
    }
}

fn main() -> ExitCode {
    match answer() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem:#}");
            ExitCode::FAILURE
        }
    }
}
