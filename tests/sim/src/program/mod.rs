//! The simulated programs: one on each queue pair. It registers memory, posts receives, keeps requests outstanding,
//! reuses memory as soon as a completion says that it may (and fills it with rubbish first), and goes on or ends when
//! something fails. Everything it does is told to the checker before the endpoint hears of it.

mod requests;

use std::collections::VecDeque;

use metaroce_proto::event::{ReceiveDone, SendDone};
use metaroce_proto::types::{
    Access, ConnectParams, PdId, QpConfig, QpId, Receive, RqId, SendParams, Sge, Status,
};
use metaroce_proto::wire::{Gid, Qpn};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::checker::{Look, PostedReceive};
use crate::content::Content;
use crate::memory::{HostView, Memory, RegionIndex, Span};
use crate::network::address;
use crate::node::Life;
use crate::workload::{Ending, Workload};
use crate::world::{Action, World};
use crate::{AgentId, NodeId};

/// Room around and between the pieces of a message in its slot.
const SLOT_EXTRA_BYTES: u32 = 1024;

/// Requests that a program posts to a queue pair that failed, to see them flushed.
const POSTS_AFTER_FAILURE: u32 = 2;

/// What a slot of memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PoolKind {
    /// Bytes to send.
    Source,
    /// Answers of READs and atomics.
    Landing,
    /// Receives.
    Receive,
    /// Target of the peer's WRITEs, relaxed ordering.
    Relaxed,
    /// Target of the peer's WRITEs, classic ordering.
    Strict,
}

/// A region that is given out in slots of equal size.
#[derive(Debug)]
struct Pool {
    region: RegionIndex,
    base: u64,
    slot_bytes: u32,
    free: Vec<u32>,
}

/// A slot that is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    owner: AgentId,
    pool: PoolKind,
    slot: u32,
}

/// How far a program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Its queue pair is not connected.
    Starting,
    /// At work.
    Running,
    /// Its queue pair is in the error state.
    Failed,
    /// It has no queue pair any more.
    Over,
}

/// A program; see the file's head.
#[derive(Debug)]
pub struct Program {
    pub(crate) node: NodeId,
    pub(crate) qp: QpId,
    pub(crate) qpn: Qpn,
    pub(crate) queue: RqId,
    pub(crate) peer: AgentId,
    pub(crate) workload: Workload,
    pub(crate) state: State,
    /// Requests not yet submitted.
    pub(crate) left: u32,
    rng: SmallRng,
    /// Of the outstanding requests, oldest first.
    leases: VecDeque<Vec<Lease>>,
    pools: Vec<Pool>,
    /// What the peer may read, and what is in it.
    readable: (RegionIndex, Content, u32),
    /// What nobody may write: read-only, of another protection domain.
    forbidden: RegionIndex,
    foreign: RegionIndex,
    /// Eight bytes for the peer's atomics, and what our own atomics must have made of the peer's.
    cells: RegionIndex,
    peer_cell: u64,
    posts_after_failure: u32,
}

/// The two ends of a pair, and what they do.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Nodes; may be the same.
    pub nodes: [NodeId; 2],
    /// What each end does.
    pub workloads: [Workload; 2],
    /// Receives come from the node's shared queue.
    pub shared: bool,
}

/// Shared receive queue of a node, and the first of the others.
const SHARED_QUEUE: RqId = RqId(0);

impl World {
    // ---- Begin ----

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

    // ---- Requests and receives ----

    /// Submits as many requests as may be outstanding.
    pub(crate) fn fill(&mut self, id: AgentId) {
        loop {
            let program = &self.programs[id.0];
            let pending = self.ledger.pending(id) as u32;
            match program.state {
                State::Running if program.left > 0 && pending < program.workload.depth => {
                    if !self.submit_next(id) {
                        return;
                    }
                }
                State::Failed if program.posts_after_failure > 0 && program.left > 0 => {
                    self.programs[id.0].posts_after_failure -= 1;
                    self.submit_next(id);
                }
                _ => return,
            }
        }
    }

    /// Posts `count` receives of `id`, as far as it has memory for them.
    pub(crate) fn post_receives(&mut self, id: AgentId, count: u32) {
        if matches!(self.programs[id.0].state, State::Failed | State::Over) {
            return;
        }
        for _ in 0..count {
            let Some(lease) = self.lease(id, PoolKind::Receive) else {
                break;
            };
            let bytes = self.programs[self.programs[id.0].peer.0].workload.max_bytes;
            let sges = self.programs[id.0].workload.sges;
            let spans = self.scatter(id, lease, bytes, sges);
            self.next_cookie += 1;
            let cookie = 1 << 63 | self.next_cookie;
            let (node, queue) = (self.programs[id.0].node, self.programs[id.0].queue);
            self.receive_leases.insert(cookie, lease);
            let entries = spans.iter().map(sge).collect();
            self.ledger
                .post_receive(node, queue, PostedReceive { cookie, spans });
            self.nodes[node.0].memory.post(
                queue,
                Receive {
                    cookie,
                    sges: entries,
                },
            );
        }
        let (node, queue) = (self.programs[id.0].node, self.programs[id.0].queue);
        let sharers: Vec<QpId> = self
            .programs
            .iter()
            .filter(|program| {
                program.node == node && program.queue == queue && program.state != State::Over
            })
            .map(|program| program.qp)
            .collect();
        for qp in sharers {
            let node = &mut self.nodes[node.0];
            if node.endpoint.wants_receive_notice(qp) {
                let mut host = HostView {
                    node: node.id,
                    now: self.now,
                    memory: &mut node.memory,
                    ledger: &mut self.ledger,
                };
                node.endpoint.receives_posted(self.now, qp, &mut host);
            }
        }
        self.wake(node, self.now);
    }

    // ---- Completions ----

    /// A send completion was polled.
    pub(crate) fn on_send_done(&mut self, node: NodeId, done: &SendDone) {
        let look = Look {
            node,
            memory: &self.nodes[node.0].memory,
        };
        let Some((id, index)) = self.ledger.send_done(self.now, &look, done) else {
            return;
        };
        if done.status == Status::Success {
            self.note_completion(id, index);
        }
        let leases = self.programs[id.0].leases.pop_front().unwrap_or_default();
        for lease in leases {
            if done.status == Status::Success || lease.owner == id {
                self.release(lease);
            }
        }
        let program = &mut self.programs[id.0];
        if done.status != Status::Success
            && matches!(program.state, State::Running | State::Starting)
        {
            program.state = State::Failed;
        }
        let think_ns = program.workload.think_ns;
        if program.state == State::Failed {
            // What follows is posted when the failure was reported: see `on_failed`.
        } else if think_ns == 0 {
            self.fill(id);
        } else {
            let delay_ns = self.programs[id.0].rng.random_range(0..=think_ns);
            self.schedule_action(delay_ns, id, Action::Submit);
        }
        self.end_if_satisfied(id);
        let peer = self.programs[id.0].peer;
        self.end_if_satisfied(peer);
    }

    /// A receive completion was polled.
    pub(crate) fn on_receive_done(&mut self, node: NodeId, done: &ReceiveDone) {
        let look = Look {
            node,
            memory: &self.nodes[node.0].memory,
        };
        let Some((id, receive)) = self.ledger.receive_done(self.now, &look, done) else {
            return;
        };
        let Some(lease) = self.receive_leases.remove(&receive.cookie) else {
            return;
        };
        self.release(lease);
        if done.status == Status::Flushed {
            return;
        }
        let owner = lease.owner;
        let delay_ns = self.programs[owner.0].workload.receive_delay_ns;
        if delay_ns == 0 {
            self.post_receives(owner, 1);
        } else {
            let delay_ns = self.programs[owner.0].rng.random_range(0..=delay_ns);
            self.schedule_action(delay_ns, owner, Action::Post(1));
        }
        self.end_if_satisfied(id);
    }

    /// A queue pair failed by itself.
    pub(crate) fn on_failed(&mut self, node: NodeId, qp: QpId) -> Option<AgentId> {
        let id = self.ledger.qp_failed(self.now, node, qp)?;
        self.ledger.allow(id, Status::Flushed);
        self.flush_receives(id);
        if self.programs[id.0].state != State::Over {
            self.programs[id.0].state = State::Failed;
            self.fill(id);
        }
        Some(id)
    }

    /// What the verbs layer does when a queue pair is in the error state: what is posted and not taken is flushed.
    pub(crate) fn flush_receives(&mut self, id: AgentId) {
        let program = &self.programs[id.0];
        if program.queue == SHARED_QUEUE {
            return;
        }
        let (node, queue) = (program.node, program.queue);
        self.ledger.flush_receives(id);
        for receive in self.nodes[node.0].memory.clear_queue(queue) {
            if let Some(lease) = self.receive_leases.remove(&receive.cookie) {
                self.release(lease);
            }
        }
    }

    // ---- End ----

    /// Whether `id` did all that it wanted to, received all that its peer wants to send, and owes it no answer.
    fn is_satisfied(&self, id: AgentId) -> bool {
        let program = &self.programs[id.0];
        let peer = &self.programs[program.peer.0];
        program.state == State::Running
            && program.left == 0
            && peer.left == 0
            && self.ledger.pending(id) == 0
            && !self.ledger.awaits_answers(program.peer)
            && self.ledger.received(id) == self.ledger.consuming(program.peer)
    }

    fn end_if_satisfied(&mut self, id: AgentId) {
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

    // ---- Memory ----

    pub(crate) fn lease(&mut self, owner: AgentId, pool: PoolKind) -> Option<Lease> {
        let program = &mut self.programs[owner.0];
        let free = &mut program.pools[pool as usize].free;
        if free.is_empty() {
            return None;
        }
        let at = program.rng.random_range(0..free.len());
        Some(Lease {
            owner,
            pool,
            slot: free.swap_remove(at),
        })
    }

    /// Gives a slot back, full of rubbish: whoever still reads it will be found out.
    fn release(&mut self, lease: Lease) {
        let program = &mut self.programs[lease.owner.0];
        let pool = &mut program.pools[lease.pool as usize];
        pool.free.push(lease.slot);
        let (region, start, length) = (
            pool.region,
            pool.start(lease.slot),
            u64::from(pool.slot_bytes),
        );
        let memory = &mut self.nodes[program.node.0].memory;
        let hollow = memory.is_hollow();
        if let Some(bytes) = memory.bytes_mut(region, start, length).filter(|_| !hollow) {
            bytes.fill(0xee);
        }
    }

    /// Divides `bytes` at random into up to `most` pieces of the slot, with gaps.
    pub(crate) fn scatter(
        &mut self,
        id: AgentId,
        lease: Lease,
        bytes: u32,
        most: u32,
    ) -> Vec<Span> {
        let pool = &self.programs[lease.owner.0].pools[lease.pool as usize];
        let (region, start) = (pool.region, pool.start(lease.slot));
        let rng = &mut self.programs[id.0].rng;
        let count = rng.random_range(1..=most.clamp(1, bytes.max(1)));
        let mut cuts: Vec<u32> = (1..count).map(|_| rng.random_range(0..=bytes)).collect();
        cuts.push(bytes);
        cuts.sort_unstable();
        let (mut spans, mut done) = (Vec::new(), 0);
        let mut addr = start + u64::from(rng.random_range(0..16u32));
        for cut in cuts {
            let length = cut - done;
            if length > 0 {
                spans.push(Span {
                    region,
                    addr,
                    length,
                });
                addr += u64::from(length + rng.random_range(0..16));
                done = cut;
            }
        }
        spans
    }
}

impl Pool {
    fn new(memory: &mut Memory, pd: PdId, access: Access, slots: u32, bytes: u32) -> Self {
        let slot_bytes = bytes + SLOT_EXTRA_BYTES;
        let region = memory.register(pd, slots * slot_bytes, access);
        Self {
            region,
            base: memory.base(region),
            slot_bytes,
            free: (0..slots).collect(),
        }
    }

    fn start(&self, slot: u32) -> u64 {
        self.base + u64::from(slot) * u64::from(self.slot_bytes)
    }
}

pub(crate) fn sge(span: &Span) -> Sge {
    Sge {
        addr: span.addr,
        length: span.length,
        lkey: Memory::lkey(span.region),
    }
}
