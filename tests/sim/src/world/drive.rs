//! A node's turn: datagrams in, timers, completions to the programs, trains out. What the engine does, in virtual time.

use std::rc::Rc;

use metaroce_proto::endpoint::RxMeta;
use metaroce_proto::event::Event;
use metaroce_proto::train::{Piece, Train};
use metaroce_proto::types::{LocalIndex, Time};
use metaroce_proto::wire::{self, Packet};

use super::{What, World};
use crate::NodeId;
use crate::checker::Host;
use crate::memory::HostView;
use crate::network::{Datagram, owner, slot_of};
use crate::node::{Life, PORT_BASE};
use crate::trace::Fate;
use crate::wires::Wires;

/// Rounds of sending and completing in one turn: without time passing that must come to an end.
const ROUNDS_MAX: u32 = 10_000;

/// Turns in a row that a timer asked for at once and that did nothing.
const SPINS_MAX: u32 = 1_000;

/// Datagrams that are kept to be used again: more than are read between two that are sent.
const SPARE_MAX: usize = 1_024;

/// After this an idle timer is asked again, whatever it says: it stands for the least time that a turn takes.
const TURN_NS: u64 = 200;

impl World {
    /// One turn of a node.
    pub(super) fn turn(&mut self, id: NodeId) {
        let now = self.now;
        let node = &mut self.nodes[id.0];
        if !node.is_up() {
            return;
        }
        node.turns += 1;
        if matches!(node.life, Life::Closing(until) if until <= now) {
            node.life = Life::Gone;
            return;
        }
        let received = self.receive(id);
        let node = &mut self.nodes[id.0];
        let mut due = false;
        if node.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            let mut host = HostView {
                node: id,
                now,
                memory: &mut node.memory,
                ledger: &mut self.ledger,
            };
            node.endpoint.handle_timeout(now, &mut host);
            due = true;
        }
        let mut worked = received > 0;
        let mut packets = received as u64;
        for round in 0.. {
            let before = packets;
            let sends_first = self.nodes[id.0].config.sends_first;
            if sends_first {
                packets += self.transmit(id);
            }
            let events = self.poll_events(id);
            if !sends_first {
                packets += self.transmit(id);
            }
            if packets == before && events == 0 {
                break;
            }
            worked = true;
            if !self.ledger.violations().is_empty() {
                break;
            }
            if round > ROUNDS_MAX {
                self.ledger.break_down(
                    now,
                    format!("{id}: sends and completes without end at one instant"),
                );
                break;
            }
        }
        let config = &self.nodes[id.0].config;
        let work_ns = packets * config.packet_ns + received as u64 * config.intake_ns;
        self.plan_next(id, work_ns, worked, due);
    }

    fn receive(&mut self, id: NodeId) -> usize {
        let now = self.now;
        let node = &mut self.nodes[id.0];
        let mut host = HostView {
            node: id,
            now,
            memory: &mut node.memory,
            ledger: &mut self.ledger,
        };
        let mut count = 0;
        // The fields of a node that reading needs are apart from the host's.
        while count < node.config.batch {
            let Some(datagram) = node.inbox.pop_front() else {
                break;
            };
            node.inbox_bytes -= datagram.buffer_bytes();
            self.senders.push(datagram.from);
            let meta = RxMeta {
                local: LocalIndex(datagram.plane),
                source: datagram.source(),
                ce: datagram.ce,
            };
            let mut bytes = &*datagram.bytes;
            if datagram.uncarried_bytes > 0 {
                let length = datagram.length() as usize;
                if node.scratch.len() < length {
                    node.scratch.resize(length, 0);
                }
                node.scratch[..bytes.len()].copy_from_slice(bytes);
                bytes = &node.scratch[..length];
            }
            let taken = node.endpoint.counters().acks_received;
            node.endpoint.handle_datagram(now, &meta, bytes, &mut host);
            count += 1;
            let taken = node.endpoint.counters().acks_received - taken;
            // One that overtook the HELLO is dropped: its source, its connection, or which life of the peer it is of, is not
            // known yet.
            if taken > 0
                && let (Some(grants), Ok(Packet::Ack(ack))) =
                    (&mut self.grants, Packet::parse(bytes))
            {
                let mut connections = node.endpoint.grants();
                // Under an id that a restarted peer was given and has not shown to know, nothing counts yet (WIRE 3.5).
                if connections.any(|connection| connection.id == ack.base.connection) {
                    grants.on_came(id, &ack);
                }
            }
            if self.spare.len() < SPARE_MAX {
                self.spare.push(datagram);
            }
        }
        if count > 0 {
            node.endpoint.handle_batch_end(now, &mut host);
        }
        if count > 0 {
            let drops = std::mem::take(&mut node.drops);
            let fill_per_mille = node.fill_per_mille();
            node.endpoint
                .set_receive_pressure(now, fill_per_mille, drops);
        }
        // Who closes says so again and again, and is heard as long as it does.
        for from in self.senders.drain(..) {
            let is_gone = self.nodes[from.0].life != Life::Up;
            self.silence.heard(id, from, now, is_gone);
        }
        self.check_grants_kept(id);
        count
    }

    /// Gives completions to the programs. Returns how many there were.
    pub(crate) fn poll_events(&mut self, id: NodeId) -> usize {
        let (mut count, mut failed) = (0, Vec::new());
        while let Some(record) = self.nodes[id.0].endpoint.poll_log(self.now) {
            self.trace.note_event(id, record);
        }
        while let Some(event) = self.nodes[id.0].endpoint.poll_event() {
            count += 1;
            self.trace.mix(count as u64);
            if self.nodes[id.0].life != Life::Up {
                continue;
            }
            match event {
                Event::SendDone(done) => {
                    self.trace.mix(done.cookie ^ self.now.as_ns());
                    self.on_send_done(id, &done);
                }
                Event::ReceiveDone(done) => {
                    self.trace.mix(done.cookie ^ self.now.as_ns());
                    self.on_receive_done(id, &done);
                }
                Event::QpFailed { qp, .. } => failed.extend(self.on_failed(id, qp)),
                Event::Established { .. }
                | Event::PeerSilent { .. }
                | Event::PeerUnreachable { .. } => {}
            }
        }
        for agent in failed {
            let pending = self.ledger.pending(agent);
            if pending > 0 {
                let what = format!(
                    "{agent}: its failure is reported, but {pending} of its requests did not complete"
                );
                self.ledger.break_down(self.now, what);
            }
        }
        count
    }

    /// Sends as long as there is something to send and the socket takes it. Returns the packets.
    fn transmit(&mut self, id: NodeId) -> u64 {
        let now = self.now;
        let limit = self.nodes[id.0].config.send_buffer_bytes;
        let mut packets = 0;
        let mut train = std::mem::take(&mut self.nodes[id.0].train);
        for sent in 0.. {
            if self.wires.backlog_bytes(id, now) >= limit {
                break;
            }
            let node = &mut self.nodes[id.0];
            let mut host = HostView {
                node: id,
                now,
                memory: &mut node.memory,
                ledger: &mut self.ledger,
            };
            if !node.endpoint.poll_transmit(now, &mut train, &mut host) {
                break;
            }
            packets += train.segments().len() as u64;
            self.check_train(id, &train);
            self.send_train(id, &train);
            if sent > ROUNDS_MAX {
                self.ledger
                    .break_down(now, format!("{id}: sends without end at one instant"));
                break;
            }
        }
        self.nodes[id.0].train = train;
        self.check_grants_made(id);
        packets
    }

    /// What a node grants to those that it has sent ACKs.
    fn check_grants_made(&mut self, id: NodeId) {
        let node = &self.nodes[id.0];
        let Some(grants) = &mut self.grants else {
            return;
        };
        let host = Host {
            node: id,
            now: self.now,
            payload_bytes: node.config.payload_bytes,
            paused_until: node.paused_until,
            timer_slack_ns: node.config.timer_slack_ns,
            info: node.endpoint.info(),
        };
        if let Some(wrong) = grants.check_left(&host, node.endpoint.grants()) {
            self.ledger.violate(self.now, format!("{id}: {wrong}"));
        }
    }

    /// Which grants a node keeps to that has read ACKs.
    fn check_grants_kept(&mut self, id: NodeId) {
        let Some(grants) = &mut self.grants else {
            return;
        };
        if let Some(wrong) = grants.check_came(id, self.nodes[id.0].endpoint.grants()) {
            self.ledger.violate(self.now, format!("{id}: {wrong}"));
        }
    }

    /// What a train must be for one send call.
    fn check_train(&mut self, id: NodeId, train: &Train) {
        let config = &self.nodes[id.0].config;
        let segments = train.segments();
        let size = train.segment_bytes();
        let problem = if segments.is_empty() {
            Some("an empty train")
        } else if segments.len() > usize::from(config.train_segments) {
            Some("a train of too many packets")
        } else if segments[..segments.len() - 1]
            .iter()
            .any(|segment| segment.length != size)
        {
            Some("a train of unequal packets")
        } else if segments[segments.len() - 1].length > size {
            Some("a train whose last packet is the longest")
        } else if train.total_bytes() > 65_507 {
            Some("a train of too many bytes")
        } else if size > u32::from(config.payload_bytes) + 64 {
            Some("a packet that is longer than the MTU allows")
        } else if size == 0 {
            Some("an empty packet")
        } else {
            None
        };
        if let Some(problem) = problem {
            self.ledger.break_down(
                self.now,
                format!(
                    "{id}: {problem}: {} packets of {size} bytes",
                    segments.len()
                ),
            );
        }
    }

    fn send_train(&mut self, id: NodeId, train: &Train) {
        let now = self.now;
        let route = train.route;
        let Some((to, plane)) =
            owner(route.destination.ip()).filter(|(to, _)| to.0 < self.nodes.len())
        else {
            self.ledger.violate(
                now,
                format!("{id}: sends to {}, which is nobody", route.destination),
            );
            return;
        };
        let port = route.destination.port();
        let fits =
            route.local.0 == plane && (port == PORT_BASE + to.0 as u16 || slot_of(port).is_some());
        if !fits {
            self.ledger.violate(
                now,
                format!(
                    "{id}: sends to {} from {:?}",
                    route.destination, route.local
                ),
            );
            return;
        }
        let mut bytes = std::mem::take(&mut self.gathered);
        for (index, segment) in train.segments().iter().enumerate() {
            if !self.gather(id, train, index, &mut bytes) {
                continue;
            }
            self.note_ack(id, &mut bytes);
            let datagram = Datagram {
                from: id,
                to,
                plane,
                slot: route.source,
                destination: route.destination,
                ce: false,
                uncarried_bytes: segment.length - bytes.len() as u32,
                bytes: Rc::default(),
            };
            let datagram = self.pack(datagram, &bytes);
            self.note(Fate::Sent, &datagram);
            self.silence.asked(id, to);
            self.send_datagram(datagram);
        }
        self.gathered = bytes;
    }

    /// A datagram with these bytes, in the place of one that was read, if there is one.
    fn pack(&mut self, mut datagram: Datagram, bytes: &[u8]) -> Box<Datagram> {
        let Some(mut place) = self.spare.pop() else {
            datagram.bytes = bytes.into();
            return Box::new(datagram);
        };
        std::mem::swap(&mut datagram.bytes, &mut place.bytes);
        match Rc::get_mut(&mut datagram.bytes) {
            Some(old) if old.len() == bytes.len() => old.copy_from_slice(bytes),
            _ => datagram.bytes = bytes.into(),
        }
        *place = datagram;
        place
    }

    /// An ACK leaves, as its host would have it, with what a host that is wrong makes of it.
    fn note_ack(&mut self, id: NodeId, bytes: &mut Vec<u8>) {
        let Some(grants) = &mut self.grants else {
            return;
        };
        let Ok(Packet::Ack(mut ack)) = Packet::parse(bytes) else {
            return;
        };
        let times = self.nodes[id.0].config.grants_times;
        let granted = &mut ack.allowance.grant_kib_per_s;
        *granted = granted.saturating_mul(times);
        grants.on_left(id, &ack);
        if times != 1
            && let Some(wrong) = wire::emit_again(&Packet::Ack(ack), bytes.len())
        {
            *bytes = wrong;
        }
    }

    /// Puts a datagram on the wires.
    fn send_datagram(&mut self, mut datagram: Box<Datagram>) {
        let now = self.now;
        match &mut self.wires {
            Wires::Network(network) => {
                let mut arrivals = std::mem::take(&mut self.arrivals);
                if let Err(fate) = network.send(now, (*datagram).clone(), &mut arrivals) {
                    self.note(fate, &datagram);
                }
                for (at, datagram) in arrivals.drain(..) {
                    self.schedule(at, What::Forward(Box::new(datagram)));
                }
                self.arrivals = arrivals;
            }
            Wires::Fabric(fabric) => match fabric.send(now, &mut datagram) {
                Ok((at, hop)) => self.agenda.plan_hop(at, hop, datagram),
                Err(fate) => self.note(fate, &datagram),
            },
        }
    }

    /// The bytes of a packet, as far as they are carried; false, and the endpoint told, where its memory cannot be read.
    fn gather(&mut self, id: NodeId, train: &Train, index: usize, packet: &mut Vec<u8>) -> bool {
        let now = self.now;
        let segment = &train.segments()[index];
        let node = &mut self.nodes[id.0];
        packet.clear();
        // Of a packet out of hollow memory only what is before its payload is carried.
        let (hollow, mut whole) = (node.memory.is_hollow(), true);
        for piece in train.pieces(segment) {
            match *piece {
                Piece::Bytes { start, length } => {
                    if whole {
                        packet.extend_from_slice(train.bytes(start, length));
                    }
                }
                Piece::Memory { key, addr, length } => {
                    let found = node.memory.find(key);
                    let bytes = found
                        .and_then(|(region, _)| node.memory.bytes(region, addr, u64::from(length)));
                    match (found, bytes) {
                        (Some(found), Some(bytes)) => {
                            whole &= !hollow;
                            if whole {
                                packet.extend_from_slice(bytes);
                            }
                            self.ledger.gathered(now, id, found, addr, length);
                        }
                        _ => {
                            let Some(owner) = segment.owner else {
                                self.ledger.break_down(
                                    now,
                                    format!("{id}: a packet without owner reads memory"),
                                );
                                return false;
                            };
                            let mut host = HostView {
                                node: id,
                                now,
                                memory: &mut node.memory,
                                ledger: &mut self.ledger,
                            };
                            node.endpoint.handle_bad_memory(now, owner, &mut host);
                            return false;
                        }
                    }
                }
            }
        }
        true
    }

    /// When the node gets its next turn, after work of `work_ns`.
    fn plan_next(&mut self, id: NodeId, work_ns: u64, worked: bool, due: bool) {
        let now = self.now;
        let backlog = self.wires.backlog_bytes(id, now);
        let node = &mut self.nodes[id.0];
        node.busy_until = now + work_ns;
        if !node.inbox.is_empty() {
            self.wake(id, now + TURN_NS);
        }
        let node = &mut self.nodes[id.0];
        if backlog >= node.config.send_buffer_bytes {
            let rate = self.wires.host_bits_per_s(id) / 1_000_000;
            let room = backlog - node.config.send_buffer_bytes / 2;
            self.wake(id, now + room * 8_000 / rate.max(1));
        }
        let node = &mut self.nodes[id.0];
        if let Life::Closing(until) = node.life {
            let over = !node.endpoint.outstanding();
            self.wake(id, if over { now + 1_000_000 } else { until });
        }
        let node = &mut self.nodes[id.0];
        let Some(timeout) = node.endpoint.poll_timeout() else {
            return;
        };
        if timeout <= now && due && !worked {
            node.spins += 1;
            if node.spins > SPINS_MAX {
                node.spins = 0;
                self.ledger
                    .break_down(now, format!("{id}: a timer of {timeout:?} is never served"));
                return;
            }
        } else if worked || timeout > now {
            node.spins = 0;
        }
        let slack_ns = self.nodes[id.0].config.timer_slack_ns;
        let late_ns = if slack_ns > 0 {
            rand::RngCore::next_u64(&mut self.rng) % (slack_ns + 1)
        } else {
            0
        };
        let at = timeout.max(now + TURN_NS) + late_ns;
        self.wake(id, at.max(Time::from_ns(now.as_ns() + TURN_NS)));
    }
}
