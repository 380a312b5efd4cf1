//! What several scenarios read out of a run: when programs were at work, what they got meanwhile, and what was sent in vain.

use std::ops::Range;

use crate::report::{Outcome, Sample};

/// From the last first submission of the programs of some pairs to the first last one. Of a pair the first end submits.
pub(super) fn all_at_work(outcome: &Outcome, pairs: Range<usize>) -> Result<Range<u64>, String> {
    let mut spans = vec![(u64::MAX, 0); pairs.end];
    for one in &outcome.completions {
        // Programs are numbered pair by pair.
        if let Some((first_ns, last_ns)) = spans.get_mut(one.agent.0 / 2) {
            *first_ns = one.submitted_ns.min(*first_ns);
            *last_ns = one.submitted_ns.max(*last_ns);
        }
    }
    let (mut began_ns, mut ended_ns) = (0, u64::MAX);
    for pair in pairs {
        let (first_ns, last_ns) = spans[pair];
        if last_ns == 0 {
            return Err(format!("pair {pair} completed nothing"));
        }
        began_ns = began_ns.max(first_ns);
        ended_ns = ended_ns.min(last_ns);
    }
    if began_ns >= ended_ns {
        return Err("the senders were never all at work at once".into());
    }
    Ok(began_ns..ended_ns)
}

/// The rest of a time without its first part, in which windows grow.
pub(super) fn grown(during: &Range<u64>, growing_part: f64) -> Range<u64> {
    let growing_ns = (during.end - during.start) as f64 * growing_part;
    during.start + growing_ns as u64..during.end
}

/// Payload that each of `pairs` pairs completed in a time, in bits per second.
pub(super) fn goodputs(outcome: &Outcome, pairs: usize, during: &Range<u64>) -> Vec<f64> {
    let mut bits_per_s = vec![0.0; pairs];
    let seconds = (during.end - during.start) as f64 / 1e9;
    for one in &outcome.completions {
        if during.contains(&one.done_ns) {
            bits_per_s[one.agent.0 / 2] += f64::from(one.bytes) * 8.0 / seconds;
        }
    }
    bits_per_s
}

/// Payload that all hosts together placed in their memory in a time, in bits per second.
pub(super) fn placed_bits_per_s(samples: &[Sample], during: &Range<u64>) -> Result<f64, String> {
    let mut within = samples
        .iter()
        .filter(|sample| (during.start..=during.end).contains(&sample.at_ns));
    match (within.next(), within.next_back()) {
        (Some(first), Some(last)) => {
            let bytes = last.placed_bytes - first.placed_bytes;
            Ok(bytes as f64 * 8e9 / (last.at_ns - first.at_ns) as f64)
        }
        _ => Err(format!(
            "too short to measure: {} ns",
            during.end - during.start
        )),
    }
}

/// The first time from `since_ns` on after which a quantity grows for `window_ns` by `least` or more, in ns after that;
/// NaN if it never does.
pub(super) fn until_growing(
    samples: &[Sample],
    since_ns: u64,
    window_ns: u64,
    least: f64,
    quantity: impl Fn(&Sample) -> u64,
) -> f64 {
    let first = samples.partition_point(|sample| sample.at_ns < since_ns);
    let samples = &samples[first..];
    let mut end = 0;
    for (at, sample) in samples.iter().enumerate() {
        end = end.max(at);
        while end < samples.len() && samples[end].at_ns < sample.at_ns + window_ns {
            end += 1;
        }
        let Some(later) = samples.get(end) else {
            return f64::NAN;
        };
        let part = window_ns as f64 / (later.at_ns - sample.at_ns) as f64;
        if (quantity(later) - quantity(sample)) as f64 * part >= least {
            return (sample.at_ns - since_ns) as f64;
        }
    }
    f64::NAN
}

/// Of the DATA packets sent the part that had arrived before: where nothing is duplicated on the way, sent again in vain.
/// Counted by receivers, so that what the senders believe of themselves does not matter.
pub(super) fn spurious(outcome: &Outcome) -> f64 {
    let counters = &outcome.counters;
    counters.duplicates_received as f64 / counters.data_packets_sent.max(1) as f64
}

/// Jain's index: 1 where all are equal, 1 / n where one has everything.
pub(super) fn jain(rates: &[u64]) -> f64 {
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

    #[test]
    fn growth_is_found_where_it_begins() {
        // Nothing up to 500, then 3 a step of 10.
        let sample = |at: u64| Sample {
            at_ns: at * 10,
            rate_bytes_per_s: Vec::new(),
            completed_bytes: 0,
            placed_bytes: 3 * at.saturating_sub(50),
            into_first: Default::default(),
            into_first_by_plane: Vec::new(),
        };
        let samples: Vec<Sample> = (0..100).map(sample).collect();
        let until = |least| until_growing(&samples, 100, 200, least, |sample| sample.placed_bytes);
        assert_eq!(until(60.0), 400.0);
        assert_eq!(until(30.0), 300.0);
        assert_eq!(until(0.0), 0.0);
        assert!(until(61.0).is_nan());
    }
}
