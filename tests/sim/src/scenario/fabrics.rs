//! Random scenarios over a fabric instead of a network: the same hosts, programs and faults, and links that lose in bursts,
//! reorder, duplicate, damage, are slow, have lengths of their own, and go down and come back. Asked by `random.rs`.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::random::pick;
use super::{Fault, Scenario};
use crate::NodeId;
use crate::fabric::{Change, Disorder, FabricConfig, LinkConfig, Links, Loss, Shape};

/// Seeds below this were found before there were fabrics, and stay what they were.
pub(super) const FIRST_FABRIC_SEED: u64 = 3_000_000;

/// Links of a way at most, in both directions together.
const LINKS_OF_RTT: u64 = 8;

/// A full queue is not longer than this where a link is slow for ever: programs whose patience ends before a packet and its
/// answer come through are told of an error, and rightly.
const QUEUE_NS_MAX: u64 = 20_000_000;

/// Puts some scenarios on a fabric. Everything comes from a generator of its own.
pub(super) fn perhaps_on_fabric(scenario: &mut Scenario) {
    let rng = &mut SmallRng::seed_from_u64(scenario.seed ^ 0xfab_71c5);
    if scenario.seed < FIRST_FABRIC_SEED || rng.random_ratio(1, 2) {
        return;
    }
    scenario.name = format!("{} over a fabric", scenario.name);
    let shape = pick(
        rng,
        &[
            Shape::SingleSwitch,
            spines(1),
            spines(2),
            spines(4),
            spines(4),
        ],
    );
    let mut fabric = links_of(scenario, shape);
    let place = Place {
        planes: fabric.planes,
        nodes: scenario.hosts.len(),
        shape,
    };
    fabric.changes = place.changes(rng, scenario);
    place.move_faults(rng, &mut scenario.faults);
    let drain_bits_per_s = pick(rng, &[None, Some(10_000_000_000), Some(1_000_000_000)]);
    for host in &mut scenario.hosts {
        // That of a crowd is drawn already.
        host.drain_bits_per_s = host.drain_bits_per_s.or(drain_bits_per_s);
    }
    scenario.fabric = Some(fabric);
}

const fn spines(spines: usize) -> Shape {
    Shape::LeafSpine { leaves: 2, spines }
}

/// Links with the rates, lengths and queues of the scenario's network.
fn links_of(scenario: &Scenario, shape: Shape) -> FabricConfig {
    let network = &scenario.network;
    let port = LinkConfig {
        bits_per_s: network.port_bits_per_s,
        delay_ns: 2 * network.delay_ns / LINKS_OF_RTT,
        queue_bytes: network.queue_bytes,
        mark_bytes: network.mark_bytes,
    };
    let between = LinkConfig {
        bits_per_s: network.link_bits_per_s,
        ..port
    };
    FabricConfig {
        planes: network.planes,
        shape,
        from_host: LinkConfig {
            queue_bytes: u64::MAX,
            mark_bytes: u64::MAX,
            ..between
        },
        to_host: port,
        between,
        changes: Vec::new(),
    }
}

/// What there is to choose from.
#[derive(Clone, Copy)]
struct Place {
    planes: u8,
    nodes: usize,
    shape: Shape,
}

impl Place {
    fn plane(&self, rng: &mut SmallRng) -> u8 {
        rng.random_range(0..self.planes)
    }

    fn node(&self, rng: &mut SmallRng) -> NodeId {
        NodeId(rng.random_range(0..self.nodes))
    }

    /// Some links, often many.
    fn links(&self, rng: &mut SmallRng) -> Links {
        match rng.random_range(0..6) {
            0 | 1 => Links::ToHosts,
            2 => Links::Plane(self.plane(rng)),
            3 => Links::FromHost(self.node(rng), Some(self.plane(rng))),
            4 => Links::ToHost(self.node(rng), None),
            _ => self
                .spine(rng)
                .unwrap_or(Links::ToHost(self.node(rng), Some(self.plane(rng)))),
        }
    }

    fn spine(&self, rng: &mut SmallRng) -> Option<Links> {
        let Shape::LeafSpine { leaves, spines } = self.shape else {
            return None;
        };
        Some(Links::Spine {
            plane: self.plane(rng),
            leaf: rng.random_range(0..leaves),
            spine: rng.random_range(0..spines),
        })
    }

    /// What is wrong with links from the start, with the parts and times of the scenario's network.
    fn changes(&self, rng: &mut SmallRng, scenario: &Scenario) -> Vec<(Links, Change)> {
        let network = &scenario.network;
        let loss = Loss {
            part: network.loss,
            burst_max: pick(rng, &[1, 3, 20, 100]),
        };
        let disorder = Disorder {
            jitter_ns: network.jitter_ns,
            late: network.reorder,
            late_ns: network.reorder_ns,
            duplicate: network.duplicate,
            duplicate_ns: pick(rng, &[50_000, 0, 1_000_000]),
            corrupt: network.corrupt,
        };
        let mut changes = vec![
            (self.links(rng), Change::Lose(loss)),
            (self.links(rng), Change::Disorder(disorder)),
        ];
        if rng.random_ratio(1, 3) {
            let bits_per_s = network.link_bits_per_s / pick(rng, &[2, 10, 50]);
            let bits_per_s = bits_per_s.max(network.queue_bytes * 8_000_000_000 / QUEUE_NS_MAX);
            changes.push((self.links(rng), Change::Rate { bits_per_s }));
        }
        if network.route_spread_ns > 0 {
            for _ in 0..rng.random_range(1..=3) {
                let ns = rng.random_range(0..=network.route_spread_ns);
                changes.push((self.links(rng), Change::Delay { ns }));
            }
        }
        changes
    }

    /// Faults of networks become those of links, and some come to them.
    fn move_faults(&self, rng: &mut SmallRng, faults: &mut Vec<(u64, Fault)>) {
        let mut outages = 0;
        for (at_ns, fault) in std::mem::take(faults) {
            let Fault::Dark {
                from,
                to,
                plane,
                ns,
                ..
            } = fault
            else {
                faults.push((at_ns, fault));
                continue;
            };
            outages += 1;
            let links = match (from, to, plane) {
                (Some(from), None, plane) => Links::FromHost(from, plane),
                (_, Some(to), plane) => Links::ToHost(to, plane),
                (None, None, Some(plane)) => Links::Plane(plane),
                (None, None, None) => self.spine(rng).unwrap_or(Links::All),
            };
            faults.push((at_ns, Fault::Links(links, Change::Down)));
            faults.push((at_ns + ns, Fault::Links(links, Change::Up)));
        }
        if outages > 0 && rng.random() {
            // For a time they are slow, or lose nearly everything.
            let (links, at_ns) = (self.links(rng), 1 << rng.random_range(14..24));
            let ns = 1_000_000 * rng.random_range(1..=40);
            let (bad, good) = if rng.random() {
                let heavy = Loss {
                    part: 0.6,
                    burst_max: 50,
                };
                (Change::Lose(heavy), Change::Lose(Loss::each(0.0)))
            } else {
                let rate = |bits_per_s| Change::Rate { bits_per_s };
                (rate(500_000_000), rate(10_000_000_000))
            };
            faults.push((at_ns, Fault::Links(links, bad)));
            faults.push((at_ns + ns, Fault::Links(links, good)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::random;
    use super::*;

    /// Each kind of fault is drawn again and again, and none for seeds that were found earlier.
    #[test]
    fn fabrics_are_drawn_with_all_faults() {
        assert!((0..2_000).all(|seed| random(FIRST_FABRIC_SEED - 1 - seed).fabric.is_none()));
        let mut found = [0; 10];
        for seed in FIRST_FABRIC_SEED..FIRST_FABRIC_SEED + 2_000 {
            let scenario = random(seed);
            let Some(fabric) = scenario.fabric else {
                continue;
            };
            found[0] += 1;
            found[1] += usize::from(fabric.shape != Shape::SingleSwitch);
            for (_, change) in &fabric.changes {
                match change {
                    Change::Lose(loss) => {
                        found[2] += usize::from(loss.part > 0.0 && loss.burst_max > 1);
                    }
                    Change::Disorder(disorder) => {
                        found[3] += usize::from(disorder.late > 0.0 && disorder.jitter_ns > 0);
                        found[4] += usize::from(disorder.duplicate > 0.0);
                        found[5] += usize::from(disorder.corrupt > 0.0);
                    }
                    Change::Rate { .. } => found[6] += 1,
                    Change::Delay { .. } => found[7] += 1,
                    Change::Down | Change::Up | Change::Narrow { .. } => {}
                }
            }
            let faults = scenario.faults.iter().map(|(_, fault)| fault);
            for fault in faults {
                assert!(!matches!(fault, Fault::Dark { .. } | Fault::Loss(_)));
                found[8] += usize::from(matches!(fault, Fault::Links(_, Change::Down)));
                found[9] += usize::from(matches!(fault, Fault::Pause { .. }));
            }
        }
        assert!(found.iter().all(|count| *count > 50), "{found:?}");
    }
}
