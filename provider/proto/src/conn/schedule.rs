//! What leaves next, and on which path. First what was asked for (CONTROL, ACKs, bare packets), then retransmissions,
//! which nothing holds back (WIRE 4.9), then new segments: the streams of a connection take turns by trains, and each train
//! takes the path that `choose.rs` names. The packets are built in `tx.rs`.

use crate::conn::streams::List;
use crate::conn::tx::{Fill, Wire};
use crate::conn::{Connection, Context, Shared, TX_PATHS_MAX};
use crate::endpoint::qp::{Life, Phase, QpTable};
use crate::host::Host;
use crate::path::{Bare, PathTx};
use crate::stream::{Role, SegmentRef};
use crate::telemetry::SendingCounters;
use crate::train::Train;
use crate::types::{Driving, QpId, Route, Time};
use crate::wire::{DATA_HEADER_BYTES, PathId};

/// Padding a packet up to its neighbours' size costs less than a train of its own up to about this: a train costs
/// 2.6 µs of a core at the sender and about as much at the receiver, a padding byte 0.4 ns each, and it takes the wire.
const PADDING_MAX_BYTES: u32 = 2048;

/// Packets up to this size take an ACK along that is due (WIRE 5.11); for larger ones padding it costs more than it saves.
const RIDE_MAX_BYTES: u32 = 512;

/// Streams that are looked at where the window holds the first ones back: one of them may have the reserve left.
const STREAMS_TRIED: usize = 8;

/// A path and what is to be sent on it.
pub(crate) struct TxPath {
    pub tx: PathTx<SegmentRef>,
    pub route: Route,
    /// What it counted since the connection began; nothing decides by it.
    pub counters: SendingCounters,
    /// Bytes of DATA payload that it had sent when it came to its lane.
    pub sent_elsewhere_bytes: u64,
    /// It took over the route of another path, and takes a port of its own when nothing is outstanding.
    pub copied: bool,
    /// Bare packets that are due.
    pub markers_due: u8,
    pub announce_due: bool,
    pub probes_due: u8,
    /// Packets of the present search that it lost.
    pub search_losses: u8,
}

/// What comes after a segment in a train.
enum Next {
    /// Another one that fits.
    Segment(QpId, SegmentRef),
    /// Another one that does not fit into this train.
    Later,
    /// Nothing: the backlog is empty.
    Nothing,
}

impl Connection {
    /// Makes `count` paths on routes that use all lanes and ports evenly. Only before anything was sent.
    pub(super) fn make_paths(&mut self, now: Time, shared: &mut Shared, count: usize) {
        let count = count.clamp(1, TX_PATHS_MAX);
        let routes = self.routes.spread(count, &mut shared.rng);
        self.end_sending_counters(shared);
        self.paths.clear();
        self.path_deadlines = vec![None; count];
        self.excused_paths = 0;
        self.forget_probe_turns();
        (self.used_paths, self.unmarked_paths) = (0, 0);
        self.end_asking();
        self.first_path_deadline = None;
        (
            self.lost_paths,
            self.bare_paths,
            self.dirty_paths,
            self.waiting_path,
        ) = (0, 0, 0, None);
        for (at, route) in routes.into_iter().enumerate() {
            let mut tx = PathTx::new(PathId(at as u8), shared.constants, now);
            tx.set_paths(count as u32);
            self.paths.push(TxPath {
                tx,
                route,
                counters: SendingCounters::default(),
                sent_elsewhere_bytes: 0,
                copied: false,
                markers_due: 0,
                announce_due: false,
                probes_due: 0,
                search_losses: 0,
            });
        }
    }

    /// Path `at`, to do something to it that may change its deadline.
    #[inline]
    pub(super) fn path_mut(&mut self, at: usize) -> &mut TxPath {
        self.dirty_paths |= 1 << at;
        self.used_paths |= 1 << at;
        &mut self.paths[at]
    }

    /// Bytes in flight on all paths.
    pub(super) fn bytes_in_flight(&self) -> u64 {
        let mut used = self.used_paths;
        let mut bytes = 0;
        while used != 0 {
            bytes += self.paths[used.trailing_zeros() as usize]
                .tx
                .bytes_in_flight();
            used &= used - 1;
        }
        bytes
    }

    /// The stream of `id` may have something to send.
    #[inline]
    pub(crate) fn make_ready(&mut self, qps: &mut QpTable, id: QpId) {
        let index = self.index;
        let Some(life) = qps
            .life_mut(id)
            .filter(|life| life.connection == Some(index))
        else {
            return;
        };
        if !life.ready {
            life.ready = true;
            self.ready.push_back(id);
        }
        self.streams.enter(qps, id, List::Active);
    }

    /// Fills `train` with what comes before new data; false if there is nothing.
    pub(crate) fn poll_urgent(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        train: &mut Train,
    ) -> bool {
        if self.ack_may_ride() && self.poll_data_behind_ack(cx, host, train) {
            return true;
        }
        if self.ack.due > 0 && self.build_ack(cx, host, train) {
            return true;
        }
        if self.has_control() && self.build_control(cx, host, train) {
            return true;
        }
        if !self.is_open() {
            return false;
        }
        if self.build_suspicion_probe(cx, train) {
            return true;
        }
        while self.bare_paths != 0 {
            let at = self.bare_paths.trailing_zeros() as usize;
            if self.build_bare(cx, at, train) {
                return true;
            }
            self.bare_paths &= !(1 << at);
        }
        while self.lost_paths != 0 {
            let at = self.lost_paths.trailing_zeros() as usize;
            if self.build_retransmissions(cx, at, train) {
                return true;
            }
            self.lost_paths &= !(1 << at);
        }
        self.build_search(cx, train)
    }

    /// Fills `train` with the ACK that is due and small new segments behind it (WIRE 5.11); false if there are none.
    fn poll_data_behind_ack(
        &mut self,
        cx: &mut Context<'_>,
        host: &mut dyn Host,
        train: &mut Train,
    ) -> bool {
        let small = |(_, segment): (QpId, SegmentRef)| packet_bytes(&segment) <= RIDE_MAX_BYTES;
        cx.shared.config.train_segments > 1
            && self.peek_ready(cx).is_some_and(small)
            && self.poll_new(cx, Some(host), train)
    }

    /// Fills `train` with new segments; false if there is nothing that may leave now.
    pub(crate) fn poll_data(&mut self, cx: &mut Context<'_>, train: &mut Train) -> bool {
        self.is_open() && self.poll_new(cx, None, train)
    }

    /// Fills `train` with new segments, behind the ACK that is due if there is a `rider`.
    fn poll_new(
        &mut self,
        cx: &mut Context<'_>,
        rider: Option<&mut dyn Host>,
        train: &mut Train,
    ) -> bool {
        let in_flight = self.bytes_in_flight();
        let Some((id, segment)) = self.peek_ready(cx) else {
            return false;
        };
        self.window.on_wakeup(cx.now, in_flight);
        let (id, segment, room_bytes) = self.first_with_room(cx, id, segment, in_flight);
        let wire_bytes = packet_bytes(&segment);
        if room_bytes < u64::from(wire_bytes) {
            if let Some(at) = self.announce_if_cold(None) {
                self.wait_for_answers(cx, at);
            }
            return false;
        }
        if let Some(at) = self.window.paced_until(cx.now) {
            self.window_opens_at = Some(at);
            return false;
        }
        let needed = self.packets_wanted(cx, id, &segment);
        let Some(at) = self
            .path_of_short_trains(cx)
            .or_else(|| self.path_in_crowd(cx))
            .or_else(|| self.choose_path(cx, needed))
        else {
            let now = cx.now;
            let opens = self.paths.iter().filter_map(|path| path.tx.opens_at());
            self.window_opens_at = opens.filter(|at| *at > now).min();
            return false;
        };
        train.start(self.paths[at].route);
        let ack_bytes = match rider {
            Some(host) if wire_bytes <= RIDE_MAX_BYTES => {
                self.push_riding_ack(cx, host, wire_bytes, train)
            }
            _ => 0,
        };
        let train_segments = u32::from(cx.shared.config.train_segments).min(
            self.window
                .train_packets()
                .saturating_add(u32::from(ack_bytes > 0)),
        );
        let fill = Fill {
            path: at,
            segments_left: self.paths[at]
                .tx
                .room(cx.now)
                .min(train_segments - train.segments().len() as u32)
                .max(1),
            room_bytes,
            segment_bytes: wire_bytes.max(ack_bytes),
            train_bytes: cx.shared.config.train_bytes,
        };
        let emptied = self.fill_train(cx, fill, id, segment, train);
        self.window.on_sent(cx.now, u64::from(train.total_bytes()));
        let packets_left = match self.short_trains {
            Some((last, left)) if last == at => left,
            _ => self.train_packets(cx.shared),
        };
        let packets_left = packets_left.saturating_sub(train.segments().len() as u32);
        self.short_trains = (packets_left > 0 && !emptied).then_some((at, packets_left));
        if emptied {
            let packets = train.segments().len() - usize::from(ack_bytes > 0);
            self.mark_tail(cx, at, packets, train);
            self.mark_paths(cx.now, at);
        } else {
            self.announce_if_cold(Some(at));
        }
        cx.shared.counters.trains_sent += 1;
        self.spread.count(train.segments().len() as u64);
        self.wait_for_answers(cx, at);
        true
    }

    /// Sends `first`, in a train that was started, and what fits behind it. True if that emptied the backlog.
    fn fill_train(
        &mut self,
        cx: &mut Context<'_>,
        mut fill: Fill,
        id: QpId,
        first: SegmentRef,
        train: &mut Train,
    ) -> bool {
        let (mut id, mut segment) = (id, first);
        loop {
            take_segment(cx, id, &segment, self.payload_bytes);
            let next = self.next_for(cx, &fill, train, &segment);
            if let (Next::Segment(_, following), true) = (&next, train.is_empty()) {
                // The first packet sets the size of all; it may be padded up to the second.
                fill.segment_bytes = fill.segment_bytes.max(packet_bytes(following));
            }
            let wire = Wire {
                padded_to: matches!(next, Next::Segment(..)).then_some(fill.segment_bytes),
                again: false,
                last: matches!(next, Next::Nothing),
            };
            let sent_bytes = self.push_segment(cx, fill.path, &segment, &wire, train);
            fill.segments_left -= 1;
            fill.room_bytes = fill.room_bytes.saturating_sub(u64::from(sent_bytes));
            match next {
                Next::Segment(next_id, following) => (id, segment) = (next_id, following),
                Next::Later => {
                    self.end_turn(id);
                    return false;
                }
                Next::Nothing => return true,
            }
        }
    }

    /// What comes behind `pending` in the train, which has not been pushed yet.
    fn next_for(
        &mut self,
        cx: &mut Context<'_>,
        fill: &Fill,
        train: &Train,
        pending: &SegmentRef,
    ) -> Next {
        let Some((id, next)) = self.peek_ready(cx) else {
            return Next::Nothing;
        };
        let (pending_bytes, next_bytes) = (packet_bytes(pending), packet_bytes(&next));
        let size = if train.is_empty() {
            pending_bytes.max(next_bytes)
        } else {
            fill.segment_bytes
        };
        let padding = size - pending_bytes;
        let count = train.segments().len() as u32 + 2;
        // The pending packet comes off the room as well; the padding too.
        let wanted = u64::from(size) + u64::from(next_bytes);
        let fits = fill.segments_left > 1
            && next_bytes <= size
            && padding <= PADDING_MAX_BYTES
            && count * size <= fill.train_bytes
            && wanted <= fill.room_bytes;
        if !fits {
            return Next::Later;
        }
        // WIRE 4.12: a message of at most one train goes whole on one path.
        let begins = next.offset == 0 && (next.msn != pending.msn || next.qp != pending.qp);
        if begins {
            let packets = self.packets_wanted(cx, id, &next);
            if packets > fill.segments_left - 1 {
                return Next::Later;
            }
        }
        Next::Segment(id, next)
    }

    /// The next segment of the first stream that has one; streams that have none leave the queue.
    fn peek_ready(&mut self, cx: &mut Context<'_>) -> Option<(QpId, SegmentRef)> {
        while let Some(id) = self.ready.front().copied() {
            let index = self.index;
            if let Some(life) = cx.qps.life_mut(id)
                && life.connection == Some(index)
                && life.ready
            {
                if let Some(segment) = peek_segment(life, cx.now, self.payload_bytes) {
                    return Some((id, segment));
                }
                life.ready = false;
            }
            self.ready.pop_front();
        }
        None
    }

    /// The next stream has its turn.
    fn end_turn(&mut self, id: QpId) {
        if self.ready.len() > 1 && self.ready.front() == Some(&id) {
            self.ready.rotate_left(1);
        }
    }

    /// The first of the next few streams that the window lets send; else the last one looked at.
    fn first_with_room(
        &mut self,
        cx: &mut Context<'_>,
        mut id: QpId,
        mut segment: SegmentRef,
        in_flight: u64,
    ) -> (QpId, SegmentRef, u64) {
        let mut room_bytes = self.window_room(cx, id, &segment, in_flight);
        for _ in 1..self.ready.len().min(STREAMS_TRIED) {
            if room_bytes >= u64::from(packet_bytes(&segment)) {
                break;
            }
            self.ready.rotate_left(1);
            let Some(next) = self.peek_ready(cx) else {
                break;
            };
            (id, segment) = next;
            room_bytes = self.window_room(cx, id, &segment, in_flight);
        }
        (id, segment, room_bytes)
    }

    /// Bytes that may leave of a stream: the oldest incomplete message keeps a train of reserve (WIRE 6.29).
    fn window_room(
        &self,
        cx: &mut Context<'_>,
        id: QpId,
        segment: &SegmentRef,
        in_flight: u64,
    ) -> u64 {
        let room_bytes = self.window.room_bytes(in_flight);
        if !self.window.is_warm() {
            return room_bytes;
        }
        let oldest = cx.qps.life_mut(id).is_some_and(|life| match segment.role {
            Role::Request => life.requester.oldest_incomplete() == Some(segment.msn),
            Role::Response => true,
        });
        if !oldest {
            return room_bytes;
        }
        let cap_bytes = self.window.cap_bytes() + u64::from(cx.shared.config.train_bytes);
        room_bytes.max(cap_bytes.saturating_sub(in_flight))
    }

    /// Packets of the message of `segment` if it fits into one train, else 1.
    fn packets_wanted(&self, cx: &mut Context<'_>, id: QpId, segment: &SegmentRef) -> u32 {
        if segment.offset != 0 || segment.length < self.payload_bytes {
            return 1;
        }
        let Some(life) = cx.qps.life_mut(id) else {
            return 1;
        };
        let Some(message_bytes) = message_bytes(life, segment) else {
            return 1;
        };
        let packets = message_bytes
            .div_ceil(u32::from(self.payload_bytes.max(1)))
            .max(1);
        if packets <= self.train_packets(cx.shared) {
            packets
        } else {
            1
        }
    }

    /// Full packets that a train carries.
    pub(super) fn train_packets(&self, shared: &Shared) -> u32 {
        let by_bytes = shared.config.train_bytes / (self.packet_bytes() as u32);
        by_bytes.min(u32::from(shared.config.train_segments)).max(1)
    }

    /// The backlog is empty: paths that were used since their last marker get one; that of `flagged` left with its
    /// last segment (WIRE 4.11).
    fn mark_paths(&mut self, now: Time, flagged: usize) {
        let mut others = std::mem::take(&mut self.unmarked_paths) & !(1 << flagged);
        while others != 0 {
            self.owe_markers(now, others.trailing_zeros() as usize);
            others &= others - 1;
        }
    }

    /// Path `at` gets a marker, or two where packets get lost: else one tail in a hundred at 1 % loss would wait for a probe.
    pub(super) fn owe_markers(&mut self, now: Time, at: usize) {
        self.paths[at].markers_due = if self.is_lossy(now) { 2 } else { 1 };
        self.bare_paths |= 1 << at;
    }

    /// Something was lost a moment ago.
    fn is_lossy(&self, now: Time) -> bool {
        self.lossy_until.is_some_and(|until| until > now)
    }

    /// The last packet of the backlog is its own marker. It may get lost itself, and then nothing would show the gap before a
    /// probe does: a marker without payload goes behind it. Where nothing got lost lately only behind several packets, and
    /// with sockets only if it fits into their train, where it costs no send.
    fn mark_tail(&mut self, cx: &mut Context<'_>, at: usize, packets: usize, train: &mut Train) {
        let lossy = self.is_lossy(cx.now);
        let segments = train.segments();
        if !lossy && packets < 2 {
            return;
        }
        let fits = segments.len() < usize::from(cx.shared.config.train_segments)
            && train.total_bytes() + DATA_HEADER_BYTES as u32 <= cx.shared.config.train_bytes
            && segments.last().is_some_and(|last| {
                last.length == train.segment_bytes() && last.length >= DATA_HEADER_BYTES as u32
            });
        if fits {
            cx.shared.counters.markers_sent += 1;
            self.paths[at].counters.markers_sent += 1;
            self.push_bare(cx, at, Bare::Marker, None, train);
        } else if lossy || cx.shared.config.driving == Driving::Busy {
            self.paths[at].markers_due = 1;
            self.bare_paths |= 1 << at;
        }
    }

    /// A connection that does not know what it may send asks, on the path of its first packets.
    fn announce_if_cold(&mut self, at: Option<usize>) -> Option<usize> {
        if self.window.is_warm() || !self.window.take_announce() {
            return None;
        }
        let at = at.unwrap_or_else(|| {
            self.paths
                .iter()
                .position(|path| !path.tx.is_resting())
                .unwrap_or(0)
        });
        self.paths[at].announce_due = true;
        self.bare_paths |= 1 << at;
        Some(at)
    }
}

/// UDP payload bytes of a segment's packet.
pub(super) fn packet_bytes(segment: &SegmentRef) -> u32 {
    DATA_HEADER_BYTES as u32 + u32::from(segment.length)
}

/// The next segment of a life: answers and requests take turns by segments, as both have something.
fn peek_segment(life: &Life, now: Time, payload_bytes: u16) -> Option<SegmentRef> {
    // Before the peer has echoed our token, that of its life is only a guess: an answer could go to a life that is over.
    let known = life.phase != Phase::Opening;
    let response = life.responder.peek_segment(payload_bytes).filter(|_| known);
    if response.is_some() && life.answers_first {
        return response;
    }
    let request = if life.phase == Phase::Open {
        life.requester.peek_segment(now, payload_bytes)
    } else {
        None
    };
    request.or(response)
}

/// The segment that was seen by [`peek_segment`] leaves.
fn take_segment(cx: &mut Context<'_>, id: QpId, segment: &SegmentRef, payload_bytes: u16) {
    let now = cx.now;
    let Some(life) = cx.qps.life_mut(id) else {
        return;
    };
    let taken = match segment.role {
        Role::Request => life.requester.next_segment(now, payload_bytes),
        Role::Response => life.responder.next_segment(payload_bytes),
    };
    debug_assert_eq!(
        taken.as_ref(),
        Some(segment),
        "a peeked segment changed before it left"
    );
    life.answers_first = segment.role == Role::Request;
}

fn message_bytes(life: &Life, segment: &SegmentRef) -> Option<u32> {
    let described = match segment.role {
        Role::Request => life.requester.describe(segment),
        Role::Response => life.responder.describe(segment),
    };
    described.map(|described| described.header.message_bytes)
}
