//! Set-up: both orders, at the same time, with oneself, with loss; and how fast.

use std::net::SocketAddr;

use rstest::rstest;

use super::network::*;
use crate::conn::ASLEEP_AFTER_NS;
use crate::endpoint::ConnectError;
use crate::types::*;
use crate::wire::{
    Base, ConnectionId, ControlBuilder, ControlItem, Gid, Hello, Incarnation, Packet, Qpn,
};

fn open_connections(network: &Network, node: usize) -> usize {
    network.nodes[node]
        .endpoint
        .connections()
        .filter(|connection| connection.open)
        .count()
}

/// Sends an inline message from `a` to a posted receive of `b` and waits for both completions.
pub(super) fn exchange(network: &mut Network, a: (usize, QpId), b: (usize, QpId)) {
    let (sends, receives) = (
        network.nodes[a.0].sends.len(),
        network.nodes[b.0].receives.len(),
    );
    network.region(
        b.0,
        900,
        0x9000,
        vec![0; 64],
        crate::host::Visibility::Relaxed,
    );
    network.post_receive(
        b.0,
        b.1,
        5,
        Sge {
            addr: 0x9000,
            length: 64,
            lkey: 900,
        },
    );
    let payload = Payload::Inline(smallvec::SmallVec::from_slice(b"hello, peer"));
    network.submit(a.0, a.1, 7, Operation::Send, payload);
    let done = network.run_until(5_000 * MS, |network| {
        network.nodes[a.0].sends.len() > sends && network.nodes[b.0].receives.len() > receives
    });
    assert!(done, "no completion");
    assert_eq!(network.nodes[a.0].sends[sends].status, Status::Success);
    let receive = &network.nodes[b.0].receives[receives];
    assert_eq!(
        (receive.cookie, receive.byte_length, receive.qp),
        (5, 11, b.1)
    );
    assert_eq!(
        network.nodes[b.0].memory.read(900, 0x9000, 11).unwrap(),
        b"hello, peer"
    );
}

#[test]
fn one_after_the_other() {
    let mut network = Network::pair(1, CALM, 1);
    let (qp_a, qpn_a) = network.create(0);
    let (qp_b, qpn_b) = network.create(1);
    network.connect(0, qp_a, 1, qpn_b);
    network.run(200 * MS);
    assert_eq!(open_connections(&network, 0), 0);
    let start = network.now;
    network.connect(1, qp_b, 0, qpn_a);
    network.enable(0, qp_a, 14, 7);
    network.enable(1, qp_b, 14, 7);
    exchange(&mut network, (1, qp_b), (0, qp_a));
    assert!(
        network.now.since_ns(start) < 5 * MS,
        "{}",
        network.now.since_ns(start)
    );
    exchange(&mut network, (0, qp_a), (1, qp_b));
}

// WIRE 3.1
#[test]
fn at_the_same_time_within_a_few_round_trips() {
    let mut network = Network::pair(2, CALM, 1);
    let start = network.now;
    let (qp_a, qp_b) = network.connected(0, 1);
    exchange(&mut network, (0, qp_a), (1, qp_b));
    let took = network.now.since_ns(start);
    assert!(took <= 12 * CALM.delay_ns, "{took}");
    assert_eq!(
        (open_connections(&network, 0), open_connections(&network, 1)),
        (1, 1)
    );
}

// WIRE 3.7, 3.24
#[rstest]
fn the_first_message_is_acknowledged_after_two_round_trips(
    #[values(0, 1)] later: usize,
    #[values(0, 50)] ms_later: u64,
    #[values(0, 1)] sender: usize,
    #[values("new", "old")] connection: &str,
) {
    let mut network = Network::pair(4, CALM, 1);
    if connection == "old" {
        network.connected(0, 1);
        network.run(50 * MS);
    }
    let created = [network.create(0), network.create(1)];
    for node in [1 - later, later] {
        let (qp, _) = created[node];
        network.connect(node, qp, 1 - node, created[1 - node].1);
        network.enable(node, qp, 14, 7);
        if node != later {
            network.run(ms_later * MS);
        }
    }
    let start = network.now;
    let at = |node: usize| (node, created[node].0);
    exchange(&mut network, at(sender), at(1 - sender));
    let took = network.now.since_ns(start);
    // A delay is half a round trip. Who went to RTR earlier hears one later that the other end knows its token.
    let delays = 4 + u64::from(ms_later > 0 && sender != later);
    assert!(took <= delays * CALM.delay_ns, "{took} ns");
}

/// The HELLO in a packet that begins with one.
fn hello_in(packet: &[u8]) -> Option<Hello> {
    let Ok(Packet::Control(view)) = Packet::parse(packet) else {
        return None;
    };
    match view.items().next() {
        Some(ControlItem::Hello(hello)) => Some(hello),
        _ => None,
    }
}

/// `hello` comes to `to`, from the endpoint that it names.
fn inject_hello(network: &mut Network, to: usize, hello: &Hello) {
    let [from, to] = [1 - to, to]
        .map(|node| SocketAddr::new(network.nodes[node].addresses[0], network.nodes[node].port));
    let mut packet = [0; 512];
    let mut builder = ControlBuilder::new(&mut packet);
    assert!(builder.push_hello(hello));
    let length = builder.finish(&Base::default());
    network.inject(from, to, packet[..length].to_vec());
}

/// The later end is open by the answer to its first packet. What it says then is lost, its DATA is not; where the HELLO of
/// an earlier connection came in between, DATA must not be taken for that one's.
// WIRE 3.3
#[rstest]
fn data_shows_that_the_peer_knows_us_unless_it_told_several_ids(
    #[values(false, true)] several: bool,
) {
    let mut network = Network::pair(16, CALM, 1);
    let (qp_a, qpn_a) = network.create(0);
    let (qp_b, qpn_b) = network.create(1);
    network.connect(0, qp_a, 1, qpn_b);
    network.run(50 * MS);
    network.sniffed = Some(Vec::new());
    network.connect(1, qp_b, 0, qpn_a);
    network.enable(1, qp_b, 14, 7);
    let sniffed = network.sniffed.take().unwrap_or_default();
    let mut late = sniffed.iter().find_map(|packet| hello_in(packet)).unwrap();
    network.cut = vec![ip(2, 0)];
    network.run(CALM.delay_ns * 5 / 2);
    network.cut.clear();
    assert_eq!(
        [0, 1].map(|node| open_connections(&network, node)),
        [0, 1],
        "one end only"
    );
    if several {
        late.identity.my_id = ConnectionId(late.identity.my_id.0 ^ 1);
        inject_hello(&mut network, 0, &late);
        network.run(CALM.delay_ns);
    }
    let start = network.now;
    exchange(&mut network, (1, qp_b), (0, qp_a));
    let took = network.now.since_ns(start);
    assert!(several || took <= 2 * CALM.delay_ns, "{took} ns");
    network.enable(0, qp_a, 14, 7);
    exchange(&mut network, (0, qp_a), (1, qp_b));
    assert!(network.now.since_ns(start) < 50 * MS);
}

/// Both ends heard a process first that is gone.
// WIRE 3.5
#[test]
fn two_late_hellos_keep_nobody_apart() {
    let mut network = Network::pair(17, CALM, 1);
    let (qp_a, qpn_a) = network.create(0);
    let (qp_b, qpn_b) = network.create(1);
    network.cut = vec![ip(1, 0), ip(2, 0)];
    network.sniffed = Some(Vec::new());
    network.connect(0, qp_a, 1, qpn_b);
    network.connect(1, qp_b, 0, qpn_a);
    let sniffed = network.sniffed.take().unwrap_or_default();
    network.cut.clear();
    for (from, packet) in sniffed.iter().enumerate() {
        let mut late = hello_in(packet).unwrap();
        late.identity.my_id = ConnectionId(7);
        late.identity.incarnation = Incarnation(7);
        inject_hello(&mut network, 1 - from, &late);
    }
    for (node, qp) in [(0, qp_a), (1, qp_b)] {
        network.enable(node, qp, 14, 7);
    }
    let start = network.now;
    exchange(&mut network, (0, qp_a), (1, qp_b));
    exchange(&mut network, (1, qp_b), (0, qp_a));
    assert!(network.now.since_ns(start) < 10 * MS);
    let carried = network.carried;
    network.run(900 * MS);
    assert!(network.carried < carried + 100, "it does not end");
}

// WIRE 2.40, 3.7
#[rstest]
fn with_loss(#[values(3, 4, 5, 6)] seed: u64) {
    let mut network = Network::pair(seed, Weather { loss: 0.3, ..CALM }, 1);
    let (qp_a, qp_b) = network.connected(0, 1);
    exchange(&mut network, (0, qp_a), (1, qp_b));
    exchange(&mut network, (1, qp_b), (0, qp_a));
}

// WIRE 3.6
#[test]
fn two_queue_pairs_of_one_process() {
    let mut network = Network::pair(7, CALM, 1);
    let (qp_a, qp_b) = network.connected(0, 0);
    exchange(&mut network, (0, qp_a), (0, qp_b));
    exchange(&mut network, (0, qp_b), (0, qp_a));
    assert_eq!(network.nodes[0].endpoint.connections().count(), 1);
}

// WIRE 3.6
#[test]
fn a_queue_pair_with_itself() {
    let mut network = Network::pair(8, CALM, 1);
    let (qp, qpn) = network.create(0);
    network.connect(0, qp, 0, qpn);
    network.enable(0, qp, 14, 7);
    exchange(&mut network, (0, qp), (0, qp));
}

#[test]
fn two_endpoints_of_one_host() {
    let mut network = Network::new(9, CALM);
    network.add(config(1, &[ip(1, 0)]));
    network.add(config(2, &[ip(1, 0)]));
    let (qp_a, qp_b) = network.connected(0, 1);
    exchange(&mut network, (0, qp_a), (1, qp_b));
    exchange(&mut network, (1, qp_b), (0, qp_a));
}

// WIRE 1.3
#[test]
fn many_queue_pairs_share_one_connection() {
    let mut network = Network::pair(10, CALM, 1);
    let start = network.now;
    let pairs: Vec<_> = (0..500).map(|_| network.connected(0, 1)).collect();
    assert_eq!(network.nodes[0].endpoint.connections().count(), 1);
    exchange(&mut network, (0, pairs[499].0), (1, pairs[499].1));
    assert!(network.now.since_ns(start) < 10 * MS);
    exchange(&mut network, (1, pairs[0].1), (0, pairs[0].0));
}

// WIRE 3.23
#[test]
fn what_is_posted_before_the_peer_is_there_goes_when_it_is() {
    let mut network = Network::pair(11, CALM, 1);
    let (qp_a, qpn_a) = network.create(0);
    let (qp_b, qpn_b) = network.create(1);
    network.connect(0, qp_a, 1, qpn_b);
    network.enable(0, qp_a, 18, 7);
    network.submit(
        0,
        qp_a,
        1,
        Operation::Send,
        Payload::Inline(smallvec::SmallVec::from_slice(b"early")),
    );
    network.run(500 * MS);
    assert!(network.nodes[0].sends.is_empty());
    network.region(1, 1, 0, vec![0; 64], crate::host::Visibility::Relaxed);
    network.post_receive(
        1,
        qp_b,
        2,
        Sge {
            addr: 0,
            length: 64,
            lkey: 1,
        },
    );
    network.connect(1, qp_b, 0, qpn_a);
    assert!(network.run_until(5 * MS, |network| !network.nodes[1].receives.is_empty()));
    assert_eq!(network.nodes[1].established, [qp_b], "it is not in RTS yet");
}

#[test]
fn a_queue_pair_after_reset_begins_anew() {
    let mut network = Network::pair(12, CALM, 1);
    let (qp_a, qp_b) = network.connected(0, 1);
    exchange(&mut network, (0, qp_a), (1, qp_b));
    let now = network.now;
    for (node, qp) in [(0, qp_a), (1, qp_b)] {
        let Node {
            endpoint, memory, ..
        } = &mut network.nodes[node];
        endpoint.reset_qp(now, qp, memory);
    }
    network.run(10 * MS);
    let qpns = [(0, qp_a), (1, qp_b)]
        .map(|(node, qp)| network.nodes[node].endpoint.qps.get(qp).unwrap().qpn);
    network.connect(0, qp_a, 1, qpns[1]);
    network.connect(1, qp_b, 0, qpns[0]);
    network.enable(0, qp_a, 14, 7);
    network.enable(1, qp_b, 14, 7);
    exchange(&mut network, (0, qp_a), (1, qp_b));
    exchange(&mut network, (1, qp_b), (0, qp_a));
    assert!(network.nodes.iter().all(|node| node.failures.is_empty()));
}

#[rstest]
#[case(Gid::from_ip(ip(9, 9)), Gid::from_ip(ip(2, 0)), 2 << 14 | 5, ConnectError::UnknownSourceGid)]
#[case(Gid::from_ip(ip(1, 0)), Gid::default(), 2 << 14 | 5, ConnectError::UnroutableDestination)]
#[case(Gid::from_ip(ip(1, 0)), Gid::from_ip(std::net::Ipv4Addr::BROADCAST.into()), 2 << 14 | 5, ConnectError::UnroutableDestination)]
#[case(Gid::from_ip(ip(1, 0)), Gid::from_ip(std::net::Ipv4Addr::UNSPECIFIED.into()), 2 << 14 | 5, ConnectError::UnroutableDestination)]
#[case(Gid::from_ip(ip(1, 0)), Gid::from_ipv6(std::net::Ipv6Addr::LOCALHOST), 2 << 14 | 5, ConnectError::UnroutableDestination)]
#[case(
    Gid::from_ip(ip(1, 0)),
    Gid::from_ip(ip(2, 0)),
    0,
    ConnectError::InvalidDestinationQpn
)]
#[case(
    Gid::from_ip(ip(1, 0)),
    Gid::from_ip(ip(2, 0)),
    0xff_ffff,
    ConnectError::InvalidDestinationQpn
)]
fn what_cannot_be_is_refused_at_once(
    #[case] source_gid: Gid,
    #[case] dest_gid: Gid,
    #[case] dest_qpn: u32,
    #[case] error: ConnectError,
) {
    let mut network = Network::pair(13, CALM, 1);
    let (qp, _) = network.create(0);
    let params = ConnectParams {
        source_gid,
        dest_gid,
        dest_qpn: Qpn::truncate(dest_qpn),
        rq_psn: 0,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 0,
        access: ALL_RIGHTS,
    };
    let now = network.now;
    assert_eq!(
        network.nodes[0].endpoint.connect_qp(now, qp, &params),
        Err(error)
    );
    assert!(network.nodes[0].endpoint.connections().next().is_none());
    assert_eq!(network.nodes[0].endpoint.poll_timeout(), None);
}

#[test]
fn an_idle_endpoint_has_nothing_to_do() {
    let mut network = Network::pair(14, CALM, 1);
    let (qp_a, qp_b) = network.connected(0, 1);
    exchange(&mut network, (0, qp_a), (1, qp_b));
    network.run(1_000 * MS);
    assert!(
        network
            .nodes
            .iter_mut()
            .all(|node| !node.endpoint.outstanding())
    );
    // They look once more, whether they may sleep.
    network.run(ASLEEP_AFTER_NS + 1_000 * MS);
    for node in &mut network.nodes {
        assert!(!node.endpoint.outstanding());
        assert_eq!(
            node.endpoint.poll_timeout(),
            None,
            "{node:?}",
            node = node.endpoint
        );
    }
}

#[test]
fn who_was_answered_need_not_look_whether_the_answer_comes() {
    let mut network = Network::pair(15, CALM, 1);
    let (qp_a, qp_b) = network.connected(0, 1);
    exchange(&mut network, (0, qp_a), (1, qp_b));
    network.run(1_000 * MS);
    exchange(&mut network, (0, qp_a), (1, qp_b));
    let next = network.nodes[0].endpoint.poll_timeout();
    // Later than any probe. What is left looks after the patience of the queue pair, and whether the connection may sleep.
    let least = network.now + 100 * MS;
    assert!(next.is_some_and(|at| at >= least), "{next:?}");
}
