//! The contract of verbs over a fabric, payloads carried and compared: with loss, slow and dead links, and all that a
//! schedule does to links while programs are at work.

use metaroce_sim::NodeId;
use metaroce_sim::fabric::{Change, FabricConfig, Links, Loss, Shape};
use metaroce_sim::performance;
use metaroce_sim::report::Outcome;
use metaroce_sim::scenario::{Fault, Scenario};
use metaroce_sim::workload::{Mix, Workload};
use metaroce_sim::world::World;
use rstest::rstest;

const LEAF_SPINE: Shape = Shape::LeafSpine {
    leaves: 2,
    spines: 4,
};

/// Two hosts on two leaves that do everything there is.
fn scenario(seed: u64, planes: u8, shape: Shape) -> Scenario {
    let workload = Workload {
        messages: 1_000,
        ..Workload::default()
    };
    let mut scenario = Scenario::two("fabric", seed, workload);
    scenario.fabric = Some(FabricConfig::new(planes, shape, 10_000));
    scenario.hosts = vec![performance::host(planes); 2];
    scenario
}

fn run(scenario: &Scenario) -> Outcome {
    let outcome = World::run(scenario, false);
    assert!(outcome.is_right(), "{outcome}");
    outcome
}

#[rstest]
#[case(1, Shape::SingleSwitch)]
#[case(1, LEAF_SPINE)]
#[case(4, LEAF_SPINE)]
fn everything_works_over_a_fabric(#[case] planes: u8, #[case] shape: Shape) {
    let outcome = run(&scenario(1, planes, shape));
    assert_eq!(outcome.counters.retransmissions, 0, "{outcome}");
    assert_eq!(outcome.links.overflows + outcome.links.lost, 0);
    let hash = outcome.hash;
    assert_eq!(run(&scenario(1, planes, shape)).hash, hash);
    assert_ne!(run(&scenario(2, planes, shape)).hash, hash);
}

#[rstest]
#[case(Loss::each(0.1))]
#[case(Loss { part: 0.05, burst_max: 20 })]
fn everything_works_while_packets_get_lost(#[case] loss: Loss) {
    for seed in 1..4 {
        let mut lossy = scenario(seed, 2, LEAF_SPINE);
        if let Some(fabric) = &mut lossy.fabric {
            fabric.changes = vec![(Links::ToHosts, Change::Lose(loss))];
        }
        let outcome = run(&lossy);
        assert!(outcome.links.lost > 100, "{outcome}");
        assert!(outcome.counters.retransmissions > 50, "{outcome}");
    }
}

/// What dies is left by the paths that were on it, and nobody is told of an error.
#[rstest]
#[case::plane(Links::Plane(1))]
#[case::data_and_its_acknowledgements(Links::ToHost(NodeId(1), Some(0)))]
#[case::spine(Links::Spine { plane: 0, leaf: 0, spine: 2 })]
fn what_dies_is_left(#[case] links: Links) {
    for seed in 1..4 {
        let mut dying = scenario(seed, 2, LEAF_SPINE);
        dying.faults = vec![
            (300_000, Fault::Links(links, Change::Down)),
            (20_000_000, Fault::Links(links, Change::Up)),
        ];
        let outcome = run(&dying);
        assert!(outcome.links.dark > 0, "{outcome}");
        assert!(outcome.counters.moves > 0, "{outcome}");
        let done_ns = outcome.completions.last().map_or(0, |last| last.done_ns);
        // Long before the links are up again.
        assert!(done_ns < 10_000_000, "{done_ns} ns: {outcome}");
    }
}

#[test]
fn a_slow_link_limits_what_goes_over_it() {
    let mut slow = scenario(1, 1, Shape::SingleSwitch);
    for workload in &mut slow.pairs[0].workloads {
        (workload.mix, workload.all_long) = (Mix::WRITES, true);
    }
    slow.pairs[0].workloads[1] = Workload {
        receives: 32,
        ..Workload::silent()
    };
    let rate = Change::Rate {
        bits_per_s: 5_000_000_000,
    };
    slow.faults = vec![(0, Fault::Links(Links::ToHost(NodeId(1), None), rate))];
    let goodput = run(&slow).goodput_bits_per_s();
    assert!((4.0e9..5.0e9).contains(&goodput), "{goodput}");
}

/// A quarter of the ports lead over a link that loses a fifth of its packets: of all, one in twenty would be lost.
#[rstest]
fn ports_leave_a_link_that_fares_worse_than_others(#[values(1, 2, 3)] seed: u64) {
    let mut lossy = scenario(seed, 1, LEAF_SPINE);
    lossy.pairs[0].workloads = [
        Workload {
            messages: 1_500,
            max_bytes: 128 << 10,
            all_long: true,
            mix: Mix::WRITES,
            ..Workload::default()
        },
        Workload {
            max_bytes: 128 << 10,
            receives: 32,
            ..Workload::silent()
        },
    ];
    let link = Links::Spine {
        plane: 0,
        leaf: 0,
        spine: 0,
    };
    lossy.faults = vec![(0, Fault::Links(link, Change::Lose(Loss::each(0.2))))];
    lossy.carry_payloads = false;
    let outcome = run(&lossy);
    let counters = &outcome.counters;
    let lost = counters.packets_lost as f64 / counters.data_packets_sent as f64;
    assert!(outcome.links.lost > 50, "{outcome}");
    assert!(lost < 0.02, "{lost}: {outcome}");
}

/// A wrong scenario says what is wrong with it.
#[rstest]
#[case(Fault::Links(Links::Plane(7), Change::Down), "names no link")]
#[case(Fault::Loss(0.5), "use Fault::Links")]
fn faults_that_do_not_fit_are_told(#[case] fault: Fault, #[case] told: &str) {
    let mut wrong = scenario(1, 2, Shape::SingleSwitch);
    wrong.faults = vec![(0, fault)];
    let outcome = World::run(&wrong, false);
    assert!(outcome.violations[0].contains(told), "{outcome}");
}
