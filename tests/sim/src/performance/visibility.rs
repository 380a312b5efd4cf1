//! `visibility`: what strict visibility costs. One connection fills several planes while packets get lost: once into memory
//! that takes what arrives, once into memory that shows WRITEs in order, where what comes too early is held.

use super::loss::steady_bits_per_s;
use super::{Measured, Options, writes};
use crate::NodeId;
use crate::fabric::{Change, FabricConfig, Links, Loss, Shape};
use crate::report::Outcome;
use crate::scenario::Scenario;
use crate::workload::Workload;

/// As the programs write: several packets, and much less than a stream has outstanding.
const MESSAGE_BYTES: u32 = 64 << 10;

/// 16 MiB: several times what the longest round trips hold, and what waits.
const DEPTH: u32 = 256;

/// About 16 ms at the full rate of eight planes: at 1 % some 3,900 packets are lost.
const MESSAGES: u32 = 25_000;

/// `of_relaxed`: goodput into strict regions against that into relaxed ones, with the same seed and losses.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let mut measured = Measured::new(options);
    let mut run = |relaxed_percent| -> Result<(f64, Outcome), String> {
        let outcome = measured.run(&scenario(options, relaxed_percent))?;
        let done = outcome.completions.iter().map(|one| one.done_ns);
        let goodput = steady_bits_per_s(&done.collect::<Vec<_>>(), MESSAGE_BYTES, DEPTH);
        Ok((goodput, outcome))
    };
    let (relaxed, _) = run(100)?;
    let (strict, held) = run(0)?;
    measured.values = vec![("of_relaxed", strict / relaxed)];
    measured.asides = vec![
        ("relaxed_gbit_per_s", relaxed / 1e9),
        ("strict_gbit_per_s", strict / 1e9),
        ("held_most_bytes", held.held_most_bytes as f64),
        ("hold_limit_bytes", held.hold_limit_bytes as f64),
        ("hold_refusals", held.counters.hold_refusals as f64),
    ];
    Ok(measured)
}

fn scenario(options: &Options, relaxed_percent: u32) -> Scenario {
    let mut fabric = FabricConfig::new(options.planes, Shape::SingleSwitch, options.rtt_ns());
    let loss = Loss {
        part: options.loss,
        burst_max: 1,
    };
    fabric.changes = vec![(Links::ToHosts, Change::Lose(loss))];
    let writes = Workload {
        relaxed_percent,
        ..writes(MESSAGE_BYTES, DEPTH, MESSAGES)
    };
    let pair = [NodeId(0), NodeId(1)];
    super::scenario("visibility", options.seed, fabric, &writes, &[pair])
}
