//! Whole endpoints in the simulator (`tests/sim`), with everything that happens chosen by bytes: hosts, programs, what is
//! done to them when (a queue pair fails, is reset or destroyed, a process exits, dies, is started again), and the fate of
//! every packet (`metaroce_sim::script`). The simulator's checkers know the contract of verbs; what they find is a
//! failure. With a hostile script packets are forged too, and only what an endpoint owes to itself is checked.

use arbitrary::{Result, Unstructured};
use metaroce_proto::types::Driving;
use metaroce_sim::NodeId;
use metaroce_sim::network::NetworkConfig;
use metaroce_sim::node::HostConfig;
use metaroce_sim::report::Outcome;
use metaroce_sim::scenario::{Fault, Pair, Scenario};
use metaroce_sim::script::Script;
use metaroce_sim::workload::{Ending, Mistake, Mix, Workload};
use metaroce_sim::world::World;

/// Things that happen to the world at most.
const FAULTS_MAX: u8 = 4;
/// Requests of one program at most: a run takes about a millisecond.
const MESSAGES_MAX: u32 = 12;
/// Local ACK timeout: 34 s with 8 tries, more than a script lasts.
const TIMEOUT: u8 = 20;
/// Everything must be done within this, of virtual time: more than the above.
const LIMIT_NS: u64 = 120_000_000_000;
/// And within so many events, which is far more than the longest run takes.
const LIMIT_EVENTS: u64 = 400_000;
/// A hostile run needs no end: its programs may wait for what a forged packet took away.
const HOSTILE_LIMIT_EVENTS: u64 = 20_000;

/// What a run is about; the checkers know what each of these allows, but not all of them at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Theme {
    /// Programs end in order, or make mistakes.
    Calm,
    /// Queue pairs are failed, destroyed, reset and connected again.
    QueuePairs,
    /// A process exits, dies or is started again.
    Process,
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let outcome = outcome_of(input, false);
    assert!(outcome.is_right(), "{outcome}");
}

/// What became of one input; `live` prints every packet.
#[must_use]
pub fn outcome_of(input: &[u8], live: bool) -> Outcome {
    let mut bytes = Unstructured::new(input);
    // Reading never fails: it fills up with zeroes.
    let scenario = scenario_of(&mut bytes)
        .unwrap_or_else(|_| Scenario::two("too short", 0, Workload::silent()));
    World::run(&scenario, live)
}

fn scenario_of(bytes: &mut Unstructured<'_>) -> Result<Scenario> {
    let hostile = bytes.ratio(1, 4)?;
    let theme = *bytes.choose(&[Theme::Calm, Theme::QueuePairs, Theme::Process])?;
    let nodes = 2 + usize::from(bytes.ratio(1, 8)?);
    let host = draw_host(bytes)?;
    let mut pairs = Vec::new();
    for _ in 0..bytes.int_in_range(1..=3)? {
        pairs.push(draw_pair(bytes, nodes, theme)?);
    }
    let mut faults = Vec::new();
    if theme == Theme::Process {
        let after_ns = 1_000 << bytes.int_in_range(0..=15)?;
        faults.push((after_ns, draw_end(bytes, nodes)?));
    }
    for _ in 0..bytes.int_in_range(0..=FAULTS_MAX)? {
        let after_ns = 1_000 << bytes.int_in_range(0..=15)?;
        faults.push((after_ns, draw_fault(bytes, nodes, &pairs, theme)?));
    }
    let network = NetworkConfig {
        planes: *bytes.choose(&[1, 2])?,
        route_spread_ns: *bytes.choose(&[0, 20_000])?,
        script: Script::new(bytes.peek_bytes(bytes.len()).unwrap_or_default(), hostile),
        ..NetworkConfig::default()
    };
    let limit_events = match hostile {
        true => HOSTILE_LIMIT_EVENTS,
        false => LIMIT_EVENTS,
    };
    Ok(Scenario {
        name: if hostile { "hostile" } else { "fuzz" }.into(),
        seed: 1,
        hosts: vec![host; nodes],
        network,
        fabric: None,
        pairs,
        faults,
        limit_ns: LIMIT_NS,
        limit_events,
        carry_payloads: true,
        sample_ns: 0,
        exchange: None,
    })
}

fn draw_host(bytes: &mut Unstructured<'_>) -> Result<HostConfig> {
    Ok(HostConfig {
        wake_ns: *bytes.choose(&[2_000, 0, 50_000])?,
        timer_slack_ns: *bytes.choose(&[20_000, 0, 500_000])?,
        batch: *bytes.choose(&[64, 1, 4])?,
        sends_first: bytes.arbitrary()?,
        payload_bytes: *bytes.choose(&[512, 4_096])?,
        paths: *bytes.choose(&[4, 1, 2, 16])?,
        train_segments: *bytes.choose(&[64, 1, 3])?,
        driving: *bytes.choose(&[Driving::Sockets, Driving::Busy])?,
        force_strict: *bytes.choose(&[None, Some(true), Some(false)])?,
        hold_bytes: *bytes.choose(&[16 << 20, 2_000])?,
        ..HostConfig::default()
    })
}

fn draw_pair(bytes: &mut Unstructured<'_>, nodes: usize, theme: Theme) -> Result<Pair> {
    let a = bytes.choose_index(nodes)?;
    // Now and then a queue pair is connected to one of its own process.
    let b = match bytes.ratio(1, 8)? {
        true => a,
        false => (a + 1) % nodes,
    };
    let max_bytes = *bytes.choose(&[1_000, 64, 6_000])?;
    let mut workloads = [
        draw_workload(bytes, max_bytes, theme)?,
        draw_workload(bytes, max_bytes, theme)?,
    ];
    if theme == Theme::Calm && bytes.arbitrary()? {
        // As in the simulator's own scenarios: both leave, when both have everything. Nobody leaves before a mistake of
        // the other was answered: nothing that is received tells when.
        let calm = workloads.iter().all(|workload| workload.mistake.is_none());
        for workload in workloads.iter_mut().filter(|_| calm) {
            workload.ending = Ending::Destroy;
        }
    }
    Ok(Pair {
        nodes: [NodeId(a), NodeId(b)],
        workloads,
        shared: false,
    })
}

fn draw_workload(bytes: &mut Unstructured<'_>, max_bytes: u32, theme: Theme) -> Result<Workload> {
    let mixes = [Mix::ALL, Mix::SENDS, Mix::WRITES, Mix::READS, Mix::ATOMICS];
    let calm = theme == Theme::Calm;
    let mistake = match calm && bytes.ratio(1, 8)? {
        true => Some(*bytes.choose(&Mistake::ALL)?),
        false => None,
    };
    Ok(Workload {
        messages: bytes.int_in_range(0..=MESSAGES_MAX)?,
        depth: *bytes.choose(&[8, 1, 2, 4])?,
        max_bytes,
        mix: *bytes.choose(&mixes)?,
        relaxed_percent: *bytes.choose(&[50, 0, 100])?,
        sges: *bytes.choose(&[5, 1])?,
        fence_percent: *bytes.choose(&[5, 50])?,
        receives: *bytes.choose(&[8, 1, 3])?,
        first_receives: *bytes.choose(&[8, 0, 1])?,
        receive_delay_ns: *bytes.choose(&[0, 10_000, 2_000_000])?,
        start_ns: *bytes.choose(&[0, 10_000, 2_000_000])?,
        timeout: TIMEOUT,
        min_rnr_timer: *bytes.choose(&[4, 1])?,
        rd_atomic: *bytes.choose(&[8, 1, 2])?,
        mistake,
        ending: Ending::Stay,
        ..Workload::default()
    })
}

/// The one thing that happens to a process.
fn draw_end(bytes: &mut Unstructured<'_>, nodes: usize) -> Result<Fault> {
    let node = NodeId(bytes.choose_index(nodes)?);
    Ok(match bytes.int_in_range(0..=3)? {
        0 => Fault::Close { node },
        1 => Fault::Kill {
            node,
            silent: bytes.arbitrary()?,
        },
        _ => Fault::Restart { node },
    })
}

fn draw_fault(
    bytes: &mut Unstructured<'_>,
    nodes: usize,
    pairs: &[Pair],
    theme: Theme,
) -> Result<Fault> {
    let node = NodeId(bytes.choose_index(nodes)?);
    let (pair, side) = (
        bytes.choose_index(pairs.len())?,
        usize::from(bytes.arbitrary::<bool>()?),
    );
    let ns = 100_000 << bytes.int_in_range(0..=9)?;
    let first = if theme == Theme::QueuePairs { 0 } else { 4 };
    Ok(match bytes.int_in_range(first..=6)? {
        0 | 1 => Fault::Reconnect {
            pair,
            plan: pairs[pair].clone(),
        },
        2 => Fault::Destroy { pair, side },
        3 => Fault::Fail { pair, side },
        4 => Fault::Pause { node, ns },
        5 => Fault::Dark {
            from: Some(node),
            to: None,
            plane: None,
            routes: 0xff,
            ns,
        },
        _ => Fault::Dark {
            from: None,
            to: None,
            plane: None,
            routes: bytes.arbitrary()?,
            ns,
        },
    })
}
