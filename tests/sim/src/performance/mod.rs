//! How fast the transport is in a fabric: scenarios by name that measure one thing each and give it as a few figures.
//! `cargo xtask sim NAME` runs them; each is a file here and a line of [`SCENARIOS`]. All hold the contract of verbs, too, or give no figures.
//!
//! The links have 100 Gb/s, packets 4 KiB of payload, and hosts are as good as a host can be: they look at their sockets
//! all the time (see [`host`]), so that what is measured is the transport and nothing else.

mod collective;
mod demand;
mod disorder;
mod drain;
mod figures;
mod incast;
mod looks;
mod loss;
mod options;
mod plane_fault;
mod planes;
mod sharing;
mod table;
mod tail;
mod victim;
mod visibility;

use metaroce_proto::cc::Algorithm;
use metaroce_proto::types::Driving;

use crate::NodeId;
use crate::fabric::FabricConfig;
use crate::network::LOWER_BYTES;
use crate::node::HostConfig;
use crate::report::{Outcome, Sample};
use crate::scenario::{Pair, Scenario};
use crate::workload::{Mix, Workload};
use crate::world::World;
pub use figures::Figures;
pub use options::{Constants, Kind, Options, Surroundings, Transport, What};
pub use table::{Measuring, SCENARIOS, find};

/// Rate of the links.
const LINK_BITS_PER_S: f64 = 100e9;

/// Of a full packet with all headers, Ethernet, IP and UDP included, this part is payload.
const PAYLOAD_SHARE: f64 = 4096.0 / (4096.0 + 64.0 + LOWER_BYTES as f64);

/// And this part is what grants count: the payload of UDP (WIRE 8.8).
const PACKET_SHARE: f64 = (4096.0 + 64.0) / (4096.0 + 64.0 + LOWER_BYTES as f64);

/// What a scenario measured; see [`Figures`].
#[derive(Debug, Default)]
struct Measured {
    congestion: &'static Algorithm,
    values: Vec<(&'static str, f64)>,
    lists: Vec<(&'static str, Vec<f64>)>,
    asides: Vec<(&'static str, f64)>,
    notes: Vec<String>,
    packets: u64,
    samples: Vec<Sample>,
}

impl Measured {
    fn new(options: &Options) -> Self {
        Self {
            congestion: options.congestion,
            ..Self::default()
        }
    }

    /// Runs a scenario; its contract must hold.
    fn run(&mut self, scenario: &Scenario) -> Result<Outcome, String> {
        let mut scenario = scenario.clone();
        for host in &mut scenario.hosts {
            host.congestion = self.congestion;
        }
        let outcome = World::run(&scenario, false);
        self.packets += outcome.packets;
        self.notes.push(outcome.summary());
        self.samples.clone_from(&outcome.samples);
        if outcome.is_right() {
            Ok(outcome)
        } else {
            Err(outcome.to_string())
        }
    }
}

/// A host that does nothing but drive its endpoint: it reads what comes at once, and its timers are exact. It takes in what
/// its links on so many planes bring, and knows it.
#[must_use]
pub fn host(planes: u8) -> HostConfig {
    HostConfig {
        wake_ns: 0,
        timer_slack_ns: 0,
        packet_ns: 0,
        receive_buffer_bytes: 16 << 20,
        // Two trains a link: enough to keep the link busy, and little for a retransmission to wait behind.
        send_buffer_bytes: (32 << 10) * u64::from(planes),
        train_segments: 4,
        driving: Driving::Busy,
        port_bits_per_s: Some((f64::from(planes) * LINK_BITS_PER_S * PACKET_SHARE) as u64),
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
    scenario.hosts = vec![host(fabric.planes); nodes.unwrap_or(0)];
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
