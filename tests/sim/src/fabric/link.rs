//! One link in one direction: a transmitter with a finite queue in front of it, then the wire. Asked by `fabric/mod.rs` for
//! each packet that comes to it.
//!
//! A link needs no events of its own: what was accepted leaves in order at the link's rate, so the time of departure of
//! a packet is known when it comes. The queue remembers these departures, which makes its length exact at any instant,
//! whatever rates and failures came in between: a packet takes room until its last bit has left. What is in the queue when
//! the rate changes leaves at the old one.

use std::collections::VecDeque;

use metaroce_proto::types::Time;
use rand::rngs::SmallRng;

use super::disorder::{Disorder, DisorderProcess};
use super::loss::{Loss, LossProcess};
use crate::trace::Fate;

/// Links count in picoseconds: a byte at 100 Gb/s takes 80.
const PS_PER_NS: u64 = 1_000;

/// Picoseconds in a second, times the bits of a byte.
const PS_BITS_PER_BYTE_S: u64 = 8_000_000_000_000;

/// What a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// Rate.
    pub bits_per_s: u64,
    /// From the last bit sent to the last bit received.
    pub delay_ns: u64,
    /// Room for packets that have not left, the one that is leaving included; a packet for which there is no room is
    /// dropped.
    pub queue_bytes: u64,
    /// A packet that comes when more bytes than this are queued is marked (CE).
    pub mark_bytes: u64,
}

impl LinkConfig {
    /// A link of 100 Gb/s with the queue of a data-centre switch: 1 MiB, marked from 130 kB on.
    #[must_use]
    pub const fn switch_port(delay_ns: u64) -> Self {
        Self {
            bits_per_s: 100_000_000_000,
            delay_ns,
            queue_bytes: 1 << 20,
            mark_bytes: 130_000,
        }
    }

    /// The same out of a host, whose socket holds back what the link does not take: no drops, no marks.
    #[must_use]
    pub const fn host_port(delay_ns: u64) -> Self {
        Self {
            queue_bytes: u64::MAX,
            mark_bytes: u64::MAX,
            ..Self::switch_port(delay_ns)
        }
    }
}

/// What a link did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkCounters {
    /// Packets accepted.
    pub packets: u64,
    /// Bytes of those that have left.
    pub bytes: u64,
    /// Packets that found no room.
    pub overflows: u64,
    /// Packets marked.
    pub marks: u64,
    /// Packets lost by the loss process.
    pub lost: u64,
    /// Packets lost because they were larger than it carries.
    pub too_large: u64,
    /// Packets lost because they were damaged.
    pub damaged: u64,
    /// Packets delivered once more.
    pub duplicated: u64,
    /// Packets lost because the link was down.
    pub dark: u64,
    /// Bytes that have not left now.
    pub queued_bytes: u64,
    /// The longest queue.
    pub longest_queue_bytes: u64,
}

/// A packet that a link has accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// When its last bit reaches the far end.
    pub at: Time,
    /// The queue was long.
    pub mark: bool,
}

/// See the file's head.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    queue: VecDeque<(u64, u32)>,
    queued_bytes: u64,
    free_at_ps: u64,
    /// Larger packets vanish, everything counted that takes time on the wire.
    largest_bytes: u64,
    is_down: bool,
    went_down: Option<Time>,
    loss: LossProcess,
    disorder: DisorderProcess,
    counters: LinkCounters,
}

impl Link {
    /// An idle link.
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        Self {
            config,
            queue: VecDeque::new(),
            queued_bytes: 0,
            free_at_ps: 0,
            largest_bytes: u64::MAX,
            is_down: false,
            went_down: None,
            loss: LossProcess::default(),
            disorder: DisorderProcess::default(),
            counters: LinkCounters::default(),
        }
    }

    /// What it did so far.
    pub fn counters(&mut self, now: Time) -> &LinkCounters {
        self.counters.queued_bytes = self.queued_bytes(now);
        &self.counters
    }

    /// Its rate now.
    #[must_use]
    pub fn bits_per_s(&self) -> u64 {
        self.config.bits_per_s
    }

    /// From now on it has this rate.
    pub fn set_rate(&mut self, bits_per_s: u64) {
        self.config.bits_per_s = bits_per_s.max(1);
    }

    /// From now on it is so long.
    pub fn set_delay(&mut self, ns: u64) {
        self.config.delay_ns = ns;
    }

    /// From now on it loses packets like this.
    pub fn set_loss(&mut self, loss: Loss) {
        self.loss = LossProcess::new(loss);
    }

    /// From now on larger packets vanish, everything counted that takes time on the wire.
    pub fn set_largest(&mut self, bytes: u64) {
        self.largest_bytes = bytes;
    }

    /// From now on it treats packets like this.
    pub fn set_disorder(&mut self, disorder: Disorder) {
        self.disorder = DisorderProcess::new(disorder);
    }

    /// When a packet that was accepted arrives, instead of `at`.
    pub fn disorder(&mut self, at: Time, rng: &mut SmallRng) -> Time {
        self.disorder.arrival(at, rng)
    }

    /// Whether a packet that arrives does so once more, and how much later.
    pub fn again(&mut self, rng: &mut SmallRng) -> Option<u64> {
        let again = self.disorder.again(rng);
        self.counters.duplicated += u64::from(again.is_some());
        again
    }

    /// It goes down, and loses everything on it and in its queue; or it comes up again.
    pub fn set_down(&mut self, now: Time, down: bool) {
        if down && !self.is_down {
            self.queued_bytes(now);
            self.went_down = Some(now);
            self.queue.clear();
            self.queued_bytes = 0;
            self.free_at_ps = now.as_ns() * PS_PER_NS;
        }
        self.is_down = down;
    }

    /// Bytes that have not left.
    pub fn queued_bytes(&mut self, now: Time) -> u64 {
        let now_ps = now.as_ns() * PS_PER_NS;
        while let Some((left_ps, bytes)) = self.queue.front().copied()
            && left_ps <= now_ps
        {
            self.queue.pop_front();
            self.queued_bytes -= u64::from(bytes);
            self.counters.bytes += u64::from(bytes);
        }
        self.queued_bytes
    }

    /// A packet of `bytes` comes, everything counted that takes time on the wire.
    pub fn offer(&mut self, now: Time, bytes: u32) -> Result<Accepted, Fate> {
        if self.is_down {
            self.counters.dark += 1;
            return Err(Fate::Dark);
        }
        if u64::from(bytes) > self.largest_bytes {
            self.counters.too_large += 1;
            return Err(Fate::TooLarge);
        }
        let before = self.queued_bytes(now);
        let after = before + u64::from(bytes);
        if after > self.config.queue_bytes {
            self.counters.overflows += 1;
            return Err(Fate::Overflow);
        }
        let begins_ps = self.free_at_ps.max(now.as_ns() * PS_PER_NS);
        self.free_at_ps = begins_ps + self.duration_ps(bytes);
        self.queue.push_back((self.free_at_ps, bytes));
        self.queued_bytes = after;
        let mark = before > self.config.mark_bytes;
        let counters = &mut self.counters;
        counters.packets += 1;
        counters.marks += u64::from(mark);
        counters.longest_queue_bytes = counters.longest_queue_bytes.max(after);
        Ok(Accepted {
            at: Time::from_ns(self.free_at_ps.div_ceil(PS_PER_NS) + self.config.delay_ns),
            mark,
        })
    }

    /// A packet that was accepted at `entered` reaches the far end, unless it is lost on the way.
    pub fn deliver(&mut self, entered: Time, rng: &mut SmallRng) -> Result<(), Fate> {
        if self.is_down || self.went_down.is_some_and(|down| down >= entered) {
            self.counters.dark += 1;
            return Err(Fate::Dark);
        }
        if self.loss.loses(entered, rng) {
            self.counters.lost += 1;
            return Err(Fate::Lost);
        }
        if self.disorder.damages(rng) {
            self.counters.damaged += 1;
            return Err(Fate::Checksum);
        }
        Ok(())
    }

    fn duration_ps(&self, bytes: u32) -> u64 {
        u64::from(bytes) * PS_BITS_PER_BYTE_S / self.config.bits_per_s
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn link(queue_bytes: u64, mark_bytes: u64) -> Link {
        Link::new(LinkConfig {
            bits_per_s: 100_000_000_000,
            delay_ns: 1_000,
            queue_bytes,
            mark_bytes,
        })
    }

    fn arrival(link: &mut Link, now_ns: u64, bytes: u32) -> u64 {
        let accepted = link.offer(Time::from_ns(now_ns), bytes);
        accepted.expect("there is room").at.as_ns()
    }

    #[test]
    fn a_packet_takes_its_length_over_the_rate_and_then_the_delay() {
        let mut link = link(u64::MAX, u64::MAX);
        // 1250 bytes are 100 ns at 100 Gb/s.
        assert_eq!(arrival(&mut link, 0, 1_250), 1_100);
        assert_eq!(arrival(&mut link, 0, 1_250), 1_200);
        // An idle link begins at once.
        assert_eq!(arrival(&mut link, 5_000, 1_250), 6_100);
    }

    #[test]
    fn the_rate_is_exact_over_many_packets() {
        let mut link = link(u64::MAX, u64::MAX);
        // 4226 bytes are 338.08 ns: nothing of the 0.08 may be lost.
        let last = (0..100_000)
            .map(|_| arrival(&mut link, 0, 4_226))
            .last()
            .expect("there are some");
        assert_eq!(last, 33_808_000 + 1_000);
    }

    #[test]
    fn the_byte_that_does_not_fit_drops_its_packet() {
        let mut link = link(3_000, u64::MAX);
        arrival(&mut link, 0, 1_000);
        arrival(&mut link, 0, 1_000);
        assert_eq!(link.offer(Time::ZERO, 1_001), Err(Fate::Overflow));
        arrival(&mut link, 0, 1_000);
        // The first has left after 80 ns and not before.
        assert_eq!(link.offer(Time::from_ns(79), 1), Err(Fate::Overflow));
        arrival(&mut link, 80, 1_000);
        assert_eq!(link.offer(Time::from_ns(80), 1), Err(Fate::Overflow));
        let counters = link.counters(Time::from_ns(80));
        assert_eq!(
            (counters.overflows, counters.longest_queue_bytes),
            (3, 3_000)
        );
        assert_eq!((counters.packets, counters.bytes), (4, 1_000));
        assert_eq!(link.counters(Time::from_ns(320)).bytes, 4_000);
    }

    #[test]
    fn marks_begin_above_the_threshold() {
        let mut link = link(u64::MAX, 2_000);
        let mut marks = |now_ns| {
            let accepted = link.offer(Time::from_ns(now_ns), 1_000);
            accepted.expect("there is room").mark
        };
        assert_eq!([marks(0), marks(0), marks(0)], [false; 3]);
        // 3000 bytes wait now, at 80 ns 2000 of them and the one that was marked.
        assert_eq!([marks(0), marks(80)], [true; 2]);
        assert!(!marks(240));
    }

    #[test]
    fn a_link_that_goes_down_loses_what_is_on_it() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut link = link(u64::MAX, u64::MAX);
        let entered = Time::from_ns(10);
        link.offer(entered, 1_000).expect("it is up");
        link.set_down(Time::from_ns(500), true);
        assert_eq!(link.offer(Time::from_ns(600), 1_000), Err(Fate::Dark));
        link.set_down(Time::from_ns(700), false);
        assert_eq!(link.deliver(entered, &mut rng), Err(Fate::Dark));
        let again = Time::from_ns(800);
        link.offer(again, 1_000).expect("it is up again");
        assert_eq!(link.deliver(again, &mut rng), Ok(()));
        let counters = link.counters(Time::from_ns(10_000));
        // The first left before the link went down.
        assert_eq!((counters.dark, counters.bytes), (2, 2_000));
    }

    #[test]
    fn a_slower_link_keeps_order_and_the_length_of_its_queue() {
        let mut link = link(u64::MAX, u64::MAX);
        let first = arrival(&mut link, 0, 1_250);
        link.set_rate(10_000_000_000);
        let second = arrival(&mut link, 0, 1_250);
        assert_eq!((first, second), (1_100, 2_100));
        link.set_rate(100_000_000_000);
        assert_eq!(arrival(&mut link, 0, 1_250), 2_200);
        assert_eq!(link.queued_bytes(Time::from_ns(100)), 2_500);
        assert_eq!(link.queued_bytes(Time::from_ns(1_099)), 2_500);
        assert_eq!(link.queued_bytes(Time::from_ns(1_100)), 1_250);
    }
}
