//! Finding the packets in a datagram that is several, by their checksums.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::fields::{Sealed, seal_of, segment_bytes};
use super::random::{random_base, random_path_block};
use super::*;

/// Trains per test.
const TRAINS: u64 = 2_000;

/// A DATA packet with `payload_bytes`, padded to `length`.
fn packet(rng: &mut SmallRng, payload_bytes: usize, length: usize) -> Vec<u8> {
    let header = DataHeader {
        opcode: Opcode::Send,
        payload_bytes: payload_bytes as u16,
        message_bytes: payload_bytes as u32,
        ..DataHeader::default()
    };
    let mut bytes = header.emit(&random_base(rng)).to_vec();
    bytes.extend((0..payload_bytes).map(|_| rng.random::<u8>()));
    bytes.resize(length.max(bytes.len()), 0);
    bytes
}

/// A train of padded and full packets, of which the last may be shorter, and the length of its packets.
fn train(rng: &mut SmallRng) -> (Vec<u8>, usize) {
    let segment = rng.random_range(DATA_HEADER_BYTES..1500);
    let mut bytes = Vec::new();
    for _ in 1..rng.random_range(2..12) {
        let payload = rng.random_range(0..=segment - DATA_HEADER_BYTES);
        bytes.extend(packet(rng, payload, segment));
    }
    let payload = rng.random_range(0..=segment - DATA_HEADER_BYTES);
    bytes.extend(packet(rng, payload, 0));
    (bytes, segment)
}

#[test]
fn trains_are_cut_where_their_packets_begin() {
    for seed in 0..TRAINS {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let (bytes, segment) = train(rng);
        assert_eq!(segment_bytes(&bytes), segment, "seed {seed}");
        for packet in bytes.chunks(segment) {
            assert!(matches!(seal_of(packet), Sealed::Right(_)), "seed {seed}");
        }
    }
}

/// One damaged packet of three or more does not hide the others.
#[test]
fn a_damaged_packet_hides_no_other() {
    for seed in 0..TRAINS {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let (mut bytes, segment) = train(rng);
        let count = bytes.len().div_ceil(segment);
        if count < 3 {
            continue;
        }
        let damaged = rng.random_range(0..count);
        // Not in the payload, which has no checksum here.
        bytes[damaged * segment + rng.random_range(0..DATA_HEADER_BYTES)] ^= 0x55;
        let found = segment_bytes(&bytes);
        // Behind a damaged first packet the rest of a padded train may begin earlier only by chance.
        assert_eq!(found, segment, "seed {seed}, packet {damaged} of {count}");
    }
}

#[test]
fn one_packet_stays_one() {
    for (name, bytes) in golden::packets() {
        assert_eq!(segment_bytes(&bytes), bytes.len(), "{name}");
        assert!(matches!(seal_of(&bytes), Sealed::Right(_)), "{name}");
    }
    for seed in 0..TRAINS {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let payload = rng.random_range(0..1000);
        let mut bytes = packet(rng, payload, 1200);
        assert_eq!(segment_bytes(&bytes), 1200, "seed {seed}");
        bytes[7] ^= 1;
        assert_eq!(segment_bytes(&bytes), 1200, "seed {seed}, damaged");
    }
}

/// Bytes that look like the beginning of a packet everywhere cost no more than a bounded number of checksums.
#[test]
fn what_only_looks_like_packets_is_one() {
    for first in [0x11, 0x12, 0x13] {
        let bytes = vec![first; 65_000];
        assert_eq!(segment_bytes(&bytes), bytes.len());
    }
}

/// WIRE 5.11: an ACK in front of small DATA, the shorter of the two padded or last.
#[test]
fn an_ack_in_front_of_data_is_told_apart() {
    for seed in 0..TRAINS {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let payload = rng.random_range(0..300);
        let data = packet(rng, payload, 0);
        let mut ack = vec![0; 500];
        let mut builder = AckBuilder::new(&mut ack);
        for _ in 0..rng.random_range(1..4) {
            assert!(builder.push_path(&random_path_block(rng)));
        }
        let length = builder.finish(
            &random_base(rng),
            AckNumber(rng.random()),
            &Allowance::default(),
            data.len(),
        );
        ack.truncate(length);
        let both = [&ack[..], &data].concat();
        assert_eq!(segment_bytes(&both), length, "seed {seed}");
    }
}

/// Acknowledgements that were merged on the way in.
#[test]
fn merged_acks_are_told_apart() {
    let golden = golden::packets();
    let ack = &golden["ack-streams"];
    let last = &golden["ack-empty"];
    let merged = [&ack[..], &ack[..], &last[..]].concat();
    assert_eq!(segment_bytes(&merged), ack.len());
}

/// The seal is right exactly where the codec does not complain of version, type, length or checksum.
#[test]
fn seals_agree_with_the_codec() {
    for seed in 0..20_000 {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let mut bytes = fields_test::random_packet(rng);
        if rng.random() {
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        let by_codec = !matches!(
            Packet::parse(&bytes),
            Err(ParseError::TooShort
                | ParseError::UnknownVersion
                | ParseError::UnknownType
                | ParseError::BadChecksum
                | ParseError::BadLength)
        );
        let by_seal = matches!(seal_of(&bytes), Sealed::Right(_));
        assert_eq!(by_seal, by_codec, "seed {seed}");
    }
}
