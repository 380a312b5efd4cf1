//! GIDs: pairs of them that cannot reach each other, and addresses that come, go and come back while programs run.

use anyhow::{Result, ensure};
use metaroce_e2e::fabric::{DEFAULT_MTU_BYTES, NIC};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Program, Topology, c_program, tool};

use super::contract::says_ok;
use super::{Bench, Case, ON_DEVICE};

/// The second NIC of a host that has several.
const SECOND_NIC: &str = "eth1";

/// Source, destination, what RTR says, and what the log must say of it.
const UNREACHABLE: &[(&str, &str, &str, &str)] = &[
    (
        "10.77.0.1",
        "fd77::2",
        "EINVAL",
        "10.77.0.1 cannot reach fd77::2: the destination GID is not an address that the source address can send to",
    ),
    (
        "fd77::1",
        "10.77.0.2",
        "EINVAL",
        "fd77::1 cannot reach 10.77.0.2: the destination GID is not",
    ),
    (
        "10.77.0.1",
        "192.0.2.1",
        "ENETUNREACH",
        "10.77.0.1 cannot reach 192.0.2.1: Network is unreachable (os error 101); this host has no route there",
    ),
    (
        "fd77::1",
        "2001:db8::1",
        "ENETUNREACH",
        "fd77::1 cannot reach 2001:db8::1: Network is unreachable (os error 101); this host has no route there",
    ),
    (
        "10.77.0.1",
        "198.51.100.1",
        "EINVAL",
        "10.77.0.1 cannot reach 198.51.100.1: Invalid argument (os error 22); a route of type blackhole",
    ),
    (
        "10.77.0.1",
        "203.0.113.1",
        "EACCES",
        "10.77.0.1 cannot reach 203.0.113.1: Permission denied (os error 13); that is a broadcast address, or a route forbids",
    ),
    ("10.77.0.1", "198.18.0.5", "silent", "never answered."),
    (
        "fd77::1",
        "fe80::dead",
        "EINVAL",
        "fd77::1 cannot reach fe80::dead: Invalid argument (os error 22); a link-local address reaches its own link only",
    ),
    (
        "10.77.0.1",
        "224.0.0.1",
        "EINVAL",
        "10.77.0.1 cannot reach 224.0.0.1: the destination GID is not",
    ),
    (
        "10.77.0.1",
        "10.77.0.99",
        "silent",
        "never answered. The last that was said of the way there: No route to host (os error 113).",
    ),
];

/// For the cases above: routes that refuse, and one that only a rule for the endpoints' ports leads to. UDP by its number:
/// a bare system has no list of names.
const ROUTES: &str = "ip route add blackhole 198.51.100.0/24 && ip route add prohibit 203.0.113.0/24 && \
    ip route add 198.18.0.0/24 via 10.77.0.2 table 77 && ip rule add ipproto 17 dport 24791-25814 lookup 77";

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let needs = [ON_DEVICE, &[Need::VerbsHeaders]].concat();
    let case =
        |what: &str, run: fn(&Bench) -> Result<()>| Case::new(format!("gids::{what}"), &needs, run);
    vec![
        case("pairs that cannot reach each other", unreachable).needing(Need::Ipv6),
        case("addresses come and go, and indexes stay", live).needing(Need::Program("ibv_devinfo")),
        case("a link that goes is told by its own device only", ports),
    ]
}

/// What users complain about: "GID 0 stale or gone, index moves after a flap".
fn live(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    alone(bench, &fabric, "gid_live", NIC)
}

/// What users complain about: "async event of one port kills others".
fn ports(bench: &Bench) -> Result<()> {
    let fabric = Fabric::temporary(Topology::Nics(2), DEFAULT_MTU_BYTES)?;
    alone(bench, &fabric, "port_events", SECOND_NIC)
}

/// Runs a program alone on host a, with the name of an interface.
fn alone(bench: &Bench, fabric: &Fabric, program: &str, interface: &str) -> Result<()> {
    let program = Program::new(c_program::compile(program)?).args([interface]);
    let outcome = bench
        .on_device(fabric, Host::A, program)?
        .run()?
        .success()?;
    says_ok(&outcome)
}

/// What users complain about: "link-local picked and then unreachable", "a pair that cannot reach gets no message", "RTR times
/// out".
fn unreachable(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    // A host that is not there is to be noticed well within the queue pair's patience of 4.3 s.
    let neighbours = format!("/proc/sys/net/ipv4/neigh/{NIC}");
    let script = format!(
        "echo 1 > {neighbours}/mcast_solicit && echo 100 > {neighbours}/retrans_time_ms && {ROUTES}"
    );
    let namespace = fabric.namespace(Host::A);
    tool::run("ip", &["netns", "exec", &namespace, "sh", "-c", &script])?;
    let mut program = Program::new(c_program::compile("unreachable")?).env("METAROCE_LOG", "warn");
    for (source, dest, expected, _) in UNREACHABLE {
        program = program.args([source, dest, expected]);
    }
    let outcome = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    says_ok(&outcome)?;
    for (source, dest, _, message) in UNREACHABLE {
        let told = |line: &str| {
            [source, dest, message]
                .iter()
                .all(|part| line.contains(**part))
        };
        ensure!(
            outcome.stderr.lines().any(told),
            "no message about {source} and {dest} like \"{message}\":\n{}",
            outcome.describe()
        );
    }
    Ok(())
}
