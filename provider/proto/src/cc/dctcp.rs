//! Additive increase, decrease by the fraction of marked packets (DCTCP, RFC 8257).
//!
//! Loss alone is no sign of congestion here: a fabric that drops one packet in ten at random would be left idle if
//! each gap cut the window. What cuts is a mark, a retransmission timeout, and a burst of gaps on a path that is also
//! marked or whose round trip has grown (WIRE 8.5).

use crate::cc::window::{Algorithm, Feedback, GROWTH_PACKETS, PathAlgorithm, Size};
use crate::types::Time;

/// Its name.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "dctcp",
    about: "ECN marks: cuts a window by half the marked fraction of its packets",
    make: || Box::<Dctcp>::default(),
};

/// Weight of the newest round trip in the marked fraction.
const GAIN: f64 = 1.0 / 16.0;
/// Slow start ends when the round trip is this many times the least one (WIRE 8.2).
const GROWN: f64 = 1.5;

/// See the file's head.
#[derive(Debug)]
struct Dctcp {
    slow_start: bool,
    marked_fraction: f64,
    round_start: Option<Time>,
    round_received: u32,
    round_marked: u32,
    last_cut: Option<Time>,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self {
            slow_start: true,
            // The first mark finds a window that grew blindly: halve it.
            marked_fraction: 1.0,
            round_start: None,
            round_received: 0,
            round_marked: 0,
            last_cut: None,
        }
    }
}

impl PathAlgorithm for Dctcp {
    fn on_feedback(&mut self, now: Time, feedback: &Feedback, window: &mut Size) {
        self.round_received += feedback.received;
        self.round_marked += feedback.marked;
        let grew = feedback.round_trip_grew(GROWN);
        if feedback.marked > 0 || feedback.burst_lost || grew {
            self.slow_start = false;
        }
        let suspicious = self.round_marked > 0 || grew;
        if feedback.marked > 0 {
            window.cut(now, self.marked_fraction / 2.0, &mut self.last_cut);
        }
        if feedback.burst_lost && suspicious {
            window.cut(now, 0.5, &mut self.last_cut);
        }
        let round_start = *self.round_start.get_or_insert(now);
        if now.since_ns(round_start) >= window.round_ns() {
            self.end_round(now);
        }
        if self.slow_start {
            window.grow_twofold(feedback);
        } else {
            window.grow(feedback, GROWTH_PACKETS);
        }
    }

    fn on_rto(&mut self, now: Time, window: &mut Size) {
        window.set(window.packets().min(1.0));
        self.slow_start = true;
        self.last_cut = Some(now);
    }

    fn in_slow_start(&self) -> bool {
        self.slow_start
    }

    fn marked_fraction(&self) -> f64 {
        self.marked_fraction
    }
}

impl Dctcp {
    fn end_round(&mut self, now: Time) {
        if !self.slow_start {
            let fraction = f64::from(self.round_marked) / f64::from(self.round_received.max(1));
            self.marked_fraction += GAIN * (fraction.min(1.0) - self.marked_fraction);
        }
        self.round_start = Some(now);
        self.round_received = 0;
        self.round_marked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::window::tests::{RTT_NS, at, full, size};

    /// In congestion avoidance without any recent mark.
    fn settled() -> Dctcp {
        Dctcp {
            slow_start: false,
            marked_fraction: 0.0,
            ..Dctcp::default()
        }
    }

    // WIRE 8.1, 8.2
    #[test]
    fn slow_start_doubles_until_a_mark_and_then_halves_once() {
        let (mut dctcp, mut window) = (Dctcp::default(), size(16.0, 1));
        dctcp.on_feedback(at(1), &full(&window, RTT_NS), &mut window);
        assert_eq!(window.packets(), 32.0);
        let marked = Feedback {
            marked: 1,
            acked_packets: 0,
            ..full(&window, RTT_NS)
        };
        dctcp.on_feedback(at(2), &marked, &mut window);
        assert!(!dctcp.in_slow_start());
        assert_eq!(window.packets(), 16.0);
        dctcp.on_feedback(at(2) + RTT_NS / 2, &marked, &mut window);
        assert_eq!(window.packets(), 16.0, "twice within a round trip");
    }

    // WIRE 8.2
    #[test]
    fn slow_start_ends_when_the_round_trip_grows() {
        let (mut dctcp, mut window) = (Dctcp::default(), size(16.0, 1));
        let mut feedback = full(&window, RTT_NS * 3 / 2 + 1);
        dctcp.on_feedback(at(1), &feedback, &mut window);
        assert!(!dctcp.in_slow_start());
        let mut noisy = Dctcp::default();
        feedback.noise_ns = 2;
        noisy.on_feedback(at(1), &feedback, &mut window);
        assert!(noisy.in_slow_start());
    }

    // WIRE 8.5
    #[test]
    fn isolated_loss_does_not_cut_but_bursts_with_marks_do() {
        let (mut dctcp, mut window) = (settled(), size(100.0, 1));
        let mut feedback = Feedback {
            burst_lost: true,
            acked_packets: 0,
            ..full(&window, RTT_NS)
        };
        dctcp.on_feedback(at(1), &feedback, &mut window);
        assert_eq!(window.packets(), 100.0);
        feedback.smoothed_ns = Some(2 * RTT_NS);
        dctcp.on_feedback(at(3), &feedback, &mut window);
        assert_eq!(window.packets(), 50.0);
    }

    // WIRE 8.1
    #[test]
    fn a_steady_fraction_of_marks_is_learned_and_cut_by_half_of_it() {
        let mut dctcp = settled();
        let mut window = size(100.0, 1);
        let feedback = Feedback {
            acked_packets: 0,
            received: 100,
            marked: 20,
            ..full(&window, RTT_NS)
        };
        for round in 1..200 {
            window.set(100.0);
            dctcp.on_feedback(at(round), &feedback, &mut window);
        }
        assert!((dctcp.marked_fraction() - 0.2).abs() < 0.01);
        let packets = window.packets();
        assert!((packets - 90.0).abs() < 0.5, "{packets}");
    }

    #[test]
    fn a_timeout_starts_over() {
        let (mut dctcp, mut window) = (settled(), size(100.0, 1));
        dctcp.on_rto(at(1), &mut window);
        assert_eq!(window.packets(), 1.0);
        assert!(dctcp.in_slow_start());
    }
}
