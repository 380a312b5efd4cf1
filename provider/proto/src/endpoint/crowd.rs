//! How many peers are heard at about the same time: a host that wakes for each packet of each of them does little else.

use crate::endpoint::table::ConnectionIndex;
use crate::types::Time;

/// Counted for so long.
const INTERVAL_NS: u64 = 1_000_000;

/// A set of the connections that were heard lately, a bit each; those beyond 64 share bits.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    since: Time,
    heard: u64,
    heard_before: u64,
}

impl Crowd {
    /// Something came on a connection.
    #[inline]
    pub(super) fn note(&mut self, now: Time, index: ConnectionIndex) {
        self.pass(now);
        self.heard |= 1 << (index.0 % u64::BITS);
    }

    /// Connections that were heard within one to two milliseconds, or a little fewer.
    pub(super) fn count(&mut self, now: Time) -> u32 {
        self.pass(now);
        (self.heard | self.heard_before).count_ones()
    }

    fn pass(&mut self, now: Time) {
        let passed_ns = now.since_ns(self.since);
        if passed_ns >= INTERVAL_NS {
            let follows = passed_ns < 2 * INTERVAL_NS;
            self.heard_before = if follows { self.heard } else { 0 };
            self.heard = 0;
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_those_that_were_heard_a_moment_ago() {
        let mut crowd = Crowd::default();
        let us = |us: u64| Time::from_ns(us * 1_000);
        for index in 0..5 {
            crowd.note(us(10_000), ConnectionIndex(index));
            crowd.note(us(10_000), ConnectionIndex(0));
        }
        assert_eq!(crowd.count(us(10_999)), 5);
        crowd.note(us(11_000), ConnectionIndex(70));
        assert_eq!(crowd.count(us(11_999)), 6);
        assert_eq!(crowd.count(us(12_000)), 1);
        assert_eq!(crowd.count(us(14_000)), 0);
    }
}
