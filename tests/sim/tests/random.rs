//! Random scenarios from a fixed range of seeds, and that a seed decides everything.

use metaroce_sim::scenario::{named, random};
use metaroce_sim::world::World;
use rstest::rstest;

/// Seeds in all, in four parts that run side by side.
const SEEDS: u64 = 400;

#[rstest]
fn random_scenarios_hold_the_contract(#[values(0, 1, 2, 3)] part: u64) {
    for seed in (part * SEEDS / 4..(part + 1) * SEEDS / 4).map(|seed| 1_000_000 + seed) {
        let outcome = World::run(&random(seed), false);
        assert!(outcome.is_right(), "{outcome}");
    }
}

#[rstest]
#[case(3)]
#[case(21)]
#[case(58)]
fn the_same_seed_gives_the_same_run(#[case] seed: u64) {
    let run = |seed| World::run(&random(seed), false);
    let (first, second, other) = (run(seed), run(seed), run(seed + 1));
    assert_eq!(
        (first.hash, first.packets, first.events),
        (second.hash, second.packets, second.events)
    );
    assert_ne!(first.hash, other.hash);
}

#[test]
fn the_same_named_scenario_differs_by_its_seed() {
    let run = |seed| World::run(&named("loss-10", seed).expect("it exists"), false).hash;
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
