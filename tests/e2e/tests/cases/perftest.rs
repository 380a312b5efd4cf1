//! perftest as it comes from the distribution: every program has to end with status 0 on both sides.
//!
//! It checks no payload; the byte checker does.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use metaroce_e2e::fabric::NIC;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Pair, Program};

use super::{Bench, Case, ON_DEVICE, in_full, next_port};

/// Program, its options, slow or not.
const RUNS: &[(&str, &[&str], bool)] = &[
    ("ib_write_bw", &[], false),
    ("ib_write_lat", &[], false),
    ("ib_read_bw", &[], false),
    ("ib_read_lat", &[], false),
    ("ib_send_bw", &[], false),
    ("ib_send_lat", &[], false),
    // All sizes up to 8 MiB, with `iterations_of_all_sizes`.
    ("ib_write_bw", &["-a"], true),
    ("ib_write_lat", &["-a"], true),
    ("ib_read_bw", &["-a"], true),
    ("ib_read_lat", &["-a"], true),
    ("ib_send_bw", &["-a"], true),
    ("ib_send_lat", &["-a"], true),
    ("ib_write_bw", &["-q", "8"], true),
    ("ib_read_bw", &["-q", "8"], true),
    ("ib_send_bw", &["-q", "8"], true),
    // The peak (-N leaves it out) is looked for in quadratic time, which is all that 80,000 completions would show.
    ("ib_write_bw", &["-q", "16", "-N"], true),
    ("ib_read_bw", &["-q", "16"], true),
    ("ib_send_bw", &["-q", "16"], true),
    ("ib_write_bw", &["-b"], false),
    ("ib_read_bw", &["-b"], false),
    ("ib_send_bw", &["-b"], false),
    // The IPv6 GID.
    ("ib_write_bw", &["-x", "1"], false),
    ("ib_send_lat", &["-x", "1"], false),
    ("ib_send_bw", &["-e"], false),
    ("ib_send_lat", &["-e"], false),
    ("ib_atomic_bw", &["-A", "FETCH_AND_ADD"], false),
    ("ib_atomic_bw", &["-A", "CMP_AND_SWAP"], false),
    ("ib_atomic_lat", &["-A", "FETCH_AND_ADD"], false),
    ("ib_atomic_lat", &["-A", "CMP_AND_SWAP"], false),
];

/// Most runs take seconds; with all sizes up to a minute on two cores.
const SLOW_LIMIT: Duration = Duration::from_secs(120);

/// How long a run without end runs, which reports about every second.
const ENDLESS: Duration = Duration::from_secs(7);

/// Pairs of programs at once.
const PAIRS: usize = 16;

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let more = |name: &str, program: &'static str, run: fn(&Bench) -> Result<()>| {
        Case::new(format!("perftest::{name}"), ON_DEVICE, run).needing(Need::Program(program))
    };
    let mut cases = single_runs();
    cases.extend([
        more("MTU 9000 against 1500", "ib_write_bw", mixed_mtus).slow(SLOW_LIMIT),
        more("ib_send_bw --run_infinitely", "ib_send_bw", endless),
        more("16 pairs at once", "ib_write_bw", many_pairs).slow(SLOW_LIMIT),
    ]);
    cases
}

fn single_runs() -> Vec<Case> {
    RUNS.iter()
        .map(|&(program, options, slow)| {
            let name = format!(
                "perftest::{program}{}",
                options
                    .iter()
                    .map(|option| format!(" {option}"))
                    .collect::<String>()
            );
            let case = Case::new(name, ON_DEVICE, move |bench| run(bench, program, options))
                .needing(Need::Program(program));
            if slow { case.slow(SLOW_LIMIT) } else { case }
        })
        .collect()
}

fn run(bench: &Bench, program: &str, options: &[&str]) -> Result<()> {
    let iterations = iterations_of_all_sizes();
    let mut options = options.to_vec();
    if options.contains(&"-a") {
        options.extend(["-n", iterations]);
    }
    run_on(bench, &bench.direct()?, program, &options)
}

/// perftest's own 5000 would move 84 GB.
fn iterations_of_all_sizes() -> &'static str {
    if in_full() { "200" } else { "50" }
}

/// Server and client, and the port they meet at.
fn programs(program: &str, options: &[&str]) -> (Program, Program, u16) {
    let port = next_port();
    let server = Program::new(program)
        .args(["-F", "-d", "metaroce0", "-p"])
        .args([port.to_string()])
        .args(options);
    let client = server.clone().args([Host::A.ipv4().to_string()]);
    (server, client, port)
}

/// What users complain about: "read/send tests hang silently", "noise on stderr".
fn run_on(bench: &Bench, fabric: &Fabric, program: &str, options: &[&str]) -> Result<()> {
    let (server, client, port) = programs(program, options);
    let outcome = bench.pair(fabric, server, client, port)?.success()?;
    ensure!(
        outcome.client.stdout.lines().any(is_result),
        "{program} ended well but printed no result:\n{}",
        outcome.client.describe()
    );
    for side in [&outcome.server, &outcome.client] {
        ensure!(
            !side.stderr.contains("metaroce"),
            "it said something that nobody asked for:\n{}",
            side.describe()
        );
    }
    Ok(())
}

fn mixed_mtus(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    Program::new("ip")
        .args(["link", "set", "dev", NIC, "mtu", "1500"])
        .on(&fabric, Host::B)
        .limit(bench.time_left())
        .run()?
        .success()?;
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat"] {
        run_on(bench, &fabric, program, &[])?;
    }
    Ok(())
}

/// Runs until it is killed, and reports all the time: a stall would show as a line less, or as a rate of 0.
fn endless(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let (server, client, port) = programs("ib_send_bw", &["--run_infinitely", "-D", "1"]);
    let mut server = bench.on_device(&fabric, Host::A, server)?.spawn()?;
    server.wait_listening(port, ENDLESS)?;
    let client = bench.on_device(&fabric, Host::B, client)?.spawn()?;
    let outcome = client.wait_at_most(ENDLESS)?;
    let rates: Vec<f64> = outcome
        .stdout
        .lines()
        .filter(|line| is_result(line))
        .filter_map(|line| line.split_whitespace().nth(3)?.parse().ok())
        .collect();
    ensure!(
        rates.len() >= 3 && rates.iter().all(|rate| *rate > 0.0),
        "it did not report every second: {rates:?}\n{}",
        outcome.describe()
    );
    Ok(())
}

/// What users complain about: "100 parallel ping-pongs lock up".
fn many_pairs(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let (server, client, port) = programs("ib_write_bw", &["-n", "500"]);
            let server = bench.on_device(&fabric, Host::A, server)?;
            let client = bench.on_device(&fabric, Host::B, client)?;
            Ok(Pair::new(server, client, port))
        })
        .collect::<Result<_>>()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .into_iter()
            .map(|pair| scope.spawn(|| pair.run()?.success()))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(outcome) => outcome.map(drop),
                Err(_) => bail!("a pair panicked"),
            })
    })
}

/// A line of results has the message size first and only numbers behind it.
pub fn is_result(line: &str) -> bool {
    let mut fields = line.split_whitespace().peekable();
    fields.peek().is_some() && fields.all(|field| field.parse::<f64>().is_ok())
}
