//! Begin and end of a simulated program's queue pair: created with its memory, connected, reset, failed or destroyed.

use std::collections::VecDeque;

use metaroce_proto::types::{Access, ConnectParams, PdId, QpConfig, RqId, SendParams};
use metaroce_proto::wire::Gid;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::{Pair, Pool, Program, State};
use crate::AgentId;
use crate::content::Content;
use crate::memory::HostView;
use crate::network::address;
use crate::node::Life;
use crate::workload::Ending;
use crate::world::{Action, World};

/// Shared receive queue of a node, and the first of the others.
pub(super) const SHARED_QUEUE: RqId = RqId(0);

/// Requests that a program posts to a queue pair that failed, to see them flushed.
const POSTS_AFTER_FAILURE: u32 = 2;

impl World {
    /// Creates a pair of connected queue pairs; they start to connect by themselves. Returns the two agents.
    pub(crate) fn create_pair(&mut self, pair: &Pair) -> [AgentId; 2] {
        self.create_pair_over([None, None], pair)
    }

    /// The same, on queue pairs that were reset if they are given.
    pub(crate) fn create_pair_over(
        &mut self,
        old: [Option<AgentId>; 2],
        pair: &Pair,
    ) -> [AgentId; 2] {
        let first = AgentId(self.programs.len());
        let ids = [first, AgentId(first.0 + 1)];
        for (side, old) in old.into_iter().enumerate() {
            self.create_program(pair, side, ids, old);
        }
        self.ledger.pair(ids[0], ids[1]);
        for id in ids {
            let workload = &self.programs[id.0].workload;
            let (start_ns, first) = (workload.start_ns, workload.first_receives);
            let (later, later_ns) = (
                workload.receives.saturating_sub(first),
                workload.receive_delay_ns + 100_000,
            );
            let delay_ns = if start_ns > 0 {
                self.rng.random_range(0..=start_ns)
            } else {
                0
            };
            self.schedule_action(delay_ns, id, Action::Connect);
            self.post_receives(id, first);
            if later > 0 {
                let delay_ns = self.rng.random_range(0..=later_ns);
                self.schedule_action(delay_ns, id, Action::Post(later));
            }
        }
        ids
    }

    fn create_program(
        &mut self,
        pair: &Pair,
        side: usize,
        ids: [AgentId; 2],
        old: Option<AgentId>,
    ) {
        let seed = self.rng.next_u64();
        let node_id = pair.nodes[side];
        let (mine, theirs) = (&pair.workloads[side], &pair.workloads[1 - side]);
        let pd = PdId(node_id.0 as u32 + 1);
        let old = old
            .map(|old| &self.programs[old.0])
            .map(|old| (old.qp, old.qpn, old.queue));
        let node = &mut self.nodes[node_id.0];
        let (qp, qpn, queue) = old.unwrap_or_else(|| {
            let queue = if pair.shared {
                SHARED_QUEUE
            } else {
                RqId(1 + ids[side].0 as u32)
            };
            let config = QpConfig {
                pd,
                receive_queue: queue,
                shared_receive_queue: pair.shared,
            };
            let (qp, qpn) = node
                .endpoint
                .create_qp(config)
                .unwrap_or_else(|error| panic!("{node_id}: {error}"));
            (qp, qpn, queue)
        });
        let memory = &mut node.memory;
        let local = Access::LOCAL_WRITE;
        let remote = Access(Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0 | Access::REMOTE_READ.0);
        let relaxed = Access(remote.0 | Access::RELAXED_ORDERING.0);
        let pools = vec![
            Pool::new(memory, pd, local, mine.depth + 2, mine.max_bytes),
            Pool::new(memory, pd, local, mine.depth + 2, mine.max_bytes),
            Pool::new(memory, pd, local, mine.receives + 2, theirs.max_bytes),
            Pool::new(memory, pd, relaxed, theirs.depth + 2, theirs.max_bytes),
            Pool::new(memory, pd, remote, theirs.depth + 2, theirs.max_bytes),
        ];
        let readable_bytes = 2 * theirs.max_bytes + 64;
        let readable = memory.register(
            pd,
            readable_bytes,
            Access(Access::LOCAL_WRITE.0 | Access::REMOTE_READ.0),
        );
        let content = Content::new(seed);
        let (base, carried) = (memory.base(readable), !memory.is_hollow());
        if let Some(bytes) = memory
            .bytes_mut(readable, base, u64::from(readable_bytes))
            .filter(|_| carried)
        {
            bytes.copy_from_slice(content.bytes(0, readable_bytes));
        }
        let forbidden = memory.register(
            pd,
            4096,
            Access(Access::LOCAL_WRITE.0 | Access::REMOTE_READ.0),
        );
        let foreign = memory.register(PdId(u32::MAX), 4096, remote);
        let cells = memory.register(pd, 64, Access(remote.0 | Access::REMOTE_ATOMIC.0));
        self.ledger.create_queue(node_id, queue, pair.shared);
        let agent = self.ledger.create_agent(node_id, qp, qpn, queue);
        debug_assert_eq!(agent, ids[side], "agents and programs go together");
        self.programs.push(Program {
            node: node_id,
            qp,
            qpn,
            queue,
            peer: ids[1 - side],
            workload: mine.clone(),
            state: State::Starting,
            left: mine.messages,
            rng: SmallRng::seed_from_u64(seed),
            leases: VecDeque::new(),
            pools,
            readable: (readable, content, readable_bytes),
            forbidden,
            foreign,
            cells,
            peer_cell: 0,
            posts_after_failure: POSTS_AFTER_FAILURE,
        });
    }

    /// Does what a program planned.
    pub(crate) fn act(&mut self, id: AgentId, action: Action) {
        let node = self.programs[id.0].node;
        if !matches!(self.nodes[node.0].life, Life::Up) || self.programs[id.0].state == State::Over
        {
            return;
        }
        match action {
            Action::Connect => self.connect(id),
            Action::Enable => self.enable(id),
            Action::Submit => self.fill(id),
            Action::Begin => self.begin_exchange(id),
            Action::Post(count) => self.post_receives(id, count),
        }
    }

    fn connect(&mut self, id: AgentId) {
        let program = &self.programs[id.0];
        let peer = &self.programs[program.peer.0];
        let params = ConnectParams {
            source_gid: Gid::from_ip(address(program.node, 0)),
            dest_gid: Gid::from_ip(address(peer.node, 0)),
            dest_qpn: peer.qpn,
            rq_psn: 0,
            max_dest_rd_atomic: peer.workload.rd_atomic,
            min_rnr_timer: program.workload.min_rnr_timer,
            access: Access(0xf),
        };
        let (node, qp, start_ns) = (program.node, program.qp, program.workload.start_ns);
        let idle_ns = program.workload.idle_ns;
        if let Err(error) = self.nodes[node.0]
            .endpoint
            .connect_qp(self.now, qp, &params)
        {
            self.ledger
                .violate(self.now, format!("{id}: cannot be connected: {error}"));
        }
        let delay_ns = if start_ns > 0 {
            self.rng.random_range(0..=start_ns / 4)
        } else {
            0
        };
        let idle_ns = if idle_ns > 0 {
            self.rng.random_range(0..=idle_ns)
        } else {
            0
        };
        self.schedule_action(delay_ns + idle_ns, id, Action::Enable);
        self.wake(node, self.now);
    }

    fn enable(&mut self, id: AgentId) {
        let program = &mut self.programs[id.0];
        let workload = &program.workload;
        let params = SendParams {
            sq_psn: 0,
            timeout: workload.timeout,
            retry_count: workload.retry_count,
            rnr_retry: workload.rnr_retry,
            max_rd_atomic: workload.rd_atomic,
        };
        // The peer may have failed it meanwhile.
        if program.state == State::Starting {
            program.state = State::Running;
        }
        let (node, qp) = (program.node, program.qp);
        self.nodes[node.0]
            .endpoint
            .enable_send(self.now, qp, &params);
        self.fill(id);
    }

    /// Whether `id` did all that it wanted to, received all that its peer wants to send, and owes it no answer.
    pub(super) fn is_satisfied(&self, id: AgentId) -> bool {
        let program = &self.programs[id.0];
        let peer = &self.programs[program.peer.0];
        program.state == State::Running
            && program.left == 0
            && peer.left == 0
            && self.ledger.pending(id) == 0
            && !self.ledger.awaits_answers(program.peer)
            && self.ledger.received(id) == self.ledger.consuming(program.peer)
    }

    pub(super) fn end_if_satisfied(&mut self, id: AgentId) {
        match self.programs[id.0].workload.ending {
            Ending::Stay => {}
            Ending::Destroy => {
                if self.is_satisfied(id) {
                    self.destroy(id);
                }
            }
            Ending::Exit => {
                let node = self.programs[id.0].node;
                let own = (0..self.programs.len()).filter(|at| self.programs[*at].node == node);
                if own.map(AgentId).all(|other| self.is_satisfied(other)) {
                    self.close_node(node, false);
                }
            }
        }
    }

    /// The program destroys its queue pair: everything outstanding completes before that returns.
    pub(crate) fn destroy(&mut self, id: AgentId) {
        let (node, qp) = (self.programs[id.0].node, self.programs[id.0].qp);
        if self.programs[id.0].state == State::Over || self.nodes[node.0].life != Life::Up {
            return;
        }
        self.programs[id.0].state = State::Over;
        self.ledger.fail_by_program(id);
        let host_node = &mut self.nodes[node.0];
        let mut host = HostView {
            node,
            now: self.now,
            memory: &mut host_node.memory,
            ledger: &mut self.ledger,
        };
        host_node.endpoint.destroy_qp(self.now, qp, &mut host);
        self.poll_events(node);
        let pending = self.ledger.pending(id);
        if pending > 0 {
            self.ledger.violate(
                self.now,
                format!("{id}: destroyed, but {pending} requests did not complete"),
            );
        }
        self.flush_receives(id);
        self.ledger.forget(id);
        self.wake(node, self.now);
    }

    /// The program takes its queue pair to the error state.
    pub(crate) fn fail(&mut self, id: AgentId) {
        let (node, qp) = (self.programs[id.0].node, self.programs[id.0].qp);
        if !matches!(self.programs[id.0].state, State::Running)
            || self.nodes[node.0].life != Life::Up
        {
            return;
        }
        self.programs[id.0].state = State::Failed;
        self.ledger.fail_by_program(id);
        let host_node = &mut self.nodes[node.0];
        let mut host = HostView {
            node,
            now: self.now,
            memory: &mut host_node.memory,
            ledger: &mut self.ledger,
        };
        host_node.endpoint.fail_qp(self.now, qp, &mut host);
        self.poll_events(node);
        let pending = self.ledger.pending(id);
        if pending > 0 {
            self.ledger.violate(
                self.now,
                format!("{id}: in error, but {pending} requests were not flushed"),
            );
        }
        self.flush_receives(id);
        self.fill(id);
        self.wake(node, self.now);
    }

    /// The program resets its queue pair: its requests and receives vanish.
    pub(crate) fn reset(&mut self, id: AgentId) {
        let (node, qp) = (self.programs[id.0].node, self.programs[id.0].qp);
        if self.programs[id.0].state == State::Over || self.nodes[node.0].life != Life::Up {
            return;
        }
        let host_node = &mut self.nodes[node.0];
        let mut host = HostView {
            node,
            now: self.now,
            memory: &mut host_node.memory,
            ledger: &mut self.ledger,
        };
        host_node.endpoint.reset_qp(self.now, qp, &mut host);
        self.poll_events(node);
        self.programs[id.0].state = State::Over;
        self.flush_receives(id);
        self.ledger.forget(id);
        self.wake(node, self.now);
    }
}
