//! What carries datagrams between the nodes of a world: the network with drawn faults (`network.rs`) or a fabric of links
//! and switches (`fabric`). Here is what the world asks of both; how a datagram gets on it asks of each by itself.

use metaroce_proto::types::Time;
use rand::rngs::SmallRng;

use crate::NodeId;
use crate::fabric::{Fabric, LinkCounters, Links};
use crate::network::Network;
use crate::scenario::Scenario;

/// See the file's head.
#[derive(Debug)]
pub(crate) enum Wires {
    Network(Box<Network>),
    Fabric(Box<Fabric>),
}

impl Wires {
    /// Those of a scenario.
    pub(crate) fn new(scenario: &Scenario, rng: SmallRng) -> Self {
        let hosts = scenario.hosts.len();
        match &scenario.fabric {
            Some(config) => Self::Fabric(Box::new(Fabric::new(config, hosts, rng))),
            None => {
                let network = Network::new(scenario.network.clone(), hosts, rng);
                Self::Network(Box::new(network))
            }
        }
    }

    /// How many links a fabric has; of a network nothing is known link by link.
    pub(crate) fn links(&self) -> usize {
        match self {
            Self::Network(_) => 0,
            Self::Fabric(fabric) => fabric.links(),
        }
    }

    /// Bytes that a node has handed to its links and that have not left, per link.
    pub(crate) fn backlog_bytes(&mut self, node: NodeId, now: Time) -> u64 {
        match self {
            Self::Network(network) => network.backlog_bytes(node, now),
            Self::Fabric(fabric) => fabric.backlog_bytes(node, now),
        }
    }

    /// Rate of a node's link.
    pub(crate) fn host_bits_per_s(&self, node: NodeId) -> u64 {
        match self {
            Self::Network(network) => network.config().link_bits_per_s,
            Self::Fabric(fabric) => fabric.host_bits_per_s(node),
        }
    }

    /// What links did so far: of a fabric; a network counts nothing.
    pub(crate) fn counters(&mut self, now: Time, links: Links) -> LinkCounters {
        match self {
            Self::Network(_) => LinkCounters::default(),
            Self::Fabric(fabric) => fabric.counters(now, links),
        }
    }

    /// When a script that loses packets is over at the latest; `None` where none runs.
    pub(crate) fn script_ends_by(&self) -> Option<Time> {
        match self {
            Self::Network(network) => network.config().script.ends_by(),
            Self::Fabric(_) => None,
        }
    }
}
