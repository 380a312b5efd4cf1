//! Cables that are cut and mended: the links of a plane go down and up.
//!
//! What sees it. *Nics, planes between more than two hosts:* the ports of the plane's switch go down, so the
//! NICs, or the leaves, lose their carrier, as with a cut cable. *Planes between two hosts:* both leaves take
//! their port down. Leaves then spread over the planes that are left (all flows are hashed anew, as in switches
//! without resilient hashing) and hosts see nothing of it. *Nics:* addresses and routes stay, so what is sent
//! on the NIC vanishes. *Direct:* host b's NIC is taken down by its administrator, host a loses its carrier.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::direction::check_plane;
use super::host::Host;
use super::shape::Topology;
use super::state::State;
use super::topology::{Port, far_end, near_end, set_routes};
use crate::tool;

/// A carrier is there at once, or something is broken.
const CARRIER_WITHIN: Duration = Duration::from_secs(5);

/// How often to look for it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Takes the links of a plane (from 1) down or up. Nothing happens to one that is so already.
pub(super) fn set(state: &State, plane: u8, up: bool) -> Result<()> {
    let shape = state.shape();
    check_plane(shape, plane)?;
    for port in switched_ports(state, plane) {
        let wanted = if up { "up" } else { "down" };
        tool::run(
            "ip",
            &[
                "-n",
                &port.namespace,
                "link",
                "set",
                "dev",
                &port.device,
                wanted,
            ],
        )?;
    }
    if up {
        for host in shape.hosts() {
            let port = near_end(&state.name, shape, host, plane);
            wait_for_carrier(&port)?;
            // Who was asked for while the link was down would be asked for again a second later.
            let flush = ["-n", &port.namespace, "neigh", "flush", "dev", &port.device];
            tool::run("ip", &flush)?;
        }
    }
    set_routes(state, &planes_up(state)?)
}

/// The planes whose links are up, from 1.
pub(super) fn planes_up(state: &State) -> Result<Vec<u8>> {
    let mut up = Vec::new();
    for plane in 1..=state.shape().planes() {
        let ports = switched_ports(state, plane);
        if ports
            .iter()
            .map(is_up)
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .all(|up| up)
        {
            up.push(plane);
        }
    }
    Ok(up)
}

/// The ports that go down with a plane.
fn switched_ports(state: &State, plane: u8) -> Vec<Port> {
    let (name, shape) = (&state.name, state.shape());
    if shape.topology == Topology::Direct {
        return vec![near_end(name, shape, Host::B, plane)];
    }
    shape
        .hosts()
        .map(|host| far_end(name, shape, host, plane))
        .collect()
}

/// What the kernel tells of the link at `port`.
pub(super) fn link(port: &Port) -> Result<Value> {
    let links = tool::run_json(
        "ip",
        &[
            "-n",
            &port.namespace,
            "-j",
            "link",
            "show",
            "dev",
            &port.device,
        ],
    )?;
    links
        .get(0)
        .cloned()
        .with_context(|| format!("the fabric has lost its port {}", port.device))
}

fn is_up(port: &Port) -> Result<bool> {
    let link = link(port)?;
    let flags = link.get("flags").and_then(Value::as_array);
    Ok(flags.is_some_and(|flags| flags.iter().any(|flag| flag == "UP")))
}

fn wait_for_carrier(port: &Port) -> Result<()> {
    let deadline = Instant::now() + CARRIER_WITHIN;
    while Instant::now() < deadline {
        if link(port)?.get("operstate").and_then(Value::as_str) == Some("UP") {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    bail!(
        "the link at {} in {} got no carrier within {} s",
        port.device,
        port.namespace,
        CARRIER_WITHIN.as_secs()
    )
}
