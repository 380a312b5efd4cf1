//! Golden packets (`tests/golden/*.hex`), which were written from the tables of WIRE.md and not
//! by this codec: parse, compare with the dissection, emit again, and build afresh.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;

struct Golden {
    bytes: Vec<u8>,
    dissection: String,
}

/// All golden packets by name.
pub(super) fn packets() -> BTreeMap<String, Vec<u8>> {
    read_all()
        .into_iter()
        .map(|(name, golden)| (name, golden.bytes))
        .collect()
}

fn read_all() -> BTreeMap<String, Golden> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    std::fs::read_dir(&folder)
        .expect("the folder of golden packets")
        .map(|entry| entry.expect("an entry of that folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "hex"))
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a golden packet");
            let name = path.file_stem().expect("a name").to_string_lossy();
            (name.into_owned(), read_one(&text))
        })
        .collect()
}

fn read_one(text: &str) -> Golden {
    let (comments, lines): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with('#'));
    Golden {
        bytes: lines
            .iter()
            .flat_map(|line| line.split_whitespace())
            .map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hexadecimal"))
            .collect(),
        dissection: comments
            .iter()
            .find_map(|comment| comment.strip_prefix("# > "))
            .expect("a comment with the dissection")
            .to_owned(),
    }
}

#[test]
fn every_golden_packet_reads_as_it_says_and_comes_out_the_same() {
    let all = read_all();
    assert!(all.len() >= 35, "golden packets are missing: {}", all.len());
    for (name, golden) in &all {
        let packet = Packet::parse(&golden.bytes)
            .unwrap_or_else(|error| panic!("{name} does not parse: {error}"));
        assert_eq!(
            dissect(&golden.bytes).to_string(),
            golden.dissection,
            "{name}"
        );
        assert_eq!(
            emit_again(&packet, golden.bytes.len()).as_deref(),
            Some(&golden.bytes[..]),
            "{name}"
        );
    }
}

#[test]
fn there_is_a_golden_packet_of_every_kind() {
    let all = packets();
    let parsed: Vec<_> = all
        .values()
        .map(|bytes| Packet::parse(bytes).expect("a golden packet"))
        .collect();
    for &opcode in Opcode::ALL {
        assert!(
            parsed.iter().any(
                |packet| matches!(packet, Packet::Data { header, .. } if header.opcode == opcode)
            ),
            "{opcode}"
        );
    }
    let codes: Vec<_> = parsed
        .iter()
        .filter_map(|packet| match packet {
            Packet::Ack(ack) => Some(ack.stream_blocks().map(|block| block.code)),
            _ => None,
        })
        .flatten()
        .collect();
    assert!(NakCode::ALL.iter().all(|code| codes.contains(code)));
    let text = all
        .values()
        .map(|bytes| dissect(bytes).to_string())
        .collect::<String>();
    for item in [
        "HELLO",
        "OPEN",
        "SHUT",
        "SHUT-ANSWER",
        "RESET",
        "CLOSE",
        "CLOSE-ANSWER",
    ] {
        assert!(text.contains(&format!("[{item} ")), "{item}");
    }
}

fn base() -> Base {
    Base {
        path: PathId(5),
        epoch: Epoch(2),
        connection: ConnectionId(0xc0ff_ee01),
        psn: Psn(1000),
        stamp: Stamp(0x1234_5678),
        ..Base::default()
    }
}

/// WIRE 2.12, 2.16
#[test]
fn a_write_is_built_as_in_the_table() {
    let header = DataHeader {
        opcode: Opcode::Write,
        payload_bytes: 16,
        qpn: Qpn::truncate(0x01_2345),
        token: Token::truncate(0xab_cdef),
        msn: Msn(42),
        ssn: Ssn(7),
        message_bytes: 48,
        offset: 16,
        remote_address: 0x7f00_1234_5678,
        rkey: Rkey(0x0bad_cafe),
        ..DataHeader::default()
    };
    assert_eq!(header.emit(&base()), packets()["data-write"][..64]);
    assert_eq!(header.place_address(), 0x7f00_1234_5688);
    assert!(!header.is_last_segment());
}

/// WIRE 2.20
#[test]
fn atomic_operands_are_read_and_written() {
    let golden = packets();
    let Ok(Packet::Data { payload, .. }) = Packet::parse(&golden["data-cmp-swap"]) else {
        panic!("not DATA");
    };
    let operands = AtomicOperands {
        first: 0x0123_4567_89ab_cdef,
        second: 0xfedc_ba98_7654_3210,
    };
    assert_eq!(AtomicOperands::parse(payload), Some(operands));
    assert_eq!(operands.emit(), payload);
    assert_eq!(AtomicOperands::parse(&payload[1..]), None);
}

/// WIRE 2.22
#[test]
fn a_datagram_is_built_as_in_the_table() {
    let header = DataHeader {
        opcode: Opcode::UdSendImm,
        qpn: Qpn::truncate(0x01_2345),
        remote_address: DataHeader::ud_remote_address(0x1111_1111, Qpn::truncate(0x05_4321)),
        immediate: 42,
        ..DataHeader::default()
    };
    assert_eq!(header.emit(&base()), packets()["data-ud-send-imm"][..]);
    assert_eq!(header.ud_qkey(), 0x1111_1111);
    assert_eq!(header.ud_source_qpn(), Qpn::truncate(0x05_4321));
}

/// WIRE 2.25, 2.28, 2.29, 5.5
#[test]
fn an_ack_is_built_as_in_the_tables() {
    let golden = packets();
    let Ok(Packet::Ack(ack)) = Packet::parse(&golden["ack-paths"]) else {
        panic!("not an ACK");
    };
    let mut vector = BitVector::EMPTY;
    for bit in [1, 2, 3, 31, 32, 255] {
        vector.set(bit);
    }
    let block = PathBlock {
        path: PathId(6),
        epoch: Epoch(255),
        flags: PathFlags::CE_STATE,
        cumulative: Psn(u32::MAX),
        vector,
        echoed_stamp: Stamp(7),
        ack_delay: AckDelay::NO_SAMPLE,
        ce_count: 3,
        duplicates: 2,
        received: u16::MAX,
    };
    assert_eq!(ack.path_blocks().nth(1), Some(block));
    assert_eq!(block.wire_bytes(), PATH_BLOCK_MAX_BYTES);
    assert!(block.acknowledges(Psn(u32::MAX - 1)));
    assert!(!block.acknowledges(Psn(u32::MAX)));
    assert!(block.acknowledges(Psn(0)));
    assert!(!block.acknowledges(Psn(3)));
    assert_eq!(ack.number(), AckNumber(u32::MAX));
    assert_eq!(ack.allowance.grant_kib_per_s, 12_207_031);

    let Ok(Packet::Ack(ack)) = Packet::parse(&golden["ack-streams"]) else {
        panic!("not an ACK");
    };
    let refused = StreamBlock {
        qpn: Qpn::truncate(0x01_2346),
        code: NakCode::Rnr,
        token: Token::truncate(0xab_cdee),
        attempt: Attempt(3),
        msn_executed: Msn(41),
        credit: Ssn(7),
        rnr_timer: 12,
    };
    assert_eq!(ack.stream_blocks().nth(1), Some(refused));
}

/// WIRE 2.35, 2.36
#[test]
fn hello_and_open_share_a_packet() {
    let gid = |last| Gid::from_ipv4(std::net::Ipv4Addr::new(10, 0, 0, last));
    let hello = Hello {
        identity: HelloIdentity {
            my_id: ConnectionId(0xc0ff_ee01),
            incarnation: Incarnation(0x1122_3344_5566_7788),
            echo: ConnectionId::UNKNOWN,
        },
        source_gid: gid(1),
        dest_gid: gid(2),
        endpoint_port: 24791,
        payload_bytes: 4096,
        paths: 16,
        checksum_mode: ChecksumMode::Headers,
        window_bytes: 2 << 20,
        w0_packets: 16,
        message_span: 2048,
        packet_span: 16384,
        addresses: [PlaneAddress {
            gid: gid(1),
            plane: PlaneId(0),
            speed_mbps: 0,
        }]
        .into_iter()
        .collect(),
    };
    let open = Open {
        from_qpn: Qpn::truncate(0x4002),
        to_qpn: Qpn::truncate(0x8003),
        flags: OpenFlags::ANSWER_WANTED,
        rnr_timer: 12,
        token: Token::truncate(0xab_cdef),
        echo: Token::ZERO,
        send_psn: 0x12_3456,
        receive_psn: 0x65_4321,
        credit: Ssn(128),
        max_dest_rd_atomic: 16,
        max_rd_atomic: 0,
    };
    let second = Open {
        from_qpn: Qpn::truncate(0x4003),
        to_qpn: Qpn::truncate(0x8004),
        flags: OpenFlags::SRQ,
        token: Token::truncate(0xab_cdee),
        echo: Token::truncate(0xbeef),
        max_dest_rd_atomic: 1,
        max_rd_atomic: 16,
        ..Open::default()
    };
    let mut buffer = [0xee; 1400];
    let mut builder = ControlBuilder::new(&mut buffer);
    assert!(builder.push_hello(&hello));
    assert!(builder.push_open(&open));
    assert!(builder.push_open(&second));
    let base = Base {
        stamp: Stamp(55),
        ..Base::default()
    };
    let length = builder.finish(&base);
    assert_eq!(buffer[..length], packets()["control-hello-first"][..]);
}

/// WIRE 2.6: whatever the version, a HELLO tells who sent it.
#[test]
fn a_hello_of_another_version_is_recognised() {
    let mut packet = packets().remove("control-hello-first").expect("it");
    packet[0] = 0xf3;
    seal(&mut packet);
    assert_eq!(
        Packet::parse(&packet).err(),
        Some(ParseError::UnknownVersion)
    );
    let (version, identity) = HelloIdentity::peek(&packet).expect("a HELLO");
    assert_eq!(version, 15);
    assert_eq!(identity.my_id, ConnectionId(0xc0ff_ee01));
    assert!(dissect(&packet).to_string().contains("HELLO of version 15"));
    packet[30] ^= 1;
    assert_eq!(HelloIdentity::peek(&packet), None, "the checksum counts");
    for length in 0..packet.len() {
        assert_eq!(HelloIdentity::peek(&packet[..length]), None);
    }
}

/// WIRE 3.16: room for the RESET is what the constant says.
#[test]
fn a_reset_is_small_and_known_as_one() {
    let golden = packets();
    assert_eq!(golden["control-reset"].len(), RESET_PACKET_BYTES);
    let is_reset = |name: &str| match Packet::parse(&golden[name]) {
        Ok(Packet::Control(control)) => control.is_reset(),
        _ => panic!("{name} is not CONTROL"),
    };
    assert!(is_reset("control-reset"));
    assert!(!is_reset("control-close"));
}

#[test]
fn the_long_form_shows_every_field_on_a_line() {
    let golden = packets();
    let text = format!("{:#}", dissect(&golden["ack-streams"]));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "ACK");
    assert_eq!(lines[1], "  connection           0xc0ffee01");
    assert!(lines.contains(&"  path"));
    assert!(lines.contains(&"    vector               -"));
    assert!(lines.contains(&"    code                 rnr"));
    assert_eq!(lines.len(), 1 + 9 + 11 + 2 * 8);
}
