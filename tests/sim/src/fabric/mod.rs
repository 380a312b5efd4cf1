//! A fabric of switches: what happens to a packet on its way from host to host, link by link. The world carries packets
//! over a fabric instead of over `network.rs` where a scenario has one; begin with [`Fabric::send`].
//!
//! `link.rs` is one link with its queue, `loss.rs` how it loses, `disorder.rs` what else it does to packets, `topology.rs` which links there are and which a packet
//! takes. A packet costs one event a link: when it reaches the link's far end. Everything random comes from the generator
//! that the fabric is built with. Failures are silent, and no switch routes around them.

mod disorder;
mod link;
mod loss;
mod topology;

use metaroce_proto::types::Time;
use rand::rngs::SmallRng;

pub use disorder::Disorder;
pub use link::{Accepted, Link, LinkConfig, LinkCounters};
pub use loss::Loss;
pub use topology::{LinkId, Links, Shape};

use crate::NodeId;
use crate::network::{Datagram, LOWER_BYTES};
use crate::trace::Fate;
use topology::{End, Topology, mix};

/// What a fabric is.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// Planes, all alike; a host has an address and a link on each.
    pub planes: u8,
    /// The switches of a plane.
    pub shape: Shape,
    /// Links out of hosts.
    pub from_host: LinkConfig,
    /// Links into hosts.
    pub to_host: LinkConfig,
    /// Links between switches.
    pub between: LinkConfig,
    /// What is different from the start.
    pub changes: Vec<(Links, Change)>,
}

impl FabricConfig {
    /// Links of 100 Gb/s, and so long that a packet of no length goes from one end of the fabric to the other and back
    /// in `rtt_ns`.
    #[must_use]
    pub fn new(planes: u8, shape: Shape, rtt_ns: u64) -> Self {
        let links = match shape {
            Shape::SingleSwitch => 2,
            Shape::LeafSpine { .. } => 4,
        };
        let delay_ns = rtt_ns / (2 * links);
        Self {
            planes,
            shape,
            from_host: LinkConfig::host_port(delay_ns),
            to_host: LinkConfig::switch_port(delay_ns),
            between: LinkConfig::switch_port(delay_ns),
            changes: Vec::new(),
        }
    }
}

/// Something that happens to links.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change {
    /// They deliver nothing any more, and what is on them is lost.
    Down,
    /// They do again.
    Up,
    /// They have another rate.
    Rate {
        /// Rate.
        bits_per_s: u64,
    },
    /// They are so long.
    Delay {
        /// From the last bit sent to the last bit received.
        ns: u64,
    },
    /// They lose packets.
    Lose(Loss),
    /// They swallow larger UDP payloads.
    Narrow {
        /// The largest that passes.
        largest_bytes: u64,
    },
    /// They deliver packets late, in another order, twice or damaged.
    Disorder(Disorder),
}

/// Where a packet is: on a link.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    link: LinkId,
    entered: Time,
    flow: u64,
    /// It is here for the second time.
    copy: bool,
}

impl Hop {
    /// Which link.
    #[must_use]
    pub fn link(&self) -> LinkId {
        self.link
    }
}

/// What comes next for a packet at the end of a link.
#[derive(Debug)]
pub enum Next {
    /// It is on another link, and reaches its end then.
    Hop(Time, Hop),
    /// It is at its host.
    Host,
}

/// See the file's head.
#[derive(Debug)]
pub struct Fabric {
    topology: Topology,
    links: Vec<Link>,
    planes: u8,
    rng: SmallRng,
}

impl Fabric {
    /// The fabric of `hosts` hosts.
    #[must_use]
    pub fn new(config: &FabricConfig, hosts: usize, mut rng: SmallRng) -> Self {
        let ports = [config.from_host, config.to_host, config.between];
        let (topology, configs) =
            Topology::new((config.shape, config.planes, hosts), ports, &mut rng);
        let mut fabric = Self {
            topology,
            links: configs.into_iter().map(Link::new).collect(),
            planes: config.planes,
            rng,
        };
        for (links, change) in &config.changes {
            fabric.change(Time::ZERO, *links, *change);
        }
        fabric
    }

    /// How many links there are.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Something happens to links. Returns how many there are.
    pub fn change(&mut self, now: Time, links: Links, change: Change) -> usize {
        let found = self.topology.find(links);
        for id in &found {
            let link = &mut self.links[id.0 as usize];
            match change {
                Change::Down => link.set_down(now, true),
                Change::Up => link.set_down(now, false),
                Change::Rate { bits_per_s } => link.set_rate(bits_per_s),
                Change::Delay { ns } => link.set_delay(ns),
                Change::Lose(loss) => link.set_loss(loss),
                Change::Narrow { largest_bytes } => link.set_largest(largest_bytes + LOWER_BYTES),
                Change::Disorder(disorder) => link.set_disorder(disorder),
            }
        }
        found.len()
    }

    /// Bytes that a host has handed to the link of its planes that has least of them, and that have not left: what waits for
    /// one plane is in the buffers of that plane's sockets, and does not keep the host from sending over the others.
    pub fn backlog_bytes(&mut self, node: NodeId, now: Time) -> u64 {
        let planes = 0..usize::from(self.planes);
        let queued = planes.map(|plane| {
            let link = self.topology.out_of_host(plane, node.0);
            self.links[link.0 as usize].queued_bytes(now)
        });
        queued.min().unwrap_or(0)
    }

    /// Rate of a host's link on its first plane.
    #[must_use]
    pub fn host_bits_per_s(&self, node: NodeId) -> u64 {
        let link = self.topology.out_of_host(0, node.0);
        self.links[link.0 as usize].bits_per_s()
    }

    /// A host sends. Its packet is on the link to its switch, until the time that is returned.
    pub fn send(&mut self, now: Time, datagram: &mut Datagram) -> Result<(Time, Hop), Fate> {
        let link = self
            .topology
            .out_of_host(usize::from(datagram.plane), datagram.from.0);
        self.enter(now, link, flow(datagram), datagram)
    }

    /// A packet is about to reach the end of a link: when it does so once more, if it does.
    pub fn duplicate(&mut self, now: Time, hop: Hop) -> Option<(Time, Hop)> {
        if hop.copy {
            return None;
        }
        let again_ns = self.links[hop.link.0 as usize].again(&mut self.rng)?;
        Some((now + again_ns, Hop { copy: true, ..hop }))
    }

    /// A packet reaches the end of a link.
    pub fn arrive(&mut self, now: Time, hop: Hop, datagram: &mut Datagram) -> Result<Next, Fate> {
        self.links[hop.link.0 as usize].deliver(hop.entered, &mut self.rng)?;
        match self.topology.end(hop.link) {
            End::Host => Ok(Next::Host),
            End::Switch(switch) => {
                let link = self.topology.choose(switch, datagram.to, hop.flow);
                let (at, hop) = self.enter(now, link, hop.flow, datagram)?;
                Ok(Next::Hop(at, hop))
            }
        }
    }

    fn enter(
        &mut self,
        now: Time,
        link: LinkId,
        flow: u64,
        datagram: &mut Datagram,
    ) -> Result<(Time, Hop), Fate> {
        let bytes = datagram.length() + LOWER_BYTES;
        let link_now = &mut self.links[link.0 as usize];
        let accepted = link_now.offer(now, bytes as u32)?;
        let at = link_now.disorder(accepted.at, &mut self.rng);
        datagram.ce |= accepted.mark;
        let hop = Hop {
            link,
            entered: now,
            flow,
            copy: false,
        };
        Ok((at, hop))
    }

    /// What some links did so far, together; of their queues the longest.
    pub fn counters(&mut self, now: Time, links: Links) -> LinkCounters {
        let mut sum = LinkCounters::default();
        for id in self.topology.find(links) {
            let one = self.links[id.0 as usize].counters(now);
            sum.packets += one.packets;
            sum.bytes += one.bytes;
            sum.overflows += one.overflows;
            sum.marks += one.marks;
            sum.lost += one.lost;
            sum.too_large += one.too_large;
            sum.damaged += one.damaged;
            sum.duplicated += one.duplicated;
            sum.dark += one.dark;
            sum.queued_bytes += one.queued_bytes;
            sum.longest_queue_bytes = sum.longest_queue_bytes.max(one.longest_queue_bytes);
        }
        sum
    }
}

/// Hash of a packet's UDP 5-tuple.
fn flow(datagram: &Datagram) -> u64 {
    let source = u64::from(datagram.source().port());
    let destination = u64::from(datagram.destination.port());
    // Hosts and plane stand for the addresses.
    let hosts = (datagram.from.0 as u64) << 24 | (datagram.to.0 as u64) << 8;
    mix(mix(hosts | u64::from(datagram.plane)) ^ (source << 16 | destination))
}

#[cfg(test)]
mod tests;
