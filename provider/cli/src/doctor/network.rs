//! Interfaces, plane by plane, and ports.

use super::Finding;
use metaroce::device::{Device, PLANE_SEPARATOR, PlaneState};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration;

/// MTU from which large packets carry most of the load.
const LARGE_MTU_BYTES: u32 = 4096;
/// A datagram to oneself arrives at once, or not at all.
const ARRIVES_WITHIN: Duration = Duration::from_millis(500);
/// Ports tried for that: some may be taken.
const PORTS_TRIED: u16 = 64;

/// The interface that leads nowhere else.
const LOOPBACK: &str = "lo";

pub(super) fn check(devices: &[Device]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = devices.iter().map(check_device).collect();
    findings.extend(check_mtus(devices));
    let tried = tried_addresses(devices);
    findings.extend(tried.iter().map(|(ip, index)| {
        let passes = pass(|port| address(*ip, *index, port));
        check_passes(*ip, &passes)
    }));
    findings.extend(check_reverse_path(devices, |interface| {
        let path = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }));
    findings.push(check_ports());
    findings
}

pub(super) fn check_device(device: &Device) -> Finding {
    let check = "device";
    let gid = device
        .addresses
        .first()
        .map_or_else(|| "no address".into(), ToString::to_string);
    let about = format!(
        "device {} on {} ({gid}, MTU {})",
        device.name, device.interface, device.mtu_bytes
    );
    if let Some((wrong, cure)) = lost_planes(device).filter(|_| device.active) {
        return Finding::warning(check, format!("{about} works without {wrong}"), cure);
    }
    if !device.active {
        return Finding::warning(
            check,
            format!("{about} has no carrier"),
            "connect the link, or choose others in METAROCE_DEVICES",
        );
    }
    if device.interface == LOOPBACK {
        return Finding::warning(
            check,
            format!("{about} reaches this host only"),
            "if that is not meant: bring another interface up and give it an address, or name it in METAROCE_DEVICES",
        );
    }
    if device.mtu_bytes < LARGE_MTU_BYTES {
        return Finding::warning(
            check,
            format!("{about} works, but small packets cost more CPU"),
            format!(
                "if all switches on the way allow it: ip link set {} mtu 9000 (on both hosts)",
                device.interface
            ),
        );
    }
    Finding::good(check, about)
}

/// What is wrong with planes, and the cure.
fn lost_planes(device: &Device) -> Option<(String, String)> {
    let mut wrong = Vec::new();
    let mut cures = Vec::new();
    for (number, plane) in device.planes.iter().enumerate() {
        let interface = &plane.interface;
        match device.plane_state(number) {
            PlaneState::Active => {}
            PlaneState::NoAddress => {
                wrong.push(format!("plane {number}, {interface} has no IP address"));
                cures.push(format!("ip address add ADDRESS/PREFIX dev {interface}"));
            }
            PlaneState::Down => {
                wrong.push(format!(
                    "plane {number}, {interface} has no carrier or is down"
                ));
                cures.push(format!(
                    "connect the link of {interface} and bring it up (ip link set {interface} up)"
                ));
            }
        }
    }
    let all = device.planes.len();
    (!wrong.is_empty()).then(|| {
        let text = format!("{} of its {all} planes: {}", wrong.len(), wrong.join("; "));
        let leave_out = "; or leave it out of METAROCE_DEVICES";
        (text, cures.join("; ") + leave_out)
    })
}

/// Different MTUs: a path over the smaller one makes all packets of a connection smaller.
pub(super) fn check_mtus(devices: &[Device]) -> Option<Finding> {
    let active = devices.iter().filter(|device| device.active);
    let mut mtus: Vec<(u32, &str)> = Vec::new();
    for device in active {
        let planes = device.planes.iter().filter(|plane| plane.active);
        mtus.extend(planes.map(|plane| (plane.mtu_bytes, &*plane.interface)));
        if device.planes.is_empty() {
            mtus.push((device.mtu_bytes, &device.interface));
        }
    }
    let smallest = mtus.iter().min_by_key(|(bytes, _)| *bytes)?;
    let largest = mtus.iter().max_by_key(|(bytes, _)| *bytes)?;
    (smallest.0 != largest.0).then(|| {
        Finding::warning(
            "mixed_mtu",
            format!(
                "interfaces differ in MTU: {} has {}, {} has {}; the other host's may, too",
                smallest.1, smallest.0, largest.1, largest.0
            ),
            "one MTU on all interfaces and switches of a fabric; packets that do not fit are lost silently",
        )
    })
}

/// An address of every plane that works, with the index of its interface.
pub(super) fn tried_addresses(devices: &[Device]) -> Vec<(IpAddr, u32)> {
    let mut tried = Vec::new();
    for device in devices.iter().filter(|device| device.active) {
        for number in 0..device.planes.len() {
            let works = device.plane_state(number) == PlaneState::Active;
            let mut on_it = (0..device.addresses.len())
                .filter(|at| usize::from(device.plane_of(*at)) == number);
            let first = on_it.next().filter(|_| works);
            tried.extend(first.map(|at| (device.addresses[at], device.planes[number].index)));
        }
    }
    tried
}

/// A link-local address needs its interface.
fn address(ip: IpAddr, index: u32, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, index).into()
        }
        _ => (ip, port).into(),
    }
}

/// Sends a datagram from one socket of an address to a socket at one of the endpoints' ports.
fn pass(address: impl Fn(u16) -> SocketAddr) -> io::Result<()> {
    let (first, count) = metaroce::port_range();
    let mut last = None;
    // From the end: engines may start meanwhile, and are spread evenly.
    for step in 0..count.min(PORTS_TRIED) {
        match UdpSocket::bind(address(first + (count - 1 - step))) {
            Ok(receiver) => return send_to(address(0), &receiver),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}

fn send_to(from: SocketAddr, receiver: &UdpSocket) -> io::Result<()> {
    const WORDS: &[u8] = b"metaroce doctor";
    receiver.set_read_timeout(Some(ARRIVES_WITHIN))?;
    let sender = UdpSocket::bind(from)?;
    sender.send_to(WORDS, receiver.local_addr()?)?;
    let mut buffer = [0; 64];
    let (length, _) = receiver.recv_from(&mut buffer)?;
    match &buffer[..length] == WORDS {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "something else arrived",
        )),
    }
}

pub(super) fn check_passes(ip: IpAddr, result: &io::Result<()>) -> Finding {
    let check = "udp_passes";
    let Err(error) = result else {
        return Finding::good(
            check,
            format!("UDP passes between sockets of {ip} (this host's part of the way)"),
        );
    };
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Finding::bad(
            check,
            format!(
                "a UDP datagram from {ip} to itself does not arrive: a firewall or security policy drops it"
            ),
            "let UDP pass on this host: nft list ruleset, iptables -S (as root) show the rules",
        ),
        io::ErrorKind::PermissionDenied => Finding::bad(
            check,
            format!("UDP may not be sent from {ip}: {error}"),
            "a firewall (OUTPUT chain), seccomp profile or security policy forbids it; allow it",
        ),
        // Whether there are ports is another check.
        io::ErrorKind::AddrInUse => {
            Finding::good(check, format!("no port was free to try UDP on {ip}"))
        }
        _ => Finding::warning(
            check,
            format!("UDP on {ip} could not be tried: {error}"),
            "see `ip address`",
        ),
    }
}

/// With several interfaces, packets of one plane may come in where strict filters expect another.
pub(super) fn check_reverse_path(
    devices: &[Device],
    filter_of: impl Fn(&str) -> Option<u32>,
) -> Option<Finding> {
    const STRICT: u32 = 1;
    let all = filter_of("all").unwrap_or(0);
    let strict: Vec<&str> = devices
        .iter()
        .flat_map(|device| device.interface.split(PLANE_SEPARATOR))
        .filter(|interface| {
            *interface != LOOPBACK && filter_of(interface).unwrap_or(0).max(all) == STRICT
        })
        .collect();
    let interfaces = devices.iter().map(|device| device.planes.len().max(1));
    (interfaces.sum::<usize>() > 1 && !strict.is_empty()).then(|| {
        Finding::warning(
            "reverse_path",
            format!(
                "strict reverse path filters on {}: with several interfaces they drop packets that come in by another way \
                 than answers would go",
                strict.join(", ")
            ),
            "sysctl -w net.ipv4.conf.all.rp_filter=2 (as root)",
        )
    })
}

pub(super) fn check_ports() -> Finding {
    let tables: String = ["/proc/net/udp", "/proc/net/udp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    free_ports(&tables, metaroce::port_range())
}

/// From the kernel's tables of UDP sockets in this network namespace.
pub(super) fn free_ports(tables: &str, (first, count): (u16, u16)) -> Finding {
    let check = "ports";
    let last = first.saturating_add(count.saturating_sub(1));
    let local_port = |line: &str| {
        u16::from_str_radix(line.split_whitespace().nth(1)?.rsplit_once(':')?.1, 16).ok()
    };
    let mut taken: Vec<u16> = tables
        .lines()
        .filter_map(local_port)
        .filter(|port| (first..=last).contains(port))
        .collect();
    taken.sort_unstable();
    taken.dedup();
    let free = usize::from(count) - taken.len();
    let range = format!("UDP ports {first} to {last}: {free} of {count} free");
    if free == 0 {
        return Finding::bad(
            check,
            format!("{range}; each process that uses a device needs one"),
            "end processes that hold them (ss -lunp), or set METAROCE_PORT_BASE to another range on all hosts",
        );
    }
    Finding::good(check, format!("{range} (let firewalls pass them)"))
}
