//! The detour of packets that come late: a veth in the port's own namespace whose queue holds each packet for a
//! while (`late0` out, `late1` in again), made when it is first needed.
//!
//! How it holds them: the queue is an htb with many classes, each so slow that a packet (of any size: the
//! overhead outweighs it) occupies it for the wanted time. A class that was idle lets its first packet through
//! at once; therefore the program at the port (`bpf/arrival.c`) sends a placeholder ahead of each packet. This
//! needs neither netem nor a process of ours.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::arrival;
use super::namespace;
use super::state::State;
use super::topology::Port;
use crate::tool;

/// How late packets come unless told otherwise: several round trips of a virtual link, below the timers of
/// transports.
pub const DEFAULT_LATE_BY: Duration = Duration::from_micros(200);

/// Below, the queue itself takes as long.
const MIN_LATE_BY: Duration = Duration::from_micros(20);

/// Above, few packets a second could be late.
const MAX_LATE_BY: Duration = Duration::from_millis(20);

/// Classes, over which packets are spread: so many can be late at a time without waiting for each other.
const CLASSES: u64 = 64;

/// Bytes that are added to a packet when its time is computed (16 bits at most).
const OVERHEAD_BYTES: u64 = 60_000;

/// Packets that may wait in a class; what exceeds this is lost.
const WAITING: &str = "100";

/// The device that late packets leave by.
const OUT: &str = "late0";

/// The device that they come in by again.
const IN: &str = "late1";

/// Has packets that were named late at `port` come later by `late_by`, like all in its namespace.
pub(super) fn set(state: &State, port: &Port, late_by: Duration) -> Result<()> {
    ensure!(
        (MIN_LATE_BY..=MAX_LATE_BY).contains(&late_by),
        "packets cannot come {late_by:?} late: {MIN_LATE_BY:?} to {MAX_LATE_BY:?}"
    );
    let namespace = port.namespace.as_str();
    let device = match index(namespace)? {
        Some(device) => device,
        None => {
            make(state, namespace)?;
            index(namespace)?.context("the device of the detour vanished")?
        }
    };
    set_classes(namespace, late_by)?;
    arrival::set_detour(state, port, device, CLASSES)
}

fn make(state: &State, namespace: &str) -> Result<()> {
    // One that is not up was left by a process that died while it made it.
    let _ = tool::run("ip", &["-n", namespace, "link", "del", OUT]);
    let mtu = state.mtu_bytes;
    let lines = format!(
        "link add {OUT} mtu {mtu} txqueuelen {WAITING} type veth peer name {IN} mtu {mtu}\n"
    );
    tool::run_with_input("ip", &["-n", namespace, "-batch", "-"], &lines)?;
    if state.ipv6 {
        // No addresses, so that no program takes them for NICs.
        let out = format!("ipv6/conf/{OUT}/disable_ipv6");
        let back = format!("ipv6/conf/{IN}/disable_ipv6");
        namespace::set(namespace, &[(&out, "1"), (&back, "1")])?;
    }
    tool::run(
        "tc",
        &[
            "-n", namespace, "qdisc", "add", "dev", OUT, "root", "handle", "1:", "htb",
        ],
    )?;
    let back = Port {
        namespace: namespace.to_owned(),
        device: IN.to_owned(),
    };
    arrival::end_detours_at(state, &back)?;
    let lines = format!("link set {IN} up\nlink set {OUT} up\n");
    tool::run_with_input("ip", &["-n", namespace, "-batch", "-"], &lines).map(drop)
}

fn set_classes(namespace: &str, late_by: Duration) -> Result<()> {
    let rate = class_rate(late_by);
    let lines: String = (1..=CLASSES)
        .map(|class| {
            // A burst of one byte: no credit for idle times beyond one packet. The quantum has no effect
            // without a parent, and its default would be warned of.
            format!(
                "class replace dev {OUT} parent 1: classid 1:{class:x} htb rate {rate}bit burst 1 cburst 1 \
                 overhead {OVERHEAD_BYTES} quantum 60000\n"
            )
        })
        .collect();
    tool::run_with_input("tc", &["-n", namespace, "-batch", "-"], &lines).map(drop)
}

/// Bits per second of a class in which the overhead alone takes `late_by`.
fn class_rate(late_by: Duration) -> u128 {
    u128::from(OVERHEAD_BYTES) * 8 * 1_000_000_000 / late_by.as_nanos().max(1)
}

/// The kernel's number of the detour's device, if it is complete.
fn index(namespace: &str) -> Result<Option<u64>> {
    let links = tool::run_json(
        "ip",
        &["-n", namespace, "-j", "link", "show", "up", "type", "veth"],
    )?;
    let found = links.as_array().and_then(|links| {
        links
            .iter()
            .find(|link| link.get("ifname").and_then(Value::as_str) == Some(OUT))
    });
    Ok(found.and_then(|link| link.get("ifindex").and_then(Value::as_u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overhead_takes_the_wanted_time() {
        assert_eq!(class_rate(DEFAULT_LATE_BY), 2_400_000_000);
        assert_eq!(class_rate(MAX_LATE_BY), 24_000_000);
        // What the kernel reads it into.
        assert!(u16::try_from(OVERHEAD_BYTES).is_ok());
    }
}
