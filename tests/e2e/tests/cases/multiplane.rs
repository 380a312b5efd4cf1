//! Devices of several planes: hosts with a NIC on each plane, links of 1 Gb/s, and one device over all NICs. One queue pair
//! of `ib_write_bw` uses them all, whatever becomes of one of them; the byte checker finds every byte; how fast it is, and how
//! deep it dips, is printed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::{DEFAULT_MTU_BYTES, Place, Rate};
use metaroce_e2e::needs::Need;
use metaroce_e2e::throughput::Sampler;
use metaroce_e2e::{Fabric, Host, Pair, Proc, Program, Statistics, Topology, c_program, tool};

use super::contract::{byte_check, says_ok};
use super::perftest::is_result;
use super::planes::{Death, FLOWS_WITHIN};
use super::{Bench, Case, ON_DEVICE, next_port};

/// NICs of a host, and planes.
const PLANES: u8 = 4;

/// Speed of a link.
const LINK_MBIT: u64 = 1000;

/// Of the slow one.
const SLOW_MBIT: u64 = 100;

/// Seconds of `ib_write_bw` without trouble.
const SECONDS: u64 = 3;

/// Until congestion control has found its rates.
const WARM_UP: Duration = Duration::from_millis(500);

/// Before trouble, and how long it lasts; more than twice the queue pair's patience of 0.54 s.
const STRETCH: Duration = Duration::from_millis(1200);

/// Of a plane that is used, in [`SECONDS`]: a hundredth of what the slow link carries.
const USED_BYTES: u64 = 400_000;

/// Enough for a run on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

const DEVICES: &str = "METAROCE_DEVICES";

pub fn cases() -> Vec<Case> {
    let needs = [ON_DEVICE, &[Need::Program("ib_write_bw")]].concat();
    let mut cases = Vec::new();
    let mut add = |name: &str, loss: bool, run: fn(&Bench) -> Result<()>| {
        let case = Case::new(format!("multiplane::{name}"), &needs, run).slow(LIMIT);
        cases.push(if loss { case.needing(Need::Loss) } else { case });
    };
    add("one queue pair over 4 planes", false, |bench| {
        steady(bench, [4, 4], LINK_MBIT)
    });
    add("a slow plane", false, |bench| {
        steady(bench, [4, 4], SLOW_MBIT)
    });
    add("4 planes against 2", false, |bench| {
        steady(bench, [4, 2], LINK_MBIT)
    });
    add("1 plane against 4", false, |bench| {
        steady(bench, [1, 4], LINK_MBIT)
    });
    add("a plane is cut", false, |bench| {
        trouble(bench, Trouble::Cut)
    });
    add("a plane is a black hole", true, |bench| {
        trouble(bench, Trouble::BlackHole)
    });
    add("an interface goes down", false, |bench| {
        trouble(bench, Trouble::Down(Host::B))
    });
    add("the receiver's interface goes down", false, |bench| {
        trouble(bench, Trouble::Down(Host::A))
    });
    add("an address goes", false, |bench| {
        trouble(bench, Trouble::Address(Host::B))
    });
    add("the receiver's address goes", false, |bench| {
        trouble(bench, Trouble::Address(Host::A))
    });
    let needs_send = [ON_DEVICE, &[Need::Program("ib_send_bw")]].concat();
    for gids in [["0", "1"], ["2", "0"]] {
        let name = format!("multiplane::one host, GIDs {} and {}", gids[0], gids[1]);
        let run = move |bench: &Bench| one_host(bench, gids);
        cases.push(Case::new(name, &needs_send, run).slow(LIMIT));
    }
    let needs = [ON_DEVICE, &[Need::VerbsHeaders]].concat();
    let bytes = Case::new("multiplane::bytes while planes go and come", &needs, bytes);
    cases.push(bytes.slow(LIMIT));
    cases.push(Case::new("multiplane::metaroce.h", &needs, extension));
    cases
}

/// Hosts with a NIC on each of four switches, with links of 1 Gb/s.
fn fabric() -> Result<Fabric> {
    let fabric = Fabric::temporary(Topology::Nics(PLANES), DEFAULT_MTU_BYTES)?;
    fabric.set_rate(Place::ALL, rate(LINK_MBIT)?)?;
    Ok(fabric)
}

fn rate(mbit: u64) -> Result<Rate> {
    Rate::mbit(mbit).map_err(anyhow::Error::msg)
}

/// A device over the first NICs.
fn device(planes: u8) -> String {
    let nics: Vec<String> = (0..planes).map(|nic| format!("eth{nic}")).collect();
    format!("metaroce0={}", nics.join("+"))
}

/// `ib_write_bw` for `seconds`, with so many planes at host a and b.
struct Transfer {
    server: Program,
    client: Program,
    port: u16,
    statistics: Statistics,
}

impl Transfer {
    fn new(planes: [u8; 2], seconds: u64) -> Result<Self> {
        let statistics = Statistics::new()?;
        let port = next_port();
        let program = Program::new("ib_write_bw")
            .args([
                "-F",
                "-d",
                "metaroce0",
                "-x",
                "0",
                "-q",
                "1",
                "-s",
                "1048576",
            ])
            .args(["-D", &seconds.to_string(), "-p", &port.to_string()]);
        let program = statistics.counted(program);
        Ok(Self {
            server: program.clone().env(DEVICES, device(planes[0])),
            client: program
                .env(DEVICES, device(planes[1]))
                .args([Host::A.ipv4().to_string()]),
            port,
            statistics,
        })
    }

    /// How often paths moved. That no completion failed is what the client's success says: it leaves with work under way when
    /// its time is over, and then a queue pair of the server's may fail.
    fn moves(&self) -> Result<u64> {
        self.statistics.sum("moves").context("no statistics")
    }
}

/// Without trouble; the last plane has `last_mbit`. Every plane that both ends have carries its part.
fn steady(bench: &Bench, planes: [u8; 2], last_mbit: u64) -> Result<()> {
    let fabric = fabric()?;
    fabric.set_rate(Place::plane(PLANES), rate(last_mbit)?)?;
    let transfer = Transfer::new(planes, SECONDS)?;
    let before = fabric.arrived_bytes()?;
    let (server, client) = (transfer.server.clone(), transfer.client.clone());
    let outcome = bench
        .pair(&fabric, server, client, transfer.port)?
        .success()?;
    let after = fabric.arrived_bytes()?;
    let bytes: Vec<u64> = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    let moves = transfer.moves()?;
    let common = planes[0].min(planes[1]);
    let sum_mbit = match common {
        PLANES => LINK_MBIT * 3 + last_mbit,
        _ => LINK_MBIT * u64::from(common),
    };
    let line = outcome.client.stdout.lines().find(|line| is_result(line));
    let average = line.and_then(|line| line.split_whitespace().nth(3)?.parse::<f64>().ok());
    let mbit = average.context("no result")? * 8.0 * 1.048_576;
    println!(
        "{mbit:.0} Mb/s, {:.1} % of the {sum_mbit} of the planes that both ends have; {moves} moves; bytes by plane: {bytes:?}",
        mbit / sum_mbit as f64 * 100.0
    );
    let used = bytes.iter().take(usize::from(common));
    ensure!(
        used.clone().all(|bytes| *bytes > USED_BYTES),
        "a plane was not used: {bytes:?}"
    );
    Ok(())
}

/// What becomes of a plane for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Cut,
    BlackHole,
    /// The administrator of a host takes its interface down.
    Down(Host),
    /// A host loses its address.
    Address(Host),
}

/// The plane that trouble befalls: not that of the GIDs, where the programs' own TCP connection is, too.
const HIT: u8 = 3;
const HIT_NIC: &str = "eth2";

impl Trouble {
    fn begin(self, fabric: &Fabric) -> Result<()> {
        match self {
            Self::Cut => fabric.plane_down(HIT),
            Self::BlackHole => fabric.blackhole(Place::plane(HIT)),
            Self::Down(host) => ip(fabric, host, &["link", "set", HIT_NIC, "down"]),
            Self::Address(host) => ip(
                fabric,
                host,
                &["address", "del", &address(host), "dev", HIT_NIC],
            ),
        }
    }

    fn end(self, fabric: &Fabric) -> Result<()> {
        match self {
            Self::Cut => fabric.plane_up(HIT),
            Self::BlackHole => fabric.end_blackhole(Place::plane(HIT)),
            Self::Down(host) => ip(fabric, host, &["link", "set", HIT_NIC, "up"]),
            Self::Address(host) => ip(
                fabric,
                host,
                &["address", "add", &address(host), "dev", HIT_NIC],
            ),
        }
    }
}

fn ip(fabric: &Fabric, host: Host, arguments: &[&str]) -> Result<()> {
    let namespace = fabric.namespace(host);
    tool::run("ip", &[&["-n", namespace.as_str()], arguments].concat()).map(|_| ())
}

fn address(host: Host) -> String {
    format!("{}/24", host.ipv4_on(HIT - 1))
}

/// A plane goes and comes back while the transfer runs.
fn trouble(bench: &Bench, trouble: Trouble) -> Result<()> {
    let fabric = fabric()?;
    if trouble == Trouble::BlackHole {
        Death::BlackHole.prepare(&fabric)?;
    }
    let transfer = Transfer::new([PLANES; 2], 60)?;
    let (server, client) = (transfer.server.clone(), transfer.client.clone());
    let pair = bench.pair_to_run(&fabric, server, client, transfer.port)?;
    let outcome = pair.run_disturbed(|server, client| {
        disturb(&fabric, trouble, server, client)?;
        super::planes::end_transfer(client)
    })?;
    outcome.success()?;
    let moves = transfer.moves()?;
    println!("{moves} moves");
    ensure!(moves > 0, "no path moved away");
    Ok(())
}

fn disturb(fabric: &Fabric, trouble: Trouble, server: &mut Proc, client: &mut Proc) -> Result<()> {
    let nics: Vec<String> = (0..PLANES).map(|nic| format!("eth{nic}")).collect();
    let start_at = |interfaces: &str| Sampler::start(server.pid(), interfaces);
    let all_together = start_at(&nics.join("+"));
    let samplers: Vec<Sampler> = nics.iter().map(|nic| start_at(nic)).collect();
    all_together.wait_flowing(FLOWS_WITHIN)?;
    client.run_on(WARM_UP)?;
    let start = Instant::now();
    client.run_on(STRETCH)?;
    let begins = Instant::now();
    trouble.begin(fabric)?;
    client.run_on(STRETCH)?;
    let ends = Instant::now();
    trouble.end(fabric)?;
    client.run_on(STRETCH)?;
    let all = Instant::now();
    let series: Vec<_> = samplers.into_iter().map(Sampler::finish).collect();
    let sum = all_together.finish();
    let normal = sum.median_rate(start..begins);
    println!(
        "{:.2} Gb/s before, {:.2} Gb/s meanwhile",
        normal * 8e-9,
        sum.median_rate(begins..ends) * 8e-9
    );
    for (what, from) in [
        ("undisturbed", start),
        ("it goes", begins),
        ("it comes back", ends),
    ] {
        println!("{what}: dip: {}", sum.dip(from..from + STRETCH, normal));
    }
    let rest = sum.median_rate(begins..ends);
    let dip = sum.dip(begins..begins + STRETCH, rest);
    println!("it goes, of what the rest carries: dip: {dip}");
    let hit = &series[usize::from(HIT) - 1];
    let rate = |from: Instant, to: Instant| hit.median_rate(from..to);
    let (before, meanwhile, after) = (
        rate(start, begins),
        rate(begins + STRETCH / 2, ends),
        rate(ends + STRETCH / 2, all),
    );
    println!(
        "its rate: {:.0} Mb/s, then {:.0}, then {:.0}",
        before * 8e-6,
        meanwhile * 8e-6,
        after * 8e-6
    );
    ensure!(before > 0.0, "the plane was not used before");
    ensure!(
        meanwhile < before / 10.0,
        "the plane was used while it was away"
    );
    ensure!(after > before / 10.0, "the plane was not used again");
    for (nic, series) in series
        .iter()
        .enumerate()
        .filter(|(nic, _)| *nic + 1 != usize::from(HIT))
    {
        let went_on = series.median_rate(begins + STRETCH / 2..ends);
        ensure!(went_on > 0.0, "eth{nic} stood still meanwhile");
    }
    Ok(())
}

/// Two processes of one host whose GIDs are of different planes.
fn one_host(bench: &Bench, gids: [&str; 2]) -> Result<()> {
    let fabric = fabric()?;
    let port = next_port().to_string();
    let program = Program::new("ib_send_bw")
        .args([
            "-F",
            "-d",
            "metaroce0",
            "-s",
            "65536",
            "-n",
            "2000",
            "-p",
            &port,
        ])
        .env(DEVICES, device(PLANES));
    let server = program.clone().args(["-x", gids[0]]);
    let client = program.args(["-x", gids[1], &Host::A.ipv4().to_string()]);
    let [server, client] =
        [server, client].map(|program| bench.on_device(&fabric, Host::A, program));
    let outcome = Pair::new(server?, client?, port.parse()?)
        .run()?
        .success()?;
    let result = outcome.client.stdout.lines().find(|line| is_result(line));
    println!("{}", result.unwrap_or("no result"));
    Ok(())
}

/// Many queue pairs, every byte, every operation, while an interface goes down and comes back, and then another.
fn bytes(bench: &Bench) -> Result<()> {
    let fabric = fabric()?;
    let prepare = |program: Program, _| program.env(DEVICES, device(PLANES));
    let arguments = ["-q", "16", "-t", "6", "-m", "262144"].map(str::to_owned);
    let mut away = Vec::new();
    let outcome = byte_check(bench, &fabric, &arguments, prepare, |server, client| {
        Sampler::start(server.pid(), "eth0").wait_flowing(FLOWS_WITHIN)?;
        for trouble in [
            Trouble::Down(Host::B),
            Trouble::Address(Host::B),
            Trouble::Cut,
        ] {
            trouble.begin(&fabric)?;
            client.run_on(STRETCH / 2)?;
            away.push(trouble);
            trouble.end(&fabric)?;
            client.run_on(STRETCH / 2)?;
        }
        Ok(())
    })?;
    println!("{}", outcome.client.stdout.trim_end());
    ensure!(away.len() == 3, "the run proves nothing");
    let used = fabric.arrived_bytes()?;
    ensure!(
        used.iter().all(|bytes| *bytes > USED_BYTES),
        "a plane was not used: {used:?}"
    );
    Ok(())
}

fn extension(bench: &Bench) -> Result<()> {
    let fabric = Fabric::temporary(Topology::Nics(PLANES), DEFAULT_MTU_BYTES)?;
    let program = Program::new(c_program::compile("extension")?).env(DEVICES, device(PLANES));
    let outcome = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    says_ok(&outcome)?;
    println!("{}", outcome.stdout.trim_end());
    Ok(())
}
