//! How fast the transport is in a fabric: scenarios by name that measure one thing each and give it as a few figures.
//! `cargo xtask sim NAME` runs them by [`run`]; each is a file here. All hold the contract of verbs, too, or give no figures.
//!
//! The links have 100 Gb/s, packets 4 KiB of payload, and hosts are as good as a host can be: they look at their sockets
//! all the time (see [`host`]), so that what is measured is the transport and nothing else.

mod incast;
mod loss;
mod planes;
mod tail;

use std::fmt;

use metaroce_proto::telemetry::json::Json;
use metaroce_proto::types::Driving;

use crate::NodeId;
use crate::fabric::FabricConfig;
use crate::network::LOWER_BYTES;
use crate::node::HostConfig;
use crate::report::Outcome;
use crate::scenario::{Pair, Scenario};
use crate::workload::{Mix, Workload};
use crate::world::World;

/// Names that [`run`] knows, and the options that each has.
pub const NAMES: &[(&str, &[&str])] = &[
    ("loss", &["loss", "rtt_us", "burst"]),
    ("tail", &["bytes", "loss", "rtt_us"]),
    ("incast", &["senders", "rtt_us"]),
    ("planes", &["planes", "nodes", "connections", "rtt_us"]),
];

/// Rate of the links.
const LINK_BITS_PER_S: f64 = 100e9;

/// Of a full packet with all headers, Ethernet, IP and UDP included, this part is payload.
const PAYLOAD_SHARE: f64 = 4096.0 / (4096.0 + 64.0 + LOWER_BYTES as f64);

/// Hosts that send, at most: as many as there are addresses of hosts in a /24.
const SENDERS_MAX: usize = 254;

/// Addresses that an endpoint tells its peers of at most.
const PLANES_MAX: u8 = 16;

/// What is asked of the scenarios; each looks at its own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// Everything random comes from it.
    pub seed: u64,
    /// Part of the packets that is lost, data and acknowledgements alike.
    pub loss: f64,
    /// Packets lost in a row at most.
    pub burst: u32,
    /// Round trip of a packet of no length.
    pub rtt_us: u64,
    /// Bytes of a message.
    pub bytes: u32,
    /// Hosts that send to one.
    pub senders: usize,
    /// Planes.
    pub planes: u8,
    /// Hosts on them.
    pub nodes: usize,
    /// Connections between these.
    pub connections: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            loss: 0.01,
            burst: 1,
            rtt_us: 10,
            bytes: 65_536,
            senders: 8,
            planes: 2,
            nodes: 64,
            connections: 64 * 63,
        }
    }
}

impl Options {
    /// What is wrong with them.
    fn check(&self) -> Result<(), String> {
        let problem = if !(0.0..=0.9).contains(&self.loss) {
            "loss must be a part from 0 to 0.9 (1 % is 0.01)"
        } else if self.burst == 0 || self.burst > 10_000 {
            "burst must be 1 to 10000 packets"
        } else if self.rtt_us == 0 || self.rtt_us > 100_000 {
            "rtt-us must be 1 to 100000 µs"
        } else if self.bytes == 0 || self.bytes > crate::content::CONTENT_BYTES_MAX {
            "bytes must be 1 to 1048576"
        } else if !(2..=SENDERS_MAX).contains(&self.senders) {
            "senders must be 2 to 254"
        } else if !(1..=PLANES_MAX).contains(&self.planes) {
            "planes must be 1 to 16"
        } else if !(2..=SENDERS_MAX).contains(&self.nodes) {
            "nodes must be 2 to 254"
        } else {
            return Ok(());
        };
        Err(problem.into())
    }

    fn value(&self, option: &str) -> f64 {
        match option {
            "loss" => self.loss,
            "rtt_us" => self.rtt_us as f64,
            "burst" => f64::from(self.burst),
            "bytes" => f64::from(self.bytes),
            "senders" => self.senders as f64,
            "planes" => f64::from(self.planes),
            "nodes" => self.nodes as f64,
            "connections" => self.connections as f64,
            _ => f64::NAN,
        }
    }

    fn rtt_ns(&self) -> u64 {
        self.rtt_us * 1_000
    }
}

/// What a scenario found.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// Scenario.
    pub name: &'static str,
    /// Seed.
    pub seed: u64,
    /// Its options.
    pub options: Vec<(&'static str, f64)>,
    /// What it measured; NaN where there was nothing to measure.
    pub values: Vec<(&'static str, f64)>,
    /// More of it, which JSON leaves out.
    pub asides: Vec<(&'static str, f64)>,
    /// More for people: a line about each run.
    pub notes: Vec<String>,
    /// Packets simulated in all runs.
    pub packets: u64,
}

impl Figures {
    /// One JSON object: the seed, the options and what was measured.
    #[must_use]
    pub fn json(&self) -> String {
        let mut out = String::new();
        let mut json = Json::object(&mut out);
        json.number("seed", self.seed);
        for (name, value) in self.options.iter().chain(&self.values) {
            json.fraction(name, *value);
        }
        drop(json);
        out
    }

    /// A value or an aside by its name.
    #[must_use]
    pub fn value(&self, name: &str) -> f64 {
        let mut all = self.values.iter().chain(&self.asides);
        let found = all.find(|(known, _)| *known == name);
        found.map_or(f64::NAN, |(_, value)| *value)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        write!(f, "{} seed {}", self.name, self.seed)?;
        for (name, value) in &self.options {
            write!(f, " {name} {value}")?;
        }
        write!(f, ":")?;
        for (name, value) in self.values.iter().chain(&self.asides) {
            write!(f, " {name} {value:.4}")?;
        }
        Ok(())
    }
}

/// What a scenario measured; see [`Figures`].
#[derive(Debug, Default)]
struct Measured {
    values: Vec<(&'static str, f64)>,
    asides: Vec<(&'static str, f64)>,
    notes: Vec<String>,
    packets: u64,
}

impl Measured {
    /// Runs a scenario; its contract must hold.
    fn run(&mut self, scenario: &Scenario) -> Result<Outcome, String> {
        let outcome = World::run(scenario, false);
        self.packets += outcome.packets;
        self.notes.push(outcome.summary());
        if outcome.is_right() {
            Ok(outcome)
        } else {
            Err(outcome.to_string())
        }
    }
}

/// Runs a scenario. `None` if there is none of this name.
pub fn run(name: &str, options: &Options) -> Option<Result<Figures, String>> {
    let (name, names) = NAMES.iter().find(|(known, _)| *known == name)?;
    let measure = || {
        options.check()?;
        match *name {
            "loss" => loss::measure(options),
            "incast" => incast::measure(options),
            "planes" => planes::measure(options),
            _ => tail::measure(options),
        }
    };
    Some(measure().map(|measured| {
        Figures {
            name,
            seed: options.seed,
            options: names
                .iter()
                .map(|name| (*name, options.value(name)))
                .collect(),
            values: measured.values,
            asides: measured.asides,
            notes: measured.notes,
            packets: measured.packets,
        }
    }))
}

/// A host that does nothing but drive its endpoint: it reads what comes at once, and its timers are exact.
#[must_use]
pub fn host() -> HostConfig {
    HostConfig {
        wake_ns: 0,
        timer_slack_ns: 0,
        packet_ns: 0,
        receive_buffer_bytes: 16 << 20,
        // Two trains: enough to keep the link busy, and little for a retransmission to wait behind.
        send_buffer_bytes: 32 << 10,
        train_segments: 4,
        driving: Driving::Busy,
        ..HostConfig::default()
    }
}

/// Those hosts in a fabric, WRITEs in one direction on each pair of nodes.
fn scenario(
    name: &str,
    seed: u64,
    fabric: FabricConfig,
    writes: &Workload,
    pairs: &[[NodeId; 2]],
) -> Scenario {
    let mut scenario = Scenario::two(name, seed, writes.clone());
    let nodes = pairs.iter().flatten().map(|node| node.0 + 1).max();
    let port_bits_per_s = f64::from(fabric.planes) * fabric.to_host.bits_per_s as f64;
    let host = HostConfig {
        port_bytes_per_s: Some((port_bits_per_s * PAYLOAD_SHARE / 8.0) as u64),
        ..host()
    };
    scenario.hosts = vec![host; nodes.unwrap_or(0)];
    scenario.pairs = pairs
        .iter()
        .map(|nodes| Pair {
            nodes: *nodes,
            workloads: [writes.clone(), listens(writes.max_bytes)],
            shared: false,
        })
        .collect();
    scenario.fabric = Some(fabric);
    scenario.carry_payloads = false;
    // Virtual time is the limit: what is measured is long, and not more likely to hang for that.
    scenario.limit_events = u64::MAX;
    scenario
}

/// WRITEs of `bytes`, `depth` of them outstanding, one after the other.
fn writes(bytes: u32, depth: u32, messages: u32) -> Workload {
    Workload {
        messages,
        depth,
        max_bytes: bytes,
        all_long: true,
        mix: Mix {
            write: 1,
            write_imm: 0,
            ..Mix::WRITES
        },
        relaxed_percent: 100,
        sges: 1,
        fence_percent: 0,
        ..Workload::default()
    }
}

/// The other end of [`writes`].
fn listens(bytes: u32) -> Workload {
    Workload {
        max_bytes: bytes,
        receives: 2,
        sges: 1,
        ..Workload::silent()
    }
}
