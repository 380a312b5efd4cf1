//! Loss of packets on a link, one by one or in bursts, drawn from the seed. Used by `fabric/link.rs`.

use metaroce_proto::types::Time;
use rand::Rng;
use rand::rngs::SmallRng;

/// A burst is over when nothing came for so long: else a link on which there is only a probe now and then would be dark for as
/// long as many of them take.
const BURST_PAUSE_NS: u64 = 1_000_000;

/// How a link loses packets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Loss {
    /// Part of all packets that is lost, in the long run: 0 … below 1.
    pub part: f64,
    /// Packets in a row that are lost together: as many as this at most, equally often each number from 1 on.
    pub burst_max: u32,
}

impl Loss {
    /// Each packet for itself.
    #[must_use]
    pub const fn each(part: f64) -> Self {
        Self { part, burst_max: 1 }
    }

    /// With what probability a burst begins at a packet, so that the part is right: a burst of L packets on average
    /// follows after (1 − q) / q packets that pass.
    fn begins(&self) -> f64 {
        let mean = (f64::from(self.burst_max.max(1)) + 1.0) / 2.0;
        let part = self.part.clamp(0.0, 1.0);
        part / (part + mean * (1.0 - part)).max(f64::MIN_POSITIVE)
    }
}

/// See the file's head.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossProcess {
    begins: f64,
    burst_max: u32,
    burst_left: u32,
    last: Time,
}

impl LossProcess {
    pub(super) fn new(loss: Loss) -> Self {
        Self {
            begins: loss.begins(),
            burst_max: loss.burst_max.max(1),
            burst_left: 0,
            last: Time::ZERO,
        }
    }

    /// Whether the packet that comes `now` is lost.
    pub(super) fn loses(&mut self, now: Time, rng: &mut SmallRng) -> bool {
        let goes_on = now.since_ns(self.last) < BURST_PAUSE_NS;
        self.last = now;
        if self.burst_left > 0 && goes_on {
            self.burst_left -= 1;
            return true;
        }
        self.burst_left = 0;
        let begins = self.begins > 0.0 && rng.random_bool(self.begins);
        if begins && self.burst_max > 1 {
            self.burst_left = rng.random_range(0..self.burst_max);
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rstest::rstest;

    use super::*;

    const PACKETS: usize = 1_000_000;

    fn fates(loss: Loss) -> Vec<bool> {
        let mut rng = SmallRng::seed_from_u64(5);
        let mut process = LossProcess::new(loss);
        let at = |packet: usize| Time::from_ns(packet as u64 * 100);
        let fate = |packet| process.loses(at(packet), &mut rng);
        (0..PACKETS).map(fate).collect()
    }

    #[rstest]
    #[case(0.001, 1)]
    #[case(0.1, 1)]
    #[case(0.01, 50)]
    fn the_part_is_right(#[case] part: f64, #[case] burst_max: u32) {
        let lost = fates(Loss { part, burst_max })
            .into_iter()
            .filter(|lost| *lost);
        let found = lost.count() as f64 / PACKETS as f64;
        assert!(
            (found / part - 1.0).abs() < 0.1,
            "{found} instead of {part}"
        );
    }

    #[test]
    fn bursts_have_all_lengths_up_to_the_longest() {
        // So rare that hardly ever two touch.
        let fates = fates(Loss {
            part: 0.005,
            burst_max: 4,
        });
        let mut lengths = [0; 6];
        for run in fates.split(|lost| !*lost).filter(|run| !run.is_empty()) {
            lengths[run.len().min(5)] += 1;
        }
        let least = lengths[1..=4].iter().min();
        let most = lengths[1..=4].iter().max();
        assert!(least > Some(&400) && most < Some(&600), "{lengths:?}");
        assert!(lengths[5] < 40, "{lengths:?}");
    }

    #[test]
    fn a_burst_does_not_outlast_a_pause() {
        let mut rng = SmallRng::seed_from_u64(5);
        let mut process = LossProcess::new(Loss {
            part: 0.5,
            burst_max: 1_000,
        });
        let lost = |packet: u64| process.loses(Time::from_ns(packet * BURST_PAUSE_NS), &mut rng);
        let found = (1..10_000).map(lost).filter(|lost| *lost).count();
        assert!(found < 100, "{found}");
    }

    #[test]
    fn nothing_is_lost_where_nothing_shall_be() {
        assert!(!fates(Loss::each(0.0)).contains(&true));
    }
}
