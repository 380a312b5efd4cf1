//! A model of RoCEv2 NICs in the same fabric, to compare with: one queue pair a flow, one UDP source port and so one way
//! through the fabric, go-back-N (`flow.rs`), DCQCN (`dcqcn.rs`), lossy or with queues that never drop, as under PFC (without
//! the pauses of others' traffic that PFC brings). Links, queues, marks, ways and losses are those of `fabric`, and what is
//! exchanged is an [`Exchange`]; begin with [`run`].
//!
//! It is a fair opponent: no time is taken by hosts, connections exist before the start, flows begin at the rate of the line,
//! acknowledgements are sparse, notifications and acknowledgements go before data, and a timeout is far shorter than NICs
//! have it.

mod dcqcn;
mod flow;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use metaroce_proto::types::{SourceSlot, Time};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::NodeId;
use crate::exchange::{Exchange, Passed, Progress};
use crate::fabric::{Change, Fabric, FabricConfig, Hop, Links, Next};
use crate::network::{Datagram, LOWER_BYTES, address};
pub use dcqcn::{Dcqcn, DcqcnConfig};
use flow::{ACK_BYTES, CNP_BYTES, Packet, Receiver, Sender};

/// Payload of a full packet: the largest MTU that RoCE has.
pub const PAYLOAD_BYTES: u32 = 4096;

/// UDP port of RoCEv2.
const PORT: u16 = 4791;

/// A NIC hands its link the next packet when less than this is left: it never runs dry, and flows take turns.
const NIC_BYTES: u64 = 2 * (PAYLOAD_BYTES as u64 + 100);

/// Pace that a flow was kept from by others of its host it may catch up with, a packet's worth.
const CATCH_UP_PS: u64 = 340_000;

/// Below this part of the line's rate a flow is slow.
const SLOW_PART: f64 = 1.0 / 16.0;

const PS_PER_NS: u64 = 1_000;

/// What is run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Everything random comes from it: ports of flows, salts of switches, losses.
    pub seed: u64,
    /// Links and switches.
    pub fabric: FabricConfig,
    /// What happens to links, ns after the start.
    pub changes: Vec<(u64, Links, Change)>,
    /// Congestion control.
    pub dcqcn: DcqcnConfig,
    /// A receiver tells the sender of congestion at most once in this time.
    pub cnp_interval_ns: u64,
    /// Without any progress for so long a flow begins again with the first packet that is not acknowledged. NICs wait
    /// for milliseconds at least.
    pub timeout_ns: u64,
    /// Timeouts in a row that a flow survives (`retry_cnt`).
    pub retries: u32,
    /// Not done by then is never done.
    pub limit_ns: u64,
}

impl Setting {
    /// The published parameters; see [`DcqcnConfig`] for the one that is not.
    #[must_use]
    pub fn new(seed: u64, fabric: FabricConfig) -> Self {
        Self {
            seed,
            fabric,
            changes: Vec::new(),
            dcqcn: DcqcnConfig::default(),
            cnp_interval_ns: 50_000,
            timeout_ns: 500_000,
            retries: 7,
            limit_ns: 2_000_000_000,
        }
    }

    /// The same with queues that never drop.
    #[must_use]
    pub fn with_endless_queues(mut self) -> Self {
        self.fabric.to_host.queue_bytes = u64::MAX;
        self.fabric.between.queue_bytes = u64::MAX;
        self
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// All messages, in the order of submission.
    pub passed: Vec<Passed>,
    /// Everything arrived.
    pub done: bool,
    /// Packets sent, all kinds.
    pub packets: u64,
    /// Data packets sent again.
    pub retransmissions: u64,
    /// Times that a flow began again because it heard nothing.
    pub timeouts: u64,
    /// Notifications of congestion.
    pub notifications: u64,
    /// Flows that gave up.
    pub failed: usize,
    /// Packets that queues dropped.
    pub overflows: u64,
}

/// Runs an exchange to its end, or until no flow goes on, or until the limit.
#[must_use]
pub fn run(setting: &Setting, exchange: &Exchange) -> Outcome {
    let mut nics = Nics::new(setting, exchange);
    let limit = Time::from_ns(setting.limit_ns);
    while !nics.progress.is_done() {
        match nics.heap.peek() {
            Some(Reverse((at, _, _))) if *at <= limit => nics.step(),
            _ => break,
        }
    }
    nics.outcome()
}

#[derive(Debug)]
enum What {
    Begin,
    Hop(Hop, usize, Packet, Datagram),
    /// A host's turn to send.
    Turn(usize),
    Timer(usize),
    Change(Links, Change),
}

#[derive(Debug, Default)]
struct Host {
    /// Flows that have something to send, in turn.
    round: VecDeque<usize>,
    turn_at: Option<Time>,
}

/// All NICs and what is between them.
#[derive(Debug)]
struct Nics<'a> {
    setting: &'a Setting,
    now: Time,
    fabric: Fabric,
    progress: Progress,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    ports: Vec<[SourceSlot; 2]>,
    hosts: Vec<Host>,
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
    plans: Vec<Option<What>>,
    free_plans: Vec<u32>,
    order: u64,
    nothing: Rc<[u8]>,
    outcome: Outcome,
}

impl<'a> Nics<'a> {
    fn new(setting: &'a Setting, exchange: &Exchange) -> Self {
        let mut rng = SmallRng::seed_from_u64(setting.seed);
        let hosts = exchange.nodes();
        let seed = rng.next_u64();
        let fabric = Fabric::new(&setting.fabric, hosts, SmallRng::seed_from_u64(seed));
        let line = setting.fabric.from_host.bits_per_s as f64;
        let sender = |_| {
            let rate = Dcqcn::new(setting.dcqcn, line, Time::ZERO);
            Sender::new(rate, exchange.bytes)
        };
        let flows = exchange.flows.len();
        let mut port = || SourceSlot(rng.random());
        let mut nics = Self {
            setting,
            now: Time::ZERO,
            fabric,
            progress: Progress::new(exchange.clone()),
            senders: (0..flows).map(sender).collect(),
            receivers: (0..flows).map(|_| Receiver::default()).collect(),
            ports: (0..flows).map(|_| [port(), port()]).collect(),
            hosts: (0..hosts).map(|_| Host::default()).collect(),
            heap: BinaryHeap::new(),
            plans: Vec::new(),
            free_plans: Vec::new(),
            order: 0,
            nothing: Rc::from([]),
            outcome: Outcome {
                passed: Vec::new(),
                done: false,
                packets: 0,
                retransmissions: 0,
                timeouts: 0,
                notifications: 0,
                failed: 0,
                overflows: 0,
            },
        };
        nics.schedule(Time::from_ns(exchange.begins_ns), What::Begin);
        for (after_ns, links, change) in &setting.changes {
            nics.schedule(Time::from_ns(*after_ns), What::Change(*links, *change));
        }
        nics
    }

    fn schedule(&mut self, at: Time, what: What) {
        self.order += 1;
        let plan = self.free_plans.pop().unwrap_or_else(|| {
            self.plans.push(None);
            self.plans.len() as u32 - 1
        });
        self.plans[plan as usize] = Some(what);
        self.heap.push(Reverse((at, self.order, plan)));
    }

    fn step(&mut self) {
        let Some(Reverse((at, _, plan))) = self.heap.pop() else {
            return;
        };
        let Some(what) = self.plans[plan as usize].take() else {
            return;
        };
        self.free_plans.push(plan);
        self.now = at;
        match what {
            What::Begin => {
                for flow in 0..self.senders.len() {
                    self.progress.begin(flow);
                    self.submit(flow);
                }
            }
            What::Hop(hop, flow, packet, mut datagram) => {
                match self.fabric.arrive(at, hop, &mut datagram) {
                    Ok(Next::Hop(at, hop)) => {
                        self.schedule(at, What::Hop(hop, flow, packet, datagram));
                    }
                    Ok(Next::Host) => self.receive(flow, packet, datagram.ce),
                    Err(_) => {}
                }
            }
            What::Turn(host) => {
                // Others are older plans.
                if self.hosts[host].turn_at == Some(at) {
                    self.hosts[host].turn_at = None;
                    self.turn(host);
                }
            }
            What::Timer(flow) => self.check_timer(flow),
            What::Change(links, change) => {
                self.fabric.change(at, links, change);
            }
        }
    }

    /// Gives a flow all messages that it may have.
    fn submit(&mut self, flow: usize) {
        while self.progress.may_submit(flow) {
            self.progress.submitted(flow, self.now.as_ns());
            self.senders[flow].submit();
        }
        self.queue(flow);
    }

    /// A flow takes its place in its host's round if it has something to send.
    fn queue(&mut self, flow: usize) {
        let sender = &mut self.senders[flow];
        if sender.is_queued || !sender.has_packets() {
            return;
        }
        sender.is_queued = true;
        let host = self.progress.plan().flows[flow][0].0;
        self.hosts[host].round.push_back(flow);
        self.wake(host, self.now);
    }

    fn wake(&mut self, host: usize, at: Time) {
        let planned = &mut self.hosts[host].turn_at;
        if planned.is_none_or(|planned| at < planned) {
            *planned = Some(at);
            self.schedule(at, What::Turn(host));
        }
    }

    /// A host sends what its link and the pace of its flows allow now.
    fn turn(&mut self, host: usize) {
        let node = NodeId(host);
        let now_ps = self.now.as_ns() * PS_PER_NS;
        loop {
            let backlog = self.fabric.backlog_bytes(node, self.now);
            if backlog >= NIC_BYTES {
                let rate = self.fabric.host_bits_per_s(node).max(1);
                let wait_ns = (backlog - NIC_BYTES / 2) * 8_000_000_000 / rate;
                return self.wake(host, self.now + wait_ns.max(1));
            }
            let mut earliest_ps = u64::MAX;
            let mut found = None;
            for _ in 0..self.hosts[host].round.len() {
                let Some(flow) = self.hosts[host].round.pop_front() else {
                    break;
                };
                let sender = &mut self.senders[flow];
                if !sender.has_packets() {
                    sender.is_queued = false;
                    continue;
                }
                self.hosts[host].round.push_back(flow);
                if sender.next_at_ps <= now_ps {
                    found = Some(flow);
                    break;
                }
                earliest_ps = earliest_ps.min(sender.next_at_ps);
            }
            match found {
                Some(flow) => self.send_data(flow),
                None if earliest_ps < u64::MAX => {
                    return self.wake(host, Time::from_ns(earliest_ps.div_ceil(PS_PER_NS)));
                }
                None => return,
            }
        }
    }

    fn send_data(&mut self, flow: usize) {
        let now = self.now;
        let sender = &mut self.senders[flow];
        // The time counts from the oldest packet that is under way.
        let was_idle = !sender.awaits();
        let (psn, bytes, again) = sender.take();
        let wire_bytes = u64::from(bytes) + LOWER_BYTES;
        let rate = sender.rate.bits_per_s(now);
        sender.rate.sent(now, wire_bytes);
        let from_ps = sender.next_at_ps;
        let base_ps = from_ps.max((now.as_ns() * PS_PER_NS).saturating_sub(CATCH_UP_PS));
        sender.next_at_ps = base_ps + (wire_bytes as f64 * 8e12 / rate) as u64;
        self.outcome.retransmissions += u64::from(again);
        self.restart_timer(flow, was_idle);
        // A slow flow asks with each packet, or it would hear nothing for longer than a timeout.
        let asks = rate < SLOW_PART * self.fabric_line_bits_per_s();
        self.send(flow, Packet::Data { psn, asks }, bytes);
    }

    fn fabric_line_bits_per_s(&self) -> f64 {
        self.setting.fabric.from_host.bits_per_s as f64
    }

    /// Puts a packet on its host's link.
    fn send(&mut self, flow: usize, packet: Packet, bytes: u32) {
        self.outcome.packets += 1;
        let [sender, receiver] = self.progress.plan().flows[flow];
        let [forth, back] = self.ports[flow];
        let (from, to, slot) = match packet {
            Packet::Data { .. } => (sender, receiver, forth),
            _ => (receiver, sender, back),
        };
        let mut datagram = Datagram {
            from,
            to,
            plane: 0,
            slot,
            destination: SocketAddr::new(address(to, 0), PORT),
            ce: false,
            bytes: Rc::clone(&self.nothing),
            uncarried_bytes: bytes,
        };
        if let Ok((at, hop)) = self.fabric.send(self.now, &mut datagram) {
            self.schedule(at, What::Hop(hop, flow, packet, datagram));
        }
    }

    fn receive(&mut self, flow: usize, packet: Packet, ce: bool) {
        match packet {
            Packet::Data { psn, asks } => {
                let interval_ns = self.setting.cnp_interval_ns;
                if ce && self.receivers[flow].notifies(self.now, interval_ns) {
                    self.outcome.notifications += 1;
                    self.send(flow, Packet::Cnp, CNP_BYTES);
                }
                let taken = self.receivers[flow].take((psn, asks), self.progress.plan().bytes);
                if let Some(answer) = taken.answer {
                    self.send(flow, answer, ACK_BYTES);
                }
                if taken.message
                    && let Some(next) = self.progress.arrived(flow, self.now.as_ns())
                {
                    self.submit(next);
                }
            }
            Packet::Ack { psn } => self.acknowledged(flow, psn, false),
            Packet::Nak { psn } => self.acknowledged(flow, psn, true),
            Packet::Cnp => self.senders[flow].rate.notified(self.now),
        }
    }

    fn acknowledged(&mut self, flow: usize, psn: u64, refused: bool) {
        if self.senders[flow].acknowledge(psn, refused) {
            self.restart_timer(flow, true);
            self.queue(flow);
        }
    }

    /// The time that a flow may hear nothing begins, anew if `again`.
    fn restart_timer(&mut self, flow: usize, again: bool) {
        let sender = &mut self.senders[flow];
        if again || !sender.timer_runs {
            sender.deadline = self.now + self.setting.timeout_ns;
        }
        if !sender.timer_runs {
            sender.timer_runs = true;
            let at = sender.deadline;
            self.schedule(at, What::Timer(flow));
        }
    }

    fn check_timer(&mut self, flow: usize) {
        let sender = &mut self.senders[flow];
        if !sender.awaits() {
            sender.timer_runs = false;
            return;
        }
        if sender.deadline <= self.now {
            self.outcome.timeouts += 1;
            sender.time_out();
            if sender.timeouts > self.setting.retries {
                sender.failed = true;
                sender.timer_runs = false;
                self.outcome.failed += 1;
                return;
            }
            sender.deadline = self.now + self.setting.timeout_ns;
            self.queue(flow);
        }
        let at = self.senders[flow].deadline;
        self.schedule(at, What::Timer(flow));
    }

    fn outcome(mut self) -> Outcome {
        self.outcome.overflows = self.fabric.counters(self.now, Links::All).overflows;
        self.outcome.done = self.progress.is_done();
        self.outcome.passed = self.progress.into_passed();
        self.outcome
    }
}

#[cfg(test)]
mod tests;
