//! Random scenarios from a fixed range of seeds, and that a seed decides everything.

use metaroce_sim::scenario::{FIRST_CROWD_SEED, granting, named, random};
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

/// What must have happened in each part: packets lost, lost on dead links, damaged, duplicated, marked, and too many for a
/// queue. A quarter of what was seen in the part that saw less. Queues overflow rarely: what receivers grant leaves them room.
const FAULTS_MIN: [u64; 6] = [1_300, 680, 40, 870, 490, 3];

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
    let enough = done
        .iter()
        .zip(FAULTS_MIN)
        .all(|(count, least)| *count >= least);
    assert!(enough, "{done:?}, at least {FAULTS_MIN:?}");
}

/// Seeds with crowds, in all, in two parts.
const CROWD_SEEDS: u64 = 120;

// WIRE 8.14
/// Many send to one, come and go: what is granted never exceeds what the receivers can take in.
#[rstest]
fn random_crowds_hold_the_contract(#[values(0, 1)] part: u64) {
    let mut shared_grants = 0;
    for seed in part * CROWD_SEEDS / 2..(part + 1) * CROWD_SEEDS / 2 {
        let outcome = World::run(&random(FIRST_CROWD_SEED + seed), false);
        assert!(outcome.is_right(), "{outcome}");
        shared_grants += outcome.shared_grants;
    }
    assert!(shared_grants > 5_000, "{shared_grants}");
}

/// A host that grants twice its share is found.
#[rstest]
#[case(1)]
#[case(2)]
fn a_host_that_grants_too_much_is_found(#[case] grants_times: u32) {
    let scenario = granting(1, grants_times);
    let outcome = World::run(&scenario, false);
    let found = |wrong: &String| wrong.contains("are granted to");
    assert_eq!(
        outcome.violations.iter().any(found),
        grants_times > 1,
        "{outcome}"
    );
    assert!(outcome.shared_grants > 0 || grants_times > 1, "{outcome}");
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
