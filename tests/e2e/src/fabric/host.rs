//! The hosts of a fabric: their letters and addresses.
//!
//! Host number k (a is 1) has 10.77.0.k and fd77::k on its first NIC in every topology; on NIC n (from 0)
//! of a fabric with several NICs it has 10.77.n.k and fd77:0:0:n::k. Each address belongs to one interface.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The most hosts that a fabric can have; each is a namespace, or two behind leaves.
pub const MAX_HOSTS: u8 = 16;

/// A host of a fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(u8);

impl Host {
    /// The first host, by habit the server's.
    pub const A: Self = Self(0);

    /// The second host, by habit the client's.
    pub const B: Self = Self(1);

    /// The two hosts that every fabric has.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Host number `index`, from 0; none beyond [`MAX_HOSTS`].
    pub fn nth(index: usize) -> Option<Self> {
        let index = u8::try_from(index).ok()?;
        (index < MAX_HOSTS).then_some(Self(index))
    }

    /// The first `count` hosts: a, b, c …
    pub fn first(count: u8) -> impl Iterator<Item = Self> + Clone {
        (0..count.min(MAX_HOSTS)).map(Self)
    }

    /// Its place among the hosts, from 0.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The last group of its addresses: 1 for a.
    pub(super) fn number(self) -> u8 {
        self.0 + 1
    }

    /// IPv4 address of its first NIC, in every topology.
    pub fn ipv4(self) -> Ipv4Addr {
        self.ipv4_on(0)
    }

    /// IPv6 address of its first NIC, in every topology (if the kernel has IPv6).
    pub fn ipv6(self) -> Ipv6Addr {
        self.ipv6_on(0)
    }

    /// IPv4 address of its NIC number `nic`, from 0 as in `eth0`.
    pub fn ipv4_on(self, nic: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, nic, self.number())
    }

    /// IPv6 address of its NIC number `nic`, from 0 as in `eth0`.
    pub fn ipv6_on(self, nic: u8) -> Ipv6Addr {
        let (nic, number) = (u16::from(nic), u16::from(self.number()));
        Ipv6Addr::new(0xfd77, 0, 0, nic, 0, 0, 0, number)
    }

    /// The peer in a pair: b for a, a for every other host.
    pub fn other(self) -> Self {
        if self == Self::A { Self::B } else { Self::A }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", char::from(b'a' + self.0))
    }
}

impl std::str::FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let last = char::from(b'a' + MAX_HOSTS - 1);
        match text.as_bytes() {
            [letter] if (b'a'..=last as u8).contains(letter) => Ok(Self(letter - b'a')),
            _ => Err(format!("`{text}` is no host: a letter from a to {last}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_and_addresses() {
        assert_eq!("c".parse::<Host>().unwrap().ipv4().to_string(), "10.77.0.3");
        let last = Host::nth(15).unwrap();
        assert_eq!(last.to_string(), "p");
        assert_eq!(last.ipv6_on(3).to_string(), "fd77:0:0:3::10");
        assert_eq!(last.other(), Host::A);
        for bad in ["", "A", "q", "ab", "ä"] {
            assert!(bad.parse::<Host>().is_err(), "{bad}");
        }
        assert_eq!(Host::nth(16), None);
    }
}
