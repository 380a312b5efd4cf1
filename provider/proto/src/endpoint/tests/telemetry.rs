//! What an endpoint tells about itself: the counters of the paths are those of the endpoint, in every test of this
//! folder; snapshots in parts are complete.

use super::network::*;
use crate::endpoint::Endpoint;
use crate::host::Visibility;
use crate::telemetry::{ConnectionState, Counters, PathState};
use crate::types::*;

const LOCAL: u32 = 11;
const REMOTE: u32 = 22;
const BASE: u64 = 0x10_0000;

/// Every counter of the paths, with those that are gone, is the counter of the endpoint that has its name.
pub(super) fn counters_add_up(endpoint: &Endpoint) {
    let info = endpoint.info();
    assert_eq!(info.counters, *endpoint.counters());
    let (mut sending, mut receiving) = (info.ended.sending, info.ended.receiving);
    for connection in endpoint.connections() {
        for path in &connection.paths {
            sending.add(&path.counters);
        }
        for path in &connection.receiving_paths {
            receiving.add(&path.counters);
        }
    }
    for (name, sum) in sending.iter().chain(receiving.iter()) {
        assert_eq!(Some(sum), value_of(&info.counters, name), "{name}");
    }
}

fn value_of(counters: &Counters, wanted: &str) -> Option<u64> {
    counters
        .iter()
        .find(|(name, _)| *name == wanted)
        .map(|(_, value)| value)
}

fn write(network: &mut Network, qp: QpId, cookie: u64, length: u32) {
    let operation = Operation::Write {
        remote_addr: BASE,
        rkey: REMOTE,
    };
    network.submit(0, qp, cookie, operation, gather(LOCAL, BASE, length));
}

fn with_regions(seed: u64, weather: Weather, planes: u8) -> (Network, QpId) {
    let mut network = Network::pair(seed, weather, planes);
    let (qp, _) = network.connected(0, 1);
    network.region(0, LOCAL, BASE, pattern(1, 4 << 20), Visibility::Relaxed);
    network.region(1, REMOTE, BASE, vec![0; 4 << 20], Visibility::Relaxed);
    (network, qp)
}

#[test]
fn a_snapshot_tells_what_a_lossy_transfer_did() {
    let rough = Weather {
        loss: 0.05,
        ce: 0.1,
        ..CALM
    };
    let (mut network, qp) = with_regions(501, rough, 1);
    write(&mut network, qp, 0, 4 << 20);
    assert!(network.run_until(5_000 * MS, |network| network.nodes[0].sends.len() == 1));
    let sender = network.nodes[0].endpoint.connections().next().unwrap();
    let receiver = network.nodes[1].endpoint.connections().next().unwrap();
    assert_eq!(sender.state, ConnectionState::Open);
    assert_eq!((sender.id, sender.peer_id), (receiver.peer_id, receiver.id));
    assert_eq!((sender.streams, sender.streams_opening), (1, 0));
    assert!(sender.began_at < sender.last_heard_at && sender.last_heard_at <= network.now);
    let sum = |count: fn(&crate::telemetry::SendingCounters) -> u64| -> u64 {
        sender.paths.iter().map(|path| count(&path.counters)).sum()
    };
    assert_eq!(sum(|counters| counters.data_bytes_sent), 4 << 20);
    assert!(sum(|counters| counters.retransmissions) > 0);
    assert!(sum(|counters| counters.packets_lost) > 0);
    let marked: u64 = receiver
        .receiving_paths
        .iter()
        .map(|path| path.counters.ce_received)
        .sum();
    let echoed = sum(|counters| counters.ce_echoed);
    assert!(echoed > 0 && echoed <= marked, "{echoed} of {marked}");
    for path in sender
        .paths
        .iter()
        .filter(|path| path.counters.data_packets_sent > 0)
    {
        assert!(
            path.min_rtt_ns >= 2 * CALM.delay_ns && path.srtt_ns >= path.min_rtt_ns,
            "{path:?}"
        );
        assert!(path.window_packets > 0.0);
    }
}

#[test]
fn paths_of_a_dead_plane_are_told_as_probing_or_resting() {
    let (mut network, qp) = with_regions(502, CALM, 2);
    write(&mut network, qp, 0, 1 << 20);
    assert!(network.run_until(1_000 * MS, |network| network.nodes[0].sends.len() == 1));
    network.cut = vec![ip(1, 1), ip(2, 1)];
    write(&mut network, qp, 1, 4 << 20);
    let seen = network.run_until(1_000 * MS, |network| {
        let connection = network.nodes[0].endpoint.connections().next().unwrap();
        let mut silent = connection
            .paths
            .iter()
            .filter(|path| path.probes_unanswered > 0);
        silent.any(|path| matches!(path.state, PathState::Probing | PathState::Resting))
    });
    assert!(seen);
    assert!(network.run_until(1_000 * MS, |network| network.nodes[0].sends.len() == 2));
    let connection = network.nodes[0].endpoint.connections().next().unwrap();
    let moves: u64 = connection
        .paths
        .iter()
        .map(|path| path.counters.moves)
        .sum();
    assert!(moves > 0);
    for path in &connection.paths {
        assert_eq!(path.resting, path.state == PathState::Resting);
        assert_eq!(
            path.plane, path.route.local.0,
            "a plane for each address here"
        );
    }
}

#[test]
fn connections_in_parts_are_all_connections_once() {
    let mut network = Network::new(503, CALM);
    network.add(config(0, &[ip(1, 0)]));
    let mut pairs = Vec::new();
    for host in 1..=7u8 {
        let node = network.add(config(u16::from(host), &[ip(100 + host, 0)]));
        pairs.push((node, network.connected(node, 0)));
    }
    network.run(50 * MS);
    // A hole in the table.
    let (node, (a, b)) = pairs[3];
    let now = network.now;
    for (node, qp) in [(node, a), (0, b)] {
        let Node {
            endpoint, memory, ..
        } = &mut network.nodes[node];
        endpoint.destroy_qp(now, qp, memory);
    }
    network.run(3_000 * MS);
    let endpoint = &network.nodes[0].endpoint;
    let (mut told, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let (some, next) = endpoint.some_connections(at, 2);
        assert!(some.len() <= 2);
        told.extend(some);
        from = next;
    }
    assert_eq!(told, endpoint.connections().collect::<Vec<_>>());
    assert_eq!(told.len(), 6);
    let info = endpoint.info();
    assert_eq!(
        (info.connections, info.queue_pairs, info.ended.connections),
        (6, 6, 1)
    );
}
