//! `loss`: how much of the goodput is kept when packets get lost, data and acknowledgements alike, one by one or in bursts.

use super::{LINK_BITS_PER_S, Measured, Options, Transport, writes};
use crate::NodeId;
use crate::exchange::Exchange;
use crate::fabric::{Change, FabricConfig, Links, Loss, Shape};
use crate::rocev2;
use crate::scenario::Scenario;

/// Length of the messages, and how many of them are outstanding: several times what the longest round trips hold.
const MESSAGE_BYTES: u32 = 256 << 10;
const DEPTH: u32 = 16;

/// About 50 ms at the full rate: at 1 % some 1500 packets are lost, so that a seed alone hardly moves the result.
const MESSAGES: u32 = 2_400;

const PAIR: [NodeId; 2] = [NodeId(0), NodeId(1)];

/// Go-back-N may be so slow that this ends it.
const ROCEV2_LIMIT_NS: u64 = 20_000_000_000;

/// What has arrived by then says how fast it is if it is more than this.
const MIN_ARRIVED: usize = 4 * DEPTH as usize;

/// `kept`: goodput against that of the same seed without loss.
pub(super) fn measure(options: &Options) -> Result<Measured, String> {
    let mut measured = Measured::new(options);
    let mut goodput = |part| match options.transport {
        Transport::Metaroce => {
            let outcome = measured.run(&scenario(options, part))?;
            let done = outcome.completions.iter().map(|one| one.done_ns);
            let done: Vec<u64> = done.collect();
            Ok::<f64, String>(steady_bits_per_s(&done, MESSAGE_BYTES, DEPTH))
        }
        Transport::Rocev2 => over_rocev2(options, part, &mut measured.packets),
    };
    let (clean, lossy) = (goodput(0.0)?, goodput(options.loss)?);
    measured.values = vec![("kept", lossy / clean)];
    measured.asides = vec![
        ("link_share", clean / LINK_BITS_PER_S),
        ("lossy_link_share", lossy / LINK_BITS_PER_S),
    ];
    Ok(measured)
}

fn fabric(options: &Options, part: f64) -> FabricConfig {
    let mut fabric = FabricConfig::new(1, Shape::SingleSwitch, options.rtt_ns());
    let loss = Loss {
        part,
        burst_max: options.burst,
    };
    fabric.changes = vec![(Links::ToHosts, Change::Lose(loss))];
    fabric
}

fn scenario(options: &Options, part: f64) -> Scenario {
    let writes = writes(MESSAGE_BYTES, DEPTH, MESSAGES);
    super::scenario(
        "loss",
        options.seed,
        fabric(options, part),
        &writes,
        &[PAIR],
    )
}

fn over_rocev2(options: &Options, part: f64, packets: &mut u64) -> Result<f64, String> {
    let setting = rocev2::Setting {
        limit_ns: ROCEV2_LIMIT_NS,
        ..rocev2::Setting::new(options.seed, fabric(options, part))
    };
    let stream = Exchange::stream(PAIR, MESSAGE_BYTES, MESSAGES, DEPTH);
    let outcome = rocev2::run(&setting, &stream);
    *packets += outcome.packets;
    if outcome.failed > 0 {
        return Err("too many timeouts in a row: the flow gave up".into());
    }
    let arrived: Vec<u64> = outcome
        .passed
        .iter()
        .filter_map(|one| one.arrived_ns)
        .collect();
    if arrived.len() < MIN_ARRIVED {
        return Err("hardly anything arrived".into());
    }
    Ok(steady_bits_per_s(&arrived, MESSAGE_BYTES, DEPTH))
}

/// Goodput without the begin, when windows grow, and without the end, when the last messages wait for what they lost. All
/// messages are of one length, `depth` of them outstanding.
pub(super) fn steady_bits_per_s(done_ns: &[u64], message_bytes: u32, depth: u32) -> f64 {
    let (first, last) = (done_ns.len() / 4, done_ns.len() - depth as usize);
    let bytes = (last - first) as f64 * f64::from(message_bytes);
    let ns = done_ns[last] - done_ns[first];
    bytes * 8e9 / ns.max(1) as f64
}
