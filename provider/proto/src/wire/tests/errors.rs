//! Every cause of a drop, by the smallest change to a golden packet that brings it about; and
//! what the rules for room to grow (WIRE 2.3, 2.33) let through.

use rstest::rstest;

use super::*;

/// A datagram under change.
type Bytes = Vec<u8>;

/// A change at one place of a golden packet, sealed again where the checksum shall not tell.
#[rstest]
#[case::empty("data-write", |p: &mut Bytes| p.clear(), ParseError::TooShort)]
#[case::base_cut("data-write", |p: &mut Bytes| p.truncate(15), ParseError::TooShort)]
#[case::data_cut("data-write", |p: &mut Bytes| p.truncate(63), ParseError::TooShort)]
#[case::ack_cut("ack-empty", |p: &mut Bytes| p.truncate(31), ParseError::TooShort)]
#[case::control_cut("control-reset", |p: &mut Bytes| p.truncate(19), ParseError::TooShort)]
#[case::version_0("data-write", |p: &mut Bytes| p[0] = 0x01, ParseError::UnknownVersion)]
#[case::version_2("ack-empty", |p: &mut Bytes| p[0] = 0x22, ParseError::UnknownVersion)]
#[case::type_0("data-write", |p: &mut Bytes| p[0] = 0x10, ParseError::UnknownType)]
#[case::type_4("data-write", |p: &mut Bytes| p[0] = 0x14, ParseError::UnknownType)]
#[case::payload_cut("data-write", |p: &mut Bytes| p.truncate(79), ParseError::BadLength)]
#[case::payload_beyond("data-write", |p: &mut Bytes| p[21] += 1, ParseError::BadLength)]
#[case::data_corrupt("data-write", |p: &mut Bytes| p[45] ^= 1, ParseError::BadChecksum)]
#[case::data_checksum_corrupt("data-write", |p: &mut Bytes| p[63] ^= 1, ParseError::BadChecksum)]
#[case::reserved_corrupt("data-write", |p: &mut Bytes| p[19] ^= 1, ParseError::BadChecksum)]
#[case::payload_corrupt("data-send-checksummed", |p: &mut Bytes| p[68] ^= 1, ParseError::BadChecksum)]
#[case::ack_corrupt("ack-streams", |p: &mut Bytes| p[60] ^= 1, ParseError::BadChecksum)]
#[case::ack_block_cut("ack-streams", |p: &mut Bytes| p.truncate(91), ParseError::BadChecksum)]
#[case::control_corrupt("control-shut", |p: &mut Bytes| p[30] ^= 1, ParseError::BadChecksum)]
#[case::control_shorter("control-shut", |p: &mut Bytes| p.truncate(40), ParseError::BadChecksum)]
#[case::opcode_0c("data-write", |p: &mut Bytes| sealed(p, 16, 0x0c), ParseError::UnknownOpcode)]
#[case::opcode_45("data-write", |p: &mut Bytes| sealed(p, 16, 0x45), ParseError::UnknownOpcode)]
#[case::opcode_ff("data-write", |p: &mut Bytes| sealed(p, 16, 0xff), ParseError::UnknownOpcode)]
#[case::beyond_message("data-write", |p: &mut Bytes| sealed(p, 43, 33), ParseError::BadSegment)]
#[case::offset_wraps("data-write", |p: &mut Bytes| {
    p[40..44].fill(0xff);
    seal(p);
}, ParseError::BadSegment)]
#[case::empty_segment("data-write", |p: &mut Bytes| sealed(p, 21, 0), ParseError::BadSegment)]
#[case::read_with_payload("data-write", |p: &mut Bytes| sealed(p, 16, 0x06), ParseError::BadSegment)]
#[case::read_at_offset("data-read-req", |p: &mut Bytes| sealed(p, 43, 1), ParseError::BadSegment)]
#[case::atomic_short("data-cmp-swap", |p: &mut Bytes| sealed(p, 21, 8), ParseError::BadSegment)]
#[case::atomic_length("data-fetch-add", |p: &mut Bytes| sealed(p, 39, 8), ParseError::BadSegment)]
#[case::atomic_at_offset("data-fetch-add", |p: &mut Bytes| sealed(p, 43, 8), ParseError::BadSegment)]
#[case::atomic_result_long("data-atomic-resp", |p: &mut Bytes| sealed(p, 39, 16), ParseError::BadSegment)]
#[case::nop_with_payload("data-nop-padded", |p: &mut Bytes| sealed(p, 21, 1), ParseError::BadSegment)]
#[case::fill_with_payload("data-write", |p: &mut Bytes| sealed(p, 16, 0x0b), ParseError::BadSegment)]
#[case::datagram_in_parts("data-ud-send", |p: &mut Bytes| sealed(p, 39, 9), ParseError::BadSegment)]
#[case::datagram_at_offset("data-ud-send-imm", |p: &mut Bytes| sealed(p, 43, 1), ParseError::BadSegment)]
#[case::fill_status("data-fill", |p: &mut Bytes| sealed(p, 59, 3), ParseError::UnknownFillStatus)]
#[case::nine_words("ack-paths", |p: &mut Bytes| sealed(p, 34, 9), ParseError::TooManyWords)]
#[case::bit_0("ack-paths", |p: &mut Bytes| sealed(p, 32 + 20 + 20 + 3, 0x0f), ParseError::BitvectorContradiction)]
#[case::code_7("ack-streams", |p: &mut Bytes| sealed(p, 32 + 20 + 3, 7), ParseError::UnknownCode)]
#[case::code_in_close("control-close", |p: &mut Bytes| sealed(p, 16 + 4 + 4 + 3, 7), ParseError::UnknownCode)]
#[case::path_block_missing("ack-empty", |p: &mut Bytes| sealed(p, 26, 1), ParseError::BadLength)]
#[case::words_missing("ack-empty", |p: &mut Bytes| {
    p.extend([0, 0, 8, 0]);
    p.extend([0; 16]);
    sealed(p, 26, 1);
}, ParseError::BadLength)]
#[case::stream_block_missing("ack-streams", |p: &mut Bytes| sealed(p, 27, 3), ParseError::BadLength)]
#[case::no_item("control-reset", |p: &mut Bytes| {
    p.truncate(20);
    seal(p);
}, ParseError::NoItem)]
#[case::item_head_cut("control-reset", |p: &mut Bytes| {
    p.truncate(22);
    seal(p);
}, ParseError::BadItemLength)]
#[case::item_beyond("control-reset", |p: &mut Bytes| sealed(p, 19, 8), ParseError::BadItemLength)]
#[case::item_odd("control-reset", |p: &mut Bytes| {
    p.splice(16.., [0x77, 0, 0, 2, 1, 2, 0, 0, 0, 0]);
    seal(p);
}, ParseError::BadItemLength)]
#[case::reset_short("control-reset", |p: &mut Bytes| item_cut(p, 0), ParseError::BadItemLength)]
#[case::hello_short("control-hello-first", |p: &mut Bytes| item_cut(p, 68), ParseError::BadItemLength)]
#[case::hello_address_cut("control-hello-first", |p: &mut Bytes| item_cut(p, 88), ParseError::BadItemLength)]
#[case::open_short("control-hello-first", |p: &mut Bytes| {
    p[16] = ItemKind::Open as u8;
    item_cut(p, 28);
}, ParseError::BadItemLength)]
#[case::shut_short("control-shut", |p: &mut Bytes| item_cut(p, 16), ParseError::BadItemLength)]
#[case::close_short("control-close", |p: &mut Bytes| item_cut(p, 0), ParseError::BadItemLength)]
#[case::close_block_cut("control-close", |p: &mut Bytes| item_cut(p, 40), ParseError::BadItemLength)]
#[case::checksum_mode("control-hello-first", |p: &mut Bytes| sealed(p, 20 + 54, 2), ParseError::BadItemField)]
#[case::no_paths("control-hello-first", |p: &mut Bytes| sealed(p, 20 + 53, 0), ParseError::BadItemField)]
#[case::paths_257("control-hello-planes", |p: &mut Bytes| sealed(p, 20 + 53, 1), ParseError::BadItemField)]
#[case::addresses_17("control-hello-planes", |p: &mut Bytes| sealed(p, 20 + 55, 17), ParseError::BadItemField)]
#[case::token_0("control-hello-first", |p: &mut Bytes| {
    p[16 + 4 + 92 + 4 + 8..][..3].fill(0);
    seal(p);
}, ParseError::BadItemField)]
#[case::shut_reason("control-shut", |p: &mut Bytes| sealed(p, 20 + 3, 4), ParseError::BadItemField)]
#[case::close_reason("control-close", |p: &mut Bytes| sealed(p, 20, 3), ParseError::BadItemField)]
#[case::hello_second("control-hello-first", |p: &mut Bytes| {
    // Its packet once more behind itself, without base header and with one checksum.
    let items = p[16..p.len() - 4].to_vec();
    p.truncate(p.len() - 4);
    p.extend(items);
    p.extend([0; 4]);
    seal(p);
}, ParseError::MisplacedItem)]
#[case::hello_behind_an_unknown_item("control-hello-first", |p: &mut Bytes| {
    p.splice(16..16, [0x77, 0, 0, 0]);
    seal(p);
}, ParseError::MisplacedItem)]
fn a_drop_has_its_cause(
    #[case] golden: &str,
    #[case] change: fn(&mut Bytes),
    #[case] expected: ParseError,
) {
    let mut packet = golden::packets().remove(golden).expect("a golden packet");
    assert!(Packet::parse(&packet).is_ok());
    change(&mut packet);
    assert_eq!(Packet::parse(&packet).err(), Some(expected));
    assert!(dissect(&packet).to_string().starts_with("no packet: "));
}

/// Sets one byte and seals the packet again.
fn sealed(packet: &mut [u8], at: usize, value: u8) {
    packet[at] = value;
    seal(packet);
}

/// Leaves only the first item, with a body of `length` bytes.
fn item_cut(packet: &mut Vec<u8>, length: usize) {
    packet[19] = length as u8;
    packet.truncate(20 + length);
    packet.extend([0; 4]);
    seal(packet);
}

/// WIRE 2.3: reserved bits do not matter, once the checksum has covered them.
#[rstest]
#[case("data-write", 1, 0x80)]
#[case("data-write", 17, 0xfc)]
#[case("data-write", 19, 0xff)]
#[case("ack-paths", 35, 0xfe)]
#[case("ack-streams", 32 + 20 + 17, 0xff)]
#[case("control-hello-first", 17, 0xff)]
#[case("control-hello-first", 20 + 62, 0xff)]
fn reserved_bits_are_ignored(#[case] golden: &str, #[case] at: usize, #[case] bits: u8) {
    let original = golden::packets().remove(golden).expect("a golden packet");
    let mut packet = original.clone();
    packet[at] |= bits;
    assert_ne!(packet, original);
    seal(&mut packet);
    let parsed = Packet::parse(&packet).expect("a packet all the same");
    assert_eq!(emit_again(&parsed, packet.len()), Some(original));
}

/// WIRE 2.33: items of unknown kinds are skipped, unknown ends of known ones too.
#[test]
fn items_have_room_to_grow() {
    let original = golden::packets().remove("control-shut").expect("it");
    let mut packet = original[..original.len() - 4].to_vec();
    packet.extend([0x77, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    packet.extend([ItemKind::Reset as u8, 0, 0, 12, 0, 0, 0, 9]);
    packet.extend([0xff; 8]);
    packet.extend([0; 4]);
    seal(&mut packet);
    let Ok(Packet::Control(control)) = Packet::parse(&packet) else {
        panic!("not CONTROL");
    };
    assert_eq!(control.items().count(), 3);
    assert!(matches!(
        control.items().last(),
        Some(ControlItem::Reset(Reset {
            unknown_id: ConnectionId(9)
        }))
    ));
}

/// WIRE 2.17, 2.24: padding is neither payload nor checksummed.
#[test]
fn padding_does_not_count() {
    for name in ["data-send-padded", "data-send-checksummed"] {
        let mut packet = golden::packets().remove(name).expect("a golden packet");
        let end = packet.len();
        packet[end - 1] ^= 0xff;
        packet.push(0x55);
        let Ok(Packet::Data { payload, .. }) = Packet::parse(&packet) else {
            panic!("{name} is not DATA");
        };
        assert_eq!(payload, b"hello");
    }
}

/// WIRE 9.2
#[test]
fn causes_have_counters_of_their_own() {
    for (index, error) in ParseError::ALL.iter().enumerate() {
        assert_eq!(error.index(), index);
        assert!(!error.name().contains(' '));
    }
    let names: std::collections::HashSet<_> =
        ParseError::ALL.iter().map(|error| error.name()).collect();
    assert_eq!(names.len(), ParseError::COUNT);
}
