//! A deterministic simulator: nodes that each hold one [`metaroce_proto::endpoint::Endpoint`], the very code that the
//! provider runs, over a network in virtual time that loses, reorders, duplicates, damages and delays.
//!
//! Nothing here reads a clock, starts a thread or draws a random number that does not come from the seed of a
//! [`scenario::Scenario`]: the same seed gives the same run, packet by packet. `world` is the event loop, `network` what
//! happens to a datagram (or, where links and queues matter, `fabric`), `node` one host and how it drives its endpoint, `memory` its regions and receive queues,
//! `program` and `workload` what the simulated programs do, `exchange` which messages of a collective wait for which, `rocev2` what is compared with, `checker` the contract of verbs, which knows nothing of the
//! transport, `scenario` draws all of that from a seed, and `performance` measures how fast it was. Run `cargo run -p metaroce-sim --release -- --help`.

pub mod checker;
pub mod content;
pub mod exchange;
pub mod fabric;
pub mod memory;
pub mod network;
pub mod node;
pub mod performance;
pub mod program;
pub mod report;
pub mod rocev2;
pub mod scenario;
pub mod script;
pub mod trace;
mod wires;
pub mod workload;
pub mod world;

use std::fmt;

/// A simulated host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub usize);

/// One life of one queue pair of one node, with the program that uses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AgentId(pub usize);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {}", self.0)
    }
}
