//! Interfaces, ports and firewalls.

use super::{Finding, output_of};
use metaroce::device::{Device, PLANE_SEPARATOR};
use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// MTU from which large packets carry most of the load.
const LARGE_MTU_BYTES: u32 = 4096;
/// A datagram to oneself arrives at once, or not at all.
const ARRIVES_WITHIN: Duration = Duration::from_millis(500);
/// Ports tried for that: some may be taken.
const PORTS_TRIED: u16 = 64;
/// Listing the rules of a firewall.
const LISTED_WITHIN: Duration = Duration::from_secs(3);

/// The interface that leads nowhere else.
const LOOPBACK: &str = "lo";

pub(super) fn check(devices: &[Device]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = devices.iter().map(check_device).collect();
    findings.extend(check_mtus(devices));
    for device in devices.iter().filter(|device| device.active) {
        findings.extend(
            device
                .addresses
                .first()
                .map(|ip| check_passes(*ip, &pass(*ip))),
        );
    }
    findings.extend(check_reverse_path(devices, |interface| {
        let path = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }));
    findings.push(check_ports());
    findings.push(check_firewall(&Firewall::of_host(), metaroce::port_range()));
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
    let down = device.planes.iter().filter(|plane| !plane.active);
    let down: Vec<&str> = down.map(|plane| &*plane.interface).collect();
    if device.active && !down.is_empty() {
        return Finding::warning(
            check,
            format!(
                "{about} works without {} of its {} planes: {} has no carrier or is down",
                down.len(),
                device.planes.len(),
                down.join(", ")
            ),
            "connect the link and bring the interface up, or leave it out of METAROCE_DEVICES",
        );
    }
    let bare = (0..device.planes.len()).find(|plane| {
        let mut planes = device.gid_planes.iter();
        planes.all(|one| usize::from(*one) != *plane)
    });
    if let Some(plane) = bare.filter(|_| !device.gid_planes.is_empty()) {
        let interface = &device.planes[plane].interface;
        return Finding::warning(
            check,
            format!("{about} works without plane {plane}: {interface} has no IP address"),
            format!("ip address add ADDRESS/PREFIX dev {interface}"),
        );
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

/// Different MTUs: a path over the smaller one makes all packets of a connection smaller.
pub(super) fn check_mtus(devices: &[Device]) -> Option<Finding> {
    let mtus = devices.iter().filter(|device| device.active);
    let smallest = mtus.clone().min_by_key(|device| device.mtu_bytes)?;
    let largest = mtus.max_by_key(|device| device.mtu_bytes)?;
    (smallest.mtu_bytes != largest.mtu_bytes).then(|| {
        Finding::warning(
            "mixed_mtu",
            format!(
                "interfaces differ in MTU: {} has {}, {} has {}; the other host's may, too",
                smallest.interface, smallest.mtu_bytes, largest.interface, largest.mtu_bytes
            ),
            "one MTU on all interfaces and switches of a fabric; packets that do not fit are lost silently",
        )
    })
}

/// Sends a datagram from one socket of an address to a socket at one of the endpoints' ports.
fn pass(ip: IpAddr) -> io::Result<()> {
    let (first, count) = metaroce::port_range();
    let mut last = None;
    // From the end: engines may start meanwhile, and are spread evenly.
    for step in 0..count.min(PORTS_TRIED) {
        match UdpSocket::bind((ip, first + (count - 1 - step))) {
            Ok(receiver) => return send_to(ip, &receiver),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}

fn send_to(ip: IpAddr, receiver: &UdpSocket) -> io::Result<()> {
    const WORDS: &[u8] = b"metaroce doctor";
    receiver.set_read_timeout(Some(ARRIVES_WITHIN))?;
    let sender = UdpSocket::bind((ip, 0))?;
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

/// What can be seen of a firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Firewall {
    /// Rules, as `nft list ruleset` and `iptables -S INPUT` print them; `None` where they cannot be listed (not root).
    pub(super) rules: Option<String>,
    /// Managers of rules that are switched on.
    pub(super) managers: Vec<&'static str>,
}

impl Firewall {
    fn of_host() -> Firewall {
        let list = |program: &str, arguments: &[&str]| {
            let text = output_of(Command::new(program).args(arguments), LISTED_WITHIN)?;
            // Without rights both say so and list nothing.
            let refused = ["not permitted", "Permission denied", "must be root"];
            (!refused.iter().any(|words| text.contains(words))).then_some(text)
        };
        let nft = list("nft", &["list", "ruleset"]);
        let iptables = list("iptables", &["-S", "INPUT"]);
        let rules = (nft.is_some() || iptables.is_some())
            .then(|| nft.unwrap_or_default() + "\n" + &iptables.unwrap_or_default());
        let mut managers = Vec::new();
        if fs::read_to_string("/etc/ufw/ufw.conf")
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "ENABLED=yes"))
        {
            managers.push("ufw");
        }
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let named = |name: &str| {
            let mut comms = processes
                .filter_map(|process| fs::read_to_string(process.path().join("comm")).ok());
            comms.any(|comm| comm.trim() == name)
        };
        if named("firewalld") {
            managers.push("firewalld");
        }
        Firewall { rules, managers }
    }
}

pub(super) fn check_firewall(firewall: &Firewall, (first, count): (u16, u16)) -> Finding {
    let check = "firewall";
    let last = first.saturating_add(count.saturating_sub(1));
    let cure = match firewall.managers.first() {
        Some(&"ufw") => format!("ufw allow {first}:{last}/udp (as root)"),
        Some(&"firewalld") => {
            format!(
                "firewall-cmd --permanent --add-port={first}-{last}/udp && firewall-cmd --reload (as root)"
            )
        }
        _ => format!(
            "nft add rule inet filter input udp dport {first}-{last} accept, or iptables -I INPUT -p udp --dport \
             {first}:{last} -j ACCEPT (as root)"
        ),
    };
    match &firewall.rules {
        Some(rules) if drops_by_default(rules) && !mentions_ports(rules, first, last) => {
            Finding::warning(
                check,
                format!(
                    "the firewall drops what no rule allows, and no rule names UDP ports {first} to {last}"
                ),
                cure,
            )
        }
        Some(_) => Finding::good(
            check,
            "no rule of the firewall was found that drops the endpoints' packets",
        ),
        None if !firewall.managers.is_empty() => Finding::warning(
            check,
            format!(
                "a firewall ({}) is on; whether it passes UDP ports {first} to {last} can be seen as root only",
                firewall.managers.join(", ")
            ),
            cure,
        ),
        None => Finding::good(
            check,
            "no firewall is known to be on (its rules can be listed as root only)",
        ),
    }
}

/// An input chain whose policy is to drop.
fn drops_by_default(rules: &str) -> bool {
    rules.lines().map(str::trim).any(|line| {
        (line.contains("hook input") && line.contains("policy drop")) || line == "-P INPUT DROP"
    })
}

/// A rule that accepts a range of UDP ports which includes all of ours: `udp dport 24791-25814 accept`,
/// `-p udp … --dport 24791:25814 -j ACCEPT`, or everything of UDP.
fn mentions_ports(rules: &str, first: u16, last: u16) -> bool {
    rules
        .lines()
        .filter(|line| line.contains("udp"))
        .any(|line| {
            let accepts = line.contains("accept") || line.contains("-j ACCEPT");
            let ports = line.split_once("dport").map(|(_, rest)| rest.trim_start());
            let Some(ports) = ports else {
                return accepts;
            };
            let range = ports.split([' ', ',', '}']).next().unwrap_or_default();
            let (low, high) = range.split_once(['-', ':']).unwrap_or((range, range));
            let bounds = (low.parse::<u16>(), high.parse::<u16>());
            accepts && matches!(bounds, (Ok(low), Ok(high)) if low <= first && last <= high)
        })
}
