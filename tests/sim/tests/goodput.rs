//! How much of a 10 Gb/s link is kept when packets get lost one by one: the bound is 1 − p.

use metaroce_sim::scenario::{bulk, bulk_to_one};
use metaroce_sim::world::World;
use rstest::rstest;

/// Messages of 256 KiB: enough that start and end do not matter much.
const MESSAGES: u32 = 400;

fn goodput(loss: f64, planes: u8) -> f64 {
    let outcome = World::run(&bulk(1, loss, planes, MESSAGES), false);
    assert!(outcome.is_right(), "{outcome}");
    outcome.goodput_bits_per_s()
}

/// What users complain about: "a long transfer with lost packets ends in a lock-up".
#[rstest]
#[case(0.001, 0.99)]
#[case(0.01, 0.97)]
#[case(0.1, 0.85)]
fn loss_costs_little_more_than_what_is_lost(#[case] loss: f64, #[case] least_kept: f64) {
    let (clean, lossy) = (goodput(0.0, 1), goodput(loss, 1));
    assert!(clean > 9.5e9, "{clean} of 10 Gb/s without loss");
    assert!(
        lossy / clean > least_kept,
        "{lossy} of {clean} kept at {loss}"
    );
}

/// What users complain about: "many-to-one collapses". Eight senders together keep the receiver's link as busy as one does.
#[rstest]
#[case(2)]
#[case(8)]
#[case(32)]
fn many_senders_to_one_receiver(#[case] senders: usize) {
    let messages = MESSAGES / senders as u32;
    let outcome = World::run(&bulk_to_one(1, senders, messages), false);
    println!("{}", outcome.summary());
    assert!(outcome.is_right(), "{outcome}");
    let together = outcome.goodput_bits_per_s();
    assert!(together > 8.0e9, "{together} of 10 Gb/s from {senders}");
}

#[test]
fn four_planes_are_filled_too() {
    let clean = goodput(0.0, 4);
    assert!(clean > 9.0e9, "{clean} of 10 Gb/s");
}
