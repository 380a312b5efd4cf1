//! `planes`: hosts with a link on each of several planes send to one another. How much of all links together they fill.

use super::{LINK_BITS_PER_S, Measured, Options, PAYLOAD_SHARE, writes};
use crate::NodeId;
use crate::fabric::{FabricConfig, Shape};
use crate::report::{Outcome, Sample};

const MESSAGE_BYTES: u32 = 64 << 10;

/// A connection has so many times outstanding what it can have in flight, so that the program is never what limits it.
const DEPTH_BDPS: f64 = 4.0;
const DEPTH_MIN: u32 = 2;

/// Added to the round trip for that: queues and the waiting of acknowledgements.
const QUEUES_S: f64 = 10e-6;

/// So long all links together would be busy with everything.
const LASTS_S: f64 = 0.001;

/// Each connection sends so many messages at least, or there is no time when all are at work.
const MESSAGES_MIN: u32 = 8;

/// Between two looks at what has arrived.
const SAMPLE_NS: u64 = 20_000;

/// Of the time until the first connection begins its last message the first part is not counted: windows grow.
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
    let mut measured = Measured::default();
    let outcome = measured.run(&scenario)?;
    let goodput = goodput_bits_per_s(&outcome, pairs.len())?;
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

/// Goodput of all together while all are at work.
fn goodput_bits_per_s(outcome: &Outcome, pairs: usize) -> Result<f64, String> {
    let mut last_submitted_ns = vec![0; pairs];
    for one in &outcome.completions {
        // Programs are numbered pair by pair, the writing end first.
        let last = &mut last_submitted_ns[one.agent.0 / 2];
        *last = one.submitted_ns.max(*last);
    }
    let ends_ns = last_submitted_ns.into_iter().min().unwrap_or(0);
    let begins_ns = (ends_ns as f64 * GROWING_PART) as u64;
    let within = |sample: &&Sample| (begins_ns..=ends_ns).contains(&sample.at_ns);
    let mut during = outcome.samples.iter().filter(within);
    match (during.next(), during.next_back()) {
        (Some(first), Some(last)) => {
            let bytes = last.placed_bytes - first.placed_bytes;
            Ok(bytes as f64 * 8e9 / (last.at_ns - first.at_ns) as f64)
        }
        _ => Err("the connections were not at work together for long enough".into()),
    }
}
