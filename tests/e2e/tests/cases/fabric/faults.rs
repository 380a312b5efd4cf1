//! Black holes and cut cables: what they swallow, who notices, and that all is well afterwards.

use anyhow::{Result, ensure};
use metaroce_e2e::fabric::{Counters, DEFAULT_MTU_BYTES, Direction, Place, Shape};
use metaroce_e2e::{Fabric, Host, Topology};

use super::super::{Bench, Case};
use super::traffic::{Family, Flows};
use super::{ROOT, WITH_LOSS};

/// Enough flows that every one of few planes has some.
const FLOWS: usize = 32;

/// Datagrams a flow.
const DATAGRAMS: u64 = 10;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "fabric::a black hole swallows one plane, one way",
            WITH_LOSS,
            black_hole,
        ),
        Case::new(
            "fabric::black holes can be switched, singly and as a set",
            WITH_LOSS,
            switching,
        ),
        Case::new(
            "fabric::a black hole between many hosts is at one cable",
            WITH_LOSS,
            |_| black_hole_of_a_host(),
        ),
        Case::new(
            "fabric::a NIC whose plane is a black hole keeps its carrier",
            WITH_LOSS,
            |_| silent_nic(),
        ),
        Case::new(
            "fabric::leaves route around a cut plane (2 hosts)",
            ROOT,
            |_| cut_plane(Topology::Planes(3).into()),
        ),
        Case::new(
            "fabric::leaves route around a cut plane (4 hosts)",
            ROOT,
            |_| cut_plane(Topology::Planes(3).with_hosts(4)),
        ),
        Case::new("fabric::a cut NIC loses its carrier", ROOT, |_| cut_nic()),
        Case::new("fabric::a direct link is cut and mended", ROOT, |bench| {
            cut_direct(bench)
        }),
    ]
}

fn packets(run: &Counters, to: Host) -> Vec<u64> {
    run.planes
        .iter()
        .map(|plane| plane.to(to).packets)
        .collect()
}

fn black_hole(bench: &Bench) -> Result<()> {
    let fabric = bench.planes(4)?;
    fabric.blackhole(Place::plane(2).towards("ab".parse().map_err(anyhow::Error::msg)?))?;
    for family in [Family::V4, Family::V6] {
        if family == Family::V6 && !fabric.state().ipv6 {
            continue;
        }
        let flows = Flows::new(&fabric, [Host::A, Host::B], 0, family, FLOWS)?;
        let before = fabric.counters()?;
        let arrived = flows.exchange(DATAGRAMS, 1000)?;
        let sent = packets(&fabric.counters()?.since(&before), Host::B);
        let lost = FLOWS as u64 * DATAGRAMS - arrived;
        ensure!(lost > 0, "no flow was on the dead plane: {sent:?}");
        // Neighbour discovery of its own may vanish there, too.
        ensure!(
            (lost..lost + 10).contains(&sent[1]),
            "{lost} lost, sent by planes: {sent:?}"
        );
        let back = Flows::new(&fabric, [Host::B, Host::A], 0, family, FLOWS)?;
        let arrived = back.exchange(DATAGRAMS, 1000)?;
        ensure!(
            arrived == FLOWS as u64 * DATAGRAMS,
            "the other direction lost packets: {arrived} arrived"
        );
    }
    ensure!(fabric.planes_up()? == [1, 2, 3, 4], "a link went down");
    Ok(())
}

fn switching(bench: &Bench) -> Result<()> {
    let fabric = bench.planes(2)?;
    let flows = Flows::new(&fabric, [Host::A, Host::B], 0, Family::V4, FLOWS)?;
    let all = FLOWS as u64 * DATAGRAMS;
    // Each plane in turn: what the one loses is what the other lets through.
    fabric.blackhole(Place::plane(1))?;
    let over_2 = flows.exchange(DATAGRAMS, 100)?;
    fabric.set_blackholes(&[Place::plane(2)])?;
    let over_1 = flows.exchange(DATAGRAMS, 100)?;
    ensure!(
        over_1 > 0 && over_2 > 0 && over_1 + over_2 == all,
        "{over_1} + {over_2} of {all}"
    );
    fabric.blackhole(Place::ALL)?;
    ensure!(flows.exchange(DATAGRAMS, 100)? == 0, "a packet got through");
    fabric.end_blackhole(Place::plane(1))?;
    ensure!(flows.exchange(DATAGRAMS, 100)? == over_1);
    fabric.set_blackholes(&[])?;
    ensure!(flows.exchange(DATAGRAMS, 100)? == all, "it is still there");
    Ok(())
}

fn black_hole_of_a_host() -> Result<()> {
    let fabric = Fabric::temporary(Topology::Nics(1).with_hosts(4), DEFAULT_MTU_BYTES)?;
    let hosts = fabric.hosts();
    let c = hosts[2];
    for (direction, dead) in [
        (Direction::To(c), [true, false]),
        (Direction::From(c), [false, true]),
        (Direction::Both, [true, true]),
    ] {
        fabric.set_blackholes(&[])?;
        // Neighbours know each other before; a hole would swallow their asking.
        for (pair, _) in [([Host::A, c], 0), ([c, Host::A], 0)] {
            ensure!(Flows::new(&fabric, pair, 0, Family::V4, 1)?.exchange(1, 100)? == 1);
        }
        fabric.blackhole(Place::direction(direction))?;
        for (pair, dead) in [[Host::A, c], [c, Host::A]].into_iter().zip(dead) {
            let arrived = Flows::new(&fabric, pair, 0, Family::V4, 1)?.exchange(5, 100)?;
            ensure!(
                arrived == if dead { 0 } else { 5 },
                "{direction}: {arrived} of 5 from {} to {}",
                pair[0],
                pair[1]
            );
        }
        let others = Flows::new(&fabric, [Host::A, Host::B], 0, Family::V4, 1)?.exchange(5, 100)?;
        ensure!(others == if direction == Direction::Both { 0 } else { 5 });
    }
    let error = fabric.blackhole(Place::direction(Direction::Pair(Host::A, c)));
    ensure!(error.is_err(), "`ac` was taken among four hosts");
    Ok(())
}

fn silent_nic() -> Result<()> {
    let fabric = Fabric::temporary(Topology::Nics(2), DEFAULT_MTU_BYTES)?;
    fabric.blackhole(Place::plane(2))?;
    let exchange = |nic| Flows::new(&fabric, Host::BOTH, nic, Family::V4, 1)?.exchange(5, 100);
    ensure!(exchange(0)? == 5 && exchange(1)? == 0);
    ensure!(carrier(&fabric, Host::A, 1)? && carrier(&fabric, Host::B, 1)?);
    fabric.end_blackhole(Place::plane(2))?;
    ensure!(exchange(1)? == 5);
    Ok(())
}

/// Whether a host sees a carrier on its NIC.
fn carrier(fabric: &Fabric, host: Host, nic: u8) -> Result<bool> {
    let device = format!("eth{nic}");
    let arguments = [
        "-n",
        &fabric.namespace(host),
        "-j",
        "link",
        "show",
        "dev",
        &device,
    ];
    let links = metaroce_e2e::tool::run_json("ip", &arguments)?;
    let flags = links.pointer("/0/flags").map(ToString::to_string);
    Ok(flags.is_some_and(|flags| flags.contains("\"LOWER_UP\"")))
}

fn cut_plane(shape: Shape) -> Result<()> {
    let fabric = Fabric::temporary(shape, DEFAULT_MTU_BYTES)?;
    let last = *fabric.hosts().last().unwrap_or(&Host::B);
    let all = FLOWS as u64 * DATAGRAMS;
    let families: &[Family] = super::traffic::families(&fabric);
    let run_over = |down: &[u8]| -> Result<()> {
        for &family in families {
            let flows = Flows::new(&fabric, [Host::A, last], 0, family, FLOWS)?;
            let before = fabric.counters()?;
            let arrived = flows.exchange(DATAGRAMS, 1000)?;
            let sent = packets(&fabric.counters()?.since(&before), last);
            ensure!(
                arrived == all,
                "{arrived} of {all} arrived, {family:?}, {down:?} down"
            );
            for (plane, &sent) in (1..).zip(&sent) {
                ensure!(
                    (sent >= DATAGRAMS) != down.contains(&plane),
                    "plane {plane} carried {sent} with {down:?} down"
                );
            }
        }
        Ok(())
    };
    run_over(&[])?;
    fabric.plane_down(2)?;
    ensure!(fabric.planes_up()? == [1, 3]);
    run_over(&[2])?;
    fabric.plane_down(1)?;
    run_over(&[1, 2])?;
    fabric.plane_down(3)?;
    let flows = Flows::new(&fabric, [Host::A, last], 0, Family::V4, 4)?;
    ensure!(flows.exchange(3, 100)? == 0, "a packet found a way");
    for plane in [3, 2, 1] {
        fabric.plane_up(plane)?;
    }
    fabric.plane_up(1)?;
    run_over(&[])
}

fn cut_nic() -> Result<()> {
    let fabric = Fabric::temporary(Topology::Nics(2), DEFAULT_MTU_BYTES)?;
    fabric.plane_down(2)?;
    for host in Host::BOTH {
        ensure!(carrier(&fabric, host, 0)? && !carrier(&fabric, host, 1)?);
    }
    for &family in super::traffic::families(&fabric) {
        let exchange = |nic| Flows::new(&fabric, Host::BOTH, nic, family, 1)?.exchange(5, 100);
        ensure!(exchange(0)? == 5 && exchange(1)? == 0, "{family:?}, cut");
    }
    fabric.plane_up(2)?;
    for &family in super::traffic::families(&fabric) {
        let arrived = Flows::new(&fabric, Host::BOTH, 1, family, 1)?.exchange(5, 100)?;
        ensure!(arrived == 5, "{arrived} of 5, {family:?}, mended");
    }
    Ok(())
}

fn cut_direct(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    fabric.plane_down(1)?;
    ensure!(!carrier(&fabric, Host::A, 0)? && fabric.planes_up()?.is_empty());
    fabric.plane_up(1)?;
    for &family in super::traffic::families(&fabric) {
        for pair in [[Host::A, Host::B], [Host::B, Host::A]] {
            let arrived = Flows::new(&fabric, pair, 0, family, 1)?.exchange(5, 100)?;
            ensure!(arrived == 5, "{arrived} of 5, {family:?}, mended");
        }
    }
    ensure!(fabric.plane_down(2).is_err(), "there is one plane");
    Ok(())
}
