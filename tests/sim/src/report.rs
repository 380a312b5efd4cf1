//! What came out of a run.

use std::fmt;

use metaroce_proto::telemetry::Counters;

use crate::AgentId;
use crate::exchange::Passed;
use crate::fabric::LinkCounters;

/// A request that ended with success. Times are from the start of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Whose.
    pub agent: AgentId,
    /// When it was submitted.
    pub submitted_ns: u64,
    /// When its completion was polled.
    pub done_ns: u64,
    /// Payload.
    pub bytes: u32,
}

/// A look at the world while it ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// From the start of the run.
    pub at_ns: u64,
    /// The rate that each node's transport lets it send at, all its connections together; 0 before it is connected.
    pub rate_bytes_per_s: Vec<u64>,
    /// Bytes that all nodes placed in their memory so far.
    pub placed_bytes: u64,
    /// Bytes of all requests that ended with success so far.
    pub completed_bytes: u64,
    /// What the links into the first node did so far.
    pub into_first: LinkCounters,
    /// Bytes that have left of these links, plane by plane.
    pub into_first_by_plane: Vec<u64>,
}

/// See the file's head.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of the scenario.
    pub name: String,
    /// Of the scenario.
    pub seed: u64,
    /// What contradicted the contract; the first one counts.
    pub violations: Vec<String>,
    /// Over all packets and completions: equal for equal runs.
    pub hash: u64,
    /// Packets sent.
    pub packets: u64,
    /// Events of the simulator.
    pub events: u64,
    /// Virtual time until the last completion.
    pub virtual_ns: u64,
    /// The longest time that a request was the oldest of its queue pair.
    pub longest_wait_ns: u64,
    /// Requests that completed.
    pub requests: u64,
    /// Payload bytes of those that succeeded.
    pub bytes: u64,
    /// Datagrams that found a socket buffer full.
    pub socket_drops: u64,
    /// The most that one of these held, as the kernel counts.
    pub longest_inbox_bytes: u64,
    /// The most that an endpoint held back for strict visibility at a time.
    pub held_most_bytes: u64,
    /// The most that an endpoint would hold back now.
    pub hold_limit_bytes: u64,
    /// Paths that no new data may take when everything is done: they did not answer their probes.
    pub resting_paths: usize,
    /// How often a sender was granted a part of what several share; 0 where grants are not checked.
    pub shared_grants: u64,
    /// Of all endpoints.
    pub counters: Counters,
    /// What all links of the fabric did, if there is one.
    pub links: LinkCounters,
    /// The same plane by plane.
    pub planes: Vec<LinkCounters>,
    /// Requests that ended with success, in the order of their completions.
    pub completions: Vec<Completion>,
    /// Messages of the exchange, if there is one, in the order of submission.
    pub passed: Vec<Passed>,
    /// See [`crate::scenario::Scenario::sample_ns`].
    pub samples: Vec<Sample>,
    /// The state of each program.
    pub agents: Vec<String>,
    /// The state of each connection.
    pub connections: Vec<String>,
    /// The last packets, dissected, if something was wrong.
    pub packets_seen: String,
}

impl Outcome {
    /// Nothing contradicted the contract.
    pub fn is_right(&self) -> bool {
        self.violations.is_empty()
    }

    /// Payload bits per second of virtual time.
    pub fn goodput_bits_per_s(&self) -> f64 {
        self.bytes as f64 * 8e9 / self.virtual_ns.max(1) as f64
    }

    /// One line of figures.
    pub fn summary(&self) -> String {
        let counters = &self.counters;
        format!(
            "{} seed {}: {} in {} packets, {} requests, {:.3} ms, {:.2} Gb/s, longest wait {:.3} ms, lost {} again {} spurious {} probes {} rtos {} moves {}",
            self.name,
            self.seed,
            if self.is_right() { "right" } else { "WRONG" },
            self.packets,
            self.requests,
            self.virtual_ns as f64 / 1e6,
            self.goodput_bits_per_s() / 1e9,
            self.longest_wait_ns as f64 / 1e6,
            counters.packets_lost,
            counters.retransmissions,
            counters.spurious_retransmissions,
            counters.probes_sent,
            counters.rtos,
            counters.moves,
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_right() {
            writeln!(f, "Last packets:\n{}", self.packets_seen)?;
            for line in self.agents.iter().chain(&self.connections) {
                writeln!(f, "{line}")?;
            }
            for (name, value) in self.counters.iter().filter(|(_, value)| *value > 0) {
                write!(f, "{name} {value}  ")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "{}", self.summary())?;
        for violation in &self.violations {
            writeln!(f, "VIOLATED (seed {}): {violation}", self.seed)?;
        }
        Ok(())
    }
}
