//! What a receiver can take in, measured in software (WIRE 8.15).
//!
//! As long as the socket's buffer is empty whenever it is looked at, more could have come, and nothing is known but that;
//! a buffer that never becomes empty shows exactly what is taken out of it. So the estimate is set to what was measured
//! while there was a queue, halved by drops, and raised slowly while there is none and the senders use what they were
//! granted. What other processes behind the same port receive counts as taken in by the host. At once, whatever the
//! estimate says, grants bend with what is queued (WIRE 8.20). The host may know better from the start, as it knows the speed
//! of its port: the estimate never rises above that.

use crate::cc::inbound::per_second;
use crate::types::{Driving, Time};

/// A queue that may be there: what is above it bends the grants, and shows the drain if it stays.
const QUEUE_PER_MILLE: u64 = 50;
/// How much so much more of the buffer takes away of the grants.
const BEND: u64 = 4;
const BEND_FLOOR_PER_MILLE: u64 = 100;
/// Where more than this part of all packets is marked, whoever they are from, the queue is in front of our own port: grants
/// bend by so much of what is above it, until it is short. Marks average over some 64 packets.
const MARKED_PART: f64 = 0.5;
const MARKED_BEND: f64 = 0.4;
const MARKED_GAIN: f64 = 1.0 / 64.0;
/// A queue that shows a drain where none was known: bursts make shorter ones. With sockets only drops do: a thread that was kept
/// from its processor finds a queue as well, and the rate at which it takes that in is that of the scheduler.
const FIRST_QUEUE_PER_MILLE: u64 = 150;
/// Without a queue the estimate rises by so much in an interval, if most of it was used; in the next one twice as much, and
/// so on: what was measured while small packets came may be far too low.
const RISE_PERCENT: u64 = 2;
const RISE_MAX_PERCENT: u64 = 16;
const USED_PERCENT: u64 = 90;
/// What is measured while there is a queue counts, but the estimate falls no lower than to so much in an interval: it may
/// have been small packets. Meanwhile the grants bend.
const FALL_PERCENT: u64 = 85;
/// With sockets, an estimate is forgotten after so many intervals without a queue, used or not: threads that were kept from
/// their processor make both a queue and a low rate, and senders that are held back by what they made would never use it.
const FORGOTTEN_AFTER: u32 = 4;
/// After so many intervals without a look nobody knows how long a queue has been there: it shows no drain.
const UNSEEN_INTERVALS: u64 = 4;
/// The least that is ever estimated.
const LEAST_BYTES_PER_S: u64 = 1_000_000;

/// See the file's head.
#[derive(Clone, Debug)]
pub struct Drain {
    driving: Driving,
    interval_ns: u64,
    without_queue: u32,
    /// Speed of the port, if it is known.
    port_bytes_per_s: Option<u64>,
    estimate_bytes_per_s: Option<u64>,
    bend_per_mille: u64,
    rise_percent: u64,
    /// Part of the packets that came with a congestion mark, lately.
    marked_part: f64,
    /// The present interval.
    since: Time,
    bytes: u64,
    drops: u32,
    least_fill_per_mille: u64,
    most_fill_per_mille: u64,
}

impl Drain {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(driving: Driving, now: Time) -> Self {
        Self {
            driving,
            interval_ns: match driving {
                Driving::Busy => 50_000,
                Driving::Sockets => 5_000_000,
            },
            without_queue: 0,
            port_bytes_per_s: None,
            estimate_bytes_per_s: None,
            bend_per_mille: 1_000,
            rise_percent: RISE_PERCENT,
            marked_part: 0.0,
            since: now,
            bytes: 0,
            drops: 0,
            least_fill_per_mille: u64::MAX,
            most_fill_per_mille: 0,
        }
    }

    /// What the host knows: the speed of its port, and what it can take in; in bytes of DATA packets
    /// (payload of UDP) per second.
    pub fn set_known(&mut self, port: Option<u64>, estimate: Option<u64>) {
        self.port_bytes_per_s = port;
        self.estimate_bytes_per_s = estimate.or(port);
    }

    /// What may be granted now, in bytes per second; nothing where no limit is known.
    #[must_use]
    pub fn bytes_per_s(&self) -> Option<u64> {
        let estimate = self.estimate_bytes_per_s?;
        let marked = (self.marked_part - MARKED_PART).max(0.0) * MARKED_BEND;
        let bent = (estimate / 1_000 * self.bend_per_mille) as f64 * (1.0 - marked);
        Some((bent as u64).max(LEAST_BYTES_PER_S))
    }

    /// A new DATA packet of so many bytes came, marked or not; 0 for others.
    pub fn on_received(&mut self, bytes: u64, marked: bool) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.marked_part += (f64::from(u8::from(marked)) - self.marked_part) * MARKED_GAIN;
    }

    /// The kernel dropped datagrams at the socket.
    pub fn on_drops(&mut self, drops: u32) {
        self.drops = self.drops.saturating_add(drops);
    }

    /// So much of the socket's buffer is still full after it was read.
    pub fn on_fill(&mut self, now: Time, per_mille: u64) {
        self.least_fill_per_mille = self.least_fill_per_mille.min(per_mille);
        self.most_fill_per_mille = self.most_fill_per_mille.max(per_mille);
        let above = per_mille.saturating_sub(QUEUE_PER_MILLE);
        self.bend_per_mille = 1_000u64
            .saturating_sub(BEND * above)
            .max(BEND_FLOOR_PER_MILLE);
        let ns = now.since_ns(self.since);
        if ns >= self.interval_ns {
            let seen = ns < UNSEEN_INTERVALS * self.interval_ns;
            self.end_interval(per_second(self.bytes, ns), seen);
            self.since = now;
            self.bytes = 0;
            self.drops = 0;
            self.least_fill_per_mille = u64::MAX;
            self.most_fill_per_mille = 0;
        }
    }

    fn end_interval(&mut self, rate: u64, seen: bool) {
        let queue = match (self.estimate_bytes_per_s, self.driving) {
            (Some(_), _) => QUEUE_PER_MILLE,
            (None, Driving::Busy) => FIRST_QUEUE_PER_MILLE,
            (None, Driving::Sockets) => u64::MAX,
        };
        let rise_percent = self.rise_percent;
        self.rise_percent = RISE_PERCENT;
        let estimate = match self.estimate_bytes_per_s {
            before if self.drops > 0 && seen => Some(before.unwrap_or(rate).min(rate.max(1)) / 2),
            before if self.drops > 0 => before.map(|before| before / 2),
            before if seen && self.least_fill_per_mille > queue => {
                Some(rate.max(before.unwrap_or(0) / 100 * FALL_PERCENT))
            }
            Some(before)
                if self.most_fill_per_mille < QUEUE_PER_MILLE
                    && rate >= before / 100 * USED_PERCENT =>
            {
                self.rise_percent = (2 * rise_percent).min(RISE_MAX_PERCENT);
                Some(before + before / 100 * rise_percent)
            }
            before => before,
        };
        self.without_queue = match self.most_fill_per_mille < QUEUE_PER_MILLE && self.drops == 0 {
            true => self.without_queue.saturating_add(1),
            false => 0,
        };
        let forget = self.driving == Driving::Sockets && self.without_queue >= FORGOTTEN_AFTER;
        self.estimate_bytes_per_s =
            estimate
                .filter(|_| !forget)
                .or(self.port_bytes_per_s)
                .map(|estimate| {
                    let port = self.port_bytes_per_s.unwrap_or(u64::MAX);
                    estimate.max(LEAST_BYTES_PER_S).min(port)
                });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL_NS: u64 = 50_000;
    const MB: u64 = 1_000_000;

    /// `intervals` of so many MB/s with so full a buffer.
    fn run(drain: &mut Drain, intervals: u64, mb_per_s: u64, fill_per_mille: u64) {
        for _ in 0..intervals {
            drain.on_received(mb_per_s * MB * INTERVAL_NS / 1_000_000_000, false);
            drain.on_fill(drain.since + INTERVAL_NS, fill_per_mille);
        }
    }

    fn drain() -> Drain {
        Drain::new(Driving::Busy, Time::ZERO)
    }

    // WIRE 8.15
    #[test]
    fn nothing_is_known_until_a_queue_stays() {
        let mut drain = drain();
        run(&mut drain, 10, 5_000, 140);
        assert_eq!(drain.bytes_per_s(), None);
        run(&mut drain, 1, 3_000, 151);
        run(&mut drain, 1, 3_000, 0);
        assert!(drain.bytes_per_s().unwrap().abs_diff(3_000 * MB) < 100 * MB);
    }

    // WIRE 8.20
    #[test]
    fn grants_bend_with_the_queue_at_once_and_never_to_nothing() {
        let mut drain = drain();
        drain.set_known(None, Some(1_000 * MB));
        drain.on_fill(Time::from_ns(1), 100);
        assert_eq!(drain.bytes_per_s(), Some(800 * MB));
        drain.on_fill(Time::from_ns(2), 900);
        assert_eq!(drain.bytes_per_s(), Some(100 * MB));
        drain.on_fill(Time::from_ns(3), 50);
        assert_eq!(drain.bytes_per_s(), Some(1_000 * MB));
    }

    // WIRE 8.15
    #[test]
    fn an_estimate_that_is_too_high_is_measured_and_one_that_is_too_low_rises() {
        let mut drain = drain();
        drain.set_known(Some(12_500 * MB), Some(5_000 * MB));
        run(&mut drain, 1, 3_750, 60);
        run(&mut drain, 1, 0, 0);
        assert_eq!(drain.bytes_per_s(), Some(4_250 * MB), "not all at once");
        run(&mut drain, 1, 3_750, 60);
        run(&mut drain, 1, 0, 0);
        assert_eq!(drain.bytes_per_s(), Some(3_750 * MB));
        run(&mut drain, 35, 3_700, 10);
        let risen = drain.bytes_per_s().unwrap();
        assert!(risen > 3_750 * MB, "{risen}");
        assert!(risen < 4_700 * MB, "no more than is used: {risen}");
    }

    #[test]
    fn a_burst_after_a_silence_shows_no_drain() {
        let mut drain = drain();
        drain.on_received(100_000, false);
        drain.on_fill(Time::from_ns(UNSEEN_INTERVALS * INTERVAL_NS), 900);
        drain.on_fill(Time::from_ns(UNSEEN_INTERVALS * INTERVAL_NS + 1), 0);
        assert_eq!(drain.bytes_per_s(), None);
        drain.set_known(None, Some(1_000 * MB));
        drain.on_drops(1);
        drain.on_fill(drain.since + 3_600_000_000_000, 900);
        drain.on_fill(drain.since + 1, 0);
        assert_eq!(drain.bytes_per_s(), Some(500 * MB));
    }

    // WIRE 8.15
    #[test]
    fn with_sockets_an_estimate_is_forgotten_when_there_is_no_queue() {
        let mut drain = Drain::new(Driving::Sockets, Time::ZERO);
        let run = |drain: &mut Drain, intervals: u32, fill_per_mille: u64| {
            for _ in 0..intervals {
                drain.on_received(1_000_000, false);
                drain.on_fill(drain.since + 5_000_000, fill_per_mille);
            }
        };
        run(&mut drain, 10, 900);
        assert_eq!(drain.bytes_per_s(), None, "a queue may be the scheduler's");
        drain.on_drops(1);
        run(&mut drain, 1, 900);
        run(&mut drain, FORGOTTEN_AFTER - 1, 0);
        assert!(drain.bytes_per_s().is_some());
        run(&mut drain, 1, 0);
        assert_eq!(drain.bytes_per_s(), None);
    }

    // WIRE 8.15, 8.20
    #[test]
    fn drops_halve_it_and_the_port_bounds_it() {
        let mut drain = drain();
        drain.set_known(Some(1_000 * MB), None);
        run(&mut drain, 100, 1_000, 0);
        assert_eq!(drain.bytes_per_s(), Some(1_000 * MB));
        drain.on_drops(1);
        run(&mut drain, 1, 1_000, 0);
        assert_eq!(drain.bytes_per_s(), Some(500 * MB));
    }
}
