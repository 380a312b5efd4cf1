//! `paths-fairness` and `permutation`: connections that meet inside the fabric. How they share a link between switches, and
//! what each gets where all have enough if they spread.

use super::looks::{all_at_work, goodputs, grown};
use super::{LINK_BITS_PER_S, Measured, Options, PAYLOAD_SHARE, writes};
use crate::NodeId;
use crate::fabric::{FabricConfig, Shape};

const MESSAGE_BYTES: u32 = 64 << 10;
const DEPTH: u32 = 16;

/// So long a run lasts at the best rates, and what is reached counts after this part of it.
const LASTS_S: f64 = 0.02;
const GROWING_PART: f64 = 0.3;

/// Within this time all begin.
const STARTS_NS: u64 = 200_000;

/// A permutation needs less: many hosts are simulated.
const PERMUTATION_LASTS_S: f64 = 0.004;

/// Hosts on a leaf, and spines: as many, so that all could have their whole links.
const HOSTS_PER_LEAF: usize = 8;

/// `shares`: parts of one link between switches that connections have, each with its number of paths.
pub(super) fn paths(options: &Options) -> Result<Measured, String> {
    let flows = options.paths.len();
    // All receivers on the first leaf, all senders on the second; one spine.
    let pairs: Vec<[NodeId; 2]> = (0..flows)
        .map(|flow| [NodeId(flows + flow), NodeId(flow)])
        .collect();
    let shape = Shape::LeafSpine {
        leaves: 2,
        spines: 1,
    };
    let fabric = FabricConfig::new(1, shape, options.rtt_ns());
    let line = LINK_BITS_PER_S * PAYLOAD_SHARE;
    let messages = line * LASTS_S / 8.0 / f64::from(MESSAGE_BYTES) / flows as f64;
    let mut writes = writes(MESSAGE_BYTES, DEPTH, messages as u32);
    writes.idle_ns = STARTS_NS;
    let mut scenario = super::scenario("paths-fairness", options.seed, fabric, &writes, &pairs);
    for (flow, paths) in options.paths.iter().enumerate() {
        scenario.hosts[flow].paths = *paths;
        scenario.hosts[flows + flow].paths = *paths;
    }
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let during = grown(&all_at_work(&outcome, 0..flows)?, GROWING_PART);
    let rates = goodputs(&outcome, flows, &during);
    let sum: f64 = rates.iter().sum();
    measured.lists = vec![("shares", rates.iter().map(|rate| rate / sum).collect())];
    measured.asides = vec![
        ("link_share", sum / line),
        ("drops", outcome.links.overflows as f64),
    ];
    Ok(measured)
}

/// `of_linear`: goodput of hosts that each send to one other, and get from one, against their links; `least_of_line`: of the
/// one that has least.
pub(super) fn permutation(options: &Options) -> Result<Measured, String> {
    let nodes = options.nodes;
    // Half of all further: everything leaves its leaf if there is more than one.
    let pairs: Vec<[NodeId; 2]> = (0..nodes)
        .map(|node| [NodeId(node), NodeId((node + nodes / 2) % nodes)])
        .collect();
    let shape = Shape::LeafSpine {
        leaves: nodes.div_ceil(HOSTS_PER_LEAF).max(2),
        spines: HOSTS_PER_LEAF,
    };
    let fabric = FabricConfig::new(options.planes, shape, options.rtt_ns());
    let line = f64::from(options.planes) * LINK_BITS_PER_S * PAYLOAD_SHARE;
    let messages = line * PERMUTATION_LASTS_S / 8.0 / f64::from(MESSAGE_BYTES);
    let depth = DEPTH * u32::from(options.planes);
    let writes = writes(MESSAGE_BYTES, depth, messages as u32);
    let scenario = super::scenario("permutation", options.seed, fabric, &writes, &pairs);
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let during = grown(&all_at_work(&outcome, 0..nodes)?, GROWING_PART);
    let rates = goodputs(&outcome, nodes, &during);
    let least = rates.iter().copied().fold(f64::MAX, f64::min);
    measured.values = vec![
        (
            "of_linear",
            rates.iter().sum::<f64>() / (line * nodes as f64),
        ),
        ("least_of_line", least / line),
    ];
    measured.asides = vec![("drops", outcome.links.overflows as f64)];
    Ok(measured)
}
