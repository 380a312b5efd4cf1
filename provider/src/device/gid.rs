//! GIDs: an IPv6 address, or an IPv4 address mapped into one, as RoCE v2 has them.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A GID in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The GID of these 16 bytes, network byte order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its 16 bytes, network byte order.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The address: IPv4 where the GID is an IPv4-mapped one.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// The form of sysfs: eight groups of four hexadecimal digits, none left out.
    pub fn to_sysfs(self) -> String {
        let groups: Vec<String> = Ipv6Addr::from(self.0)
            .segments()
            .iter()
            .map(|s| format!("{s:04x}"))
            .collect();
        groups.join(":")
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl FromStr for Gid {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let parsed = text.parse::<Ipv6Addr>();
        parsed.map(|v6| Self(v6.octets())).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("\"{text}\" is not a GID"),
            )
        })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// Whether the address works only on its own link.
pub(super) fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if (v6.segments()[0] & 0xffc0) == 0xfe80)
}

/// Puts addresses into the order of a GID table: IPv4, global IPv6, link-local; each kind in the order in which the
/// system lists it (the primary address first), plane by plane, and none twice.
pub(super) fn sort_for_table(addresses: &mut Vec<(IpAddr, u8)>) {
    let mut seen = std::collections::HashSet::new();
    addresses.retain(|(address, _)| seen.insert(*address));
    addresses.sort_by_key(|(address, _)| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) if is_link_local(address) => 2,
        IpAddr::V6(_) => 1,
    });
}
