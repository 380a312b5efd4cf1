//! The window of one path, in packets: additive increase, decrease by the fraction of marked packets (DCTCP).
//!
//! Loss alone is no sign of congestion here: a fabric that drops one packet in ten at random would be left idle if
//! each gap cut the window. What cuts is a mark, a retransmission timeout, and a burst of gaps on a path that is also
//! marked or whose round trip has grown (WIRE 8.5). Fed by `path/tx` with every acknowledgement.

use crate::path::SPAN_PACKETS;
use crate::types::Time;

/// Window of a path that has just been opened: about one train.
const INITIAL_PACKETS: f64 = 16.0;
/// Least window: one packet in eight round trips, so that many paths into one full queue still share it; the paths of a
/// connection have one packet together (WIRE 8.4).
const FLOOR_PACKETS: f64 = 1.0 / 8.0;
/// Growth of all paths of a connection together, in packets per round trip (WIRE 8.3).
const GROWTH_PACKETS: f64 = 8.0;
/// Weight of the newest round trip in the marked fraction.
const GAIN: f64 = 1.0 / 16.0;
/// Slow start ends when the round trip is this many times the least one (WIRE 8.2).
const GROWN: f64 = 1.5;
/// Length of a round before there is any estimate.
const UNKNOWN_ROUND_NS: u64 = 1_000_000;

/// What one acknowledgement told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Feedback {
    /// Packets newly acknowledged.
    pub acked_packets: u32,
    /// Packets in flight before it.
    pub in_flight_before: u32,
    /// Packets that arrived, of any kind.
    pub received: u32,
    /// Of these, with a congestion mark.
    pub marked: u32,
    /// Several packets in a row were lost.
    pub burst_lost: bool,
    /// Smoothed round trip.
    pub smoothed_ns: Option<u64>,
    /// Least round trip.
    pub min_ns: Option<u64>,
    /// Growth of the round trip that means nothing.
    pub noise_ns: u64,
}

impl Feedback {
    fn round_trip_grew(&self) -> bool {
        match (self.smoothed_ns, self.min_ns) {
            (Some(smoothed_ns), Some(min_ns)) => {
                smoothed_ns as f64 > GROWN * min_ns as f64 + self.noise_ns as f64
            }
            _ => false,
        }
    }
}

/// Window of one path; see the file's head.
#[derive(Clone, Debug)]
pub struct PathWindow {
    packets: f64,
    paths: u32,
    slow_start: bool,
    marked_fraction: f64,
    round_start: Time,
    round_received: u32,
    round_marked: u32,
    last_cut: Option<Time>,
    round_ns: u64,
}

impl PathWindow {
    /// Window of a path that opens `now`.
    #[must_use]
    pub fn new(now: Time) -> Self {
        Self {
            packets: INITIAL_PACKETS,
            paths: 1,
            slow_start: true,
            // The first mark finds a window that grew blindly: halve it.
            marked_fraction: 1.0,
            round_start: now,
            round_received: 0,
            round_marked: 0,
            last_cut: None,
            round_ns: UNKNOWN_ROUND_NS,
        }
    }

    /// How many paths share the connection's growth.
    pub fn set_paths(&mut self, paths: u32) {
        self.paths = paths.max(1);
    }

    /// Present window in packets; may be less than one.
    #[must_use]
    pub fn packets(&self) -> f64 {
        self.packets
    }

    /// Whether the window still doubles every round trip.
    #[must_use]
    pub fn in_slow_start(&self) -> bool {
        self.slow_start
    }

    /// Marked fraction of the packets, averaged over round trips.
    #[must_use]
    pub fn marked_fraction(&self) -> f64 {
        self.marked_fraction
    }

    /// Packets that may leave now. A window below one packet lets one out each time that much of it has passed.
    #[must_use]
    pub fn room(&self, now: Time, in_flight: u32, last_sent: Option<Time>) -> u32 {
        if self.packets >= 1.0 {
            return (self.packets as u32).saturating_sub(in_flight);
        }
        let open = in_flight == 0 && self.opens_at(last_sent).is_none_or(|at| now >= at);
        u32::from(open)
    }

    /// When a window below one packet lets the next one out.
    #[must_use]
    pub fn opens_at(&self, last_sent: Option<Time>) -> Option<Time> {
        if self.packets >= 1.0 {
            return None;
        }
        let spacing_ns = (self.round_ns as f64 / self.packets) as u64;
        last_sent.map(|at| at + spacing_ns)
    }

    /// Takes what an acknowledgement told.
    pub fn on_feedback(&mut self, now: Time, feedback: &Feedback) {
        self.round_ns = feedback.smoothed_ns.unwrap_or(UNKNOWN_ROUND_NS);
        self.round_received += feedback.received;
        self.round_marked += feedback.marked;
        let grew = feedback.round_trip_grew();
        if feedback.marked > 0 || feedback.burst_lost || grew {
            self.slow_start = false;
        }
        let suspicious = self.round_marked > 0 || grew;
        if feedback.marked > 0 {
            self.cut(now, self.marked_fraction / 2.0);
        }
        if feedback.burst_lost && suspicious {
            self.cut(now, 0.5);
        }
        if self.round_is_over(now) {
            if !self.slow_start {
                let fraction = f64::from(self.round_marked) / f64::from(self.round_received.max(1));
                self.marked_fraction += GAIN * (fraction.min(1.0) - self.marked_fraction);
            }
            self.round_start = now;
            self.round_received = 0;
            self.round_marked = 0;
        }
        self.grow(feedback);
    }

    /// The path stayed silent: start over.
    pub fn on_rto(&mut self, now: Time) {
        self.packets = self.packets.min(1.0);
        self.slow_start = true;
        self.last_cut = Some(now);
    }

    fn round_is_over(&self, now: Time) -> bool {
        now.since_ns(self.round_start) >= self.round_ns
    }

    /// At most once per round trip (WIRE 8.1): later marks and gaps of the same round tell of the same queue.
    fn cut(&mut self, now: Time, part: f64) {
        if self
            .last_cut
            .is_some_and(|at| now.since_ns(at) < self.round_ns)
        {
            return;
        }
        let floor = FLOOR_PACKETS.max(1.0 / f64::from(self.paths));
        self.packets = (self.packets * (1.0 - part)).max(floor);
        self.last_cut = Some(now);
    }

    /// Only a window that is used may grow, or an idle sender would earn the right to a burst.
    fn grow(&mut self, feedback: &Feedback) {
        if f64::from(feedback.in_flight_before) * 2.0 < self.packets {
            return;
        }
        let acked = f64::from(feedback.acked_packets);
        let increase = if self.slow_start {
            acked
        } else {
            (acked * GROWTH_PACKETS / f64::from(self.paths) / self.packets).min(acked)
        };
        self.packets = (self.packets + increase).min(f64::from(SPAN_PACKETS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const RTT_NS: u64 = 20_000;

    fn at(round: u64) -> Time {
        Time::from_ns(1_000_000 + round * RTT_NS)
    }

    /// One acknowledgement for a full window.
    fn full(window: &PathWindow) -> Feedback {
        let packets = window.packets() as u32;
        Feedback {
            acked_packets: packets,
            in_flight_before: packets.max(1),
            received: packets,
            smoothed_ns: Some(RTT_NS),
            min_ns: Some(RTT_NS),
            ..Feedback::default()
        }
    }

    /// A window that is in congestion avoidance without any recent mark.
    fn settled(packets: f64, paths: u32) -> PathWindow {
        let mut window = PathWindow::new(Time::ZERO);
        window.set_paths(paths);
        window.packets = packets;
        window.slow_start = false;
        window.marked_fraction = 0.0;
        window
    }

    #[test]
    fn slow_start_doubles_until_a_mark_and_then_halves_once() {
        let mut window = PathWindow::new(Time::ZERO);
        window.on_feedback(at(1), &full(&window));
        assert_eq!(window.packets(), 32.0);
        let marked = Feedback {
            marked: 1,
            acked_packets: 0,
            ..full(&window)
        };
        window.on_feedback(at(2), &marked);
        assert!(!window.in_slow_start());
        assert_eq!(window.packets(), 16.0);
        window.on_feedback(at(2) + RTT_NS / 2, &marked);
        assert_eq!(window.packets(), 16.0, "twice within a round trip");
    }

    #[test]
    fn slow_start_ends_when_the_round_trip_grows() {
        let mut window = PathWindow::new(Time::ZERO);
        let mut feedback = full(&window);
        feedback.smoothed_ns = Some(RTT_NS * 3 / 2 + 1);
        window.on_feedback(at(1), &feedback);
        assert!(!window.in_slow_start());
        let mut noisy = PathWindow::new(Time::ZERO);
        feedback.noise_ns = 2;
        noisy.on_feedback(at(1), &feedback);
        assert!(noisy.in_slow_start());
    }

    #[rstest]
    #[case(1)]
    #[case(8)]
    #[case(16)]
    fn growth_is_shared_by_the_paths(#[case] paths: u32) {
        let mut window = settled(100.0, paths);
        window.on_feedback(at(1), &full(&window));
        let grown = window.packets() - 100.0;
        assert!((grown - 8.0 / f64::from(paths)).abs() < 1e-9, "{grown}");
    }

    #[test]
    fn a_window_less_than_half_used_does_not_grow() {
        let mut window = settled(100.0, 1);
        let mut feedback = full(&window);
        feedback.in_flight_before = 49;
        window.on_feedback(at(1), &feedback);
        assert_eq!(window.packets(), 100.0);
    }

    #[test]
    fn isolated_loss_does_not_cut_but_bursts_with_marks_do() {
        let mut window = settled(100.0, 1);
        let mut feedback = Feedback {
            burst_lost: true,
            acked_packets: 0,
            ..full(&window)
        };
        window.on_feedback(at(1), &feedback);
        assert_eq!(window.packets(), 100.0);
        feedback.smoothed_ns = Some(2 * RTT_NS);
        window.on_feedback(at(3), &feedback);
        assert_eq!(window.packets(), 50.0);
    }

    #[test]
    fn a_steady_fraction_of_marks_is_learned_and_cut_by_half_of_it() {
        let mut window = settled(100.0, 1);
        let feedback = Feedback {
            acked_packets: 0,
            received: 100,
            marked: 20,
            ..full(&window)
        };
        for round in 1..200 {
            window.packets = 100.0;
            window.on_feedback(at(round), &feedback);
        }
        assert!((window.marked_fraction() - 0.2).abs() < 0.01);
        assert!(
            (window.packets() - 90.0).abs() < 0.5,
            "{}",
            window.packets()
        );
    }

    #[test]
    fn the_floor_is_an_eighth_of_a_packet_which_means_patience() {
        let mut window = settled(1.0, 16);
        window.marked_fraction = 1.0;
        for round in 0..100 {
            let marked = Feedback {
                received: 1,
                marked: 1,
                smoothed_ns: Some(RTT_NS),
                ..Feedback::default()
            };
            window.on_feedback(at(round), &marked);
        }
        assert_eq!(window.packets(), FLOOR_PACKETS);
        assert_eq!(window.room(at(100), 0, None), 1);
        assert_eq!(window.room(at(100), 1, None), 0);
        assert_eq!(window.room(at(107), 0, Some(at(100))), 0);
        assert_eq!(window.room(at(108), 0, Some(at(100))), 1);
        assert_eq!(window.opens_at(Some(at(100))), Some(at(108)));
    }

    #[test]
    fn the_only_path_keeps_a_whole_packet() {
        let mut window = settled(1.0, 1);
        window.marked_fraction = 1.0;
        window.cut(at(1), 0.5);
        assert_eq!(window.packets(), 1.0);
    }

    #[test]
    fn a_timeout_starts_over() {
        let mut window = settled(100.0, 1);
        window.on_rto(at(1));
        assert_eq!(window.packets(), 1.0);
        assert!(window.in_slow_start());
        assert_eq!(window.room(at(1), 0, None), 1);
    }

    #[test]
    fn the_window_never_exceeds_the_span() {
        let mut window = PathWindow::new(Time::ZERO);
        for round in 1..20 {
            window.on_feedback(at(round), &full(&window));
        }
        assert_eq!(window.packets(), 256.0);
    }
}
