//! The simulated programs: one on each queue pair. It registers memory, posts receives, keeps requests outstanding,
//! reuses memory as soon as a completion says that it may (and fills it with rubbish first), and goes on or ends when
//! something fails. Everything it does is told to the checker before the endpoint hears of it. `lives.rs` is the begin and
//! the end of its queue pair, `requests.rs` what it asks for, `exchange.rs` what makes it wait for others.

mod exchange;
mod lives;
mod requests;

use std::collections::VecDeque;

use metaroce_proto::event::{ReceiveDone, SendDone};
use metaroce_proto::types::{Access, PdId, QpId, Receive, RqId, Sge, Status};
use metaroce_proto::wire::Qpn;
use rand::Rng;
use rand::rngs::SmallRng;

use crate::checker::{Look, PostedReceive};
use crate::content::Content;
use crate::memory::{HostView, Memory, RegionIndex, Span};
use crate::workload::Workload;
use crate::world::{Action, World};
use crate::{AgentId, NodeId};
use lives::SHARED_QUEUE;

/// Room around and between the pieces of a message in its slot.
const SLOT_EXTRA_BYTES: u32 = 1024;

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

impl World {
    // ---- Requests and receives ----

    /// Submits as many requests as may be outstanding.
    pub(crate) fn fill(&mut self, id: AgentId) {
        loop {
            let program = &self.programs[id.0];
            let pending = self.ledger.pending(id) as u32;
            match program.state {
                State::Running
                    if program.left > 0
                        && pending < program.workload.depth
                        && self.exchange_allows(id) =>
                {
                    if !self.submit_next(id) {
                        return;
                    }
                    self.note_exchange_submitted(id);
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
        if done.status == Status::RetryExceeded
            && let Some(agent) = self.ledger.agent_of(node, done.qp)
        {
            self.excuse_silence(agent);
        }
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
        self.on_exchange_arrived(owner);
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
