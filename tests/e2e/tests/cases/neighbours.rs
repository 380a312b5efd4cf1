//! Several processes of one host behind one NIC: each knows what the senders to the others want, whoever of them is killed,
//! and the senders share the host's link as if one process received all of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::{DEFAULT_MTU_BYTES, Direction, Place, Rate};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Proc, Program, Topology, tool};
use serde_json::Value;

use super::telemetry::{Transfer, engine, stat_until};
use super::{Bench, Case, ON_DEVICE, next_port};

/// Processes that receive on one host.
const RECEIVERS: usize = 8;
/// Speed of the link to that host.
const LINK_MBIT: u64 = 2_000;
/// How long the clients send.
const SECONDS: u32 = 9;
/// From when every flow has sent so much …
const BEGUN_BYTES: u64 = 1 << 20;
const BEGUN_WITHIN: Duration = Duration::from_secs(15);
/// … what each of them sends is looked at so often, …
const WINDOW: Duration = Duration::from_millis(50);
/// … for so many windows, while all send.
const WINDOWS: usize = 80;
/// Median of Jain's index over the windows that no machine is too slow for. 1 is one rate for all, 0.125 all for one.
const LEAST_JAIN: f64 = 0.4;
/// The ports of engines.
const PORTS: &str = "24791-25814";

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&Bench) -> Result<()>| {
        Case::new(format!("neighbours::{name}"), ON_DEVICE, run)
            .needing(Need::Program("ib_write_bw"))
    };
    let shares = |name: &str, run: fn(&Bench) -> Result<()>| {
        case(name, run)
            .needing(Need::Program("nft"))
            .slow(Duration::from_secs(90))
    };
    vec![
        case("processes of a host know of each other", know_each_other),
        shares("8 processes of a host send to 8 of another", |bench| {
            share_a_link(bench, &limited(bench.direct()?)?, &[Host::B; RECEIVERS])
        }),
        shares("8 processes of a host receive what they can", |bench| {
            share_a_link(bench, &bench.direct()?, &[Host::B; RECEIVERS])
        }),
        shares("8 hosts send to 8 processes of one", |bench| {
            let shape = Topology::Nics(1).with_hosts(RECEIVERS as u8 + 1);
            let fabric = limited(Fabric::temporary(shape, DEFAULT_MTU_BYTES)?)?;
            let senders = &fabric.hosts()[1..];
            share_a_link(bench, &fabric, senders)
        }),
    ]
}

fn number(sample: &Value, pid: u32, name: &str) -> u64 {
    let engine = engine(sample, pid);
    engine.and_then(|engine| engine[name].as_u64()).unwrap_or(0)
}

/// Waits until each of these processes sees so many senders to others of its host.
fn wait_for_senders(bench: &Bench, pids: &[u32], senders: u64) -> Result<()> {
    let what = format!("{senders} senders to others than {pids:?}");
    stat_until(bench, pids, &what, |sample| {
        pids.iter()
            .all(|&pid| number(sample, pid, "other_senders") == senders)
    })
    .map(drop)
}

fn know_each_other(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let begin = || Transfer::start(bench, &fabric, 20);
    let (first, second, third) = (begin()?, begin()?, begin()?);
    let [one, two, three] = [&first, &second, &third].map(|transfer| transfer.server.pid());
    wait_for_senders(bench, &[one, two, three], 2)?;
    // The one that handed the table to the others, and one that was only stopped.
    first.server.signal(libc::SIGKILL);
    wait_for_senders(bench, &[two, three], 1)?;
    second.server.signal(libc::SIGSTOP);
    wait_for_senders(bench, &[three], 0)?;
    second.server.signal(libc::SIGCONT);
    wait_for_senders(bench, &[two, three], 1)?;
    // Somebody else hands it out.
    let fourth = begin()?;
    let all = [two, three, fourth.server.pid()];
    wait_for_senders(bench, &all, 2)
}

/// Bytes that came in for each engine of a host, counted by its kernel.
struct Flows<'a> {
    fabric: &'a Fabric,
    host: Host,
}

impl<'a> Flows<'a> {
    fn count(fabric: &'a Fabric, host: Host) -> Result<Self> {
        let flows = Self { fabric, host };
        for line in [
            "add table inet flows".to_owned(),
            "add set inet flows bytes { type inet_service; flags dynamic; size 1024; counter; }"
                .to_owned(),
            "add chain inet flows input { type filter hook input priority 0; }".to_owned(),
            format!("add rule inet flows input udp dport {PORTS} add @bytes {{ udp dport }}"),
        ] {
            flows.nft(&[&line])?;
        }
        Ok(flows)
    }

    fn nft(&self, arguments: &[&str]) -> Result<String> {
        let namespace = self.fabric.namespace(self.host);
        tool::run(
            "ip",
            &[&["netns", "exec", &namespace, "nft"], arguments].concat(),
        )
    }

    /// By UDP port.
    fn read(&self) -> Result<BTreeMap<u64, u64>> {
        let text = self.nft(&["-j", "list set inet flows bytes"])?;
        let value: Value = serde_json::from_str(&text).context("nft wrote no JSON")?;
        let sets = value["nftables"].as_array().context("no list")?;
        let elements = sets.iter().find_map(|set| set["set"]["elem"].as_array());
        let flow = |element: &Value| {
            let element = &element["elem"];
            Some((
                element["val"].as_u64()?,
                element["counter"]["bytes"].as_u64()?,
            ))
        };
        Ok(elements.into_iter().flatten().filter_map(flow).collect())
    }

    fn wait_for(&self, count: usize) -> Result<()> {
        let end = Instant::now() + BEGUN_WITHIN;
        loop {
            let bytes = self.read()?;
            let begun = bytes.values().filter(|bytes| **bytes >= BEGUN_BYTES);
            if begun.count() == count {
                return Ok(());
            }
            ensure!(Instant::now() < end, "not all flows have begun: {bytes:?}");
            std::thread::sleep(WINDOW);
        }
    }
}

/// Jain's index: 1 if all are equal, 1 / n if one has everything.
fn jain(values: &[u64]) -> f64 {
    let sum: f64 = values.iter().map(|value| *value as f64).sum();
    let squares: f64 = values.iter().map(|value| (*value as f64).powi(2)).sum();
    match squares {
        0.0 => 1.0,
        _ => sum * sum / (values.len() as f64 * squares),
    }
}

/// With a slow link to host a.
fn limited(fabric: Fabric) -> Result<Fabric> {
    let link = Rate::mbit(LINK_MBIT).map_err(anyhow::Error::msg)?;
    fabric.set_rate(Place::direction(Direction::To(Host::A)), link)?;
    Ok(fabric)
}

/// A process on host a for each of `senders`, and what goes to it shares the link.
fn share_a_link(bench: &Bench, fabric: &Fabric, senders: &[Host]) -> Result<()> {
    let flows = Flows::count(fabric, Host::A)?;
    let begin = |&host: &Host| -> Result<[Proc; 2]> {
        let port = next_port();
        let server = Program::new("ib_write_bw")
            .args(["-F", "-d", "metaroce0", "-D"])
            .args([SECONDS.to_string(), "-p".into(), port.to_string()]);
        let client = server.clone().args([Host::A.ipv4().to_string()]);
        let mut server = bench.on_device(fabric, Host::A, server)?.spawn()?;
        server.wait_listening(port, BEGUN_WITHIN)?;
        Ok([server, bench.on_device(fabric, host, client)?.spawn()?])
    };
    let pairs: Vec<[Proc; 2]> = senders.iter().map(begin).collect::<Result<_>>()?;
    flows.wait_for(senders.len())?;
    let (mut indices, total) = measure(&flows)?;
    for [server, client] in pairs {
        client.wait()?.success()?;
        server.wait()?.success()?;
    }
    indices.sort_by(f64::total_cmp);
    let at = |part: f64| indices[(part * (indices.len() - 1) as f64) as usize];
    println!(
        "    Jain over {} windows of {} ms: median {:.3}, tenth {:.3}, least {:.3}; {:.0} Mb/s",
        indices.len(),
        WINDOW.as_millis(),
        at(0.5),
        at(0.1),
        at(0.0),
        total,
    );
    ensure!(at(0.5) > LEAST_JAIN, "the link was not shared: {indices:?}");
    Ok(())
}

/// Jain's index of each window, and what all got in megabits per second.
fn measure(flows: &Flows<'_>) -> Result<(Vec<f64>, f64)> {
    let begin = Instant::now();
    let first = flows.read()?;
    let mut before = first.clone();
    let mut indices = Vec::with_capacity(WINDOWS);
    for window in 1..=WINDOWS as u32 {
        let at = begin + WINDOW * window;
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let now = flows.read()?;
        let since = |(port, bytes): (&u64, &u64)| bytes - before.get(port).unwrap_or(&0);
        indices.push(jain(&now.iter().map(since).collect::<Vec<u64>>()));
        before = now;
    }
    let bytes: u64 = before.values().sum::<u64>() - first.values().sum::<u64>();
    Ok((
        indices,
        bytes as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e6,
    ))
}
