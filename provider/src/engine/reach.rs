//! Whether a peer can be reached, as far as this host's own kernel knows: asked when a queue pair goes to RTR, and remembered of
//! what it said about packets, so that a queue pair that fails for want of an answer can say why.
//!
//! Called by `mod.rs` (RTR) and `core.rs` (errors of packets). Nothing here waits for the network.

use metaroce_proto::types::Time;
use metaroce_udp::errno_of;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};

/// Destinations whose last trouble is remembered: those that fail at the same time are few, and each costs a log line at most.
const REMEMBERED: usize = 16;

/// What was said so long ago explains nothing any more.
const TROUBLE_COUNTS_NS: u64 = 30_000_000_000;

/// Looks up the route from one address of this host to a UDP port of another host's, by which routing rules may choose;
/// `scope` is the interface of link-local addresses.
///
/// # Errors
/// What the kernel answers: ENETUNREACH without a route, EINVAL for a link-local address that is not on the source's link, …
/// No error where it cannot be asked, or where the core refuses the destination for what it is.
pub(super) fn check_route(source: IpAddr, dest: IpAddr, port: u16, scope: u32) -> io::Result<()> {
    let is_broadcast = dest == IpAddr::V4(Ipv4Addr::BROADCAST);
    if source.is_ipv4() != dest.is_ipv4() || dest.is_multicast() || is_broadcast {
        return Ok(());
    }
    let Ok(socket) = UdpSocket::bind(scoped(source, 0, scope)) else {
        // The address is gone at the moment, or no more files may be open: that says nothing of the destination.
        return Ok(());
    };
    // A global source says nothing of the link that a link-local destination is on.
    let scope = if is_link_local(source) { scope } else { 0 };
    socket.connect(scoped(dest, port, scope))
}

fn scoped(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if is_link_local(ip) => SocketAddrV6::new(v6, port, 0, scope).into(),
        _ => SocketAddr::new(ip, port),
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// What a refused route to `dest` means to the person who reads of it.
pub(super) fn explain_refusal(error: &io::Error, dest: IpAddr) -> &'static str {
    match errno_of(error) {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            "this host has no route there: see `ip route get`, or choose a GID of a network that both hosts are on"
        }
        Some(libc::EINVAL) if !is_link_local(dest) => {
            "a route of type blackhole swallows what goes there: see `ip route get`"
        }
        Some(libc::EINVAL) => {
            "a link-local address reaches its own link only, and only from a link-local one: choose routable GIDs"
        }
        Some(libc::EACCES) => "that is a broadcast address, or a route forbids it",
        _ => "the kernel refuses that destination",
    }
}

/// The last trouble on the way to some destinations.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    /// The oldest first.
    last: Vec<Trouble>,
}

#[derive(Debug)]
struct Trouble {
    dest: IpAddr,
    errno: i32,
    at: Time,
}

impl Troubles {
    /// A packet to `dest` was not sent, or did not arrive, because of `errno`.
    pub(super) fn note(&mut self, now: Time, dest: IpAddr, errno: i32) {
        self.last.retain(|trouble| trouble.dest != dest);
        if self.last.len() >= REMEMBERED {
            self.last.remove(0);
        }
        self.last.push(Trouble {
            dest,
            errno,
            at: now,
        });
    }

    /// What was said last about the way to `dest`, in the system's words.
    pub(super) fn of(&self, now: Time, dest: IpAddr) -> Option<String> {
        let is_it = |trouble: &&Trouble| {
            trouble.dest == dest && now.since_ns(trouble.at) < TROUBLE_COUNTS_NS
        };
        let trouble = self.last.iter().find(is_it)?;
        Some(io::Error::from_raw_os_error(trouble.errno).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// What users complain about: "link-local picked and then unreachable".
    #[rstest]
    #[case("127.0.0.1", "127.0.0.2", None)]
    #[case("127.0.0.1", "127.255.255.255", Some(libc::EACCES))]
    #[case("::1", "::1", None)]
    #[case("::1", "fe80::1", Some(libc::EINVAL))]
    // Not an address of this host: nothing is known.
    #[case("192.0.2.1", "192.0.2.2", None)]
    fn routes_are_asked_of_the_kernel(
        #[case] source: &str,
        #[case] dest: &str,
        #[case] expected: Option<i32>,
    ) {
        let result = check_route(source.parse().unwrap(), dest.parse().unwrap(), 24791, 1);
        assert_eq!(result.err().and_then(|e| e.raw_os_error()), expected);
    }

    #[rstest]
    #[case(libc::EINVAL, "fe80::1", "link-local")]
    #[case(libc::EINVAL, "198.51.100.1", "blackhole")]
    #[case(libc::EINVAL, "2001:db8::1", "blackhole")]
    #[case(libc::EHOSTUNREACH, "198.51.100.1", "no route")]
    #[case(libc::EACCES, "198.51.100.1", "forbids")]
    fn a_refusal_is_explained_by_its_cause(
        #[case] errno: i32,
        #[case] dest: &str,
        #[case] said: &str,
    ) {
        let error = io::Error::from_raw_os_error(errno);
        assert!(explain_refusal(&error, dest.parse().unwrap()).contains(said));
    }

    #[test]
    fn the_last_trouble_of_each_destination_is_known_and_old_ones_make_room() {
        let ip = |last: usize| IpAddr::from([10, 0, 0, last as u8]);
        let mut troubles = Troubles::default();
        for index in 0..REMEMBERED {
            troubles.note(Time::from_ns(index as u64), ip(index), libc::EHOSTUNREACH);
        }
        troubles.note(Time::from_ns(100), ip(0), libc::EPERM);
        let now = Time::from_ns(102);
        assert!(troubles.of(now, ip(0)).unwrap().contains("not permitted"));
        troubles.note(Time::from_ns(101), ip(200), libc::ENETUNREACH);
        assert_eq!(troubles.of(now, ip(1)), None, "the oldest");
        assert!(troubles.of(now, ip(0)).is_some() && troubles.of(now, ip(2)).is_some());
        assert!(troubles.of(now, ip(200)).unwrap().contains("unreachable"));
        assert_eq!(troubles.last.len(), REMEMBERED);
        assert_eq!(troubles.of(now + TROUBLE_COUNTS_NS, ip(200)), None);
    }
}
