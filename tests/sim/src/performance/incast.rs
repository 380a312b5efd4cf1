//! `incast`: several hosts send to one. How soon after the last one's start all may send at the same rate, and whether the
//! receiver's link is full meanwhile, without dropping much.

use super::{LINK_BITS_PER_S, Measured, Options, writes};
use crate::NodeId;
use crate::fabric::{FabricConfig, Shape};
use crate::report::{Outcome, Sample};

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
    let mut measured = Measured::default();
    let outcome = measured.run(&scenario)?;
    let (began_ns, ended_ns) = all_at_work(&outcome, options.senders)?;
    let during: Vec<&Sample> = outcome
        .samples
        .iter()
        .filter(|sample| (began_ns..=ended_ns).contains(&sample.at_ns))
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

/// From the last sender's first submission to the first one that submits its last message.
fn all_at_work(outcome: &Outcome, senders: usize) -> Result<(u64, u64), String> {
    let (mut began_ns, mut ended_ns) = (0, u64::MAX);
    for sender in 0..senders {
        // Programs are numbered pair by pair, the writing end first.
        let own = outcome
            .completions
            .iter()
            .filter(|one| one.agent.0 == 2 * sender)
            .map(|one| one.submitted_ns);
        let (Some(first), Some(last)) = (own.clone().min(), own.max()) else {
            return Err(format!("sender {sender} completed nothing"));
        };
        began_ns = began_ns.max(first);
        ended_ns = ended_ns.min(last);
    }
    if began_ns >= ended_ns {
        return Err("the senders were never all at work at once".into());
    }
    Ok((began_ns, ended_ns))
}

/// Jain's index: 1 where all are equal, 1 / n where one has everything.
fn jain(rates: &[u64]) -> f64 {
    let sum: f64 = rates.iter().map(|rate| *rate as f64).sum();
    let squares: f64 = rates.iter().map(|rate| (*rate as f64).powi(2)).sum();
    if squares == 0.0 {
        return 0.0;
    }
    sum * sum / (rates.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_one_for_equal_rates_and_one_nth_for_a_single_one() {
        assert_eq!(jain(&[7, 7, 7, 7]), 1.0);
        assert_eq!(jain(&[0, 0, 9, 0]), 0.25);
        assert_eq!(jain(&[0, 0]), 0.0);
    }
}
