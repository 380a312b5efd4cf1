//! Every shape: all hosts reach each other, on every NIC and in both families, over the links they should.

use anyhow::{Context, Result, ensure};
use metaroce_e2e::fabric::{DEFAULT_MTU_BYTES, Shape};
use metaroce_e2e::{Fabric, Topology, tool};

use super::super::Case;
use super::ROOT;
use super::traffic::{Flows, families};

/// Datagrams from each host to each other.
const DATAGRAMS: u64 = 3;

pub fn cases() -> Vec<Case> {
    let shapes: [(&str, Shape); 5] = [
        ("4 NICs", Topology::Nics(4).into()),
        ("4 hosts with 2 NICs", Topology::Nics(2).with_hosts(4)),
        ("16 hosts around a switch", Topology::Nics(1).with_hosts(16)),
        ("4 hosts behind leaves", Topology::Planes(3).with_hosts(4)),
        ("2 hosts behind leaves", Topology::Planes(4).into()),
    ];
    let mut cases: Vec<Case> = shapes
        .into_iter()
        .map(|(name, shape)| {
            Case::new(format!("fabric::{name}: all reach all"), ROOT, move |_| {
                all_reach_all(shape)
            })
        })
        .collect();
    cases.push(Case::new(
        "fabric::an address belongs to one NIC",
        ROOT,
        |_| nics_are_apart(),
    ));
    cases.push(Case::new(
        "fabric::what a killed `up` left is removed",
        ROOT,
        |_| half_made(),
    ));
    cases
}

/// Also: what is sent on a NIC travels on that NIC's plane, and nowhere else.
fn all_reach_all(shape: Shape) -> Result<()> {
    let fabric = Fabric::temporary(shape, DEFAULT_MTU_BYTES)?;
    for &family in families(&fabric) {
        for from in fabric.hosts() {
            for to in fabric.hosts().into_iter().filter(|&to| to != from) {
                for nic in 0..shape.nics() {
                    let flows = Flows::new(&fabric, [from, to], nic, family, 1)?;
                    let arrived = flows.exchange(DATAGRAMS, 100)?;
                    ensure!(
                        arrived == DATAGRAMS,
                        "{arrived} of {DATAGRAMS} came from {from} to {to}, NIC {nic}, {family:?}"
                    );
                }
            }
        }
    }
    if shape.nics() > 1 {
        let [from, to] = metaroce_e2e::Host::BOTH;
        for (nic, plane) in (0..shape.nics()).zip(0..) {
            let flows = Flows::new(&fabric, [from, to], nic, families(&fabric)[0], 1)?;
            let before = fabric.counters()?;
            flows.exchange(100, 1000)?;
            let run = fabric.counters()?.since(&before);
            let packets: Vec<u64> = run
                .planes
                .iter()
                .map(|plane| plane.a_to_b().packets)
                .collect();
            for (index, &packets) in packets.iter().enumerate() {
                // Neighbour discovery may add a few of its own.
                let expected = if index == plane { 100..110 } else { 0..10 };
                ensure!(
                    expected.contains(&packets),
                    "NIC {nic}: {packets} on plane {}",
                    index + 1
                );
            }
        }
    }
    Ok(())
}

/// Hosts with several NICs answer for an address on its own interface only, so that programs which choose an
/// interface get its plane.
fn nics_are_apart() -> Result<()> {
    let fabric = Fabric::temporary(Topology::Nics(3), DEFAULT_MTU_BYTES)?;
    for host in fabric.hosts() {
        let shown = tool::run_json("ip", &["-n", &fabric.namespace(host), "-j", "addr", "show"])?;
        let interfaces = shown.as_array().context("no interfaces")?;
        for nic in 0..3_u8 {
            let name = format!("eth{nic}");
            let interface = interfaces
                .iter()
                .find(|interface| interface.get("ifname").is_some_and(|found| *found == *name))
                .with_context(|| format!("no {name}"))?
                .to_string();
            let ipv4 = format!("\"{}\"", host.ipv4_on(nic));
            let ipv6 = format!("\"{}\"", host.ipv6_on(nic));
            ensure!(interface.contains(&ipv4), "{ipv4} is not on {name}");
            ensure!(
                !fabric.state().ipv6 || interface.contains(&ipv6),
                "{ipv6} is not on {name}"
            );
        }
    }
    Ok(())
}

/// A record without all that it names, as a process leaves that is killed on its way.
fn half_made() -> Result<()> {
    let fabric = Fabric::temporary(Topology::Planes(2), DEFAULT_MTU_BYTES)?;
    let state = fabric.state().clone();
    for namespace in state.namespaces.iter().skip(1).step_by(2) {
        tool::run("ip", &["netns", "del", namespace])?;
    }
    fabric.down()?;
    ensure!(
        !(state.namespaces.iter()).any(|name| metaroce_e2e::fabric::namespace::exists(name)),
        "a namespace is left"
    );
    ensure!(!state.files().exists(), "files are left");
    Ok(())
}
