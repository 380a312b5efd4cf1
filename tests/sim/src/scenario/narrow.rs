//! Holes for large packets: in some random scenarios a part of the way carries only small ones, from the start or from some
//! time on, for a while or for good. Asked by `random.rs`, when all else is drawn.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::random::pick;
use super::{Fault, Scenario};
use crate::NodeId;
use crate::fabric::{Change, Links};

/// Seeds below this were found before there were holes, and stay what they were.
pub(super) const FIRST_NARROW_SEED: u64 = super::FIRST_CROWD_SEED;

/// What passes, in bytes of UDP payload: MTUs of 1,500, 1,280 (IPv6), 1,400, 4,000, and just not all.
const LARGEST_BYTES: [u64; 5] = [1_472, 1_232, 1_372, 3_972, 4_159];

/// Makes a hole in some scenarios. Everything comes from a generator of its own.
pub(super) fn perhaps_narrow(scenario: &mut Scenario) {
    let rng = &mut SmallRng::seed_from_u64(scenario.seed ^ 0x4a_2203);
    if scenario.seed < FIRST_NARROW_SEED || rng.random_ratio(3, 4) {
        return;
    }
    scenario.name = format!("{} with a hole", scenario.name);
    let largest_bytes = pick(rng, &LARGEST_BYTES);
    let links = match rng.random_range(0..4) {
        0 => Links::FromHost(NodeId(0), None),
        1 => Links::ToHosts,
        2 => Links::Plane(rng.random_range(0..scenario.planes())),
        _ => Links::All,
    };
    let on_fabric = scenario.fabric.is_some();
    let narrow = |largest_bytes| {
        if on_fabric {
            Fault::Links(links, Change::Narrow { largest_bytes })
        } else {
            Fault::Narrow { largest_bytes }
        }
    };
    let later_ns = 1 << rng.random_range(14..24);
    let at_ns = pick(rng, &[later_ns, 0]);
    scenario.faults.push((at_ns, narrow(largest_bytes)));
    if rng.random() {
        let ns = 1_000_000 * rng.random_range(1..=200);
        // More than any packet has.
        scenario
            .faults
            .push((at_ns + ns, narrow(u64::from(u32::MAX))));
    }
}

#[cfg(test)]
mod tests {
    use super::super::random;
    use super::*;

    #[test]
    fn holes_are_drawn_and_none_for_earlier_seeds() {
        let holes = |seeds: std::ops::Range<u64>| {
            let mut found = [0; 2];
            for scenario in seeds.map(random) {
                for (_, fault) in &scenario.faults {
                    match fault {
                        Fault::Narrow { .. } => found[0] += 1,
                        Fault::Links(_, Change::Narrow { .. }) => found[1] += 1,
                        _ => {}
                    }
                }
            }
            found
        };
        let first = FIRST_NARROW_SEED;
        assert_eq!(holes(first - 500..first), [0, 0]);
        let found = holes(first..first + 500);
        assert!(found.iter().all(|count| *count > 30), "{found:?}");
    }
}
