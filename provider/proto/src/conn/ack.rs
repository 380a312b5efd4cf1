//! Acknowledgements: when one is due, what it says, and what one of the peer tells us (WIRE 5).
//!
//! Counted per connection: every 8 packets, or when a received batch ends, or at once where a packet asks for it. A
//! packet carries the blocks of all paths and streams that have news; what does not fit waits for the next one. Answers
//! to probes and retransmissions leave twice, so that a dead return direction costs nothing.

use std::collections::VecDeque;

use crate::cc::Correction;
use crate::conn::route::socket_address;
use crate::conn::{Connection, Context, Shared, space};
use crate::endpoint::qp::Phase;
use crate::host::Host;
use crate::path::BlockOutcome;
use crate::telemetry::log::{MoveCause, What};
use crate::train::Train;
use crate::types::{Driving, QpId, Route, Time};
use crate::wire::{
    ACK_HEADER_BYTES, AckBuilder, AckNumber, AckView, Allowance, Base, BaseFlags, Epoch,
    PATH_BLOCK_MAX_BYTES, PathId, Psn, STREAM_BLOCK_BYTES, Stamp, StreamBlock,
};

/// An ACK is due after so many packets.
const PACKETS_PER_ACK: u32 = 8;

/// And after this time, where both ends poll without sleeping; with sockets at the end of a batch.
const ACK_DELAY_NS: u64 = 8_000;

/// Least window that is ever told: two packets, so that nobody is stopped for good.
const WINDOW_FLOOR_PACKETS: u32 = 2;

/// Who wrote to a strict region is thought to go on for so long.
const STRICT_FOR_NS: u64 = 1_000_000_000;

/// What the receiving side owes the peer.
#[derive(Default)]
pub(crate) struct AckState {
    /// Number of the last ACK.
    number: AckNumber,
    /// Packets received since it.
    packets: u32,
    /// The first of them came then.
    since: Option<Time>,
    /// Packets to send: 1, or 2 for two routes.
    pub(super) due: u8,
    /// One is due at the end of the batch at the latest.
    urgent: bool,
    /// And it must be sent twice.
    twice: bool,
    /// It is for the grant alone, if there is nothing else (WIRE 8.19).
    grant: bool,
    /// Path that the next one begins with, and whose route it takes.
    turn: usize,
    /// Streams whose block has news, in turns.
    streams: VecDeque<QpId>,
    /// The packet that goes out a second time, and its route.
    copy: Vec<u8>,
    copy_route: Option<Route>,
}

impl AckState {
    /// Nothing is owed for long.
    pub(super) fn let_go(&mut self) {
        self.streams.shrink_to_fit();
        if self.copy_route.is_none() {
            self.copy = Vec::new();
        }
    }
}

impl Connection {
    // ---- Receiving side ----

    /// A packet of DATA was received.
    #[inline]
    pub(super) fn count_for_ack(&mut self, now: Time, at_once: bool, twice: bool) {
        let ack = &mut self.ack;
        ack.packets += 1;
        ack.since.get_or_insert(now);
        ack.urgent |= at_once;
        ack.twice |= twice;
        if ack.packets >= PACKETS_PER_ACK && ack.due == 0 {
            ack.urgent = true;
        }
    }

    /// The block of a stream is news.
    pub(super) fn stream_news(&mut self, cx: &mut Context<'_>, id: QpId, urgent: bool) {
        let Some(life) = cx.qps.life_mut(id) else {
            return;
        };
        if !life.news {
            life.news = true;
            self.ack.streams.push_back(id);
        }
        if urgent {
            self.ack_now(cx);
        }
    }

    /// An ACK is due at once, whatever was received.
    pub(crate) fn ack_now(&mut self, _cx: &Context<'_>) {
        self.ack.due = self.ack.due.max(1);
    }

    /// A batch of received datagrams is over.
    pub(crate) fn end_batch(&mut self, cx: &mut Context<'_>) {
        let ack = &mut self.ack;
        let at_once =
            ack.urgent || (ack.packets > 0 && cx.shared.config.driving == Driving::Sockets);
        if at_once {
            ack.due = ack.due.max(if ack.twice { 2 } else { 1 });
        }
    }

    /// When an ACK that nothing has triggered is due.
    pub(super) fn ack_deadline(&self) -> Option<Time> {
        self.ack
            .since
            .filter(|_| self.ack.due == 0)
            .map(|since| since + ACK_DELAY_NS)
    }

    /// The delay of an ACK may be over.
    pub(super) fn ack_timeout(&mut self, now: Time) {
        if self.ack_deadline().is_some_and(|at| at <= now) {
            self.ack.due = if self.ack.twice { 2 } else { 1 };
        }
    }

    /// Builds the ACK that is due.
    pub(super) fn build_ack(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        train: &mut Train,
    ) -> bool {
        if let Some(route) = self.ack.copy_route.take() {
            self.ack.due = self.ack.due.saturating_sub(1);
            train.start(route);
            train.push_bytes(&self.ack.copy);
            train.finish_segment(None);
            cx.shared.counters.acks_sent += 1;
            return true;
        }
        let Some((route, second, path, epoch)) = self.ack_routes(cx) else {
            self.ack_told();
            return false;
        };
        let twice = self.ack.due > 1;
        train.start(route);
        let length = self.push_ack(cx, host, (path, epoch), 0, train);
        if length == 0 {
            return false;
        }
        if twice && second != route {
            self.ack.copy.clear();
            self.ack.copy.extend_from_slice(&cx.shared.packet[..length]);
            self.ack.copy_route = Some(second);
            self.ack.due += 1;
        }
        true
    }

    /// Whether the ACK that is due may leave in front of new data: nothing that goes before the data is due too, and
    /// it is not to be sent twice, on two routes.
    pub(super) fn ack_may_ride(&self) -> bool {
        self.ack.due == 1
            && self.ack.copy_route.is_none()
            && self.is_open()
            && self.bare_paths == 0
            && self.lost_paths == 0
            && !self.has_control()
    }

    /// Puts the ACK that is due in front of a train of new data, padded to `least_bytes` (WIRE 5.11). Returns its
    /// bytes; 0 if it has nothing to tell.
    pub(super) fn push_riding_ack(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        least_bytes: u32,
        train: &mut Train,
    ) -> u32 {
        let Some((_, _, path, epoch)) = self.ack_routes(cx) else {
            self.ack_told();
            return 0;
        };
        self.push_ack(cx, host, (path, epoch), least_bytes as usize, train) as u32
    }

    /// Builds an ACK at the end of `train`, and leaves it in the packet buffer. Returns its bytes; 0 if it would have been
    /// empty.
    fn push_ack(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        (path, epoch): (PathId, Epoch),
        least_bytes: usize,
        train: &mut Train,
    ) -> usize {
        let mut packet = std::mem::take(&mut cx.shared.packet);
        let longest = self.small_packet_bytes().max(ACK_HEADER_BYTES);
        let mut builder = AckBuilder::new(space(&mut packet, longest));
        let paths_left = self.push_path_blocks(cx.now, &mut builder);
        let streams_left = self.push_stream_blocks(cx, host, &mut builder);
        if builder.is_empty() && !self.ack.grant {
            // What does not leave tells nothing, and so it promises nothing.
            cx.shared.packet = packet;
            self.ack_told();
            return 0;
        }
        let allowance = self.allowance(cx);
        let number = self.ack.number.next();
        let base = Base {
            flags: BaseFlags::NONE,
            path,
            epoch,
            connection: self.peer.id,
            psn: Psn::ZERO,
            stamp: Stamp::from_ns(cx.now.as_ns()),
        };
        let length = builder.finish(&base, number, &allowance, least_bytes);
        self.ack_told();
        self.ack.number = number;
        train.push_bytes(&packet[..length]);
        train.finish_segment(None);
        cx.shared.counters.acks_sent += 1;
        self.ack.due += u8::from(paths_left || streams_left);
        cx.shared.packet = packet;
        length
    }

    fn ack_told(&mut self) {
        let ack = &mut self.ack;
        ack.packets = 0;
        ack.since = None;
        ack.due = 0;
        ack.urgent = false;
        ack.twice = false;
        ack.grant = false;
        ack.turn = ack.turn.wrapping_add(1);
    }

    /// Routes of the ACK and of its copy: the plane that data came by, a source port that depends on the data's route,
    /// so that a dead return direction heals when the data moves.
    fn ack_routes(&self, cx: &Context<'_>) -> Option<(Route, Route, PathId, Epoch)> {
        let count = self.rx_paths.len();
        let route_of = |at: usize| {
            let path = &self.rx_paths[at];
            let from = path.from?;
            let local = cx.shared.config.locals.get(usize::from(path.local.0))?;
            let epoch = path.rx.epoch().unwrap_or_default();
            let turn = at
                .wrapping_mul(7)
                .wrapping_add(usize::from(epoch.0))
                .wrapping_add(self.ack.turn / count.max(1));
            let destination = socket_address(from, self.key.peer_port, local);
            let route = Route {
                local: path.local,
                source: self.routes.slot(turn),
                destination,
            };
            let copy = Route {
                source: self.routes.slot(turn + 1),
                ..route
            };
            Some((route, copy, path.rx.id(), epoch))
        };
        let in_turn = |step: usize| (self.ack.turn + step) % count;
        let mut with_news = (0..count)
            .map(in_turn)
            .filter(|at| self.rx_paths[*at].rx.has_news());
        let chosen = with_news.next().or_else(|| (count > 0).then(|| in_turn(0)));
        let Some((route, copy, path, epoch)) = chosen.and_then(route_of) else {
            // Nothing was received yet, and a stream has news: the first lane must do.
            let route = self.routes.nth(self.ack.turn);
            return Some((
                route,
                self.routes.nth(self.ack.turn + 1),
                PathId(0),
                Epoch::ZERO,
            ));
        };
        // A copy takes another plane where data comes by one.
        let other = (0..count)
            .map(in_turn)
            .filter_map(route_of)
            .find(|other| other.0.local != route.local);
        Some((route, other.map_or(copy, |other| other.0), path, epoch))
    }

    /// Grant, window and W0 for the peer.
    fn allowance(&mut self, cx: &mut Context<'_>) -> Allowance {
        let shared = &mut *cx.shared;
        let mut allowance = shared
            .fair_share
            .allowance(&mut self.inbound, shared.connections);
        // WIRE 7.5
        if self
            .strict_at
            .is_some_and(|at| cx.now.since_ns(at) < STRICT_FOR_NS)
        {
            let rate = shared.drain.bytes_per_s();
            if let (Some(rate), Some(rtt_ns)) = (rate, self.window.min_rtt_ns()) {
                shared.hold.expect(rate, rtt_ns);
            }
            let room_bytes = shared.hold.room_bytes() / shared.fair_share.active().max(1);
            let floor_bytes = WINDOW_FLOOR_PACKETS * u32::from(shared.config.payload_bytes);
            allowance.window_bytes = allowance.window_bytes.min(room_bytes.max(floor_bytes));
        }
        allowance
    }

    /// Whether the peer should hear at once that its grant has changed (WIRE 8.19).
    pub(crate) fn grant_correction(&self, shared: &mut Shared, short: bool) -> Correction {
        if self.is_open() {
            shared
                .fair_share
                .must_tell(&self.inbound, shared.connections, short)
        } else {
            Correction::None
        }
    }

    /// It is to hear that.
    pub(crate) fn correct_grant(&mut self, cx: &Context<'_>) {
        self.ack.grant = true;
        self.ack_now(cx);
    }

    fn push_path_blocks(&mut self, now: Time, builder: &mut AckBuilder<'_>) -> bool {
        let count = self.rx_paths.len();
        for step in 0..count {
            let at = (self.ack.turn + step) % count;
            let rx = &mut self.rx_paths[at].rx;
            if !rx.has_news() {
                continue;
            }
            if builder.room_bytes() < PATH_BLOCK_MAX_BYTES {
                return true;
            }
            if let Some(block) = rx.block(now) {
                let fits = builder.push_path(&block);
                debug_assert!(fits, "room was asked for");
            }
        }
        false
    }

    fn push_stream_blocks(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        builder: &mut AckBuilder<'_>,
    ) -> bool {
        self.ended.push_blocks(|block| builder.push_stream(block));
        for _ in 0..self.ack.streams.len() {
            if builder.room_bytes() < STREAM_BLOCK_BYTES {
                return true;
            }
            let Some(id) = self.ack.streams.pop_front() else {
                break;
            };
            let Some(life) = cx.qps.life_mut(id) else {
                continue;
            };
            if !life.news || life.connection != Some(self.index) {
                continue;
            }
            life.news = false;
            if !life.responder.has_news() {
                continue;
            }
            let fits = builder.push_stream(&life.responder.take_block(host));
            debug_assert!(fits, "room was asked for");
            if life.responder.has_news() {
                life.news = true;
                self.ack.streams.push_back(id);
            }
        }
        false
    }

    // ---- Sending side ----

    /// Takes an ACK of the peer.
    pub(crate) fn handle_ack(&mut self, cx: &mut Context<'_>, view: &AckView<'_>) {
        self.heard(cx.now);
        cx.shared.counters.acks_received += 1;
        // What has no path blocks answers nothing that was sent.
        let answers = view.path_blocks().next().is_some();
        self.window
            .on_ack(cx.now, view.number(), view.allowance, answers);
        for block in view.path_blocks() {
            let at = usize::from(block.path.0);
            if at >= self.paths.len() {
                cx.shared.counters.dropped_out_of_window += 1;
                continue;
            }
            let window = self.window_if_logged(cx, at);
            let mut acked = std::mem::take(&mut cx.shared.acked);
            let outcome = self
                .path_mut(at)
                .tx
                .handle_block(cx.now, &block, &mut acked);
            for segment in acked.drain(..) {
                match segment.padding_for() {
                    None => self.packet_acked(cx, &segment),
                    Some(payload_bytes) => self.search_arrived(cx, at, payload_bytes),
                }
            }
            cx.shared.acked = acked;
            self.after_block(cx, at, &outcome);
            self.log_cut(cx, at, window, outcome.ce, outcome.lost);
        }
        for block in view.stream_blocks() {
            self.handle_stream_block(cx, &block);
        }
        self.end_waiting(cx);
    }

    fn packet_acked(&mut self, cx: &mut Context<'_>, segment: &crate::stream::SegmentRef) {
        let Some(life) = cx.qps.life_of_record(segment.qp, segment.life) else {
            return;
        };
        match segment.role {
            crate::stream::Role::Request => life.requester.packet_acked(segment),
            crate::stream::Role::Response => life.responder.packet_acked(segment),
        }
    }

    fn after_block(&mut self, cx: &mut Context<'_>, at: usize, outcome: &BlockOutcome) {
        let counters = &mut cx.shared.counters;
        if outcome.invalid {
            counters.dropped_out_of_window += 1;
            return;
        }
        counters.spurious_retransmissions += u64::from(outcome.spurious);
        counters.ce_echoed += u64::from(outcome.ce);
        let path = &mut self.paths[at].counters;
        path.spurious_retransmissions += u64::from(outcome.spurious);
        path.ce_echoed += u64::from(outcome.ce);
        if outcome.lost > 0 {
            self.count_lost(cx, at, outcome.lost);
            self.lost_paths |= 1 << at;
        }
        self.wide_enough_for(cx.now, outcome.largest_acked_bytes);
        if let Some(bytes) = outcome.hole_bytes {
            self.handle_hole(cx, at, bytes);
        }
        if outcome.woke {
            self.log_path(cx, at, What::PathReturns);
            self.even_out(cx, at);
        }
        if outcome.news && self.first_asking == Some(at) {
            self.end_asking();
        }
        if let Some(sent_at) = outcome.answered_sent_at {
            self.note_answer(sent_at);
        }
        if let Some(rtt_ns) = outcome.rtt_ns {
            self.latest_rtt_ns = rtt_ns;
            self.tell_round_trip(at);
        }
        if self.paths[at].copied && outcome.news && self.paths[at].tx.is_idle() {
            self.take_port(cx, at, MoveCause::OwnPort);
        }
    }

    /// The window follows the least round trip of all paths; looked for only when a sample may have changed it.
    fn tell_round_trip(&mut self, at: usize) {
        let ack_delay_ns = self.paths[at].tx.rtt().ack_delay_ns();
        if let Some(min_rtt_ns) = self
            .paths
            .iter()
            .filter_map(|path| path.tx.min_rtt_ns())
            .min()
        {
            self.window.set_round_trip(min_rtt_ns, ack_delay_ns);
        }
    }

    /// Takes the block of a stream of ours.
    pub(super) fn handle_stream_block(&mut self, cx: &mut Context<'_>, block: &StreamBlock) {
        let index = self.index;
        let Some(qp) = cx.qps.by_qpn(block.qpn) else {
            return;
        };
        let id = qp.id;
        let Some(life) = qp.life.as_deref_mut() else {
            return;
        };
        if life.connection != Some(index) || life.token != block.token {
            cx.shared.counters.dropped_bad_token += 1;
            return;
        }
        if life.phase != Phase::Open {
            return;
        }
        let rnr_before = life.requester.rnr_count();
        let result = life
            .requester
            .handle_stream_block(cx.now, block, &mut cx.shared.events);
        cx.shared.counters.rnr_received += life.requester.rnr_count() - rnr_before;
        let refused = life.requester.take_refusal();
        if let Some((msn, code)) = refused {
            self.log_stream(cx, id, What::RefusedByPeer { msn, code });
        }
        if let Err(failure) = result {
            self.fail_by_request(cx, id, failure);
            return;
        }
        self.watch_rnr(cx, id);
        self.make_ready(cx.qps, id);
    }
}
