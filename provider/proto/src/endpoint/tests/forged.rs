//! What a network that lies may do: nothing but move counters.

use std::net::SocketAddr;

use rand::Rng;

use super::network::*;
use super::setup::exchange;
use crate::host::Visibility;
use crate::types::*;
use crate::wire::*;

fn attacker(ip: std::net::IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 6666)
}

fn victim(network: &Network) -> SocketAddr {
    address(network, 1)
}

fn address(network: &Network, node: usize) -> SocketAddr {
    SocketAddr::new(network.nodes[node].addresses[0], network.nodes[node].port)
}

/// A connected pair, and a WRITE of node 0 to node 1 as it was on the wire.
fn with_write() -> (Network, QpId, QpId, Vec<u8>) {
    let mut network = Network::pair(201, CALM, 1);
    let (a, b) = network.connected(0, 1);
    network.region(0, 1, 0, pattern(5, 256), Visibility::Relaxed);
    network.region(1, 2, 0, vec![0; 256], Visibility::Relaxed);
    network.run(10 * MS);
    network.sniffed = Some(Vec::new());
    network.submit(
        0,
        a,
        0,
        Operation::Write {
            remote_addr: 0,
            rkey: 2,
        },
        gather(1, 0, 256),
    );
    assert!(network.run_until(10 * MS, |network| network.nodes[0].sends.len() == 1));
    let sniffed = network.sniffed.take().unwrap();
    let is_write = |packet: &&Vec<u8>| matches!(Packet::parse(packet), Ok(Packet::Data { header, .. }) if header.opcode == Opcode::Write);
    let write = sniffed.iter().find(is_write).unwrap().clone();
    network.nodes[1]
        .memory
        .regions
        .get_mut(&2)
        .unwrap()
        .bytes
        .fill(0);
    (network, a, b, write)
}

/// The packet with changed headers and a right checksum.
fn forge(packet: &[u8], change: impl FnOnce(&mut Base, &mut DataHeader)) -> Vec<u8> {
    let (_, mut base) = Base::parse(packet).unwrap();
    let (mut header, payload) = DataHeader::parse(packet).unwrap();
    change(&mut base, &mut header);
    let mut forged = header.emit(&base).to_vec();
    forged.extend_from_slice(payload);
    forged
}

fn untouched(network: &Network) -> bool {
    network.nodes[1].memory.regions[&2]
        .bytes
        .iter()
        .all(|byte| *byte == 0)
}

// WIRE 4.3
#[test]
fn a_replayed_write_does_not_overwrite() {
    let (mut network, _, _, write) = with_write();
    let to = victim(&network);
    network.inject(attacker(ip(1, 0)), to, write);
    network.run(10 * MS);
    assert!(untouched(&network));
    assert_eq!(network.nodes[1].endpoint.counters().duplicates_received, 1);
}

// WIRE 9.1
#[test]
fn every_check_holds_a_forged_write_back() {
    type Change = fn(&mut Base, &mut DataHeader);
    let (mut network, a, b, write) = with_write();
    let to = victim(&network);
    // Each on a path of its own, so that it is not a duplicate.
    let with = |path: u8, more: Change| {
        forge(&write, |base, header| {
            base.path = PathId(40 + path);
            base.psn = Psn(0);
            header.msn = Msn(2);
            more(base, header);
        })
    };
    let count = |network: &Network, name: &str| {
        network.nodes[1]
            .endpoint
            .counters()
            .iter()
            .find(|(other, _)| *other == name)
            .unwrap()
            .1
    };
    let cases: [(&str, Change); 6] = [
        ("dropped_unknown_connection", |base, _| {
            base.connection.0 ^= 1
        }),
        ("dropped_out_of_window", |base, _| base.psn = Psn(100_000)),
        ("dropped_out_of_window", |base, _| base.path = PathId(200)),
        ("dropped_bad_token", |_, header| {
            header.token = Token::truncate(header.token.get() ^ 1)
        }),
        ("dropped_unknown_qp", |_, header| {
            header.qpn = Qpn::truncate(header.qpn.get() ^ 0x1000)
        }),
        ("dropped_unknown_qp", |_, header| {
            header.qpn = Qpn::truncate(header.qpn.get() ^ (1 << 14))
        }),
    ];
    for (at, (counter, change)) in cases.into_iter().enumerate() {
        let before = count(&network, counter);
        let packet = with(at as u8, change);
        network.inject(attacker(ip(1, 0)), to, packet);
        network.run(MS);
        assert_eq!(count(&network, counter), before + 1, "{counter}");
        assert!(untouched(&network), "{counter}");
    }
    let before = count(&network, "dropped_wrong_source");
    let packet = with(20, |_, _| {});
    network.inject(attacker(ip(66, 6)), to, packet);
    network.run(MS);
    assert_eq!(count(&network, "dropped_wrong_source"), before + 1);
    assert!(untouched(&network));
    assert!(network.nodes.iter().all(|node| node.failures.is_empty()));
    exchange(&mut network, (1, b), (0, a));
}

// WIRE 9.2
#[test]
fn noise_changes_nothing() {
    let (mut network, a, b, write) = with_write();
    let to = victim(&network);
    for round in 0..20_000 {
        let mut packet = write.clone();
        if round % 3 == 0 {
            let length = network.rng.random_range(0..200);
            packet = (0..length).map(|_| network.rng.random()).collect();
        } else {
            for _ in 0..network.rng.random_range(1..4) {
                let at = network.rng.random_range(0..packet.len());
                // The payload is not checksummed; the headers are.
                packet[at % 64] ^= 1 << network.rng.random_range(0..8);
            }
        }
        network.inject(attacker(ip(1, 0)), to, packet);
    }
    network.run(100 * MS);
    assert!(untouched(&network));
    assert!(network.nodes[1].endpoint.counters().dropped_malformed > 15_000);
    exchange(&mut network, (0, a), (1, b));
    exchange(&mut network, (1, b), (0, a));
}

// WIRE 3.16, 3.17, 9.5
#[test]
fn resets_are_few_small_and_believed_from_the_peer_only() {
    let (mut network, a, b, write) = with_write();
    let to = victim(&network);
    network.sniffed = Some(Vec::new());
    for _ in 0..1_000 {
        let packet = forge(&write, |base, _| {
            base.connection.0 = base.connection.0.wrapping_add(77)
        });
        network.inject(attacker(ip(66, 0)), to, packet);
    }
    network.run(MS);
    assert_eq!(
        network.nodes[1].endpoint.counters().resets_sent,
        0,
        "a source port is deaf"
    );
    network.sniffed = Some(Vec::new());
    for number in 0..5_000u32 {
        let identity = HelloIdentity {
            my_id: ConnectionId(number + 1),
            incarnation: Incarnation(1),
            echo: ConnectionId(number + 9),
        };
        let hello = Hello {
            identity,
            source_gid: Gid::from_ip(ip(66, 0)),
            dest_gid: Gid::from_ip(ip(2, 0)),
            endpoint_port: 4_444,
            payload_bytes: 4096,
            paths: 64,
            ..Hello::default()
        };
        let mut packet = [0; 256];
        let mut builder = ControlBuilder::new(&mut packet);
        assert!(builder.push_hello(&hello));
        let length = builder.finish(&Base::default());
        network.inject(attacker(ip(66, 0)), to, packet[..length].to_vec());
    }
    network.run(MS);
    let sent = network.nodes[1].endpoint.counters().resets_sent;
    assert!((1..=300).contains(&sent), "{sent}");
    assert_eq!(
        network.sniffed.take().unwrap().last().unwrap().len(),
        RESET_PACKET_BYTES
    );
    // One for the id that node 1 sends with, but not from node 0; one from node 0, but for another id.
    let (_, base) = Base::parse(&write).unwrap();
    let reset = |id: ConnectionId| {
        let mut packet = [0; RESET_PACKET_BYTES];
        let mut builder = ControlBuilder::new(&mut packet);
        assert!(builder.push_reset(&Reset { unknown_id: id }));
        let length = builder.finish(&Base::default());
        packet[..length].to_vec()
    };
    let node_0 = SocketAddr::new(network.nodes[0].addresses[0], network.nodes[0].port);
    network.inject(attacker(ip(66, 0)), node_0, reset(base.connection));
    network.inject(
        attacker(ip(2, 0)),
        node_0,
        reset(ConnectionId(base.connection.0 ^ 1)),
    );
    network.run(MS);
    assert_eq!(network.nodes[0].endpoint.counters().resets_received, 0);
    exchange(&mut network, (0, a), (1, b));
    // What the peer really says is believed.
    network.inject(attacker(ip(2, 0)), node_0, reset(base.connection));
    network.run(MS);
    assert_eq!(network.nodes[0].endpoint.counters().resets_received, 1);
    network.submit(
        0,
        a,
        9,
        Operation::Send,
        Payload::Inline(smallvec::smallvec![1]),
    );
    assert_eq!(
        network.nodes[0].sends.last().unwrap().status,
        Status::RetryExceeded
    );
}

// WIRE 3.5
#[test]
fn a_forged_hello_does_not_end_a_connection() {
    let (mut network, a, b, _) = with_write();
    let to = victim(&network);
    for number in 0..1_000u32 {
        let hello = Hello {
            identity: HelloIdentity {
                my_id: ConnectionId(number + 1),
                incarnation: Incarnation(u64::from(number)),
                echo: ConnectionId(number * 3),
            },
            source_gid: Gid::from_ip(ip(1, 0)),
            dest_gid: Gid::from_ip(ip(2, 0)),
            endpoint_port: PORT_BASE + 1,
            payload_bytes: 4096,
            paths: 64,
            window_bytes: 1 << 20,
            ..Hello::default()
        };
        let mut packet = [0; 256];
        let mut builder = ControlBuilder::new(&mut packet);
        assert!(builder.push_hello(&hello));
        let length = builder.finish(&Base::default());
        network.inject(attacker(ip(1, 0)), to, packet[..length].to_vec());
    }
    network.run(100 * MS);
    assert_eq!(network.nodes[1].endpoint.connections().count(), 1);
    exchange(&mut network, (0, a), (1, b));
    exchange(&mut network, (1, b), (0, a));
    assert!(network.nodes.iter().all(|node| node.failures.is_empty()));
}

// WIRE 3.24, 9.4
#[test]
fn forged_opens_beside_hellos_open_nothing_and_pile_nothing_up() {
    let mut network = Network::pair(203, CALM, 1);
    let (a, qpn_a) = network.create(0);
    let (b, qpn_b) = network.create(1);
    network.connect(1, b, 0, qpn_a);
    network.enable(1, b, 14, 7);
    let to = victim(&network);
    let carried = network.carried;
    for number in 0..1_000u32 {
        let hello = Hello {
            identity: HelloIdentity {
                my_id: ConnectionId(number / 3 + 1),
                incarnation: Incarnation(u64::from(number % 5 + 1)),
                echo: ConnectionId(number % 2 * 77),
            },
            source_gid: Gid::from_ip(ip(1, 0)),
            dest_gid: Gid::from_ip(ip(2, 0)),
            endpoint_port: PORT_BASE + 1,
            payload_bytes: 4096,
            paths: 64,
            ..Hello::default()
        };
        let open = Open {
            from_qpn: qpn_a,
            to_qpn: qpn_b,
            flags: OpenFlags::NONE.set(OpenFlags::ANSWER_WANTED, true),
            token: Token::truncate(number + 1),
            echo: Token::truncate(number * 16_001),
            send_psn: 0,
            ..Open::default()
        };
        let mut packet = [0; 512];
        let mut builder = ControlBuilder::new(&mut packet);
        assert!(builder.push_hello(&hello));
        assert!((0..5).all(|_| builder.push_open(&open)));
        let length = builder.finish(&Base::default());
        network.inject(attacker(ip(1, 0)), to, packet[..length].to_vec());
    }
    network.run(MS);
    let answers = network.carried - carried - 1_000;
    assert!(answers <= 2 * 1_000, "{answers}");
    let mut connections = network.nodes[1].endpoint.connections();
    assert!(
        connections
            .next()
            .is_some_and(|connection| !connection.open)
    );
    assert!(connections.next().is_none());
    drop(connections);
    network.connect(0, a, 1, qpn_b);
    network.enable(0, a, 14, 7);
    exchange(&mut network, (0, a), (1, b));
    exchange(&mut network, (1, b), (0, a));
    assert!(network.nodes.iter().all(|node| node.failures.is_empty()));
}

// WIRE 3.2, 9.4
#[test]
fn strangers_allocate_nothing() {
    let mut network = Network::pair(202, CALM, 1);
    let to = victim(&network);
    for number in 0..1_000u32 {
        let hello = Hello {
            identity: HelloIdentity {
                my_id: ConnectionId(7),
                incarnation: Incarnation(1),
                echo: ConnectionId(0),
            },
            source_gid: Gid::from_ip(ip(number as u8, (number >> 8) as u8)),
            dest_gid: Gid::from_ip(ip(2, 0)),
            endpoint_port: PORT_BASE + 1,
            payload_bytes: 4096,
            paths: 64,
            ..Hello::default()
        };
        let mut packet = [0; 256];
        let mut builder = ControlBuilder::new(&mut packet);
        assert!(builder.push_hello(&hello));
        let length = builder.finish(&Base::default());
        network.inject(
            attacker(ip(number as u8, (number >> 8) as u8)),
            to,
            packet[..length].to_vec(),
        );
    }
    let carried = network.carried;
    network.run(100 * MS);
    assert_eq!(network.carried, carried, "no answer");
    assert_eq!(network.nodes[1].endpoint.connections().count(), 0);
    assert_eq!(network.nodes[1].endpoint.poll_timeout(), None);
}

// WIRE 3.3
#[test]
fn an_ack_before_the_hello_grants_nothing_and_its_number_does_not_count() {
    let mut network = Network::pair(203, CALM, 1);
    let ((a, qpn_a), (b, qpn_b)) = (network.create(0), network.create(1));
    network.connect(0, a, 1, qpn_b);
    network.run(MS);
    let grant = |network: &Network| {
        let mut connections = network.nodes[0].endpoint.connections();
        connections.next().unwrap().grant_bytes_per_s
    };
    let id = network.nodes[0].endpoint.connections().next().unwrap().id;
    let inject_ack = |network: &mut Network, number: u32| {
        let mut packet = [0; 64];
        let base = Base {
            connection: id,
            ..Base::default()
        };
        let allowance = Allowance {
            grant_kib_per_s: 5_000,
            window_bytes: 1 << 20,
            w0_packets: 1,
        };
        let number = AckNumber(number);
        let length = AckBuilder::new(&mut packet).finish(&base, number, &allowance, 0);
        let (from, to) = (victim(network), address(network, 0));
        network.inject(from, to, packet[..length].to_vec());
        network.run(MS);
    };
    // Of a process of the peer that is gone, which had sent many.
    inject_ack(&mut network, 1_000);
    assert_eq!(grant(&network), u64::MAX);

    network.connect(1, b, 0, qpn_a);
    network.enable(0, a, 14, 7);
    network.enable(1, b, 14, 7);
    exchange(&mut network, (0, a), (1, b));
    inject_ack(&mut network, 500);
    assert_eq!(grant(&network), 5_000 * 1024);
}
