//! `moves`, `reordering` and `pause`: nothing is lost, but packets come late or in another order. How many are sent again in
//! vain, and whether paths are given up for it.

use super::looks::spurious;
use super::{LINK_BITS_PER_S, Measured, Options, PAYLOAD_SHARE, writes};
use crate::NodeId;
use crate::fabric::{Change, Disorder, FabricConfig, Links, Shape};
use crate::scenario::{Fault, Scenario};

const RECEIVER: NodeId = NodeId(0);
const SENDER: NodeId = NodeId(1);

const MESSAGE_BYTES: u32 = 256 << 10;
const DEPTH: u32 = 16;

/// So long a run lasts at the full rate, pauses not counted.
const LASTS_S: f64 = 0.02;

/// Within this time it begins, so that what happens finds it at another place with each seed.
const STARTS_NS: u64 = 200_000;

/// Paths move so often.
const MOVE_NS: u64 = 200_000;

/// The routes differ by so much, each way.
const SKEW_NS: u64 = 20_000;
const SPINES: usize = 4;

/// The receiver pauses then.
const PAUSES_NS: u64 = 2_000_000;

/// `spurious` while paths move all the time between routes that are longer and shorter.
pub(super) fn moves(options: &Options) -> Result<Measured, String> {
    let shape = Shape::LeafSpine {
        leaves: 2,
        spines: SPINES,
    };
    let mut fabric = FabricConfig::new(options.planes, shape, options.rtt_ns());
    let shortest_ns = fabric.between.delay_ns;
    for plane in 0..options.planes {
        for spine in 0..SPINES {
            let (links, share) = (spine_of(plane, spine), spine as u64 * SKEW_NS);
            let ns = shortest_ns + share / (SPINES as u64 - 1);
            fabric.changes.push((links, Change::Delay { ns }));
        }
    }
    let mut scenario = stream(options, "moves", fabric);
    for host in &mut scenario.hosts {
        host.reroll_ns = MOVE_NS;
    }
    measure(options, &scenario)
}

/// The same while some packets are overtaken by others on the same route.
pub(super) fn reordering(options: &Options) -> Result<Measured, String> {
    let mut fabric = FabricConfig::new(options.planes, Shape::SingleSwitch, options.rtt_ns());
    let disorder = Disorder {
        late: options.late,
        late_ns: options.late_us * 1_000,
        ..Disorder::default()
    };
    fabric.changes = vec![(Links::ToHosts, Change::Disorder(disorder))];
    measure(options, &stream(options, "reordering", fabric))
}

/// `spurious` when the receiver is not run for a time, and `paths_given_up`: paths move about then, and none may be left unused.
pub(super) fn pause(options: &Options) -> Result<Measured, String> {
    let fabric = FabricConfig::new(options.planes, Shape::SingleSwitch, options.rtt_ns());
    let mut scenario = stream(options, "pause", fabric);
    let pause = Fault::Pause {
        node: RECEIVER,
        ns: options.ms * 1_000_000,
    };
    scenario.faults = vec![(PAUSES_NS, pause)];
    let mut measured = measure(options, &scenario)?;
    let resting = measured.asides.remove(0);
    measured.values.push(resting);
    Ok(measured)
}

fn stream(options: &Options, name: &str, fabric: FabricConfig) -> Scenario {
    let line = f64::from(options.planes) * LINK_BITS_PER_S * PAYLOAD_SHARE;
    let messages = (line * LASTS_S / 8.0 / f64::from(MESSAGE_BYTES)) as u32;
    let depth = DEPTH * u32::from(options.planes);
    let mut writes = writes(MESSAGE_BYTES, depth, messages);
    writes.idle_ns = STARTS_NS;
    let pairs = [[SENDER, RECEIVER]];
    let mut scenario = super::scenario(name, options.seed, fabric, &writes, &pairs);
    for host in &mut scenario.hosts {
        host.driving = options.constants.driving();
    }
    scenario
}

fn measure(options: &Options, scenario: &Scenario) -> Result<Measured, String> {
    let mut measured = Measured::new(options);
    let outcome = measured.run(scenario)?;
    let counters = &outcome.counters;
    measured.values = vec![("spurious", spurious(&outcome))];
    measured.asides = vec![
        ("paths_given_up", outcome.resting_paths as f64),
        ("moves", counters.moves as f64),
        ("retransmissions", counters.retransmissions as f64),
        ("duplicates", counters.duplicates_received as f64),
        (
            "drops",
            (outcome.links.overflows + outcome.socket_drops) as f64,
        ),
        ("gbit_per_s", outcome.goodput_bits_per_s() / 1e9),
    ];
    Ok(measured)
}

fn spine_of(plane: u8, spine: usize) -> Links {
    Links::Spine {
        plane,
        leaf: SENDER.0,
        spine,
    }
}
