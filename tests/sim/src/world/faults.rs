//! What a scenario does to the world while it runs.

use metaroce_proto::types::Status;
use rand::{Rng, RngCore};

use super::{What, World};
use crate::NodeId;
use crate::network::{Darkness, Network};
use crate::node::Life;
use crate::program::{Pair, State};
use crate::scenario::Fault;
use crate::wires::Wires;

/// How long an exiting process goes on for the answer to its goodbye.
const CLOSE_NS: u64 = 100_000_000;

impl World {
    pub(super) fn inflict(&mut self, fault: &Fault) {
        match fault {
            Fault::Pause { node, ns } => {
                let until = self.now + *ns;
                let node = &mut self.nodes[node.0];
                node.paused_until = node.paused_until.max(until);
                // A turn that was planned earlier is not had.
                if node.turn_at.take().is_some() {
                    let id = node.id;
                    self.wake(id, until);
                }
            }
            Fault::Dark {
                from,
                to,
                plane,
                routes,
                ns,
            } => {
                let darkness = Darkness {
                    from: *from,
                    to: *to,
                    plane: *plane,
                    routes: *routes,
                    until: self.now + *ns,
                };
                if let Some(network) = self.network(fault) {
                    network.darken(darkness);
                }
            }
            Fault::Loss(loss) => {
                if let Some(network) = self.network(fault) {
                    network.config_mut().loss = *loss;
                }
            }
            Fault::Narrow { largest_bytes } => {
                if let Some(network) = self.network(fault) {
                    network.config_mut().largest_bytes = *largest_bytes;
                }
            }
            Fault::Links(links, change) => {
                let found = match &mut self.wires {
                    Wires::Fabric(fabric) => fabric.change(self.now, *links, *change),
                    Wires::Network(_) => 0,
                };
                if found == 0 {
                    let what =
                        format!("the scenario is wrong: {fault:?} names no link of its fabric");
                    self.ledger.violate(self.now, what);
                }
            }
            Fault::Kill { node, silent } => self.kill(*node, *silent),
            Fault::Restart { node } => self.restart(*node),
            Fault::Close { node } => self.close_node(*node, true),
            Fault::Fail { pair, side } => {
                let ids = self.pairs[*pair];
                self.ledger.allow(ids[1 - side], Status::RetryExceeded);
                self.fail(ids[*side]);
            }
            Fault::Destroy { pair, side } => {
                let ids = self.pairs[*pair];
                self.ledger.allow(ids[1 - side], Status::RetryExceeded);
                self.destroy(ids[*side]);
            }
            Fault::Reconnect { pair, plan } => self.reconnect(*pair, plan),
        }
    }

    /// The network that `fault` happens to; what is wrong is said if there is a fabric in its place.
    fn network(&mut self, fault: &Fault) -> Option<&mut Network> {
        match &mut self.wires {
            Wires::Network(network) => Some(network),
            Wires::Fabric(_) => {
                let what = format!(
                    "the scenario is wrong: {fault:?} happens to a network; of a fabric use Fault::Links"
                );
                self.ledger.violate(self.now, what);
                None
            }
        }
    }

    /// A process, or its whole host, is gone from one moment to the next.
    fn kill(&mut self, id: NodeId, silent: bool) {
        let now = self.now;
        let node = &mut self.nodes[id.0];
        if !node.is_up() {
            return;
        }
        self.lost_counters.add(node.endpoint.counters());
        node.life = if silent { Life::Silent } else { Life::Gone };
        node.inbox.clear();
        node.inbox_bytes = 0;
        self.ledger.kill(id, true, false);
        self.end_programs(id);
        self.watch_survivors(id, now);
    }

    fn end_programs(&mut self, id: NodeId) {
        for program in self
            .programs
            .iter_mut()
            .filter(|program| program.node == id)
        {
            program.state = State::Over;
        }
    }

    /// What the peers of a dead node have pending must fail in time.
    fn watch_survivors(&mut self, id: NodeId, now: metaroce_proto::types::Time) {
        for at in 0..self.programs.len() {
            let program = &self.programs[at];
            let peer = &self.programs[program.peer.0];
            if program.node != id && peer.node == id && program.state != State::Over {
                let patience_ns = program.workload.patience_ns();
                self.schedule(
                    now + patience_ns * 5 / 4,
                    What::Overdue(crate::AgentId(at), now),
                );
            }
        }
    }

    /// The process ends in order. `abrupt`: in the middle of its work.
    pub(crate) fn close_node(&mut self, id: NodeId, abrupt: bool) {
        let now = self.now;
        let node = &mut self.nodes[id.0];
        if node.life != Life::Up {
            return;
        }
        node.endpoint.close(now);
        node.life = Life::Closing(now + CLOSE_NS);
        self.ledger.kill(id, abrupt, true);
        self.end_programs(id);
        if abrupt {
            self.watch_survivors(id, now);
        }
        self.wake(id, now);
    }

    /// The node is there again, with new queue pairs; who was connected to the old ones connects to the new ones.
    fn restart(&mut self, id: NodeId) {
        if self.nodes[id.0].is_up() {
            self.kill(id, false);
        }
        if let Some(grants) = &mut self.grants {
            grants.forget(id);
        }
        let seed = self.rng.next_u64();
        self.nodes[id.0].restart(self.planes, seed, self.now);
        let affected: Vec<usize> = (0..self.pairs.len())
            .filter(|at| {
                self.pairs[*at]
                    .iter()
                    .any(|agent| self.programs[agent.0].node == id)
            })
            .collect();
        for at in affected {
            let ids = self.pairs[at];
            for agent in ids {
                // Some give their old queue pair up at once, others wait until it fails.
                if self.programs[agent.0].node != id && self.rng.random() {
                    self.ledger.allow(agent, Status::RetryExceeded);
                    self.destroy(agent);
                }
            }
            let again = Pair {
                nodes: ids.map(|agent| self.programs[agent.0].node),
                workloads: ids.map(|agent| self.programs[agent.0].workload.clone()),
                shared: false,
            };
            self.pairs[at] = self.create_pair(&again);
        }
    }

    /// Both ends of a pair reset their queue pair and connect it again: a new life under the old number.
    /// Nothing happens if one of them is destroyed or its process gone.
    fn reconnect(&mut self, pair: usize, plan: &Pair) {
        let ids = self.pairs[pair];
        let over = |agent: &crate::AgentId| {
            let program = &self.programs[agent.0];
            program.state == State::Over || self.nodes[program.node.0].life != Life::Up
        };
        if ids.iter().any(over) {
            return;
        }
        for agent in ids {
            self.reset(agent);
        }
        self.pairs[pair] = self.create_pair_over(ids.map(Some), plan);
    }
}
