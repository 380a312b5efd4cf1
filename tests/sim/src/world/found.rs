//! What is noted while a world runs, and what it comes to in the end.

use metaroce_proto::types::Time;

use super::{START, What, World};
use crate::exchange::Progress;
use crate::fabric::Links;
use crate::node::Node;
use crate::report::{Completion, Outcome, Sample};
use crate::scenario::Scenario;
use crate::{AgentId, NodeId};

impl World {
    /// A request ended with success.
    pub(crate) fn note_completion(&mut self, agent: AgentId, index: usize) {
        self.completions.push(Completion {
            agent,
            submitted_ns: self.ledger.submitted_at(agent, index).since_ns(START),
            done_ns: self.now.since_ns(START),
            bytes: self.ledger.length(agent, index),
        });
    }

    pub(super) fn look(&mut self) {
        let rate = |node: &Node| node.endpoint.allowed_bytes_per_s().sum();
        let rate_bytes_per_s = self.nodes.iter().map(rate).collect();
        let now = self.now;
        let mut into_first = |plane| {
            let links = Links::ToHost(NodeId(0), plane);
            self.wires.counters(now, links)
        };
        let planes = 0..self.planes;
        self.samples.push(Sample {
            at_ns: self.now.since_ns(START),
            rate_bytes_per_s,
            placed_bytes: self.ledger.placed_bytes(),
            completed_bytes: self.ledger.completed_bytes(),
            into_first: into_first(None),
            into_first_by_plane: planes.map(|plane| into_first(Some(plane)).bytes).collect(),
        });
        if self.faults_left > 0 || !self.programs_done() {
            self.schedule(self.now + self.sample_ns, What::Look);
        }
    }

    pub(super) fn count_resting(&self) -> usize {
        let up = self.nodes.iter().filter(|node| node.is_up());
        let paths = up.flat_map(|node| node.endpoint.connections().flat_map(|info| info.paths));
        paths.filter(|path| path.resting).count()
    }

    /// What came out; it was done at `done_at`.
    pub(super) fn outcome(mut self, scenario: &Scenario, done_at: Time) -> Outcome {
        let mut counters = self.lost_counters;
        for node in &self.nodes {
            counters.add(node.endpoint.counters());
        }
        let of_plane = |plane| self.wires.counters(self.now, Links::Plane(plane));
        let planes = (0..self.planes).map(of_plane).collect();
        self.trace.mix(self.ledger.completed());
        let agents = (0..self.programs.len())
            .map(|at| self.ledger.describe(AgentId(at)))
            .collect();
        let connections = self
            .nodes
            .iter()
            .filter(|node| node.is_up())
            .flat_map(|node| {
                let id = node.id;
                node.endpoint
                    .connections()
                    .map(move |info| format!("{id}: {info:?}"))
            });
        let infos = || self.nodes.iter().map(|node| node.endpoint.info());
        Outcome {
            held_most_bytes: infos().map(|info| info.held_most_bytes).max().unwrap_or(0),
            hold_limit_bytes: infos().map(|info| info.hold_limit_bytes).max().unwrap_or(0),
            name: scenario.name.clone(),
            seed: scenario.seed,
            violations: self.ledger.violations().to_vec(),
            hash: self.trace.hash(),
            packets: self.trace.packets(),
            events: self.events,
            virtual_ns: done_at.since_ns(START),
            longest_wait_ns: self.ledger.longest_wait_ns(),
            requests: self.ledger.completed(),
            bytes: self.ledger.completed_bytes(),
            socket_drops: self.nodes.iter().map(|node| node.drops_total).sum(),
            longest_inbox_bytes: self
                .nodes
                .iter()
                .map(|node| node.longest_inbox_bytes)
                .max()
                .unwrap_or(0),
            counters,
            planes,
            links: self.wires.counters(self.now, Links::All),
            completions: self.completions,
            passed: self.exchange.map(Progress::into_passed).unwrap_or_default(),
            samples: self.samples,
            resting_paths: self.resting_paths,
            shared_grants: self.grants.map_or(0, |grants| grants.shared()),
            agents,
            connections: connections.collect(),
            packets_seen: if self.ledger.violations().is_empty() {
                String::new()
            } else {
                self.trace.to_string()
            },
        }
    }
}
