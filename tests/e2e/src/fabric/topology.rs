//! What is made: namespaces, veth links, switches, addresses, routes.
//!
//! ```text
//! direct    a ── b
//! planes    a ── leaf-a ══ N links ══ leaf-b ── b         (more than two hosts: leaves around N spines)
//! nics      a ══ one link to each of N switches ══ b
//! ```
//! A leaf is a router that chooses a plane by the kernel's own ECMP hash of addresses and ports, as switches
//! do. The choice is made for forwarded packets, so a host cannot know it. Spines and switches are bridges in
//! one namespace (`NAME-spine`, `NAME-switch`).
//!
//! Every host has one *cable* on every plane (its NIC's, or its leaf's), and the cable has two ends: what goes
//! to the host leaves at the far end and comes in at the near one. With two hosts on one link, the far end of
//! a's cable is the near end of b's. All of counting and impairing is said in these terms.
//! Called by `fabric::Fabric` only.

use anyhow::{Result, bail};

use super::host::Host;
use super::namespace;
use super::plan::Plan;
use super::shape::{Shape, Topology};
use super::state::State;
use crate::tool;

/// The first NIC's name in all hosts; further ones count on.
pub const NIC: &str = "eth0";

/// The leaf's port to its host.
const HOST_PORT: &str = "host";

/// Queue of every port, in packets: enough that a burst of trains behind a slow receiver waits
/// instead of being lost (the receiving veth's own ring holds 256).
pub(super) const QUEUE_PACKETS: &str = "1000";

/// A leaf's address towards its host, the same at all leaves: only its own host sees it.
const LEAF_ADDRESSES: [&str; 2] = ["169.254.77.1", "fe80::1"];

/// A device of the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Port {
    /// Namespace of the port.
    pub namespace: String,
    /// Its device.
    pub device: String,
}

impl Port {
    fn new(namespace: String, device: impl Into<String>) -> Self {
        Self {
            namespace,
            device: device.into(),
        }
    }
}

/// The namespace of a host of the fabric `name`.
pub fn host_namespace(name: &str, host: Host) -> String {
    format!("{name}-{host}")
}

/// Whether a namespace of the fabric `name` is a host's.
pub fn is_host(name: &str, namespace: &str) -> bool {
    let rest = namespace
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('-'));
    rest.is_some_and(|rest| rest.parse::<Host>().is_ok())
}

fn leaf_namespace(name: &str, host: Host) -> String {
    format!("{name}-leaf-{host}")
}

/// The namespace of the bridges, where the shape has any.
fn bridge_namespace(name: &str, shape: Shape) -> Option<String> {
    let kind = match shape.topology {
        Topology::Nics(_) => "switch",
        Topology::Direct | Topology::Planes(_) => "spine",
    };
    shape.has_switches().then(|| format!("{name}-{kind}"))
}

/// The bridge of a plane.
fn bridge(plane: u8) -> String {
    format!("plane{plane}")
}

/// The leaf's port to a plane.
fn spine(plane: u8) -> String {
    format!("spine{plane}")
}

/// The device of a host's NIC, from 0.
fn nic(number: u8) -> String {
    format!("eth{number}")
}

/// All namespaces that a fabric has.
pub fn namespaces(name: &str, shape: Shape) -> Vec<String> {
    let mut all: Vec<String> = shape
        .hosts()
        .map(|host| host_namespace(name, host))
        .collect();
    if let Topology::Planes(_) = shape.topology {
        all.extend(shape.hosts().map(|host| leaf_namespace(name, host)));
    }
    all.extend(bridge_namespace(name, shape));
    all
}

/// The near end of a host's cable on a plane (from 1): what arrives for the host comes in here.
pub fn near_end(name: &str, shape: Shape, host: Host, plane: u8) -> Port {
    match shape.topology {
        Topology::Direct | Topology::Nics(_) => {
            Port::new(host_namespace(name, host), nic(plane - 1))
        }
        Topology::Planes(_) => Port::new(leaf_namespace(name, host), spine(plane)),
    }
}

/// The far end of a host's cable on a plane (from 1): what goes to the host leaves here.
pub fn far_end(name: &str, shape: Shape, host: Host, plane: u8) -> Port {
    match bridge_namespace(name, shape) {
        Some(namespace) => Port::new(namespace, format!("{host}{plane}")),
        None => near_end(name, shape, host.other(), plane),
    }
}

/// Both ends of all cables, each port once.
pub fn cable_ends(name: &str, shape: Shape) -> Vec<Port> {
    let mut ports = Vec::new();
    for host in shape.hosts() {
        for plane in 1..=shape.planes() {
            ports.push(near_end(name, shape, host, plane));
            if shape.has_switches() {
                ports.push(far_end(name, shape, host, plane));
            }
        }
    }
    ports
}

/// The ports that have a queue, as NICs and switch ports do: both ends of all cables, the hosts' NICs and the
/// leaves' ports to them. Without one, what a receiver's ring cannot take this instant is lost.
fn queued_ports(name: &str, shape: Shape) -> Vec<Port> {
    let mut ports = cable_ends(name, shape);
    if let Topology::Planes(_) = shape.topology {
        for host in shape.hosts() {
            ports.push(Port::new(host_namespace(name, host), NIC));
            ports.push(Port::new(leaf_namespace(name, host), HOST_PORT));
        }
    }
    ports
}

/// Refuses names that cannot work.
///
/// # Errors
/// The name has characters that a namespace or a file cannot have.
pub fn check_name(name: &str) -> Result<()> {
    let good = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-'
    };
    if name.is_empty() || name.len() > 32 || name.starts_with('-') || !name.chars().all(good) {
        bail!("`{name}` is no name for a fabric: 1 to 32 of a-z, 0-9 and -, not beginning with -");
    }
    Ok(())
}

/// Makes everything that `state` names. On failure some of it exists; the caller removes it.
///
/// # Errors
/// A tool is missing or refused a step.
pub fn build(state: &State) -> Result<()> {
    let (name, shape) = (state.name.as_str(), state.shape());
    for namespace in &state.namespaces {
        tool::run("ip", &["netns", "add", namespace])?;
    }
    for host in shape.hosts() {
        namespace::set(&host_namespace(name, host), &settings(state, false))?;
        if let Topology::Planes(_) = shape.topology {
            namespace::set(&leaf_namespace(name, host), &settings(state, true))?;
        }
    }
    if let Some(bridges) = bridge_namespace(name, shape) {
        namespace::set(&bridges, &bridge_settings(state))?;
    }
    let mut plan = Plan::new(state.mtu_bytes, state.ipv6);
    plan_cables(&mut plan, name, shape);
    match shape.topology {
        Topology::Direct | Topology::Nics(_) => plan_hosts(&mut plan, name, shape),
        Topology::Planes(_) => plan_leaves(&mut plan, name, shape),
    }
    plan.make_links()?;
    for port in queued_ports(name, shape) {
        add_queue(&port)?;
    }
    plan.configure()?;
    let all: Vec<u8> = (1..=shape.planes()).collect();
    set_routes(state, &all)
}

/// Gives a port a queueing discipline, which counts packets inside a train one by one, while the device
/// counts trains.
fn add_queue(port: &Port) -> Result<()> {
    let (namespace, device) = (port.namespace.as_str(), port.device.as_str());
    let queue = ["root", "pfifo", "limit", QUEUE_PACKETS];
    let arguments = [
        &["-n", namespace, "qdisc", "add", "dev", device][..],
        &queue,
    ]
    .concat();
    tool::run("tc", &arguments).map(drop)
}

/// Kernel settings of a host's or a leaf's namespace, before it has links.
fn settings(state: &State, is_leaf: bool) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
    ];
    if state.ipv6 {
        settings.extend([
            // Duplicate address detection keeps a new address unusable for a second.
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            // A plane that was down has its addresses again.
            ("ipv6/conf/all/keep_addr_on_down", "1"),
            ("ipv6/conf/default/keep_addr_on_down", "1"),
        ]);
    }
    if is_leaf {
        // Policy 1 hashes the ports too; without it all traffic between two hosts takes one plane.
        settings.extend([
            ("ipv4/ip_forward", "1"),
            ("ipv4/fib_multipath_hash_policy", "1"),
        ]);
        if state.ipv6 {
            settings.extend([
                ("ipv6/conf/all/forwarding", "1"),
                ("ipv6/fib_multipath_hash_policy", "1"),
            ]);
        }
    }
    settings
}

/// Kernel settings of the bridges' namespace: they only switch, so they take no addresses.
fn bridge_settings(state: &State) -> Vec<(&'static str, &'static str)> {
    let mut settings = Vec::new();
    if state.ipv6 {
        settings.extend([
            ("ipv6/conf/all/disable_ipv6", "1"),
            ("ipv6/conf/default/disable_ipv6", "1"),
        ]);
    }
    if std::path::Path::new("/proc/sys/net/bridge").exists() {
        // Else every frame walks the firewall of the IP layer.
        settings.extend([
            ("bridge/bridge-nf-call-iptables", "0"),
            ("bridge/bridge-nf-call-ip6tables", "0"),
            ("bridge/bridge-nf-call-arptables", "0"),
        ]);
    }
    settings
}

/// The links of all planes, and the bridges that they end in.
fn plan_cables(plan: &mut Plan, name: &str, shape: Shape) {
    let bridges = bridge_namespace(name, shape);
    for plane in 1..=shape.planes() {
        if let Some(bridges) = &bridges {
            plan.bridge(bridges, &bridge(plane));
        }
        for host in shape.hosts() {
            let (near, far) = (
                near_end(name, shape, host, plane),
                far_end(name, shape, host, plane),
            );
            if let Some(bridges) = &bridges {
                plan.link(&near, &far);
                let device = &far.device;
                plan.add(
                    bridges,
                    &format!("link set {device} master {}", bridge(plane)),
                );
                plan.add(bridges, &format!("link set {device} up"));
            } else if host == Host::A {
                plan.link(&near, &far);
            }
        }
    }
}

/// Addresses of hosts whose NICs are on a network with the other hosts'.
fn plan_hosts(plan: &mut Plan, name: &str, shape: Shape) {
    for host in shape.hosts() {
        let namespace = host_namespace(name, host);
        plan.add(&namespace, "link set lo up");
        for number in 0..shape.nics() {
            let addresses = [
                format!("{}/24", host.ipv4_on(number)),
                format!("{}/64", host.ipv6_on(number)),
            ];
            plan.port(&namespace, &nic(number), &addresses);
        }
    }
}

/// Addresses of hosts behind leaves, and of the leaves.
fn plan_leaves(plan: &mut Plan, name: &str, shape: Shape) {
    for host in shape.hosts() {
        let (namespace, leaf) = (host_namespace(name, host), leaf_namespace(name, host));
        let own = [
            format!("{}/32", host.ipv4()),
            format!("{}/128", host.ipv6()),
        ];
        let gateway = [
            format!("{}/32", LEAF_ADDRESSES[0]),
            format!("{}/64", LEAF_ADDRESSES[1]),
        ];
        plan.link(
            &Port::new(namespace.clone(), NIC),
            &Port::new(leaf.clone(), HOST_PORT),
        );
        plan.add(&namespace, "link set lo up");
        plan.port(&namespace, NIC, &own);
        plan.route(&namespace, |family| {
            let all = ["0.0.0.0/0", "::/0"][family];
            format!("{all} via {} dev {NIC} onlink", LEAF_ADDRESSES[family])
        });
        plan.add(&leaf, "link set lo up");
        plan.port(&leaf, HOST_PORT, &gateway);
        plan.route(&leaf, |family| format!("{} dev {HOST_PORT}", own[family]));
        for plane in 1..=shape.planes() {
            let [ipv4, ipv6] = spine_addresses(plane, host);
            plan.port(
                &leaf,
                &spine(plane),
                &[format!("{ipv4}/24"), format!("{ipv6}/64")],
            );
        }
    }
}

/// Has the leaves spread over the planes `up`; nothing to do where there are no leaves. With all planes down
/// the kernel has dropped the routes itself, and leaves answer that the host is unreachable, as routers do.
///
/// # Errors
/// `ip` refused a route.
pub fn set_routes(state: &State, up: &[u8]) -> Result<()> {
    let shape = state.shape();
    if !matches!(shape.topology, Topology::Planes(_)) || up.is_empty() {
        return Ok(());
    }
    let mut plan = Plan::new(state.mtu_bytes, state.ipv6);
    for host in shape.hosts() {
        let leaf = leaf_namespace(&state.name, host);
        for peer in shape.hosts().filter(|&peer| peer != host) {
            plan.replace_route(&leaf, |family| {
                let network = [
                    format!("{}/32", peer.ipv4()),
                    format!("{}/128", peer.ipv6()),
                ];
                format!("{}{}", network[family], hops(up, peer, family))
            });
        }
    }
    plan.configure()
}

/// The next hops of a route to `peer`: its leaf, over each plane that is up.
fn hops(up: &[u8], peer: Host, family: usize) -> String {
    up.iter()
        .map(|&plane| {
            format!(
                " nexthop via {} dev {}",
                spine_addresses(plane, peer)[family],
                spine(plane)
            )
        })
        .collect()
}

/// IPv4 and IPv6 address of a host's leaf on a plane.
fn spine_addresses(plane: u8, host: Host) -> [String; 2] {
    let (plane, number) = (100 + u16::from(plane), host.number());
    [
        format!("10.77.{plane}.{number}"),
        format!("fd77:0:0:{plane}::{number:x}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(check_name("mr-2").is_ok());
        for name in ["", "a/b", "-a", "A", &"x".repeat(33)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn two_hosts_share_cables_and_more_do_not() {
        let two: Shape = Topology::Planes(4).into();
        assert_eq!(
            far_end("x", two, Host::A, 4),
            near_end("x", two, Host::B, 4)
        );
        assert_eq!(near_end("x", two, Host::A, 4).namespace, "x-leaf-a");
        assert_eq!(namespaces("x", two).len(), 4);
        let three = Topology::Planes(4).with_hosts(3);
        assert_eq!(
            far_end("x", three, Host::B, 2),
            Port::new("x-spine".to_owned(), "b2")
        );
        assert_eq!(namespaces("x", three).len(), 7);
        let hosts = namespaces("x", three).into_iter();
        assert_eq!(hosts.filter(|name| is_host("x", name)).count(), 3);
        let nics: Shape = Topology::Nics(4).into();
        assert_eq!(
            near_end("x", nics, Host::B, 4),
            Port::new("x-b".to_owned(), "eth3")
        );
        assert_eq!(far_end("x", nics, Host::B, 4).namespace, "x-switch");
        let direct = Topology::Direct.into();
        assert_eq!(far_end("x", direct, Host::A, 1).namespace, "x-b");
    }

    #[test]
    fn every_port_has_one_queue() {
        for shape in [
            Topology::Direct.into(),
            Topology::Planes(3).into(),
            Topology::Planes(3).with_hosts(4),
            Topology::Nics(3).with_hosts(4),
        ] {
            let ports = queued_ports("x", shape);
            let different: std::collections::HashSet<_> = ports.iter().collect();
            assert_eq!(different.len(), ports.len(), "{shape}");
        }
    }

    #[test]
    fn leaves_route_over_the_planes_that_are_up() {
        assert_eq!(
            hops(&[1, 3], Host::B, 0),
            " nexthop via 10.77.101.2 dev spine1 nexthop via 10.77.103.2 dev spine3"
        );
        assert_eq!(
            hops(&[2], Host::A, 1),
            " nexthop via fd77:0:0:102::1 dev spine2"
        );
    }
}
