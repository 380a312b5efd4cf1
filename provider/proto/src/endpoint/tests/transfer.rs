//! Transfers: every operation with its bytes, under loss, duplication, and order that differs from path to path.

use rstest::rstest;

use super::network::*;
use crate::event::ReceiveKind;
use crate::host::Visibility;
use crate::train::Train;
use crate::types::*;

const ROUGH: Weather = Weather {
    loss: 0.1,
    duplicates: 0.02,
    delay_ns: 20_000,
    skew_ns: 30_000,
    icmp: false,
    ce: 0.05,
};

const LOCAL: u32 = 11;
const REMOTE: u32 = 22;
const BASE: u64 = 0x10_0000;

fn with_regions(
    seed: u64,
    weather: Weather,
    planes: u8,
    bytes: usize,
    visibility: Visibility,
) -> (Network, QpId, QpId) {
    let mut network = Network::pair(seed, weather, planes);
    let (a, b) = network.connected(0, 1);
    network.region(
        0,
        LOCAL,
        BASE,
        pattern(seed as u8, bytes),
        Visibility::Relaxed,
    );
    network.region(1, REMOTE, BASE, vec![0; bytes], visibility);
    (network, a, b)
}

fn wait_sends(network: &mut Network, count: usize) {
    let done = network.run_until(20_000 * MS, |network| network.nodes[0].sends.len() >= count);
    let counters: Vec<_> = network
        .nodes
        .iter()
        .map(|node| *node.endpoint.counters())
        .collect();
    assert!(
        done,
        "{} of {count} completed; {counters:#?}",
        network.nodes[0].sends.len()
    );
    assert_eq!(network.nodes[0].sends.len(), count);
    for (at, done) in network.nodes[0].sends.iter().enumerate() {
        assert_eq!((done.cookie, done.status), (at as u64, Status::Success));
    }
}

#[rstest]
#[case(CALM)]
#[case(ROUGH)]
fn writes_of_all_sizes(
    #[case] weather: Weather,
    #[values(21, 22)] seed: u64,
    #[values(Visibility::Relaxed, Visibility::Strict)] visibility: Visibility,
) {
    const SIZES: [u32; 12] = [
        0, 1, 63, 64, 4095, 4096, 4097, 12_288, 61_440, 65_536, 300_001, 1_000_000,
    ];
    let total: u32 = SIZES.iter().sum();
    let (mut network, a, _) = with_regions(seed, weather, 1, total as usize, visibility);
    let mut at = BASE;
    for (cookie, size) in SIZES.iter().enumerate() {
        let operation = Operation::Write {
            remote_addr: at,
            rkey: REMOTE,
        };
        network.submit(0, a, cookie as u64, operation, gather(LOCAL, at, *size));
        at += u64::from(*size);
    }
    wait_sends(&mut network, SIZES.len());
    assert!(
        network.nodes[1].memory.regions[&REMOTE].bytes
            == network.nodes[0].memory.regions[&LOCAL].bytes
    );
}

#[rstest]
#[case(CALM)]
#[case(ROUGH)]
fn sends_land_in_their_receives(#[case] weather: Weather, #[values(31, 32, 33)] seed: u64) {
    const COUNT: u64 = 100;
    let (mut network, a, b) = with_regions(seed, weather, 1, 2_000_000, Visibility::Relaxed);
    let size = |number: u64| (number * 997 % 20_000) as u32;
    for number in 0..COUNT {
        let sge = Sge {
            addr: BASE + number * 20_000,
            length: 20_000,
            lkey: REMOTE,
        };
        network.post_receive(1, b, number, sge);
    }
    for number in 0..COUNT {
        let operation = if number % 2 == 0 {
            Operation::Send
        } else {
            Operation::SendImm([number as u8; 4])
        };
        network.submit(
            0,
            a,
            number,
            operation,
            gather(LOCAL, BASE + number * 7, size(number)),
        );
    }
    wait_sends(&mut network, COUNT as usize);
    assert_eq!(network.nodes[1].receives.len(), COUNT as usize);
    for number in 0..COUNT {
        let done = network.nodes[1].receives[number as usize];
        assert_eq!(
            (done.cookie, done.byte_length, done.status),
            (number, size(number), Status::Success)
        );
        let kind = if number % 2 == 0 {
            ReceiveKind::Send
        } else {
            ReceiveKind::SendImm([number as u8; 4])
        };
        assert_eq!(done.kind, kind);
        let sent = network.nodes[0]
            .memory
            .read(LOCAL, BASE + number * 7, size(number))
            .unwrap();
        let received = network.nodes[1]
            .memory
            .read(REMOTE, BASE + number * 20_000, size(number))
            .unwrap();
        assert!(sent == received, "message {number}");
    }
}

#[rstest]
#[case(CALM)]
#[case(ROUGH)]
fn sends_wait_for_receives_that_come_later(#[case] weather: Weather) {
    let (mut network, a, b) = with_regions(41, weather, 1, 100_000, Visibility::Relaxed);
    for number in 0..20 {
        network.submit(0, a, number, Operation::Send, gather(LOCAL, BASE, 5_000));
    }
    for number in 0..20 {
        network.run(3 * MS);
        let sge = Sge {
            addr: BASE,
            length: 5_000,
            lkey: REMOTE,
        };
        network.post_receive(1, b, number, sge);
    }
    wait_sends(&mut network, 20);
    assert_eq!(network.nodes[1].receives.len(), 20);
}

#[rstest]
#[case(CALM)]
#[case(ROUGH)]
fn reads_and_atomics(#[case] weather: Weather, #[values(51, 52)] seed: u64) {
    let (mut network, a, _) = with_regions(seed, weather, 1, 2_000_000, Visibility::Relaxed);
    network.nodes[1]
        .memory
        .regions
        .get_mut(&REMOTE)
        .unwrap()
        .bytes = pattern(99, 2_000_000);
    let sizes = [0, 1, 8, 4096, 100_000, 1_000_000];
    let mut cookie = 0;
    let mut at = BASE;
    for size in sizes {
        let operation = Operation::Read {
            remote_addr: at,
            rkey: REMOTE,
        };
        network.submit(0, a, cookie, operation, gather(LOCAL, at, size));
        at += u64::from(size);
        cookie += 1;
    }
    let counter = BASE + 1_999_992;
    let Node { memory, .. } = &mut network.nodes[1];
    let region = memory.regions.get_mut(&REMOTE).unwrap();
    region.bytes[1_999_992..].copy_from_slice(&5u64.to_ne_bytes());
    for number in 0..40 {
        let operation = Operation::FetchAdd {
            remote_addr: counter,
            rkey: REMOTE,
            add: 3,
        };
        network.submit(
            0,
            a,
            cookie,
            operation,
            gather(LOCAL, BASE + 1_500_000 + number * 8, 8),
        );
        cookie += 1;
    }
    let operation = Operation::CompareSwap {
        remote_addr: counter,
        rkey: REMOTE,
        compare: 125,
        swap: 7,
    };
    network.submit(0, a, cookie, operation, gather(LOCAL, BASE + 1_600_000, 8));
    wait_sends(&mut network, cookie as usize + 1);
    let read: u32 = sizes.iter().sum();
    let expected = network.nodes[1].memory.read(REMOTE, BASE, read).unwrap();
    assert!(expected == network.nodes[0].memory.read(LOCAL, BASE, read).unwrap());
    for number in 0..40u64 {
        let found = network.nodes[0]
            .memory
            .read(LOCAL, BASE + 1_500_000 + number * 8, 8)
            .unwrap();
        assert_eq!(found, (5 + 3 * number).to_ne_bytes());
    }
    assert_eq!(
        network.nodes[0]
            .memory
            .read(LOCAL, BASE + 1_600_000, 8)
            .unwrap(),
        125u64.to_ne_bytes()
    );
    assert_eq!(
        network.nodes[1].memory.read(REMOTE, counter, 8).unwrap(),
        7u64.to_ne_bytes()
    );
}

#[rstest]
#[case(CALM)]
#[case(ROUGH)]
fn an_immediate_comes_after_all_writes_before_it(
    #[case] weather: Weather,
    #[values(61, 62, 63)] seed: u64,
) {
    let (mut network, a, b) = with_regions(seed, weather, 1, 1_000_000, Visibility::Relaxed);
    network.post_receive(
        1,
        b,
        77,
        Sge {
            addr: BASE,
            length: 0,
            lkey: REMOTE,
        },
    );
    let operation = Operation::Write {
        remote_addr: BASE,
        rkey: REMOTE,
    };
    network.submit(0, a, 0, operation, gather(LOCAL, BASE, 1_000_000));
    let operation = Operation::WriteImm {
        remote_addr: 0,
        rkey: 0,
        imm: [1, 2, 3, 4],
    };
    network.submit(0, a, 1, operation, Payload::Gather(SgeList::new()));
    assert!(network.run_until(10_000 * MS, |network| !network.nodes[1].receives.is_empty()));
    let done = network.nodes[1].receives[0];
    assert_eq!(
        (done.cookie, done.kind, done.byte_length),
        (77, ReceiveKind::WriteImm([1, 2, 3, 4]), 0)
    );
    assert!(
        network.nodes[1].memory.regions[&REMOTE].bytes
            == network.nodes[0].memory.regions[&LOCAL].bytes
    );
    wait_sends(&mut network, 2);
}

#[test]
fn both_directions_and_many_streams_at_once() {
    let mut network = Network::pair(71, ROUGH, 1);
    let pairs: Vec<_> = (0..20).map(|_| network.connected(0, 1)).collect();
    for node in 0..2 {
        network.region(
            node,
            LOCAL,
            BASE,
            pattern(node as u8, 400_000),
            Visibility::Relaxed,
        );
        network.region(node, REMOTE, BASE, vec![0; 400_000], Visibility::Relaxed);
    }
    for (at, pair) in pairs.iter().enumerate() {
        let addr = BASE + at as u64 * 20_000;
        let operation = Operation::Write {
            remote_addr: addr,
            rkey: REMOTE,
        };
        network.submit(0, pair.0, at as u64, operation, gather(LOCAL, addr, 20_000));
        network.submit(1, pair.1, at as u64, operation, gather(LOCAL, addr, 20_000));
    }
    let done = network.run_until(20_000 * MS, |network| {
        network.nodes.iter().all(|node| node.sends.len() == 20)
    });
    assert!(done);
    for (from, to) in [(0, 1), (1, 0)] {
        assert!(
            network.nodes[to].memory.regions[&REMOTE].bytes
                == network.nodes[from].memory.regions[&LOCAL].bytes
        );
    }
}

#[test]
fn a_ping_pong_costs_one_acknowledgement_a_message() {
    let (mut network, a, b) = with_regions(81, CALM, 1, 100_000, Visibility::Relaxed);
    network.region(0, REMOTE, BASE, vec![0; 100_000], Visibility::Relaxed);
    for number in 0..200 {
        network.post_receive(
            0,
            a,
            number,
            Sge {
                addr: BASE,
                length: 64,
                lkey: REMOTE,
            },
        );
        network.post_receive(
            1,
            b,
            number,
            Sge {
                addr: BASE,
                length: 64,
                lkey: REMOTE,
            },
        );
    }
    network.run(10 * MS);
    let before = (
        *network.nodes[0].endpoint.counters(),
        *network.nodes[1].endpoint.counters(),
    );
    let start = network.now;
    for number in 0..100 {
        for (from, from_qp, to) in [(0, a, 1), (1, b, 0)] {
            network.submit(
                from,
                from_qp,
                number,
                Operation::Send,
                Payload::Inline(smallvec::smallvec![7; 8]),
            );
            let count = number as usize + 1;
            assert!(
                network.run_until(100 * MS, |network| network.nodes[to].receives.len()
                    == count)
            );
        }
    }
    let took = network.now.since_ns(start);
    assert!(
        took <= 100 * 2 * (CALM.delay_ns + 100),
        "latency waits for something: {took}"
    );
    let after = (
        *network.nodes[0].endpoint.counters(),
        *network.nodes[1].endpoint.counters(),
    );
    for (before, after) in [(before.0, after.0), (before.1, after.1)] {
        let (acks, data) = (
            after.acks_sent - before.acks_sent,
            after.data_packets_sent - before.data_packets_sent,
        );
        assert!(acks <= 115, "{acks} ACKs for 100 messages");
        assert!(data <= 115, "{data} packets for 100 messages");
    }
}

// WIRE 5.11
#[rstest]
#[case::ack_is_the_larger(8, 1)]
#[case::ack_is_padded(300, 1)]
#[case::too_much_padding(600, 2)]
fn an_acknowledgement_rides_in_front_of_a_small_answer(
    #[case] answer_bytes: usize,
    #[case] trains: usize,
) {
    let (mut network, a, b) = with_regions(83, CALM, 1, 100_000, Visibility::Relaxed);
    network.region(0, REMOTE, BASE, vec![0; 100_000], Visibility::Relaxed);
    for (node, qp) in [(0, a), (1, b)] {
        let sge = Sge {
            addr: BASE,
            length: 1000,
            lkey: REMOTE,
        };
        network.post_receive(node, qp, 0, sge);
    }
    network.run(10 * MS);
    network.nodes[1].mute = true;
    let question = Payload::Inline(smallvec::smallvec![7; 8]);
    network.submit(0, a, 0, Operation::Send, question);
    assert!(network.run_until(MS, |network| network.nodes[1].receives.len() == 1));
    let answer = Payload::Inline(smallvec::smallvec![9; answer_bytes]);
    network.submit(1, b, 0, Operation::Send, answer);
    let (mut train, mut sent) = (Train::default(), Vec::new());
    while {
        let node = &mut network.nodes[1];
        node.endpoint
            .poll_transmit(network.now, &mut train, &mut node.memory)
    } {
        let lengths = train.segments().iter().map(|segment| segment.length);
        sent.push(lengths.collect::<Vec<_>>());
        network.carry(1, &train);
    }
    assert_eq!(sent.len(), trains, "{sent:?}");
    if let [train] = &sent[..] {
        // The kernel cuts a train into equal packets; only the last may be shorter.
        assert!(train.len() == 2 && train[0] >= train[1], "{train:?}");
    }
    // On hardware a send has completed when its answer comes.
    assert!(network.run_until(MS, |network| network.nodes[0].receives.len() == 1));
    assert_eq!(network.nodes[0].sends.len(), 1);
    assert_eq!(
        network.nodes[0].memory.regions[&REMOTE].bytes[..answer_bytes],
        vec![9; answer_bytes]
    );
}

#[test]
fn a_stream_uses_trains_and_many_paths() {
    let (mut network, a, _) = with_regions(91, CALM, 1, 8 << 20, Visibility::Relaxed);
    let operation = Operation::Write {
        remote_addr: BASE,
        rkey: REMOTE,
    };
    network.submit(0, a, 0, operation, gather(LOCAL, BASE, 8 << 20));
    wait_sends(&mut network, 1);
    let counters = *network.nodes[0].endpoint.counters();
    let per_train = counters.data_packets_sent as f64 / counters.trains_sent as f64;
    assert!(per_train > 8.0, "{per_train} packets a train");
    assert_eq!(counters.retransmissions, 0);
    let info = network.nodes[0].endpoint.connections().next().unwrap();
    let used = info.paths.iter().filter(|path| path.srtt_ns > 0).count();
    assert!(used >= 8, "{used} paths used");
    let acks = network.nodes[1].endpoint.counters().acks_sent;
    assert!(
        acks <= counters.data_packets_sent + 40,
        "{acks} ACKs for {} packets",
        counters.data_packets_sent
    );
}

#[test]
fn small_messages_of_several_streams_share_trains() {
    let mut network = Network::pair(92, CALM, 1);
    let pairs: Vec<_> = (0..8).map(|_| network.connected(0, 1)).collect();
    network.region(0, LOCAL, BASE, pattern(1, 4096), Visibility::Relaxed);
    network.region(1, REMOTE, BASE, vec![0; 4096], Visibility::Relaxed);
    network.run(10 * MS);
    let now = network.now;
    let before = *network.nodes[0].endpoint.counters();
    for number in 0..80u64 {
        let request = SendRequest {
            cookie: number / 8,
            operation: Operation::Write {
                remote_addr: BASE,
                rkey: REMOTE,
            },
            payload: gather(LOCAL, BASE, 64),
            length: 64,
            fence: false,
            solicited: false,
            fault: None,
        };
        network.nodes[0]
            .endpoint
            .submit(now, pairs[number as usize % 8].0, request);
    }
    assert!(network.run_until(100 * MS, |network| network.nodes[0].sends.len() == 80));
    let after = *network.nodes[0].endpoint.counters();
    let trains = after.trains_sent - before.trains_sent;
    assert!(trains <= 14, "{trains} trains for 80 small messages");
}

// WIRE 4.21, 4.22
#[test]
fn planes_are_all_used_and_one_may_die() {
    let (mut network, a, _) = with_regions(93, CALM, 4, 16 << 20, Visibility::Relaxed);
    let operation = Operation::Write {
        remote_addr: BASE,
        rkey: REMOTE,
    };
    network.submit(0, a, 0, operation, gather(LOCAL, BASE, 4 << 20));
    wait_sends(&mut network, 1);
    let info = network.nodes[0].endpoint.connections().next().unwrap();
    for plane in 0..4 {
        let on_plane = info
            .paths
            .iter()
            .filter(|path| path.route.local == LocalIndex(plane));
        assert!(on_plane.clone().count() == 4 && on_plane.clone().any(|path| path.srtt_ns > 0));
    }
    network.cut = vec![ip(1, 0), ip(2, 0)];
    let addr = BASE + (4 << 20);
    let operation = Operation::Write {
        remote_addr: addr,
        rkey: REMOTE,
    };
    network.submit(0, a, 1, operation, gather(LOCAL, addr, 12 << 20));
    let start = network.now;
    wait_sends(&mut network, 2);
    assert!(
        network.now.since_ns(start) < 100 * MS,
        "{}",
        network.now.since_ns(start)
    );
    assert!(
        network.nodes[1].memory.regions[&REMOTE].bytes
            == network.nodes[0].memory.regions[&LOCAL].bytes
    );
    // And it comes back into use.
    network.cut.clear();
    network.run(100 * MS);
    for round in 0..20 {
        let operation = Operation::Write {
            remote_addr: addr,
            rkey: REMOTE,
        };
        network.submit(0, a, 2 + round, operation, gather(LOCAL, addr, 4 << 20));
        network.run(20 * MS);
    }
    wait_sends(&mut network, 22);
    let info = network.nodes[0].endpoint.connections().next().unwrap();
    let back = info
        .paths
        .iter()
        .any(|path| path.route.local == LocalIndex(0) && !path.resting);
    assert!(back, "{:#?}", info.paths);
}
