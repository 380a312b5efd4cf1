//! What went over each plane, and what became of it.
//!
//! Packets and bytes are counted by the queue at the port where they leave, as they would be on a wire: a train
//! counts as the packets in it, which the counters of the device itself do not do. Losses and marks are counted
//! by the programs at the port where they come in. Differences of two readings are what a run did.
//!
//! Queues and programs that are replaced take their counts with them; those are kept in a file (`Retired`).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, Sub};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::host::Host;
use super::state::State;
use super::topology::{Port, far_end, near_end};
use super::{arrival, impair, namespace};
use crate::throughput::received_bytes;
use crate::tool;

/// What went one way on one plane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets sent on the wire, those that then were lost included.
    pub packets: u64,
    /// Their bytes, with Ethernet headers.
    pub bytes: u64,
    /// Packets (trains count as one here) lost in the port's own queue: a congestion, and not in `packets`.
    pub overflowed: u64,
    /// Packets lost one by one, as asked for.
    pub lost: u64,
    /// Packets lost in a black hole.
    pub swallowed: u64,
    /// Packets marked CE.
    pub marked: u64,
    /// Packets made late.
    pub late: u64,
}

impl Traffic {
    /// All that did not arrive.
    pub fn dropped(&self) -> u64 {
        self.overflowed + self.lost + self.swallowed
    }

    fn zip(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            packets: with(self.packets, other.packets),
            bytes: with(self.bytes, other.bytes),
            overflowed: with(self.overflowed, other.overflowed),
            lost: with(self.lost, other.lost),
            swallowed: with(self.swallowed, other.swallowed),
            marked: with(self.marked, other.marked),
            late: with(self.late, other.late),
        }
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }
}

/// The directions of a plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlaneCounters {
    /// What went to each host, in their order.
    pub to: Vec<Traffic>,
    /// What each host sent, in their order. Between two hosts without a switch this is what went to the other.
    pub from: Vec<Traffic>,
}

impl PlaneCounters {
    /// What went to a host.
    pub fn to(&self, host: Host) -> Traffic {
        self.to.get(host.index()).copied().unwrap_or_default()
    }

    /// What a host sent.
    pub fn from(&self, host: Host) -> Traffic {
        self.from.get(host.index()).copied().unwrap_or_default()
    }

    /// What went from host a to host b, where these are all.
    pub fn a_to_b(&self) -> Traffic {
        self.to(Host::B)
    }

    /// What went from host b to host a, where these are all.
    pub fn b_to_a(&self) -> Traffic {
        self.to(Host::A)
    }
}

/// One reading of all planes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// By plane; plane 1 comes first.
    pub planes: Vec<PlaneCounters>,
}

impl Counters {
    /// What happened between `earlier` and this reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let minus = |now: &[Traffic], then: &[Traffic]| -> Vec<Traffic> {
            now.iter()
                .zip(then)
                .map(|(&now, &then)| now - then)
                .collect()
        };
        let planes = (self.planes.iter().zip(&earlier.planes))
            .map(|(now, then)| PlaneCounters {
                to: minus(&now.to, &then.to),
                from: minus(&now.from, &then.from),
            })
            .collect();
        Self { planes }
    }

    /// What went to a host on all planes.
    pub fn total_to(&self, host: Host) -> Traffic {
        (self.planes.iter().map(|plane| plane.to(host))).fold(Traffic::default(), Add::add)
    }
}

impl fmt::Display for Counters {
    /// A line for each plane and receiving host.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{:<6} {:<7} {:>13} {:>15} {:>6} {:>10} {:>9} {:>9}",
            "plane", "to host", "packets", "bytes", "share", "dropped", "marked", "late"
        )?;
        let hosts = self.planes.first().map_or(0, |plane| plane.to.len());
        for host in (0..hosts).filter_map(Host::nth) {
            let total = self.total_to(host).packets;
            for (plane, number) in self.planes.iter().zip(1..) {
                let traffic = plane.to(host);
                writeln!(
                    formatter,
                    "{number:<6} {host:<7} {:>13} {:>15} {:>5.1}% {:>10} {:>9} {:>9}",
                    traffic.packets,
                    traffic.bytes,
                    share_percent(traffic.packets, total.max(1)),
                    traffic.dropped(),
                    traffic.marked,
                    traffic.late
                )?;
            }
        }
        Ok(())
    }
}

fn share_percent(part: u64, total: u64) -> f64 {
    // Precision beyond 52 bits does not show in one digit after the point.
    100.0 * part as f64 / total as f64
}

/// Reads the counters of all planes.
pub(super) fn read(state: &State) -> Result<Counters> {
    let (name, shape) = (state.name.as_str(), state.shape());
    let retired = Retired::load(state)?;
    let mut planes = Vec::new();
    for plane in 1..=shape.planes() {
        let mut counters = PlaneCounters::default();
        for host in shape.hosts() {
            let (near, far) = (
                near_end(name, shape, host, plane),
                far_end(name, shape, host, plane),
            );
            counters.to.push(read_way(&retired, &far, &near)?);
            if shape.has_switches() {
                counters.from.push(read_way(&retired, &near, &far)?);
            }
        }
        if !shape.has_switches() {
            counters.from = counters.to.iter().rev().copied().collect();
        }
        planes.push(counters);
    }
    Ok(Counters { planes })
}

/// Bytes that came in on each plane, for all hosts together, those that a black hole then swallowed included.
pub(super) fn arrived_bytes(state: &State) -> Result<Vec<u64>> {
    let (name, shape) = (state.name.as_str(), state.shape());
    let mut planes = vec![0; usize::from(shape.planes())];
    for host in shape.hosts() {
        let first = near_end(name, shape, host, 1);
        // thread-self: the namespace is entered by a thread, not by this process.
        let table = namespace::inside(&first.namespace, || {
            std::fs::read_to_string("/proc/thread-self/net/dev")
        })??;
        for (plane, bytes) in (1..).zip(&mut planes) {
            let device = near_end(name, shape, host, plane).device;
            let more = received_bytes(&table, &device);
            *bytes += more.with_context(|| format!("the kernel does not count {device}"))?;
        }
    }
    Ok(planes)
}

/// What leaves at one port and comes in at the other.
fn read_way(retired: &Retired, out: &Port, arrival: &Port) -> Result<Traffic> {
    let queue = queue(out)?.with_context(|| format!("{} has lost its queue", out.device))?;
    Ok(queue.traffic + filter(arrival)? + retired.queue(out) + retired.filter(arrival))
}

/// What the programs at a port have counted.
fn filter(port: &Port) -> Result<Traffic> {
    let single = match impair::open(port)? {
        Some(program) => impair::counts_of(&program)?.into(),
        None => Traffic::default(),
    };
    match arrival::open(port)? {
        Some(program) => Ok(single + arrival::counts_of(&program)?),
        None => Ok(single),
    }
}

/// The queue of a port.
#[derive(Debug)]
pub(super) struct Queue {
    /// Its own part of the counts.
    pub traffic: Traffic,
    /// Whether `rate` limits it.
    pub limited: bool,
}

/// Reads the queue of a port; none if it has the kernel's own.
pub(super) fn queue(port: &Port) -> Result<Option<Queue>> {
    let place = ["qdisc", "show", "dev", &port.device];
    let shown = tool::run_json(
        "tc",
        &[&["-n", &port.namespace, "-s", "-j"][..], &place].concat(),
    )?;
    let Some(queue) = shown
        .as_array()
        .and_then(|all| all.iter().find(|queue| queue.get("root").is_some()))
    else {
        return Ok(None);
    };
    let number = |key: &str| {
        queue
            .get(key)
            .and_then(Value::as_u64)
            .with_context(|| format!("tc shows no `{key}`"))
    };
    let traffic = Traffic {
        packets: number("packets")?,
        bytes: number("bytes")?,
        overflowed: number("drops")?,
        ..Traffic::default()
    };
    Ok(Some(Queue {
        traffic,
        limited: queue.get("kind").and_then(Value::as_str) == Some("htb"),
    }))
}

/// Counts of queues and programs that are gone, by port. Kept in a file, so that later processes see them; two
/// processes that change impairments of one fabric in the same instant could lose some.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Retired {
    queues: BTreeMap<String, Traffic>,
    filters: BTreeMap<String, Traffic>,
}

impl Retired {
    fn path(state: &State) -> PathBuf {
        state.files().join("retired.json")
    }

    fn load(state: &State) -> Result<Self> {
        let path = Self::path(state);
        match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .with_context(|| format!("{} is damaged: remove it", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn queue(&self, port: &Port) -> Traffic {
        self.queues.get(&key(port)).copied().unwrap_or_default()
    }

    fn filter(&self, port: &Port) -> Traffic {
        self.filters.get(&key(port)).copied().unwrap_or_default()
    }

    /// Keeps the counts of a queue that is gone.
    pub(super) fn add_queue(state: &State, port: &Port, traffic: Traffic) -> Result<()> {
        Self::change(state, |retired| add(&mut retired.queues, port, traffic))
    }

    /// Keeps the counts of a program that is gone.
    pub(super) fn add_filter(state: &State, port: &Port, traffic: Traffic) -> Result<()> {
        Self::change(state, |retired| add(&mut retired.filters, port, traffic))
    }

    fn change(state: &State, change: impl FnOnce(&mut Self)) -> Result<()> {
        /// Threads of one process wait for each other.
        static CHANGING: Mutex<()> = Mutex::new(());
        let _guard = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut retired = Self::load(state)?;
        change(&mut retired);
        let path = Self::path(state);
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&fresh, serde_json::to_string(&retired)?)
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

fn key(port: &Port) -> String {
    format!("{}/{}", port.namespace, port.device)
}

fn add(to: &mut BTreeMap<String, Traffic>, port: &Port, traffic: Traffic) {
    let sum = to.entry(key(port)).or_default();
    *sum = *sum + traffic;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_the_difference_of_two_readings() {
        let at = |packets| Counters {
            planes: vec![PlaneCounters {
                to: vec![
                    Traffic::default(),
                    Traffic {
                        packets,
                        bytes: packets * 100,
                        swallowed: packets,
                        ..Traffic::default()
                    },
                ],
                from: Vec::new(),
            }],
        };
        let run = at(7).since(&at(3));
        let expected = Traffic {
            packets: 4,
            bytes: 400,
            swallowed: 4,
            ..Traffic::default()
        };
        assert_eq!(run.planes[0].a_to_b(), expected);
        assert_eq!(expected.dropped(), 4);
        assert_eq!(run.planes[0].b_to_a(), Traffic::default());
        assert!(run.to_string().contains("100.0%"), "{run}");
    }
}
