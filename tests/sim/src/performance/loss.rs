//! `loss`: how much of the goodput is kept when packets get lost, data and acknowledgements alike, one by one or in bursts.

use super::{LINK_BITS_PER_S, Measured, Options, writes};
use crate::NodeId;
use crate::fabric::{Change, FabricConfig, Links, Loss, Shape};
use crate::report::{Completion, Outcome};
use crate::scenario::Scenario;

/// Length of the messages, and how many of them are outstanding: several times what the longest round trips hold.
const MESSAGE_BYTES: u32 = 256 << 10;
const DEPTH: u32 = 16;

/// About 50 ms at the full rate: at 1 % some 1500 packets are lost, so that a seed alone hardly moves the result.
const MESSAGES: u32 = 2_400;

/// `kept`: goodput against that of the same seed without loss.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let mut goodput = |part| {
        let outcome = measured.run(&scenario(options, part))?;
        Ok::<f64, String>(steady_bits_per_s(&outcome))
    };
    let (clean, lossy) = (goodput(0.0)?, goodput(options.loss)?);
    measured.values = vec![("kept", lossy / clean)];
    measured.asides = vec![
        ("link_share", clean / LINK_BITS_PER_S),
        ("lossy_link_share", lossy / LINK_BITS_PER_S),
    ];
    Ok(measured)
}

fn scenario(options: &Options, part: f64) -> Scenario {
    let mut fabric = FabricConfig::new(1, Shape::SingleSwitch, options.rtt_ns());
    let loss = Loss {
        part,
        burst_max: options.burst,
    };
    fabric.changes = vec![(Links::ToHosts, Change::Lose(loss))];
    let writes = writes(MESSAGE_BYTES, DEPTH, MESSAGES);
    let pair = [NodeId(0), NodeId(1)];
    super::scenario("loss", options.seed, fabric, &writes, &[pair])
}

/// Goodput without the begin, when windows grow, and without the end, when the last messages wait for what they lost.
fn steady_bits_per_s(outcome: &Outcome) -> f64 {
    let completions = &outcome.completions;
    let (first, last) = (completions.len() / 4, completions.len() - DEPTH as usize);
    let bytes = |some: &[Completion]| some.iter().map(|one| f64::from(one.bytes)).sum::<f64>();
    let ns = completions[last].done_ns - completions[first].done_ns;
    bytes(&completions[first + 1..=last]) * 8e9 / ns.max(1) as f64
}
