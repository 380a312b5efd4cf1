//! Packets: the only place where they are built. DATA (first time and again, FILL in the place of what is gone), bare
//! packets (markers, probes, announcements), CONTROL. What is to be built was decided in `schedule.rs`.

use crate::conn::hello::hello_item;
use crate::conn::schedule::packet_bytes;
use crate::conn::{Connection, Context, Item, State, space};
use crate::host::Host;
use crate::path::{Bare, Sent};
use crate::stream::{Role, SegmentRef};
use crate::train::{SegmentOwner, Train};
use crate::types::Route;
use crate::wire::{
    Base, BaseFlags, CONTROL_OVERHEAD_BYTES, ControlBuilder, DATA_HEADER_BYTES, DataHeader, Epoch,
    FillStatus, Opcode, PathId, Psn, Qpn, Stamp, Token,
};

/// A train that is being filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub path: usize,
    pub segments_left: u32,
    pub room_bytes: u64,
    /// Bytes of all packets but the last.
    pub segment_bytes: u32,
    /// Bytes of the whole train at most.
    pub train_bytes: u32,
}

/// How a segment is put on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Another packet follows in the train: fill up to this size.
    pub padded_to: Option<u32>,
    /// It was sent before under its PSN.
    pub again: bool,
    /// It is the last of the backlog.
    pub last: bool,
}

impl Connection {
    /// Builds a segment that leaves for the first time. Returns its bytes with padding.
    pub(super) fn push_segment(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        segment: &SegmentRef,
        wire: &Wire,
        train: &mut Train,
    ) -> u32 {
        let bytes = wire.padded_to.unwrap_or(0).max(packet_bytes(segment));
        let path = self.path_mut(at);
        let sent = path.tx.send_new(cx.now, *segment, bytes);
        path.counters.data_packets_sent += 1;
        path.counters.data_bytes_sent += u64::from(segment.length);
        self.unmarked_paths |= 1 << at;
        self.push_packet(cx, at, segment, &sent, wire, train);
        cx.shared.counters.data_packets_sent += 1;
        cx.shared.counters.data_bytes_sent += u64::from(segment.length);
        bytes
    }

    /// Builds one DATA packet: the segment, or a FILL where its content is gone.
    pub(super) fn push_packet(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        segment: &SegmentRef,
        sent: &Sent,
        wire: &Wire,
        train: &mut Train,
    ) {
        let life = cx.qps.life_of_record(segment.qp, segment.life);
        let waits = life
            .as_ref()
            .is_some_and(|life| segment.role == Role::Request && life.requester.waits_for_credit());
        let flags = BaseFlags::NONE
            .set(BaseFlags::RETRANSMISSION, wire.again)
            .set(BaseFlags::MARKER | BaseFlags::BACKLOG_EMPTY, wire.last)
            .set(BaseFlags::WAITING_FOR_CREDIT, waits);
        let base = self.base(at, flags, sent);
        let described = life.as_ref().and_then(|life| match segment.role {
            Role::Request => life.requester.describe(segment),
            Role::Response => life.responder.describe(segment),
        });
        match described {
            Some(described) => {
                train.push_bytes(&described.header.emit(&base));
                described.push_payload(train);
                pad(train, packet_bytes(segment), wire.padded_to);
                let owner = SegmentOwner {
                    qp: segment.qp,
                    msn: segment.msn,
                    response: segment.role == Role::Response,
                };
                train.finish_segment(described.reads_memory().then_some(owner));
            }
            None => {
                let header = life.map_or_else(fill_nothing, |life| match segment.role {
                    Role::Request => life.requester.describe_fill(segment),
                    Role::Response => life.responder.describe_fill(segment),
                });
                train.push_bytes(&header.emit(&base));
                pad(train, DATA_HEADER_BYTES as u32, wire.padded_to);
                train.finish_segment(None);
                cx.shared.counters.fills_sent += 1;
            }
        }
    }

    fn base(&self, at: usize, flags: BaseFlags, sent: &Sent) -> Base {
        Base {
            flags,
            path: PathId(at as u8),
            epoch: sent.epoch,
            connection: self.peer.id,
            psn: sent.psn,
            stamp: sent.stamp,
        }
    }

    /// Fills `train` with packets that path `at` has lost.
    pub(super) fn build_retransmissions(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        train: &mut Train,
    ) -> bool {
        let Some((psn, first)) = self.paths[at].tx.next_lost() else {
            return false;
        };
        train.start(self.paths[at].route);
        let config = &cx.shared.config;
        let (segments_max, bytes_max) =
            (u32::from(config.train_segments).max(1), config.train_bytes);
        let (mut psn, mut segment) = (psn, first);
        let mut size = 0;
        let mut count = 0;
        loop {
            count += 1;
            self.restart_if_too_large(cx, &segment);
            let pending_bytes = self.bytes_again(cx, &segment);
            let record = match segment.padding_for() {
                None => segment,
                Some(payload_bytes) => {
                    if payload_bytes > 0 {
                        self.search_lost(cx.now, at, payload_bytes);
                    }
                    SegmentRef::nothing(0)
                }
            };
            let path = self.path_mut(at);
            // Without the padding that it had, or as a FILL: its arrival tells of that size only.
            path.tx.replace(psn, record, pending_bytes);
            let sent = path.tx.send_again(cx.now, psn);
            // Only packets of exactly one size share a train: a loss is rare, and padding would make it worse.
            let next = self.paths[at].tx.next_lost().filter(|(_, next)| {
                let next_bytes = self.bytes_again(cx, next);
                let size = if size == 0 { pending_bytes } else { size };
                count < segments_max
                    && pending_bytes == size
                    && next_bytes <= size
                    && (count + 1) * size <= bytes_max
            });
            size = size.max(pending_bytes);
            let wire = Wire {
                padded_to: None,
                again: true,
                last: false,
            };
            self.push_packet(cx, at, &segment, &sent, &wire, train);
            let path = &mut self.paths[at];
            path.counters.retransmissions += 1;
            path.counters.data_packets_sent += 1;
            self.unmarked_paths |= 1 << at;
            cx.shared.counters.retransmissions += 1;
            cx.shared.counters.data_packets_sent += 1;
            match next {
                Some((next_psn, next)) => (psn, segment) = (next_psn, next),
                None => break,
            }
        }
        // Nothing holds them back, but what they take is not there for new packets.
        self.window.on_sent(cx.now, u64::from(train.total_bytes()));
        // Behind the last of it only. Where a queue overflows, small packets find room when large ones do not: markers behind
        // each would keep all others out, and each that arrives shows losses anew.
        if self.ready.is_empty() && self.paths[at].tx.next_lost().is_none() {
            self.owe_markers(cx.now, at);
            self.unmarked_paths &= !(1 << at);
        }
        cx.shared.counters.trains_sent += 1;
        true
    }

    /// Bytes of a segment that is sent again: less if a FILL takes its place.
    fn bytes_again(&self, cx: &mut Context<'_>, segment: &SegmentRef) -> u32 {
        let exists = cx
            .qps
            .life_of_record(segment.qp, segment.life)
            .is_some_and(|life| match segment.role {
                Role::Request => life.requester.describe(segment).is_some(),
                Role::Response => life.responder.describe(segment).is_some(),
            });
        if exists {
            packet_bytes(segment)
        } else {
            DATA_HEADER_BYTES as u32
        }
    }

    /// A segment of a time when packets were larger than the route carries now: its message begins anew, and a FILL
    /// takes its place (WIRE 6.27).
    fn restart_if_too_large(&mut self, cx: &mut Context<'_>, segment: &SegmentRef) {
        if segment.length <= self.payload_bytes {
            return;
        }
        let Some(life) = cx.qps.life_of_record(segment.qp, segment.life) else {
            return;
        };
        match segment.role {
            Role::Request => {
                let stale = life.requester.describe(segment).is_none();
                if !stale {
                    life.requester.restart_message(segment.msn);
                }
            }
            Role::Response => {
                let stale = life.responder.describe(segment).is_none();
                if !stale {
                    life.responder.restart_response(segment.msn);
                }
            }
        }
        self.make_ready(cx.qps, segment.qp);
    }

    /// Builds one packet without a PSN that is due on path `at`.
    pub(super) fn build_bare(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        train: &mut Train,
    ) -> bool {
        let path = &mut self.paths[at];
        let counters = &mut cx.shared.counters;
        let kind = if std::mem::take(&mut path.announce_due) {
            counters.announces_sent += 1;
            path.counters.announces_sent += 1;
            Bare::Announce
        } else if path.probes_due > 0 {
            path.probes_due -= 1;
            counters.probes_sent += 1;
            path.counters.probes_sent += 1;
            Bare::Probe
        } else if path.markers_due > 0 {
            path.markers_due -= 1;
            counters.markers_sent += 1;
            path.counters.markers_sent += 1;
            Bare::Marker
        } else {
            return false;
        };
        let route = path.route;
        let named = if kind == Bare::Probe {
            self.stream_to_ask(cx)
        } else {
            None
        };
        train.start(route);
        self.push_bare(cx, at, kind, named, train);
        cx.shared.counters.trains_sent += 1;
        true
    }

    /// Puts a bare packet of path `at` at the end of a train.
    pub(super) fn push_bare(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        kind: Bare,
        named: Option<(Qpn, Token)>,
        train: &mut Train,
    ) {
        let path = &mut self.paths[at];
        path.counters.data_packets_sent += 1;
        // Between two routes there is no order: a stamp of the path would prove what it has in flight lost.
        let sent = if train.route == path.route {
            path.tx.send_bare(cx.now, kind)
        } else {
            path.tx.send_aside(cx.now)
        };
        let flags = match kind {
            Bare::Announce => BaseFlags::ANNOUNCE | BaseFlags::PROBE,
            Bare::Probe => BaseFlags::PROBE,
            Bare::Marker => BaseFlags::MARKER,
            Bare::Unreliable => BaseFlags::NONE,
        };
        let flags = flags.set(BaseFlags::BACKLOG_EMPTY, self.ready.is_empty());
        let base = self.base(at, flags, &sent);
        let (qpn, token) = named.unwrap_or((Qpn::ZERO, Token::ZERO));
        let header = DataHeader {
            opcode: Opcode::Nop,
            qpn,
            token,
            ..DataHeader::default()
        };
        train.push_bytes(&header.emit(&base));
        train.finish_segment(None);
        cx.shared.counters.data_packets_sent += 1;
    }

    // ---- CONTROL ----

    /// A CONTROL packet is due.
    pub(super) fn has_control(&self) -> bool {
        // What has no id to go to waits for the next HELLO.
        let reachable = self.state != State::Opening || self.peer.id.is_known();
        self.hello_due
            || (reachable && !self.outbox.is_empty())
            || self.candidate.is_some_and(|candidate| candidate.answer_due)
    }

    /// Builds a CONTROL packet of what is due: HELLO first, then as many items as fit.
    pub(super) fn build_control(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        train: &mut Train,
    ) -> bool {
        if self.build_candidate_hello(cx, train) {
            return true;
        }
        let mut packet = std::mem::take(&mut cx.shared.packet);
        // A goodbye has no other chance to tell of all its streams.
        let longest = match self.outbox.front() {
            Some(Item::Close(..)) => self.packet_bytes(),
            _ => self.small_packet_bytes(),
        };
        let longest = longest.max(CONTROL_OVERHEAD_BYTES);
        let mut builder = ControlBuilder::new(space(&mut packet, longest));
        if std::mem::take(&mut self.hello_due) {
            self.hello_sent_at = Some(cx.now);
            let hello = hello_item(&self.key, self.my_id, self.peer.id, cx.shared);
            let _fits = builder.push_hello(&hello);
            debug_assert!(_fits, "a HELLO fits into every packet");
        }
        let mut own_route = None;
        while let Some(item) = self.outbox.pop_front() {
            if let Item::Close(_, route) = item {
                if !builder.is_empty() {
                    self.outbox.push_front(item);
                    break;
                }
                own_route = Some(route);
            }
            if !self.push_item(cx, host, &item, &mut builder) {
                self.outbox.push_front(item);
                break;
            }
            if own_route.is_some() {
                break;
            }
        }
        let built = !builder.is_empty();
        if built {
            let turn = self.control_turn;
            self.control_turn = turn.wrapping_add(1);
            let length = builder.finish(&self.control_base(cx));
            train.start(own_route.unwrap_or_else(|| self.control_route(turn)));
            train.push_bytes(&packet[..length]);
            train.finish_segment(None);
            cx.shared.counters.control_sent += 1;
        }
        cx.shared.packet = packet;
        built
    }

    /// Over the lane of the GIDs first: before the peer's HELLO there is no other.
    fn control_route(&self, turn: usize) -> Route {
        if self.state == State::Opening {
            self.routes.over(&self.routes.first(), turn)
        } else {
            self.routes.nth(turn)
        }
    }

    fn control_base(&self, cx: &Context<'_>) -> Base {
        Base {
            flags: BaseFlags::NONE,
            path: PathId(0),
            epoch: Epoch::ZERO,
            connection: self.peer.id,
            psn: Psn::ZERO,
            stamp: Stamp::from_ns(cx.now.as_ns()),
        }
    }

    /// Appends an item; false if it does not fit. What has become void is left out.
    fn push_item(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        item: &Item,
        builder: &mut ControlBuilder<'_>,
    ) -> bool {
        match item {
            Item::Open(id) => {
                let index = self.index;
                let Some(qp) = cx.qps.get_mut(*id) else {
                    return true;
                };
                let (qpn, srq) = (qp.qpn, qp.config.shared_receive_queue);
                let Some(life) = qp
                    .life
                    .as_deref_mut()
                    .filter(|life| life.connection == Some(index))
                else {
                    return true;
                };
                let fits = builder.push_open(&Self::open_item(life, qpn, srq, host));
                life.open_due &= !fits;
                fits
            }
            Item::End(id, reason) => {
                self.tell_end(cx, *id, *reason, host);
                true
            }
            Item::Shut(shut) => builder.push_shut(shut),
            Item::ShutAnswer(shut) => builder.push_shut_answer(shut),
            Item::Close(reason, _) => {
                let blocks = self.final_blocks(cx, host);
                builder.push_close(*reason, &blocks).is_some()
            }
        }
    }

    /// The HELLO to a restarted peer: with its fresh id, in a packet of its own.
    fn build_candidate_hello(&mut self, cx: &mut Context<'_>, train: &mut Train) -> bool {
        let Some(candidate) = self
            .candidate
            .as_mut()
            .filter(|candidate| candidate.answer_due)
        else {
            return false;
        };
        candidate.answer_due = false;
        let candidate = *candidate;
        let hello = hello_item(&self.key, candidate.fresh_id, candidate.peer_id, cx.shared);
        let mut packet = std::mem::take(&mut cx.shared.packet);
        let longest = self.small_packet_bytes().max(CONTROL_OVERHEAD_BYTES);
        let mut builder = ControlBuilder::new(space(&mut packet, longest));
        let fits = builder.push_hello(&hello);
        if fits {
            let base = Base {
                connection: candidate.peer_id,
                ..self.control_base(cx)
            };
            let length = builder.finish(&base);
            train.start(self.routes.over(&self.routes.first(), self.control_turn));
            self.control_turn = self.control_turn.wrapping_add(1);
            train.push_bytes(&packet[..length]);
            train.finish_segment(None);
            cx.shared.counters.control_sent += 1;
        }
        cx.shared.packet = packet;
        fits
    }
}

/// Fills the packet under construction, which has `bytes`, up to `padded_to`.
fn pad(train: &mut Train, bytes: u32, padded_to: Option<u32>) {
    if let Some(missing) = padded_to
        .and_then(|size| size.checked_sub(bytes))
        .filter(|missing| *missing > 0)
    {
        train.push_padding(missing);
    }
}

/// A FILL for a packet of a stream that does not exist any more.
fn fill_nothing() -> DataHeader {
    DataHeader {
        opcode: Opcode::Fill,
        immediate: FillStatus::Nothing as u32,
        ..DataHeader::default()
    }
}
