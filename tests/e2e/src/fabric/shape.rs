//! What a fabric looks like, as its maker asks for it: topology, number of hosts.

use std::fmt;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::host::{Host, MAX_HOSTS};

/// Planes are few because each is a pair of devices that every packet of a flow may hash to.
pub const MAX_PLANES: u8 = 8;

/// IPv6 asks for no less.
const MIN_MTU_BYTES: u32 = 1280;
/// The largest that a veth takes.
const MAX_MTU_BYTES: u32 = 65_535;

/// How the hosts are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// One link between two hosts: the shortest path, for measuring.
    Direct,
    /// A leaf at each host, and this many planes between the leaves, chosen by ECMP.
    Planes(u8),
    /// This many NICs in each host, each on a switch of its own: a plane per NIC, no ECMP. One NIC: hosts
    /// around one switch.
    Nics(u8),
}

impl Topology {
    /// This topology with `hosts` hosts instead of two.
    pub fn with_hosts(self, hosts: u8) -> Shape {
        Shape {
            topology: self,
            hosts,
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => formatter.write_str("direct link"),
            Self::Planes(planes) => write!(formatter, "{planes} planes"),
            Self::Nics(1) => formatter.write_str("one switch"),
            Self::Nics(nics) => write!(formatter, "{nics} NICs a host, a switch each"),
        }
    }
}

/// A topology and its number of hosts. A plain [`Topology`] is one with two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How the hosts are joined.
    pub topology: Topology,
    /// How many hosts: a, b, c …
    pub hosts: u8,
}

impl From<Topology> for Shape {
    fn from(topology: Topology) -> Self {
        topology.with_hosts(2)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} hosts, {}", self.hosts, self.topology)
    }
}

impl Shape {
    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = Host> + Clone + use<> {
        Host::first(self.hosts)
    }

    /// How many planes: independent ways between any two hosts.
    pub fn planes(&self) -> u8 {
        match self.topology {
            Topology::Direct => 1,
            Topology::Planes(planes) | Topology::Nics(planes) => planes,
        }
    }

    /// How many NICs a host has.
    pub fn nics(&self) -> u8 {
        match self.topology {
            Topology::Direct | Topology::Planes(_) => 1,
            Topology::Nics(nics) => nics,
        }
    }

    /// Whether cables end in switches, so that each has a far end of its own: what a host sends and what goes to
    /// another are then different things.
    pub(super) fn has_switches(&self) -> bool {
        match self.topology {
            Topology::Direct => false,
            Topology::Planes(_) => self.hosts > 2,
            Topology::Nics(_) => true,
        }
    }

    /// Refuses a shape that cannot be made.
    ///
    /// # Errors
    /// The number of planes, NICs or hosts, or the MTU, is out of range.
    pub(super) fn check(&self, mtu_bytes: u32) -> Result<()> {
        match self.topology {
            Topology::Direct if self.hosts != 2 => bail!(
                "a direct link joins 2 hosts, not {}: without --direct they are put around a switch, \
                 with --planes behind leaves",
                self.hosts
            ),
            Topology::Planes(count) | Topology::Nics(count)
                if !(1..=MAX_PLANES).contains(&count) =>
            {
                bail!("{count} planes cannot be made: 1 to {MAX_PLANES}")
            }
            _ => {}
        }
        if !(2..=MAX_HOSTS).contains(&self.hosts) {
            bail!("{} hosts cannot be made: 2 to {MAX_HOSTS}", self.hosts);
        }
        if !(MIN_MTU_BYTES..=MAX_MTU_BYTES).contains(&mtu_bytes) {
            bail!("an MTU of {mtu_bytes} bytes cannot be had: {MIN_MTU_BYTES} to {MAX_MTU_BYTES}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_shapes_are_refused() {
        assert!(Shape::from(Topology::Planes(4)).check(9000).is_ok());
        assert!(Topology::Nics(1).with_hosts(16).check(1500).is_ok());
        for (shape, mtu_bytes) in [
            (Topology::Planes(0).into(), 9000),
            (Topology::Planes(9).into(), 9000),
            (Topology::Nics(0).into(), 9000),
            (Topology::Direct.with_hosts(3), 9000),
            (Topology::Planes(2).with_hosts(1), 9000),
            (Topology::Planes(2).with_hosts(17), 9000),
            (Topology::Direct.into(), 576),
        ] {
            let shape: Shape = shape;
            assert!(shape.check(mtu_bytes).is_err(), "{shape} {mtu_bytes}");
        }
    }
}
