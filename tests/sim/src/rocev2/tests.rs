//! What the model must reach: the line where nothing is in the way, and what is known of RoCEv2 where something is.

use rstest::rstest;

use super::*;
use crate::fabric::{Loss, Shape};

const LINE_BITS_PER_S: f64 = 100e9;
const PAIR: [NodeId; 2] = [NodeId(0), NodeId(1)];

fn fabric(rtt_us: u64) -> FabricConfig {
    FabricConfig::new(1, Shape::SingleSwitch, rtt_us * 1_000)
}

fn goodput_bits_per_s(outcome: &Outcome, exchange: &Exchange) -> f64 {
    let last = outcome.passed.iter().filter_map(|one| one.arrived_ns).max();
    let bytes = outcome.passed.len() as f64 * f64::from(exchange.bytes);
    bytes * 8e9 / last.unwrap_or(u64::MAX) as f64
}

#[rstest]
#[case(5)]
#[case(20)]
fn a_clean_flow_fills_the_line(#[case] rtt_us: u64) {
    let exchange = Exchange::stream(PAIR, 1 << 20, 32, 4);
    let outcome = run(&Setting::new(1, fabric(rtt_us)), &exchange);
    assert!(outcome.done && outcome.retransmissions == 0, "{outcome:?}");
    // Headers of RoCEv2, UDP, IP and Ethernet leave so much for payload.
    let bound = LINE_BITS_PER_S * 4096.0 / (4096.0 + 16.0 + LOWER_BYTES as f64);
    let goodput = goodput_bits_per_s(&outcome, &exchange);
    assert!(
        goodput > 0.99 * bound && goodput < bound,
        "{goodput} of {bound}"
    );
    assert!(goodput > 0.97 * LINE_BITS_PER_S);
}

/// Each loss costs a window: what was sent until the refusal came.
#[test]
fn go_back_n_loses_a_window_for_each_loss() {
    let exchange = Exchange::stream(PAIR, 1 << 20, 64, 4);
    let mut setting = Setting::new(3, fabric(10));
    setting.fabric.changes = vec![(Links::ToHosts, Change::Lose(Loss::each(0.01)))];
    let outcome = run(&setting, &exchange);
    assert!(outcome.done, "{outcome:?}");
    let lost = outcome.packets as f64 * 0.01;
    // About 30 packets are under way; now and then only a timeout helps.
    let again = outcome.retransmissions as f64 / lost;
    assert!((20.0..45.0).contains(&again), "{again} for each loss");
    assert!(outcome.timeouts > 0);
    let kept = goodput_bits_per_s(&outcome, &exchange) / LINE_BITS_PER_S;
    assert!((0.2..0.8).contains(&kept), "{kept}");
}

#[test]
fn senders_to_one_host_share_its_line_and_endless_queues_drop_nothing() {
    let exchange = Exchange {
        flows: (1..9).map(|from| [NodeId(from), NodeId(0)]).collect(),
        next: (0..8).map(Some).collect(),
        ..Exchange::stream(PAIR, 256 << 10, 32, 2)
    };
    let lossy = run(&Setting::new(1, fabric(10)), &exchange);
    let endless = run(
        &Setting::new(1, fabric(10)).with_endless_queues(),
        &exchange,
    );
    assert!(lossy.done && lossy.overflows > 0, "{lossy:?}");
    assert!(endless.done && endless.overflows == 0, "{endless:?}");
    assert_eq!(endless.retransmissions, 0);
    assert!(lossy.notifications > 8 && endless.notifications > 8);
    let used = goodput_bits_per_s(&endless, &exchange) / LINE_BITS_PER_S;
    // Alpha begins at 1 and sinks slowly: for some milliseconds each notification halves a rate.
    assert!((0.3..0.98).contains(&used), "{used}");
}

#[test]
fn a_dead_way_is_the_end_of_its_flow() {
    let exchange = Exchange::stream(PAIR, 1 << 20, 64, 4);
    let mut setting = Setting::new(1, fabric(10));
    let link = Links::ToHost(NodeId(1), None);
    setting.changes = vec![(100_000, link, Change::Down)];
    let outcome = run(&setting, &exchange);
    assert!(!outcome.done);
    assert_eq!((outcome.failed, outcome.timeouts), (1, 8));
    assert!(outcome.passed.iter().any(|one| one.arrived_ns.is_some()));
}

#[test]
fn flows_keep_one_way_each_and_collide() {
    let shape = Shape::LeafSpine {
        leaves: 2,
        spines: 8,
    };
    // Eight hosts on a leaf, one flow from each to the other leaf.
    let exchange = Exchange {
        flows: (0..8).map(|at| [NodeId(at), NodeId(8 + at)]).collect(),
        next: (0..8).map(Some).collect(),
        ..Exchange::stream(PAIR, 1 << 20, 8, 4)
    };
    let setting = Setting::new(1, FabricConfig::new(1, shape, 10_000));
    let setting = setting.with_endless_queues();
    let outcome = run(&setting, &exchange);
    assert!(outcome.done);
    let last_of = |flow| {
        let own = outcome.passed.iter().filter(|one| one.flow == flow);
        own.filter_map(|one| one.arrived_ns).max().unwrap_or(0)
    };
    let ends: Vec<u64> = (0..8).map(last_of).collect();
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!(*last as f64 > 1.6 * *first as f64, "{ends:?}");
}

#[test]
fn the_seed_decides() {
    let exchange = Exchange::stream(PAIR, 1 << 20, 8, 4);
    let seeded = |seed| {
        let mut setting = Setting::new(seed, fabric(10));
        setting.fabric.changes = vec![(Links::ToHosts, Change::Lose(Loss::each(0.01)))];
        run(&setting, &exchange).passed
    };
    assert_eq!(seeded(5), seeded(5));
    assert_ne!(seeded(5), seeded(6));
}
