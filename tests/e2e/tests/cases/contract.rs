//! The verbs contract by programs of our own over stock libibverbs: every byte and every completion of a random mix of
//! operations, without loss and with 1 % and 10 % of all packets dropped; peers that die, leave or were never there; the
//! contract call by call, in one process, by many threads, and around forks, cancellations and limits.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::LossRates;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Outcome, PairOutcome, Proc, Program, c_program};

use super::{Bench, Case, ON_DEVICE, next_port};

/// Queue pairs of the byte checker.
const QPS: u32 = 8;

/// Set to the seconds of each run of the byte checker, for a soak.
const SECONDS_VARIABLE: &str = "METAROCE_E2E_CHECK_SECONDS";

/// Seconds of each of the three runs otherwise: a minute in all.
const SECONDS: u64 = 15;

/// Name, packets lost per million, and whether the programs sleep in completion channels.
const RUNS: &[(&str, u64, bool)] = &[
    ("clean", 0, false),
    ("clean, by events", 0, true),
    ("1 % loss", 10_000, false),
    ("10 % loss", 100_000, false),
];

/// Name and program of the cases in which a process talks to itself.
const IN_ONE_PROCESS: [(&str, &str); 5] = [
    ("verbs", "verbs_contract"),
    ("events", "verbs_events"),
    ("threads", "verbs_threads"),
    ("processes", "verbs_process"),
    ("waiting", "verbs_waiting"),
];

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let needs = [ON_DEVICE, &[Need::VerbsHeaders]].concat();
    let seconds = check_seconds(SECONDS);
    let mut cases = Vec::new();
    for &(name, loss_ppm, events) in RUNS {
        let case = Case::new(format!("contract::bytes, {name}"), &needs, move |bench| {
            check_bytes(bench, seconds, loss_ppm, events)
        });
        let case = if loss_ppm > 0 {
            case.needing(Need::Loss)
        } else {
            case
        };
        cases.push(case.slow(Duration::from_secs(seconds + 60)));
    }
    for mode in ["killed", "left", "absent"] {
        cases.push(Case::new(
            format!("contract::peer {mode}"),
            &needs,
            move |bench| lose_peer(bench, mode),
        ));
    }
    for (name, program) in IN_ONE_PROCESS {
        cases.push(Case::new(
            format!("contract::{name}"),
            &needs,
            move |bench| in_one_process(bench, program),
        ));
    }
    cases
}

/// Seconds of each run of the byte checker: those that the user wants, or `usual`.
pub fn check_seconds(usual: u64) -> u64 {
    let wanted = std::env::var(SECONDS_VARIABLE).ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Runs the byte checker between the two hosts, as `prepare` wants each side, and calls `disturb` with server and client
/// meanwhile; both sides must say OK.
pub fn byte_check(
    bench: &Bench,
    fabric: &Fabric,
    arguments: &[String],
    prepare: impl Fn(Program, Host) -> Program,
    disturb: impl FnOnce(&mut Proc, &mut Proc) -> Result<()>,
) -> Result<PairOutcome> {
    let port = next_port();
    let server = Program::new(c_program::compile("byte_check")?)
        .args(["-p".to_owned(), port.to_string()])
        .args(arguments);
    let client = server
        .clone()
        .args(["-s".to_owned(), Host::A.ipv4().to_string()]);
    let (server, client) = (prepare(server, Host::A), prepare(client, Host::B));
    let pair = bench.pair_to_run(fabric, server, client, port)?;
    let outcome = pair.run_disturbed(disturb)?.success()?;
    for side in [&outcome.server, &outcome.client] {
        says_ok(side)?;
    }
    Ok(outcome)
}

/// What users complain about: "a long transfer with lost packets ends in a lock-up", "an event comes but the CQ is empty", "a
/// zero-length write-with-immediate completes before earlier writes are visible", "write-with-immediate returned EINVAL; writes over
/// one MTU failed".
fn check_bytes(bench: &Bench, seconds: u64, loss_ppm: u64, events: bool) -> Result<()> {
    let fabric = bench.planes(4)?;
    if loss_ppm > 0 {
        fabric.set_loss(&[Host::A, Host::B], LossRates::udp(loss_ppm))?;
    }
    let mut arguments = vec![
        "-q".to_owned(),
        QPS.to_string(),
        "-t".to_owned(),
        seconds.to_string(),
    ];
    arguments.extend(events.then(|| "-e".to_owned()));
    let unchanged = |program, _| program;
    let outcome = byte_check(bench, &fabric, &arguments, unchanged, |_, _| Ok(()))?;
    println!("{}", outcome.client.stdout.trim_end());
    if loss_ppm > 0 {
        let counts = fabric
            .loss_counts(Host::A)?
            .context("loss is not in place")?;
        ensure!(
            counts.udp_dropped > 0,
            "nothing was dropped: the run proves nothing"
        );
    }
    Ok(())
}

/// What users complain about: "an error is not surfaced, the job hangs", "a peer that exits leaves the survivors 30 s in error 12".
fn lose_peer(bench: &Bench, mode: &str) -> Result<()> {
    let fabric = bench.direct()?;
    let port = next_port();
    let peer =
        Program::new(c_program::compile("peer_loss")?).args(["-p".to_owned(), port.to_string()]);
    let survivor = peer.clone().env("METAROCE_LOG", "warn").args([
        "-s".to_owned(),
        Host::A.ipv4().to_string(),
        "-m".to_owned(),
        mode.to_owned(),
    ]);
    let outcome = bench.pair(&fabric, peer, survivor, port)?;
    let survivor = outcome.client.success()?;
    says_ok(&survivor)?;
    // A peer that was killed has no status to look at; the others must have ended well.
    if mode == "killed" {
        ensure!(
            survivor.stderr.contains("nobody listens there"),
            "nobody said why: {}",
            survivor.describe()
        );
    } else {
        outcome.server.success()?;
    }
    println!("{}", survivor.stdout.trim_end());
    Ok(())
}

/// What users complain about: "loopback and same-host fail or hang"; the programs quote the others that they answer.
fn in_one_process(bench: &Bench, program: &str) -> Result<()> {
    let fabric = bench.direct()?;
    let program = Program::new(c_program::compile(program)?);
    let outcome = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    says_ok(&outcome)?;
    println!("{}", outcome.stdout.trim_end());
    Ok(())
}

/// The last word of a C program on standard output must be OK.
pub fn says_ok(outcome: &Outcome) -> Result<()> {
    ensure!(
        outcome.stdout.trim_end().ends_with("OK"),
        "no OK:\n{}",
        outcome.describe()
    );
    Ok(())
}
