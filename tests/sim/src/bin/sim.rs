//! Runs scenarios from seeds and says what was found. `--help` tells the arguments.

use std::process::ExitCode;
use std::time::Instant;

use metaroce_sim::performance;
use metaroce_sim::scenario::{NAMES, Scenario, bulk, named, random};
use metaroce_sim::trace::Show;
use metaroce_sim::world::World;

const HELP: &str = "\
Runs the transport in simulated networks and checks what programs may rely on.

usage: sim [--seed N] [--count M] [--name NAME] [--trace] [--events] [--json] [--keep-going] [--slow MS]
       sim --name loss|tail|incast|planes [--seed N] [--json] [OPTION]...
       sim --bulk [--seed N] [--messages M]

  --seed N       first seed (1)
  --count M      how many seeds in a row (100)
  --name NAME    a named scenario instead of random ones; 'list' shows the names
  --trace        print every packet and every event of the endpoints
  --events       print the events only
  --json         print them as JSON, one object a line
  --keep-going   do not stop at the first wrong run
  --slow MS      also print runs in which a request took longer than that
  --bulk         measure throughput on a 10 Gb/s link at several loss rates
  --messages M   messages of 256 KiB for --bulk (2000)

Scenarios that measure, on links of 100 Gb/s with packets of 4 KiB, and their options (defaults):

  loss           part of the goodput that is kept when packets get lost (kept)
  tail           times of single messages, one at a time (median_us, p999_us)
  incast         several hosts send to one: from the last one's start until they may send at the same rate
                 (jain_time_us, null if they never may), what is used of its link, and what it drops (link_use,
                 drop_fraction)
  planes         hosts on several planes send to one another: what they fill of all links (of_linear)

  --loss P       part of all packets that is lost, data and acknowledgements (0.01)
  --burst N      up to so many in a row (1)
  --rtt-us R     round trip of a packet of no length (10)
  --bytes N      length of a message (65536)
  --senders N    hosts that send to one (8)
  --planes N     planes (2)
  --nodes N      hosts on them (64)
  --connections N  connections between them, a multiple of the hosts (4032)

They run with one seed; --json prints one object: seed, options and figures.
";

struct Arguments {
    seed: u64,
    count: u64,
    name: Option<String>,
    trace: bool,
    events: bool,
    json: bool,
    keep_going: bool,
    slow_ms: u64,
    bulk: bool,
    messages: u32,
    measured: performance::Options,
}

fn number<T: std::str::FromStr>(argument: &str, text: String) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{argument}: '{text}' is not a number that it can be"))
}

fn parse(arguments: &mut dyn Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        seed: 1,
        count: 100,
        name: None,
        trace: false,
        events: false,
        json: false,
        keep_going: false,
        slow_ms: u64::MAX,
        bulk: false,
        messages: 2_000,
        measured: performance::Options::default(),
    };
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--seed" => parsed.seed = number(&argument, value()?)?,
            "--count" => parsed.count = number(&argument, value()?)?,
            "--messages" => parsed.messages = number(&argument, value()?)?,
            "--slow" => parsed.slow_ms = number(&argument, value()?)?,
            "--name" => parsed.name = Some(value()?),
            "--trace" => parsed.trace = true,
            "--events" => parsed.events = true,
            "--json" => parsed.json = true,
            "--keep-going" => parsed.keep_going = true,
            "--bulk" => parsed.bulk = true,
            "--loss" => parsed.measured.loss = number(&argument, value()?)?,
            "--burst" => parsed.measured.burst = number(&argument, value()?)?,
            "--rtt-us" => parsed.measured.rtt_us = number(&argument, value()?)?,
            "--bytes" => parsed.measured.bytes = number(&argument, value()?)?,
            "--senders" => parsed.measured.senders = number(&argument, value()?)?,
            "--planes" => parsed.measured.planes = number(&argument, value()?)?,
            "--nodes" => parsed.measured.nodes = number(&argument, value()?)?,
            "--connections" => parsed.measured.connections = number(&argument, value()?)?,
            "--help" | "-h" => return Err(HELP.into()),
            _ => return Err(format!("unknown argument '{argument}'\n\n{HELP}")),
        }
    }
    Ok(parsed)
}

fn scenario_of(arguments: &Arguments, seed: u64) -> Result<Scenario, String> {
    match &arguments.name {
        None => Ok(random(seed)),
        Some(name) => named(name, seed).ok_or_else(|| {
            let measuring: Vec<&str> = performance::NAMES.iter().map(|(name, _)| *name).collect();
            format!(
                "no scenario '{name}'; there are: {}; and to measure: {}",
                NAMES.join(", "),
                measuring.join(", ")
            )
        }),
    }
}

fn measure(arguments: &Arguments) {
    for planes in [1, 4] {
        let mut lossless = 0.0;
        for loss in [0.0, 0.001, 0.01, 0.1] {
            let started = Instant::now();
            let outcome = World::run(
                &bulk(arguments.seed, loss, planes, arguments.messages),
                false,
            );
            let seconds = started.elapsed().as_secs_f64();
            let goodput = outcome.goodput_bits_per_s();
            if loss == 0.0 {
                lossless = goodput;
            }
            println!("{outcome}");
            println!(
                "{planes} planes, loss {:.1} %: {:.2} Gb/s, {:.1} % kept, {:.0} packets per second of real time\n",
                loss * 100.0,
                goodput / 1e9,
                goodput / lossless * 100.0,
                outcome.packets as f64 / seconds
            );
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let started = Instant::now();
    let (mut packets, mut wrong, mut runs) = (0, 0, 0);
    for seed in arguments.seed..arguments.seed + arguments.count {
        let scenario = scenario_of(arguments, seed)?;
        let show = Show {
            packets: arguments.trace,
            events: arguments.trace || arguments.events,
            json: arguments.json,
        };
        let outcome = World::run_showing(&scenario, show);
        packets += outcome.packets;
        runs += 1;
        if !outcome.is_right() {
            wrong += 1;
            if arguments.keep_going {
                println!("seed {seed}: {}", outcome.violations[0]);
            } else {
                println!("{outcome}");
                let name = arguments.name.as_deref().unwrap_or_default();
                println!("again: cargo xtask sim {name} --seed {seed} --count 1 -- --trace");
                break;
            }
        } else if outcome.longest_wait_ns / 1_000_000 >= arguments.slow_ms {
            println!("{}", outcome.summary());
        } else if arguments.count == 1 || arguments.trace {
            println!("{outcome}");
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{runs} runs, {wrong} wrong, {packets} packets, {seconds:.1} s, {:.0} packets/s",
        packets as f64 / seconds
    );
    Ok(wrong == 0)
}

/// Runs a scenario that measures; `None` if `name` is none.
fn measure_one(arguments: &Arguments, name: &str) -> Option<Result<bool, String>> {
    let started = Instant::now();
    let options = performance::Options {
        seed: arguments.seed,
        ..arguments.measured
    };
    let figures = performance::run(name, &options)?;
    let seconds = started.elapsed().as_secs_f64();
    Some(figures.map(|figures| {
        if arguments.json {
            println!("{}", figures.json());
        } else {
            println!("{figures}");
            println!(
                "{} packets, {seconds:.1} s, {:.0} packets/s",
                figures.packets,
                figures.packets as f64 / seconds
            );
        }
        true
    }))
}

fn main() -> ExitCode {
    let arguments = match parse(&mut std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.bulk {
        measure(&arguments);
        return ExitCode::SUCCESS;
    }
    let name = arguments.name.as_deref();
    let measured = name.and_then(|name| measure_one(&arguments, name));
    match measured.unwrap_or_else(|| run(&arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
