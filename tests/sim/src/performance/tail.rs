//! `tail`: how long single messages take, one at a time, in the middle and at the slow end, when packets get lost.

use super::{Measured, Options, writes};
use crate::NodeId;
use crate::fabric::{Change, FabricConfig, Links, Loss, Shape};

/// Twenty are above the 99.9th percentile.
const MESSAGES: u32 = 20_000;

/// The first ones find windows that have not grown yet.
const WARM_UP: usize = 100;

/// `median_us` and `p999_us` of the time from the submission of a message to its completion.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let most = crate::content::CONTENT_BYTES_MAX;
    if options.bytes > most {
        return Err(format!("bytes of a message must be 1 to {most}"));
    }
    let mut fabric = FabricConfig::new(1, Shape::SingleSwitch, options.rtt_ns());
    fabric.changes = vec![(Links::ToHosts, Change::Lose(Loss::each(options.loss)))];
    let writes = writes(options.bytes, 1, MESSAGES);
    let pair = [NodeId(0), NodeId(1)];
    let scenario = super::scenario("tail", options.seed, fabric, &writes, &[pair]);
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let mut times_ns: Vec<u64> = outcome.completions[WARM_UP..]
        .iter()
        .map(|one| one.done_ns - one.submitted_ns)
        .collect();
    times_ns.sort_unstable();
    let at = |per_mille: usize| times_ns[times_ns.len() * per_mille / 1_000] as f64 / 1e3;
    let (median_us, p999_us) = (at(500), at(999));
    measured.asides = vec![
        ("above_rtts", (p999_us - median_us) / options.rtt_us as f64),
        ("longest_us", times_ns[times_ns.len() - 1] as f64 / 1e3),
    ];
    measured.values = vec![("median_us", median_us), ("p999_us", p999_us)];
    Ok(measured)
}
