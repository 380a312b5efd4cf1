//! Random work over a random network: everything completes once, in order, with the right bytes; afterwards nothing ticks.

use rand::Rng;
use rstest::rstest;

use super::network::*;
use crate::host::Visibility;
use crate::types::*;

const LOCAL: u32 = 11;
const REMOTE: u32 = 22;
const BASE: u64 = 0x1_0000;
const SLOT: u64 = 40_000;
const MESSAGES: u64 = 40;

fn weather(network: &mut Network) -> Weather {
    let rng = &mut network.rng;
    Weather {
        loss: [0.0, 0.001, 0.01, 0.1, 0.3][rng.random_range(0..5)],
        duplicates: [0.0, 0.01, 0.1][rng.random_range(0..3)],
        delay_ns: [1_000, 20_000, 500_000][rng.random_range(0..3)],
        skew_ns: [0, 10_000, 2_000_000][rng.random_range(0..3)],
        icmp: false,
        ce: [0.0, 0.0, 0.1, 1.0][rng.random_range(0..4)],
    }
}

#[rstest]
fn random_work_completes(
    #[values(0, 1, 2, 3)] tens: u64,
    #[values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)] ones: u64,
) {
    let seed = 1_000 + tens * 10 + ones;
    let mut network = Network::new(seed, CALM);
    network.weather = weather(&mut network);
    let planes = network.rng.random_range(1..4);
    let driving = if network.rng.random_bool(0.5) {
        Driving::Busy
    } else {
        Driving::Sockets
    };
    for host in 1..=2u8 {
        let addresses: Vec<_> = (0..planes).map(|plane| ip(host, plane)).collect();
        let mut config = config(u16::from(host), &addresses);
        config.driving = driving;
        config.paths = network.rng.random_range(1..=16);
        config.source_slots = network.rng.random_range(1..=16);
        config.payload_bytes = [1400, 4096, 8192][network.rng.random_range(0..3)];
        config.train_segments = network.rng.random_range(1..=64);
        config.receive_window_bytes = [20_000, 200_000, 2 << 20][network.rng.random_range(0..3)];
        config.hold_bytes = [10_000, 4 << 20][network.rng.random_range(0..2)];
        network.add(config);
    }
    let pairs: Vec<_> = (0..network.rng.random_range(1..6))
        .map(|_| network.connected(0, 1))
        .collect();
    let bytes = (pairs.len() as u64 * MESSAGES * SLOT) as usize;
    let visibility = if network.rng.random_bool(0.5) {
        Visibility::Strict
    } else {
        Visibility::Relaxed
    };
    network.region(
        0,
        LOCAL,
        BASE,
        pattern(seed as u8, bytes),
        Visibility::Relaxed,
    );
    network.region(1, REMOTE, BASE, vec![0; bytes], visibility);
    let mut sent = Vec::new();
    for number in 0..MESSAGES {
        for (stream, (a, b)) in pairs.iter().enumerate() {
            let addr = BASE + (stream as u64 * MESSAGES + number) * SLOT;
            let length = [0, 8, 100, 4096, 40_000][network.rng.random_range(0..5)]
                .min(network.rng.random_range(1..=40_000));
            let receive = Sge {
                addr,
                length: SLOT as u32,
                lkey: REMOTE,
            };
            let operation = match network.rng.random_range(0..5) {
                0 => Operation::Send,
                1 => Operation::SendImm([number as u8; 4]),
                2 => Operation::WriteImm {
                    remote_addr: addr,
                    rkey: REMOTE,
                    imm: [number as u8; 4],
                },
                _ => Operation::Write {
                    remote_addr: addr,
                    rkey: REMOTE,
                },
            };
            if !matches!(operation, Operation::Write { .. }) {
                network.post_receive(1, *b, number, receive);
            }
            network.submit(0, *a, number, operation, gather(LOCAL, addr, length));
            sent.push((addr, length));
            if network.rng.random_bool(0.1) {
                let pause = network.rng.random_range(0..3 * MS);
                network.run(pause);
            }
        }
    }
    let count = sent.len();
    let done = network.run_until(60_000 * MS, |network| network.nodes[0].sends.len() >= count);
    let failures = &network.nodes[0].failures;
    assert!(
        done,
        "seed {seed}: {} of {count}, {failures:?}",
        network.nodes[0].sends.len()
    );
    for (stream, (a, _)) in pairs.iter().enumerate() {
        let of_stream: Vec<_> = network.nodes[0]
            .sends
            .iter()
            .filter(|done| done.qp == *a)
            .collect();
        let in_order = of_stream
            .iter()
            .enumerate()
            .all(|(at, done)| done.cookie == at as u64);
        let good = of_stream.iter().all(|done| done.status == Status::Success);
        assert!(
            in_order && good && of_stream.len() as u64 == MESSAGES,
            "seed {seed} stream {stream}"
        );
    }
    for (addr, length) in sent {
        let there = network.nodes[1].memory.read(REMOTE, addr, length).unwrap();
        assert!(
            there == network.nodes[0].memory.read(LOCAL, addr, length).unwrap(),
            "seed {seed}"
        );
    }
    network.run(30_000 * MS);
    for node in &mut network.nodes {
        assert!(!node.endpoint.outstanding(), "seed {seed}");
        assert_eq!(node.endpoint.poll_timeout(), None, "seed {seed}");
    }
}

#[rstest]
fn a_cold_start_without_a_single_free_packet(#[values(0.0, 0.5)] loss: f64) {
    let mut network = Network::new(300, CALM);
    network.add(config(0, &[ip(1, 0)]));
    let mut senders = Vec::new();
    network.region(0, REMOTE, BASE, vec![0; 80 * 10_000], Visibility::Relaxed);
    for host in 1..=80u8 {
        let node = network.add(config(u16::from(host), &[ip(100 + host, 0)]));
        network.region(
            node,
            LOCAL,
            BASE,
            pattern(host, 10_000),
            Visibility::Relaxed,
        );
        senders.push((node, network.connected(node, 0).0));
    }
    network.run(500 * MS);
    network.weather.loss = loss;
    for (at, (node, qp)) in senders.iter().enumerate() {
        let remote_addr = BASE + at as u64 * 10_000;
        network.submit(
            *node,
            *qp,
            0,
            Operation::Write {
                remote_addr,
                rkey: REMOTE,
            },
            gather(LOCAL, BASE, 10_000),
        );
    }
    let done = network.run_until(5_000 * MS, |network| {
        network.nodes[1..].iter().all(|node| node.sends.len() == 1)
    });
    assert!(done);
    for (at, (node, _)) in senders.iter().enumerate() {
        let there = network.nodes[0]
            .memory
            .read(REMOTE, BASE + at as u64 * 10_000, 10_000)
            .unwrap();
        assert!(
            there
                == network.nodes[*node]
                    .memory
                    .read(LOCAL, BASE, 10_000)
                    .unwrap()
        );
    }
}
