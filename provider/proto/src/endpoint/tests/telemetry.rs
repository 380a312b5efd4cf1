//! What an endpoint tells about itself: the counters of the paths are those of the endpoint, in every test of this
//! folder; snapshots in parts are complete.

use rstest::rstest;

use super::network::*;
use crate::endpoint::{Endpoint, EndpointConfig};
use crate::host::Visibility;
use crate::telemetry::log::{Ending, Record, What, route_by_number};
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
    regions_of(Network::pair(seed, weather, planes))
}

fn regions_of(mut network: Network) -> (Network, QpId) {
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

fn log_of(network: &mut Network, node: usize) -> Vec<Record> {
    let now = network.now;
    std::iter::from_fn(|| network.nodes[node].endpoint.poll_log(now)).collect()
}

fn names(log: &[Record]) -> Vec<&'static str> {
    log.iter().map(|record| record.what.name()).collect()
}

#[test]
fn the_log_tells_the_life_of_a_connection_in_order() {
    let mut network = Network::pair(504, CALM, 1);
    for node in &mut network.nodes {
        node.endpoint.enable_log(1000);
    }
    let (a, _) = network.connected(0, 1);
    network.region(0, LOCAL, BASE, pattern(1, 4096), Visibility::Relaxed);
    network.region(1, REMOTE, BASE, vec![0; 4096], Visibility::Relaxed);
    write(&mut network, a, 0, 4096);
    assert!(network.run_until(100 * MS, |network| network.nodes[0].sends.len() == 1));
    let log = log_of(&mut network, 0);
    assert_eq!(
        names(&log),
        [
            "connection_begun",
            "stream_opening",
            "connection_opened",
            "stream_opened"
        ]
    );
    let id = network.nodes[0].endpoint.connections().next().unwrap().id;
    assert!(
        log.iter()
            .all(|record| record.subject.connection == Some(id))
    );
    assert!(log.is_sorted_by_key(|record| record.at));

    let now = network.now;
    let Node {
        endpoint, memory, ..
    } = &mut network.nodes[0];
    endpoint.destroy_qp(now, a, memory);
    network.run(3_000 * MS);
    let mine = names(&log_of(&mut network, 0));
    assert_eq!(
        mine,
        ["stream_ended", "connection_closing", "connection_ended"]
    );
    let theirs = log_of(&mut network, 1);
    assert_eq!(
        names(&theirs)[4..],
        ["stream_peer_gone", "connection_ended"]
    );
    let what = theirs.last().unwrap().what;
    assert!(
        matches!(
            what,
            What::ConnectionEnded {
                why: Ending::ClosedByPeer,
                ..
            }
        ),
        "{what:?}"
    );
}

// WIRE 4.20
#[test]
fn the_log_tells_of_moves_rests_and_returns_as_the_counters_do() {
    let (mut network, qp) = with_regions(505, CALM, 2);
    write(&mut network, qp, 0, 1 << 20);
    assert!(network.run_until(1_000 * MS, |network| network.nodes[0].sends.len() == 1));
    network.nodes[0].endpoint.enable_log(10_000);
    let before = *network.nodes[0].endpoint.counters();
    network.cut = vec![ip(1, 1), ip(2, 1)];
    write(&mut network, qp, 1, 4 << 20);
    assert!(network.run_until(1_000 * MS, |network| network.nodes[0].sends.len() == 2));
    network.cut.clear();
    write(&mut network, qp, 2, 4 << 20);
    assert!(network.run_until(1_000 * MS, |network| network.nodes[0].sends.len() == 3));
    network.run(200 * MS);
    let log = log_of(&mut network, 0);
    let count = |name: &str| names(&log).iter().filter(|other| **other == name).count() as u64;
    let after = *network.nodes[0].endpoint.counters();
    assert_eq!(count("path_moved"), after.moves - before.moves);
    assert_eq!(count("timeout"), after.rtos - before.rtos);
    assert!(count("probe_unanswered") > 0 && count("path_moved") > 0);
    let mut resting = [false; 64];
    for record in &log {
        let Some(path) = record.subject.path else {
            continue;
        };
        let resting = &mut resting[usize::from(path.0)];
        match record.what {
            What::PathRests => assert!(
                !std::mem::replace(resting, true),
                "it rests already: {record}"
            ),
            What::PathReturns => assert!(
                std::mem::replace(resting, false),
                "it did not rest: {record}"
            ),
            _ => {}
        }
    }
    assert!(count("path_rests") > 0);
    for path in network.nodes[0]
        .endpoint
        .connections()
        .next()
        .unwrap()
        .paths
    {
        assert_eq!(
            path.resting,
            resting[usize::from(path.id.0)],
            "path {}",
            path.id.0
        );
    }
}

#[test]
fn the_log_tells_refusals_cuts_and_drops() {
    let marks = Weather { ce: 0.5, ..CALM };
    let (mut network, qp) = with_regions(506, marks, 1);
    for node in &mut network.nodes {
        node.endpoint.enable_log(10_000);
    }
    write(&mut network, qp, 0, 4 << 20);
    network.submit(0, qp, 1, Operation::Send, gather(LOCAL, BASE, 100));
    network.run(50 * MS);
    let from = std::net::SocketAddr::new(ip(2, 0), 1);
    let to = std::net::SocketAddr::new(ip(1, 0), PORT_BASE + 1);
    network.inject(from, to, vec![7; 100]);
    network.run(MS);
    let (sender, receiver) = (log_of(&mut network, 0), log_of(&mut network, 1));
    let cut = sender.iter().find_map(|record| match record.what {
        What::WindowCut {
            from_packets,
            to_packets,
            marked,
            ..
        } => Some((from_packets, to_packets, marked)),
        _ => None,
    });
    assert!(
        cut.is_some_and(|(from, to, marked)| to < from && marked > 0),
        "{cut:?}"
    );
    let refused = |log: &[Record]| {
        log.iter()
            .filter(|record| record.to_string().contains("msn=2 code=rnr"))
            .count()
    };
    assert!(refused(&receiver) > 0 && refused(&sender) > 0);
    let counters = network.nodes[0].endpoint.counters();
    assert_eq!(refused(&sender) as u64, counters.rnr_received);
    assert!(
        sender
            .iter()
            .any(|record| record.to_string() == "dropped reason=dropped_malformed packets=1")
    );
}

#[test]
fn the_log_names_streams_that_fail_and_why() {
    let (mut network, qp) = with_regions(507, CALM, 1);
    network.run(20 * MS);
    network.nodes[0].endpoint.enable_log(1000);
    network.nodes[1].dead = true;
    write(&mut network, qp, 0, 100);
    network.run(5_000 * MS);
    let log = log_of(&mut network, 0);
    let failed = log
        .iter()
        .find(|record| matches!(record.what, What::StreamFailed { .. }));
    assert_eq!(
        failed.map(|record| record.text(&route_by_number).replace(&qpn_of(record), "")),
        Some("stream_failed status=retry_exceeded failure=fatal".into())
    );
}

fn qpn_of(record: &Record) -> String {
    format!(" qpn={}", record.subject.qpn.unwrap().get())
}

#[test]
fn a_log_changes_nothing_else() {
    let rough = Weather {
        loss: 0.1,
        ce: 0.2,
        skew_ns: 50_000,
        ..CALM
    };
    let run = |logged: bool| {
        let (mut network, qp) = with_regions(508, rough, 2);
        if logged {
            network.nodes[0].endpoint.enable_log(10);
        }
        write(&mut network, qp, 0, 4 << 20);
        network.run(2_000 * MS);
        assert_eq!(network.nodes[0].sends.len(), 1);
        (*network.nodes[0].endpoint.counters(), network.carried)
    };
    assert_eq!(run(true), run(false));
}

// WIRE 8.22
/// A lone sender is not limited: there are two.
#[rstest]
#[case(1, 2)]
#[case(2, 4)]
fn a_small_grant_needs_few_paths(#[case] planes: u8, #[case] most: usize) {
    let mut network = Network::new(503, CALM);
    for host in 1..=3 {
        let addresses: Vec<_> = (0..planes).map(|plane| ip(host, plane)).collect();
        network.add(EndpointConfig {
            driving: Driving::Busy,
            ..config(u16::from(host), &addresses)
        });
    }
    network.nodes[1].endpoint.set_drain(Some(50_000_000), None);
    network.region(1, REMOTE, BASE, vec![0; 4 << 20], Visibility::Relaxed);
    let qps = [0, 2].map(|node| {
        network.region(node, LOCAL, BASE, pattern(1, 4 << 20), Visibility::Relaxed);
        (node, network.connected(node, 1).0)
    });
    let write = |network: &mut Network| {
        let operation = Operation::Write {
            remote_addr: BASE,
            rkey: REMOTE,
        };
        for (node, qp) in qps {
            network.submit(node, qp, 0, operation, gather(LOCAL, BASE, 4 << 20));
        }
    };
    let sent = |network: &Network| -> Vec<u64> {
        let sender = network.nodes[0].endpoint.connections().next().unwrap();
        let counters = sender.paths.iter().map(|path| path.counters);
        counters.map(|counters| counters.data_bytes_sent).collect()
    };
    // Nothing is known of the grant before the first answers.
    write(&mut network);
    network.run(10 * MS);
    let before = sent(&network);
    network.run(20 * MS);
    let used = sent(&network);
    let used = used
        .iter()
        .zip(&before)
        .filter(|(now, before)| now > before);
    let used = used.count();
    assert!((1..=most).contains(&used), "{used} of {}", before.len());
}

// WIRE 8.14
/// Nobody hears of it, so it is no promise: the others would get less for nothing.
#[test]
fn an_acknowledgement_that_would_be_empty_promises_nothing() {
    let mut network = Network::new(504, CALM);
    for host in 1..=3 {
        network.add(config(u16::from(host), &[ip(host, 0)]));
    }
    network.nodes[1].endpoint.set_drain(Some(50_000_000), None);
    network.region(1, REMOTE, BASE, vec![0; 4 << 20], Visibility::Relaxed);
    for node in [0, 2] {
        network.region(node, LOCAL, BASE, pattern(1, 4 << 20), Visibility::Relaxed);
        let qp = network.connected(node, 1).0;
        let operation = Operation::Write {
            remote_addr: BASE,
            rkey: REMOTE,
        };
        network.submit(node, qp, 0, operation, gather(LOCAL, BASE, 4 << 20));
    }
    network.run(10 * MS);
    let promised = |network: &Network| -> Vec<u64> {
        let grants = network.nodes[1].endpoint.grants();
        grants.map(|grants| grants.promised_bytes_per_s).collect()
    };
    // An ACK of all connections; returns how many left.
    let ack = |network: &mut Network| {
        let now = network.now;
        let endpoint = &mut network.nodes[1].endpoint;
        let before = endpoint.counters().acks_sent;
        let indices: Vec<_> = endpoint.connections.indices().collect();
        for index in indices {
            endpoint.on_connection(now, index, |connection, cx| connection.ack_now(cx));
        }
        network.flush();
        network.nodes[1].endpoint.counters().acks_sent - before
    };
    // Now everything is told.
    while ack(&mut network) > 0 {}
    let before = promised(&network);
    assert!(before.iter().all(|promised| *promised > 0), "{before:?}");
    // They would be promised half as much, if anything were told.
    network.nodes[1].endpoint.set_drain(Some(25_000_000), None);
    assert_eq!(ack(&mut network), 0);
    assert_eq!(promised(&network), before);
    // It is told with the next ACKs.
    network.run(10 * MS);
    let sum: u64 = promised(&network).iter().sum();
    assert!(sum <= 25_000_000, "{sum}");
}
