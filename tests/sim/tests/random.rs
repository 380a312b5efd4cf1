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

/// Seeds over fabrics, in all, in two parts; and what the links did to the packets must really have happened.
const FABRIC_SEEDS: u64 = 300;

#[rstest]
fn random_scenarios_over_fabrics_hold_the_contract(#[values(0, 1)] part: u64) {
    let (mut runs, mut done) = (0, [0; 6]);
    for seed in part * FABRIC_SEEDS / 2..(part + 1) * FABRIC_SEEDS / 2 {
        let scenario = random(3_000_000 + seed);
        if scenario.fabric.is_none() {
            continue;
        }
        let outcome = World::run(&scenario, false);
        assert!(outcome.is_right(), "{outcome}");
        let links = outcome.links;
        runs += 1;
        let counts = [
            links.lost,
            links.dark,
            links.damaged,
            links.duplicated,
            links.marks,
            links.overflows,
        ];
        done.iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum += count);
    }
    assert!(runs > FABRIC_SEEDS / 6, "{runs}");
    // Queues overflow rarely: what the receivers grant leaves them room.
    assert!(done.iter().all(|count| *count > 5), "{done:?}");
}

/// Seeds with holes for large packets among them, in all, in two parts; holes must really have been found.
const HOLE_SEEDS: u64 = 240;

// WIRE 4.25
#[rstest]
fn random_scenarios_with_holes_hold_the_contract(#[values(0, 1)] part: u64) {
    let (mut runs, mut found) = (0, 0);
    for seed in part * HOLE_SEEDS / 2..(part + 1) * HOLE_SEEDS / 2 {
        let scenario = random(200_000_000_000_000 + seed);
        if !scenario.name.ends_with("with a hole") {
            continue;
        }
        let outcome = World::run(&scenario, false);
        assert!(outcome.is_right(), "{outcome}");
        runs += 1;
        found += outcome.counters.holes_found;
    }
    assert!(runs > 20 && found > 10, "{found} holes in {runs} runs");
}

#[rstest]
#[case(3)]
#[case(21)]
#[case(58)]
// Over a fabric.
#[case(3_000_001)]
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
