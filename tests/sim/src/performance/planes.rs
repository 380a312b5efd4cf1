//! `planes`: hosts with a link on each of several planes send to one another. How much of all links together they fill.

use super::looks::{all_at_work, grown, placed_bits_per_s};
use super::{LINK_BITS_PER_S, Measured, Options, PAYLOAD_SHARE, writes};
use crate::NodeId;
use crate::fabric::{FabricConfig, Shape};

const MESSAGE_BYTES: u32 = 64 << 10;

/// A connection has so many times outstanding what it can have in flight, so that the program is never what limits it.
const DEPTH_BDPS: f64 = 16.0;
const DEPTH_MIN: u32 = 4;

/// Added to the round trip for that: queues and the waiting of acknowledgements.
const QUEUES_S: f64 = 10e-6;

/// So long all links together would be busy with everything.
const LASTS_S: f64 = 0.002;

/// Each connection sends so many messages at least, or there is no time when all are at work.
const MESSAGES_MIN: u32 = 8;

/// Between two looks at what has arrived.
const SAMPLE_NS: u64 = 20_000;

/// Of the time when all are at work the first part is not counted: windows grow.
const GROWING_PART: f64 = 0.3;

/// `of_linear`: goodput of all together against what the links of all planes carry.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let pairs = pairs(options)?;
    let linear_bits_per_s =
        options.nodes as f64 * f64::from(options.planes) * LINK_BITS_PER_S * PAYLOAD_SHARE;
    let messages_per_s = linear_bits_per_s / 8.0 / pairs.len() as f64 / f64::from(MESSAGE_BYTES);
    let rtt_s = options.rtt_us as f64 / 1e6 + QUEUES_S;
    let depth = (DEPTH_BDPS * messages_per_s * rtt_s) as u32;
    let messages = (messages_per_s * LASTS_S) as u32;
    let writes = writes(
        MESSAGE_BYTES,
        depth.max(DEPTH_MIN),
        messages.max(MESSAGES_MIN),
    );
    let fabric = FabricConfig::new(options.planes, Shape::SingleSwitch, options.rtt_ns());
    let mut scenario = super::scenario("planes", options.seed, fabric, &writes, &pairs);
    scenario.sample_ns = SAMPLE_NS;
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let at_work = all_at_work(&outcome, 0..pairs.len())?;
    let goodput = placed_bits_per_s(&outcome.samples, &grown(&at_work, GROWING_PART))?;
    measured.values = vec![("of_linear", goodput / linear_bits_per_s)];
    let carried = outcome.planes.iter().map(|plane| plane.bytes);
    let (least, most) = (carried.clone().min(), carried.clone().max());
    let share = |bytes: Option<u64>| {
        let total = carried.clone().sum::<u64>().max(1);
        bytes.unwrap_or(0) as f64 / total as f64
    };
    measured.asides = vec![
        ("least_plane_share", share(least)),
        ("most_plane_share", share(most)),
        ("gbit_per_s", goodput / 1e9),
        ("drops", outcome.links.overflows as f64),
        (
            "longest_queue_bytes",
            outcome.links.longest_queue_bytes as f64,
        ),
    ];
    Ok(measured)
}

/// Every host sends to the next one, then to the one after that, and so on until there are enough: equally many into and
/// out of each.
fn pairs(options: &Options) -> Result<Vec<[NodeId; 2]>, String> {
    let nodes = options.nodes;
    let rounds = options.connections / nodes;
    if rounds == 0 || rounds >= nodes || !options.connections.is_multiple_of(nodes) {
        return Err(format!(
            "connections must be a multiple of nodes, up to all pairs: {nodes} to {}",
            nodes * (nodes - 1)
        ));
    }
    let round = |step| (0..nodes).map(move |from| [NodeId(from), NodeId((from + step) % nodes)]);
    Ok((1..=rounds).flat_map(round).collect())
}
