//! Additive increase, decrease by the time that packets spend in queues (after Swift, SIGCOMM 2020): for fabrics whose
//! switches do not mark.
//!
//! A round trip has a target: the least one seen, what means nothing, and a queue that shrinks as the window grows, so that
//! flows with small windows, which are many, do not chase one another below a queue that none of them makes. Above the
//! target the window is cut in proportion to the excess, at most once per round trip; below it grows as DCTCP's does.
//!
//! What this one lacks: whoever begins while others keep a queue takes that for the length of the way, allows itself a queue on
//! top of it, and starves the others (`cargo xtask sim paths-fairness --congestion delay`). Where the least round trip of the
//! fabric is known it should stand in the place of the least one seen.

use crate::cc::window::{Algorithm, Feedback, GROWTH_PACKETS, PathAlgorithm, Size};
use crate::types::Time;

/// Its name.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "delay",
    about: "round trips: cuts a window by what they are above their target (after Swift)",
    make: || Box::<Delay>::default(),
};

/// Queue that is always allowed: some packets of 4 KiB at 100 Gb/s.
const QUEUE_NS: f64 = 4_000.0;
/// And more for connections with small windows: so much for one packet in flight over all paths, the inverse square root of
/// larger numbers. (By the window of one path, who has many paths would bear a longer queue and starve who has few.)
const SMALL_WINDOW_QUEUE_NS: f64 = 8_000.0;
/// How strongly the excess cuts.
const BETA: f64 = 0.8;
/// The most that one cut takes away.
const CUT_MAX: f64 = 0.5;

/// See the file's head.
#[derive(Debug)]
struct Delay {
    slow_start: bool,
    last_cut: Option<Time>,
}

impl Default for Delay {
    fn default() -> Self {
        Self {
            slow_start: true,
            last_cut: None,
        }
    }
}

impl PathAlgorithm for Delay {
    fn on_feedback(&mut self, now: Time, feedback: &Feedback, window: &mut Size) {
        let (Some(rtt_ns), Some(min_ns)) = (feedback.rtt_ns, feedback.min_ns) else {
            return;
        };
        let small_ns = SMALL_WINDOW_QUEUE_NS / (window.packets() * window.paths()).max(1.0).sqrt();
        let target_ns = min_ns as f64 + feedback.noise_ns as f64 + QUEUE_NS + small_ns;
        let rtt_ns = rtt_ns as f64;
        if rtt_ns > target_ns {
            self.slow_start = false;
            let part = (BETA * (rtt_ns - target_ns) / rtt_ns).min(CUT_MAX);
            window.cut(now, part, &mut self.last_cut);
        } else if self.slow_start {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::window::tests::{RTT_NS, at, full, size};

    #[test]
    fn it_doubles_until_a_queue_shows_and_then_is_cut_by_the_excess_once_a_round() {
        let (mut delay, mut window) = (Delay::default(), size(16.0, 1));
        delay.on_feedback(at(1), &full(&window, RTT_NS), &mut window);
        assert_eq!(window.packets(), 32.0);
        // Twice the target: four tenths go.
        let target_ns = RTT_NS as f64 + QUEUE_NS + SMALL_WINDOW_QUEUE_NS / 32f64.sqrt();
        let slow = full(&window, 2 * target_ns as u64);
        delay.on_feedback(at(2), &slow, &mut window);
        assert!((window.packets() - 32.0 * 0.6).abs() < 0.01);
        assert!(!delay.in_slow_start());
        let cut = window.packets();
        delay.on_feedback(at(2) + RTT_NS / 2, &slow, &mut window);
        assert_eq!(window.packets(), cut, "twice within a round trip");
    }

    #[test]
    fn no_cut_takes_more_than_half() {
        let (mut delay, mut window) = (Delay::default(), size(100.0, 1));
        delay.on_feedback(at(1), &full(&window, 1_000 * RTT_NS), &mut window);
        assert_eq!(window.packets(), 50.0);
    }
}
