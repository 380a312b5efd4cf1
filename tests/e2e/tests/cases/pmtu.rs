//! Ways that carry less than the hosts think, while unmodified programs transfer: a hole for large packets that opens in
//! mid-stream or is there from the start, a router that tells, ends with different MTUs. No error completion, every byte
//! is right, and how long a transfer stands still is printed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::{DEFAULT_MTU_BYTES, LossRates, NIC, Place};
use metaroce_e2e::needs::Need;
use metaroce_e2e::throughput::Sampler;
use metaroce_e2e::{Fabric, Host, Proc, Program, Statistics};

use super::contract::{byte_check, check_seconds};
use super::perftest::is_result;
use super::planes::FLOWS_WITHIN;
use super::{Bench, Case, ON_DEVICE, next_port};

/// Planes of the fabric.
const PLANES: u8 = 2;

/// What the narrow way carries, with IP header.
const NARROW_BYTES: u32 = 1500;

/// What a way carries over which no packet with data passes, with IP header.
const TOO_NARROW_BYTES: u32 = 560;

/// How perftest names the status of the first request that failed.
const RETRY_EXCEEDED: &str = "Failed status 12";

/// Payload of a full packet there.
const NARROW_PAYLOAD_BYTES: u64 = 1384;

/// Before the hole opens and after it.
const STRETCH: Duration = Duration::from_millis(1500);

/// Longest that a transfer may stand still, of what is printed; a busy machine's pauses come on top.
const STILL_MAX: Duration = Duration::from_secs(1);

/// Enough for a run that was not told in time.
const LIMIT: Duration = Duration::from_secs(120);

/// Seconds that a byte check takes.
const SECONDS: u64 = 6;

/// Seconds that `ib_write_bw` transfers if it is not told to end, which it is.
const WRITE_SECONDS: &str = "60";

/// With `-D` each SIGALRM ends a phase of it; the time between two of them.
const PHASES: u32 = 3;
const PHASE: Duration = Duration::from_millis(100);

/// How a way is narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Large packets vanish, from some time on.
    HoleOpens,
    /// They do so from the start.
    Hole,
    /// The leaves have the small MTU from some time on, and tell (ICMP).
    RouterTells,
    /// One host has it.
    MixedEnds,
}

pub fn cases() -> Vec<Case> {
    let bytes = |name: &str, way: Way| {
        let seconds = check_seconds(SECONDS);
        let run = move |bench: &Bench| check_bytes(bench, way, seconds);
        Case::new(format!("pmtu::bytes, {name}"), ON_DEVICE, run)
            .needing(Need::VerbsHeaders)
            .slow(LIMIT + Duration::from_secs(seconds))
    };
    vec![
        bytes("a hole opens in mid-stream", Way::HoleOpens).needing(Need::Loss),
        bytes("a hole from the start", Way::Hole).needing(Need::Loss),
        bytes("a router tells in mid-stream", Way::RouterTells),
        bytes("ends with different MTUs", Way::MixedEnds),
        Case::new(
            "pmtu::ib_write_bw, a hole opens in mid-stream",
            ON_DEVICE,
            write_bandwidth,
        )
        .needing(Need::Program("ib_write_bw"))
        .needing(Need::Loss)
        .slow(LIMIT),
        no_data_passes("ib_write_bw"),
        no_data_passes("ib_read_bw"),
    ]
}

fn no_data_passes(program: &'static str) -> Case {
    let run = move |bench: &Bench| check_too_narrow(bench, program);
    Case::new(format!("pmtu::{program}, no data passes"), ON_DEVICE, run)
        .needing(Need::Program(program))
        .needing(Need::Loss)
        .slow(LIMIT)
}

/// What users complain about: "hangs for ever, and nothing is logged, behind a tunnel".
fn check_too_narrow(bench: &Bench, program: &'static str) -> Result<()> {
    let fabric = bench.planes(PLANES)?;
    fabric.set_loss(&Host::BOTH, LossRates::default())?;
    let port = next_port().to_string();
    let server = Program::new(program)
        .args(["-F", "-d", "metaroce0", "-q", "1", "-s", "1048576"])
        .args(["-D", WRITE_SECONDS, "-p", &port])
        .env("METAROCE_LOG", "warn");
    let client = server.clone().args([Host::A.ipv4().to_string()]);
    let pair = bench.pair_to_run(&fabric, server, client, port.parse()?)?;
    let outcome = pair.run_disturbed(|server, client| {
        // By now both are in their namespaces. What READs bring arrives at the client.
        client.run_on(STRETCH)?;
        let receiver = if program == "ib_read_bw" {
            &*client
        } else {
            &*server
        };
        Sampler::start(receiver.pid(), NIC).wait_flowing(FLOWS_WITHIN)?;
        fabric.set_largest(Place::ALL, TOO_NARROW_BYTES.into())
    })?;
    let said = [&outcome.client.stderr, &outcome.server.stderr].map(|text| {
        let warning = text.lines().find(|line| line.contains("raise the MTU"));
        warning.map(str::to_owned)
    });
    println!(
        "{}",
        said.iter().flatten().next().map_or("", String::as_str)
    );
    let client = &outcome.client;
    ensure!(!client.timed_out, "it hangs: {}", client.describe());
    ensure!(!client.succeeded(), "it succeeded: {}", client.describe());
    let output = format!("{}{}", client.stdout, client.stderr);
    let failed = output.contains(RETRY_EXCEEDED);
    ensure!(failed, "another error: {}", client.describe());
    ensure!(
        said.iter().any(Option::is_some),
        "nobody said why: {}, {}",
        outcome.client.describe(),
        outcome.server.describe()
    );
    Ok(())
}

// What users complain about: "hangs when one switch has a smaller MTU"
fn check_bytes(bench: &Bench, way: Way, seconds: u64) -> Result<()> {
    let fabric = match way {
        Way::MixedEnds => bench.direct()?,
        _ => bench.planes(PLANES)?,
    };
    match way {
        // What takes long about it.
        Way::HoleOpens => fabric.set_loss(&Host::BOTH, LossRates::default())?,
        Way::Hole => fabric.set_largest(Place::ALL, NARROW_BYTES.into())?,
        Way::MixedEnds => fabric.set_mtu(Host::B, NARROW_BYTES)?,
        Way::RouterTells => {}
    }
    let statistics = Statistics::new()?;
    let prepare = |program, host| {
        let program = statistics.counted(program);
        match host {
            Host::B => statistics.logged(program),
            _ => program,
        }
    };
    let arguments = ["-q", "8", "-m", "1048576", "-t", &seconds.to_string()].map(str::to_owned);
    let outcome = byte_check(bench, &fabric, &arguments, prepare, |server, client| {
        Sampler::start(server.pid(), NIC).wait_flowing(FLOWS_WITHIN)?;
        client.run_on(Duration::from_secs(seconds) / 4)?;
        match way {
            Way::HoleOpens => fabric.set_largest(Place::ALL, NARROW_BYTES.into()),
            Way::RouterTells => {
                (Host::BOTH.into_iter()).try_for_each(|host| fabric.set_mtu(host, NARROW_BYTES))
            }
            Way::Hole | Way::MixedEnds => Ok(()),
        }
    })?;
    println!("{}", outcome.client.stdout.trim_end());
    let count = |name| statistics.sum(name).context("no statistics");
    let (holes, told) = (count("holes_found")?, count("too_large")?);
    let searches = count("searches_sent")?;
    println!("{holes} holes found, {told} times told, {searches} packets of searches");
    ensure!(count("qp_failures")? == 0, "a queue pair failed");
    match way {
        Way::HoleOpens | Way::Hole => ensure!(holes > 0, "no hole was found"),
        Way::RouterTells => ensure!(told > 0 && holes == 0, "{told} times told, {holes} holes"),
        Way::MixedEnds => ensure!(told == 0 && holes == 0, "{told} times told, {holes} holes"),
    }
    if way == Way::HoleOpens {
        let grown = format!("\"payload_bytes\":{NARROW_PAYLOAD_BYTES}");
        let found = statistics.events(&["payload_grown", &grown]);
        ensure!(found > 0, "what passes was not found");
    }
    Ok(())
}

fn write_bandwidth(bench: &Bench) -> Result<()> {
    let fabric = bench.planes(PLANES)?;
    fabric.set_loss(&Host::BOTH, LossRates::default())?;
    let statistics = Statistics::new()?;
    let port = next_port().to_string();
    let server = Program::new("ib_write_bw")
        .args(["-F", "-d", "metaroce0", "-q", "1", "-s", "1048576"])
        .args(["-D", WRITE_SECONDS, "-p", &port]);
    let server = statistics.counted(server);
    let client = server.clone().args([Host::A.ipv4().to_string()]);
    let pair = bench.pair_to_run(&fabric, server, client, port.parse()?)?;
    let outcome = pair.run_disturbed(|server, client| open_hole(&fabric, server, client))?;
    let outcome = outcome.success()?;
    let result = outcome.client.stdout.lines().find(|line| is_result(line));
    println!("{}", result.unwrap_or("no result"));
    // That no completion failed is what the client's success says; it leaves with work under way when its time is over.
    let holes = statistics.sum("holes_found").context("no statistics")?;
    ensure!(holes > 0, "no hole was found");
    Ok(())
}

/// Opens the hole while the transfer is under way, and tells how it is felt at host a.
fn open_hole(fabric: &Fabric, server: &mut Proc, client: &mut Proc) -> Result<()> {
    let sampler = Sampler::start(server.pid(), NIC);
    sampler.wait_flowing(FLOWS_WITHIN)?;
    client.run_on(STRETCH)?;
    let opens = Instant::now();
    fabric.set_largest(Place::ALL, NARROW_BYTES.into())?;
    client.run_on(STRETCH)?;
    let series = sampler.finish();
    let ends = opens + STRETCH;
    for _ in 0..PHASES {
        client.signal(libc::SIGALRM);
        if client.is_running()? {
            std::thread::sleep(PHASE);
        }
    }
    let before = series.median_rate(opens - STRETCH / 2..opens);
    let after = series.median_rate(ends - STRETCH / 3..ends);
    let gbps = |rate: f64| rate * 8.0 / 1e9;
    println!(
        "{:.2} Gb/s at MTU {DEFAULT_MTU_BYTES}, {:.2} Gb/s through {NARROW_BYTES} bytes; when the hole opens, of the latter: {}",
        gbps(before),
        gbps(after),
        series.dip(opens..ends, after)
    );
    let in_time = series.bytes(opens + STILL_MAX..ends);
    ensure!(
        in_time > f64::from(NARROW_BYTES) * 100.0,
        "nothing arrives {STILL_MAX:?} after the hole opened"
    );
    Ok(())
}
