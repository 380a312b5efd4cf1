//! Socket addresses between Rust's form and the kernel's, and the interface of a link-local address.
//! Used by every file that makes a system call with an address.

use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Storage for an IPv4 or IPv6 socket address, as the kernel reads and writes it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union RawAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    /// Bytes that the kernel may write.
    pub(crate) const CAPACITY: libc::socklen_t = size_of::<RawAddress>() as libc::socklen_t;

    /// An empty address (family 0).
    pub(crate) fn empty() -> RawAddress {
        // SAFETY: all members are plain integers and arrays of integers, for which zero is valid.
        unsafe { zeroed() }
    }

    /// The kernel's form of `address` and its length in bytes.
    pub(crate) fn new(address: &SocketAddr) -> (RawAddress, libc::socklen_t) {
        let mut raw = RawAddress::empty();
        match address {
            SocketAddr::V4(v4) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                (raw, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(v6) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                (raw, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    /// Rust's form of what the kernel wrote; `None` for a family that is neither IPv4 nor IPv6.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        // SAFETY: `family` is the first field of every member and always initialised; the other member is read
        // only when the family names it, and all of its bytes are initialised (`empty` zeroes the whole union).
        unsafe {
            match i32::from(self.family) {
                libc::AF_INET => Some(SocketAddr::V4(SocketAddrV4::new(
                    Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes()),
                    u16::from_be(self.v4.sin_port),
                ))),
                libc::AF_INET6 => Some(SocketAddr::V6(SocketAddrV6::new(
                    Ipv6Addr::from(self.v6.sin6_addr.s6_addr),
                    u16::from_be(self.v6.sin6_port),
                    0,
                    self.v6.sin6_scope_id,
                ))),
                _ => None,
            }
        }
    }
}

/// The address to bind: a link-local IPv6 address gets the interface that owns it as its scope, which `bind` requires.
pub(crate) fn local_socket_address(ip: IpAddr, port: u16) -> SocketAddr {
    match ip.to_canonical() {
        IpAddr::V4(v4) => SocketAddr::V4(SocketAddrV4::new(v4, port)),
        IpAddr::V6(v6) => {
            let scope = if v6.is_unicast_link_local() {
                interface_of(&v6)
            } else {
                0
            };
            SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope))
        }
    }
}

/// Index of the interface that owns a link-local address; 0 (and a failing `bind`) where none does.
fn interface_of(address: &Ipv6Addr) -> u32 {
    let Ok(table) = std::fs::read_to_string("/proc/net/if_inet6") else {
        return 0;
    };
    parse_if_inet6(&table, address)
}

fn parse_if_inet6(table: &str, address: &Ipv6Addr) -> u32 {
    let wanted: String = address
        .octets()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let address = fields.next()?;
            let index = u32::from_str_radix(fields.next()?, 16).ok()?;
            (address == wanted).then_some(index)
        })
        .next()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("127.0.0.1:24791")]
    #[case("[::1]:65535")]
    #[case("[fe80::1%3]:1")]
    fn round_trip(#[case] text: &str) {
        let address: SocketAddr = text.parse().unwrap();
        let (raw, _) = RawAddress::new(&address);
        assert_eq!(raw.get(), Some(address));
    }

    #[test]
    fn empty_address_is_none() {
        assert_eq!(RawAddress::empty().get(), None);
    }

    #[test]
    fn scope_of_a_link_local_address() {
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe80000000000000021122fffe334455 1f 40 20 80     eth0\n";
        assert_eq!(
            parse_if_inet6(table, &"fe80::211:22ff:fe33:4455".parse().unwrap()),
            31
        );
        assert_eq!(parse_if_inet6(table, &"fe80::1".parse().unwrap()), 0);
    }
}
