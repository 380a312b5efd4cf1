//! The contract of verbs, as a program may rely on it, and nothing of how it is kept. The ledger is told what the
//! programs ask for (before the endpoint is), what the endpoints do to memory, and what they report; the first thing
//! that contradicts is a violation, which ends the run.
//!
//! What is checked: every request completes exactly once, in order, with the status that it must have, and after a
//! failure the rest is flushed; every byte is in place when its completion is reported, earlier WRITEs included; no byte
//! outside of what a request in progress names is ever written or read; strict regions show the end of a WRITE last and
//! WRITEs in order; atomics happen once; receive completions are in order and right in all fields. Placing is checked in
//! `placing.rs`, completions in `completions.rs`. Apart from programs, what hosts grant one another is checked in `grants.rs`.

mod completions;
mod grants;
mod placing;
mod ranges;

use std::collections::{BTreeMap, HashMap, VecDeque};

use metaroce_proto::types::{QpId, RqId, Status, Time};
use metaroce_proto::wire::Qpn;

use crate::content::Content;
use crate::memory::{RegionIndex, Span};
use crate::{AgentId, NodeId};
pub use completions::Look;
pub use grants::{Grants, Host};
pub use ranges::Ranges;

/// Violations that are kept; the first one is what matters.
const VIOLATIONS_MAX: usize = 20;

/// What kind of message a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// SEND
    Send,
    /// SEND with immediate
    SendImm([u8; 4]),
    /// SEND with invalidate
    SendInv(u32),
    /// RDMA WRITE
    Write,
    /// RDMA WRITE with immediate
    WriteImm([u8; 4]),
    /// RDMA READ
    Read,
    /// Compare-and-swap or fetch-and-add
    Atomic,
}

impl Kind {
    /// It completes a receive of the peer.
    pub const fn consumes(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm(_) | Self::SendInv(_) | Self::WriteImm(_)
        )
    }

    /// It writes to memory that the requester names.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm(_))
    }
}

/// How a request must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// With success, unless something else fails the queue pair first.
    Success,
    /// With this status.
    Failure(Status),
    /// With success or with this status.
    Either(Status),
}

/// A send work request, as the program knows it.
#[derive(Clone, Debug)]
pub struct Message {
    /// Returned with its completion.
    pub cookie: u64,
    /// What it is.
    pub kind: Kind,
    /// Bytes.
    pub length: u32,
    /// What bytes: those that it carries, or of a READ those that it must find.
    pub content: Content,
    /// Solicited event asked for.
    pub solicited: bool,
    /// How it must end.
    pub expect: Expect,
    /// Memory of the requester that it reads.
    pub sources: Vec<Span>,
    /// Memory of the requester that it writes: the landing place of a READ or an atomic.
    pub landing: Vec<Span>,
    /// Memory of the responder that it writes.
    pub target: Option<Span>,
    /// What an atomic must find.
    pub found: Option<u64>,
}

/// A request that was submitted.
#[derive(Debug)]
struct Submitted {
    message: Message,
    at: Time,
    placed: Ranges,
    /// The receiver reported it.
    received: bool,
}

/// A receive that was posted.
#[derive(Clone, Debug)]
pub struct PostedReceive {
    /// Returned with its completion.
    pub cookie: u64,
    /// Where a message goes.
    pub spans: Vec<Span>,
}

#[derive(Debug, Default)]
struct Queue {
    shared: bool,
    /// Receives in the order of posting; done ones are `None`.
    posted: VecDeque<(PostedReceive, bool)>,
    /// Number of the first of `posted`.
    first: u64,
}

/// What the ledger knows of one life of a queue pair.
#[derive(Debug)]
pub struct Agent {
    node: NodeId,
    qp: QpId,
    qpn: Qpn,
    queue: (NodeId, RqId),
    peer: Option<AgentId>,
    peer_qpn: Qpn,
    submitted: Vec<Submitted>,
    /// Requests that completed.
    done: usize,
    /// Requests that consume a receive, by their place in `submitted`.
    consuming: Vec<usize>,
    /// Of these, how many the peer reported.
    received: usize,
    /// When the last one completed.
    last_done: Time,
    /// First WRITE of `submitted` that is perhaps not all in place.
    write_front: usize,
    /// First status that is no success.
    failed: Option<Status>,
    /// Statuses with which a request may fail although it should succeed: what scenarios provoke.
    may_fail: Vec<Status>,
    /// It must not fail at all any more: peer dead, or told to.
    reported_failure: bool,
    /// Nothing may be written for its peer any more: in error, reset or destroyed.
    ended: bool,
    /// It exists no more: nothing may be reported of it.
    gone: bool,
    /// Its process is gone, or about to be: it reports nothing.
    dead: bool,
    /// And so is its memory.
    memory_gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    /// Of a WRITE of this agent.
    Write { agent: AgentId, index: usize },
    /// Of a READ or atomic of this agent.
    Landing { agent: AgentId, index: usize },
    /// Of a receive.
    Receive { queue: (NodeId, RqId), number: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Window {
    end: u64,
    target: Target,
    /// Of its first byte in the message.
    offset: u32,
}

#[derive(Debug, Default)]
struct NodeMemory {
    /// Memory that may be written now.
    windows: BTreeMap<(RegionIndex, u64), Window>,
    /// Memory that may be read by sends now: ends and how many requests name it.
    sources: BTreeMap<(RegionIndex, u64, u64), u32>,
    /// Of these the ones that were asked for last, as long as nothing has changed.
    last_window: Option<((RegionIndex, u64), Window)>,
    last_source: Option<(RegionIndex, u64, u64)>,
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct Ledger {
    agents: Vec<Agent>,
    by_qp: HashMap<(NodeId, QpId), AgentId>,
    queues: HashMap<(NodeId, RqId), Queue>,
    /// By node.
    memories: Vec<NodeMemory>,
    violations: Vec<String>,
    /// Peers forge: see [`Ledger::break_down`].
    lenient: bool,
    /// Memory holds nothing: see [`Ledger::ignore_contents`].
    ignores_contents: bool,
    /// Payload bytes of requests that ended with success.
    completed_bytes: u64,
    /// Bytes that endpoints wrote to memory.
    placed_bytes: u64,
    completed: u64,
    longest_wait_ns: u64,
}

impl Ledger {
    /// Something contradicts the contract.
    pub fn violate(&mut self, now: Time, what: String) {
        if !self.lenient {
            self.break_down(now, what);
        }
    }

    /// Only what [`Ledger::break_down`] is told counts from now on: packets are forged, and a peer that reads and forges
    /// them can make anything look done, refused or gone.
    pub fn be_lenient(&mut self) {
        self.lenient = true;
    }

    /// Payloads are not carried: where they are placed counts, and not which bytes.
    pub fn ignore_contents(&mut self) {
        self.ignores_contents = true;
    }

    /// Something contradicts what an endpoint owes to itself, whatever its peers send: each request completes at most once
    /// and in order, nothing is reported of what is gone, it comes to rest, its trains are well formed.
    pub fn break_down(&mut self, now: Time, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(format!("{now:?} {what}"));
        }
    }

    /// What was found.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Payload bytes of requests that ended with success.
    pub fn completed_bytes(&self) -> u64 {
        self.completed_bytes
    }

    /// Bytes that endpoints wrote to memory so far.
    pub fn placed_bytes(&self) -> u64 {
        self.placed_bytes
    }

    /// Requests that completed, receives not counted.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// The longest time that a request which succeeded was the oldest of its queue pair.
    pub fn longest_wait_ns(&self) -> u64 {
        self.longest_wait_ns
    }

    // ---- What programs do ----

    /// A receive queue exists; one that is not shared begins anew with each life of its queue pair.
    pub fn create_queue(&mut self, node: NodeId, queue: RqId, shared: bool) {
        let known = self.queues.entry((node, queue)).or_default();
        if !shared {
            *known = Queue::default();
        }
        known.shared = shared;
    }

    /// A queue pair begins a life.
    pub fn create_agent(&mut self, node: NodeId, qp: QpId, qpn: Qpn, queue: RqId) -> AgentId {
        let id = AgentId(self.agents.len());
        self.by_qp.insert((node, qp), id);
        self.agents.push(Agent {
            node,
            qp,
            qpn,
            queue: (node, queue),
            peer: None,
            peer_qpn: Qpn::ZERO,
            submitted: Vec::new(),
            done: 0,
            consuming: Vec::new(),
            received: 0,
            last_done: Time::ZERO,
            write_front: 0,
            failed: None,
            may_fail: Vec::new(),
            reported_failure: false,
            ended: false,
            gone: false,
            dead: false,
            memory_gone: false,
        });
        id
    }

    /// Two lives are connected.
    pub fn pair(&mut self, a: AgentId, b: AgentId) {
        for (this, other) in [(a, b), (b, a)] {
            let qpn = self.agents[other.0].qpn;
            self.agents[this.0].peer = Some(other);
            self.agents[this.0].peer_qpn = qpn;
        }
    }

    /// The agent of a queue pair.
    pub fn agent_of(&self, node: NodeId, qp: QpId) -> Option<AgentId> {
        self.by_qp.get(&(node, qp)).copied()
    }

    /// A request of `agent` may end with `status` although it was meant to succeed.
    pub fn allow(&mut self, agent: AgentId, status: Status) {
        let allowed = &mut self.agents[agent.0].may_fail;
        if !allowed.contains(&status) {
            allowed.push(status);
        }
    }

    /// A request is about to be submitted. Returns its place in the order.
    pub fn submit(&mut self, now: Time, id: AgentId, message: Message) -> usize {
        let agent = &mut self.agents[id.0];
        let index = agent.submitted.len();
        let (node, peer) = (agent.node, agent.peer);
        if message.kind.consumes() {
            agent.consuming.push(index);
        }
        let memory = self.memory(node);
        for source in &message.sources {
            let key = (
                source.region,
                source.addr,
                source.addr + u64::from(source.length),
            );
            *memory.sources.entry(key).or_default() += 1;
        }
        self.open_windows(node, &message.landing, Target::Landing { agent: id, index });
        // Nothing may ever be written for a peer whose memory is gone.
        let peer = peer.filter(|peer| !self.agents[peer.0].memory_gone);
        if let (Some(target), Some(peer)) = (message.target, peer) {
            let peer_node = self.agents[peer.0].node;
            self.open_windows(peer_node, &[target], Target::Write { agent: id, index });
        }
        self.agents[id.0].submitted.push(Submitted {
            message,
            at: now,
            placed: Ranges::default(),
            received: false,
        });
        index
    }

    /// A receive is about to be posted.
    pub fn post_receive(&mut self, node: NodeId, queue: RqId, receive: PostedReceive) {
        let posted = self.queues.entry((node, queue)).or_default();
        let number = posted.first + posted.posted.len() as u64;
        posted.posted.push_back((receive.clone(), false));
        self.open_windows(
            node,
            &receive.spans,
            Target::Receive {
                queue: (node, queue),
                number,
            },
        );
    }

    /// The program took a queue pair to the error state: its requests are flushed, and nothing is written for its peer
    /// any more.
    pub fn fail_by_program(&mut self, id: AgentId) {
        self.allow(id, Status::Flushed);
        self.agents[id.0].ended = true;
    }

    /// The programs of a node are gone, with their memory unless the endpoint still says goodbye. `abrupt`: what their
    /// peers have outstanding fails.
    pub fn kill(&mut self, node: NodeId, abrupt: bool, keep_memory: bool) {
        for at in 0..self.agents.len() {
            if self.agents[at].node == node && !keep_memory {
                self.agents[at].memory_gone = true;
            }
            if self.agents[at].node == node && !self.agents[at].dead {
                self.agents[at].dead = true;
                self.by_qp.remove(&(node, self.agents[at].qp));
                if let Some(peer) = self.agents[at].peer.filter(|_| abrupt) {
                    self.allow(peer, Status::RetryExceeded);
                }
            }
        }
        if !keep_memory {
            *self.memory(node) = NodeMemory::default();
            self.queues.retain(|key, _| key.0 != node);
        }
    }

    /// A life is over, by RESET or with its queue pair: nothing is reported of it any more.
    pub fn forget(&mut self, id: AgentId) {
        let agent = &mut self.agents[id.0];
        agent.gone = true;
        agent.ended = true;
        let key = (agent.node, agent.qp);
        self.by_qp.remove(&key);
    }

    // ---- Questions ----

    /// Requests that were submitted and did not complete.
    pub fn pending(&self, id: AgentId) -> usize {
        let agent = &self.agents[id.0];
        agent.submitted.len() - agent.done
    }

    /// Requests that were submitted not later than `at` and did not complete.
    pub fn pending_since(&self, id: AgentId, at: Time) -> usize {
        let agent = &self.agents[id.0];
        agent.submitted[agent.done..]
            .iter()
            .filter(|submitted| submitted.at <= at)
            .count()
    }

    /// When a request of `id` was submitted.
    pub fn submitted_at(&self, id: AgentId, index: usize) -> Time {
        self.agents[id.0].submitted[index].at
    }

    /// Bytes of a request of `id`.
    pub fn length(&self, id: AgentId, index: usize) -> u32 {
        self.agents[id.0].submitted[index].message.length
    }

    /// Whether `id` waits for the answer to a READ or an atomic.
    pub fn awaits_answers(&self, id: AgentId) -> bool {
        let agent = &self.agents[id.0];
        let answered =
            |submitted: &Submitted| matches!(submitted.message.kind, Kind::Read | Kind::Atomic);
        agent.submitted[agent.done..].iter().any(answered)
    }

    /// Messages of the peer that `id` reported as received.
    pub fn received(&self, id: AgentId) -> usize {
        self.agents[id.0]
            .peer
            .map_or(0, |peer| self.agents[peer.0].received)
    }

    /// Messages that `id` submitted and that the peer reports.
    pub fn consuming(&self, id: AgentId) -> usize {
        self.agents[id.0].consuming.len()
    }

    /// The first status of a request of `id` that is no success.
    pub fn failed(&self, id: AgentId) -> Option<Status> {
        self.agents[id.0].failed
    }

    /// Every life: what it still waits for, for the report of a hang.
    pub fn describe(&self, id: AgentId) -> String {
        let agent = &self.agents[id.0];
        let oldest = agent.submitted.get(agent.done).map(|oldest| {
            let message = &oldest.message;
            format!(
                ", oldest {:?} of {} bytes since {:?} ({} placed, received {})",
                message.kind,
                message.length,
                oldest.at,
                oldest.placed.total(),
                oldest.received
            )
        });
        format!(
            "{id} ({} {:?} qpn {}): {} of {} requests done, peer reported {} of {}{}{}",
            agent.node,
            agent.qp,
            agent.qpn,
            agent.done,
            agent.submitted.len(),
            agent.received,
            agent.consuming.len(),
            oldest.unwrap_or_default(),
            agent
                .failed
                .map(|status| format!(", failed with {status:?}"))
                .unwrap_or_default(),
        )
    }
}
