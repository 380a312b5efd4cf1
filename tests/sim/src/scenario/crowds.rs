//! Crowds: some random scenarios get more hosts, which all send to one of those that they have. Then grants decide who sends how
//! much, and who comes and goes changes those of all others. Asked by `random.rs`, before links are drawn.

use metaroce_proto::types::Driving;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::random::pick;
use super::{Pair, Scenario};
use crate::NodeId;
use crate::workload::Mix;

/// Seeds below this were found before there were crowds, and stay what they were.
pub const FIRST_CROWD_SEED: u64 = 200_000_000_000_000;

/// Bytes that all hosts of a crowd together send, more or less.
const BYTES: u32 = 6_000_000;

/// Makes a crowd of some scenarios. Everything comes from a generator of its own.
pub(super) fn perhaps_a_crowd(scenario: &mut Scenario) {
    let rng = &mut SmallRng::seed_from_u64(scenario.seed ^ 0xc_203d);
    let pair = scenario.pairs[0].clone();
    if scenario.seed < FIRST_CROWD_SEED || pair.nodes[0] == pair.nodes[1] || rng.random_ratio(1, 2)
    {
        return;
    }
    scenario.name = format!("{} in a crowd", scenario.name);
    let senders = pick(rng, &[5, 2, 3, 9, 14]);
    let messages = BYTES / (pair.workloads[0].max_bytes + 5_000) / senders;
    for _ in 0..senders {
        let sender = NodeId(scenario.hosts.len());
        scenario.hosts.push(scenario.hosts[0].clone());
        for _ in 0..rng.random_range(1..=2) {
            let mut pair = Pair {
                nodes: [sender, pair.nodes[1]],
                ..pair.clone()
            };
            let [workload, answers] = &mut pair.workloads;
            workload.messages = messages.clamp(4, 200);
            workload.depth = pick(rng, &[16, 1, 4]);
            workload.all_long = rng.random();
            workload.mix = pick(rng, &[Mix::WRITES, Mix::WRITES, Mix::SENDS, Mix::ALL]);
            workload.think_ns = pick(rng, &[0, 0, 20_000, 200_000]);
            workload.start_ns = pick(rng, &[0, 100_000, 1_000_000, 5_000_000]);
            answers.messages = pick(rng, &[0, 0, 5]);
            (workload.mistake, answers.mistake) = (None, None);
            scenario.pairs.push(pair);
        }
    }
    let (driving, drain_bits_per_s) = (
        pick(rng, &[Driving::Busy, Driving::Sockets]),
        pick(rng, &[Some(4_000_000_000), Some(500_000_000), None]),
    );
    let intake_ns = pick(rng, &[0, 0, 3_000, 10_000]);
    for host in &mut scenario.hosts {
        (host.driving, host.intake_ns) = (driving, intake_ns);
        host.drain_bits_per_s = drain_bits_per_s;
    }
}

#[cfg(test)]
mod tests {
    use super::super::random;
    use super::*;

    #[test]
    fn crowds_are_drawn_and_none_for_seeds_that_were_found_earlier() {
        let is_crowd = |seed: &u64| random(*seed).name.contains("crowd");
        let before = FIRST_CROWD_SEED - 500..FIRST_CROWD_SEED;
        assert_eq!(before.into_iter().filter(is_crowd).count(), 0);
        let after = FIRST_CROWD_SEED..FIRST_CROWD_SEED + 500;
        let crowds = after.into_iter().filter(is_crowd).count();
        assert!((150..300).contains(&crowds), "{crowds}");
    }
}
