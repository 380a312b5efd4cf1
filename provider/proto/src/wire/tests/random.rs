//! Seeded random tests: round trips of arbitrary headers, builders in buffers of every size,
//! and bytes that mean harm. A failure prints its seed.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};

use super::*;

/// Hostile datagrams per run; the whole file takes about a second.
const HOSTILE_DATAGRAMS: u64 = 150_000;
/// Random packets of each kind that make the round trip.
const ROUND_TRIPS: u64 = 5_000;

pub(super) fn random_base(rng: &mut SmallRng) -> Base {
    Base {
        flags: BaseFlags::from_bits(rng.random()),
        path: PathId(rng.random()),
        epoch: Epoch(rng.random()),
        connection: ConnectionId(rng.random()),
        psn: Psn(rng.random()),
        stamp: Stamp(rng.random()),
    }
}

/// A header that obeys WIRE 2.18 to 2.23 and its payload.
pub(super) fn random_data(rng: &mut SmallRng) -> (DataHeader, Vec<u8>) {
    let opcode = *Opcode::ALL.choose(rng).expect("opcodes");
    let small = rng.random_range(0..200_u16);
    let (payload_bytes, message_bytes, offset) = match opcode {
        Opcode::Nop | Opcode::Fill => (0, rng.random(), rng.random()),
        Opcode::ReadReq => (0, rng.random(), 0),
        Opcode::CmpSwap | Opcode::FetchAdd => (16, 16, 0),
        Opcode::AtomicResp => (8, 8, 0),
        Opcode::UdSend | Opcode::UdSendImm => (small, u32::from(small), 0),
        _ if small == 0 => (0, 0, 0),
        _ => {
            let offset = rng.random_range(0..=u32::MAX - u32::from(small));
            let end = offset + u32::from(small);
            (small, rng.random_range(end..=u32::MAX), offset)
        }
    };
    let header = DataHeader {
        opcode,
        flags: DataFlags::from_bits(rng.random()),
        attempt: Attempt(rng.random()),
        payload_bytes,
        qpn: Qpn::truncate(rng.random()),
        token: Token::truncate(rng.random()),
        msn: Msn(rng.random()),
        ssn: Ssn(rng.random()),
        message_bytes,
        offset,
        remote_address: rng.random(),
        rkey: Rkey(rng.random()),
        immediate: match opcode {
            Opcode::Fill => rng.random_range(0..3),
            _ => rng.random(),
        },
    };
    let mut payload = vec![0; usize::from(payload_bytes)];
    rng.fill_bytes(&mut payload);
    (header, payload)
}

pub(super) fn random_path_block(rng: &mut SmallRng) -> PathBlock {
    let mut vector = BitVector::EMPTY;
    for _ in 0..rng.random_range(0..40) {
        vector.set(rng.random_range(1..VECTOR_BITS));
    }
    PathBlock {
        path: PathId(rng.random()),
        epoch: Epoch(rng.random()),
        flags: PathFlags::from_bits(rng.random()),
        cumulative: Psn(rng.random()),
        vector,
        echoed_stamp: Stamp(rng.random()),
        ack_delay: AckDelay(rng.random()),
        ce_count: rng.random(),
        duplicates: rng.random(),
        received: rng.random(),
    }
}

pub(super) fn random_stream_block(rng: &mut SmallRng) -> StreamBlock {
    StreamBlock {
        qpn: Qpn::truncate(rng.random()),
        code: *NakCode::ALL.choose(rng).expect("codes"),
        token: Token::truncate(rng.random()),
        attempt: Attempt(rng.random()),
        msn_executed: Msn(rng.random()),
        credit: Ssn(rng.random()),
        rnr_timer: rng.random(),
    }
}

fn random_gid(rng: &mut SmallRng) -> Gid {
    Gid(rng.random())
}

pub(super) fn random_hello(rng: &mut SmallRng) -> Hello {
    let addresses = rng.random_range(0..=HELLO_ADDRESSES_MAX);
    Hello {
        identity: HelloIdentity {
            my_id: ConnectionId(rng.random()),
            incarnation: Incarnation(rng.random()),
            echo: ConnectionId(rng.random()),
        },
        source_gid: random_gid(rng),
        dest_gid: random_gid(rng),
        endpoint_port: rng.random(),
        payload_bytes: rng.random(),
        paths: rng.random_range(1..=256),
        checksum_mode: match rng.random() {
            true => ChecksumMode::Headers,
            false => ChecksumMode::HeadersAndPayload,
        },
        window_bytes: rng.random(),
        w0_packets: rng.random(),
        message_span: rng.random(),
        packet_span: rng.random(),
        addresses: (0..addresses)
            .map(|_| PlaneAddress {
                gid: random_gid(rng),
                plane: PlaneId(rng.random()),
                speed_mbps: rng.random_range(0..=SPEED_MAX_MBPS),
            })
            .collect(),
    }
}

pub(super) fn random_open(rng: &mut SmallRng) -> Open {
    Open {
        from_qpn: Qpn::truncate(rng.random()),
        to_qpn: Qpn::truncate(rng.random()),
        flags: OpenFlags::from_bits(rng.random()),
        rnr_timer: rng.random(),
        token: Token::truncate(rng.random_range(1..=Token::MAX.get())),
        echo: Token::truncate(rng.random()),
        send_psn: rng.random(),
        receive_psn: rng.random(),
        credit: Ssn(rng.random()),
        max_dest_rd_atomic: rng.random(),
        max_rd_atomic: rng.random(),
    }
}

pub(super) fn random_shut(rng: &mut SmallRng) -> Shut {
    Shut {
        from_qpn: Qpn::truncate(rng.random()),
        reason: ShutReason::from_wire(rng.random_range(0..4)).expect("a reason"),
        from_token: Token::truncate(rng.random()),
        to_qpn: Qpn::truncate(rng.random()),
        to_token: Token::truncate(rng.random()),
        msn_executed: Msn(rng.random()),
    }
}

#[test]
fn data_makes_the_round_trip() {
    for seed in 0..ROUND_TRIPS {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let base = random_base(rng);
        let (header, payload) = random_data(rng);
        let mut packet = header.emit(&base);
        if header.flags.contains(DataFlags::PAYLOAD_CHECKSUMMED) {
            DataHeader::extend_checksum(&mut packet, payload.chunks(7));
        }
        let mut packet = packet.to_vec();
        packet.extend_from_slice(&payload);
        packet.resize(packet.len() + rng.random_range(0..20), 0xaa);
        match Packet::parse(&packet) {
            Ok(Packet::Data {
                base: base_back,
                header: header_back,
                payload: payload_back,
            }) => {
                assert_eq!(base_back, base, "seed {seed}");
                assert_eq!(header_back, header, "seed {seed}");
                assert_eq!(payload_back, payload, "seed {seed}");
            }
            other => panic!("seed {seed}: {header:?} became {other:?}"),
        }
    }
}

/// WIRE 2.26: whatever is pushed, an ACK never outgrows its buffer, and what fitted comes back.
#[test]
fn acks_make_the_round_trip_in_buffers_of_any_size() {
    for seed in 0..ROUND_TRIPS {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let base = random_base(rng);
        let allowance = Allowance {
            grant_kib_per_s: rng.random(),
            window_bytes: rng.random(),
            w0_packets: rng.random(),
        };
        let mut buffer = vec![0xee; rng.random_range(ACK_HEADER_BYTES..1500)];
        let size = buffer.len();
        let mut builder = AckBuilder::new(&mut buffer);
        let (mut paths, mut streams) = (Vec::new(), Vec::new());
        for _ in 0..rng.random_range(0..60) {
            if rng.random() {
                let block = random_path_block(rng);
                if builder.push_path(&block) {
                    paths.push(block);
                } else {
                    assert!(builder.room_bytes() < block.wire_bytes(), "seed {seed}");
                }
            } else {
                let block = random_stream_block(rng);
                if builder.push_stream(&block) {
                    streams.push(block);
                } else {
                    assert!(builder.room_bytes() < STREAM_BLOCK_BYTES, "seed {seed}");
                }
            }
        }
        assert_eq!(builder.is_empty(), paths.is_empty() && streams.is_empty());
        let number = AckNumber(rng.random());
        let least_bytes = rng.random_range(0..1600);
        let length = builder.finish(&base, number, &allowance, least_bytes);
        assert!(length <= size, "seed {seed}");
        assert!(length >= least_bytes.min(size), "seed {seed}");
        let Ok(Packet::Ack(ack)) = Packet::parse(&buffer[..length]) else {
            panic!("seed {seed}: no ACK");
        };
        assert_eq!(ack.number(), number, "seed {seed}");
        assert_eq!(ack.allowance, allowance, "seed {seed}");
        assert_eq!(ack.path_blocks().collect::<Vec<_>>(), paths, "seed {seed}");
        assert_eq!(
            ack.stream_blocks().collect::<Vec<_>>(),
            streams,
            "seed {seed}"
        );
    }
}

/// What a test put into a CONTROL packet, as text that shows every field.
fn push_random_item(rng: &mut SmallRng, builder: &mut ControlBuilder<'_>) -> Option<String> {
    match rng.random_range(0..6) {
        0 => {
            let open = random_open(rng);
            builder.push_open(&open).then(|| format!("{open:#}"))
        }
        1 => {
            let shut = random_shut(rng);
            builder.push_shut(&shut).then(|| format!("{shut:#}"))
        }
        2 => {
            let shut = random_shut(rng);
            builder
                .push_shut_answer(&shut)
                .then(|| format!("{shut:#}").replacen("SHUT", "SHUT-ANSWER", 1))
        }
        3 => {
            let reset = Reset {
                unknown_id: ConnectionId(rng.random()),
            };
            builder.push_reset(&reset).then(|| format!("{reset:#}"))
        }
        kind => {
            let blocks: Vec<_> = (0..rng.random_range(0..30))
                .map(|_| random_stream_block(rng))
                .collect();
            let (name, taken) = if kind == 4 {
                ("CLOSE", builder.push_close(CloseReason::Exit, &blocks))
            } else {
                (
                    "CLOSE-ANSWER",
                    builder.push_close_answer(CloseReason::Error, &blocks),
                )
            };
            let taken = taken?;
            let room_bytes = builder.room_bytes();
            assert!(taken == blocks.len() || room_bytes < STREAM_BLOCK_BYTES);
            let reason = if kind == 4 { "exit" } else { "error" };
            let blocks: String = blocks[..taken]
                .iter()
                .map(|block| format!("\n  {}", format!("{block:#}").replace('\n', "\n  ")))
                .collect();
            Some(format!("{name}\n  {:<20} {reason}{blocks}", "reason"))
        }
    }
}

#[test]
fn control_packets_make_the_round_trip_in_buffers_of_any_size() {
    for seed in 0..ROUND_TRIPS {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let base = random_base(rng);
        let mut buffer = vec![0xee; rng.random_range(64..1500)];
        let size = buffer.len();
        let mut builder = ControlBuilder::new(&mut buffer);
        let mut pushed = Vec::new();
        let hello = random_hello(rng);
        if builder.push_hello(&hello) {
            pushed.push(format!("{hello:#}"));
        }
        for _ in 0..rng.random_range(1..20) {
            pushed.extend(push_random_item(rng, &mut builder));
        }
        if builder.is_empty() {
            continue;
        }
        let length = builder.finish(&base);
        assert!(length <= size, "seed {seed}");
        let Ok(Packet::Control(control)) = Packet::parse(&buffer[..length]) else {
            panic!("seed {seed}: no CONTROL");
        };
        assert_eq!(control.base, base);
        let back: Vec<_> = control.items().map(|item| format!("{item:#}")).collect();
        assert_eq!(back, pushed, "seed {seed}");
    }
}

/// One way to spoil a packet.
fn spoil(rng: &mut SmallRng, packet: &mut Vec<u8>) {
    match rng.random_range(0..6) {
        0 => packet.truncate(rng.random_range(0..=packet.len())),
        1 => packet.extend((0..rng.random_range(1..100)).map(|_| 0x5a)),
        2 if !packet.is_empty() => {
            let at = rng.random_range(0..packet.len());
            let extent = rng.random_range(1..=packet.len() - at);
            rng.fill_bytes(&mut packet[at..at + extent]);
        }
        3 if packet.len() > 8 => {
            let at = rng.random_range(0..packet.len() - 4);
            packet.drain(at..at + rng.random_range(1..=4));
        }
        _ => {
            for _ in 0..rng.random_range(1..4) {
                if let Some(last) = packet.len().checked_sub(1) {
                    packet[rng.random_range(0..=last)] ^= 1 << rng.random_range(0..8);
                }
            }
        }
    }
}

/// Lengths of a packet allow the seal to be set.
fn can_be_sealed(packet: &[u8]) -> bool {
    match packet.first().map(|byte| byte & 0x0f) {
        Some(1) => {
            packet.len() >= 64
                && 64 + usize::from(u16::from_be_bytes([packet[20], packet[21]])) <= packet.len()
        }
        Some(2) => packet.len() >= 32,
        Some(_) => packet.len() >= 20,
        None => false,
    }
}

/// WIRE 9.2, 9.3: neither parsing nor showing panics, and whatever parses is whole. Half of the
/// spoiled packets get a right checksum, or nothing behind it would ever be reached.
#[test]
fn hostile_bytes_never_panic() {
    let golden: Vec<_> = golden::packets().into_values().collect();
    let mut parsed = 0_u64;
    let mut causes = [0_u64; ParseError::COUNT];
    for seed in 0..HOSTILE_DATAGRAMS {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let mut packet = golden.choose(rng).expect("golden packets").clone();
        if rng.random_ratio(1, 8) {
            packet = vec![0; rng.random_range(0..300)];
            rng.fill_bytes(&mut packet);
            if let Some(first) = packet.first_mut() {
                *first = 0x10 | (*first & 0x03);
            }
        } else {
            spoil(rng, &mut packet);
        }
        if rng.random() && can_be_sealed(&packet) {
            seal(&mut packet);
        }
        match Packet::parse(&packet) {
            Ok(packet) => {
                parsed += 1;
                let text = format!("{packet} {packet:#}");
                assert!(!text.is_empty(), "seed {seed}");
                if let Packet::Ack(ack) = packet {
                    assert!(
                        ack.path_blocks().all(|block| !block.vector.get(0)),
                        "seed {seed}"
                    );
                }
            }
            Err(error) => causes[error.index()] += 1,
        }
        let _ = HelloIdentity::peek(&packet);
    }
    // The spoiling is worth something only if it reaches every check.
    assert!(parsed > 1000, "only {parsed} were packets");
    for (cause, count) in ParseError::ALL.iter().zip(causes) {
        assert!(count > 0, "nothing led to {cause}");
    }
}
