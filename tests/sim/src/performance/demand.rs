//! `demand`: several hosts send to one, and the first of them has a slow link of its own: the others may have what it
//! leaves. How much of the best division (max-min) all have.

use super::looks::{all_at_work, goodputs, grown};
use super::{LINK_BITS_PER_S, Measured, Options, PAYLOAD_SHARE, writes};
use crate::NodeId;
use crate::fabric::{Change, FabricConfig, Links, Shape};

const MESSAGE_BYTES: u32 = 64 << 10;
const DEPTH: u32 = 16;

/// What the first one's link has of the others'.
const SLOW_PART: f64 = 0.05;

/// So long everything would take at the best division.
const LASTS_S: f64 = 0.008;

/// Within this time all begin.
const STARTS_NS: u64 = 200_000;

/// Of that the first part is not counted: windows grow, and the receiver finds out what each wants.
const GROWING_PART: f64 = 0.3;

/// `of_maxmin`: of the rates of the best division the part that is reached, where nothing counts that one has above its own.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let senders = options.senders;
    let line = LINK_BITS_PER_S * PAYLOAD_SHARE;
    let slow = line * SLOW_PART.min(1.0 / senders as f64);
    let mut best = vec![(line - slow) / (senders - 1) as f64; senders];
    best[0] = slow;
    let pairs: Vec<[NodeId; 2]> = (1..=senders)
        .map(|sender| [NodeId(sender), NodeId(0)])
        .collect();
    let mut fabric = FabricConfig::new(1, Shape::SingleSwitch, options.rtt_ns());
    let bits_per_s = (slow / PAYLOAD_SHARE) as u64;
    fabric.changes = vec![(
        Links::FromHost(NodeId(1), None),
        Change::Rate { bits_per_s },
    )];
    let mut writes = writes(MESSAGE_BYTES, DEPTH, 0);
    writes.idle_ns = STARTS_NS;
    let mut scenario = super::scenario("demand", options.seed, fabric, &writes, &pairs);
    for (pair, rate) in scenario.pairs.iter_mut().zip(&best) {
        pair.workloads[0].messages = (rate * LASTS_S / 8.0 / f64::from(MESSAGE_BYTES)) as u32 + 1;
    }
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let during = grown(&all_at_work(&outcome, 0..senders)?, GROWING_PART);
    let rates = goodputs(&outcome, senders, &during);
    let useful: f64 = rates
        .iter()
        .zip(&best)
        .map(|(rate, best)| rate.min(*best))
        .sum();
    measured.values = vec![("of_maxmin", useful / best.iter().sum::<f64>())];
    let rest = &rates[1..];
    measured.asides = vec![
        ("slow_one_of_its_own", rates[0] / slow),
        (
            "least_of_its_own",
            rest.iter().copied().fold(f64::MAX, f64::min) / best[1],
        ),
        (
            "most_of_its_own",
            rest.iter().copied().fold(0.0, f64::max) / best[1],
        ),
        ("link_share", rates.iter().sum::<f64>() / line),
        ("drops", outcome.links.overflows as f64),
    ];
    Ok(measured)
}
