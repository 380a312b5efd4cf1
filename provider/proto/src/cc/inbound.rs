//! What a receiver knows of one peer as a sender: whether it is sending, and whether it wants more than it gets.
//!
//! A sender is active until it says *backlog empty*, or was silent for long (WIRE 8.16). What it sends is measured while it
//! is: below most of what it was granted, it is limited by something else, and the rest is for others (WIRE 8.17). Fed by
//! `conn/rx` with every packet; what comes out, a [`Demand`], goes into [`super::FairShare`].

use crate::cc::Demand;
use crate::types::{Driving, Time};
use crate::wire::GRANT_UNLIMITED;

/// A grant that is too large by more than this part is told anew: an eighth of what is right …
const LESS_PART: u64 = 8;
/// … and less where others wait for what it gives up.
const SHORT_PART: u64 = 32;

/// Silence after which a sender is not active any more, in round trips, and in trains at its grant.
const SILENT_RTTS: u64 = 2;
const SILENT_TRAINS: u64 = 4;
/// A demand is measured for so many round trips and trains.
const MEASURED_RTTS: u64 = 4;
const MEASURED_TRAINS: u64 = 8;
/// Who sends less than this part of its grant is limited by something else.
const LIMITED_PERCENT: u64 = 85;
/// It may want a little more than what it sent.
const HEADROOM_PERCENT: u64 = 110;

/// Least times: hosts that poll look at their sockets all the time; with sockets, threads sleep and are woken.
struct Floors {
    silent_ns: u64,
    measured_ns: u64,
}

impl Floors {
    const fn of(driving: Driving) -> Self {
        match driving {
            Driving::Busy => Self {
                silent_ns: 50_000,
                measured_ns: 100_000,
            },
            Driving::Sockets => Self {
                silent_ns: 1_000_000,
                measured_ns: 10_000_000,
            },
        }
    }
}

/// What is known of the connection besides.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// How the host is driven.
    pub driving: Driving,
    /// Round trip, where it is known.
    pub rtt_ns: Option<u64>,
    /// Bytes of a train.
    pub train_bytes: u32,
}

/// See the file's head.
#[derive(Clone, Copy, Debug)]
pub struct Inbound {
    demand: Demand,
    active_until: Option<Time>,
    /// The grant that it was told last, and with how many packets it may start when it is cold.
    told_kib_per_s: u32,
    told_w0: u16,
    /// What of the drain is promised to it, in bytes per second; the business of [`super::FairShare`].
    promised: u64,
    /// Measured since then: so many bytes, and the least grant told meanwhile.
    since: Time,
    bytes: u64,
    least_kib_per_s: u32,
}

impl Inbound {
    /// A peer that sends nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            demand: Demand::Nothing,
            active_until: None,
            told_kib_per_s: GRANT_UNLIMITED,
            told_w0: u16::MAX,
            promised: 0,
            since: Time::ZERO,
            bytes: 0,
            least_kib_per_s: GRANT_UNLIMITED,
        }
    }

    /// What it wants.
    #[must_use]
    pub fn demand(&self) -> Demand {
        self.demand
    }

    /// When [`Self::on_time`] has something to do.
    #[must_use]
    pub fn active_until(&self) -> Option<Time> {
        self.active_until
    }

    /// A packet came: `bytes` of it, the header of DATA included, were not there before.
    pub fn on_packet(&mut self, now: Time, bytes: u64, backlog_empty: bool, around: &Surroundings) {
        if backlog_empty {
            self.end();
            return;
        }
        if self.demand == Demand::Nothing {
            self.demand = Demand::Unlimited;
            self.measure_anew(now);
        }
        self.active_until = Some(now + self.silence_ns(around));
        self.bytes += bytes;
        let measured_ns = now.since_ns(self.since);
        if self.least_kib_per_s != GRANT_UNLIMITED && measured_ns >= self.measuring_ns(around) {
            let rate = per_second(self.bytes, measured_ns);
            let granted = u64::from(self.least_kib_per_s) * 1024;
            self.demand = if rate < granted / 100 * LIMITED_PERCENT {
                Demand::Limited(rate / 100 * HEADROOM_PERCENT)
            } else {
                Demand::Unlimited
            };
            self.measure_anew(now);
        }
    }

    /// Time passes: it may have been silent for too long.
    pub fn on_time(&mut self, now: Time) {
        if self.active_until.is_some_and(|at| at <= now) {
            self.end();
        }
    }

    /// It sends nothing any more.
    pub fn end(&mut self) {
        self.demand = Demand::Nothing;
        self.active_until = None;
    }

    /// It is told a grant and a W0.
    pub fn on_told(&mut self, kib_per_s: u32, w0: u16) {
        self.told_w0 = w0;
        self.told_kib_per_s = kib_per_s;
        self.least_kib_per_s = self.least_kib_per_s.min(kib_per_s);
    }

    /// The grant that it was told last.
    #[must_use]
    pub fn told_kib_per_s(&self) -> u32 {
        self.told_kib_per_s
    }

    /// What of the drain is promised to it, in bytes per second.
    #[must_use]
    pub fn promised(&self) -> u64 {
        self.promised
    }

    pub(super) fn set_promised(&mut self, bytes_per_s: u64) {
        self.promised = bytes_per_s;
    }

    /// Whether what it was told last is off by much (WIRE 8.19): the grant if it is sending, else a W0 that
    /// is too large.
    #[must_use]
    pub fn must_be_told(&self, kib_per_s: u32, w0: u16, short: bool) -> bool {
        if self.demand == Demand::Nothing {
            return u32::from(self.told_w0) * 4 > u32::from(w0) * 5;
        }
        let (told, right) = (u64::from(self.told_kib_per_s), u64::from(kib_per_s));
        let less = if short { SHORT_PART } else { LESS_PART };
        told * less > right * (less + 1) || told * 8 < right * 7
    }

    fn measure_anew(&mut self, now: Time) {
        self.since = now;
        self.bytes = 0;
        self.least_kib_per_s = self.told_kib_per_s;
    }

    fn silence_ns(&self, around: &Surroundings) -> u64 {
        let rtts_ns = SILENT_RTTS * around.rtt_ns.unwrap_or(0);
        Floors::of(around.driving)
            .silent_ns
            .max(rtts_ns)
            .max(self.trains_ns(SILENT_TRAINS, around))
    }

    fn measuring_ns(&self, around: &Surroundings) -> u64 {
        let rtts_ns = MEASURED_RTTS * around.rtt_ns.unwrap_or(0);
        Floors::of(around.driving)
            .measured_ns
            .max(rtts_ns)
            .max(self.trains_ns(MEASURED_TRAINS, around))
    }

    /// How long so many trains take at the grant.
    fn trains_ns(&self, trains: u64, around: &Surroundings) -> u64 {
        match self.told_kib_per_s {
            0 | GRANT_UNLIMITED => 0,
            kib_per_s => {
                trains * u64::from(around.train_bytes) * 1_000_000 / u64::from(kib_per_s) * 1_000
                    / 1_024
            }
        }
    }
}

impl Default for Inbound {
    fn default() -> Self {
        Self::new()
    }
}

/// Bytes per second.
pub(super) fn per_second(bytes: u64, ns: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const AROUND: Surroundings = Surroundings {
        driving: Driving::Busy,
        rtt_ns: Some(10_000),
        train_bytes: 16_384,
    };

    fn us(us: u64) -> Time {
        Time::from_ns(us * 1_000)
    }

    // WIRE 8.16
    #[test]
    fn a_sender_is_active_until_it_says_so_or_is_silent() {
        let mut inbound = Inbound::new();
        inbound.on_packet(us(1), 4096, false, &AROUND);
        assert_eq!(inbound.active_until(), Some(us(51)));
        inbound.on_time(us(50));
        assert_eq!(inbound.demand(), Demand::Unlimited);
        inbound.on_time(us(51));
        assert_eq!(inbound.demand(), Demand::Nothing);
        inbound.on_packet(us(60), 4096, false, &AROUND);
        inbound.on_packet(us(61), 4096, true, &AROUND);
        assert_eq!(inbound.demand(), Demand::Nothing);
        assert_eq!(inbound.active_until(), None);
    }

    // WIRE 8.16
    #[test]
    fn a_small_grant_means_patience() {
        let mut inbound = Inbound::new();
        // Four trains of 16 KiB at 64 MiB/s are a millisecond.
        inbound.on_told(64 * 1024, 0);
        inbound.on_packet(us(0), 4096, false, &AROUND);
        let until = inbound.active_until().unwrap().as_ns();
        assert!((970_000..1_000_000).contains(&until), "{until}");
    }

    /// Sends a packet of 4 KiB every `spacing_us` for as long as it takes to be measured.
    fn measured(spacing_us: u64, told_kib_per_s: u32) -> Demand {
        let mut inbound = Inbound::new();
        inbound.on_told(told_kib_per_s, 0);
        for packet in 0..=100 {
            inbound.on_packet(us(packet * spacing_us), 4096, false, &AROUND);
        }
        inbound.demand()
    }

    // WIRE 8.17
    #[test]
    fn who_sends_much_less_than_it_may_wants_a_little_more_than_that() {
        // 4 KiB every 10 µs are 410 MB/s.
        match measured(10, 1_000_000) {
            Demand::Limited(rate) => assert!((440..460).contains(&(rate / 1_000_000)), "{rate}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(measured(10, 420_000), Demand::Unlimited);
        assert_eq!(measured(10, GRANT_UNLIMITED), Demand::Unlimited);
    }

    #[test]
    fn a_grant_that_was_raised_a_moment_ago_was_not_left_unused() {
        let mut inbound = Inbound::new();
        inbound.on_told(400_000, 0);
        for packet in 0..=10 {
            inbound.on_packet(us(packet * 10), 4096, false, &AROUND);
        }
        inbound.on_told(1_000_000, 0);
        for packet in 11..=15 {
            inbound.on_packet(us(packet * 10), 4096, false, &AROUND);
        }
        assert_eq!(inbound.demand(), Demand::Unlimited);
    }

    // WIRE 8.19
    #[test]
    fn a_grant_that_is_off_by_more_than_an_eighth_must_be_told() {
        let mut inbound = Inbound::new();
        inbound.on_told(100, 8);
        assert!(!inbound.must_be_told(1, 7, false), "it sends nothing");
        assert!(inbound.must_be_told(1, 6, false));
        inbound.on_packet(us(0), 1, false, &AROUND);
        assert!(!inbound.must_be_told(89, 0, false));
        assert!(inbound.must_be_told(88, 0, false));
        assert!(!inbound.must_be_told(114, 0, false));
        // Others wait for what it gives up.
        assert!(inbound.must_be_told(96, 0, true));
        assert!(!inbound.must_be_told(97, 0, true));
        assert!(!inbound.must_be_told(114, 0, true));
        assert!(inbound.must_be_told(115, 0, false));
    }
}
