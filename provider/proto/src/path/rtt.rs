//! Round-trip estimate of a path: smoothed, its variation, a minimum that expires, and the delay with which the peer
//! usually acknowledges. Samples come from echoed stamps, which name transmissions, so retransmissions give samples
//! like anything else. Used by `tx` only.

use std::num::NonZeroU64;

use crate::types::Time;

/// The minimum is that of the last one to two of these spans: a route that became longer is noticed within two.
const MIN_SPAN_NS: u64 = 5_000_000_000;

/// Round-trip estimate of a path; see the file's head.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    smoothed_ns: Option<NonZeroU64>,
    variation_ns: u64,
    min_ns: u64,
    min_before_ns: u64,
    span_start: Time,
    ack_delay_ns: u64,
    hint_ns: Option<NonZeroU64>,
}

impl RoundTrip {
    pub(super) fn new(now: Time) -> Self {
        Self {
            smoothed_ns: None,
            variation_ns: 0,
            min_ns: u64::MAX,
            min_before_ns: u64::MAX,
            span_start: now,
            ack_delay_ns: 0,
            hint_ns: None,
        }
    }

    /// What the host knows of this peer from other connections; counts until there is a sample.
    pub(super) fn set_hint(&mut self, rtt_ns: u64) {
        self.hint_ns = NonZeroU64::new(rtt_ns);
    }

    /// Takes the time from sending to hearing the answer. A delay longer than that is a lie or a clock's error: the
    /// sample is not used. Returns the round trip.
    pub(super) fn sample(&mut self, now: Time, elapsed_ns: u64, ack_delay_ns: u64) -> Option<u64> {
        let rtt_ns = elapsed_ns.checked_sub(ack_delay_ns)?.max(1);
        match self.smoothed_ns() {
            None => {
                self.smoothed_ns = NonZeroU64::new(rtt_ns);
                self.variation_ns = rtt_ns / 2;
                self.ack_delay_ns = ack_delay_ns;
            }
            Some(smoothed_ns) => {
                let deviation_ns = smoothed_ns.abs_diff(rtt_ns);
                self.variation_ns = (self.variation_ns * 3 + deviation_ns) / 4;
                // Not 0: both are 1 at least.
                self.smoothed_ns = NonZeroU64::new((smoothed_ns * 7 + rtt_ns) / 8);
                self.ack_delay_ns = (self.ack_delay_ns * 7 + ack_delay_ns) / 8;
            }
        }
        if now.since_ns(self.span_start) >= MIN_SPAN_NS {
            self.min_before_ns = self.min_ns;
            self.min_ns = u64::MAX;
            self.span_start = now;
        }
        self.min_ns = self.min_ns.min(rtt_ns);
        Some(rtt_ns)
    }

    /// The path took another route: what was the least there says nothing here. The smoothed value stays as the best
    /// guess until samples of the new route pull it.
    pub(super) fn on_move(&mut self, now: Time) {
        self.min_ns = u64::MAX;
        self.min_before_ns = u64::MAX;
        self.span_start = now;
    }

    /// Smoothed round trip, once there is a sample.
    #[must_use]
    pub fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns.map(NonZeroU64::get)
    }

    /// Smoothed round trip, or the host's guess.
    #[must_use]
    pub fn guess_ns(&self) -> Option<u64> {
        self.smoothed_ns.or(self.hint_ns).map(NonZeroU64::get)
    }

    /// Mean deviation of the samples.
    #[must_use]
    pub fn variation_ns(&self) -> u64 {
        self.variation_ns
    }

    /// Least round trip of the last 5 to 10 seconds on this route.
    #[must_use]
    pub fn min_ns(&self) -> Option<u64> {
        let min_ns = self.min_ns.min(self.min_before_ns);
        (min_ns != u64::MAX).then_some(min_ns)
    }

    /// How long the peer usually holds acknowledgements back.
    #[must_use]
    pub fn ack_delay_ns(&self) -> u64 {
        self.ack_delay_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    #[test]
    fn the_estimate_follows_and_leaves_the_peers_delay_out() {
        let mut rtt = RoundTrip::new(at(0));
        rtt.set_hint(70);
        assert_eq!((rtt.smoothed_ns(), rtt.guess_ns()), (None, Some(70)));
        assert_eq!(rtt.sample(at(10), 1_000, 200), Some(800));
        assert_eq!(rtt.smoothed_ns(), Some(800));
        assert_eq!(rtt.variation_ns(), 400);
        for _ in 0..100 {
            rtt.sample(at(20), 1_600, 0);
        }
        assert!((1_590..=1_600).contains(&rtt.guess_ns().unwrap()));
        assert!(rtt.variation_ns() < 20);
        assert_eq!(rtt.min_ns(), Some(800));
    }

    #[test]
    fn a_delay_longer_than_the_round_trip_is_not_believed() {
        let mut rtt = RoundTrip::new(at(0));
        assert_eq!(rtt.sample(at(10), 1_000, 1_001), None);
        assert_eq!(rtt.smoothed_ns(), None);
    }

    #[test]
    fn the_minimum_expires_after_one_to_two_spans() {
        let mut rtt = RoundTrip::new(at(0));
        rtt.sample(at(1), 100, 0);
        rtt.sample(at(MIN_SPAN_NS), 500, 0);
        assert_eq!(rtt.min_ns(), Some(100));
        rtt.sample(at(2 * MIN_SPAN_NS), 600, 0);
        assert_eq!(rtt.min_ns(), Some(500));
        rtt.on_move(at(2 * MIN_SPAN_NS));
        assert_eq!(rtt.min_ns(), None);
        assert!(rtt.smoothed_ns().is_some());
    }
}
