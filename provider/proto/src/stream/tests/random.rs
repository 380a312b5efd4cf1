//! Random work over a pipe that shuffles, loses and retransmits: every byte, every completion and their order checked.

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::host::{ALL, ALL_RELAXED};
use super::world::{PD, Setup, World};
use crate::event::{Event, ReceiveDone, ReceiveKind};
use crate::stream::{MESSAGE_SPAN, Outcome, Role};
use crate::types::*;
use crate::wire::{Msn, NakCode, Opcode};

/// A work request and what must come of it.
struct Work {
    request: SendRequest,
    bytes: Vec<u8>,
    sges: SgeList,
    /// Where a WRITE goes or a READ comes from, at the peer.
    remote: (u32, u64),
    strict: bool,
    /// What an atomic finds.
    finds: u64,
}

impl Work {
    fn is_write(&self) -> bool {
        matches!(
            self.request.operation,
            Operation::Write { .. } | Operation::WriteImm { .. }
        )
    }

    fn consumes_receive(&self) -> bool {
        use Operation::*;
        matches!(
            self.request.operation,
            Send | SendImm(_) | SendInv(_) | WriteImm { .. }
        )
    }
}

/// The work of one side, and how far it is.
struct Plan {
    work: Vec<Work>,
    submitted: usize,
    sent: usize,
    /// Receive-consuming work whose receive completed at the peer.
    received: usize,
}

struct Posted {
    cookie: u64,
    sges: SgeList,
}

struct Run {
    seed: u64,
    rng: SmallRng,
    world: World,
    plans: Vec<Plan>,
    shared: bool,
    loss: f64,
    /// Messages and answers that are still begun afresh because the path's packets shrank.
    restarts_left: u32,
    /// Receives not posted yet, by host if shared, else by side; and those posted, by cookie.
    to_post: Vec<VecDeque<Receive>>,
    posted: Vec<Posted>,
    /// Memory that the program has taken back.
    wiped: Vec<(usize, SgeList)>,
    /// How often the rare things happened.
    seen: Seen,
}

/// What must happen in some seeds, or the test proves little.
#[derive(Default, Debug)]
struct Seen {
    rnr: u64,
    holds: u64,
    fills: u64,
    restarts: u64,
    old_messages: u64,
}

fn pattern(rng: &mut SmallRng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.random_range(1..=255)).collect()
}

/// Cuts a buffer of a region of its own into odd pieces.
fn scatter_list(world: &mut World, rng: &mut SmallRng, host: usize, length: usize) -> SgeList {
    let (key, base) = world.hosts[host].register(PD, length + 64, ALL);
    let mut sges = SgeList::new();
    let (mut at, mut left) = (base + rng.random_range(0..8), length as u32);
    for _ in 0..rng.random_range(0..6) {
        let piece = rng.random_range(0..=left);
        sges.push(Sge {
            addr: at,
            length: piece,
            lkey: key,
        });
        at += u64::from(piece) + rng.random_range(0..4);
        left -= piece;
    }
    if left > 0 || rng.random() {
        sges.push(Sge {
            addr: at,
            length: left,
            lkey: key,
        });
    }
    sges
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let shared = seed % 4 == 3;
        let hold_bytes = [150, 3_000, 1 << 20][rng.random_range(0..3)];
        let mut world = World::new(
            [16, 61, 512, 1400, 4096][rng.random_range(0..5)],
            hold_bytes,
        );
        let setup = Setup {
            shared,
            rd_atomic: rng.random_range(1..5),
            message_span: if rng.random() {
                rng.random_range(1..20)
            } else {
                MESSAGE_SPAN
            },
            packet_span: if rng.random() {
                rng.random_range(1..40)
            } else {
                1000
            },
            rnr_timer: rng.random_range(1..5),
            ..Setup::default()
        };
        for _ in 0..1 + usize::from(shared) {
            world.connect(&setup);
        }
        let sides = world.sides.len();
        let loss = [0.0, 0.05, 0.3][rng.random_range(0..3)];
        let mut run = Self {
            seed,
            rng,
            world,
            plans: Vec::new(),
            shared,
            loss,
            restarts_left: 6,
            to_post: (0..sides).map(|_| VecDeque::new()).collect(),
            posted: Vec::new(),
            wiped: Vec::new(),
            seen: Seen::default(),
        };
        for side in 0..sides {
            run.make_plan(side);
        }
        run
    }

    fn queue_owner(&self, side: usize) -> usize {
        if self.shared {
            self.world.sides[side].host
        } else {
            side
        }
    }

    fn make_plan(&mut self, side: usize) {
        let peer = self.world.sides[side].peer;
        let peer_host = self.world.sides[peer].host;
        let (counter_key, counter_addr) = self.world.hosts[peer_host].register(PD, 8, ALL);
        let mut counter = 0_u64;
        let mut work = Vec::new();
        let count = self.rng.random_range(0..30);
        for _ in 0..count {
            let one = self.make_work(side, peer_host, (counter_key, counter_addr), &mut counter);
            if one.consumes_receive() {
                let spare = self.rng.random_range(0..100);
                let capacity = if one.is_write() && self.rng.random() && !self.shared {
                    0
                } else {
                    100_000 + spare
                };
                let sges = scatter_list(&mut self.world, &mut self.rng, peer_host, capacity);
                let cookie = self.posted.len() as u64;
                self.posted.push(Posted {
                    cookie,
                    sges: sges.clone(),
                });
                let owner = self.queue_owner(peer);
                self.to_post[owner].push_back(Receive { cookie, sges });
            }
            work.push(one);
        }
        self.plans.push(Plan {
            work,
            submitted: 0,
            sent: 0,
            received: 0,
        });
    }

    fn make_work(
        &mut self,
        side: usize,
        peer_host: usize,
        counter: (u32, u64),
        value: &mut u64,
    ) -> Work {
        let rng = &mut self.rng;
        let host = self.world.sides[side].host;
        let kind = rng.random_range(0..9);
        let most = [1, 100, 5_000, 100_000][rng.random_range(0..4)];
        let most = if self.world.max_payload < 512 {
            most.min(5_000)
        } else {
            most
        };
        let mut length = rng.random_range(0..=most);
        if kind >= 7 {
            length = 8;
        }
        let bytes = pattern(rng, length);
        let strict = rng.random();
        let access = if strict { ALL } else { ALL_RELAXED };
        let sges = scatter_list(&mut self.world, rng, host, length);
        let (rkey, base) = self.world.hosts[peer_host].register(PD, length + 16, access);
        let remote_addr = base + rng.random_range(0..16);
        let imm = rng.random::<[u8; 4]>();
        let mut finds = 0;
        let operation = match kind {
            0 => Operation::Send,
            1 => Operation::SendImm(imm),
            2 => Operation::SendInv(u32::from_be_bytes(imm)),
            3 | 4 => Operation::Write { remote_addr, rkey },
            5 => Operation::WriteImm {
                remote_addr,
                rkey,
                imm,
            },
            6 => Operation::Read { remote_addr, rkey },
            7 => {
                finds = *value;
                let add = rng.random();
                *value = value.wrapping_add(add);
                Operation::FetchAdd {
                    remote_addr: counter.1,
                    rkey: counter.0,
                    add,
                }
            }
            _ => {
                finds = *value;
                let (compare, swap) = (
                    if rng.random() { *value } else { rng.random() },
                    rng.random(),
                );
                *value = if compare == *value { swap } else { *value };
                Operation::CompareSwap {
                    remote_addr: counter.1,
                    rkey: counter.0,
                    compare,
                    swap,
                }
            }
        };
        let mut payload = Payload::Gather(sges.clone());
        if kind == 6 {
            self.world.hosts[peer_host].fill(rkey, remote_addr, &bytes);
        } else if kind < 6 {
            if length <= 220 && self.rng.random() {
                payload = Payload::Inline(bytes.iter().copied().collect());
            }
            let mut rest = &bytes[..];
            for sge in &sges {
                let (now, later) = rest.split_at(sge.length as usize);
                self.world.hosts[host].fill(sge.lkey, sge.addr, now);
                rest = later;
            }
        }
        let request = SendRequest {
            cookie: 0,
            operation,
            payload,
            length: length as u32,
            fence: self.rng.random_ratio(1, 4),
            solicited: self.rng.random(),
            fault: None,
        };
        Work {
            request,
            bytes,
            sges,
            remote: (rkey, remote_addr),
            strict,
            finds,
        }
    }

    fn step(&mut self) {
        let sides = self.world.sides.len();
        let side = self.rng.random_range(0..sides);
        match self.rng.random_range(0..22) {
            0 => self.submit_one(side),
            1..=6 => {
                let response = self.rng.random();
                self.world.send(side, response);
            }
            7..=13 => self.deliver_one(),
            14..=15 if !self.world.acks.is_empty() => {
                let index = self.rng.random_range(0..self.world.acks.len());
                let (side, segment) = self.world.acks.swap_remove(index);
                self.world.deliver_ack(side, &segment);
            }
            16..=17 if self.world.sides[side].responder.has_news() => {
                let block = self.world.emit_block(side);
                self.seen.rnr += u64::from(block.code == NakCode::Rnr);
                self.seen.holds += u64::from(block.code == NakCode::Hold);
            }
            18..=19 if !self.world.blocks.is_empty() => {
                let index = self.rng.random_range(0..self.world.blocks.len());
                let (side, block) = self.world.blocks.swap_remove(index);
                if !self.rng.random_bool(self.loss) {
                    self.world.deliver_block(side, &block);
                }
            }
            20 => self.post_one(side),
            21 => {
                self.world.now = self.world.now + 2_000;
                let peer = self.world.sides[side].peer;
                if self.world.sides[side].requester.wants_probe() {
                    self.world.sides[peer].responder.owe_block();
                }
            }
            _ => {}
        }
        if self.rng.random_ratio(1, 16) {
            self.check_strict_memory();
        }
        self.check_events();
    }

    fn submit_one(&mut self, side: usize) {
        let plan = &mut self.plans[side];
        if let Some(work) = plan.work.get(plan.submitted) {
            let request = SendRequest {
                cookie: plan.submitted as u64,
                ..work.request.clone()
            };
            plan.submitted += 1;
            self.world.submit(side, request);
        }
    }

    fn post_one(&mut self, side: usize) {
        let owner = self.queue_owner(side);
        let Some(receive) = self.to_post[owner].pop_front() else {
            return;
        };
        let host = self.world.sides[side].host;
        let queue = self.world.queue(self.shared, side);
        let all: Vec<_> = (0..self.world.sides.len())
            .filter(|s| self.world.sides[*s].host == host)
            .collect();
        let sides = if self.shared { all } else { vec![side] };
        self.world.post(&sides, queue, receive);
    }

    fn deliver_one(&mut self) {
        if self.world.flight.is_empty() {
            return;
        }
        // Mostly among the older ones, so that a packet does not stay behind for ever.
        let reach = self
            .world
            .flight
            .len()
            .min(if self.rng.random_ratio(1, 10) {
                usize::MAX
            } else {
                12
            });
        let packet = self.world.flight.remove(self.rng.random_range(0..reach));
        if self.rng.random_bool(self.loss) {
            if self.restarts_left > 0 && self.rng.random_ratio(1, 4) {
                self.restarts_left -= 1;
                self.seen.restarts += 1;
                let side = &mut self.world.sides[packet.from];
                match packet.segment.role {
                    Role::Request => side.requester.restart_message(packet.segment.msn),
                    Role::Response => side.responder.restart_response(packet.segment.msn),
                }
            }
            self.world.retransmit(&packet);
        } else {
            self.seen.fills += u64::from(packet.header.opcode == Opcode::Fill);
            let outcome = self.world.deliver(&packet);
            self.seen.old_messages += u64::from(outcome == Some(Outcome::AlreadyExecuted));
        }
    }

    /// A strict region shows a WRITE's last byte only after all its other bytes and all earlier WRITEs.
    fn check_strict_memory(&self) {
        for (side, plan) in self.plans.iter().enumerate() {
            let host = &self.world.hosts[1 - self.world.sides[side].host];
            let mut all_before = true;
            for work in &plan.work[plan.sent..plan.submitted] {
                if !work.is_write() || work.bytes.is_empty() {
                    continue;
                }
                let seen = host
                    .memory(work.remote.0, work.remote.1, work.bytes.len())
                    .expect("registered");
                let complete = seen == work.bytes;
                if work.strict && seen.last() != Some(&0) {
                    assert!(
                        complete && all_before,
                        "seed {}: a WRITE is visible before its turn",
                        self.seed
                    );
                }
                if work.strict && !all_before {
                    let untouched = seen.iter().all(|byte| *byte == 0);
                    assert!(
                        untouched,
                        "seed {}: a WRITE is visible before earlier ones",
                        self.seed
                    );
                }
                all_before &= complete;
            }
        }
    }

    fn check_events(&mut self) {
        for side in 0..self.world.sides.len() {
            while let Some(event) = self.world.sides[side].events.pop_front() {
                match event {
                    Event::SendDone(done) => {
                        assert_eq!(done.status, Status::Success, "seed {}", self.seed);
                        assert_eq!(
                            done.cookie, self.plans[side].sent as u64,
                            "seed {}: in order, once",
                            self.seed
                        );
                        self.check_sent(side, done.cookie as usize);
                        self.reuse_memory(side, done.cookie as usize);
                        self.plans[side].sent += 1;
                    }
                    Event::ReceiveDone(done) => self.check_received(side, &done),
                    other => panic!("seed {}: {other:?}", self.seed),
                }
            }
        }
    }

    fn check_sent(&self, side: usize, index: usize) {
        let (s, work) = (&self.world.sides[side], &self.plans[side].work[index]);
        let (host, remote) = (&self.world.hosts[s.host], &self.world.hosts[1 - s.host]);
        match work.request.operation {
            Operation::Write { .. } | Operation::WriteImm { .. } => {
                let seen = remote
                    .memory(work.remote.0, work.remote.1, work.bytes.len())
                    .expect("registered");
                assert!(
                    seen == work.bytes,
                    "seed {}: WRITE {index} is not there",
                    self.seed
                );
            }
            Operation::Read { .. } => {
                assert!(
                    host.gather(&work.sges) == work.bytes,
                    "seed {}: READ {index} is not there",
                    self.seed
                );
            }
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                assert_eq!(
                    host.gather(&work.sges),
                    work.finds.to_ne_bytes(),
                    "seed {}: atomic {index}",
                    self.seed
                );
            }
            _ => {}
        }
        let msn = Msn(index as u32 + 1);
        assert!(msn.is_at_or_before(s.requester.executed()));
    }

    /// Memory of completed work belongs to the program again: what is read from is deregistered (a retransmission that
    /// still read it would fail the queue pair), what is written to is wiped, and must stay so.
    fn reuse_memory(&mut self, side: usize, index: usize) {
        let host = self.world.sides[side].host;
        let work = &self.plans[side].work[index];
        let remote = &mut self.world.hosts[1 - host];
        match work.request.operation {
            Operation::Read { .. } => {
                remote.deregister(work.remote.0);
                self.wiped.push((host, work.sges.clone()));
            }
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                self.wiped.push((host, work.sges.clone()))
            }
            _ => {
                work.sges
                    .iter()
                    .for_each(|sge| self.world.hosts[host].deregister(sge.lkey));
                let (lkey, addr) = work.remote;
                let sge = Sge {
                    addr,
                    length: work.bytes.len() as u32,
                    lkey,
                };
                self.wiped.push((1 - host, SgeList::from_slice(&[sge])));
            }
        }
        self.wipe_last();
    }

    fn wipe_last(&mut self) {
        let Some((host, sges)) = self.wiped.last() else {
            return;
        };
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            self.world.hosts[*host].fill(sge.lkey, sge.addr, &vec![0; sge.length as usize]);
        }
    }

    fn check_received(&mut self, side: usize, done: &ReceiveDone) {
        assert_eq!(done.status, Status::Success, "seed {}", self.seed);
        assert_eq!(done.source_qpn, World::qpn(self.world.sides[side].peer));
        let peer = self.world.sides[side].peer;
        let plan = &mut self.plans[peer];
        let consumers = plan
            .work
            .iter()
            .enumerate()
            .filter(|(_, work)| work.consumes_receive());
        let (index, work) = consumers
            .clone()
            .nth(plan.received)
            .expect("more receives than messages");
        plan.received += 1;
        let posted = &self.posted[done.cookie as usize];
        assert_eq!(posted.cookie, done.cookie);
        let host_index = self.world.sides[side].host;
        let host = &self.world.hosts[host_index];
        let expected = match work.request.operation {
            Operation::Send => ReceiveKind::Send,
            Operation::SendImm(imm) => ReceiveKind::SendImm(imm),
            Operation::SendInv(rkey) => ReceiveKind::SendInv(rkey),
            Operation::WriteImm { imm, .. } => ReceiveKind::WriteImm(imm),
            _ => panic!("consumes no receive"),
        };
        let told = (done.kind, done.byte_length, done.solicited);
        assert_eq!(
            told,
            (expected, work.request.length, work.request.solicited),
            "seed {}",
            self.seed
        );
        if !work.is_write() {
            let mut seen = host.gather(&posted.sges);
            seen.truncate(work.bytes.len());
            assert!(
                seen == work.bytes,
                "seed {}: SEND {index} is not in its receive",
                self.seed
            );
        }
        for earlier in plan.work[plan.sent..=index]
            .iter()
            .filter(|work| work.is_write())
        {
            let seen = host
                .memory(earlier.remote.0, earlier.remote.1, earlier.bytes.len())
                .expect("registered");
            assert!(
                seen == earlier.bytes,
                "seed {}: an earlier WRITE is not there",
                self.seed
            );
        }
        self.wiped.push((host_index, posted.sges.clone()));
        self.wipe_last();
    }

    fn is_finished(&self) -> bool {
        let sides = self.world.sides.iter();
        self.plans.iter().all(|plan| plan.sent == plan.work.len())
            && self.world.flight.is_empty()
            && self.world.acks.is_empty()
            && sides
                .into_iter()
                .all(|side| side.requester.is_idle() && !side.responder.has_responses())
    }

    fn run(mut self) -> Seen {
        for _ in 0..3_000_000 {
            self.step();
            if self.is_finished() {
                break;
            }
        }
        assert!(
            self.is_finished(),
            "seed {}: it stalls: {:#?}",
            self.seed,
            self.world.sides
        );
        for (side, plan) in self.plans.iter().enumerate() {
            let consumers = plan
                .work
                .iter()
                .filter(|work| work.consumes_receive())
                .count();
            assert_eq!(
                plan.received, consumers,
                "seed {}: receives of side {side}",
                self.seed
            );
            let s = &self.world.sides[side];
            assert_eq!(
                (s.requester.backlog_bytes(), s.responder.backlog_bytes()),
                (0, 0),
                "seed {}",
                self.seed
            );
            assert!(
                s.requester.waiting_since().is_none() && s.requester.oldest_incomplete().is_none()
            );
        }
        assert!(
            self.world.holds.iter().all(|hold| hold.held_bytes() == 0),
            "seed {}: held for ever",
            self.seed
        );
        for (host, sges) in &self.wiped {
            let untouched = self.world.hosts[*host]
                .gather(sges)
                .iter()
                .all(|byte| *byte == 0);
            assert!(
                untouched,
                "seed {}: memory of completed work was written",
                self.seed
            );
        }
        self.seen
    }
}

#[test]
fn every_byte_and_every_completion_of_random_work() {
    let mut seen = Seen::default();
    for seed in 0..300 {
        let one = Run::new(seed).run();
        seen.rnr += one.rnr;
        seen.holds += one.holds;
        seen.fills += one.fills;
        seen.restarts += one.restarts;
        seen.old_messages += one.old_messages;
    }
    let often = [seen.rnr, seen.fills, seen.restarts]
        .iter()
        .all(|count| *count > 100);
    assert!(
        often && seen.holds > 10 && seen.old_messages > 0,
        "the random work never met some case: {seen:?}"
    );
}
