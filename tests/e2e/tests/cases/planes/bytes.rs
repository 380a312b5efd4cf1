//! The byte checker with 64 queue pairs while the fabric misbehaves: every byte, every completion and their order, on
//! both sides. `METAROCE_E2E_CHECK_SECONDS` makes the runs longer, for a soak.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use metaroce_e2e::fabric::{DEFAULT_LATE_BY, DEFAULT_MTU_BYTES, LossRates, NIC, Place};
use metaroce_e2e::needs::Need;
use metaroce_e2e::throughput::Sampler;
use metaroce_e2e::{Fabric, Host, Proc, Program, Statistics, Topology};

use super::super::contract::{byte_check, check_seconds};
use super::super::{Bench, Case, ON_DEVICE};
use super::{Death, FLOWS_WITHIN, swallowed};

/// Queue pairs.
const QPS: u32 = 64;

/// Largest message: with 64 queue pairs the usual 8 MiB would take gigabytes of memory, and seconds for a round.
const MAX_BYTES: u32 = 1 << 20;

/// Seconds of a run, unless the user wants it otherwise.
const SECONDS: u64 = 8;

/// Of a run with black holes: two of them fit in.
const SECONDS_WITH_HOLES: u64 = 10;

/// Four planes, or four NICs in each host.
const PLANES: u8 = 4;

/// Set-up, and rounds that were begun in time, on a busy machine.
const MARGIN: Duration = Duration::from_secs(120);

/// Of a million packets.
const REORDERED_PPM: u64 = 50_000;
const LOST_PPM: u64 = 10_000;

/// Microseconds between moves for no reason, on average.
const REROLL_US: &str = "2000";

/// From the beginning of one black hole to that of the next.
const HOLE_EVERY: Duration = Duration::from_secs(5);

/// However short the run.
const LEAST_HOLES: u32 = 2;

/// Where packets can go another way, a black hole lasts so long …
const HOLE_LASTS: Duration = Duration::from_millis(2500);

/// … and where they cannot, less than the queue pairs' patience of 8.6 s, in which probes have to find its end.
const LONELY_HOLE_LASTS: Duration = Duration::from_millis(1000);

/// The first message of each queue pair on a NIC is larger than what a NIC carries otherwise.
const USED_BYTES: u64 = 1 << 20;

pub fn cases() -> Vec<Case> {
    let case = |name: &str, seconds: u64, run: fn(&Bench, u64) -> Result<()>| {
        let needs = [ON_DEVICE, &[Need::VerbsHeaders, Need::Loss]].concat();
        let seconds = check_seconds(seconds);
        Case::new(format!("planes::bytes, {name}"), &needs, move |bench| {
            run(bench, seconds)
        })
        .slow(Duration::from_secs(seconds) + MARGIN)
    };
    vec![
        case("packets reordered", SECONDS, reordered),
        case("1 % loss and random moves", SECONDS, rerolled),
        case("planes black-holed in turn", SECONDS_WITH_HOLES, holes),
        case("four NICs, black-holed in turn", SECONDS, nics),
    ]
}

fn arguments(seconds: u64) -> Vec<String> {
    let arguments = [
        ("-q", QPS.to_string()),
        ("-t", seconds.to_string()),
        ("-m", MAX_BYTES.to_string()),
    ];
    let words = arguments.into_iter();
    words
        .flat_map(|(key, value)| [key.to_owned(), value])
        .collect()
}

fn reordered(bench: &Bench, seconds: u64) -> Result<()> {
    let fabric = bench.planes(PLANES)?;
    fabric.set_reorder(Place::ALL, REORDERED_PPM, DEFAULT_LATE_BY)?;
    let unchanged = |program, _| program;
    let outcome = byte_check(
        bench,
        &fabric,
        &arguments(seconds),
        unchanged,
        |_, _| Ok(()),
    )?;
    let counters = fabric.counters()?;
    for host in Host::BOTH {
        let total = counters.total_to(host);
        println!(
            "to {host}: {} of {} packets late",
            total.late, total.packets
        );
        ensure!(total.late > 0, "no packet came late:\n{counters}");
    }
    println!("{}", outcome.client.stdout.trim_end());
    Ok(())
}

/// The switch moves paths for no reason, so that packets of one path are on two routes all the time.
fn rerolled(bench: &Bench, seconds: u64) -> Result<()> {
    let fabric = bench.planes(PLANES)?;
    fabric.set_loss(&Host::BOTH, LossRates::udp(LOST_PPM))?;
    let statistics = Statistics::new()?;
    let prepare = |program: Program, host| {
        let program = statistics
            .counted(program)
            .env("METAROCE_REROLL_US", REROLL_US);
        // One log will do: a long run writes some.
        match host {
            Host::B => statistics.logged(program),
            _ => program,
        }
    };
    let outcome = byte_check(bench, &fabric, &arguments(seconds), prepare, |_, _| Ok(()))?;
    let counters = fabric.counters()?;
    let lost = Host::BOTH.map(|host| counters.total_to(host).lost);
    let moves = statistics.sum("moves").unwrap_or(0);
    let rerolls = statistics.events(&["path_moved", "reroll"]);
    println!("{lost:?} packets lost, {moves} moves, {rerolls} of the client's for no reason");
    ensure!(
        lost.iter().all(|lost| *lost > 0) && moves > 0 && rerolls > 0,
        "the run proves nothing"
    );
    println!("{}", outcome.client.stdout.trim_end());
    Ok(())
}

fn holes(bench: &Bench, seconds: u64) -> Result<()> {
    let fabric = bench.planes(PLANES)?;
    let statistics = Statistics::new()?;
    let arguments = arguments(at_most(seconds));
    let prepare = |program, _| statistics.counted(program);
    Death::BlackHole.prepare(&fabric)?;
    let before = swallowed(&fabric)?;
    let outcome = byte_check(bench, &fabric, &arguments, prepare, |server, client| {
        make_holes(&fabric, seconds, HOLE_LASTS, 1, [server, client])
    })?;
    let swallowed = swallowed(&fabric)? - before;
    let moves = statistics.sum("moves").unwrap_or(0);
    println!("{swallowed} packets swallowed, {moves} moves");
    ensure!(swallowed > 0 && moves > 0, "the run proves nothing");
    println!("{}", outcome.client.stdout.trim_end());
    Ok(())
}

/// Each NIC is a device of its own, so what is on its way there has to wait for the end of a black hole; the other NICs'
/// queue pairs go on.
fn nics(bench: &Bench, seconds: u64) -> Result<()> {
    let fabric = Fabric::temporary(Topology::Nics(PLANES), DEFAULT_MTU_BYTES)?;
    let devices: Vec<String> = (0..PLANES).map(|nic| format!("metaroce{nic}")).collect();
    let mut arguments = arguments(at_most(seconds));
    arguments.extend(["-d".to_owned(), devices.join(",")]);
    let unchanged = |program, _| program;
    Death::BlackHole.prepare(&fabric)?;
    let (before, swallowed_before) = (fabric.arrived_bytes()?, swallowed(&fabric)?);
    let outcome = byte_check(bench, &fabric, &arguments, unchanged, |server, client| {
        // Not the first NIC: the programs' own TCP connection is there.
        make_holes(&fabric, seconds, LONELY_HOLE_LASTS, 2, [server, client])
    })?;
    let after = fabric.arrived_bytes()?;
    let used: Vec<u64> = after
        .iter()
        .zip(before)
        .map(|(now, then)| now - then)
        .collect();
    let swallowed = swallowed(&fabric)? - swallowed_before;
    println!("bytes by NIC: {used:?}, {swallowed} packets swallowed");
    ensure!(
        swallowed > 0 && used.iter().all(|bytes| *bytes > USED_BYTES),
        "the run proves nothing"
    );
    println!("{}", outcome.client.stdout.trim_end());
    Ok(())
}

/// Seconds that a run may take which is ended when all has been done to it, however long that takes on a busy machine.
fn at_most(seconds: u64) -> u64 {
    seconds + MARGIN.as_secs() / 2
}

/// Black holes for so many seconds while the byte checker runs, each on the plane that is used most and was not the last
/// one, number `first` or higher; then tells both sides to end.
fn make_holes(
    fabric: &Fabric,
    seconds: u64,
    lasts: Duration,
    first: u8,
    [server, client]: [&mut Proc; 2],
) -> Result<()> {
    Sampler::start(server.pid(), NIC).wait_flowing(FLOWS_WITHIN)?;
    let (began, end) = (Instant::now(), Duration::from_secs(seconds));
    let (mut last, mut made) = (0, 0);
    while made < LEAST_HOLES || began.elapsed().max(HOLE_EVERY * made) + lasts <= end {
        client.run_on((HOLE_EVERY * made).saturating_sub(began.elapsed()))?;
        let eligible = |plane| plane >= first && plane != last;
        let strike = Death::BlackHole.strike(fabric, client, lasts, eligible)?;
        println!(
            "until {:.1} s plane {} was a black hole for {:.1} s; {} bytes vanished there",
            began.elapsed().as_secs_f64(),
            strike.plane,
            (strike.ends - strike.begins).as_secs_f64(),
            strike.on_the_dead()
        );
        (last, made) = (strike.plane, made + 1);
    }
    client.run_on(end.saturating_sub(began.elapsed()))?;
    for side in [server, client] {
        side.signal(libc::SIGUSR1);
    }
    Ok(())
}
