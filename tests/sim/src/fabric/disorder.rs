//! What a link does to packets besides losing them: late ones, overtaken by others, twice or damaged. Used by `fabric/link.rs`.

use metaroce_proto::types::Time;
use rand::Rng;
use rand::rngs::SmallRng;

/// How a link treats packets.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Disorder {
    /// All packets are late by up to this, without overtaking one another.
    pub jitter_ns: u64,
    /// Part of the packets that are overtaken by others,
    pub late: f64,
    /// late by up to this.
    pub late_ns: u64,
    /// Part of the packets that arrive twice,
    pub duplicate: f64,
    /// the second time up to so much later.
    pub duplicate_ns: u64,
    /// Part of the packets that are damaged; the checksum of the receiving port or of UDP finds it, and drops them.
    pub corrupt: f64,
}

/// See the file's head.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DisorderProcess {
    disorder: Disorder,
    last: Time,
}

impl DisorderProcess {
    pub(super) fn new(disorder: Disorder) -> Self {
        Self {
            disorder,
            last: Time::ZERO,
        }
    }

    /// When a packet arrives that would at `at`.
    pub(super) fn arrival(&mut self, at: Time, rng: &mut SmallRng) -> Time {
        let Disorder {
            jitter_ns,
            late,
            late_ns,
            ..
        } = self.disorder;
        let mut arrives = at;
        if jitter_ns > 0 {
            arrives = (at + rng.random_range(0..=jitter_ns)).max(self.last);
            self.last = arrives;
        }
        if late > 0.0 && rng.random_bool(late) {
            arrives = arrives + rng.random_range(0..=late_ns);
        }
        arrives
    }

    /// Whether a packet arrives once more, and how much later.
    pub(super) fn again(&self, rng: &mut SmallRng) -> Option<u64> {
        let Disorder {
            duplicate,
            duplicate_ns,
            ..
        } = self.disorder;
        let again = duplicate > 0.0 && rng.random_bool(duplicate);
        again.then(|| rng.random_range(0..=duplicate_ns))
    }

    /// Whether a packet is damaged.
    pub(super) fn damages(&self, rng: &mut SmallRng) -> bool {
        self.disorder.corrupt > 0.0 && rng.random_bool(self.disorder.corrupt)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const PACKETS: u64 = 100_000;

    #[test]
    fn jitter_keeps_the_order_and_late_packets_leave_it() {
        let arrivals = |disorder| {
            let mut rng = SmallRng::seed_from_u64(1);
            let mut process = DisorderProcess::new(disorder);
            let arrive = |at| process.arrival(Time::from_ns(at * 100), &mut rng).as_ns();
            let all: Vec<u64> = (0..PACKETS).map(arrive).collect();
            let overtaken = all.windows(2).filter(|two| two[0] > two[1]).count() as f64;
            let late = (0..PACKETS)
                .zip(&all)
                .map(|(at, arrives)| arrives - at * 100);
            (overtaken / PACKETS as f64, late.max())
        };
        let jitter = Disorder {
            jitter_ns: 5_000,
            ..Disorder::default()
        };
        let (overtaken, latest) = arrivals(jitter);
        assert_eq!(overtaken, 0.0);
        assert!(latest > Some(4_900) && latest <= Some(5_000), "{latest:?}");
        let late = Disorder {
            late: 0.1,
            late_ns: 10_000,
            ..Disorder::default()
        };
        let (overtaken, latest) = arrivals(late);
        assert!((0.085..0.105).contains(&overtaken), "{overtaken}");
        assert!(latest > Some(9_900) && latest <= Some(10_000), "{latest:?}");
        assert_eq!(arrivals(Disorder::default()), (0.0, Some(0)));
    }

    #[test]
    fn the_parts_are_right() {
        let mut rng = SmallRng::seed_from_u64(2);
        let process = DisorderProcess::new(Disorder {
            duplicate: 0.02,
            duplicate_ns: 700,
            corrupt: 0.05,
            ..Disorder::default()
        });
        let again: Vec<u64> = (0..PACKETS)
            .filter_map(|_| process.again(&mut rng))
            .collect();
        assert!((1_850..2_150).contains(&again.len()), "{}", again.len());
        assert!(again.iter().all(|ns| *ns <= 700));
        let damaged = (0..PACKETS).filter(|_| process.damages(&mut rng)).count();
        assert!((4_800..5_200).contains(&damaged), "{damaged}");
    }
}
