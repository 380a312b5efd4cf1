//! `collective`: a ring all-reduce or an all-to-all among hosts that do nothing else, over the transport or over the model of
//! RoCEv2 NICs, in the same fabric: how long it takes, and how long its single messages do.
//!
//! In all worlds but the clean one hosts are on leaves, with as much room to the spines as to the hosts, and those that
//! follow one another in the ring on different leaves: every flow goes over a spine that its hash chooses.

use super::{Kind, LINK_BITS_PER_S, Measured, Options, Surroundings, Transport, host, listens};
use crate::NodeId;
use crate::exchange::{Exchange, Passed};
use crate::fabric::{Change, FabricConfig, Links, Loss, Shape};
use crate::rocev2;
use crate::scenario::{Fault, Pair, Scenario};
use crate::workload::{Mix, Workload};

/// Hosts on a leaf, and spines: with as many of both nothing is oversubscribed.
const HOSTS_PER_LEAF: usize = 8;

/// Round trip of a packet of no length.
const RTT_NS: u64 = 5_000;

/// Before it begins connections are set up, and have rested for longer than a grant is worth.
const BEGINS_NS: u64 = 3_000_000;

/// So long after the begin the dead link dies.
const DIES_AFTER_NS: u64 = 20_000;

/// What takes longer than this never ends.
const LIMIT_NS: u64 = 2_000_000_000;

/// Messages that a node has under way to one other; arrivals hold it back, completions of what has arrived must not.
const DEPTH: u32 = 4;

/// What of the options makes the exchange and the fabric.
impl Options {
    fn exchange(&self) -> Result<Exchange, String> {
        let ring = self.ring();
        let mut exchange = match self.kind {
            Kind::Allreduce => Exchange::ring_all_reduce(&ring, u64::from(self.bytes)),
            Kind::Alltoall => Exchange::all_to_all(&ring, u64::from(self.bytes)),
        };
        let most = crate::content::CONTENT_BYTES_MAX;
        if exchange.bytes > most {
            return Err(format!(
                "bytes must be at most {} with {} nodes: messages of {most}",
                u64::from(most) * self.nodes as u64,
                self.nodes
            ));
        }
        exchange.begins_ns = BEGINS_NS;
        Ok(exchange)
    }

    fn leaves(&self) -> usize {
        self.nodes.div_ceil(HOSTS_PER_LEAF).max(2)
    }

    /// The hosts, one of each leaf after the other.
    fn ring(&self) -> Vec<NodeId> {
        let per_leaf = self.nodes.div_ceil(self.leaves());
        let of_leaves = |at| (0..self.leaves()).map(move |leaf| leaf * per_leaf + at);
        let hosts = (0..per_leaf).flat_map(of_leaves);
        hosts
            .filter(|host| *host < self.nodes)
            .map(NodeId)
            .collect()
    }

    fn fabric(&self) -> FabricConfig {
        let shape = match self.world {
            Surroundings::Clean => Shape::SingleSwitch,
            _ => Shape::LeafSpine {
                leaves: self.leaves(),
                spines: HOSTS_PER_LEAF,
            },
        };
        let mut fabric = FabricConfig::new(1, shape, RTT_NS);
        let part = match self.world {
            Surroundings::Loss01 => 0.001,
            Surroundings::Loss1 => 0.01,
            _ => 0.0,
        };
        if part > 0.0 {
            // Each packet passes exactly one of these links.
            fabric.changes = vec![(Links::ToHosts, Change::Lose(Loss::each(part)))];
        }
        if self.pfc {
            fabric.to_host.queue_bytes = u64::MAX;
            fabric.between.queue_bytes = u64::MAX;
        }
        fabric
    }

    fn death(&self) -> Option<(u64, Links, Change)> {
        let link = Links::Spine {
            plane: 0,
            leaf: 0,
            spine: 0,
        };
        (self.world == Surroundings::Deadlink).then_some((
            BEGINS_NS + DIES_AFTER_NS,
            link,
            Change::Down,
        ))
    }
}

/// `time_us` until the last message has arrived, NaN if it never does, and `p99_us` of the times of single messages.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let exchange = options.exchange()?;
    let mut measured = Measured::new(options);
    let passed = match options.transport {
        Transport::Metaroce => over_metaroce(options, &exchange, &mut measured)?,
        Transport::Rocev2 => over_rocev2(options, &exchange, &mut measured),
    };
    let (time_us, p99_us) = times_us(&passed);
    measured.values = vec![("time_us", time_us), ("p99_us", p99_us)];
    let sent = exchange.flows.len() as u64 * u64::from(exchange.messages);
    let bytes_per_node = (sent / options.nodes as u64 * u64::from(exchange.bytes)) as f64;
    let used = bytes_per_node * 8e6 / time_us / LINK_BITS_PER_S;
    measured.asides.push(("of_line", used));
    Ok(measured)
}

fn over_metaroce(
    options: &Options,
    exchange: &Exchange,
    measured: &mut Measured,
) -> Result<Vec<Passed>, String> {
    let sends = Workload {
        messages: exchange.messages,
        depth: DEPTH,
        max_bytes: exchange.bytes,
        all_long: true,
        mix: Mix::WRITES_IMM,
        relaxed_percent: 100,
        sges: 1,
        fence_percent: 0,
        ..Workload::default()
    };
    let listens = Workload {
        receives: 2 * DEPTH,
        first_receives: 2 * DEPTH,
        ..listens(exchange.bytes)
    };
    let mut scenario = Scenario::two("collective", options.seed, Workload::silent());
    scenario.hosts = vec![host(1); options.nodes];
    scenario.pairs = exchange
        .flows
        .iter()
        .map(|nodes| Pair {
            nodes: *nodes,
            workloads: [sends.clone(), listens.clone()],
            shared: false,
        })
        .collect();
    scenario.fabric = Some(options.fabric());
    scenario.exchange = Some(exchange.clone());
    scenario.carry_payloads = false;
    scenario.limit_events = u64::MAX;
    scenario.limit_ns = LIMIT_NS;
    let death = options.death();
    scenario.faults = death
        .map(|(at_ns, links, change)| (at_ns, Fault::Links(links, change)))
        .into_iter()
        .collect();
    let outcome = measured.run(&scenario)?;
    measured.asides = vec![
        ("retransmissions", outcome.counters.retransmissions as f64),
        ("overflows", outcome.links.overflows as f64),
    ];
    Ok(outcome.passed)
}

fn over_rocev2(options: &Options, exchange: &Exchange, measured: &mut Measured) -> Vec<Passed> {
    let setting = rocev2::Setting {
        changes: options.death().into_iter().collect(),
        limit_ns: LIMIT_NS,
        ..rocev2::Setting::new(options.seed, options.fabric())
    };
    let outcome = rocev2::run(&setting, exchange);
    measured.packets += outcome.packets;
    measured.asides = vec![
        ("retransmissions", outcome.retransmissions as f64),
        ("overflows", outcome.overflows as f64),
        ("timeouts", outcome.timeouts as f64),
        ("failed_flows", outcome.failed as f64),
    ];
    if outcome.done {
        outcome.passed
    } else {
        Vec::new()
    }
}

/// Time of all, and the 99th percentile of the single messages' from their submission to their arrival.
fn times_us(passed: &[Passed]) -> (f64, f64) {
    let arrived: Option<Vec<u64>> = passed.iter().map(|one| one.arrived_ns).collect();
    let Some(last_ns) = arrived.and_then(|all| all.into_iter().max()) else {
        return (f64::NAN, f64::NAN);
    };
    let mut own_ns: Vec<u64> = passed
        .iter()
        .filter_map(|one| Some(one.arrived_ns? - one.submitted_ns))
        .collect();
    own_ns.sort_unstable();
    let p99_ns = own_ns[(own_ns.len() * 99 / 100).min(own_ns.len() - 1)];
    ((last_ns - BEGINS_NS) as f64 / 1e3, p99_ns as f64 / 1e3)
}
