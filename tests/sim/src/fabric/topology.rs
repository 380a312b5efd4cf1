//! Which links there are, and which of them a packet takes: planes of switches, all alike, and each host with one link
//! into and out of each plane. Built once by `fabric/mod.rs`, and asked for each packet at each switch.
//!
//! A switch chooses among equal ways by a hash of the UDP 5-tuple (ECMP), mixed with a number of its own, so that the
//! switches do not all choose alike. It never learns that a link behind it is dead: that is for the transport to find.

use std::ops::Range;

use rand::RngCore;
use rand::rngs::SmallRng;

use super::link::LinkConfig;
use crate::NodeId;

/// How the switches of a plane are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One switch.
    SingleSwitch,
    /// Each host on a leaf, each leaf on all spines.
    LeafSpine {
        /// Leaves; hosts fill one after the other, equally many each.
        leaves: usize,
        /// Spines.
        spines: usize,
    },
}

/// A link in one direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u32);

/// What is at the far end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Host,
    Switch(u32),
}

/// Some links, by where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// Every link.
    All,
    /// Every link of a plane, those of hosts included.
    Plane(u8),
    /// From a host to its switch, on all planes or one.
    FromHost(NodeId, Option<u8>),
    /// From a switch to a host, on all planes or one.
    ToHost(NodeId, Option<u8>),
    /// From switches to all hosts.
    ToHosts,
    /// Between one leaf and one spine of a plane, both directions.
    Spine {
        /// Plane.
        plane: u8,
        /// Leaf.
        leaf: usize,
        /// Spine.
        spine: usize,
    },
}

/// A switch's ways: to each host a run of equal links.
#[derive(Debug)]
struct Switch {
    salt: u64,
    ways: Vec<Range<u32>>,
}

/// See the file's head. Links are numbered plane by plane: out of hosts, into hosts, leaf by leaf up to the spines, spine
/// by spine down to the leaves.
#[derive(Debug)]
pub(super) struct Topology {
    hosts: usize,
    leaves: usize,
    spines: usize,
    planes: usize,
    switches: Vec<Switch>,
    ends: Vec<End>,
}

impl Topology {
    /// The planes of `hosts` hosts, and what each link is.
    pub(super) fn new(
        (shape, planes, hosts): (Shape, u8, usize),
        ports: [LinkConfig; 3],
        rng: &mut SmallRng,
    ) -> (Self, Vec<LinkConfig>) {
        let (leaves, spines) = match shape {
            Shape::SingleSwitch => (1, 0),
            Shape::LeafSpine { leaves, spines } => (leaves.max(1), spines.max(1)),
        };
        let mut topology = Self {
            hosts,
            leaves,
            spines,
            planes: usize::from(planes),
            switches: Vec::new(),
            ends: Vec::new(),
        };
        let [from_host, to_host, between] = ports;
        let mut configs = Vec::new();
        for plane in 0..topology.planes {
            topology.add_plane(plane, rng);
            configs.extend(std::iter::repeat_n(from_host, hosts));
            configs.extend(std::iter::repeat_n(to_host, hosts));
            configs.extend(std::iter::repeat_n(between, 2 * leaves * spines));
        }
        (topology, configs)
    }

    fn add_plane(&mut self, plane: usize, rng: &mut SmallRng) {
        let first_switch = (plane * (self.leaves + self.spines)) as u32;
        let leaf_of = |host| first_switch + self.leaf(host) as u32;
        let mut ends: Vec<End> = (0..self.hosts)
            .map(|host| End::Switch(leaf_of(host)))
            .collect();
        ends.extend(std::iter::repeat_n(End::Host, self.hosts));
        let spine_of = |spine: usize| first_switch + (self.leaves + spine) as u32;
        for _ in 0..self.leaves {
            ends.extend((0..self.spines).map(|spine| End::Switch(spine_of(spine))));
        }
        for _ in 0..self.spines {
            ends.extend((0..self.leaves).map(|leaf| End::Switch(first_switch + leaf as u32)));
        }
        self.ends.extend(ends);
        for leaf in 0..self.leaves {
            let way = |host| {
                if self.leaf(host) == leaf {
                    one(self.host_port(plane, host))
                } else {
                    let first = self.up(plane, leaf, 0).0;
                    first..first + self.spines as u32
                }
            };
            let ways = (0..self.hosts).map(way).collect();
            self.switches.push(Switch {
                salt: rng.next_u64(),
                ways,
            });
        }
        for spine in 0..self.spines {
            let way = |host| one(self.down(plane, spine, self.leaf(host)));
            let ways = (0..self.hosts).map(way).collect();
            self.switches.push(Switch {
                salt: rng.next_u64(),
                ways,
            });
        }
    }

    fn leaf(&self, host: usize) -> usize {
        host / self.hosts.div_ceil(self.leaves)
    }

    fn link(&self, plane: usize, at: usize) -> LinkId {
        let of_plane = 2 * self.hosts + 2 * self.leaves * self.spines;
        LinkId((plane * of_plane + at) as u32)
    }

    /// Out of a host.
    pub(super) fn out_of_host(&self, plane: usize, host: usize) -> LinkId {
        self.link(plane, host)
    }

    /// Into a host.
    pub(super) fn host_port(&self, plane: usize, host: usize) -> LinkId {
        self.link(plane, self.hosts + host)
    }

    fn up(&self, plane: usize, leaf: usize, spine: usize) -> LinkId {
        self.link(plane, 2 * self.hosts + leaf * self.spines + spine)
    }

    fn down(&self, plane: usize, spine: usize, leaf: usize) -> LinkId {
        let ups = self.leaves * self.spines;
        self.link(plane, 2 * self.hosts + ups + spine * self.leaves + leaf)
    }

    /// What is at the far end of a link.
    pub(super) fn end(&self, link: LinkId) -> End {
        self.ends[link.0 as usize]
    }

    /// The link that a switch sends a packet out of.
    pub(super) fn choose(&self, switch: u32, to: NodeId, flow: u64) -> LinkId {
        let switch = &self.switches[switch as usize];
        let way = &switch.ways[to.0];
        let count = u64::from(way.end - way.start);
        if count == 1 {
            return LinkId(way.start);
        }
        LinkId(way.start + (mix(flow ^ switch.salt) % count) as u32)
    }

    /// The links that are meant; those that do not exist are left out.
    pub(super) fn find(&self, links: Links) -> Vec<LinkId> {
        let planes = |only: Option<u8>| {
            (0..self.planes)
                .filter(move |plane| only.is_none_or(|only| usize::from(only) == *plane))
        };
        match links {
            Links::All => (0..self.ends.len() as u32).map(LinkId).collect(),
            Links::Plane(plane) => planes(Some(plane))
                .flat_map(|plane| {
                    let first = self.link(plane, 0).0;
                    (first..self.link(plane + 1, 0).0).map(LinkId)
                })
                .collect(),
            Links::FromHost(host, plane) => planes(plane)
                .filter(|_| host.0 < self.hosts)
                .map(|plane| self.out_of_host(plane, host.0))
                .collect(),
            Links::ToHost(host, plane) => planes(plane)
                .filter(|_| host.0 < self.hosts)
                .map(|plane| self.host_port(plane, host.0))
                .collect(),
            Links::ToHosts => planes(None)
                .flat_map(|plane| (0..self.hosts).map(move |host| self.host_port(plane, host)))
                .collect(),
            Links::Spine { plane, leaf, spine } => planes(Some(plane))
                .filter(|_| leaf < self.leaves && spine < self.spines)
                .flat_map(|plane| [self.up(plane, leaf, spine), self.down(plane, spine, leaf)])
                .collect(),
        }
    }
}

fn one(link: LinkId) -> Range<u32> {
    link.0..link.0 + 1
}

/// Spreads the bits of a number over all bits (the finalizer of MurmurHash3).
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ value >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ value >> 33
}
