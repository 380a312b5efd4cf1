//! What a sender may have in flight over all paths of a connection, and how fast it may send, by what the receiver allows.
//!
//! Fed by `conn/` with the allowance of each ACK, newest number only, and with the round trips of its paths. A
//! connection that does not know its peer's mind is *cold*: an announce goes out together with a handful of packets
//! (which may be none), and the rest waits for the answer. The announce may be lost, and a window may be too small for
//! anything: whoever has a backlog, nothing in flight and no room sets one path waiting ([`PathTx::set_waiting`]), whose
//! probes bring an ACK in the end.
//!
//! [`PathTx::set_waiting`]: crate::path::PathTx::set_waiting

use crate::types::{Driving, Time};
use crate::wire::{AckNumber, Allowance, DATA_HEADER_BYTES, GRANT_UNLIMITED};

/// A connection idle for so many round trips is cold again (WIRE 8.12): others were given its share.
const COLD_AFTER_RTTS: u64 = 10;
/// Idle time that never makes a connection cold, whatever the round trip, with sockets: a thread that slept is not an idle
/// sender.
const SOCKETS_COLD_FLOOR_NS: u64 = 1_000_000;
/// In flight at most so many times what the grant carries in a round trip (WIRE 8.6).
const GRANT_RTTS: u64 = 3;
/// Least cap with sockets: their round trips are those of threads that sleep, and say little.
const SOCKETS_FLOOR_BYTES: u64 = 512 * 1024;
/// Packets that a cold connection sends before it hears how many it may.
const W0_UNKNOWN_PACKETS: u16 = 1;
/// What a cold connection may send whatever W0 is, in bytes of DATA packets (WIRE 8.12): a small message, which is no more
/// trouble to the receiver than an announcement, and needs none.
const COLD_LEAST_BYTES: u64 = 512;
/// Time at the grant that may be caught up with, with sockets: threads sleep, and timers are coarse.
const SOCKETS_BURST_NS: u64 = 200_000;
/// A train takes so long at the grant at most, if it has more than one packet: with 100 Gb/s, 60 KiB from 1/16 of the line
/// on (WIRE 8.7).
const TRAIN_NS: u64 = 80_000;

/// What a connection may have in flight.
#[derive(Clone, Debug)]
pub struct ConnectionWindow {
    newest: Option<AckNumber>,
    allowance: Allowance,
    driving: Driving,
    train_bytes: u64,
    payload_bytes: u64,
    /// Ways between the hosts that share no link.
    lanes: u64,
    min_rtt_ns: Option<u64>,
    ack_delay_ns: u64,
    warm: bool,
    last_busy: Time,
    announced: bool,
    /// What was sent is paid at the grant by then.
    paid_at: Time,
    /// What was sent before the peer's mind was known, and since when: to be paid when it is.
    cold_bytes: u64,
    cold_since: Time,
    /// That is all that is owed.
    cold_owed: bool,
}

impl ConnectionWindow {
    /// Before any ACK: `window_bytes` and `w0_packets` are those of the peer's HELLO, where known.
    #[must_use]
    pub fn new(driving: Driving, payload_bytes: u16, train_bytes: u32, now: Time) -> Self {
        Self {
            newest: None,
            allowance: Allowance {
                grant_kib_per_s: GRANT_UNLIMITED,
                window_bytes: u32::from(payload_bytes) + DATA_HEADER_BYTES as u32,
                w0_packets: W0_UNKNOWN_PACKETS,
            },
            driving,
            train_bytes: u64::from(train_bytes),
            payload_bytes: u64::from(payload_bytes),
            lanes: 1,
            min_rtt_ns: None,
            ack_delay_ns: 0,
            warm: false,
            last_busy: now,
            announced: false,
            paid_at: Time::ZERO,
            cold_bytes: 0,
            cold_since: now,
            cold_owed: false,
        }
    }

    /// What a packet carries as the two ends agreed: W0 counts such packets, whatever this end could send.
    pub fn set_payload(&mut self, payload_bytes: u16) {
        self.payload_bytes = u64::from(payload_bytes);
    }

    /// Window and cold-start packets that the peer's HELLO named.
    pub fn on_hello(&mut self, window_bytes: u32, w0_packets: u16) {
        if self.newest.is_none() {
            self.allowance.window_bytes = window_bytes;
            self.allowance.w0_packets = w0_packets;
        }
    }

    /// A train may wait in the queue of each of so many lanes.
    pub fn set_lanes(&mut self, lanes: usize) {
        self.lanes = lanes.max(1) as u64;
    }

    /// An ACK arrived: what it allows counts if no newer one was seen. If it answers anything that was sent, the peer knows
    /// of us, and the connection is warm.
    pub fn on_ack(&mut self, now: Time, number: AckNumber, allowance: Allowance, answers: bool) {
        let was_warm = self.warm;
        if answers {
            self.warm = true;
            self.announced = false;
            self.last_busy = now;
        }
        if self.newest.is_none_or(|newest| newest.is_before(number)) {
            self.newest = Some(number);
            let before = self.grant_bytes_per_s();
            self.allowance = allowance;
            // What is owed is owed at the new rate from now on.
            self.paid_at = match (before, self.grant_bytes_per_s()) {
                (Some(before), Some(after)) if self.paid_at > now => {
                    let owed_ns = u128::from(self.paid_at.since_ns(now));
                    now + (owed_ns * u128::from(before) / u128::from(after.max(1))) as u64
                }
                _ => self.paid_at.min(now),
            };
            // The first grant is small where others must give way first: what went out cold is owed at the latest one.
            if self.warm && (!was_warm || self.cold_owed) {
                self.paid_at = Time::ZERO;
                self.charge(self.cold_since, self.cold_bytes);
                self.cold_owed = self.paid_at > now;
            }
        }
    }

    /// Least round trip of the connection's paths, and the peer's usual delay.
    pub fn set_round_trip(&mut self, min_rtt_ns: u64, ack_delay_ns: u64) {
        self.min_rtt_ns = Some(min_rtt_ns);
        self.ack_delay_ns = ack_delay_ns;
    }

    /// To be called before sending after a pause: a connection with nothing in flight for long is cold again.
    pub fn on_wakeup(&mut self, now: Time, in_flight_bytes: u64) {
        if in_flight_bytes > 0 {
            self.last_busy = now;
            return;
        }
        let limit_ns = self
            .min_rtt_ns
            .map_or(0, |rtt_ns| COLD_AFTER_RTTS * (rtt_ns + self.ack_delay_ns))
            .max(match self.driving {
                Driving::Busy => 0,
                Driving::Sockets => SOCKETS_COLD_FLOOR_NS,
            });
        if now.since_ns(self.last_busy) > limit_ns {
            self.warm = false;
        }
    }

    /// Whether an announce must go out with the next packets; it counts as sent.
    pub fn take_announce(&mut self) -> bool {
        !self.warm && !std::mem::replace(&mut self.announced, true)
    }

    /// Whether it is cold, and so many peers has the receiver that a small message is all that may leave.
    #[must_use]
    pub fn is_in_crowd(&self) -> bool {
        !self.warm && self.allowance.w0_packets == 0
    }

    /// Most bytes in flight now.
    #[must_use]
    pub fn cap_bytes(&self) -> u64 {
        let window_bytes = u64::from(self.allowance.window_bytes);
        if !self.warm {
            let w0_bytes = u64::from(self.allowance.w0_packets) * self.packet_bytes();
            return window_bytes.min(w0_bytes.max(COLD_LEAST_BYTES));
        }
        window_bytes.min(self.grant_cap_bytes())
    }

    /// Bytes that may leave now for the first time. Retransmissions are never held back by it.
    #[must_use]
    pub fn room_bytes(&self, in_flight_bytes: u64) -> u64 {
        self.cap_bytes().saturating_sub(in_flight_bytes)
    }

    /// When the grant lets the next train out; `None` if now.
    #[must_use]
    pub fn paced_until(&self, now: Time) -> Option<Time> {
        (self.grant_bytes_per_s().is_some() && self.paid_at > now).then_some(self.paid_at)
    }

    /// A train of new packets left.
    pub fn on_sent(&mut self, now: Time, bytes: u64) {
        if self.warm {
            self.cold_owed = false;
            self.cold_bytes = 0;
            self.charge(now, bytes);
            return;
        }
        if self.cold_bytes == 0 {
            self.cold_since = now;
        }
        self.cold_bytes += bytes;
    }

    fn charge(&mut self, sent_at: Time, bytes: u64) {
        if let Some(grant) = self.grant_bytes_per_s() {
            let burst_ns = match self.driving {
                Driving::Busy => 0,
                Driving::Sockets => SOCKETS_BURST_NS,
            };
            let takes_ns = (u128::from(bytes) * 1_000_000_000 / u128::from(grant.max(1))) as u64;
            let earliest = Time::from_ns(sent_at.as_ns().saturating_sub(burst_ns));
            self.paid_at = self.paid_at.max(earliest) + takes_ns;
        }
    }

    /// Packets of a train at most.
    #[must_use]
    pub fn train_packets(&self) -> u32 {
        let Some(grant) = self.grant_bytes_per_s() else {
            return u32::MAX;
        };
        let bytes = u128::from(grant) * u128::from(TRAIN_NS) / 1_000_000_000;
        let packets = (bytes as u64 / self.payload_bytes.max(1)).max(1);
        u32::try_from(packets).unwrap_or(u32::MAX)
    }

    /// Least round trip of the connection's paths.
    #[must_use]
    pub fn min_rtt_ns(&self) -> Option<u64> {
        self.min_rtt_ns
    }

    /// Bytes a second that the receiver grants; nothing where it does not limit.
    #[must_use]
    pub fn grant_bytes_per_s(&self) -> Option<u64> {
        let grant = self.allowance.grant_kib_per_s;
        (grant != GRANT_UNLIMITED).then_some(u64::from(grant) * 1024)
    }

    /// Whether the peer's mind is known.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.warm
    }

    /// Bytes in flight of a full packet.
    fn packet_bytes(&self) -> u64 {
        self.payload_bytes + DATA_HEADER_BYTES as u64
    }

    /// Packets that the grant carries in the round trips that the cap allows (WIRE 8.6); `None` where that says little.
    #[must_use]
    pub fn packets_by_grant(&self) -> Option<u64> {
        let rtt_ns = self.min_rtt_ns.filter(|_| self.driving == Driving::Busy)?;
        let bytes = carried_bytes(self.grant_bytes_per_s()?, rtt_ns + self.ack_delay_ns);
        Some(bytes / self.packet_bytes())
    }

    fn grant_cap_bytes(&self) -> u64 {
        let (Some(grant), Some(rtt_ns)) = (self.grant_bytes_per_s(), self.min_rtt_ns) else {
            return u64::MAX;
        };
        let cap = carried_bytes(grant, rtt_ns + self.ack_delay_ns)
            .saturating_add(self.train_bytes.saturating_mul(self.lanes));
        match self.driving {
            Driving::Busy => cap,
            Driving::Sockets => cap.max(SOCKETS_FLOOR_BYTES),
        }
    }
}

/// Bytes that a grant (bytes per second) carries in as many round trips as the cap allows.
fn carried_bytes(grant: u64, round_ns: u64) -> u64 {
    let per_round = (u128::from(grant) * u128::from(round_ns) / 1_000_000_000) as u64;
    GRANT_RTTS.saturating_mul(per_round)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn allow(grant: u32, window: u32) -> Allowance {
        Allowance {
            grant_kib_per_s: grant,
            window_bytes: window,
            w0_packets: 4,
        }
    }

    fn window(driving: Driving) -> ConnectionWindow {
        ConnectionWindow::new(driving, 4096, 61_440, Time::ZERO)
    }

    #[test]
    fn a_cold_connection_announces_once_and_sends_w0() {
        let mut window = window(Driving::Busy);
        window.on_hello(1 << 20, 4);
        assert_eq!(window.room_bytes(0), 4 * 4160);
        assert_eq!(window.room_bytes(4160), 3 * 4160);
        assert!(window.take_announce());
        assert!(!window.take_announce());
        window.on_ack(
            Time::ZERO,
            AckNumber(1),
            allow(GRANT_UNLIMITED, 1 << 20),
            true,
        );
        assert!(!window.take_announce());
        assert_eq!(window.room_bytes(0), 1 << 20);
    }

    // WIRE 8.12
    #[test]
    fn with_a_w0_of_nothing_a_small_message_leaves_all_the_same() {
        let mut window = window(Driving::Sockets);
        window.on_hello(1 << 20, 0);
        assert_eq!(window.room_bytes(0), 512);
        assert_eq!(window.room_bytes(500), 12);
        assert!(window.is_in_crowd());
        window.on_ack(
            Time::ZERO,
            AckNumber(1),
            allow(GRANT_UNLIMITED, 1 << 20),
            true,
        );
        assert!(!window.is_in_crowd());
        window.on_hello(100, 0);
        assert_eq!(window.room_bytes(0), 1 << 20);
    }

    /// WIRE 8.12, 1.18: a peer that takes small packets counts such ones.
    #[test]
    fn w0_counts_packets_of_the_agreed_size() {
        let mut window = window(Driving::Sockets);
        window.on_hello(1 << 20, 3);
        window.set_payload(1024);
        assert_eq!(window.room_bytes(0), 3 * (1024 + 64));
    }

    // WIRE 5.2, 8.8
    #[test]
    fn only_the_newest_allowance_counts() {
        let mut window = window(Driving::Busy);
        window.on_ack(
            Time::ZERO,
            AckNumber(u32::MAX),
            allow(GRANT_UNLIMITED, 100),
            true,
        );
        window.on_ack(Time::ZERO, AckNumber(1), allow(GRANT_UNLIMITED, 200), true);
        window.on_ack(Time::ZERO, AckNumber(0), allow(GRANT_UNLIMITED, 300), true);
        window.on_hello(400, 1);
        assert_eq!(window.cap_bytes(), 200);
    }

    // WIRE 8.6
    #[rstest]
    #[case(Driving::Busy, 3 * 1_024_000 / 50 + 61_440)]
    #[case(Driving::Sockets, 512 * 1024)]
    fn the_grant_caps_what_is_in_flight(#[case] driving: Driving, #[case] expected: u64) {
        let mut window = window(driving);
        window.on_ack(Time::ZERO, AckNumber(1), allow(1_000, u32::MAX), true);
        assert_eq!(window.cap_bytes(), u64::from(u32::MAX));
        window.set_round_trip(15_000_000, 5_000_000);
        assert_eq!(window.cap_bytes(), expected);
    }

    // WIRE 8.6
    #[test]
    fn each_lane_may_hold_a_train() {
        let mut window = window(Driving::Busy);
        window.on_ack(Time::ZERO, AckNumber(1), allow(1_000, u32::MAX), true);
        window.set_round_trip(15_000_000, 5_000_000);
        let of_one_lane = window.cap_bytes();
        window.set_lanes(4);
        assert_eq!(window.cap_bytes() - of_one_lane, 3 * 61_440);
    }

    // WIRE 8.7
    #[test]
    fn trains_are_paced_at_the_grant() {
        let mut window = window(Driving::Busy);
        let us = |us: u64| Time::from_ns(us * 1_000);
        window.on_ack(us(0), AckNumber(0), allow(GRANT_UNLIMITED, u32::MAX), true);
        window.on_sent(us(0), 1 << 20);
        assert_eq!(window.paced_until(us(0)), None, "nobody limits");
        // A KiB takes a microsecond.
        window.on_ack(us(0), AckNumber(1), allow(1_000_000, u32::MAX), true);
        window.on_sent(us(10), 16 << 10);
        assert_eq!(window.paced_until(us(10)), Some(us(26)));
        assert_eq!(window.paced_until(us(26)), None);
        // Half of it is paid when the grant is halved.
        window.on_ack(us(18), AckNumber(2), allow(500_000, u32::MAX), true);
        assert_eq!(window.paced_until(us(18)), Some(us(34)));
        window.on_ack(us(20), AckNumber(3), allow(GRANT_UNLIMITED, u32::MAX), true);
        assert_eq!(window.paced_until(us(20)), None);
    }

    // WIRE 8.12
    #[test]
    fn what_a_cold_connection_sent_is_paid_when_the_grant_is_known() {
        let us = |us: u64| Time::from_ns(us * 1_000);
        let mut sent = window(Driving::Busy);
        sent.on_sent(us(10), 50 << 10);
        sent.on_ack(us(20), AckNumber(1), allow(1_000_000, u32::MAX), true);
        assert_eq!(sent.paced_until(us(20)), Some(us(60)));
    }

    // WIRE 8.12
    #[test]
    fn an_ack_that_answers_nothing_does_not_make_it_warm() {
        let mut window = window(Driving::Busy);
        window.on_ack(Time::ZERO, AckNumber(1), allow(1_000_000, u32::MAX), false);
        assert!(!window.is_warm());
        assert_eq!(window.cap_bytes(), 4 * 4160);
    }

    // WIRE 8.7
    #[test]
    fn with_sockets_what_was_missed_may_be_caught_up_with() {
        let mut window = window(Driving::Sockets);
        let us = |us: u64| Time::from_ns(us * 1_000);
        window.on_ack(us(0), AckNumber(1), allow(1_000_000, u32::MAX), true);
        window.on_sent(us(1_000), 150 << 10);
        assert_eq!(window.paced_until(us(1_000)), None);
        window.on_sent(us(1_000), 60 << 10);
        assert_eq!(window.paced_until(us(1_000)), Some(us(1_010)));
    }

    // WIRE 8.7
    #[rstest]
    #[case(GRANT_UNLIMITED, u32::MAX)]
    #[case(1_000_000, 20)]
    #[case(1_000, 1)]
    fn trains_are_short_at_small_grants(#[case] grant: u32, #[case] packets: u32) {
        let mut window = window(Driving::Busy);
        window.on_ack(Time::ZERO, AckNumber(1), allow(grant, u32::MAX), true);
        assert_eq!(window.train_packets(), packets);
    }

    // WIRE 8.12
    #[test]
    fn a_long_pause_makes_it_cold_again() {
        let mut window = window(Driving::Sockets);
        window.on_ack(
            Time::ZERO,
            AckNumber(1),
            allow(GRANT_UNLIMITED, 1 << 20),
            true,
        );
        window.set_round_trip(200_000, 0);
        window.on_wakeup(Time::from_ns(2_000_000), 0);
        assert!(window.is_warm());
        window.on_wakeup(Time::from_ns(2_000_001), 1);
        window.on_wakeup(Time::from_ns(4_000_001), 0);
        assert!(window.is_warm());
        window.on_wakeup(Time::from_ns(4_000_002), 0);
        assert!(!window.is_warm());
        assert!(window.take_announce());
        assert_eq!(window.cap_bytes(), 4 * 4160);
    }
}
