//! What a receiver tells its senders: each active connection's part of the window and of the drain.
//!
//! The simple policy: equal parts. The window is the socket buffer that the endpoint really got, and is what protects
//! it; the grant is unlimited unless a drain is configured. Asked by `conn/` for every ACK, so it must stay cheap.

use crate::wire::{Allowance, GRANT_UNLIMITED};

/// Bytes that cold connections of a host may send at it before it has told them anything.
const COLD_BYTES: u32 = 256 * 1024;
/// Cold-start packets at most (WIRE 8.13).
const W0_MAX_PACKETS: u32 = 16;
/// A connection always may have so many packets in flight: it could not use its paths otherwise.
const WINDOW_FLOOR_PACKETS: u32 = 2;
/// Part of the drain that is granted (WIRE 8.18): the rest empties queues.
const GRANTED_PER_MILLE: u64 = 980;
/// Least grant: one packet a millisecond, never 0 (WIRE 8.21).
const GRANT_FLOOR_PACKETS_PER_S: u64 = 1_000;

/// How a receiver divides what it can take.
#[derive(Clone, Debug)]
pub struct FairShare {
    window_bytes: u32,
    payload_bytes: u32,
    drain_bytes_per_s: Option<u64>,
}

impl FairShare {
    /// Divides `window_bytes`, among packets of `payload_bytes`.
    #[must_use]
    pub fn new(window_bytes: u32, payload_bytes: u16) -> Self {
        Self {
            window_bytes,
            payload_bytes: u32::from(payload_bytes.max(1)),
            drain_bytes_per_s: None,
        }
    }

    /// What this host can take in per second; nothing for no limit.
    pub fn set_drain(&mut self, bytes_per_s: Option<u64>) {
        self.drain_bytes_per_s = bytes_per_s;
    }

    /// The receive buffer turned out to be larger or smaller.
    pub fn set_window(&mut self, window_bytes: u32) {
        self.window_bytes = window_bytes;
    }

    /// What one of `active` sending connections may do, of `open` ones.
    #[must_use]
    pub fn allowance(&self, active: u32, open: u32) -> Allowance {
        let floor_bytes = WINDOW_FLOOR_PACKETS * self.payload_bytes;
        Allowance {
            grant_kib_per_s: self.grant(active),
            window_bytes: (self.window_bytes / active.max(1)).max(floor_bytes),
            w0_packets: self.w0(open),
        }
    }

    /// Packets with which a cold connection may start: 0 from many open connections on.
    #[must_use]
    pub fn w0(&self, open: u32) -> u16 {
        let packets = COLD_BYTES / open.max(1) / self.payload_bytes;
        packets.min(W0_MAX_PACKETS) as u16
    }

    /// A lone sender gets the whole drain: nobody else fills the queue that the rest would empty.
    fn grant(&self, active: u32) -> u32 {
        let Some(drain) = self.drain_bytes_per_s else {
            return GRANT_UNLIMITED;
        };
        let granted = match active {
            0 | 1 => drain,
            _ => drain / 1_000 * GRANTED_PER_MILLE / u64::from(active),
        };
        let floor = GRANT_FLOOR_PACKETS_PER_S * u64::from(self.payload_bytes);
        u32::try_from(granted.max(floor) / 1024)
            .map_or(GRANT_UNLIMITED - 1, |kib| kib.min(GRANT_UNLIMITED - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(1, 16)]
    #[case(4, 16)]
    #[case(5, 12)]
    #[case(64, 1)]
    #[case(65, 0)]
    #[case(0, 16)]
    fn w0_follows_the_open_connections(#[case] open: u32, #[case] packets: u16) {
        assert_eq!(FairShare::new(1 << 20, 4096).w0(open), packets);
    }

    #[test]
    fn the_window_is_divided_but_never_below_two_packets() {
        let share = FairShare::new(1 << 20, 4096);
        assert_eq!(share.allowance(0, 1).window_bytes, 1 << 20);
        assert_eq!(share.allowance(4, 4).window_bytes, 1 << 18);
        assert_eq!(share.allowance(4_000, 4_000).window_bytes, 8192);
        assert_eq!(share.allowance(3, 3).grant_kib_per_s, GRANT_UNLIMITED);
    }

    #[test]
    fn the_drain_is_divided_with_a_little_kept_back() {
        let mut share = FairShare::new(1 << 20, 4096);
        share.set_drain(Some(1_024_000_000));
        assert_eq!(share.allowance(1, 1).grant_kib_per_s, 1_000_000);
        assert_eq!(share.allowance(2, 2).grant_kib_per_s, 490_000);
        assert_eq!(share.allowance(1_000_000, 1).grant_kib_per_s, 4_000);
        share.set_drain(Some(u64::MAX));
        assert_eq!(share.allowance(1, 1).grant_kib_per_s, u32::MAX - 1);
    }
}
