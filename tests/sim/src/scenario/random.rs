//! Scenarios drawn from a seed. Most are mild in most respects and bad in a few, so that each mechanism is met both alone
//! and together with others, and a run takes some milliseconds.

use metaroce_proto::cc::ALGORITHMS;
use metaroce_proto::types::Driving;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Fault, Pair, Scenario, crowds, fabrics, narrow};
use crate::NodeId;
use crate::network::NetworkConfig;
use crate::node::HostConfig;
use crate::workload::{Ending, Mistake, Mix, Workload};

/// Draws `values` apart: the first is the usual case.
pub(super) fn pick<T: Copy>(rng: &mut SmallRng, values: &[T]) -> T {
    if rng.random_ratio(1, 2) {
        values[0]
    } else {
        values[rng.random_range(0..values.len())]
    }
}

/// What the scenario is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Theme {
    /// Nothing fails.
    Calm,
    /// Parts of the network go dark, hosts pause.
    Outages,
    /// A node dies.
    Death,
    /// A node is restarted.
    Restart,
    /// A process exits in the middle of its work.
    Close,
    /// Requests that must fail.
    Mistakes,
    /// Programs fail or destroy their queue pairs in the middle of their work.
    Leaving,
    /// Programs reset and connect again.
    Reconnect,
}

/// The scenario of a seed.
pub fn random(seed: u64) -> Scenario {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed_5eed);
    let rng = &mut rng;
    let theme = match rng.random_range(0..20) {
        0..=6 => Theme::Calm,
        7..=10 => Theme::Outages,
        11 | 12 => Theme::Death,
        13 | 14 => Theme::Restart,
        15 => Theme::Close,
        16 | 17 => Theme::Mistakes,
        18 => Theme::Leaving,
        _ => Theme::Reconnect,
    };
    let nodes = pick(rng, &[2, 2, 3, 4]);
    let network = draw_network(rng);
    let mut host = draw_host(rng);
    host.reroll_ns = draw_reroll(seed);
    let hosts = vec![host; nodes];
    let shared = theme == Theme::Calm && rng.random_ratio(1, 5);
    let count = rng.random_range(1..=4);
    let max_bytes = pick(rng, &[20_000, 300, 5_000, 70_000, 200_000]);
    let messages = (3_000_000 / (max_bytes + 10_000)).clamp(10, 120) / count as u32 + 2;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let a = rng.random_range(0..nodes);
        // Now and then a queue pair is connected to one of its own process.
        let loops = theme == Theme::Calm && !shared && rng.random_ratio(1, 10);
        let b = if loops {
            a
        } else {
            (a + rng.random_range(1..nodes)) % nodes
        };
        let mut workloads = [
            draw_workload(rng, messages, max_bytes),
            draw_workload(rng, messages, max_bytes),
        ];
        match theme {
            // Bounds that are soon over, but not before a connection can be set up again.
            Theme::Death | Theme::Restart | Theme::Close => {
                let timeout = rng.random_range(if theme == Theme::Restart { 15 } else { 11 }..=16);
                workloads
                    .iter_mut()
                    .for_each(|workload| workload.timeout = timeout);
            }
            Theme::Mistakes => {
                let side = rng.random_range(0..2);
                workloads[side].mistake =
                    Some(Mistake::ALL[rng.random_range(0..Mistake::ALL.len())]);
            }
            Theme::Calm if !shared && rng.random_ratio(1, 3) => {
                workloads
                    .iter_mut()
                    .for_each(|workload| workload.ending = Ending::Destroy);
            }
            _ => {}
        }
        if shared {
            // Any message may get any receive.
            workloads
                .iter_mut()
                .for_each(|workload| workload.max_bytes = max_bytes);
        }
        pairs.push(Pair {
            nodes: [NodeId(a), NodeId(b)],
            workloads,
            shared,
        });
    }
    if theme == Theme::Calm && rng.random_ratio(1, 6) {
        // One process exits when it has everything.
        for pair in &mut pairs {
            let exits = pair.nodes.iter().position(|node| node.0 == 0);
            pair.workloads
                .iter_mut()
                .for_each(|workload| workload.ending = Ending::Stay);
            if let Some(side) = exits.filter(|_| pair.nodes[0] != pair.nodes[1]) {
                pair.workloads[side].ending = Ending::Exit;
            }
        }
    }
    let faults = draw_faults(rng, theme, nodes, &pairs, network.planes);
    let mut scenario = Scenario {
        name: format!("random ({theme:?})"),
        seed,
        hosts,
        network,
        fabric: None,
        pairs,
        exchange: None,
        faults,
        limit_ns: 60_000_000_000,
        limit_events: 3_000_000,
        carry_payloads: true,
        sample_ns: 0,
    };
    crowds::perhaps_a_crowd(&mut scenario);
    fabrics::perhaps_on_fabric(&mut scenario);
    narrow::perhaps_narrow(&mut scenario);
    if seed >= fabrics::FIRST_FABRIC_SEED {
        // Not drawn: earlier seeds keep their meaning.
        let congestion = &ALGORITHMS[(seed / 2) as usize % ALGORITHMS.len()];
        for host in &mut scenario.hosts {
            host.congestion = congestion;
        }
    }
    scenario
}

/// Seeds below this were found before paths could take other routes for no reason, and stay what they were.
const FIRST_REROLL_SEED: u64 = 2_000_000;

/// From a generator of its own: it must not change what the others draw from the same seed.
fn draw_reroll(seed: u64) -> u64 {
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x7e_7011);
    if seed < FIRST_REROLL_SEED || rng.random_ratio(2, 3) {
        return 0;
    }
    pick(rng, &[100_000, 3_000, 20_000, 1_000_000])
}

fn draw_network(rng: &mut SmallRng) -> NetworkConfig {
    let link_bits_per_s = pick(rng, &[10_000_000_000, 1_000_000_000, 100_000_000_000]);
    let slower = pick(rng, &[1, 1, 2, 4]);
    NetworkConfig {
        planes: pick(rng, &[1, 2, 4]),
        link_bits_per_s,
        port_bits_per_s: link_bits_per_s / slower,
        queue_bytes: pick(rng, &[1 << 20, 200_000, 60_000]),
        mark_bytes: pick(rng, &[130_000, 30_000]),
        delay_ns: pick(rng, &[5_000, 1_000, 50_000, 500_000]),
        route_spread_ns: pick(rng, &[0, 2_000, 20_000, 200_000]),
        jitter_ns: pick(rng, &[0, 1_000, 50_000]),
        reorder: pick(rng, &[0.0, 0.001, 0.02, 0.2]),
        reorder_ns: pick(rng, &[10_000, 100_000, 1_000_000]),
        loss: pick(rng, &[0.0, 0.001, 0.01, 0.05, 0.1, 0.2]),
        burst: pick(rng, &[0.0, 0.0, 0.001, 0.01]),
        burst_ns: pick(rng, &[10_000, 100_000, 1_000_000]),
        duplicate: pick(rng, &[0.0, 0.001, 0.02, 0.2]),
        corrupt: pick(rng, &[0.0, 0.001, 0.02]),
        mark: pick(rng, &[0.0, 0.01, 0.3]),
        ..NetworkConfig::default()
    }
}

fn draw_host(rng: &mut SmallRng) -> HostConfig {
    HostConfig {
        wake_ns: pick(rng, &[2_000, 0, 20_000, 100_000]),
        timer_slack_ns: pick(rng, &[20_000, 0, 200_000, 1_000_000]),
        packet_ns: pick(rng, &[300, 0, 2_000]),
        intake_ns: 0,
        batch: pick(rng, &[64, 1, 8]),
        receive_buffer_bytes: pick(rng, &[4 << 20, 212_992, 1 << 20]),
        send_buffer_bytes: pick(rng, &[256 << 10, 16 << 10]),
        sends_first: rng.random(),
        payload_bytes: pick(rng, &[4_096, 1_400, 512]),
        paths: pick(rng, &[16, 1, 2, 4, 32]),
        train_segments: pick(rng, &[64, 1, 7]),
        driving: pick(rng, &[Driving::Sockets, Driving::Sockets, Driving::Busy]),
        force_strict: pick(rng, &[None, Some(true), Some(false)]),
        hold_bytes: pick(rng, &[16 << 20, 20_000, 200_000]),
        ..HostConfig::default()
    }
}

fn draw_workload(rng: &mut SmallRng, messages: u32, max_bytes: u32) -> Workload {
    Workload {
        messages,
        depth: pick(rng, &[16, 1, 2, 5, 40]),
        max_bytes,
        all_long: false,
        mix: pick(
            rng,
            &[
                Mix::ALL,
                Mix::ALL,
                Mix::SENDS,
                Mix::WRITES,
                Mix::READS,
                Mix::ATOMICS,
            ],
        ),
        relaxed_percent: pick(rng, &[50, 0, 100]),
        sges: pick(rng, &[5, 1, 30]),
        fence_percent: pick(rng, &[5, 0, 50]),
        think_ns: pick(rng, &[0, 1_000, 1_000_000]),
        receives: pick(rng, &[32, 1, 4]),
        first_receives: pick(rng, &[32, 0, 1]),
        receive_delay_ns: pick(rng, &[0, 10_000, 2_000_000]),
        start_ns: pick(rng, &[0, 10_000, 5_000_000]),
        idle_ns: 0,
        timeout: 17,
        retry_count: 7,
        rnr_retry: 7,
        min_rnr_timer: pick(rng, &[4, 1, 12]),
        rd_atomic: pick(rng, &[8, 1, 16]),
        mistake: None,
        ending: Ending::Stay,
    }
}

fn draw_faults(
    rng: &mut SmallRng,
    theme: Theme,
    nodes: usize,
    pairs: &[Pair],
    planes: u8,
) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    // Most runs take some milliseconds.
    let when = |rng: &mut SmallRng| 1 << rng.random_range(14..24);
    let node = NodeId(rng.random_range(0..nodes));
    let other = NodeId((node.0 + rng.random_range(1..nodes)) % nodes);
    if theme == Theme::Outages || rng.random_ratio(1, 4) {
        for _ in 0..rng.random_range(1..=3) {
            let ns = 1_000_000 * rng.random_range(1..=10);
            faults.push((
                when(rng),
                Fault::Pause {
                    node: NodeId(rng.random_range(0..nodes)),
                    ns,
                },
            ));
        }
    }
    match theme {
        Theme::Calm | Theme::Mistakes => {}
        Theme::Outages => {
            for _ in 0..rng.random_range(1..=3) {
                let ns = 1_000_000 * rng.random_range(1..=80);
                let dark = match rng.random_range(0..4) {
                    // One direction.
                    0 => (Some(node), Some(other), None, 0xff),
                    // Some source ports.
                    1 => (None, None, None, rng.random::<u8>()),
                    // A plane.
                    2 => (None, None, Some(rng.random_range(0..planes)), 0xff),
                    // One direction of a plane.
                    _ => (Some(node), None, Some(rng.random_range(0..planes)), 0xff),
                };
                let (from, to, plane, routes) = dark;
                faults.push((
                    when(rng),
                    Fault::Dark {
                        from,
                        to,
                        plane,
                        routes,
                        ns,
                    },
                ));
            }
        }
        Theme::Death => faults.push((
            when(rng),
            Fault::Kill {
                node,
                silent: rng.random(),
            },
        )),
        Theme::Restart => {
            let killed = when(rng);
            if rng.random() {
                faults.push((
                    killed,
                    Fault::Kill {
                        node,
                        silent: rng.random(),
                    },
                ));
            }
            faults.push((
                killed + rng.random_range(1..20_000_000),
                Fault::Restart { node },
            ));
        }
        Theme::Close => faults.push((when(rng), Fault::Close { node })),
        Theme::Leaving => {
            let (pair, side) = (rng.random_range(0..pairs.len()), rng.random_range(0..2));
            let fault = if rng.random() {
                Fault::Fail { pair, side }
            } else {
                Fault::Destroy { pair, side }
            };
            faults.push((when(rng), fault));
        }
        Theme::Reconnect => {
            let pair = rng.random_range(0..pairs.len());
            for _ in 0..rng.random_range(1..=2) {
                faults.push((
                    when(rng),
                    Fault::Reconnect {
                        pair,
                        plan: pairs[pair].clone(),
                    },
                ));
            }
        }
    }
    faults
}
