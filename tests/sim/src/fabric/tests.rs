//! Whole ways through a fabric: how long they take, how flows spread, what failures do, and that the seed decides.

use std::collections::BTreeMap;

use metaroce_proto::types::SourceSlot;
use rand::SeedableRng;
use rstest::rstest;

use super::*;

const HOSTS: usize = 8;
const RTT_NS: u64 = 8_000;
const LEAF_SPINE: Shape = Shape::LeafSpine {
    leaves: 2,
    spines: 4,
};

fn fabric(planes: u8, shape: Shape) -> Fabric {
    let config = FabricConfig::new(planes, shape, RTT_NS);
    Fabric::new(&config, HOSTS, SmallRng::seed_from_u64(3))
}

fn datagram(from: usize, to: usize, plane: u8, slot: u8) -> Datagram {
    Datagram {
        from: NodeId(from),
        to: NodeId(to),
        plane,
        slot: SourceSlot(slot),
        destination: ([10, plane, 0, 1], 24_791).into(),
        ce: false,
        bytes: [0; 184][..].into(),
        uncarried_bytes: 1_000,
    }
}

/// The links that a packet takes, and when it arrives.
fn walk(
    fabric: &mut Fabric,
    now: Time,
    mut datagram: Datagram,
) -> Result<(Vec<LinkId>, Time), Fate> {
    let mut links = Vec::new();
    let (mut at, mut hop) = fabric.send(now, &mut datagram)?;
    loop {
        links.push(hop.link);
        match fabric.arrive(at, hop, &mut datagram)? {
            Next::Host => return Ok((links, at)),
            Next::Hop(next_at, next) => (at, hop) = (next_at, next),
        }
    }
}

#[rstest]
#[case(Shape::SingleSwitch, 1, 2)]
#[case(LEAF_SPINE, 7, 4)]
// Both on one leaf.
#[case(LEAF_SPINE, 1, 2)]
fn a_way_takes_its_links(#[case] shape: Shape, #[case] to: usize, #[case] hops: u64) {
    let mut fabric = fabric(1, shape);
    let (links, at) =
        walk(&mut fabric, Time::ZERO, datagram(0, to, 0, 0)).expect("nothing is lost");
    assert_eq!(links.len() as u64, hops);
    let links_of_rtt = if shape == Shape::SingleSwitch { 4 } else { 8 };
    // 1184 + 66 bytes are 100 ns at 100 Gb/s, on each link.
    assert_eq!(at.as_ns(), hops * (RTT_NS / links_of_rtt + 100));
}

#[test]
fn ports_spread_over_the_spines_and_a_flow_keeps_its_way() {
    let mut fabric = fabric(1, LEAF_SPINE);
    let mut used = BTreeMap::<LinkId, u32>::new();
    let mut now = Time::ZERO;
    for from in 0..4 {
        for slot in 0..255 {
            // The packets before are out of the queues.
            now = now + 1_000;
            let mut way = || {
                let at = now;
                walk(&mut fabric, at, datagram(from, 7, 0, slot))
                    .expect("nothing is lost")
                    .0
            };
            let links = way();
            assert_eq!(links, way());
            *used.entry(links[1]).or_default() += 1;
        }
    }
    let ups = fabric.topology.find(Links::Plane(0)).len();
    assert_eq!(ups, 2 * HOSTS + 2 * 2 * 4);
    assert_eq!(used.len(), 4, "{used:?}");
    // 1020 flows on 4 links: a quarter each, four standard deviations (13.8) more or less.
    assert!(
        used.values().all(|flows| (200..=310).contains(flows)),
        "{used:?}"
    );
}

#[test]
fn switches_do_not_choose_alike() {
    let fabric = fabric(1, LEAF_SPINE);
    let first_up = |leaf| {
        let links = Links::Spine {
            plane: 0,
            leaf,
            spine: 0,
        };
        fabric.topology.find(links)[0].0
    };
    let agree = (0..200).filter(|flow| {
        let flow = mix(*flow);
        let here = fabric.topology.choose(0, NodeId(7), flow).0 - first_up(0);
        let there = fabric.topology.choose(1, NodeId(0), flow).0 - first_up(1);
        here == there
    });
    // A quarter by chance.
    let agree = agree.count();
    assert!((25..80).contains(&agree), "{agree} of 200");
}

#[test]
fn planes_share_no_link() {
    let mut fabric = fabric(4, LEAF_SPINE);
    let mut seen = Vec::new();
    for plane in 0..4 {
        let (links, _) =
            walk(&mut fabric, Time::ZERO, datagram(0, 7, plane, 3)).expect("nothing is lost");
        assert!(links.iter().all(|link| !seen.contains(link)));
        let of_plane = fabric.topology.find(Links::Plane(plane));
        assert!(links.iter().all(|link| of_plane.contains(link)));
        seen.extend(links);
    }
}

#[rstest]
#[case(Links::Plane(1), Links::Plane(0))]
#[case(Links::ToHost(NodeId(7), Some(1)), Links::ToHost(NodeId(7), Some(0)))]
#[case(Links::FromHost(NodeId(0), None), Links::FromHost(NodeId(1), None))]
fn what_is_down_is_dark_and_nothing_else(#[case] down: Links, #[case] other: Links) {
    let mut fabric = fabric(2, LEAF_SPINE);
    assert!(fabric.change(Time::ZERO, other, Change::Down) > 0);
    assert!(fabric.change(Time::ZERO, other, Change::Up) > 0);
    assert!(fabric.change(Time::from_ns(10), down, Change::Down) > 0);
    let on_plane = |fabric: &mut Fabric, at_ns, plane| {
        walk(fabric, Time::from_ns(at_ns), datagram(0, 7, plane, 0))
    };
    assert_eq!(on_plane(&mut fabric, 20, 1).err(), Some(Fate::Dark));
    let every_plane = matches!(down, Links::FromHost(..));
    assert_eq!(on_plane(&mut fabric, 20, 0).is_ok(), !every_plane);
    fabric.change(Time::from_ns(30), down, Change::Up);
    let back = on_plane(&mut fabric, 40, 1);
    assert!(back.is_ok(), "{back:?}");
}

#[test]
fn one_dead_spine_link_hits_its_part_of_the_ports() {
    let mut fabric = fabric(1, LEAF_SPINE);
    let spine = Links::Spine {
        plane: 0,
        leaf: 0,
        spine: 2,
    };
    assert_eq!(fabric.change(Time::ZERO, spine, Change::Down), 2);
    let dark = (0..255)
        .filter(|slot| {
            let packet = datagram(0, 7, 0, *slot);
            walk(&mut fabric, Time::from_ns(1), packet).err() == Some(Fate::Dark)
        })
        .count();
    assert!((40..90).contains(&dark), "{dark} of 255");
}

#[test]
fn a_slow_link_is_slow() {
    let mut fabric = fabric(1, Shape::SingleSwitch);
    let slow = Change::Rate {
        bits_per_s: 10_000_000_000,
    };
    fabric.change(Time::ZERO, Links::ToHost(NodeId(1), None), slow);
    let (_, at) = walk(&mut fabric, Time::ZERO, datagram(0, 1, 0, 0)).expect("nothing is lost");
    assert_eq!(at.as_ns(), RTT_NS / 2 + 100 + 1_000);
}

#[test]
fn the_seed_decides_what_is_lost() {
    let fates = |seed| {
        let mut config = FabricConfig::new(1, LEAF_SPINE, RTT_NS);
        config.changes = vec![(Links::ToHosts, Change::Lose(Loss::each(0.2)))];
        let mut fabric = Fabric::new(&config, HOSTS, SmallRng::seed_from_u64(seed));
        (0..200)
            .map(|at| {
                walk(
                    &mut fabric,
                    Time::from_ns(at * 1_000),
                    datagram(0, 7, 0, at as u8),
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(fates(1), fates(1));
    assert_ne!(fates(1), fates(2));
    let lost = fates(1).iter().filter(|fate| fate.is_err()).count();
    assert!((20..65).contains(&lost), "{lost} of 200");
}
