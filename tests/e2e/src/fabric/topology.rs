//! What is made: namespaces, veth links, addresses, routes.
//!
//! `direct` is one veth between two hosts. `planes` gives each host one NIC to its leaf; the leaves are
//! joined by N links, the planes, and choose among them per packet by the kernel's own ECMP hash of
//! addresses and ports, as switches do. The choice is made for forwarded packets, so a host cannot know it.
//!
//! ```text
//!  a ── leaf-a ══ spine1 … spineN ══ leaf-b ── b        a = 10.77.0.1, fd77::1    b = 10.77.0.2, fd77::2
//! ```
//! Host addresses are the same in both topologies. Called by `fabric::Fabric` only.

use anyhow::{Result, bail};

use super::namespace;
use super::state::State;
use super::{Host, Topology};
use crate::tool;

/// Planes are few because each is a pair of devices that every packet of a flow may hash to.
pub const MAX_PLANES: u8 = 8;

/// The NIC's name in both hosts.
pub const NIC: &str = "eth0";

/// The leaf's port to its host.
const HOST_PORT: &str = "host";

/// Queue of every port, in packets: enough that a burst of trains behind a slow receiver waits
/// instead of being lost (the receiving veth's own ring holds 256).
const QUEUE_PACKETS: &str = "1000";

/// IPv6 asks for no less.
const MIN_MTU_BYTES: u32 = 1280;
/// The largest that a veth takes.
const MAX_MTU_BYTES: u32 = 65_535;

/// One direction's port of a plane: traffic is counted where it leaves.
#[derive(Debug, Clone)]
pub struct Port {
    /// Namespace of the port.
    pub namespace: String,
    /// Its device.
    pub device: String,
}

/// A namespace of the fabric `name`.
pub fn host_namespace(name: &str, host: Host) -> String {
    format!("{name}-{host}")
}

fn leaf_namespace(name: &str, host: Host) -> String {
    format!("{name}-leaf-{host}")
}

fn spine(plane: u8) -> String {
    format!("spine{plane}")
}

/// All namespaces that a fabric has.
pub fn namespaces(name: &str, topology: Topology) -> Vec<String> {
    let hosts = Host::BOTH.map(|host| host_namespace(name, host));
    match topology {
        Topology::Direct => hosts.to_vec(),
        Topology::Planes(_) => {
            let leaves = Host::BOTH.map(|host| leaf_namespace(name, host));
            hosts.into_iter().chain(leaves).collect()
        }
    }
}

/// The ports at which the traffic of each plane is counted: from a to b, and from b to a.
pub fn plane_ports(name: &str, topology: Topology) -> Vec<[Port; 2]> {
    let port = |namespace: String, device: &str| Port {
        namespace,
        device: device.to_owned(),
    };
    match topology {
        Topology::Direct => vec![Host::BOTH.map(|host| port(host_namespace(name, host), NIC))],
        Topology::Planes(planes) => (1..=planes)
            .map(|plane| Host::BOTH.map(|host| port(leaf_namespace(name, host), &spine(plane))))
            .collect(),
    }
}

/// The ports that have a queue, as NICs and switch ports do: those counted, the hosts' and the leaves' to
/// their hosts. Without one, what a receiver's ring cannot take this instant is lost.
fn queued_ports(name: &str, topology: Topology) -> Vec<Port> {
    let mut ports: Vec<Port> = plane_ports(name, topology).into_iter().flatten().collect();
    if topology != Topology::Direct {
        for host in Host::BOTH {
            ports.push(Port {
                namespace: host_namespace(name, host),
                device: NIC.to_owned(),
            });
            ports.push(Port {
                namespace: leaf_namespace(name, host),
                device: HOST_PORT.to_owned(),
            });
        }
    }
    ports
}

/// Refuses names and sizes that cannot work.
///
/// # Errors
/// The name has characters that a namespace or a file cannot have; the number of planes or the MTU is
/// out of range.
pub fn check(name: &str, topology: Topology, mtu_bytes: u32) -> Result<()> {
    let good = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-'
    };
    if name.is_empty() || name.len() > 32 || name.starts_with('-') || !name.chars().all(good) {
        bail!("`{name}` is no name for a fabric: 1 to 32 of a-z, 0-9 and -, not beginning with -");
    }
    if let Topology::Planes(planes) = topology
        && (planes == 0 || planes > MAX_PLANES)
    {
        bail!("{planes} planes cannot be made: 1 to {MAX_PLANES}");
    }
    if !(MIN_MTU_BYTES..=MAX_MTU_BYTES).contains(&mtu_bytes) {
        bail!("an MTU of {mtu_bytes} bytes cannot be had: {MIN_MTU_BYTES} to {MAX_MTU_BYTES}");
    }
    Ok(())
}

/// Makes everything that `state` names. On failure some of it exists; the caller removes it.
///
/// # Errors
/// A tool is missing or refused a step.
pub fn build(state: &State) -> Result<()> {
    for name in &state.namespaces {
        tool::run("ip", &["netns", "add", name])?;
        namespace::set(name, &settings(state, name.contains("-leaf-")))?;
    }
    let name = state.name.as_str();
    let mut plan = Plan {
        mtu_bytes: state.mtu_bytes,
        ipv6: state.ipv6,
        ..Plan::default()
    };
    match state.topology {
        Topology::Direct => plan_direct(&mut plan, name),
        Topology::Planes(planes) => plan_planes(&mut plan, name, planes),
    }
    execute(plan.links)?;
    for port in queued_ports(name, state.topology) {
        add_queue(&port)?;
    }
    execute(plan.batches)
}

/// Runs commands of `ip`, namespace by namespace.
fn execute(batches: Vec<(String, String)>) -> Result<()> {
    for (name, lines) in batches {
        tool::run_with_input("ip", &["-n", &name, "-batch", "-"], &lines)?;
    }
    Ok(())
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

/// Kernel settings of a namespace, before it has links.
fn settings(state: &State, is_leaf: bool) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
    ];
    if state.ipv6 {
        // Duplicate address detection keeps a new address unusable for a second.
        settings.extend([
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
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

/// Commands for `ip -batch`: namespace and lines, in the order of execution.
#[derive(Default)]
struct Plan {
    mtu_bytes: u32,
    ipv6: bool,
    /// Makes the links, before anything else.
    links: Vec<(String, String)>,
    /// Addresses and routes.
    batches: Vec<(String, String)>,
}

impl Plan {
    fn add(&mut self, namespace: &str, line: &str) {
        match self.batches.last_mut() {
            Some((last, lines)) if last == namespace => {
                lines.push_str(line);
                lines.push('\n');
            }
            _ => self
                .batches
                .push((namespace.to_owned(), format!("{line}\n"))),
        }
    }

    fn link(&mut self, near: (&str, &str), far: (&str, &str)) {
        let mtu = self.mtu_bytes;
        let line = format!(
            "link add {} mtu {mtu} type veth peer name {} mtu {mtu} netns {}",
            near.1, far.1, far.0
        );
        self.links.push((near.0.to_owned(), line));
    }

    fn port(&mut self, namespace: &str, device: &str, ipv4: &str, ipv6: &str) {
        self.add(namespace, &format!("addr add {ipv4} dev {device}"));
        if self.ipv6 {
            self.add(namespace, &format!("addr add {ipv6} dev {device} nodad"));
        }
        self.add(namespace, &format!("link set {device} up"));
    }

    /// A route of each family; `route` is given the family's place in the pairs (0 is IPv4).
    fn route(&mut self, namespace: &str, route: impl Fn(usize) -> String) {
        self.add(namespace, &format!("route add {}", route(0)));
        if self.ipv6 {
            self.add(namespace, &format!("route add {}", route(1)));
        }
    }
}

fn plan_direct(plan: &mut Plan, name: &str) {
    let [a, b] = Host::BOTH.map(|host| host_namespace(name, host));
    plan.link((&a, NIC), (&b, NIC));
    for (namespace, host) in [(&a, Host::A), (&b, Host::B)] {
        plan.add(namespace, "link set lo up");
        plan.port(
            namespace,
            NIC,
            &format!("{}/24", host.ipv4()),
            &format!("{}/64", host.ipv6()),
        );
    }
}

fn plan_planes(plan: &mut Plan, name: &str, planes: u8) {
    // Two-address networks (/31, /127) as between real routers: a and b have the neighbours 0 and 3.
    let gateways = [["10.77.0.0", "fd77::"], ["10.77.0.3", "fd77::3"]];
    let networks = [
        ["10.77.0.0/31", "fd77::/127"],
        ["10.77.0.2/31", "fd77::2/127"],
    ];
    for (index, host) in Host::BOTH.into_iter().enumerate() {
        let (namespace, leaf) = (host_namespace(name, host), leaf_namespace(name, host));
        let [gateway4, gateway6] = gateways[index];
        plan.link((&namespace, NIC), (&leaf, HOST_PORT));
        plan.add(&namespace, "link set lo up");
        plan.port(
            &namespace,
            NIC,
            &format!("{}/31", host.ipv4()),
            &format!("{}/127", host.ipv6()),
        );
        plan.add(&leaf, "link set lo up");
        plan.port(
            &leaf,
            HOST_PORT,
            &format!("{gateway4}/31"),
            &format!("{gateway6}/127"),
        );
        plan.route(&namespace, |family| {
            format!(
                "{} via {}",
                ["0.0.0.0/0", "::/0"][family],
                gateways[index][family]
            )
        });
    }
    let leaves = Host::BOTH.map(|host| leaf_namespace(name, host));
    for plane in 1..=planes {
        plan.link((&leaves[0], &spine(plane)), (&leaves[1], &spine(plane)));
    }
    for (index, leaf) in leaves.iter().enumerate() {
        for plane in 1..=planes {
            let [ipv4, ipv6] = spine_addresses(plane, index);
            plan.port(
                leaf,
                &spine(plane),
                &format!("{ipv4}/31"),
                &format!("{ipv6}/127"),
            );
        }
    }
    // The next hops must be up on both sides before a route can name them.
    for (index, leaf) in leaves.iter().enumerate() {
        let other = 1 - index;
        plan.route(leaf, |family| {
            let hops: String = (1..=planes)
                .map(|plane| {
                    format!(
                        " nexthop via {} dev {}",
                        spine_addresses(plane, other)[family],
                        spine(plane)
                    )
                })
                .collect();
            format!("{}{hops}", networks[other][family])
        });
    }
}

/// IPv4 and IPv6 address of a leaf (0 or 1) on a plane.
fn spine_addresses(plane: u8, leaf: usize) -> [String; 2] {
    [
        format!("10.77.{}.{leaf}", 100 + u16::from(plane)),
        format!("fd77:0:0:{plane}::{leaf}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_requests_are_refused() {
        assert!(check("mr", Topology::Planes(4), 9000).is_ok());
        for (name, topology, mtu_bytes) in [
            ("", Topology::Direct, 9000),
            ("a/b", Topology::Direct, 9000),
            ("-a", Topology::Direct, 9000),
            ("mr", Topology::Planes(0), 9000),
            ("mr", Topology::Planes(9), 9000),
            ("mr", Topology::Direct, 576),
        ] {
            assert!(
                check(name, topology, mtu_bytes).is_err(),
                "{name} {topology:?} {mtu_bytes}"
            );
        }
    }

    #[test]
    fn every_plane_is_counted_in_both_directions() {
        let ports = plane_ports("x", Topology::Planes(4));
        assert_eq!(ports.len(), 4);
        assert_eq!(ports[3][0].namespace, "x-leaf-a");
        assert_eq!(ports[3][1].device, "spine4");
        assert_eq!(plane_ports("x", Topology::Direct)[0][1].namespace, "x-b");
    }

    #[test]
    fn without_ipv6_nothing_of_it_is_planned() {
        let mut plan = Plan {
            mtu_bytes: 1500,
            ..Plan::default()
        };
        plan_planes(&mut plan, "x", 2);
        let text: String = plan.batches.into_iter().map(|(_, lines)| lines).collect();
        assert!(!text.contains("fd77") && !text.contains("::"), "{text}");
        assert!(text.contains(
            "route add 10.77.0.2/31 nexthop via 10.77.101.1 dev spine1 nexthop via 10.77.102.1"
        ));
    }
}
