//! Strict visibility between endpoints: the window that a sender is told, and what is held.

use super::network::*;
use crate::host::Visibility;
use crate::types::*;

const LOCAL: u32 = 11;
const BASE: u64 = 0x10_0000;
const BYTES: usize = 1 << 20;
const MESSAGES: u64 = 64;
const HOLD_BYTES: u32 = 300_000;

const LOSSY: Weather = Weather {
    loss: 0.05,
    skew_ns: 30_000,
    ..CALM
};

/// Two senders to one receiver, which shows the memory of the first as `first` says, and that of the second at once.
fn written(first: Visibility) -> Network {
    let mut network = Network::new(610, LOSSY);
    for host in 1..=3u8 {
        let mut config = config(u16::from(host), &[ip(host, 0)]);
        config.hold_bytes = HOLD_BYTES;
        network.add(config);
    }
    for (node, rkey, visibility) in [(0, 21, first), (2, 23, Visibility::Relaxed)] {
        let (qp, _) = network.connected(node, 1);
        network.region(
            node,
            LOCAL,
            BASE,
            pattern(rkey as u8, BYTES),
            Visibility::Relaxed,
        );
        network.region(1, rkey, BASE, vec![0; BYTES], visibility);
        for cookie in 0..MESSAGES {
            let piece = BYTES as u64 / MESSAGES;
            let addr = BASE + cookie * piece;
            let operation = Operation::Write {
                remote_addr: addr,
                rkey,
            };
            network.submit(
                node,
                qp,
                cookie,
                operation,
                gather(LOCAL, addr, piece as u32),
            );
        }
    }
    let sent = |network: &Network, node: usize| network.nodes[node].sends.len() as u64;
    assert!(network.run_until(5_000 * MS, |network| {
        sent(network, 0) == MESSAGES && sent(network, 2) == MESSAGES
    }));
    for rkey in [21, 23] {
        let found = network.nodes[1].memory.read(rkey, BASE, BYTES as u32);
        assert_eq!(found, Some(&pattern(rkey as u8, BYTES)[..]));
    }
    network
}

fn window_of(network: &Network, node: usize) -> u64 {
    let mut connections = network.nodes[node].endpoint.connections();
    connections.next().expect("it is open").window_bytes
}

// WIRE 7.5
#[test]
fn who_writes_to_strict_memory_may_have_no_more_under_way_than_can_be_held() {
    let network = written(Visibility::Strict);
    assert!(window_of(&network, 0) <= u64::from(HOLD_BYTES));
    assert!(
        window_of(&network, 2) > u64::from(HOLD_BYTES),
        "it is none of its business"
    );
    let relaxed = written(Visibility::Relaxed);
    assert!(window_of(&relaxed, 0) > u64::from(HOLD_BYTES));
}

// WIRE 7.4, 7.7
#[test]
fn what_is_held_is_counted_and_bounded() {
    let network = written(Visibility::Strict);
    let info = network.nodes[1].endpoint.info();
    assert!(info.counters.packets_held > 0, "{info:?}");
    assert_eq!(
        (info.held_bytes, info.hold_limit_bytes),
        (0, u64::from(HOLD_BYTES))
    );
    // The final packet of the oldest message is held in any case.
    let packet = 4096 + 64;
    assert!(
        (1..=u64::from(HOLD_BYTES) + packet).contains(&info.held_most_bytes),
        "{info:?}"
    );
    let relaxed = written(Visibility::Relaxed).nodes[1].endpoint.info();
    assert_eq!(
        (relaxed.counters.packets_held, relaxed.held_most_bytes),
        (0, 0)
    );
}
