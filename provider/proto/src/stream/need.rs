//! How much memory strict visibility needs (WIRE 7.7): twice what comes in while one missing packet is waited for.
//!
//! A packet is missed for up to the slowest round trip of the paths in use and one more: it is found missing, and sent again. A receiver
//! does not know the round trips of its peer's paths, but it sees what they do: each time a message was waited for while later ones
//! were held, the bytes that arrived meanwhile are that rate times that time. The most of the last second or two counts, and what
//! the speed of the port lets expect before anything was lost. The bounds do not depend on peers.

use crate::types::Time;

/// Twice what a missing packet keeps waiting: a retransmission gets lost, too, and then the next.
const MARGIN: u64 = 2;

/// What may be held before anything is known: as much as a socket usually takes in.
const FLOOR_BYTES: u32 = 4 << 20;

/// What was needed is forgotten after one to two of these.
const MEMORY_NS: u64 = 1_000_000_000;

/// Round trips for which a packet is missed if it is lost once and all paths are equally long.
const MISSED_RTTS: u64 = 2;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Need {
    max_bytes: u32,
    limit_bytes: u32,
    /// All request payload that arrived since the start.
    arrived_bytes: u64,
    /// The most that came in during a wait: in the present period, and in the one before.
    most_bytes: [u64; 2],
    period_began: Time,
}

impl Need {
    /// Nothing is known yet; never more than `max_bytes` will be needed.
    pub(super) fn new(max_bytes: u32) -> Self {
        Self {
            max_bytes,
            limit_bytes: FLOOR_BYTES.min(max_bytes),
            arrived_bytes: 0,
            most_bytes: [0; 2],
            period_began: Time::ZERO,
        }
    }

    /// Bytes that may be held now.
    pub(super) fn limit_bytes(&self) -> u32 {
        self.limit_bytes
    }

    /// Counts up.
    pub(super) fn arrived_bytes(&self) -> u64 {
        self.arrived_bytes
    }

    /// A packet arrived.
    pub(super) fn on_arrival(&mut self, now: Time, payload_bytes: u32) {
        self.arrived_bytes += u64::from(payload_bytes);
        let age_ns = now.since_ns(self.period_began);
        if age_ns >= MEMORY_NS {
            let before = if age_ns < 2 * MEMORY_NS {
                self.most_bytes[0]
            } else {
                0
            };
            self.most_bytes = [0, before];
            self.period_began = now;
            self.set_limit();
        }
    }

    /// A message was waited for since so much had arrived.
    pub(super) fn waited(&mut self, since: u64) {
        self.may_need(self.arrived_bytes.saturating_sub(since));
    }

    /// As much as this rate brings while a packet is missed.
    pub(super) fn expect(&mut self, bytes_per_s: u64, rtt_ns: u64) {
        let bytes = u128::from(bytes_per_s) * u128::from(MISSED_RTTS * rtt_ns) / 1_000_000_000;
        self.may_need(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    fn may_need(&mut self, bytes: u64) {
        if bytes > self.most_bytes[0] {
            self.most_bytes[0] = bytes;
            self.set_limit();
        }
    }

    fn set_limit(&mut self) {
        let most = self.most_bytes[0].max(self.most_bytes[1]);
        let wanted = u32::try_from(most.saturating_mul(MARGIN)).unwrap_or(u32::MAX);
        self.limit_bytes = wanted.max(FLOOR_BYTES).min(self.max_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ms(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    // WIRE 7.7
    #[test]
    fn twice_what_came_in_during_the_longest_wait_may_be_held() {
        let mut need = Need::new(64 << 20);
        assert_eq!(need.limit_bytes(), FLOOR_BYTES);
        let since = need.arrived_bytes();
        need.on_arrival(ms(1), 6 << 20);
        need.waited(since);
        assert_eq!(u64::from(need.limit_bytes()), 12 * MIB);
        let since = need.arrived_bytes();
        need.on_arrival(ms(2), 3 << 20);
        need.waited(since);
        assert_eq!(
            u64::from(need.limit_bytes()),
            12 * MIB,
            "a shorter wait takes nothing away"
        );
    }

    // WIRE 7.7
    #[test]
    fn the_bounds_hold_whatever_a_peer_does() {
        for max_bytes in [0, 1_000, 64 << 20] {
            let mut need = Need::new(max_bytes);
            assert!(need.limit_bytes() <= max_bytes);
            for _ in 0..100 {
                need.on_arrival(ms(1), 1 << 30);
            }
            need.waited(0);
            need.expect(u64::MAX, 1 << 40);
            assert_eq!(need.limit_bytes(), max_bytes);
        }
    }

    #[test]
    fn what_was_needed_is_forgotten_after_a_while() {
        let mut need = Need::new(64 << 20);
        need.on_arrival(ms(1_500), 6 << 20);
        need.waited(0);
        need.on_arrival(ms(2_600), 1);
        assert_eq!(
            u64::from(need.limit_bytes()),
            12 * MIB,
            "a second is not long ago"
        );
        need.on_arrival(ms(3_700), 1);
        assert_eq!(need.limit_bytes(), FLOOR_BYTES);
        need.waited(0);
        need.on_arrival(ms(9_000), 1);
        assert_eq!(
            need.limit_bytes(),
            FLOOR_BYTES,
            "after a long silence at once"
        );
    }

    // WIRE 7.7
    #[test]
    fn a_known_port_is_expected_to_be_used() {
        let mut need = Need::new(64 << 20);
        // 100 GB/s and 20 µs: 4 MB are missed for, and twice that may be held.
        need.expect(100_000_000_000, 20_000);
        assert_eq!(need.limit_bytes(), 8_000_000);
    }
}
