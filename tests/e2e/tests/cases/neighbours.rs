//! Several processes of one host behind one NIC: each knows what the senders to the others want, whoever of them is killed,
//! and the senders share the host's link as if one process received all of it.

use std::collections::BTreeMap;
use std::fmt;
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
/// … for so long, while all send.
const LOOKED_AT: Duration = Duration::from_secs(4);
/// Median of Jain's index over the windows that no machine is too slow for. 1 is one rate for all, 0.125 all for one.
const LEAST_JAIN: f64 = 0.4;

/// What sends, one process to one process.
#[derive(Clone, Copy)]
enum Sender {
    /// `ib_write_bw`.
    Verbs,
    /// iperf3, to compare with: what the same processors make of one TCP stream a process.
    Tcp,
}

impl Sender {
    /// Protocol and ports of what it sends, for nft.
    fn flows(self) -> (&'static str, &'static str) {
        match self {
            Sender::Verbs => ("udp", "24791-25814"),
            Sender::Tcp => ("tcp", "18600-24000"),
        }
    }

    /// A server on host a that listens on `port`, and its client on `host`.
    fn begin(self, bench: &Bench, fabric: &Fabric, host: Host, port: u16) -> Result<[Proc; 2]> {
        let (address, port_text) = (Host::A.ipv4().to_string(), port.to_string());
        let seconds = SECONDS.to_string();
        let (server, client) = match self {
            Sender::Verbs => {
                let both = Program::new("ib_write_bw").args([
                    "-F",
                    "-d",
                    "metaroce0",
                    "-D",
                    &seconds,
                    "-p",
                    &port_text,
                ]);
                let client = both.clone().args([&address]);
                (
                    bench.on_device(fabric, Host::A, both)?,
                    bench.on_device(fabric, host, client)?,
                )
            }
            Sender::Tcp => {
                let server = Program::new("iperf3").args(["-s", "-1", "-p", &port_text]);
                let client =
                    Program::new("iperf3").args(["-c", &address, "-t", &seconds, "-p", &port_text]);
                let within =
                    |program: Program, host| program.on(fabric, host).limit(bench.time_left());
                (within(server, Host::A), within(client, host))
            }
        };
        let mut server = server.spawn()?;
        server.wait_listening(port, BEGUN_WITHIN)?;
        Ok([server, client.spawn()?])
    }
}

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
            from_one_host(bench, Sender::Verbs)
        }),
        shares("8 processes of a host share a link by TCP", |bench| {
            from_one_host(bench, Sender::Tcp)
        })
        .needing(Need::Program("iperf3")),
        shares("8 processes of a host receive what they can", |bench| {
            share_a_link(
                bench,
                &bench.direct()?,
                &[Host::B; RECEIVERS],
                Sender::Verbs,
            )
        }),
        shares("8 hosts send to 8 processes of one", |bench| {
            from_many_hosts(bench, Sender::Verbs)
        }),
        shares("8 hosts send to 8 processes by TCP", |bench| {
            from_many_hosts(bench, Sender::Tcp)
        })
        .needing(Need::Program("iperf3")),
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

/// Bytes that came in for each process of a host, counted by its kernel.
struct Flows<'a> {
    fabric: &'a Fabric,
    host: Host,
}

impl<'a> Flows<'a> {
    fn count(fabric: &'a Fabric, host: Host, (protocol, ports): (&str, &str)) -> Result<Self> {
        let flows = Self { fabric, host };
        for line in [
            "add table inet flows".to_owned(),
            "add set inet flows bytes { type inet_service; flags dynamic; size 1024; counter; }"
                .to_owned(),
            "add chain inet flows input { type filter hook input priority 0; }".to_owned(),
            format!(
                "add rule inet flows input {protocol} dport {ports} add @bytes {{ {protocol} dport }}"
            ),
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

fn from_one_host(bench: &Bench, sender: Sender) -> Result<()> {
    share_a_link(
        bench,
        &limited(bench.direct()?)?,
        &[Host::B; RECEIVERS],
        sender,
    )
}

fn from_many_hosts(bench: &Bench, sender: Sender) -> Result<()> {
    let shape = Topology::Nics(1).with_hosts(RECEIVERS as u8 + 1);
    let fabric = limited(Fabric::temporary(shape, DEFAULT_MTU_BYTES)?)?;
    share_a_link(bench, &fabric, &fabric.hosts()[1..], sender)
}

/// A process on host a for each of `senders`, and what goes to it shares the link.
fn share_a_link(bench: &Bench, fabric: &Fabric, senders: &[Host], sender: Sender) -> Result<()> {
    let flows = Flows::count(fabric, Host::A, sender.flows())?;
    let begin = |&host: &Host| sender.begin(bench, fabric, host, next_port());
    let pairs: Vec<[Proc; 2]> = senders.iter().map(begin).collect::<Result<_>>()?;
    flows.wait_for(senders.len())?;
    let shared = Shared::measure(&flows)?;
    for [server, client] in pairs {
        client.wait()?.success()?;
        server.wait()?.success()?;
    }
    println!("    {shared}");
    ensure!(shared.at(0.5) > LEAST_JAIN, "the link was not shared");
    Ok(())
}

/// This thread, and what it starts, goes before all others on its processor: on a busy machine windows would be of any length
/// otherwise. Where that is not permitted they are.
struct Urgent;

impl Urgent {
    fn begin() -> Self {
        Self::schedule(["--fifo", "--pid", "1"]);
        Self
    }

    fn schedule(how: [&str; 3]) {
        let done = std::fs::read_link("/proc/thread-self")
            .context("/proc/thread-self")
            .and_then(|this| {
                let thread = this
                    .file_name()
                    .and_then(|name| name.to_str())
                    .context("no id")?;
                tool::run("chrt", &[&how[..], &[thread]].concat())
            });
        if let Err(error) = done {
            println!("    windows may be longer than they should: {error:#}");
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        Self::schedule(["--other", "--pid", "0"]);
    }
}

/// How a link was shared for a while.
struct Shared {
    /// Jain's index of each window, ascending.
    windows: Vec<f64>,
    /// Of all of them together.
    whole: f64,
    megabits_per_second: f64,
}

impl Shared {
    fn measure(flows: &Flows<'_>) -> Result<Self> {
        let _first = Urgent::begin();
        let begin = Instant::now();
        let first = flows.read()?;
        let mut before = first.clone();
        let mut windows = Vec::new();
        while begin.elapsed() < LOOKED_AT {
            // A look that came late shortens no window: one of a few milliseconds says nothing.
            std::thread::sleep(WINDOW);
            let now = flows.read()?;
            windows.push(jain(&between(&before, &now)));
            before = now;
        }
        windows.sort_by(f64::total_cmp);
        let all = between(&first, &before);
        let bits = 8.0 * all.iter().sum::<u64>() as f64;
        Ok(Self {
            windows,
            whole: jain(&all),
            megabits_per_second: bits / begin.elapsed().as_secs_f64() / 1e6,
        })
    }

    /// The index that this part of the windows does not reach.
    fn at(&self, part: f64) -> f64 {
        self.windows[(part * (self.windows.len() - 1) as f64) as usize]
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Jain over {} windows of {} ms: median {:.3}, tenth {:.3}, least {:.3}; over all of them {:.3}; {:.0} Mb/s",
            self.windows.len(),
            WINDOW.as_millis(),
            self.at(0.5),
            self.at(0.1),
            self.at(0.0),
            self.whole,
            self.megabits_per_second,
        )
    }
}

/// What came for each process since then.
fn between(before: &BTreeMap<u64, u64>, now: &BTreeMap<u64, u64>) -> Vec<u64> {
    let since = |(port, bytes): (&u64, &u64)| bytes - before.get(port).unwrap_or(&0);
    now.iter().map(since).collect()
}
