//! The network interfaces of this network namespace.

use super::gid::{is_link_local, sort_for_table};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// MTU where nothing says another: that of Ethernet.
const DEFAULT_MTU_BYTES: u32 = 1500;
/// Speed where the link does not say (loopback, tunnels, some virtual NICs): what a veth pair claims for itself.
const DEFAULT_SPEED_MBPS: u32 = 10_000;
/// `ARPHRD_ETHER`, in `/sys/class/net/*/type`.
const ARPHRD_ETHER: u32 = 1;

/// A network interface and its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name: `eth0`.
    pub name: String,
    /// Index.
    pub index: u32,
    /// Administratively up.
    pub up: bool,
    /// Has a carrier.
    pub running: bool,
    /// Is the loopback interface.
    pub loopback: bool,
    /// Is of the Ethernet kind, as far as is known.
    pub ethernet: bool,
    /// Hardware address; zero where there is none.
    pub mac: [u8; 6],
    /// MTU, IP header included.
    pub mtu_bytes: u32,
    /// Link speed.
    pub speed_mbps: u32,
    /// IP addresses in the order of the system.
    pub addresses: Vec<IpAddr>,
}

impl Interface {
    /// Whether the interface can carry a device by default: up, with a carrier, of the Ethernet kind, and with an
    /// address that other hosts can reach (the host's end of a container's veth has only a link-local one).
    pub fn usable(&self) -> bool {
        let reachable = self.addresses.iter().any(|address| !is_link_local(address));
        self.up && self.running && self.ethernet && reachable
    }

    /// A stable GUID that is never zero: the MAC around 16 bits of the interface's name, because VLANs and bridges
    /// share the MAC of what lies below. Without a MAC, it is all from the name.
    pub fn guid(&self) -> u64 {
        let hash = fnv1a(self.name.as_bytes());
        if self.mac == [0; 6] {
            // The local bit of a MAC is the second of its first byte: set, as nobody assigned this number.
            return (hash & 0x00ff_ffff_ffff_ffff) | 0x0200_0000_0000_0000;
        }
        let m = self.mac;
        let [.., h1, h0] = (hash ^ (hash >> 16) ^ (hash >> 32)).to_be_bytes();
        u64::from_be_bytes([m[0] ^ 2, m[1], m[2], h1, h0, m[3], m[4], m[5]])
    }
}

/// FNV-1a, 64 bits: a hash whose values stay the same for ever, which the standard library does not promise of its own.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The interfaces of this network namespace, by index.
///
/// # Errors
/// The system refuses to list them.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut by_name: BTreeMap<String, Interface> = BTreeMap::new();
    for entry in getifaddrs().map_err(io::Error::from)? {
        // A label ("eth0:1") names an address, not an interface.
        let name = entry
            .interface_name
            .split(':')
            .next()
            .unwrap_or_default()
            .to_owned();
        let interface = by_name.entry(name.clone()).or_insert_with(|| Interface {
            name,
            ..Interface::default()
        });
        interface.up = entry.flags.contains(InterfaceFlags::IFF_UP);
        // Not IFF_RUNNING, which lags behind by up to a second after a link came up or went down.
        interface.running = entry.flags.contains(InterfaceFlags::IFF_LOWER_UP);
        interface.loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let Some(address) = entry.address else {
            continue;
        };
        if let Some(link) = address.as_link_addr() {
            interface.index = u32::try_from(link.ifindex()).unwrap_or(0);
            interface.mac = link.addr().unwrap_or_default();
        } else if let Some(v4) = address.as_sockaddr_in() {
            interface.addresses.push(IpAddr::V4(v4.ip()));
        } else if let Some(v6) = address.as_sockaddr_in6() {
            interface.addresses.push(IpAddr::V6(v6.ip()));
        }
    }
    let mut list: Vec<Interface> = by_name.into_values().collect();
    list.iter_mut().for_each(add_link_properties);
    list.sort_by_key(|interface| interface.index);
    Ok(list)
}

/// How the planes of a device are at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Present {
    /// Of each plane: whether its interface is up and has a carrier. One that does not exist (any more) is down.
    pub(crate) active: Vec<bool>,
    /// The addresses with their planes, in the order of a GID table.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
}

/// How the interfaces `names` are now.
///
/// # Errors
/// The system refuses to list the interfaces.
pub(crate) fn present_state(names: &[String]) -> io::Result<Present> {
    let mut active = vec![false; names.len()];
    let mut addresses = Vec::new();
    for entry in getifaddrs().map_err(io::Error::from)? {
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        let Some(plane) = names.iter().position(|one| one == name) else {
            continue;
        };
        active[plane] = entry
            .flags
            .contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_LOWER_UP);
        let plane = plane as u8;
        let Some(address) = entry.address else {
            continue;
        };
        if let Some(v4) = address.as_sockaddr_in() {
            addresses.push((IpAddr::V4(v4.ip()), plane));
        } else if let Some(v6) = address.as_sockaddr_in6() {
            addresses.push((IpAddr::V6(v6.ip()), plane));
        }
    }
    addresses.sort_by_key(|(_, plane)| *plane);
    sort_for_table(&mut addresses);
    Ok(Present { active, addresses })
}

/// Fills MTU, speed and kind. `/sys/class/net` shows the network namespace of whoever mounted it, so it is believed only
/// if it has the same index for the name; `/proc/sys/net` is always of our own.
fn add_link_properties(interface: &mut Interface) {
    let sysfs = PathBuf::from("/sys/class/net").join(&interface.name);
    let number = |file: &str| -> Option<u32> {
        fs::read_to_string(sysfs.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let ours = number("ifindex") == Some(interface.index);
    let of_sysfs = |file: &str| if ours { number(file) } else { None };
    let of_proc = || -> Option<u32> {
        let path = PathBuf::from("/proc/sys/net/ipv6/conf")
            .join(&interface.name)
            .join("mtu");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let kind = of_sysfs("type");
    let mtu = of_sysfs("mtu").or_else(of_proc);
    let speed = of_sysfs("speed").filter(|mbps| *mbps > 0);
    interface.ethernet = kind.is_none_or(|kind| kind == ARPHRD_ETHER);
    interface.mtu_bytes = mtu.unwrap_or(DEFAULT_MTU_BYTES);
    interface.speed_mbps = speed.unwrap_or(DEFAULT_SPEED_MBPS);
}
