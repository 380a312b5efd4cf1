//! Routes that carry less than both ends take: silently, from the start or from some time on, or with a word of ICMP.

use rstest::rstest;

use super::network::*;
use super::setup::exchange;
use crate::host::Visibility;
use crate::types::*;
use crate::wire::{Base, DATA_HEADER_BYTES, PacketType};

/// What UDP carries at an MTU of 1,500.
const UDP_AT_1500: usize = 1_472;

/// A message.
const MESSAGE: u32 = 300_000;

/// Two hosts with a queue pair each that have exchanged something small, and a message in memory at each.
fn pair(seed: u64, weather: Weather, planes: u8) -> (Network, [QpId; 2]) {
    let mut network = Network::pair(seed, weather, planes);
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    let message = pattern(3, MESSAGE as usize);
    network.region(0, 1, 0, message, Visibility::Relaxed);
    let empty = vec![0; MESSAGE as usize];
    network.region(1, 2, 0, empty, Visibility::Relaxed);
    network.nodes[0].sends.clear();
    network.nodes[1].sends.clear();
    (network, [a, b])
}

/// The message goes from the first host to the second: written by the one, or read by the other.
fn send(network: &mut Network, [a, b]: [QpId; 2], reads: bool, cookie: u64) {
    let (remote_addr, rkey) = (0, if reads { 1 } else { 2 });
    if reads {
        let operation = Operation::Read { remote_addr, rkey };
        network.submit(1, b, cookie, operation, gather(2, 0, MESSAGE));
    } else {
        let operation = Operation::Write { remote_addr, rkey };
        network.submit(0, a, cookie, operation, gather(1, 0, MESSAGE));
    }
}

/// Sends a message, in as many ms at most, and compares every byte.
fn transfer(network: &mut Network, qps: [QpId; 2], reads: bool, within_ms: u64) {
    let side = usize::from(reads);
    let region = network.nodes[1].memory.regions.get_mut(&2).unwrap();
    region.bytes.fill(0);
    network.nodes[side].sends.clear();
    send(network, qps, reads, 1);
    let all_there = network.run_until(within_ms * MS, |network| {
        network.nodes[side].sends.len() == 1
    });
    assert!(all_there, "not within {within_ms} ms");
    assert_eq!(network.nodes[side].sends[0].status, Status::Success);
    let [sent, got] = [(0, 1), (1, 2)].map(|(node, key)| &network.nodes[node].memory.regions[&key]);
    assert!(sent.bytes == got.bytes, "other bytes arrived");
    // A search that is under way goes on without work.
    network.run(100 * MS);
}

fn payload_bytes(network: &Network) -> u16 {
    network.nodes[0]
        .endpoint
        .connections()
        .next()
        .unwrap()
        .payload_bytes
}

fn count(network: &Network, name: &str) -> u64 {
    let counters = network.nodes[0].endpoint.counters();
    let found = counters.iter().find(|(other, _)| *other == name);
    found.map(|(_, value)| value).unwrap()
}

// WIRE 4.25, 6.27
#[rstest]
fn a_hole_in_the_midst_of_a_message_costs_a_moment(
    #[values(false, true)] reads: bool,
    #[values(0.0, 0.1)] loss: f64,
    #[values(10_000, 1_000_000)] delay_ns: u64,
) {
    let weather = Weather {
        loss,
        delay_ns,
        ..CALM
    };
    let (mut network, qps) = pair(301, weather, 1);
    transfer(&mut network, qps, reads, 1_000);
    assert_eq!(payload_bytes(&network), 4_096);
    // A quarter of the message gets through.
    network.narrow_after = network.carried + 20;
    network.largest = UDP_AT_1500;
    send(&mut network, qps, reads, 2);
    let side = usize::from(reads);
    let ended = network.run_until(500 * MS, |network| network.nodes[side].sends.len() == 2);
    assert!(ended, "it stands still");
    assert_eq!(network.nodes[side].sends[1].status, Status::Success);
    let found = payload_bytes(&network);
    assert!(found >= 1_152 && usize::from(found) + DATA_HEADER_BYTES <= UDP_AT_1500);
    for _ in 0..2 {
        transfer(&mut network, qps, reads, 500);
    }
    // The search has found what passes.
    assert_eq!(payload_bytes(&network), 1_384);
    let connection = network.nodes[0].endpoint.connections().next().unwrap();
    assert_eq!(connection.most_payload_bytes, 4_096);
    assert!(count(&network, "holes_found") >= 1);
    // From now on nothing larger leaves.
    network.sniffed = Some(Vec::new());
    transfer(&mut network, qps, reads, 500);
    let sniffed = network.sniffed.take().unwrap();
    assert!(sniffed.iter().all(|packet| packet.len() <= UDP_AT_1500));
}

// WIRE 4.25
#[rstest]
#[case::smallest_of_ipv6(1_232, 1_152)]
#[case::less_than_that(1_000, 512)]
#[case::half_a_page(2_200, 2_048)]
#[case::nearly_all(4_159, 3_072)]
fn a_route_that_was_narrow_from_the_start(#[case] largest: usize, #[case] payload: u16) {
    let mut network = Network::pair(302, CALM, 1);
    network.largest = largest;
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    let message = pattern(3, MESSAGE as usize);
    network.region(0, 1, 0, message, Visibility::Relaxed);
    let empty = vec![0; MESSAGE as usize];
    network.region(1, 2, 0, empty, Visibility::Strict);
    transfer(&mut network, [a, b], false, 1_000);
    transfer(&mut network, [a, b], false, 100);
    assert_eq!(payload_bytes(&network), payload);
}

// WIRE 4.25
#[rstest]
fn loss_is_no_hole(#[values(0.1, 0.3)] loss: f64, #[values(10_000, 2_000_000)] delay_ns: u64) {
    let weather = Weather {
        loss,
        delay_ns,
        ..CALM
    };
    let (mut network, qps) = pair(303, weather, 1);
    for _ in 0..40 {
        transfer(&mut network, qps, false, 10_000);
    }
    assert!(count(&network, "packets_lost") > 300);
    assert_eq!(count(&network, "holes_found"), 0);
    assert_eq!(payload_bytes(&network), 4_096);
}

// WIRE 4.25
#[test]
fn a_dead_way_is_no_hole() {
    let (mut network, qps) = pair(304, CALM, 1);
    send(&mut network, qps, false, 1);
    network.weather.loss = 1.0;
    network.run(400 * MS);
    network.weather.loss = 0.0;
    let ended = network.run_until(100 * MS, |network| network.nodes[0].sends.len() == 1);
    assert!(ended && network.nodes[0].sends[0].status == Status::Success);
    assert_eq!(count(&network, "holes_found"), 0);
    assert_eq!(payload_bytes(&network), 4_096);
}

// WIRE 4.26
#[rstest]
fn the_size_grows_again_and_costs_no_data(#[values(0.0, 0.05)] loss: f64) {
    let weather = Weather { loss, ..CALM };
    let (mut network, qps) = pair(305, weather, 1);
    network.largest = UDP_AT_1500;
    for _ in 0..2 {
        transfer(&mut network, qps, false, 1_000);
    }
    network.run(1_000 * MS);
    transfer(&mut network, qps, false, 1_000);
    assert_eq!(payload_bytes(&network), 1_384);
    let searched = count(&network, "searches_sent");
    // The route is still narrow when the time has come: a few packets without data are lost.
    network.run(600_000 * MS);
    network.sniffed = Some(Vec::new());
    transfer(&mut network, qps, false, 1_000);
    network.run(100 * MS);
    assert_eq!(payload_bytes(&network), 1_384);
    assert_eq!(count(&network, "searches_sent"), searched + 5);
    let sniffed = network.sniffed.take().unwrap();
    let large = sniffed.iter().filter(|packet| packet.len() > UDP_AT_1500);
    let opcodes: Vec<u8> = large.map(|packet| packet[16]).collect();
    assert_eq!(opcodes, [0x0b; 5], "only FILLs are that large");
    // Now it is wide again.
    network.largest = usize::MAX;
    network.run(300_000 * MS);
    transfer(&mut network, qps, false, 1_000);
    assert_eq!(payload_bytes(&network), 1_384);
    network.run(300_000 * MS);
    transfer(&mut network, qps, false, 1_000);
    network.run(100 * MS);
    assert_eq!(payload_bytes(&network), 4_096);
    // An old hole is forgotten: losses that follow do not make a new one.
    network.weather.loss = 0.1;
    for _ in 0..10 {
        transfer(&mut network, qps, false, 1_000);
    }
    assert_eq!(payload_bytes(&network), 4_096);
}

// WIRE 4.26
#[test]
fn a_size_that_one_plane_does_not_carry_is_not_taken() {
    let (mut network, qps) = pair(306, CALM, 2);
    network.narrow = Some(ip(1, 1));
    network.largest = UDP_AT_1500;
    for _ in 0..10 {
        transfer(&mut network, qps, false, 1_000);
    }
    network.run(100 * MS);
    assert_eq!(payload_bytes(&network), 1_384);
    assert_eq!(count(&network, "holes_found"), 1);
}

// WIRE 1.19, 4.27
#[rstest]
#[case::mtu_1500(1_452, 1_384)]
#[case::mtu_1280(1_232, 1_152)]
#[case::mtu_4000(3_952, 3_072)]
fn a_router_that_tells_is_believed_at_once(#[case] largest: usize, #[case] payload: u16) {
    let (mut network, qps) = pair(307, CALM, 1);
    transfer(&mut network, qps, false, 100);
    (network.largest, network.tells_largest) = (largest, true);
    transfer(&mut network, qps, false, 20);
    assert_eq!(payload_bytes(&network), payload);
    assert_eq!(count(&network, "holes_found"), 0);
    // The search that follows ends with the first answer.
    network.run(100 * MS);
    transfer(&mut network, qps, false, 20);
    assert_eq!(payload_bytes(&network), payload);
    assert!(count(&network, "searches_sent") <= 1);
}

// WIRE 4.27
#[test]
fn a_false_word_of_icmp_is_found_out() {
    let (mut network, qps) = pair(308, CALM, 1);
    let info = network.nodes[0].endpoint.connections().next().unwrap();
    let route = info.paths[0].route;
    let now = network.now;
    network.nodes[0].endpoint.handle_too_large(now, route, 600);
    assert_eq!(payload_bytes(&network), 512);
    for _ in 0..10 {
        transfer(&mut network, qps, false, 100);
        network.run(10 * MS);
    }
    assert_eq!(payload_bytes(&network), 4_096);
}

// WIRE 4.28
#[test]
fn what_would_not_show_that_it_is_too_large_is_small() {
    let mut network = Network::pair(309, CALM, 1);
    network.sniffed = Some(Vec::new());
    let qps: Vec<_> = (0..200).map(|_| network.connected(0, 1)).collect();
    for (a, b) in qps {
        exchange(&mut network, (0, a), (1, b));
    }
    let sniffed = network.sniffed.take().unwrap();
    let others = |packet: &&Vec<u8>| Base::parse(packet).unwrap().0 != PacketType::Data;
    let largest = sniffed.iter().filter(others).map(Vec::len).max().unwrap();
    assert!(largest <= 1_216, "{largest}");
    assert!(largest > 1_000, "{largest}: the test proves nothing");
}

/// 7 retries, timeout 14.
const PATIENCE: u64 = 8 * (4_096 << 14);

/// Less than the smallest full packet has, and enough for everything that carries no data.
const UDP_TOO_SMALL: usize = 540;

// WIRE 4.32
#[rstest]
fn where_no_data_passes_the_bound_of_the_queue_pair_decides(
    #[values(false, true)] reads: bool,
    #[values(0.0, 0.1)] loss: f64,
    #[values(1, 2)] planes: u8,
) {
    let weather = Weather { loss, ..CALM };
    let (mut network, qps) = pair(310, weather, planes);
    transfer(&mut network, qps, reads, 1_000);
    network.largest = UDP_TOO_SMALL;
    let start = network.now;
    send(&mut network, qps, reads, 2);
    let side = usize::from(reads);
    let ended = network.run_until(2 * PATIENCE, |network| network.nodes[side].sends.len() == 2);
    assert!(ended, "it is sent again for ever");
    assert_eq!(network.nodes[side].sends[1].status, Status::RetryExceeded);
    let took = network.now.since_ns(start);
    assert!(
        (PATIENCE..PATIENCE + 300 * MS).contains(&took),
        "after {took} ns"
    );
    // Who sends the data says why.
    let said = network.nodes[0].swallowed_bytes.unwrap();
    assert!(said as usize > UDP_TOO_SMALL && said <= 576, "{said}");
    assert_eq!(network.nodes[0].silent, [(qps[0], true)]);
    assert_eq!(payload_bytes(&network), 512);
    // What is left has no data in it, and passes.
    let carried = network.carried;
    network.run(2 * PATIENCE);
    let later = network.carried - carried;
    assert!(later < 1_000, "{later} packets for nothing");
}

// WIRE 4.32
#[test]
fn what_is_small_enough_passes_beside_what_is_not() {
    let (mut network, [a, b]) = pair(311, CALM, 1);
    let (small, small_b) = network.connected(0, 1);
    network.largest = UDP_TOO_SMALL;
    let start = network.now;
    send(&mut network, [a, b], false, 2);
    let write = Operation::Write {
        remote_addr: 0,
        rkey: 2,
    };
    let done = |network: &Network, qp| {
        let sends = network.nodes[0].sends.iter();
        sends.filter(|done| done.qp == qp).count()
    };
    let mut submitted = 0;
    // Its queue is never empty.
    while network.now.since_ns(start) < 3 * PATIENCE {
        while submitted < done(&network, small) + 2 {
            submitted += 1;
            network.submit(0, small, 7, write, gather(1, 0, 400));
        }
        network.run(MS);
    }
    assert_eq!(network.nodes[0].silent, [(a, true)]);
    assert!(done(&network, small) > 1_000);
    let mut sends = network.nodes[0].sends.iter();
    assert!(sends.all(|done| done.qp == a || done.status == Status::Success));
    assert_eq!(network.nodes[1].failures, [], "{small_b:?}");
}

// WIRE 4.32
#[test]
fn a_way_that_is_mended_in_time_fails_nothing() {
    let (mut network, qps) = pair(312, CALM, 1);
    network.largest = UDP_TOO_SMALL;
    for _ in 0..4 {
        send(&mut network, qps, false, 2);
        network.run(PATIENCE * 3 / 4);
        network.largest = usize::MAX;
        network.run(PATIENCE / 2);
        network.largest = UDP_TOO_SMALL;
        network.run(PATIENCE / 2);
    }
    let statuses = network.nodes[0].sends.iter().map(|done| done.status);
    assert_eq!(statuses.collect::<Vec<_>>(), [Status::Success; 4]);
    assert_eq!(network.nodes[0].silent, []);
}

// WIRE 4.32
#[rstest]
fn a_plane_on_which_no_data_passes_is_left_alone(#[values(false, true)] reads: bool) {
    let (mut network, qps) = pair(313, CALM, 3);
    network.narrow = Some(ip(1, 1));
    network.largest = UDP_TOO_SMALL;
    for _ in 0..10 {
        transfer(&mut network, qps, reads, 1_000);
    }
    // The others carry everything.
    assert_eq!(payload_bytes(&network), 4_096);
    let on_it = |network: &Network| {
        let info = network.nodes[0].endpoint.connections().next().unwrap();
        info.lanes[1].paths
    };
    assert_eq!(on_it(&network), 0);
    let holes = count(&network, "holes_found");
    network.run(300_000 * MS);
    transfer(&mut network, qps, reads, 100);
    assert_eq!(
        (on_it(&network), count(&network, "holes_found")),
        (0, holes)
    );
    // It is tried again, and used if it is mended.
    network.narrow = None;
    network.largest = usize::MAX;
    network.run(300_000 * MS);
    for _ in 0..3 {
        transfer(&mut network, qps, reads, 100);
    }
    assert!(on_it(&network) > 1);
}
