//! Scenarios with a name: one for each thing that must work, and the seeds that failed once.

use super::{Fault, Pair, Scenario};
use crate::NodeId;
use crate::workload::{Ending, Mistake, Mix, Workload};

/// Names that [`named`] knows.
pub const NAMES: &[&str] = &[
    "calm",
    "loss-1",
    "loss-10",
    "loss-30",
    "bursts",
    "reorder",
    "duplicates",
    "damage",
    "pauses",
    "slow-receiver",
    "no-receives-at-first",
    "one-direction-dark",
    "routes-dark",
    "plane-dark",
    "silent-death",
    "process-death",
    "restart",
    "restart-at-once",
    "restart-duplicated",
    "restart-early",
    "close",
    "leave-in-order",
    "exit-in-order",
    "reconnect",
    "reconnect-duplicated",
    "close-lossy",
    "strict",
    "long-messages",
    "reads",
    "atomics",
    "many-to-one",
    "self-connection",
    "shared-receives",
    "tiny-socket-buffer",
    "reroll",
    "reroll-lossy",
    "reroll-skewed",
    "hole",
    "hole-lossy",
    "hole-at-first",
    "hole-for-a-while",
];

/// One that [`named`] knows as well, and that does not hold: its hosts grant twice what they may.
pub const WRONG: &str = "grants-twice";

/// Every scenario with a name, or `None`.
pub fn named(name: &str, seed: u64) -> Option<Scenario> {
    if name == WRONG {
        return Some(Scenario {
            name: name.into(),
            ..granting(seed, 2)
        });
    }
    let all = Workload::default();
    let mut scenario = Scenario::two(name, seed, all.clone());
    let (a, b) = (NodeId(0), NodeId(1));
    let network = &mut scenario.network;
    let edit = |scenario: &mut Scenario, change: &dyn Fn(&mut Workload)| {
        scenario
            .pairs
            .iter_mut()
            .flat_map(|pair| pair.workloads.iter_mut())
            .for_each(change);
    };
    match name {
        "calm" => {}
        "loss-1" => network.loss = 0.01,
        "loss-10" => network.loss = 0.1,
        "loss-30" => network.loss = 0.3,
        "bursts" => (network.burst, network.burst_ns) = (0.01, 200_000),
        "reorder" => {
            (
                network.reorder,
                network.reorder_ns,
                network.route_spread_ns,
                network.jitter_ns,
            ) = (0.2, 200_000, 100_000, 20_000);
        }
        "duplicates" => network.duplicate = 0.3,
        "damage" => network.corrupt = 0.1,
        "pauses" => {
            scenario.faults = (0..8)
                .map(|at| (at * 3_000_000, pause(NodeId(at as usize % 2))))
                .collect()
        }
        "slow-receiver" => edit(&mut scenario, &|w| {
            (w.receives, w.receive_delay_ns) = (2, 3_000_000)
        }),
        "no-receives-at-first" => {
            edit(&mut scenario, &|w| {
                (w.receives, w.first_receives, w.receive_delay_ns) = (4, 0, 10_000_000)
            });
        }
        "one-direction-dark" => {
            scenario.faults = vec![(300_000, dark(Some(a), Some(b), None, 0xff, 30_000_000))];
            edit(&mut scenario, &|w| w.messages = 600);
        }
        "routes-dark" => {
            scenario.faults = vec![(300_000, dark(None, None, None, 0x55, 80_000_000))];
            edit(&mut scenario, &|w| w.messages = 600);
        }
        "plane-dark" => {
            network.planes = 4;
            scenario.faults = vec![(300_000, dark(None, None, Some(2), 0xff, 50_000_000))];
            edit(&mut scenario, &|w| {
                (w.messages, w.max_bytes) = (400, 50_000)
            });
        }
        "silent-death" | "process-death" => {
            edit(&mut scenario, &|w| (w.timeout, w.messages) = (14, 2_000));
            scenario.faults = vec![(
                2_000_000,
                Fault::Kill {
                    node: b,
                    silent: name == "silent-death",
                },
            )];
        }
        "restart" | "restart-at-once" | "restart-duplicated" => {
            if name == "restart-duplicated" {
                // Packets of the old incarnation come after those of the new one.
                (network.duplicate, network.reorder, network.reorder_ns) = (0.3, 0.3, 2_000_000);
            }
            edit(&mut scenario, &|w| w.timeout = 15);
            let after_ns = if name == "restart-at-once" {
                0
            } else {
                40_000_000
            };
            scenario.faults = vec![
                (
                    500_000,
                    Fault::Kill {
                        node: b,
                        silent: false,
                    },
                ),
                (500_000 + after_ns, Fault::Restart { node: b }),
            ];
        }
        "restart-early" => {
            // In the midst of setting up; the survivor only answers.
            network.loss = 0.3;
            edit(&mut scenario, &|w| (w.timeout, w.mix) = (16, Mix::READS));
            scenario.pairs[0].workloads[0].messages = 0;
            scenario.faults = vec![
                (
                    60_000,
                    Fault::Kill {
                        node: b,
                        silent: false,
                    },
                ),
                (110_000, Fault::Restart { node: b }),
            ];
        }
        "close" | "close-lossy" => {
            edit(&mut scenario, &|w| (w.timeout, w.messages) = (14, 2_000));
            if name == "close-lossy" {
                // The bound ends before the exiting process gives up saying goodbye, which it must say again.
                scenario.network.loss = 0.3;
                edit(&mut scenario, &|w| w.timeout = 11);
            }
            scenario.faults = vec![(2_000_000, Fault::Close { node: b })];
        }
        "leave-in-order" => {
            network.loss = 0.05;
            edit(&mut scenario, &|w| w.ending = Ending::Destroy);
        }
        "exit-in-order" => {
            network.loss = 0.05;
            scenario.pairs[0].workloads[1].ending = Ending::Exit;
        }
        "reconnect" | "reconnect-duplicated" => {
            let mut every_ns = 400_000;
            if name == "reconnect-duplicated" {
                // Packets of an earlier life come after those of a later one.
                (network.duplicate, network.reorder, network.reorder_ns) = (0.5, 0.5, 150_000);
                edit(&mut scenario, &|w| w.mix = Mix::READS);
                every_ns = 50_000;
            }
            let plan = scenario.pairs[0].clone();
            scenario.faults = (1..6)
                .map(|at| {
                    (
                        at * every_ns,
                        Fault::Reconnect {
                            pair: 0,
                            plan: plan.clone(),
                        },
                    )
                })
                .collect();
        }
        "strict" => {
            (network.loss, network.route_spread_ns, network.jitter_ns) = (0.02, 50_000, 10_000);
            edit(&mut scenario, &|w| {
                (w.mix, w.relaxed_percent, w.messages) = (Mix::WRITES, 0, 300)
            });
            scenario
                .hosts
                .iter_mut()
                .for_each(|host| host.hold_bytes = 100_000);
        }
        "long-messages" => {
            network.loss = 0.01;
            edit(&mut scenario, &|w| {
                (w.messages, w.max_bytes, w.sges) = (40, 500_000, 30)
            });
        }
        "reads" => {
            network.loss = 0.02;
            edit(&mut scenario, &|w| (w.mix, w.messages) = (Mix::READS, 200));
        }
        "atomics" => {
            network.loss = 0.1;
            network.duplicate = 0.1;
            edit(&mut scenario, &|w| {
                (w.mix, w.messages) = (Mix::ATOMICS, 500)
            });
        }
        "many-to-one" => many_to_one(&mut scenario, 8),
        "self-connection" => scenario.pairs[0].nodes = [a, a],
        "shared-receives" => {
            network.loss = 0.02;
            let mut pair = scenario.pairs[0].clone();
            pair.shared = true;
            pair.workloads
                .iter_mut()
                .for_each(|w| (w.receives, w.first_receives) = (4, 4));
            scenario.pairs = vec![pair; 4];
        }
        "tiny-socket-buffer" => {
            scenario.hosts.iter_mut().for_each(|host| {
                (host.receive_buffer_bytes, host.packet_ns, host.wake_ns) =
                    (100_000, 3_000, 50_000);
            });
        }
        "reroll" | "reroll-lossy" | "reroll-skewed" => {
            (network.planes, network.jitter_ns) = (2, 1_000);
            scenario
                .hosts
                .iter_mut()
                .for_each(|host| host.reroll_ns = 20_000);
            match name {
                "reroll-lossy" => network.loss = 0.05,
                // A new route is several round trips shorter or longer than the one before.
                "reroll-skewed" => network.route_spread_ns = 100_000,
                _ => {}
            }
            edit(&mut scenario, &|w| w.messages = 400);
        }
        "hole" | "hole-lossy" | "hole-at-first" | "hole-for-a-while" => {
            if name == "hole-lossy" {
                network.loss = 0.1;
            }
            let narrow = |largest_bytes| Fault::Narrow { largest_bytes };
            let at_ns = if name == "hole-at-first" { 0 } else { 400_000 };
            scenario.faults = vec![(at_ns, narrow(1_472))];
            if name == "hole-for-a-while" {
                // Over before it is found out, or a moment later.
                scenario.faults.push((50_000_000, narrow(u64::MAX)));
            }
            edit(&mut scenario, &|w| {
                (w.messages, w.max_bytes) = (400, 50_000)
            });
        }
        _ => return named_late(name, scenario),
    }
    Some(scenario)
}

/// Mistakes, by name, and seeds that failed once.
fn named_late(name: &str, mut scenario: Scenario) -> Option<Scenario> {
    let mistake = Mistake::ALL
        .into_iter()
        .find(|mistake| name == format!("mistake-{mistake:?}"))?;
    scenario.network.loss = 0.02;
    scenario.pairs[0].workloads[0].mistake = Some(mistake);
    Some(scenario)
}

fn pause(node: NodeId) -> Fault {
    Fault::Pause {
        node,
        ns: 5_000_000,
    }
}

fn dark(from: Option<NodeId>, to: Option<NodeId>, plane: Option<u8>, routes: u8, ns: u64) -> Fault {
    Fault::Dark {
        from,
        to,
        plane,
        routes,
        ns,
    }
}

fn many_to_one(scenario: &mut Scenario, senders: usize) {
    let mut send = scenario.pairs[0].workloads[0].clone();
    (send.mix, send.messages, send.max_bytes) = (Mix::WRITES, 60, 60_000);
    scenario.hosts = vec![scenario.hosts[0].clone(); senders + 1];
    let pair = |at| Pair {
        nodes: [NodeId(at), NodeId(0)],
        workloads: [
            send.clone(),
            Workload {
                max_bytes: send.max_bytes,
                ..Workload::silent()
            },
        ],
        shared: false,
    };
    scenario.pairs = (1..=senders).map(pair).collect();
    scenario.network.link_bits_per_s = 10_000_000_000;
    scenario.network.port_bits_per_s = 10_000_000_000;
}

/// Long WRITEs in one direction over a 10 Gb/s link, to measure what is kept of it at `loss`.
pub fn bulk(seed: u64, loss: f64, planes: u8, messages: u32) -> Scenario {
    let send = Workload {
        messages,
        depth: 16,
        max_bytes: 1 << 18,
        all_long: true,
        mix: Mix {
            write: 1,
            send: 0,
            write_imm: 0,
            read: 0,
            atomic: 0,
            write_read: 0,
            read_send: 0,
        },
        relaxed_percent: 100,
        sges: 1,
        ..Workload::default()
    };
    let receive = Workload {
        max_bytes: send.max_bytes,
        receives: 2,
        ..Workload::silent()
    };
    let mut scenario = Scenario::two("bulk", seed, send.clone());
    scenario.pairs[0].workloads = [send, receive];
    scenario.network.planes = planes;
    scenario.network.loss = loss;
    scenario.network.link_bits_per_s = 10_000_000_000 / u64::from(planes);
    scenario.network.port_bits_per_s = scenario.network.link_bits_per_s;
    scenario.limit_events = u64::MAX;
    scenario
}

/// The same from `senders` hosts to one, whose link is no faster than each of theirs.
pub fn bulk_to_one(seed: u64, senders: usize, messages: u32) -> Scenario {
    let mut scenario = bulk(seed, 0.0, 1, messages);
    let (host, pair) = (scenario.hosts[0].clone(), scenario.pairs[0].clone());
    scenario.hosts = vec![host; senders + 1];
    scenario.pairs = (1..=senders)
        .map(|at| Pair {
            nodes: [NodeId(at), NodeId(0)],
            ..pair.clone()
        })
        .collect();
    scenario
}

/// Four hosts send to one, and all that receive grant so many times what they may.
pub fn granting(seed: u64, times: u32) -> Scenario {
    let mut scenario = bulk_to_one(seed, 4, 100);
    for host in &mut scenario.hosts {
        host.drain_bits_per_s = Some(5_000_000_000);
        host.grants_times = times;
    }
    scenario
}
