//! The sending half of a path: PSNs, the sent ring, round trips, loss, probes and the window, in one place.
//!
//! `conn/` asks [`PathTx::can_send`] and [`PathTx::room`], calls `send_*` for each packet that it emits and
//! [`PathTx::handle_block`] for each path block that arrives, retransmits what [`PathTx::next_lost`] names, and does
//! what [`PathTx::handle_timeout`] says. Routes are the caller's; the path only learns that it moved.
//!
//! Queries are in `tx/queries.rs`, what stays of a path that rests for long in `tx/parked.rs`. Invariant: while anything is outstanding, while the caller waits, and while the path rests, there is a timeout.

mod parked;
mod queries;

pub use parked::ParkedTx;

use crate::cc::{Feedback, PathWindow};
use crate::path::bare::BareLog;
use crate::path::bits::Bits;
use crate::path::loss::{LossDetector, Verdicts};
use crate::path::probe::{ProbeTimer, Waiting};
use crate::path::sent::SentRing;
use crate::path::{
    Bare, BlockOutcome, Constants, EPOCHS_AHEAD_MAX, IDLE_EPOCH_NS, PROBE_UNKNOWN_NS, PathAction,
    RTO_FLOOR_NS, RoundTrip, SPAN_PACKETS, Sent,
};
use crate::types::{Driving, Time};
use crate::wire::{Epoch, PathBlock, PathId, Psn, Stamp};

/// A move leaves what is in flight so many round trips to arrive.
const MOVE_GRACE_RTTS: u64 = 2;
/// The most that this comes to: one sample may hold a pause of the peer, of half a minute as well, and no queue is so long.
const MOVE_GRACE_MAX_NS: u64 = 500_000_000;

/// The sending half of a path; `R` is the caller's record of a packet, handed back when it is acknowledged or lost.
#[derive(Debug)]
pub struct PathTx<R> {
    id: PathId,
    driving: Driving,
    epoch: Epoch,
    /// Newest epoch that the peer has received something of.
    heard: Option<Epoch>,
    first_epoch: Epoch,
    /// The latest transmission (its low 32 bits are the stamp), and the clock then.
    last_transmission: u64,
    first_transmission: u64,
    last_sent: Option<Time>,
    /// Largest transmission that was echoed.
    echoed: u64,
    ring: SentRing<R>,
    bare: BareLog,
    loss: LossDetector,
    probe: ProbeTimer,
    rtt: RoundTrip,
    window: PathWindow,
    caller_waits: bool,
    last_ack: Option<Time>,
    counts: PeerCounts,
}

/// The peer's counters as of its newest block.
#[derive(Clone, Copy, Debug, Default)]
struct PeerCounts {
    received: u16,
    ce: u16,
    duplicates: u16,
}

impl<R: Copy> PathTx<R> {
    /// A path that has sent nothing yet: PSNs and epochs start at 0.
    #[must_use]
    pub fn new(id: PathId, constants: Constants, now: Time) -> Self {
        Self::starting_at(id, constants, now, Psn::ZERO, Epoch::ZERO)
    }

    pub(super) fn starting_at(
        id: PathId,
        constants: Constants,
        now: Time,
        psn: Psn,
        epoch: Epoch,
    ) -> Self {
        let window = PathWindow::new(constants.algorithm);
        Self::with_window(id, constants.driving, now, psn, epoch, window)
    }

    fn with_window(
        id: PathId,
        driving: Driving,
        now: Time,
        psn: Psn,
        epoch: Epoch,
        window: PathWindow,
    ) -> Self {
        Self {
            id,
            driving,
            epoch,
            heard: None,
            first_epoch: epoch,
            last_transmission: 0,
            first_transmission: 0,
            last_sent: None,
            echoed: 0,
            ring: SentRing::new(psn),
            bare: BareLog::default(),
            loss: LossDetector::default(),
            probe: ProbeTimer::new(driving, now),
            rtt: RoundTrip::new(now),
            window,
            caller_waits: false,
            last_ack: None,
            counts: PeerCounts::default(),
        }
    }

    // ---- Sending ----

    /// New packets that window and span let out now, resting or not (the last path of a connection never rests, and
    /// only the connection knows whether this is the last one).
    #[must_use]
    pub fn room(&self, now: Time) -> u32 {
        let in_flight = self.ring.packets_in_flight();
        let span = SPAN_PACKETS - self.ring.span();
        self.window.room(now, in_flight, self.last_sent).min(span)
    }

    /// Whether a new packet may be sent now: the path does not rest and has room.
    #[must_use]
    pub fn can_send(&self, now: Time) -> bool {
        !self.is_resting() && self.room(now) > 0
    }

    /// When a window of less than one packet opens next; nothing else than acknowledgements opens a larger one.
    #[must_use]
    pub fn opens_at(&self) -> Option<Time> {
        if self.ring.packets_in_flight() > 0 || self.ring.span() == SPAN_PACKETS {
            return None;
        }
        self.window.opens_at(self.last_sent)
    }

    /// Numbers a new packet of `bytes` and keeps its record until it is acknowledged.
    ///
    /// # Panics
    /// If 256 packets are outstanding: ask [`Self::room`] first.
    pub fn send_new(&mut self, now: Time, record: R, bytes: u32) -> Sent {
        let sent = self.next_transmission(now);
        self.start_timers(now);
        let transmission = self.last_transmission;
        let psn = self.ring.push(record, bytes, transmission, now, self.epoch);
        debug_assert_eq!(psn, sent.psn);
        sent
    }

    /// The lowest packet that is lost and waits to be sent again on this path. Never held back by windows.
    #[must_use]
    pub fn next_lost(&self) -> Option<(Psn, R)> {
        self.ring.first_lost()
    }

    /// Sends a lost packet again: same PSN, new stamp. To be called for what [`Self::next_lost`] named.
    pub fn send_again(&mut self, now: Time, psn: Psn) -> Sent {
        let sent = self.next_transmission(now);
        if self.ring.packets_in_flight() == 0 {
            self.probe.on_flight_resumes(now);
        }
        let was_lost = self
            .ring
            .push_again(psn, self.last_transmission, now, self.epoch);
        debug_assert!(was_lost, "{psn} does not wait to be sent again");
        Sent { psn, ..sent }
    }

    /// Something else takes the place of an outstanding packet (a FILL whose content is gone): the PSN stays.
    pub fn replace(&mut self, psn: Psn, record: R, bytes: u32) {
        self.ring.replace(psn, record, bytes);
    }

    /// Packets as large as any that was lost were proved to pass: a hole would be a new one.
    pub fn forget_sizes(&mut self) {
        self.loss.sizes_mut().forget();
    }

    /// Stamps a packet without a PSN of its own.
    pub fn send_bare(&mut self, now: Time, kind: Bare) -> Sent {
        let sent = self.next_transmission(now);
        if kind != Bare::Unreliable {
            self.bare.push(self.last_transmission, now, kind);
        }
        sent
    }

    /// Stamps a packet without a PSN of its own that leaves by another route than the path's, of which there is no
    /// order with what the path has in flight: its stamp must prove nothing (WIRE 4.23). While anything is in flight it repeats
    /// what the peer has echoed, or what was before the first transmission; the peer answers it all the same.
    pub fn send_aside(&mut self, now: Time) -> Sent {
        if self.ring.packets_in_flight() == 0 {
            return self.next_transmission(now);
        }
        let (transmission, epoch) = match self.heard {
            Some(heard) => (self.echoed, heard),
            None => (self.first_transmission - 1, self.first_epoch),
        };
        Sent {
            psn: self.ring.next_psn(),
            stamp: Stamp(transmission as u32),
            epoch,
        }
    }

    fn next_transmission(&mut self, now: Time) -> Sent {
        // WIRE 2.10
        if self
            .last_sent
            .is_some_and(|at| now.since_ns(at) >= IDLE_EPOCH_NS)
        {
            self.begin_epoch(now);
        }
        // WIRE 2.9
        let clock = now.as_ns() / Stamp::UNIT_NS;
        self.last_transmission = clock.max(self.last_transmission + 1);
        if self.last_sent.is_none() {
            self.first_transmission = self.last_transmission;
        }
        self.last_sent = Some(now);
        Sent {
            psn: self.ring.next_psn(),
            // The low 32 bits are what travels.
            stamp: Stamp(self.last_transmission as u32),
            epoch: self.epoch,
        }
    }

    fn start_timers(&mut self, now: Time) {
        if self.ring.is_empty() {
            self.probe.on_first_outstanding(now);
        }
    }

    // ---- Acknowledgements ----

    /// Takes one path block; the records of packets that it newly acknowledges are added to `acked`, in PSN order.
    /// Blocks may arrive in any order and more than once (WIRE 5.8).
    pub fn handle_block(
        &mut self,
        now: Time,
        block: &PathBlock,
        acked: &mut Vec<R>,
    ) -> BlockOutcome {
        let Some((received, echo)) = self.check(block) else {
            return BlockOutcome {
                invalid: true,
                ..BlockOutcome::default()
            };
        };
        let in_flight_before = self.ring.packets_in_flight();
        let mut outcome = BlockOutcome::default();
        let echoed_sent_at = self.take_received(now, &received, echo, acked, &mut outcome);
        let present = block.epoch == self.epoch;
        // The peer's echo and its counters never fall, but numbers of what is on the wire wrap: an old block may look new.
        // An echo of 0 tells nothing: the peer may hear nothing newer than that until a new epoch begins.
        let (newer, old) = (echo > self.echoed, echo != 0 && echo < self.echoed);
        outcome.news = outcome.acked_packets > 0 || newer;
        outcome.route_works = present && newer;
        let bare = self.bare.take_echoed(echo);
        outcome.probe_answered =
            self.probe.unanswered() > 0 && (outcome.route_works || bare.is_some_and(is_probe));
        if outcome.route_works {
            outcome.answered_sent_at = echoed_sent_at.or(bare.map(|(at, _)| at));
            outcome.rtt_ns = self.sample(now, outcome.answered_sent_at, block);
            self.last_ack = Some(now);
            outcome.woke = self.probe.on_route_works();
        }
        self.echoed = self.echoed.max(echo);
        // What is of a newer epoch is later in time, too.
        if !old && self.heard.is_none_or(|heard| heard.is_before(block.epoch)) {
            self.heard = Some(block.epoch);
        }
        if !old {
            self.take_counts(now, block, &mut outcome);
        }
        let verdicts = self.judge(now, block.epoch, echo);
        outcome.lost = verdicts.lost;
        outcome.hole_bytes = self.loss.sizes_mut().take_hole_bytes();
        if outcome.news {
            self.probe.on_news(now);
        }
        if outcome.acked_packets > 0 || outcome.lost > 0 {
            self.probe.on_progress(now);
        }
        self.window.on_feedback(
            now,
            &Feedback {
                acked_packets: outcome.acked_packets,
                in_flight_before,
                received: u32::from(outcome.received),
                marked: u32::from(outcome.ce),
                lost: verdicts.lost,
                burst_lost: verdicts.burst,
                spurious: u32::from(outcome.spurious),
                rtt_ns: outcome.rtt_ns,
                ..self.feedback()
            },
        );
        outcome
    }

    /// A block that speaks of what was never sent is not used. Returns what it says was received, relative to the
    /// ring's base, and the transmission that it echoes.
    fn check(&self, block: &PathBlock) -> Option<(Bits, u64)> {
        self.last_sent?;
        let base = self.ring.base();
        let vector = Bits::from_vector(&block.vector);
        let ahead = base.distance(block.cumulative);
        let received = if ahead >= 0 {
            let ahead = ahead as u32;
            let top = vector.last().map_or(ahead, |last| ahead + last + 1);
            if top > self.ring.span() {
                return None;
            }
            Bits::lowest(ahead).union(&vector.shifted_up(ahead))
        } else {
            // An older block: what it acknowledged below the base is known already.
            let received = vector.shifted_down(ahead.unsigned_abs());
            if received.last().is_some_and(|last| last >= self.ring.span()) {
                return None;
            }
            received
        };
        if block.epoch.is_after(self.epoch) {
            return None;
        }
        // Unlike the stamps themselves this does not wrap. What is later than the latest transmission seems to be from
        // long ago; an echo of neither tells anything.
        let age = Stamp(self.last_transmission as u32).since(block.echoed_stamp);
        let echo = match age <= u32::MAX / 2 {
            true => self.last_transmission.saturating_sub(u64::from(age)),
            false => 0,
        };
        Some((received, echo))
    }

    /// Takes what is newly acknowledged out of the ring. Returns when the echoed transmission was sent, if it is there.
    fn take_received(
        &mut self,
        now: Time,
        received: &Bits,
        echo: u64,
        acked: &mut Vec<R>,
        outcome: &mut BlockOutcome,
    ) -> Option<Time> {
        let mut echoed_sent_at = None;
        let mut newly = received.intersection(self.ring.unacked());
        if newly.is_empty() {
            return None;
        }
        while let Some(index) = newly.pop_first() {
            let slot = self.ring.acknowledge(index);
            outcome.acked_packets += 1;
            outcome.acked_bytes += u64::from(slot.bytes);
            outcome.largest_acked_bytes = outcome.largest_acked_bytes.max(slot.bytes);
            self.loss.sizes_mut().on_arrived(slot.bytes);
            if slot.transmission == echo {
                echoed_sent_at = Some(slot.sent_at);
            }
            if slot.transmissions == 1 && slot.epoch != self.epoch {
                let until = now + self.grace_ns();
                self.loss.note_older(slot.epoch, slot.transmission, until);
            }
            acked.push(slot.record);
        }
        self.ring.advance();
        echoed_sent_at
    }

    fn sample(&mut self, now: Time, sent_at: Option<Time>, block: &PathBlock) -> Option<u64> {
        let delay_ns = block.ack_delay.as_ns()?;
        self.rtt.sample(now, now.since_ns(sent_at?), delay_ns)
    }

    /// The peer's counters never fall, so the block with more packets received is the newer one.
    fn take_counts(&mut self, now: Time, block: &PathBlock, outcome: &mut BlockOutcome) {
        let received = block.received.wrapping_sub(self.counts.received);
        if received == 0 || received > u16::MAX / 2 {
            return;
        }
        outcome.received = received;
        outcome.ce = block.ce_count.wrapping_sub(self.counts.ce).min(received);
        outcome.spurious = block
            .duplicates
            .wrapping_sub(self.counts.duplicates)
            .min(received);
        self.counts = PeerCounts {
            received: block.received,
            ce: block.ce_count,
            duplicates: block.duplicates,
        };
        if outcome.spurious > 0 {
            self.loss.on_spurious(now, &self.rtt);
        }
    }

    fn judge(&mut self, now: Time, epoch: Epoch, echo: u64) -> Verdicts {
        let mut verdicts = Verdicts::default();
        if epoch == self.epoch {
            verdicts += self.loss.on_arrived(now, &mut self.ring, echo, &self.rtt);
        } else {
            let until = now + self.grace_ns();
            self.loss.note_older(epoch, echo, until);
        }
        verdicts += self.loss.judge_older(&mut self.ring);
        verdicts += self.loss.expire(now, &mut self.ring, self.heard, &self.rtt);
        verdicts
    }

    fn feedback(&self) -> Feedback {
        Feedback {
            smoothed_ns: self.rtt.smoothed_ns(),
            min_ns: self.rtt.min_ns(),
            noise_ns: self.driving.rtt_noise_ns(),
            ..Feedback::default()
        }
    }

    // ---- Time ----

    /// When [`Self::handle_timeout`] has something to do. Always set while anything is outstanding.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.waiting();
        let probe = self.probe.probe_due(waiting, &self.rtt);
        // The last resort is not due before a verdict.
        let last = self.loss.poll_timeout(&self.ring, self.heard);
        let last = last.or_else(|| self.probe.rto_due(waiting, &self.rtt));
        match (probe, last) {
            (Some(probe), Some(last)) => Some(probe.min(last)),
            (probe, last) => probe.or(last),
        }
    }

    /// Does what is due and says what the caller must do; see [`PathAction`]. If more is due, the next
    /// [`Self::poll_timeout`] is not in the future.
    ///
    /// `excused_until`: until then the silence shows nothing about the route, and no probe is sent (WIRE 4.29).
    pub fn handle_timeout(&mut self, now: Time, excused_until: Option<Time>) -> PathAction {
        let verdicts = self.loss.expire(now, &mut self.ring, self.heard, &self.rtt);
        if verdicts.lost > 0 {
            self.probe.on_progress(now);
            self.window.on_feedback(
                now,
                &Feedback {
                    lost: verdicts.lost,
                    burst_lost: verdicts.burst,
                    ..self.feedback()
                },
            );
            return PathAction::Lost(verdicts.lost);
        }
        let waiting = self.waiting();
        let due = |at: Option<Time>| at.is_some_and(|at| now >= at);
        if due(self.rto_due(waiting)) {
            self.probe.on_rto(now);
            self.give_oldest_up(now);
            return PathAction::Rto;
        }
        if due(self.probe.probe_due(waiting, &self.rtt)) {
            if let Some(until) = excused_until {
                self.probe.excuse(until);
                return PathAction::None;
            }
            return self.probe.on_probe_due(now, waiting);
        }
        PathAction::None
    }

    /// What others sent later was answered: if a probe was due, it is (WIRE 4.29).
    pub fn end_excuse(&mut self) {
        self.probe.end_excuse();
    }

    /// Whether a probe is due.
    #[must_use]
    pub fn is_probe_due(&self, now: Time) -> bool {
        let due = self.probe.probe_due(self.waiting(), &self.rtt);
        due.is_some_and(|at| at <= now)
    }

    /// A probe that is due has its turn at `until`, and the last resort comes after that (WIRE 4.33).
    pub fn postpone_probe(&mut self, until: Time) {
        self.probe.postpone(until);
    }

    /// The turn comes now.
    pub fn end_postponement(&mut self, now: Time) {
        self.probe.end_postponement(now);
    }

    /// When the last resort is due (WIRE 4.17): not before a verdict that waits for its time, which settles the same and
    /// costs no window. Without this a path whose move was a success would time out all the same just before the verdict,
    /// wherever the round trip is long enough.
    fn rto_due(&self, waiting: Waiting) -> Option<Time> {
        let due = self.probe.rto_due(waiting, &self.rtt)?;
        let verdict = self.loss.poll_timeout(&self.ring, self.heard);
        Some(verdict.map_or(due, |at| due.max(at)))
    }

    /// One packet is enough (WIRE 4.17): when it arrives, its echo proves what became of all the others.
    fn give_oldest_up(&mut self, now: Time) {
        let oldest = self.ring.oldest_older().or(self.ring.oldest_recent());
        if let Some((psn, _)) = oldest {
            self.ring.declare_lost(psn);
        }
        self.loss.excuse(now + RTO_FLOOR_NS + self.grace_ns());
        self.window.on_rto(now);
    }

    fn waiting(&self) -> Waiting {
        Waiting {
            outstanding: !self.ring.is_empty(),
            in_flight: self.ring.packets_in_flight() > 0,
            caller: self.caller_waits,
        }
    }

    /// The caller waits for something that only the peer can tell although nothing is outstanding (a message is not
    /// executed, a response is missing): probes go out as if something were.
    pub fn set_waiting(&mut self, now: Time, waits: bool) {
        if waits && !self.caller_waits {
            let idle = self.ring.is_empty() && !self.is_resting();
            self.probe.on_caller_waits(now, idle);
        }
        self.caller_waits = waits;
    }

    /// The caller waits, but found nothing to ask for now: it looks again as much later as if a probe had been sent.
    pub fn wait_longer(&mut self, now: Time) {
        self.probe.on_look_in_vain(now);
    }

    // ---- Moves ----

    /// The path is on another route from now on: a new epoch begins, unless the path is already as far ahead of the
    /// peer as epochs can be told apart. Nothing is declared lost by that.
    pub fn move_to(&mut self, now: Time) {
        self.begin_epoch(now);
        self.rtt.on_move(now);
        self.window.on_move(now);
        self.probe.on_move();
        self.last_ack = None;
    }

    /// No new packets until the present route has answered a probe, which the caller sends now: for a move to a port
    /// that nobody has tried.
    pub fn rest_until_proved(&mut self, now: Time) {
        self.probe.rest(now);
    }

    fn begin_epoch(&mut self, now: Time) {
        if !self.can_begin_epoch() {
            return;
        }
        let left = self.epoch;
        self.epoch = left.next();
        self.ring.age();
        self.loss.on_move(left, now + self.grace_ns());
    }

    /// WIRE 4.13: whether a move begins a new epoch, or is already as far ahead of the peer as epochs can be told apart.
    #[must_use]
    pub fn can_begin_epoch(&self) -> bool {
        let known = self.heard.unwrap_or(self.first_epoch);
        self.epoch.since(known) < EPOCHS_AHEAD_MAX
    }

    fn grace_ns(&self) -> u64 {
        match self.rtt.guess_ns() {
            Some(rtt_ns) => {
                (MOVE_GRACE_RTTS * rtt_ns + self.rtt.ack_delay_ns()).min(MOVE_GRACE_MAX_NS)
            }
            None => PROBE_UNKNOWN_NS,
        }
    }
}

fn is_probe((_, kind): (Time, Bare)) -> bool {
    kind == Bare::Probe
}
