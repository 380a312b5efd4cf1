//! NCCL's real IB transport, from its PyPI wheels, with host memory and every byte compared: one process, two processes,
//! two hosts, several communicators, its own options, loss, a peer that is killed, a plane that dies.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::{LossRates, NIC};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Outcome, Pair, Program, Statistics, c_program, nccl};

use super::planes::Death;
use super::{Bench, Case, ON_DEVICE, next_port};

/// A wheel.
#[derive(Clone, Copy)]
struct Wheel {
    package: &'static str,
    version: &'static str,
}

const OLD: Wheel = Wheel {
    package: "nvidia-nccl-cu12",
    version: "2.21.5",
};
const MIDDLE: Wheel = Wheel {
    package: "nvidia-nccl-cu12",
    version: "2.28.9",
};
const NEW: Wheel = Wheel {
    package: "nvidia-nccl-cu13",
    version: "2.32.3",
};

/// How a run across two hosts differs from the plain one.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    wheel: Wheel,
    comms: u32,
    loss_ppm: u32,
    environment: &'static [(&'static str, &'static str)],
}

const PLAIN: Variant = Variant {
    name: "two hosts, 1 comm",
    wheel: OLD,
    comms: 1,
    loss_ppm: 0,
    environment: &[],
};

const VARIANTS: &[Variant] = &[
    PLAIN,
    Variant {
        name: "two hosts, 4 comms",
        comms: 4,
        ..PLAIN
    },
    Variant {
        name: "two hosts, 2.28.9, 16 comms",
        wheel: MIDDLE,
        comms: 16,
        ..PLAIN
    },
    Variant {
        name: "two hosts, 2.32.3, 16 comms",
        wheel: NEW,
        comms: 16,
        ..PLAIN
    },
    Variant {
        name: "two hosts, 4 queue pairs a connection, inline",
        comms: 2,
        environment: &[
            ("NCCL_IB_QPS_PER_CONNECTION", "4"),
            ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
            ("NCCL_IB_USE_INLINE", "1"),
        ],
        ..PLAIN
    },
    Variant {
        name: "two hosts, adaptive routing",
        comms: 2,
        environment: &[("NCCL_IB_ADAPTIVE_ROUTING", "1")],
        ..PLAIN
    },
    Variant {
        name: "two hosts, 1 % loss",
        wheel: NEW,
        comms: 4,
        loss_ppm: 10_000,
        ..PLAIN
    },
];

/// Bytes of the largest transfer.
const MAX_BYTES: u32 = 4 << 20;

/// Includes the download of a wheel of some 300 MB, once.
const LIMIT: Duration = Duration::from_secs(240);

/// More transfers of a size than a run makes before its peer is killed.
const ENDLESS: &str = "1000000";

/// How a plane dies in the midst of transfers, and the wheels that it is tried with.
const DEATHS: &[(&str, Wheel, Death)] = &[
    ("2.21.5, a plane is cut and mended", OLD, Death::Cut),
    ("2.28.9, a plane is cut and mended", MIDDLE, Death::Cut),
    ("2.32.3, a plane is cut and mended", NEW, Death::Cut),
    (
        "2.32.3, a plane is a black hole for a while",
        NEW,
        Death::BlackHole,
    ),
];

/// How long it is dead.
const DEAD_FOR: Duration = Duration::from_millis(1000);

/// And then works again while the transfers go on.
const WELL_FOR: Duration = Duration::from_millis(300);

/// Transfers of each smaller size in these runs, which is not what they are about.
const FEW: &str = "5";

/// NCCL's queue pairs have a bound of 34 s; a dead process is noticed by other means.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

/// A sender that just then waits for the receiver to be ready has nothing under way, and on no transport does it notice.
/// That is one kill in ten, so not all of these.
const KILLS: u32 = 4;

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let needs = [ON_DEVICE, &[Need::VerbsHeaders, Need::Program("python3")]].concat();
    let case = |name: &str, run: fn(&Bench) -> Result<()>| {
        Case::new(format!("nccl::{name}"), &needs, run).slow(LIMIT)
    };
    let variant = |variant: &'static Variant| {
        let name = format!("nccl::{}", variant.name);
        let case = Case::new(name, &needs, move |bench| two_hosts(bench, variant)).slow(LIMIT);
        if variant.loss_ppm > 0 {
            case.needing(Need::Loss)
        } else {
            case
        }
    };
    let mut cases = vec![
        case("one process", one_process),
        case("two processes of a host", two_processes),
        case("the peer is killed", killed),
    ];
    cases.extend(VARIANTS.iter().map(variant));
    cases.extend(DEATHS.iter().map(|&(name, wheel, death)| {
        let run = move |bench: &Bench| plane_dies(bench, wheel, death);
        let case = Case::new(format!("nccl::{name}"), &needs, run).slow(LIMIT);
        match death {
            Death::BlackHole => case.needing(Need::Loss),
            Death::Cut => case,
        }
    }));
    cases
}

fn driver(wheel: Wheel, mode: &str, port: u16, comms: u32) -> Result<Program> {
    let driver = c_program::compile_with("nccl_net", &["-ldl"])?;
    let library = nccl::library(wheel.package, wheel.version)?;
    Ok(Program::new(driver)
        .args([library.as_os_str()])
        .args([mode, &Host::A.ipv4().to_string(), &port.to_string()])
        .args([comms.to_string(), MAX_BYTES.to_string()])
        .env("NCCL_SOCKET_IFNAME", NIC)
        .env("NCCL_DEBUG", "WARN"))
}

fn one_process(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let program = driver(OLD, "loop", next_port(), 2)?;
    let outcome = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    ensure!(
        outcome.stdout.trim_end().ends_with("OK"),
        "no OK:\n{}",
        outcome.describe()
    );
    Ok(())
}

/// What users complain about: "loopback and same-host fail or hang".
fn two_processes(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let port = next_port();
    let server = bench.on_device(&fabric, Host::A, driver(OLD, "server", port, 2)?)?;
    let client = bench.on_device(&fabric, Host::A, driver(OLD, "client", port, 2)?)?;
    both_ok(Pair::new(server, client, port).run()?)
}

fn two_hosts(bench: &Bench, variant: &Variant) -> Result<()> {
    let fabric = bench.planes(4)?;
    if variant.loss_ppm > 0 {
        fabric.set_loss(&Host::BOTH, LossRates::udp(variant.loss_ppm.into()))?;
    }
    let port = next_port();
    let program = |mode| {
        let program = driver(variant.wheel, mode, port, variant.comms)?;
        let set = |program: Program, (name, value): &(&str, &str)| program.env(name, value);
        Ok::<_, anyhow::Error>(variant.environment.iter().fold(program, set))
    };
    both_ok(bench.pair(&fabric, program("server")?, program("client")?, port)?)
}

/// The plane that is used most dies in the midst of large transfers, each of which is compared, and comes back.
fn plane_dies(bench: &Bench, wheel: Wheel, death: Death) -> Result<()> {
    let fabric = bench.planes(4)?;
    death.prepare(&fabric)?;
    let statistics = Statistics::new()?;
    let port = next_port();
    let program = |mode| {
        let program = driver(wheel, mode, port, 1)?.args([FEW, "told"]);
        Ok::<_, anyhow::Error>(statistics.counted(program))
    };
    let pair = bench.pair_to_run(&fabric, program("server")?, program("client")?, port)?;
    let outcome = pair.run_disturbed(|_, client| {
        client.wait_output("transferring until told", LIMIT)?;
        let strike = death.strike(&fabric, client, DEAD_FOR, |_| true)?;
        client.run_on(WELL_FOR)?;
        client.signal(libc::SIGUSR1);
        println!(
            "plane {}: {} bytes just before; bytes on all planes while it was dead: {:?}",
            strike.plane, strike.used, strike.meanwhile
        );
        strike.check(&fabric, death)
    })?;
    let transfers = outcome
        .client
        .stdout
        .lines()
        .rev()
        .nth(1)
        .map(str::to_owned);
    both_ok(outcome)?;
    let moves = statistics.sum("moves").context("no statistics")?;
    let failures = statistics.sum("qp_failures").context("no statistics")?;
    println!("{moves} moves; {}", transfers.unwrap_or_default());
    ensure!(failures == 0, "a queue pair failed");
    // From a cut plane the leaves may take all away before the hosts notice anything.
    if death == Death::BlackHole {
        ensure!(moves > 0, "no path moved away from a black hole");
    }
    Ok(())
}

/// The receiver is killed in mid-transfer: the sender's transport must report it, not wait.
fn killed(bench: &Bench) -> Result<()> {
    let fabric: Fabric = bench.direct()?;
    let mut outcome = kill_receiver(bench, &fabric)?;
    for _ in 1..KILLS {
        if !outcome.timed_out {
            break;
        }
        outcome = kill_receiver(bench, &fabric)?;
    }
    ensure!(
        outcome.stdout.contains("test") && !outcome.succeeded() && !outcome.timed_out,
        "the sender did not report its dead peer:\n{}",
        outcome.describe()
    );
    Ok(())
}

/// What became of the sender.
fn kill_receiver(bench: &Bench, fabric: &Fabric) -> Result<Outcome> {
    let port = next_port();
    let endless = |mode| Ok::<_, anyhow::Error>(driver(NEW, mode, port, 1)?.args([ENDLESS]));
    let mut server = bench
        .on_device(fabric, Host::A, endless("server")?)?
        .spawn()?;
    server.wait_listening(port, LIMIT)?;
    let mut client = bench
        .on_device(fabric, Host::B, endless("client")?)?
        .spawn()?;
    client.wait_output("connected", LIMIT)?;
    server.wait_output("connected", LIMIT)?;
    server.signal(libc::SIGKILL);
    client.wait_at_most(NOTICED_WITHIN)
}

fn both_ok(outcome: metaroce_e2e::PairOutcome) -> Result<()> {
    let outcome = outcome.success()?;
    for side in [&outcome.server, &outcome.client] {
        ensure!(
            side.stdout.trim_end().ends_with("OK"),
            "no OK:\n{}",
            side.describe()
        );
    }
    Ok(())
}
