//! The window of one path, in packets: what every sender algorithm has in common.
//!
//! How the window grows and shrinks is the business of a [`PathAlgorithm`], one a file, named in [`ALGORITHMS`]; the
//! window itself keeps it between its bounds, counts rounds, and says how many packets may leave. Fed by `path/tx` with
//! every acknowledgement.
//!
//! Another algorithm is another file: a type with [`PathAlgorithm`], an [`Algorithm`] that makes it, its module in `mod.rs`
//! and a line in [`ALGORITHMS`]. The tests below have helpers for its own.

use std::fmt;

use crate::cc::{dctcp, delay};
use crate::path::SPAN_PACKETS;
use crate::types::Time;

/// Window of a path that has just been opened: about one train.
const INITIAL_PACKETS: f64 = 16.0;
/// Least window: one packet in eight round trips, so that many paths into one full queue still share it; the paths of a
/// connection have one packet together (WIRE 8.4).
const FLOOR_PACKETS: f64 = 1.0 / 8.0;
/// Growth of all paths of a connection together, in packets per round trip (WIRE 8.3).
pub const GROWTH_PACKETS: f64 = 8.0;
/// Length of a round before there is any estimate.
const UNKNOWN_ROUND_NS: u64 = 1_000_000;

/// The algorithms that there are, the default one first.
pub const ALGORITHMS: &[Algorithm] = &[dctcp::ALGORITHM, delay::ALGORITHM];

/// An algorithm by its name.
#[derive(Clone, Copy)]
pub struct Algorithm {
    /// What users call it.
    pub name: &'static str,
    /// What it goes by, in one line.
    pub about: &'static str,
    /// The algorithm of one path.
    pub make: fn() -> Box<dyn PathAlgorithm>,
}

impl Algorithm {
    /// The algorithm of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        ALGORITHMS.iter().find(|one| one.name == name)
    }
}

impl Default for &'static Algorithm {
    fn default() -> Self {
        &ALGORITHMS[0]
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Algorithm {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Algorithm {}

/// Sender's congestion control of one path.
pub trait PathAlgorithm: fmt::Debug + Send {
    /// An acknowledgement told something, or time alone showed losses: then there is neither a round trip nor anything acked.
    fn on_feedback(&mut self, now: Time, feedback: &Feedback, window: &mut Size);

    /// The path stayed silent for a retransmission timeout: start over.
    fn on_rto(&mut self, now: Time, window: &mut Size);

    /// The path took another route: what was learnt of the queues on the old one may be wrong here.
    fn on_move(&mut self, _now: Time, _window: &mut Size) {}

    /// Whether the window still doubles every round trip.
    fn in_slow_start(&self) -> bool;

    /// Marked fraction of the packets, averaged; 0 for who does not look at marks.
    fn marked_fraction(&self) -> f64 {
        0.0
    }
}

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
    /// Packets newly found lost.
    pub lost: u32,
    /// Four of them or more in a row.
    pub burst_lost: bool,
    /// Packets that had been found lost and had arrived all the same.
    pub spurious: u32,
    /// The round trip that it showed, without the peer's delay.
    pub rtt_ns: Option<u64>,
    /// Smoothed round trip.
    pub smoothed_ns: Option<u64>,
    /// Least round trip.
    pub min_ns: Option<u64>,
    /// Growth of the round trip that means nothing.
    pub noise_ns: u64,
}

impl Feedback {
    /// Whether the smoothed round trip is more than `times` the least one, noise apart.
    #[must_use]
    pub fn round_trip_grew(&self, times: f64) -> bool {
        match (self.smoothed_ns, self.min_ns) {
            (Some(smoothed_ns), Some(min_ns)) => {
                smoothed_ns as f64 > times * min_ns as f64 + self.noise_ns as f64
            }
            _ => false,
        }
    }
}

/// How large a window is, and within what bounds an algorithm may set it.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    packets: f64,
    paths: u32,
    round_ns: u64,
}

impl Size {
    /// In packets; may be less than one.
    #[must_use]
    pub fn packets(&self) -> f64 {
        self.packets
    }

    /// Paths of the connection: they share one link as often as not, and must not get more than a single one would.
    #[must_use]
    pub fn paths(&self) -> f64 {
        f64::from(self.paths)
    }

    /// A round trip, as far as it is known.
    #[must_use]
    pub fn round_ns(&self) -> u64 {
        self.round_ns
    }

    /// Sets it, as far as it may go: from one packet for all paths together, and no less than 1/8, to the path's span.
    pub fn set(&mut self, packets: f64) {
        let floor = FLOOR_PACKETS.max(1.0 / f64::from(self.paths));
        self.packets = packets.clamp(floor, f64::from(SPAN_PACKETS));
    }

    /// Cuts it by this part, at most once per round trip (WIRE 8.1): later signs in the same one tell of the same queue.
    /// `last_cut` is the algorithm's memory of that.
    pub fn cut(&mut self, now: Time, part: f64, last_cut: &mut Option<Time>) {
        if last_cut.is_some_and(|at| now.since_ns(at) < self.round_ns) {
            return;
        }
        self.set(self.packets * (1.0 - part));
        *last_cut = Some(now);
    }

    /// Doubles in a round trip.
    pub fn grow_twofold(&mut self, feedback: &Feedback) {
        self.grow_by(feedback, f64::from(feedback.acked_packets));
    }

    /// Grows by so many packets in a round trip, all paths of the connection together.
    pub fn grow(&mut self, feedback: &Feedback, packets: f64) {
        let acked = f64::from(feedback.acked_packets);
        self.grow_by(
            feedback,
            (acked * packets / self.paths() / self.packets).min(acked),
        );
    }

    /// Only a window that is used may grow, or an idle sender would earn the right to a burst.
    fn grow_by(&mut self, feedback: &Feedback, increase: f64) {
        if f64::from(feedback.in_flight_before) * 2.0 >= self.packets {
            self.set(self.packets + increase);
        }
    }
}

/// Window of one path; see the file's head.
#[derive(Debug)]
pub struct PathWindow {
    size: Size,
    algorithm: Box<dyn PathAlgorithm>,
}

impl PathWindow {
    /// Window of a path that opens.
    #[must_use]
    pub fn new(algorithm: &Algorithm) -> Self {
        Self {
            size: Size {
                packets: INITIAL_PACKETS,
                paths: 1,
                round_ns: UNKNOWN_ROUND_NS,
            },
            algorithm: (algorithm.make)(),
        }
    }

    /// How many paths share the connection's growth.
    pub fn set_paths(&mut self, paths: u32) {
        self.size.paths = paths.max(1);
    }

    /// Present window in packets; may be less than one.
    #[must_use]
    pub fn packets(&self) -> f64 {
        self.size.packets
    }

    /// Whether the window still doubles every round trip.
    #[must_use]
    pub fn in_slow_start(&self) -> bool {
        self.algorithm.in_slow_start()
    }

    /// Marked fraction of the packets, averaged over round trips.
    #[must_use]
    pub fn marked_fraction(&self) -> f64 {
        self.algorithm.marked_fraction()
    }

    /// Packets that may leave now. A window below one packet lets one out each time that much of it has passed.
    #[must_use]
    pub fn room(&self, now: Time, in_flight: u32, last_sent: Option<Time>) -> u32 {
        if self.packets() >= 1.0 {
            return (self.packets() as u32).saturating_sub(in_flight);
        }
        let open = in_flight == 0 && self.opens_at(last_sent).is_none_or(|at| now >= at);
        u32::from(open)
    }

    /// When a window below one packet lets the next one out.
    #[must_use]
    pub fn opens_at(&self, last_sent: Option<Time>) -> Option<Time> {
        if self.packets() >= 1.0 {
            return None;
        }
        let spacing_ns = (self.size.round_ns as f64 / self.packets()) as u64;
        last_sent.map(|at| at + spacing_ns)
    }

    /// Takes what an acknowledgement told.
    pub fn on_feedback(&mut self, now: Time, feedback: &Feedback) {
        self.size.round_ns = feedback.smoothed_ns.unwrap_or(UNKNOWN_ROUND_NS);
        self.algorithm.on_feedback(now, feedback, &mut self.size);
    }

    /// The path stayed silent: start over.
    pub fn on_rto(&mut self, now: Time) {
        self.algorithm.on_rto(now, &mut self.size);
    }

    /// The path took another route.
    pub fn on_move(&mut self, now: Time) {
        self.algorithm.on_move(now, &mut self.size);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rstest::rstest;

    pub(in crate::cc) const RTT_NS: u64 = 20_000;

    pub(in crate::cc) fn at(round: u64) -> Time {
        Time::from_ns(1_000_000 + round * RTT_NS)
    }

    /// A size that is set to `packets`, of a connection with `paths` paths.
    pub(in crate::cc) fn size(packets: f64, paths: u32) -> Size {
        Size {
            packets,
            paths,
            round_ns: RTT_NS,
        }
    }

    /// One acknowledgement for a full window, `rtt_ns` after it left.
    pub(in crate::cc) fn full(size: &Size, rtt_ns: u64) -> Feedback {
        let packets = size.packets() as u32;
        Feedback {
            acked_packets: packets,
            in_flight_before: packets.max(1),
            received: packets,
            rtt_ns: Some(rtt_ns),
            smoothed_ns: Some(rtt_ns),
            min_ns: Some(RTT_NS),
            ..Feedback::default()
        }
    }

    // WIRE 8.4
    #[test]
    fn a_window_is_between_its_bounds() {
        let mut one = size(16.0, 1);
        one.set(0.0);
        assert_eq!(one.packets(), 1.0, "the only path keeps a whole packet");
        let mut many = size(16.0, 16);
        many.set(0.0);
        assert_eq!(many.packets(), FLOOR_PACKETS);
        many.set(1e9);
        assert_eq!(many.packets(), f64::from(SPAN_PACKETS));
    }

    // WIRE 8.3
    #[rstest]
    #[case(1)]
    #[case(8)]
    #[case(16)]
    fn growth_is_shared_by_the_paths(#[case] paths: u32) {
        let mut size = size(100.0, paths);
        size.grow(&full(&size, RTT_NS), GROWTH_PACKETS);
        let grown = size.packets() - 100.0;
        assert!((grown - 8.0 / f64::from(paths)).abs() < 1e-9, "{grown}");
    }

    // WIRE 8.3
    #[test]
    fn a_window_less_than_half_used_does_not_grow() {
        let mut size = size(100.0, 1);
        let mut feedback = full(&size, RTT_NS);
        feedback.in_flight_before = 49;
        size.grow_twofold(&feedback);
        size.grow(&feedback, GROWTH_PACKETS);
        assert_eq!(size.packets(), 100.0);
    }

    // WIRE 8.4
    #[test]
    fn a_window_of_less_than_a_packet_means_patience() {
        let mut window = PathWindow::new(<&Algorithm>::default());
        window.set_paths(16);
        window.size.round_ns = RTT_NS;
        window.size.set(0.0);
        assert_eq!(window.room(at(100), 0, None), 1);
        assert_eq!(window.room(at(100), 1, None), 0);
        assert_eq!(window.room(at(107), 0, Some(at(100))), 0);
        assert_eq!(window.room(at(108), 0, Some(at(100))), 1);
        assert_eq!(window.opens_at(Some(at(100))), Some(at(108)));
    }

    #[test]
    fn algorithms_have_different_names_by_which_they_are_found() {
        for one in ALGORITHMS {
            assert_eq!(Algorithm::by_name(one.name), Some(one));
            let same = ALGORITHMS.iter().filter(|other| other.name == one.name);
            assert_eq!(same.count(), 1);
            assert!(!(one.make)().marked_fraction().is_nan());
        }
        assert_eq!(Algorithm::by_name(""), None);
    }
}
