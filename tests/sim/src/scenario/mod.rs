//! What is simulated: hosts, network, programs and what happens to them. Scenarios are drawn from a seed (`random.rs`; `crowds.rs`
//! for those in which many send to one, `fabrics.rs` for those over a fabric, `narrow.rs` for holes that swallow large packets)
//! or named (`named`, `named.rs`).

mod crowds;
mod fabrics;
mod named;
mod narrow;
mod random;

use crate::NodeId;
use crate::exchange::Exchange;
use crate::fabric::{Change, FabricConfig, Links};
use crate::network::NetworkConfig;
use crate::node::HostConfig;
pub use crate::program::Pair;
use crate::workload::Workload;

pub use crowds::FIRST_CROWD_SEED;
pub use named::{NAMES, WRONG, bulk, bulk_to_one, granting, named};
pub use random::random;

/// Something that happens to the world while it runs.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A host is not run for a time.
    Pause {
        /// Which.
        node: NodeId,
        /// How long.
        ns: u64,
    },
    /// A part of the network delivers nothing for a time.
    Dark {
        /// Only from this node.
        from: Option<NodeId>,
        /// Only to this node.
        to: Option<NodeId>,
        /// Only on this plane.
        plane: Option<u8>,
        /// On these routes, a bit each.
        routes: u8,
        /// How long.
        ns: u64,
    },
    /// From now on this part of the packets is lost.
    Loss(f64),
    /// From now on larger UDP payloads vanish.
    Narrow {
        /// The largest that passes.
        largest_bytes: u64,
    },
    /// Something happens to links, of a scenario that has a fabric.
    Links(Links, Change),
    /// A process dies; if `silent` its whole host.
    Kill {
        /// Which.
        node: NodeId,
        /// Nothing answers any more, not even the kernel.
        silent: bool,
    },
    /// A node is started again on the same port (killed before if it still runs).
    Restart {
        /// Which.
        node: NodeId,
    },
    /// A process exits in the middle of its work.
    Close {
        /// Which.
        node: NodeId,
    },
    /// A program takes its queue pair to the error state.
    Fail {
        /// Index into the scenario's pairs.
        pair: usize,
        /// Which end.
        side: usize,
    },
    /// A program destroys its queue pair.
    Destroy {
        /// Index into the scenario's pairs.
        pair: usize,
        /// Which end.
        side: usize,
    },
    /// Both programs reset their queue pairs and connect them again.
    Reconnect {
        /// Index into the scenario's pairs.
        pair: usize,
        /// What they do then.
        plan: Pair,
    },
}

/// See the file's head.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// To be shown.
    pub name: String,
    /// Everything random comes from it.
    pub seed: u64,
    /// The hosts.
    pub hosts: Vec<HostConfig>,
    /// The network.
    pub network: NetworkConfig,
    /// A fabric of links and switches instead of it.
    pub fabric: Option<FabricConfig>,
    /// The connected queue pairs.
    pub pairs: Vec<Pair>,
    /// The messages of the pairs wait for one another: the pairs are its flows, in its order, and the first end of each
    /// sends as many requests as a flow has messages.
    pub exchange: Option<Exchange>,
    /// What happens when, ns after the start.
    pub faults: Vec<(u64, Fault)>,
    /// Everything must be done after this virtual time.
    pub limit_ns: u64,
    /// And after so many events.
    pub limit_events: u64,
    /// Payloads are carried and compared byte by byte. Otherwise they are only counted: which memory is read and written is
    /// checked as ever, and so is everything but the bytes; it is faster, and takes no memory. Event logs are kept only to
    /// be shown then.
    pub carry_payloads: bool,
    /// Samples are taken so often as long as programs are at work; 0 is never.
    pub sample_ns: u64,
}

impl Scenario {
    /// Planes of whatever carries the packets.
    #[must_use]
    pub fn planes(&self) -> u8 {
        let fabric = self.fabric.as_ref();
        fabric.map_or(self.network.planes, |fabric| fabric.planes)
    }

    /// Two hosts, one pair of queue pairs that do the same.
    pub fn two(name: &str, seed: u64, workload: Workload) -> Self {
        let pair = Pair {
            nodes: [NodeId(0), NodeId(1)],
            workloads: [workload.clone(), workload],
            shared: false,
        };
        Self {
            name: name.into(),
            seed,
            hosts: vec![HostConfig::default(); 2],
            network: NetworkConfig::default(),
            fabric: None,
            pairs: vec![pair],
            exchange: None,
            faults: Vec::new(),
            limit_ns: 60_000_000_000,
            limit_events: 5_000_000,
            carry_payloads: true,
            sample_ns: 0,
        }
    }
}
