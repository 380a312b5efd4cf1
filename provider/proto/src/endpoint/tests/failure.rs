//! Peers that die, leave, come back; queue pairs that fail: every work request completes, within its bound.

use std::net::SocketAddr;

use rstest::rstest;

use super::network::*;
use super::setup::exchange;
use crate::event::QpFailure;
use crate::host::Visibility;
use crate::types::*;

fn inline(bytes: &[u8]) -> Payload {
    Payload::Inline(smallvec::SmallVec::from_slice(bytes))
}

fn statuses(network: &Network, node: usize) -> Vec<Status> {
    network.nodes[node]
        .sends
        .iter()
        .map(|done| done.status)
        .collect()
}

/// Two hosts that have exchanged something, the queue pair of the first, and a WRITE of up to `bytes` from its region 6.
fn ready_to_write(seed: u64, planes: u8, bytes: usize) -> (Network, QpId, Operation) {
    let mut network = Network::pair(seed, CALM, planes);
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    network.region(0, 6, 0, vec![0; bytes], Visibility::Relaxed);
    network.region(1, 7, 0, vec![0; bytes], Visibility::Relaxed);
    let write = Operation::Write {
        remote_addr: 0,
        rkey: 7,
    };
    (network, a, write)
}

/// 7 retries, timeout 14: 8 × 67 ms.
const PATIENCE: u64 = 8 * (4096 << 14);

// WIRE 3.18
#[rstest]
fn a_silent_peer_fails_the_work_within_the_bound(
    #[values(false, true)] icmp: bool,
    #[values(1, 2, 4)] planes: u8,
) {
    let mut network = Network::pair(101, Weather { icmp, ..CALM }, planes);
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    network.run(10 * MS);
    network.nodes[1].dead = true;
    let start = network.now;
    network.nodes[0].sends.clear();
    for cookie in 0..5 {
        network.submit(0, a, cookie, Operation::Send, inline(b"anybody?"));
    }
    assert!(network.run_until(2 * PATIENCE, |network| network.nodes[0].sends.len() == 5));
    let took = network.now.since_ns(start);
    if icmp {
        assert!(took < 20 * MS, "{took}");
    } else {
        assert!((PATIENCE..PATIENCE + 50 * MS).contains(&took), "{took}");
    }
    let expected = [
        Status::RetryExceeded,
        Status::Flushed,
        Status::Flushed,
        Status::Flushed,
        Status::Flushed,
    ];
    assert_eq!(statuses(&network, 0), expected);
    assert_eq!(network.nodes[0].failures, [(a, QpFailure::Fatal)]);
    // Somebody will ask why.
    let node = &network.nodes[0];
    let said = (node.silent.clone(), node.unreachable.clone());
    let silent = (vec![(a, true)], vec![]);
    assert_eq!(said, if icmp { (vec![], vec![1]) } else { silent });
    network.submit(0, a, 9, Operation::Send, inline(b"?"));
    assert_eq!(statuses(&network, 0).last(), Some(&Status::Flushed));
    network.run(3_000 * MS);
    assert!(network.nodes[0].failures.len() == 1);
}

// WIRE 3.18
/// Errors that somebody forges, or a firewall sends that rejects for a moment, for every route at once.
#[rstest]
fn errors_alone_end_nothing(#[values(false, true)] idle: bool, #[values(1, 2)] planes: u8) {
    let (mut network, a, write) = ready_to_write(113, planes, 200_000);
    if idle {
        network.run(10 * MS);
    } else {
        network.submit(0, a, 1, write, gather(6, 0, 200_000));
        network.run(50_000);
    }
    let (now, port) = (network.now, network.nodes[1].port);
    let peers: Vec<SocketAddr> = (network.nodes[1].addresses.iter())
        .map(|address| SocketAddr::new(*address, port))
        .collect();
    for (to, slot) in peers
        .iter()
        .flat_map(|to| (0..32).map(move |slot| (to, slot)))
    {
        let endpoint = &mut network.nodes[0].endpoint;
        endpoint.handle_unreachable(now, *to, Some(SourceSlot(slot)));
    }
    network.run(1_000 * MS);
    network.submit(0, a, 2, write, gather(6, 0, 200_000));
    network.run(100 * MS);
    assert!(network.nodes[0].unreachable.is_empty());
    assert_eq!(statuses(&network, 0).last(), Some(&Status::Success));
}

// WIRE 3.18
/// A plane of that number leads somewhere else: over `lo` each host meets itself, and nobody listens there.
#[rstest]
fn a_plane_that_refuses_ends_nothing_while_another_works(
    #[values(true, false)] from_the_start: bool,
    #[values(0.0, 0.1)] loss: f64,
    #[values(0, 1)] plane: u8,
) {
    let mut network = Network::pair(111, Weather { loss, ..CALM }, 2);
    let refused = vec![ip(1, plane), ip(2, plane)];
    // The GIDs are of the first plane.
    if from_the_start && plane == 1 {
        network.refused = refused.clone();
    }
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    network.refused = refused;
    network.region(0, 6, 0, vec![0; 200_000], Visibility::Relaxed);
    network.region(1, 7, 0, vec![0; 200_000], Visibility::Relaxed);
    network.nodes[0].sends.clear();
    let write = Operation::Write {
        remote_addr: 0,
        rkey: 7,
    };
    for count in 1..20 {
        network.submit(0, a, count as u64, write, gather(6, 0, 200_000));
        let done = |network: &Network| network.nodes[0].sends.len() == count;
        assert!(network.run_until(PATIENCE, done), "after {count}");
        assert_eq!(statuses(&network, 0).last(), Some(&Status::Success));
        network.run(30 * MS);
    }
    assert!(network.nodes[0].failures.is_empty());
    // The process behind the plane that works dies, too.
    network.nodes[1].dead = true;
    network.weather.icmp = true;
    let start = network.now;
    network.submit(0, a, 99, write, gather(6, 0, 200_000));
    assert!(network.run_until(PATIENCE, |network| network.nodes[0].sends.len() == 20));
    assert_eq!(statuses(&network, 0)[19], Status::RetryExceeded);
    assert!(network.now.since_ns(start) < PATIENCE / 2);
}

// WIRE 4.16
/// The path that asks for unexecuted messages has nothing of its own outstanding: those of the others are.
#[test]
fn a_silent_peer_is_looked_for_less_and_less() {
    let (mut network, a, write) = ready_to_write(109, 2, 200_000);
    // What went over the first plane is acknowledged, and among its paths is the one that asks; the rest is not.
    network.nodes[0].sends.clear();
    network.cut = vec![ip(1, 1)];
    network.submit(0, a, 1, write, gather(6, 0, 200_000));
    network.run(200_000);
    network.cut = vec![ip(1, 0), ip(1, 1)];
    let (end, mut looks) = (network.now + PATIENCE - 10 * MS, 0);
    let mut carried = network.carried;
    while network.step(end) {
        // Nothing arrives: what sends nothing was a look.
        looks += u32::from(network.carried == carried);
        carried = network.carried;
    }
    assert!(network.nodes[0].sends.is_empty());
    assert!(looks < 100, "{looks} looks");
}

// WIRE 4.29
#[test]
fn of_paths_that_are_all_silent_few_ask() {
    let (mut network, a, write) = ready_to_write(110, 1, 4 << 20);
    let busy = |network: &Network| {
        let connection = network.nodes[0].endpoint.connections().next().unwrap();
        let paths = connection.paths.iter();
        paths.filter(|path| path.outstanding_packets > 0).count()
    };
    network.submit(0, a, 1, write, gather(6, 0, 4 << 20));
    assert!(network.run_until(100 * MS, |network| busy(network) >= 8));
    network.cut = vec![ip(1, 0)];
    let end = network.now + 3 * MS;
    let mut most = 0;
    while network.step(end) {
        let connection = network.nodes[0].endpoint.connections().next().unwrap();
        let paths = connection.paths.iter();
        let asking = paths.filter(|path| path.probes_unanswered > 0);
        let first = asking.clone().map(|path| path.probes_unanswered).max();
        most = most.max(first.unwrap_or(0));
        let count = asking.count();
        assert!(
            count <= 1 << most,
            "{count} ask, the first one {most} times"
        );
    }
    assert!(most >= 3, "{most} probes");
    network.cut.clear();
    network.nodes[0].sends.clear();
    assert!(network.run_until(PATIENCE, |network| network.nodes[0].sends.len() == 1));
    assert_eq!(statuses(&network, 0), [Status::Success]);
}

// WIRE 4.16, 4.29
#[test]
fn a_long_round_trip_does_not_put_off_the_next_question() {
    let (mut network, a, write) = ready_to_write(112, 1, 200_000);
    network.nodes[0].sends.clear();
    let probes = |network: &Network| network.nodes[0].endpoint.counters().probes_sent;
    // A round trip takes 200 ms for once: as if the peer had been stopped.
    network.weather.delay_ns = 100 * MS;
    network.submit(0, a, 1, write, gather(6, 0, 100));
    assert!(network.run_until(PATIENCE, |network| network.nodes[0].sends.len() == 1));
    network.run(PATIENCE);
    let latest = network.now;
    network.cut = vec![ip(1, 0)];
    network.submit(0, a, 2, write, gather(6, 0, 200_000));
    let before = probes(&network);
    let asked = network.run_until(PATIENCE, |network| probes(network) > before);
    let after = network.now.since_ns(latest);
    assert!(
        asked && after <= 45 * MS,
        "the first probe leaves after {after} ns"
    );
}

// WIRE 3.22
#[rstest]
fn a_process_that_was_stopped_does_not_blame_its_peer(#[values(false, true)] peer_dies: bool) {
    let mut network = Network::pair(105, CALM, 1);
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    network.run(10 * MS);
    network.nodes[0].sends.clear();
    network.cut = vec![ip(1, 0), ip(2, 0)];
    network.region(1, 5, 0, vec![0; 64], Visibility::Relaxed);
    let sge = Sge {
        addr: 0,
        length: 64,
        lkey: 5,
    };
    network.post_receive(1, b, 0, sge);
    network.submit(0, a, 1, Operation::Send, inline(b"I shall be back"));
    network.run(PATIENCE / 4);
    network.nodes[0].dead = true;
    network.run(10 * PATIENCE);
    network.nodes[0].dead = false;
    network.cut.clear();
    network.nodes[1].dead = peer_dies;
    let start = network.now;
    assert!(network.run_until(2 * PATIENCE, |network| network.nodes[0].sends.len() == 1));
    let took = network.now.since_ns(start);
    if peer_dies {
        assert_eq!(statuses(&network, 0), [Status::RetryExceeded]);
        assert_eq!(network.nodes[0].silent, [(a, true)]);
        assert!((PATIENCE / 2..PATIENCE).contains(&took), "{took}");
    } else {
        assert_eq!(statuses(&network, 0), [Status::Success]);
        assert!(took < 50 * MS, "{took}");
    }
}

#[test]
fn a_peer_that_was_never_there_fails_the_work_within_the_bound() {
    let mut network = Network::pair(102, CALM, 1);
    let (qp, _) = network.create(0);
    let (_, absent) = network.create(1);
    network.connect(0, qp, 1, absent);
    network.enable(0, qp, 14, 7);
    network.run(1_000 * MS);
    let start = network.now;
    network.submit(0, qp, 1, Operation::Send, inline(b"anybody?"));
    assert!(network.run_until(2 * PATIENCE, |network| network.nodes[0].sends.len() == 1));
    let took = network.now.since_ns(start);
    assert!((PATIENCE..PATIENCE + 50 * MS).contains(&took), "{took}");
    assert_eq!(statuses(&network, 0), [Status::RetryExceeded]);
    assert_eq!(network.nodes[0].silent, [(qp, false)]);
}

// WIRE 3.22
#[test]
fn timeout_0_waits_for_ever() {
    let mut network = Network::pair(103, CALM, 1);
    let (a, b) = network.connected(0, 1);
    network.enable(0, a, 0, 7);
    exchange(&mut network, (0, a), (1, b));
    network.cut = vec![ip(1, 0), ip(2, 0)];
    network.region(1, 5, 0, vec![0; 64], Visibility::Relaxed);
    network.post_receive(
        1,
        b,
        0,
        Sge {
            addr: 0,
            length: 64,
            lkey: 5,
        },
    );
    network.submit(0, a, 1, Operation::Send, inline(b"patience"));
    network.run(20_000 * MS);
    assert_eq!(network.nodes[0].sends.len(), 1);
    network.cut.clear();
    assert!(network.run_until(2_000 * MS, |network| network.nodes[0].sends.len() == 2));
    assert_eq!(statuses(&network, 0)[1], Status::Success);
}

#[test]
fn the_peers_of_a_destroyed_queue_pair_fail_at_once_and_only_if_they_send() {
    let mut network = Network::pair(104, CALM, 1);
    let (a, b) = network.connected(0, 1);
    let (quiet_a, quiet_b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    let now = network.now;
    for qp in [b, quiet_b] {
        let Node {
            endpoint, memory, ..
        } = &mut network.nodes[1];
        endpoint.destroy_qp(now, qp, memory);
    }
    network.run(MS);
    assert!(
        network.nodes[0].failures.is_empty(),
        "nothing was outstanding"
    );
    network.submit(0, a, 1, Operation::Send, inline(b"too late"));
    assert_eq!(statuses(&network, 0)[1], Status::RetryExceeded);
    assert_eq!(network.nodes[0].failures, [(a, QpFailure::Fatal)]);
    network.run(5_000 * MS);
    assert_eq!(network.nodes[0].failures.len(), 1);
    let Node {
        endpoint, memory, ..
    } = &mut network.nodes[0];
    endpoint.destroy_qp(network.now, quiet_a, memory);
    endpoint.destroy_qp(network.now, a, memory);
    network.run(5_000 * MS);
    assert!(
        network
            .nodes
            .iter()
            .all(|node| node.endpoint.connections().next().is_none())
    );
    assert!(
        network
            .nodes
            .iter_mut()
            .all(|node| node.endpoint.poll_timeout().is_none())
    );
}

#[test]
fn what_was_executed_before_the_peer_left_succeeds() {
    let mut network = Network::pair(105, Weather { loss: 0.3, ..CALM }, 1);
    for _ in 0..20 {
        let (a, b) = network.connected(0, 1);
        network.region(1, 900, 0x9000, vec![0; 64], Visibility::Relaxed);
        network.post_receive(
            1,
            b,
            5,
            Sge {
                addr: 0x9000,
                length: 64,
                lkey: 900,
            },
        );
        let (sends, receives) = (
            network.nodes[0].sends.len(),
            network.nodes[1].receives.len(),
        );
        network.submit(0, a, 7, Operation::Send, inline(b"goodbye"));
        assert!(
            network.run_until(5_000 * MS, |network| network.nodes[1].receives.len()
                > receives)
        );
        let now = network.now;
        let Node {
            endpoint, memory, ..
        } = &mut network.nodes[1];
        endpoint.destroy_qp(now, b, memory);
        assert!(network.run_until(5_000 * MS, |network| network.nodes[0].sends.len() > sends));
        assert_eq!(network.nodes[0].sends[sends].status, Status::Success);
    }
}

// WIRE 3.19
#[rstest]
fn an_orderly_exit_is_told(#[values(106, 107, 108)] seed: u64) {
    let mut network = Network::pair(seed, CALM, 1);
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    network.submit(0, a, 1, Operation::Send, inline(b"no receive for this one"));
    network.run(MS);
    let now = network.now;
    network.nodes[1].endpoint.close(now);
    assert!((0..10_000).any(|_| {
        network.run(MS / 100);
        !network.nodes[1].endpoint.outstanding()
    }));
    assert!(network.now.since_ns(now) < MS);
    assert_eq!(
        statuses(&network, 0),
        [Status::Success, Status::RetryExceeded]
    );
    assert_eq!(network.nodes[0].failures, [(a, QpFailure::Fatal)]);
}

/// The process of node 1 is replaced by a new one.
fn restart(network: &mut Network) {
    let index = network.nodes[1].endpoint.config().index;
    let addresses = network.nodes[1].addresses.clone();
    network.nodes[1].dead = true;
    let at = network.add(config(index, &addresses));
    network.nodes.swap(1, at);
}

// WIRE 3.16
#[test]
fn a_restarted_process_answers_with_reset() {
    let mut network = Network::pair(109, CALM, 1);
    let (a, b) = network.connected(0, 1);
    let (quiet, _) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    restart(&mut network);
    let start = network.now;
    network.submit(0, a, 1, Operation::Send, inline(b"who are you?"));
    assert!(network.run_until(100 * MS, |network| network.nodes[0].sends.len() == 2));
    assert!(network.now.since_ns(start) < 2 * MS);
    assert_eq!(statuses(&network, 0)[1], Status::RetryExceeded);
    assert_eq!(network.nodes[0].endpoint.counters().resets_received, 1);
    network.submit(0, quiet, 1, Operation::Send, inline(b"?"));
    assert_eq!(statuses(&network, 0)[2], Status::RetryExceeded);
}

// WIRE 3.5
#[test]
fn a_late_hello_of_a_process_that_is_gone_costs_nobody_its_peer() {
    let mut network = Network::pair(113, CALM, 1);
    // The old process knows our connection and says so, but that arrives much later.
    let (qp, qpn) = network.create(0);
    let (old_peer, old_peer_qpn) = network.create(1);
    network.connect(0, qp, 1, old_peer_qpn);
    network.cut = vec![ip(2, 0)];
    network.sniffed = Some(Vec::new());
    network.connect(1, old_peer, 0, qpn);
    network.run(5 * MS);
    let late = network.sniffed.take().unwrap_or_default();
    restart(&mut network);
    network.cut.clear();
    let (new_peer, new_peer_qpn) = network.create(1);
    let (again, again_qpn) = network.create(0);
    network.connect(0, again, 1, new_peer_qpn);
    network.connect(1, new_peer, 0, again_qpn);
    for qp in [(0, again), (1, new_peer)] {
        network.enable(qp.0, qp.1, 14, 7);
    }
    let known = network.run_until(100 * MS, |network| {
        let mut ours = network.nodes[0].endpoint.connections();
        ours.any(|connection| connection.peer_id.is_known())
    });
    assert!(known);
    let [from, to] = [1, 0].map(|node: usize| {
        SocketAddr::new(network.nodes[node].addresses[0], network.nodes[node].port)
    });
    let id = |network: &Network| {
        let mut ours = network.nodes[0].endpoint.connections();
        ours.next().map(|connection| connection.id)
    };
    // The new process was told this one: it stays that process's, and the old one is given another.
    let told = id(&network);
    for bytes in late {
        network.inject(from, to, bytes);
    }
    network.run(15_000);
    assert!(id(&network).is_some() && id(&network) == told);
    let start = network.now;
    exchange(&mut network, (0, again), (1, new_peer));
    exchange(&mut network, (1, new_peer), (0, again));
    assert!(network.now.since_ns(start) < 50 * MS);
    network.run(3_000 * MS);
    assert!(network.nodes[0].failures.is_empty() && network.nodes[1].failures.is_empty());
}

/// The same where the late ones come before the new process does: the HELLO that names our connection among them, or
/// only the first, which does not.
// WIRE 3.5, 3.24
#[rstest]
fn a_late_hello_that_comes_first_costs_nobody_its_peer(#[values(false, true)] echoes: bool) {
    let mut network = Network::pair(114, CALM, 1);
    let (qp, qpn) = network.create(0);
    let (old_peer, old_peer_qpn) = network.create(1);
    network.connect(0, qp, 1, old_peer_qpn);
    network.cut = vec![ip(2, 0)];
    network.sniffed = Some(Vec::new());
    network.connect(1, old_peer, 0, qpn);
    if echoes {
        network.run(5 * MS);
    }
    let late = network.sniffed.take().unwrap_or_default();
    assert!(!late.is_empty());
    restart(&mut network);
    network.cut.clear();
    let (again, again_qpn) = network.create(0);
    let (new_peer, new_peer_qpn) = network.create(1);
    network.connect(0, again, 1, new_peer_qpn);
    let [from, to] = [1, 0].map(|node: usize| {
        SocketAddr::new(network.nodes[node].addresses[0], network.nodes[node].port)
    });
    for bytes in late {
        network.inject(from, to, bytes);
    }
    network.run(CALM.delay_ns + 1);
    let heard = network.nodes[0].endpoint.connections().next().unwrap();
    assert!(heard.peer_id.is_known() && heard.open == echoes);
    network.connect(1, new_peer, 0, again_qpn);
    for qp in [(0, again), (1, new_peer)] {
        network.enable(qp.0, qp.1, 14, 7);
    }
    let start = network.now;
    exchange(&mut network, (0, again), (1, new_peer));
    exchange(&mut network, (1, new_peer), (0, again));
    assert!(network.now.since_ns(start) < 50 * MS);
    network.run(3_000 * MS);
    assert!(network.nodes[0].failures.is_empty() && network.nodes[1].failures.is_empty());
    assert_eq!(network.nodes[0].endpoint.connections().count(), 1);
}

/// The late packet is of an earlier life of the very queue pair that ours is for.
// WIRE 3.24
#[test]
fn a_token_beside_a_late_hello_gives_way_to_the_right_one() {
    let mut network = Network::pair(116, CALM, 1);
    let (a, qpn_a) = network.create(0);
    let (b, qpn_b) = network.create(1);
    network.cut = vec![ip(2, 0)];
    network.sniffed = Some(Vec::new());
    network.connect(1, b, 0, qpn_a);
    let late = network.sniffed.take().unwrap_or_default();
    assert_eq!(late.len(), 1);
    let now = network.now;
    let Node {
        endpoint, memory, ..
    } = &mut network.nodes[1];
    endpoint.reset_qp(now, b, memory);
    network.connect(0, a, 1, qpn_b);
    network.cut.clear();
    let [from, to] = [1, 0].map(|node: usize| {
        SocketAddr::new(network.nodes[node].addresses[0], network.nodes[node].port)
    });
    network.inject(from, to, late[0].clone());
    network.run(CALM.delay_ns * 3 / 2);
    network.connect(1, b, 0, qpn_a);
    network.enable(0, a, 14, 7);
    network.enable(1, b, 14, 7);
    let start = network.now;
    exchange(&mut network, (1, b), (0, a));
    exchange(&mut network, (0, a), (1, b));
    assert!(network.now.since_ns(start) < 50 * MS);
    assert!(network.nodes.iter().all(|node| node.failures.is_empty()));
}

/// The OPEN that answers one beside a HELLO opens the other end; a reset before our connection is open must be told.
// WIRE 3.24
#[test]
fn a_life_that_ends_before_the_connection_is_open_tells_it() {
    let mut network = Network::pair(115, CALM, 1);
    let (a, qpn_a) = network.create(0);
    let (b, qpn_b) = network.create(1);
    network.connect(0, a, 1, qpn_b);
    network.run(50 * MS);
    network.connect(1, b, 0, qpn_a);
    network.enable(1, b, 14, 7);
    network.run(CALM.delay_ns * 3 / 2);
    assert!(!network.nodes[0].endpoint.connections().next().unwrap().open);
    let now = network.now;
    let Node {
        endpoint, memory, ..
    } = &mut network.nodes[0];
    endpoint.reset_qp(now, a, memory);
    network.run(5 * MS);
    network.submit(1, b, 1, Operation::Send, inline(b"anybody?"));
    // It need not ask.
    assert_eq!(statuses(&network, 1), [Status::RetryExceeded]);
}

#[rstest]
fn a_restarted_process_connects_again(
    #[values(0.0, 0.2)] loss: f64,
    #[values(110, 111, 112)] seed: u64,
) {
    let mut network = Network::pair(seed, Weather { loss, ..CALM }, 1);
    let (old, old_peer) = network.connected(0, 1);
    exchange(&mut network, (0, old), (1, old_peer));
    restart(&mut network);
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (1, b), (0, a));
    exchange(&mut network, (0, a), (1, b));
    network.submit(0, old, 1, Operation::Send, inline(b"?"));
    network.run(100 * MS);
    assert_eq!(statuses(&network, 0).last(), Some(&Status::RetryExceeded));
    assert_eq!(network.nodes[0].failures, [(old, QpFailure::Fatal)]);
}

#[test]
fn access_errors_are_told_by_their_code() {
    let mut network = Network::pair(113, CALM, 1);
    let (a, b) = network.connected(0, 1);
    network.region(0, 1, 0, vec![1; 10_000], Visibility::Relaxed);
    network.region(1, 2, 0, vec![0; 10_000], Visibility::Relaxed);
    let good = Operation::Write {
        remote_addr: 0,
        rkey: 2,
    };
    network.submit(0, a, 0, good, gather(1, 0, 10_000));
    network.submit(
        0,
        a,
        1,
        Operation::Write {
            remote_addr: 1,
            rkey: 2,
        },
        gather(1, 0, 10_000),
    );
    network.submit(0, a, 2, good, gather(1, 0, 10_000));
    assert!(network.run_until(100 * MS, |network| network.nodes[0].sends.len() == 3));
    assert_eq!(
        statuses(&network, 0),
        [Status::Success, Status::RemoteAccess, Status::Flushed]
    );
    assert_eq!(network.nodes[1].failures, [(b, QpFailure::AccessViolation)]);
    assert_eq!(network.nodes[0].failures, [(a, QpFailure::Fatal)]);
}

// WIRE 9.6
#[test]
fn memory_that_cannot_be_read_fails_its_work_request_only() {
    let mut network = Network::pair(114, CALM, 1);
    let (a, _) = network.connected(0, 1);
    let (other, _) = network.connected(0, 1);
    network.region(0, 1, 0, vec![1; 100_000], Visibility::Relaxed);
    network.region(1, 2, 0, vec![0; 100_000], Visibility::Relaxed);
    let operation = Operation::Write {
        remote_addr: 0,
        rkey: 2,
    };
    network.submit(0, a, 0, operation, gather(1, 0, 100_000));
    network.submit(0, a, 1, operation, gather(1, 50_000, 100_000));
    network.submit(0, other, 0, operation, gather(1, 0, 100_000));
    assert!(network.run_until(1_000 * MS, |network| network.nodes[0].sends.len() == 3));
    let of = |qp| {
        network.nodes[0]
            .sends
            .iter()
            .filter(move |done| done.qp == qp)
            .map(|done| done.status)
    };
    assert_eq!(
        of(a).collect::<Vec<_>>(),
        [Status::Success, Status::LocalProtection]
    );
    assert_eq!(of(other).collect::<Vec<_>>(), [Status::Success]);
}

#[test]
fn the_error_state_flushes_and_tells() {
    let mut network = Network::pair(115, CALM, 1);
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    network.submit(0, a, 1, Operation::Send, inline(b"no receive"));
    network.submit(1, b, 2, Operation::Send, inline(b"no receive"));
    let now = network.now;
    let Node {
        endpoint, memory, ..
    } = &mut network.nodes[0];
    endpoint.fail_qp(now, a, memory);
    network.flush();
    assert_eq!(statuses(&network, 0)[1..], [Status::Flushed]);
    network.submit(0, a, 3, Operation::Send, inline(b"?"));
    assert_eq!(
        statuses(&network, 0)[1..],
        [Status::Flushed, Status::Flushed]
    );
    assert!(network.run_until(10 * MS, |network| network.nodes[1].sends.len() == 1));
    assert_eq!(statuses(&network, 1), [Status::RetryExceeded]);
    assert!(
        network.nodes[0].failures.is_empty(),
        "the program did it itself"
    );
}

// WIRE 1.19, 6.27
#[test]
fn smaller_packets_follow_when_a_route_carries_less() {
    let mut network = Network::pair(116, CALM, 1);
    let (a, b) = network.connected(0, 1);
    exchange(&mut network, (0, a), (1, b));
    network.region(0, 1, 0, pattern(3, 100_000), Visibility::Relaxed);
    network.region(1, 2, 0, vec![0; 100_000], Visibility::Relaxed);
    network.weather.loss = 1.0;
    network.submit(
        0,
        a,
        1,
        Operation::Write {
            remote_addr: 0,
            rkey: 2,
        },
        gather(1, 0, 100_000),
    );
    network.weather.loss = 0.0;
    let route = network.nodes[0]
        .endpoint
        .connections()
        .next()
        .unwrap()
        .paths[0]
        .route;
    let now = network.now;
    network.nodes[0].endpoint.handle_too_large(now, route, 4160);
    network.sniffed = Some(Vec::new());
    assert!(network.run_until(1_000 * MS, |network| network.nodes[0].sends.len() == 2));
    assert_eq!(statuses(&network, 0)[1], Status::Success);
    assert!(
        network
            .sniffed
            .as_ref()
            .unwrap()
            .iter()
            .all(|packet| packet.len() < 4160)
    );
    assert!(network.nodes[1].memory.regions[&2].bytes == network.nodes[0].memory.regions[&1].bytes);
}

#[rstest]
fn many_connects_and_disconnects_leave_nothing_behind(#[values(0.0, 0.1)] loss: f64) {
    let mut network = Network::pair(117, Weather { loss, ..CALM }, 1);
    for _ in 0..200 {
        let (a, b) = network.connected(0, 1);
        exchange(&mut network, (0, a), (1, b));
        let now = network.now;
        for (node, qp) in [(0, a), (1, b)] {
            let Node {
                endpoint, memory, ..
            } = &mut network.nodes[node];
            endpoint.destroy_qp(now, qp, memory);
        }
    }
    network.run(20_000 * MS);
    for node in &mut network.nodes {
        assert!(node.failures.is_empty());
        assert!(!node.endpoint.outstanding());
        assert!(node.endpoint.connections().next().is_none());
        assert_eq!(node.endpoint.poll_timeout(), None);
    }
}
