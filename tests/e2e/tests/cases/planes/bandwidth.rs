//! `ib_write_bw` with one queue pair over four planes, of which the most used one dies and comes back: no error completion,
//! the transfer goes on over the others, and how long and how deep throughput dips is printed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::NIC;
use metaroce_e2e::needs::Need;
use metaroce_e2e::throughput::Sampler;
use metaroce_e2e::{Fabric, Host, Proc, Program, Statistics};

use super::super::perftest::is_result;
use super::super::{Bench, Case, ON_DEVICE, next_port};
use super::{Death, FLOWS_WITHIN};

/// Seconds that `ib_write_bw` transfers if it is not told to end, which it is when all has been done to it.
const SECONDS: u64 = 60;

/// With `-D` each SIGALRM ends a phase of it: warming up, measuring, cooling down.
const PHASES: u32 = 3;

/// Before it, after it, and how long the plane is dead: twice the patience of the queue pair, which is perftest's default
/// of 8 × 67 ms.
const STRETCH: Duration = Duration::from_millis(1200);

/// From the first bytes on: congestion control finds its rate.
const WARM_UP: Duration = Duration::from_millis(300);

/// More than anything but the transfer brings to a host.
const GOES_ON_BYTES: f64 = 65_536.0;

/// Between the signals.
const PHASE: Duration = Duration::from_millis(100);

/// Enough for a run that was not told in time.
const LIMIT: Duration = Duration::from_secs(120);

pub fn cases() -> Vec<Case> {
    let case = |name: &str, death: Death| {
        Case::new(
            format!("planes::ib_write_bw, {name}"),
            ON_DEVICE,
            move |bench| run(bench, death),
        )
        .needing(Need::Program("ib_write_bw"))
        .slow(LIMIT)
    };
    vec![
        case("a plane is cut and mended", Death::Cut),
        case("a plane is a black hole for a while", Death::BlackHole).needing(Need::Loss),
    ]
}

fn run(bench: &Bench, death: Death) -> Result<()> {
    let fabric = bench.planes(4)?;
    death.prepare(&fabric)?;
    let statistics = Statistics::new()?;
    let port = next_port().to_string();
    let server = Program::new("ib_write_bw")
        .args(["-F", "-d", "metaroce0", "-q", "1", "-s", "1048576"])
        .args(["-D", &SECONDS.to_string(), "-p", &port]);
    let server = statistics.logged(statistics.counted(server));
    let client = server.clone().args([Host::A.ipv4().to_string()]);
    let pair = bench.pair_to_run(&fabric, server, client, port.parse()?)?;
    let outcome = pair.run_disturbed(|server, client| strike(&fabric, death, server, client))?;
    let outcome = outcome.success()?;
    let moves = statistics.sum("moves").context("no statistics")?;
    let failures = statistics.sum("qp_failures").context("no statistics")?;
    let result = outcome.client.stdout.lines().find(|line| is_result(line));
    println!("{moves} moves; {}", result.unwrap_or("no result"));
    ensure!(failures == 0, "a queue pair failed");
    if death == Death::BlackHole {
        ensure!(moves > 0, "no path moved away from a black hole");
    }
    Ok(())
}

/// Has the plane that is used most dead for a while, and tells how throughput dips at host a.
fn strike(fabric: &Fabric, death: Death, server: &mut Proc, client: &mut Proc) -> Result<()> {
    let sampler = Sampler::start(server.pid(), NIC);
    sampler.wait_flowing(FLOWS_WITHIN)?;
    client.run_on(WARM_UP)?;
    let start = Instant::now();
    client.run_on(STRETCH)?;
    let strike = death.strike(fabric, client, STRETCH, |_| true)?;
    client.run_on(STRETCH)?;
    let series = sampler.finish();
    end(client)?;

    let normal = series.median_rate(start..strike.begins);
    println!(
        "{:.2} Gb/s before; plane {} is hit by {death:?}",
        normal * 8.0 / 1e9,
        strike.plane
    );
    let stretches = [
        ("undisturbed", start),
        ("it dies", strike.begins),
        ("it comes back", strike.ends),
    ];
    for (what, from) in stretches {
        let dip = series.dip(from..from + STRETCH, normal);
        println!("{what}: dip: {dip}");
    }
    strike.check(fabric, death)?;
    let went_on = series.bytes(strike.ends - STRETCH / 2..strike.ends);
    ensure!(
        went_on > GOES_ON_BYTES,
        "the transfer did not go on: {went_on} bytes"
    );
    Ok(())
}

/// Has `ib_write_bw` end by itself, with its result.
pub fn end(client: &mut Proc) -> Result<()> {
    for _ in 0..PHASES {
        client.signal(libc::SIGALRM);
        // Signals that wait are merged; should one be lost so, the run ends by its own clock.
        if client.is_running()? {
            std::thread::sleep(PHASE);
        }
    }
    Ok(())
}
