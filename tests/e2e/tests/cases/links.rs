//! Devices on what is stacked upon a NIC: a VLAN, a macvlan, a bridge. Sockets follow the host's routing, so each must work
//! like the NIC itself: perftest runs, and the byte checker finds every byte.

use anyhow::{Context, Result};
use metaroce_e2e::fabric::NIC;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Fabric, Host, Outcome, Program, c_program};

use super::contract::says_ok;
use super::{Bench, Case, ON_DEVICE, next_port};

/// Name of the stacked interface.
const STACKED: &str = "upper0";

/// Seconds of the byte checker.
const SECONDS: &str = "2";

/// What is made on a host: a kind of interface, and the shell commands that make one on the NIC.
struct Stack {
    what: &'static str,
    kind: &'static str,
    on_a: &'static str,
    on_b: &'static str,
}

const VLAN: &str = "ip link add link $NIC name $UPPER type vlan id 77";
const MACVLAN: &str = "ip link add link $NIC name $UPPER type macvlan mode bridge";
/// As hypervisors and container hosts have it: the NIC is a port, and the address is the bridge's.
const BRIDGE: &str =
    "ip address flush dev $NIC && ip link add $UPPER type bridge && ip link set $NIC master $UPPER";

const STACKS: &[Stack] = &[
    Stack {
        what: "VLAN",
        kind: "vlan",
        on_a: VLAN,
        on_b: VLAN,
    },
    Stack {
        what: "macvlan",
        kind: "macvlan",
        on_a: MACVLAN,
        on_b: MACVLAN,
    },
    Stack {
        what: "bridge",
        kind: "bridge",
        on_a: BRIDGE,
        on_b: BRIDGE,
    },
];

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let needs = [
        ON_DEVICE,
        &[Need::VerbsHeaders, Need::Program("ib_write_bw")],
    ]
    .concat();
    STACKS
        .iter()
        .map(|stack| {
            let name = format!("links::a device on a {}", stack.what);
            Case::new(name, &needs, move |bench| on_stack(bench, stack))
                .needing(Need::LinkKind(stack.kind))
        })
        .collect()
}

/// The address of a host's stacked interface.
fn address(host: Host) -> &'static str {
    match host {
        Host::A => "10.79.0.1",
        _ => "10.79.0.2",
    }
}

/// What users complain about: "VLAN, bridge, Wi-Fi fail". (Wi-Fi is a plain interface like any other to a socket; there is none
/// to test with.)
fn on_stack(bench: &Bench, stack: &Stack) -> Result<()> {
    let fabric = bench.direct()?;
    for (host, make) in [(Host::A, stack.on_a), (Host::B, stack.on_b)] {
        let script = format!(
            "{make} && ip address add {}/24 dev $UPPER && ip link set $UPPER up",
            address(host)
        );
        Program::new("sh")
            .args(["-c", &script])
            .env("NIC", NIC)
            .env("UPPER", STACKED)
            .on(&fabric, host)
            .limit(bench.time_left())
            .run()?
            .success()
            .with_context(|| format!("cannot make a {}", stack.what))?;
    }
    let write = Program::new("ib_write_bw").args(["-F", "-d", "metaroce0", "-n", "500"]);
    pair(bench, &fabric, &write, &[])?;
    let check = Program::new(c_program::compile("byte_check")?).args(["-t", SECONDS]);
    for side in pair(bench, &fabric, &check, &["-s"])? {
        says_ok(&side)?;
    }
    Ok(())
}

/// Runs `program` as server on host a and as client on host b, which gets the server's address behind `option`.
fn pair(
    bench: &Bench,
    fabric: &Fabric,
    program: &Program,
    option: &[&str],
) -> Result<[Outcome; 2]> {
    let port = next_port();
    let server = program
        .clone()
        .args(["-p", &port.to_string()])
        .env("METAROCE_DEVICES", STACKED);
    let client = server.clone().args(option).args([address(Host::A)]);
    let outcome = bench.pair(fabric, server, client, port)?.success()?;
    Ok([outcome.server, outcome.client])
}
