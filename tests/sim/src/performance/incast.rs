//! `incast`: several hosts send to one. How soon after the last one's start all may send at the same rate, and whether the
//! receiver's link is full meanwhile, without dropping much.

use super::looks::{all_at_work, jain};
use super::{LINK_BITS_PER_S, Measured, Options, writes};
use crate::NodeId;
use crate::fabric::{FabricConfig, Shape};
use crate::report::Sample;

const MESSAGE_BYTES: u32 = 64 << 10;
const DEPTH: u32 = 4;

/// Messages of all together: 5 ms of the receiver's link. Each sends some, however many they are.
const MESSAGES: u32 = 960;
const MESSAGES_MIN: u32 = 8;

/// Within this time all begin; their connections are there before.
const STARTS_NS: u64 = 200_000;

/// Between two looks at the rates.
const SAMPLE_NS: u64 = 1_000;

/// The rates are equal from this index of Jain on.
const JAIN_EQUAL: f64 = 0.99;

/// `jain_time_us`, `link_use` and `drop_fraction`, the last from the first packet on.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let messages = (MESSAGES / options.senders as u32).max(MESSAGES_MIN);
    let mut writes = writes(MESSAGE_BYTES, DEPTH, messages);
    writes.idle_ns = STARTS_NS;
    let pairs: Vec<[NodeId; 2]> = (1..=options.senders)
        .map(|sender| [NodeId(sender), NodeId(0)])
        .collect();
    let fabric = FabricConfig::new(1, Shape::SingleSwitch, options.rtt_ns());
    let mut scenario = super::scenario("incast", options.seed, fabric, &writes, &pairs);
    scenario.sample_ns = SAMPLE_NS;
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let at_work = all_at_work(&outcome, 0..options.senders)?;
    let began_ns = at_work.start;
    let during: Vec<&Sample> = outcome
        .samples
        .iter()
        .filter(|sample| at_work.contains(&sample.at_ns))
        .collect();
    let equal = |sample: &&&Sample| jain(&sample.rate_bytes_per_s[1..]) >= JAIN_EQUAL;
    let equal_us = during
        .iter()
        .find(equal)
        .map_or(f64::NAN, |sample| (sample.at_ns - began_ns) as f64 / 1e3);
    let best = during
        .iter()
        .map(|sample| jain(&sample.rate_bytes_per_s[1..]))
        .fold(0.0, f64::max);
    let (Some(first), Some(last)) = (during.first(), during.last()) else {
        return Err("no sample while all were sending".into());
    };
    let bytes = last.into_first.bytes - first.into_first.bytes;
    let seconds = (last.at_ns - first.at_ns).max(1) as f64 / 1e9;
    let total = outcome.samples[outcome.samples.len() - 1].into_first;
    let dropped = total.overflows as f64 / (total.packets + total.overflows).max(1) as f64;
    measured.values = vec![
        ("jain_time_us", equal_us),
        ("link_use", bytes as f64 * 8.0 / seconds / LINK_BITS_PER_S),
        ("drop_fraction", dropped),
    ];
    measured.asides = vec![
        ("best_jain", best),
        ("all_at_work_us", seconds * 1e6),
        ("longest_queue_bytes", total.longest_queue_bytes as f64),
    ];
    Ok(measured)
}
