//! `plane-death`, `plane-return` and `slow-plane`: one host sends to another over several planes, one of which dies without a
//! word, comes back, or is slow at the far end.

use super::looks::{all_at_work, grown, placed_bits_per_s, until_growing};
use super::options::What;
use super::{LINK_BITS_PER_S, Measured, Options, PAYLOAD_SHARE, writes};
use crate::NodeId;
use crate::fabric::{Change, FabricConfig, Links, Shape};
use crate::report::Sample;
use crate::scenario::{Fault, Scenario};

const RECEIVER: NodeId = NodeId(0);
const SENDER: NodeId = NodeId(1);

const MESSAGE_BYTES: u32 = 256 << 10;

/// Messages outstanding: 32 MiB, several times what all planes hold.
const DEPTH: u32 = 128;

/// Within this time it begins, so that what happens finds it at another place with each seed.
const STARTS_NS: u64 = 200_000;

/// A plane dies then, when windows have long grown.
const DIES_NS: u64 = 3_000_000;

/// What was reached before is taken from here on.
const GROWN_NS: u64 = 1_500_000;

/// After the death it goes on for so long, at the rate of the other planes.
const AFTER_S: f64 = 0.008;

/// A plane that comes back was dead for so long: longer than the longest time between two probes of a dead plane.
const DEAD_NS: u64 = 30_000_000;

/// And after that it goes on for so long.
const AFTER_RETURN_S: f64 = 0.04;

/// What the others carry is reached when they carry this part of it…
const RECOVERED: f64 = 0.97;

/// … in a time of this length: a thousand packets on eight planes.
const WINDOW_NS: u64 = 50_000;
const SAMPLE_NS: u64 = 10_000;

/// A plane is used again when it carries this part of what its link carries: more than probes and what a single path tries.
const USED: f64 = 0.1;

/// `slow-plane` lasts so long, and what is reached counts after this part of it.
const SLOW_LASTS_S: f64 = 0.008;
const SLOW_GROWING_PART: f64 = 0.4;
const SLOW_MESSAGE_BYTES: u32 = 64 << 10;
const SLOW_DIVISOR: f64 = 10.0;

/// `recover_us`, from the fault until what is placed and what completes is 97 % of what the links of the other planes carry
/// (NaN if it never is), and `errors`, queue pairs and connections that failed.
pub(super) fn death(options: &Options) -> Result<Measured, String> {
    if options.planes < 2 && options.what != What::Spine {
        return Err(
            "of one plane nothing is left that could recover: --planes must be 2 or more".into(),
        );
    }
    let planes = f64::from(options.planes);
    let shape = match options.what {
        What::Spine => Shape::LeafSpine {
            leaves: 2,
            spines: 4,
        },
        What::Plane | What::Return => Shape::SingleSwitch,
    };
    let rest = (planes - 1.0) / planes;
    let seconds = DIES_NS as f64 / 1e9 + AFTER_S * rest;
    let mut scenario = stream(options, "plane-death", shape, seconds);
    let plane = drawn_plane(options);
    let links = match options.what {
        What::Plane => Links::Plane(plane),
        What::Return => Links::ToHost(SENDER, Some(plane)),
        What::Spine => Links::Spine {
            plane,
            leaf: SENDER.0,
            spine: 0,
        },
    };
    scenario.faults = vec![(DIES_NS, Fault::Links(links, Change::Down))];
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let before = placed_bits_per_s(&outcome.samples, &(GROWN_NS..DIES_NS))?;
    let all = planes * LINK_BITS_PER_S * PAYLOAD_SHARE;
    let until = |rest_bits_per_s: f64| {
        let least_bytes = rest_bits_per_s * RECOVERED / 8e9 * WINDOW_NS as f64;
        let until = |quantity: fn(&Sample) -> u64| {
            let begins_ns =
                until_growing(&outcome.samples, DIES_NS, WINDOW_NS, least_bytes, quantity);
            // What waited for something lost completes all at once, at the end of the time in which it is found.
            if begins_ns > 0.0 {
                begins_ns + WINDOW_NS as f64
            } else {
                begins_ns
            }
        };
        let (placed, completed) = (
            until(|sample| sample.placed_bytes),
            until(|sample| sample.completed_bytes),
        );
        if placed.is_nan() || completed.is_nan() {
            f64::NAN
        } else {
            placed.max(completed) / 1e3
        }
    };
    let counters = &outcome.counters;
    measured.values = vec![
        ("recover_us", until(all * rest)),
        (
            "errors",
            (counters.qp_failures + counters.connections_lost) as f64,
        ),
    ];
    let ends_ns = all_at_work(&outcome, 0..1)?.end;
    let later = DIES_NS + (ends_ns - DIES_NS) / 2..ends_ns;
    let after = placed_bits_per_s(&outcome.samples, &later)?;
    measured.asides = vec![
        ("to_the_same_share_us", until(before * rest)),
        ("of_all_before", before / all),
        ("of_the_rest_later", after / (all * rest)),
        ("lost_packets", counters.packets_lost as f64),
    ];
    Ok(measured)
}

/// `used_again_us`, from the return of a plane until a tenth of its link is used.
pub(super) fn comeback(options: &Options) -> Result<Measured, String> {
    let planes = f64::from(options.planes);
    let seconds = (DIES_NS + DEAD_NS) as f64 / 1e9 + AFTER_RETURN_S;
    let seconds = seconds * (planes - 1.0) / planes;
    let mut scenario = stream(options, "plane-return", Shape::SingleSwitch, seconds);
    let plane = drawn_plane(options);
    let returns_ns = DIES_NS + DEAD_NS;
    scenario.faults = vec![
        (DIES_NS, Fault::Links(Links::Plane(plane), Change::Down)),
        (returns_ns, Fault::Links(Links::Plane(plane), Change::Up)),
    ];
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let least_bytes = LINK_BITS_PER_S * USED / 8e9 * WINDOW_NS as f64;
    let carried = |sample: &Sample| sample.into_first_by_plane[usize::from(plane)];
    let used_ns = until_growing(
        &outcome.samples,
        returns_ns,
        WINDOW_NS,
        least_bytes,
        carried,
    );
    measured.values = vec![("used_again_us", used_ns / 1e3)];
    let dead = placed_bits_per_s(&outcome.samples, &(returns_ns - DEAD_NS / 2..returns_ns))?;
    let rest = (planes - 1.0) * LINK_BITS_PER_S * PAYLOAD_SHARE;
    let ends_ns = all_at_work(&outcome, 0..1)?.end;
    let later = ends_ns - (ends_ns.saturating_sub(returns_ns)) / 3..ends_ns;
    let later = placed_bits_per_s(&outcome.samples, &later)?;
    measured.asides = vec![
        ("of_the_rest_while_dead", dead / rest),
        (
            "of_all_later",
            later / (planes * LINK_BITS_PER_S * PAYLOAD_SHARE),
        ),
    ];
    Ok(measured)
}

/// `of_sum`, goodput against what the links carry together, of which one has a tenth of the others' rate at the receiver.
pub(super) fn slow(options: &Options) -> Result<Measured, String> {
    let planes = f64::from(options.planes);
    let sum = (planes - 1.0 + 1.0 / SLOW_DIVISOR) * LINK_BITS_PER_S * PAYLOAD_SHARE;
    let messages = (sum * SLOW_LASTS_S / 8.0 / f64::from(SLOW_MESSAGE_BYTES)) as u32;
    let depth = (options.queued_bytes / u64::from(SLOW_MESSAGE_BYTES)).max(1) as u32;
    let mut writes = writes(SLOW_MESSAGE_BYTES, depth, messages + depth);
    writes.idle_ns = STARTS_NS;
    let mut fabric = FabricConfig::new(options.planes, Shape::SingleSwitch, options.rtt_ns());
    let far_end = Links::ToHost(RECEIVER, Some(drawn_plane(options)));
    let bits_per_s = (LINK_BITS_PER_S / SLOW_DIVISOR) as u64;
    fabric.changes = vec![(far_end, Change::Rate { bits_per_s })];
    let pairs = [[SENDER, RECEIVER]];
    let mut scenario = super::scenario("slow-plane", options.seed, fabric, &writes, &pairs);
    scenario.sample_ns = SAMPLE_NS;
    let mut measured = Measured::new(options);
    let outcome = measured.run(&scenario)?;
    let during = grown(&all_at_work(&outcome, 0..1)?, SLOW_GROWING_PART);
    let goodput = placed_bits_per_s(&outcome.samples, &during)?;
    measured.values = vec![("of_sum", goodput / sum)];
    measured.asides = vec![
        ("gbit_per_s", goodput / 1e9),
        ("drops", outcome.links.overflows as f64),
    ];
    Ok(measured)
}

/// WRITEs that keep all planes busy for so long.
fn stream(options: &Options, name: &str, shape: Shape, seconds: f64) -> Scenario {
    let bytes = f64::from(options.planes) * LINK_BITS_PER_S * PAYLOAD_SHARE / 8.0 * seconds;
    let messages = (bytes / f64::from(MESSAGE_BYTES)) as u32 + DEPTH;
    let mut writes = writes(MESSAGE_BYTES, DEPTH, messages);
    writes.idle_ns = STARTS_NS;
    let fabric = FabricConfig::new(options.planes, shape, options.rtt_ns());
    let pairs = [[SENDER, RECEIVER]];
    let mut scenario = super::scenario(name, options.seed, fabric, &writes, &pairs);
    scenario.sample_ns = SAMPLE_NS;
    for host in &mut scenario.hosts {
        host.driving = options.constants.driving();
    }
    scenario
}

/// The plane to which it happens.
fn drawn_plane(options: &Options) -> u8 {
    (options.seed % u64::from(options.planes)) as u8
}
