//! When is a packet lost? The verdicts of one path.
//!
//! **By order** (WIRE 4.5). The network keeps the order of what it carries on one route, and an epoch is one route. A block is a
//! snapshot of the receiver: it had seen the echoed transmission of that epoch when it wrote the bitvector. Whatever
//! was sent earlier on the same epoch would have arrived before; if the bitvector does not have it, it is lost. The
//! argument holds for first transmissions and retransmissions alike, because the list is in the order of the *latest*
//! transmission of each packet, and for any later transmission that is echoed, marker and probe too. Blocks that
//! overtake each other do no harm: an older one has an older echo, about which all is said already.
//!
//! **By order on an older epoch** (WIRE 4.7). The receiver echoes its newest epoch only, but a packet that was sent just once and
//! is acknowledged names its transmission too: what was sent before it on its epoch and is missing is lost.
//!
//! **By time after a move** (WIRE 4.7). Two routes have no order between them: what is in flight on the old one may still come.
//! It is lost two round trips after the move, or after the last arrival by the old route if that was later (a queue
//! that still empties itself may be longer than the estimate), and only if the peer has been heard to receive
//! something of a later epoch: while it is silent nothing is known (it may merely not run), and nothing is
//! retransmitted.
//!
//! **Tolerance** (WIRE 4.6). Where order does not quite hold, retransmissions are spurious, the receiver counts duplicates, and
//! the tolerance becomes a time: by that much later must the echoed transmission have been sent, or so long ago must
//! the verdict have been due. It falls back to 0 by and by. Duplicates after a verdict by time do not raise it.
//!
//! **Nothing is stuck.** A packet in flight ends acknowledged or lost as soon as anything sent after it arrives, and
//! the probe timer (`probe.rs`) sees to it that something is sent after it. What the tolerance or a move holds back
//! has a deadline in [`LossDetector::poll_timeout`].

use std::collections::VecDeque;
use std::ops::AddAssign;

use crate::path::pmtu::HoleEvidence;
use crate::path::sent::SentRing;
use crate::path::{EPOCHS_AHEAD_MAX, RoundTrip};
use crate::types::Time;
use crate::wire::{Epoch, Psn, Stamp};

/// Least tolerance that is worth having; a smaller one falls to 0.
const TOLERANCE_MIN_NS: u64 = 1_000;
/// Largest tolerance, in round trips: beyond that a probe's answer is as quick.
const TOLERANCE_MAX_RTTS: u64 = 2;
/// The tolerance halves after so many round trips without a spurious retransmission.
const DECAY_RTTS: u64 = 16;
/// Losses in a row, in the order of their PSNs, that are called a burst. At 10 % random loss one in 10,000 packets
/// begins one.
const BURST_PACKETS: u32 = 4;
/// Round trip assumed for the tolerance where there is no sample.
const UNKNOWN_RTT_NS: u64 = 1_000_000;

/// Verdicts of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdicts {
    /// Packets declared lost.
    pub(super) lost: u32,
    /// Some of them in a row.
    pub(super) burst: bool,
}

impl AddAssign for Verdicts {
    fn add_assign(&mut self, other: Self) {
        self.lost += other.lost;
        self.burst |= other.burst;
    }
}

/// Counts verdicts and looks for bursts.
#[derive(Default)]
struct Count {
    verdicts: Verdicts,
    run: u32,
    expected: Option<Psn>,
}

impl Count {
    /// Declares `psn` lost.
    fn lose<R: Copy>(&mut self, ring: &mut SentRing<R>, psn: Psn) {
        ring.declare_lost(psn);
        self.run = if self.expected == Some(psn) {
            self.run + 1
        } else {
            1
        };
        self.expected = Some(psn.next());
        self.verdicts.lost += 1;
        self.verdicts.burst |= self.run >= BURST_PACKETS;
    }
}

/// An epoch that the path left.
#[derive(Clone, Copy, Debug)]
struct LeftEpoch {
    epoch: Epoch,
    /// From then on its packets are lost.
    deadline: Time,
    /// Largest transmission of it that is known to have arrived.
    arrived: u64,
}

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct LossDetector {
    /// Largest transmission of the present epoch that is known to have arrived.
    arrived: u64,
    /// Verdicts by order that are held back: on what was sent before, from when on.
    held_back: Option<(u64, Time)>,
    /// Epochs that the path left and that may have packets in flight: consecutive, oldest first, at most as many as
    /// the path may be ahead.
    left: VecDeque<LeftEpoch>,
    /// Largest arrival on one of these that has not been judged by yet.
    arrived_older: u64,
    tolerance_ns: u64,
    decay_at: Time,
    excused_until: Time,
    /// Sizes of what was lost by order.
    sizes: HoleEvidence,
}

impl LossDetector {
    pub(super) fn tolerance_ns(&self) -> u64 {
        self.tolerance_ns
    }

    /// A transmission of the present epoch has arrived; acknowledged packets are out of the ring already.
    pub(super) fn on_arrived<R: Copy>(
        &mut self,
        now: Time,
        ring: &mut SentRing<R>,
        transmission: u64,
        rtt: &RoundTrip,
    ) -> Verdicts {
        self.arrived = self.arrived.max(transmission);
        self.decay(now, rtt);
        let verdicts = if self.sizes.next_round_at().is_some_and(|at| now < at) {
            Verdicts::default()
        } else {
            let before = self.arrived.saturating_sub(self.tolerance_units());
            self.judge_recent(now, ring, before)
        };
        self.hold_back(now, ring);
        verdicts
    }

    /// One round of verdicts by order: on what was sent on the present epoch before a transmission.
    fn judge_recent<R: Copy>(
        &mut self,
        now: Time,
        ring: &mut SentRing<R>,
        before: u64,
    ) -> Verdicts {
        let verdicts = lose_recent(ring, before, &mut self.sizes);
        self.sizes.end_round(now);
        verdicts
    }

    /// What large packets came to: see `pmtu.rs`.
    pub(super) fn sizes_mut(&mut self) -> &mut HoleEvidence {
        &mut self.sizes
    }

    /// A transmission of an older epoch has arrived: its route is still emptying itself, what comes after on it has
    /// at least `until`. Verdicts follow by [`Self::judge_older`].
    pub(super) fn note_older(&mut self, epoch: Epoch, transmission: u64, until: Time) {
        let Some(left) = self.left_mut(epoch) else {
            return;
        };
        if transmission > left.arrived {
            left.arrived = transmission;
            left.deadline = left.deadline.max(until);
            self.arrived_older = self.arrived_older.max(transmission);
        }
    }

    /// Verdicts by order on older epochs, after new arrivals. The list is in the order of transmissions, so the walk
    /// ends at the latest arrival; it passes over packets of other old epochs only while several of them have packets
    /// in flight, which is rare and never more than the ring holds.
    pub(super) fn judge_older<R: Copy>(&mut self, ring: &mut SentRing<R>) -> Verdicts {
        let until = std::mem::take(&mut self.arrived_older);
        let tolerance = self.tolerance_units();
        let mut count = Count::default();
        let mut at = ring.oldest_older().map(|(psn, _)| psn);
        while let Some(psn) = at {
            let Some(slot) = ring.get(psn) else { break };
            if slot.transmission >= until {
                break;
            }
            let arrived = self.left(slot.epoch).map_or(0, |left| left.arrived);
            let lost = slot.transmission + tolerance < arrived;
            at = ring.sent_after(psn).map(|(next, _)| next);
            if lost {
                count.lose(ring, psn);
            }
        }
        count.verdicts
    }

    /// What time alone decides: see the file's head. `heard` is the newest epoch of which something has arrived.
    pub(super) fn expire<R: Copy>(
        &mut self,
        now: Time,
        ring: &mut SentRing<R>,
        heard: Option<Epoch>,
        rtt: &RoundTrip,
    ) -> Verdicts {
        let mut verdicts = self.expire_older(now, ring, heard, rtt);
        if let Some((before, at)) = self.held_back
            && now >= at
        {
            verdicts += self.judge_recent(now, ring, before);
            self.held_back = None;
            self.hold_back(now, ring);
        }
        verdicts
    }

    /// When [`Self::expire`] has something to decide.
    pub(super) fn poll_timeout<R: Copy>(
        &self,
        ring: &SentRing<R>,
        heard: Option<Epoch>,
    ) -> Option<Time> {
        let older = ring
            .oldest_older()
            .filter(|(_, slot)| heard.is_some_and(|heard| slot.epoch.is_before(heard)))
            .map(|(_, slot)| self.deadline(slot.epoch));
        let held_back = self.held_back.map(|(_, at)| at);
        match (older, held_back) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The path leaves `epoch`: what is in flight has until `deadline`. Held-back verdicts become such of an older
    /// epoch and wait for that time at most.
    pub(super) fn on_move(&mut self, epoch: Epoch, deadline: Time) {
        // The path is never further ahead than that, and what is heard of lets older ones go.
        if self.left.len() > 2 * usize::from(EPOCHS_AHEAD_MAX) {
            self.left.pop_front();
        }
        self.left.push_back(LeftEpoch {
            epoch,
            deadline,
            arrived: std::mem::take(&mut self.arrived),
        });
        self.held_back = None;
    }

    /// Duplicates until then say nothing about order: the verdict was by time.
    pub(super) fn excuse(&mut self, until: Time) {
        self.excused_until = self.excused_until.max(until);
    }

    /// The receiver got packets twice: order does not quite hold on this route.
    pub(super) fn on_spurious(&mut self, now: Time, rtt: &RoundTrip) {
        if now < self.excused_until {
            return;
        }
        let rtt_ns = rtt.guess_ns().unwrap_or(UNKNOWN_RTT_NS);
        self.tolerance_ns = (self.tolerance_ns * 2)
            .max(rtt_ns / 8)
            .min(rtt_ns * TOLERANCE_MAX_RTTS)
            .max(TOLERANCE_MIN_NS);
        self.decay_at = now + DECAY_RTTS * rtt_ns;
        // The duplicates of the same disturbance come in together: one step a round trip.
        self.excused_until = now + rtt_ns;
    }

    fn decay(&mut self, now: Time, rtt: &RoundTrip) {
        if self.tolerance_ns == 0 || now < self.decay_at {
            return;
        }
        self.tolerance_ns /= 2;
        if self.tolerance_ns < TOLERANCE_MIN_NS {
            self.tolerance_ns = 0;
        }
        self.decay_at = now + DECAY_RTTS * rtt.guess_ns().unwrap_or(UNKNOWN_RTT_NS);
    }

    fn tolerance_units(&self) -> u64 {
        self.tolerance_ns.div_ceil(Stamp::UNIT_NS)
    }

    /// Sets the time for verdicts that are due by order and that the tolerance, or what looks like a hole, holds back.
    fn hold_back<R: Copy>(&mut self, now: Time, ring: &SentRing<R>) {
        let waits = ring
            .oldest_recent()
            .is_some_and(|(_, slot)| slot.transmission < self.arrived);
        if !waits {
            self.held_back = None;
        } else if self.held_back.is_none() {
            let at = now + self.tolerance_ns;
            let at = self.sizes.next_round_at().map_or(at, |next| at.max(next));
            self.held_back = Some((self.arrived, at));
        }
    }

    /// Consecutive epochs: the place follows from the number.
    fn left(&self, epoch: Epoch) -> Option<&LeftEpoch> {
        let first = self.left.front()?.epoch;
        self.left.get(usize::from(epoch.since(first)))
    }

    fn left_mut(&mut self, epoch: Epoch) -> Option<&mut LeftEpoch> {
        let first = self.left.front()?.epoch;
        self.left.get_mut(usize::from(epoch.since(first)))
    }

    fn deadline(&self, epoch: Epoch) -> Time {
        self.left(epoch).map_or(Time::ZERO, |left| left.deadline)
    }

    fn expire_older<R: Copy>(
        &mut self,
        now: Time,
        ring: &mut SentRing<R>,
        heard: Option<Epoch>,
        rtt: &RoundTrip,
    ) -> Verdicts {
        let mut count = Count::default();
        while let Some((psn, slot)) = ring.oldest_older() {
            let epoch = slot.epoch;
            while self
                .left
                .front()
                .is_some_and(|left| left.epoch.is_before(epoch))
            {
                self.left.pop_front();
            }
            let heard_later = heard.is_some_and(|heard| epoch.is_before(heard));
            if !heard_later || now < self.deadline(epoch) {
                return count.verdicts;
            }
            count.lose(ring, psn);
            let rtt_ns = rtt.guess_ns().unwrap_or(UNKNOWN_RTT_NS);
            self.excuse(now + 2 * rtt_ns + rtt.ack_delay_ns());
        }
        self.left.clear();
        count.verdicts
    }
}

/// Packets of the present epoch that were sent before `transmission` are lost.
fn lose_recent<R: Copy>(
    ring: &mut SentRing<R>,
    transmission: u64,
    sizes: &mut HoleEvidence,
) -> Verdicts {
    let mut count = Count::default();
    while let Some((psn, slot)) = ring.oldest_recent() {
        if slot.transmission >= transmission {
            break;
        }
        sizes.on_lost(slot.bytes);
        count.lose(ring, psn);
    }
    count.verdicts
}
