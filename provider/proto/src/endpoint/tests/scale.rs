//! Many queue pairs, peers that never come, and set-up through an outage.

use rstest::rstest;

use super::network::*;
use super::setup::exchange;
use crate::types::*;
use crate::wire::Qpn;

/// Queue pairs that one endpoint has here.
const MANY: usize = 300;

/// Control packets that node 0 has sent.
fn controls(network: &Network) -> u64 {
    network.nodes[0].endpoint.counters().control_sent
}

#[rstest]
#[case::nobody_there(false)]
#[case::peer_has_no_such_queue_pair(true)]
fn queue_pairs_whose_peer_never_comes_cost_a_packet_or_two_a_second(#[case] connected: bool) {
    let mut network = Network::pair(401, CALM, 1);
    if connected {
        network.connected(0, 1);
    }
    for at in 0..MANY {
        let (qp, _) = network.create(0);
        let absent = Qpn::truncate(1 << Qpn::LOCAL_BITS | (10_000 + at as u32));
        network.connect(0, qp, 1, absent);
        network.run(MS / 100);
    }
    network.run(5_000 * MS);
    let before = controls(&network);
    network.run(20_000 * MS);
    // OPENs of 300 share packets, and a HELLO asks along whether the peer knows the connection.
    let packets = controls(&network) - before;
    assert!(packets <= 20 * 6, "{packets} packets in 20 s");
    assert!(packets >= 10, "given up after {packets} packets");
}

#[rstest]
fn an_outage_during_set_up_costs_little_more_than_it_lasts(
    #[values(1, 7, 20, 40, 65, 70, 80, 130, 333, 700)] outage_ms: u64,
    #[values(1, 2, 3)] seed: u64,
) {
    let mut network = Network::pair(410 + seed, Weather { loss: 1.0, ..CALM }, 1);
    let (qp_a, qpn_a) = network.create(0);
    let (qp_b, qpn_b) = network.create(1);
    network.connect(0, qp_a, 1, qpn_b);
    network.connect(1, qp_b, 0, qpn_a);
    network.enable(0, qp_a, 16, 7);
    network.enable(1, qp_b, 16, 7);
    network.run(outage_ms * MS);
    network.weather.loss = 0.0;
    let start = network.now;
    exchange(&mut network, (0, qp_a), (1, qp_b));
    let took = network.now.since_ns(start);
    assert!(took < 20 * MS, "{took} ns after {outage_ms} ms");
}

#[test]
fn the_answer_that_is_lost_costs_milliseconds_however_long_the_other_has_waited() {
    for seed in 0..40 {
        let weather = Weather { loss: 0.3, ..CALM };
        let mut network = Network::pair(450 + seed, weather, 1);
        let (qp_a, qpn_a) = network.create(0);
        let (qp_b, qpn_b) = network.create(1);
        network.connect(0, qp_a, 1, qpn_b);
        network.enable(0, qp_a, 18, 7);
        // By now it asks once a second.
        network.run(10_000 * MS);
        let start = network.now;
        network.connect(1, qp_b, 0, qpn_a);
        network.enable(1, qp_b, 18, 7);
        exchange(&mut network, (0, qp_a), (1, qp_b));
        let took = network.now.since_ns(start);
        assert!(took < 150 * MS, "seed {seed}: {took} ns");
    }
}

#[rstest]
fn many_queue_pairs_come_and_go_and_nothing_is_left(#[values(0.0, 0.05)] loss: f64) {
    let mut network = Network::pair(402, Weather { loss, ..CALM }, 1);
    for round in 0..3 {
        let pairs: Vec<(QpId, QpId)> = (0..MANY).map(|_| network.connected(0, 1)).collect();
        for (a, b) in pairs.iter().step_by(7) {
            exchange(&mut network, (0, *a), (1, *b));
        }
        network.run(1_000 * MS);
        assert!(!network.nodes[0].endpoint.outstanding(), "round {round}");
        // Some are reset before, some leave here first and some there.
        let now = network.now;
        for (at, (a, b)) in pairs.into_iter().enumerate() {
            let mut ends = [(0, a), (1, b)];
            ends.rotate_left(at % 2);
            for (node, qp) in ends {
                let Node {
                    endpoint, memory, ..
                } = &mut network.nodes[node];
                if at % 3 == 0 {
                    endpoint.reset_qp(now, qp, memory);
                }
                endpoint.destroy_qp(now, qp, memory);
            }
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
