//! Capture files made here, through the whole command: every link type, trains, damage, cut-off frames, filters and
//! the summary.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use etherparse::{PacketBuilder, PacketBuilderStep, UdpHeader, VlanId};
use metaroce_proto::wire::{
    AckBuilder, AckDelay, AckNumber, Allowance, Base, BaseFlags, BitVector, ConnectionId,
    DataHeader, Epoch, Opcode, PathBlock, PathId, Psn, Qpn, Stamp,
};
use rstest::rstest;
use serde_json::Value;

const PORT: u16 = 24_791;
const ETHERNET: u32 = 1;
const NULL: u32 = 0;
const RAW: u32 = 101;
const COOKED: u32 = 113;
const COOKED_2: u32 = 276;

/// A file that goes when the test ends.
struct Capture(PathBuf);

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Capture {
    fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("metaroce-dissect-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).expect("a temporary file");
        Self(path)
    }

    /// Frames with their times in µs.
    fn pcap(link: u32, frames: &[(u32, Vec<u8>)]) -> Self {
        Self::new(&pcap(link, frames, usize::MAX))
    }

    fn text(&self, arguments: &[&str]) -> String {
        let mut output = Vec::new();
        let file = self.0.to_str().expect("a plain name").to_owned();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        metaroce_dissect::run(arguments.chain([file]), &mut output).expect("a capture");
        String::from_utf8(output).expect("text")
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        self.text(&[&["--json"], arguments].concat())
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }
}

fn pcap(link: u32, frames: &[(u32, Vec<u8>)], snaplen: usize) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, link] {
        file.extend(u32::to_le_bytes(word));
    }
    for (time_us, frame) in frames {
        let captured = &frame[..frame.len().min(snaplen)];
        let lengths = [captured.len() as u32, frame.len() as u32];
        for word in [7, *time_us, lengths[0], lengths[1]] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend(captured);
    }
    file
}

/// Blocks of a pcapng file, big-endian, with stamps in ns.
fn pcapng(link: u16, frames: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let length = 12 + body.len().next_multiple_of(4) as u32;
        file.extend(kind.to_be_bytes());
        file.extend(length.to_be_bytes());
        file.extend(body);
        file.resize(file.len().next_multiple_of(4), 0);
        file.extend(length.to_be_bytes());
    };
    block(
        0x0a0d_0d0a,
        &[
            &0x1a2b_3c4d_u32.to_be_bytes()[..],
            &[0, 1, 0, 0],
            &[0xff; 8],
        ]
        .concat(),
    );
    let resolution = [0, 9, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0];
    block(
        1,
        &[&link.to_be_bytes()[..], &[0; 6], &resolution[..]].concat(),
    );
    for (time_us, frame) in frames {
        let time_ns = 7_000_000_000 + u64::from(*time_us) * 1000;
        let length = (frame.len() as u32).to_be_bytes();
        let head = [&[0; 4], &time_ns.to_be_bytes()[..], &length, &length].concat();
        block(6, &[&head, &frame[..]].concat());
    }
    file
}

fn ipv4() -> PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64)
}

/// A raw IPv4 packet to the endpoint port.
fn raw(payload: &[u8]) -> Vec<u8> {
    written(ipv4(), PORT, payload)
}

fn written(
    builder: PacketBuilderStep<etherparse::IpHeaders>,
    port: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    builder
        .udp(40_000, port)
        .write(&mut frame, payload)
        .expect("room in memory");
    frame
}

fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/../golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a golden packet");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
        .collect()
}

/// A WRITE of 64 bytes.
fn write(path: u8, psn: u32, stamp: u32, flags: BaseFlags) -> Vec<u8> {
    let header = DataHeader {
        opcode: Opcode::Write,
        payload_bytes: 64,
        message_bytes: 64,
        qpn: Qpn::truncate(0x4002),
        ..DataHeader::default()
    };
    let base = Base {
        flags,
        path: PathId(path),
        epoch: Epoch(0),
        connection: ConnectionId(0xaaaa),
        psn: Psn(psn),
        stamp: Stamp(stamp),
    };
    [&header.emit(&base)[..], &[0x77; 64]].concat()
}

/// An ACK about one path, in the connection of the other direction.
fn ack(number: u32, path: u8, echoed: u32, delay: AckDelay) -> Vec<u8> {
    let mut buffer = [0; 200];
    let mut builder = AckBuilder::new(&mut buffer);
    assert!(builder.push_path(&PathBlock {
        path: PathId(path),
        echoed_stamp: Stamp(echoed),
        ack_delay: delay,
        vector: BitVector::EMPTY,
        ..PathBlock::default()
    }));
    let base = Base {
        connection: ConnectionId(0xbbbb),
        ..Base::default()
    };
    let length = builder.finish(&base, AckNumber(number), &Allowance::default(), 0);
    buffer[..length].to_vec()
}

#[rstest]
#[case::raw(RAW, raw(&golden("data-write")))]
#[case::raw_ipv6(RAW, written(PacketBuilder::ipv6([1; 16], [2; 16], 64), PORT, &golden("data-write")))]
#[case::loopback(NULL, [&[2, 0, 0, 0], &raw(&golden("data-write"))[..]].concat())]
#[case::ethernet(
    ETHERNET,
    written(PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64), PORT, &golden("data-write"))
)]
#[case::vlan(
    ETHERNET,
    written(
        PacketBuilder::ethernet2([1; 6], [2; 6]).single_vlan(VlanId::try_new(7).unwrap()).ipv6([1; 16], [2; 16], 64),
        PORT,
        &golden("data-write")
    )
)]
#[case::cooked(COOKED, [&[0, 0, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 8, 0], &raw(&golden("data-write"))[..]].concat())]
#[case::cooked_2(
    COOKED_2,
    [&[8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0], &raw(&golden("data-write"))[..]].concat()
)]
fn every_link_type_is_read(#[case] link: u32, #[case] frame: Vec<u8>) {
    let frames = [(5, frame)];
    let both = [
        Capture::pcap(link, &frames),
        Capture::new(&pcapng(link as u16, &frames)),
    ];
    for capture in both {
        let packets = capture.json(&[]);
        assert_eq!(packets.len(), 1);
        assert_eq!(packets[0]["time_ns"], 7_000_005_000_u64);
        assert_eq!(packets[0]["fields"]["metaroce.psn"], 1000);
        assert_eq!(packets[0]["kinds"], serde_json::json!(["WRITE"]));
        assert_eq!(packets[0].get("error"), None);
    }
}

/// What the transport's logs say of a golden packet is what the tool prints.
#[test]
fn lines_are_those_of_the_codec() {
    for name in ["data-write", "ack-streams", "control-hello-first"] {
        let capture = Capture::pcap(RAW, &[(0, raw(&golden(name)))]);
        let expected = metaroce_proto::wire::dissect(&golden(name)).to_string();
        let text = capture.text(&[]);
        assert!(text.trim_end().ends_with(&expected), "{text}");
        assert!(text.contains("10.0.0.2:40000 > 10.0.0.1:24791"), "{text}");
    }
}

#[test]
fn every_field_is_shown() {
    let capture = Capture::pcap(RAW, &[(0, raw(&golden("ack-streams")))]);
    let text = capture.text(&["-v"]);
    for expected in [
        "metaroce.stream_block.code",
        "1 (rnr)",
        "metaroce.path_block.echoed_stamp",
        "Stream block",
    ] {
        assert!(text.contains(expected), "no {expected}:\n{text}");
    }
}

fn train() -> Vec<u8> {
    (0..4)
        .flat_map(|psn| write(3, psn, psn, BaseFlags::NONE))
        .collect()
}

#[test]
fn a_train_is_cut_and_damage_in_it_shown() {
    let mut damaged = train();
    damaged[2 * 128 + 9] ^= 1;
    let capture = Capture::pcap(RAW, &[(0, raw(&train())), (9, raw(&damaged))]);
    let packets = capture.json(&[]);
    assert_eq!(packets.len(), 8);
    let errors: Vec<_> = packets
        .iter()
        .map(|packet| packet.get("error").and_then(Value::as_str))
        .collect();
    let expected = [
        None,
        None,
        None,
        None,
        None,
        None,
        Some("bad-checksum"),
        None,
    ];
    assert_eq!(errors, expected);
    assert_eq!(packets[6]["part"], 3);
    assert_eq!(packets[7]["fields"]["metaroce.psn"], 3);
    assert!(
        capture
            .text(&[])
            .contains("no packet: bad-checksum, 128 bytes")
    );
    assert_eq!(capture.json(&["--type", "bad"]).len(), 1);
}

#[test]
fn a_frame_that_was_cut_off_shows_what_there_is() {
    let frames = [
        (0, raw(&write(1, 5, 0, BaseFlags::NONE))),
        (1, raw(&golden("ack-streams"))),
    ];
    // Headers of IP and UDP, and 70 bytes of payload.
    let capture = Capture::new(&pcap(RAW, &frames, 20 + UdpHeader::LEN + 70));
    let packets = capture.json(&[]);
    assert_eq!(packets[0].get("error"), None, "the header is whole");
    assert_eq!(packets[0]["fields"]["metaroce.psn"], 5);
    assert_eq!(
        (&packets[0]["bytes"], &packets[0]["captured"]),
        (&128.into(), &70.into())
    );
    assert_eq!(packets[1]["error"], "cut");
    assert_eq!(packets[1]["fields"]["metaroce.ack_number"], 10);
}

#[test]
fn filters_choose_packets() {
    let frames: Vec<_> = [
        "data-write",
        "data-read-req",
        "data-nop-probe",
        "ack-paths",
        "ack-streams",
        "control-hello-first",
        "control-reset",
    ]
    .iter()
    .map(|name| (0, raw(&golden(name))))
    .collect();
    let capture = Capture::pcap(RAW, &frames);
    let frames_with = |arguments: &[&str]| -> Vec<u64> {
        let packets = capture.json(arguments);
        packets
            .iter()
            .map(|packet| packet["frame"].as_u64().expect("a number"))
            .collect()
    };
    assert_eq!(frames_with(&[]), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(frames_with(&["--type", "read-req"]), [2]);
    assert_eq!(
        frames_with(&["--type", "ACK", "--type", "hello"]),
        [4, 5, 6]
    );
    assert_eq!(frames_with(&["--type", "probe"]), [3]);
    assert_eq!(frames_with(&["--type", "ack", "--path", "6"]), [4]);
    assert_eq!(frames_with(&["--qpn", "0x8003"]), [6]);
    assert_eq!(frames_with(&["--qpn", "0x012346"]), [5]);
    assert!(frames_with(&["--port-base", "20000", "--ports", "10"]).is_empty());
    assert_eq!(
        frames_with(&["--port-base", "20000", "--any-port"]),
        [1, 2, 3, 4, 5, 6, 7]
    );
    assert!(frames_with(&["--connection", "0xc0ffee01"]).contains(&6));
}

#[test]
fn other_traffic_is_left_out() {
    let frames = [
        (0, written(ipv4(), 53, b"not ours")),
        (1, vec![0x45; 10]),
        (2, raw(b"not a packet, though it goes to our port")),
    ];
    let capture = Capture::pcap(RAW, &frames);
    let packets = capture.json(&[]);
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0]["error"], "unknown-version");
    assert!(capture.json(&["--any-port", "--ports", "0"]).is_empty());
}

#[test]
fn the_summary_counts_gaps_retransmissions_and_round_trips() {
    let none = BaseFlags::NONE;
    let wrong = [&[0x11], &[0; 70][..]].concat();
    let frames = [
        (0, raw(&write(3, 0, 100, none))),
        (10, raw(&write(3, 1, 101, none))),
        (20, raw(&write(3, 3, 102, none))),
        (30, raw(&write(7, 0, 50, none))),
        // 100 µs after the packet with stamp 101, of which 640 ns were spent at the receiver.
        (110, raw(&ack(1, 3, 101, AckDelay(10)))),
        (111, raw(&ack(2, 3, 101, AckDelay(10)))),
        (120, raw(&ack(4, 7, 50, AckDelay::NO_SAMPLE))),
        (130, raw(&write(3, 0, 104, BaseFlags::RETRANSMISSION))),
        (140, raw(&wrong)),
    ];
    let capture = Capture::pcap(RAW, &frames);
    let summary = &capture.json(&["--summary"])[0];
    assert_eq!(summary["packets"], 9);
    assert_eq!(summary["bad"]["bad-checksum"], 1);
    let connections = summary["connections"].as_array().expect("connections");
    assert_eq!(connections.len(), 2);
    assert_eq!(connections[0]["id"], 0xaaaa);
    assert_eq!(connections[0]["peer"], 0xbbbb, "found by the echoed stamp");
    assert_eq!(connections[1]["ack_numbers"]["missing"], 1);
    let path = &connections[0]["paths"][0];
    assert_eq!(path["path"], 3);
    assert_eq!(
        (&path["packets"], &path["retransmitted"]),
        (&4.into(), &1.into())
    );
    assert_eq!(
        (&path["psns"]["missing"], &path["psns"]["again"]),
        (&1.into(), &1.into())
    );
    assert_eq!(path["round_trips"]["samples"], 1);
    assert_eq!(path["round_trips"]["median_ns"], 100_000 - 640);
    assert_eq!(connections[0]["paths"][1]["round_trips"], Value::Null);
    assert!(
        capture
            .text(&["--summary"])
            .contains("connection 0x0000aaaa")
    );
}

#[rstest]
#[case(b"", "the file is empty")]
#[case(
    b"#!/bin/sh\necho this is no capture file\n",
    "neither pcap nor pcapng"
)]
#[case(b"\xd4\xc3", "neither pcap nor pcapng")]
fn what_is_no_capture_is_said_so(#[case] bytes: &[u8], #[case] expected: &str) {
    let capture = Capture::new(bytes);
    let error = metaroce_dissect::run([capture.0.clone()], &mut Vec::new()).unwrap_err();
    assert!(format!("{error:#}").contains(expected), "{error:#}");
}

#[test]
fn an_unknown_link_type_is_said_so() {
    let capture = Capture::pcap(147, &[(0, vec![0; 100])]);
    let error = metaroce_dissect::run([capture.0.clone()], &mut Vec::new()).unwrap_err();
    assert!(format!("{error:#}").contains("147"), "{error:#}");
}

/// Files that end anywhere, or are damaged anywhere, end in messages, not in panics.
#[test]
fn damaged_files_never_panic() {
    let frames = [(0, raw(&train())), (1, raw(&golden("control-hello-first")))];
    for file in [pcap(RAW, &frames, usize::MAX), pcapng(101, &frames)] {
        for length in 0..file.len() {
            let capture = Capture::new(&file[..length]);
            let _ = metaroce_dissect::run([capture.0.clone()], &mut Vec::new());
        }
        for at in 0..120 {
            let mut damaged = file.clone();
            damaged[at] ^= 0xff;
            let capture = Capture::new(&damaged);
            let _ = metaroce_dissect::run([capture.0.clone()], &mut Vec::new());
        }
    }
}
