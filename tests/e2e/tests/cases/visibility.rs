//! Programs that poll memory while it is written to, on a fabric that delays, loses and moves packets at random: where memory
//! was registered without relaxed ordering, or all memory is forced to be strict, no byte is seen before those that belong
//! before it. Where it was registered with it the same program sees such bytes: so it would have seen them.
//!
//! `METAROCE_E2E_SCALE=full` makes the first run one of ten minutes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::{LossRates, Place};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Proc, Program, Statistics, c_program};

use super::contract::{check_seconds, says_ok};
use super::{Bench, Case, ON_DEVICE, in_full, next_port};

const PLANES: u8 = 4;
const QPS: u32 = 6;

/// Seconds of a run; of the first one in full.
const SECONDS: u64 = 6;
const SECONDS_IN_FULL: u64 = 600;

/// Set-up, and what was begun in time, on a busy machine.
const MARGIN: Duration = Duration::from_secs(120);

/// Microseconds between moves for no reason, on average.
const REROLL_US: &str = "1000";

/// So often the fabric comes to behave otherwise.
const CHANGES_EVERY: Duration = Duration::from_millis(1_500);

/// What it does in turn: packets that come late, of a million, and how late, µs; packets lost, of a million.
const WEATHER: &[(u64, u64, u64)] = &[
    (50_000, 200, 10_000),
    (200_000, 1_000, 0),
    (20_000, 60, 50_000),
    (100_000, 5_000, 2_000),
];

/// How memory is registered, and what the environment says of it.
#[derive(Clone, Copy)]
enum Mode {
    Strict,
    Forced,
    Relaxed,
}

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let needs = [ON_DEVICE, &[Need::VerbsHeaders, Need::Loss]].concat();
    let case = |name: &str, mode: Mode, seconds: u64| {
        let seconds = check_seconds(seconds);
        let run = move |bench: &Bench| watch(bench, mode, seconds);
        Case::new(format!("visibility::{name}"), &needs, run)
            .slow(Duration::from_secs(seconds) + MARGIN)
    };
    let long = if in_full() { SECONDS_IN_FULL } else { SECONDS };
    vec![
        case("no early byte in strict memory", Mode::Strict, long),
        case(
            "no early byte in memory forced to be strict",
            Mode::Forced,
            SECONDS,
        ),
        case("early bytes in relaxed memory", Mode::Relaxed, SECONDS),
    ]
}

fn watch(bench: &Bench, mode: Mode, seconds: u64) -> Result<()> {
    let fabric = bench.planes(PLANES)?;
    let statistics = Statistics::new()?;
    let (name, forced) = match mode {
        Mode::Strict => ("strict", ""),
        Mode::Forced => ("forced", "strict"),
        Mode::Relaxed => ("relaxed", ""),
    };
    let port = next_port();
    let watcher = statistics
        .counted(Program::new(c_program::compile("visibility")?))
        .args(["-m", name, "-q", &QPS.to_string(), "-p", &port.to_string()])
        .env("METAROCE_VISIBILITY", forced)
        .env("METAROCE_REROLL_US", REROLL_US);
    let writer = watcher
        .clone()
        .args(["-s", &Host::A.ipv4().to_string()])
        .args(["-t", &seconds.to_string(), "-r", &port.to_string()]);
    let pair = bench.pair_to_run(&fabric, watcher, writer, port)?;
    let outcome = pair
        .run_disturbed(|_, writer| change_weather(&fabric, writer))?
        .success()?;
    says_ok(&outcome.server)?;
    says_ok(&outcome.client)?;
    let told = outcome.server.stdout.trim_end();
    println!("{told}");
    let sum = |counter| statistics.sum(counter).unwrap_or(0);
    let (lost, moves) = (sum("packets_lost"), sum("moves"));
    let (held, refusals) = (sum("packets_held"), sum("hold_refusals"));
    println!("{lost} packets lost, {moves} moves, {held} packets held back, {refusals} refused");
    let late: u64 = Host::BOTH
        .map(|host| fabric.counters().map(|all| all.total_to(host).late))
        .into_iter()
        .sum::<Result<u64>>()?;
    ensure!(lost > 0 && moves > 0 && late > 0, "the run proves nothing");
    match mode {
        Mode::Strict | Mode::Forced => ensure!(
            held > 0,
            "nothing had to be held back: the run proves nothing"
        ),
        Mode::Relaxed => {
            ensure!(held == 0, "{held} packets were held back in relaxed memory");
            let early =
                early(told).context("the watcher does not tell how many bytes were early")?;
            ensure!(
                early > 0,
                "in {seconds} s not one early byte was seen in relaxed memory either: the strict runs say nothing"
            );
        }
    }
    Ok(())
}

/// Until the writer ends.
fn change_weather(fabric: &Fabric, writer: &mut Proc) -> Result<()> {
    for (late_ppm, late_us, lost_ppm) in WEATHER.iter().cycle() {
        fabric.set_reorder(Place::ALL, *late_ppm, Duration::from_micros(*late_us))?;
        fabric.set_loss(&Host::BOTH, LossRates::udp(*lost_ppm))?;
        let until = Instant::now() + CHANGES_EVERY;
        while Instant::now() < until {
            if !writer.is_running()? {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// The number behind "early".
fn early(told: &str) -> Option<u64> {
    let (_, rest) = told.split_once("early ")?;
    rest.split(' ').next()?.parse().ok()
}
