//! The table of fields against the codec, against itself and against WIRE.md: what tools show is what the transport
//! sends.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rstest::rstest;

use super::fields::{Found, Kind, LAYOUTS, Layout, Problem, ROOT, Value, What, walk};
use super::random::{
    random_base, random_data, random_hello, random_open, random_path_block, random_shut,
    random_stream_block,
};
use super::*;

/// Random packets of each kind.
const PACKETS: u64 = 3_000;

/// Full name and value.
type Named = (String, Value);

/// The fields in a packet by the table, without those that no type of the codec has: version and type, counts,
/// checksums, reserved bits.
fn by_table(packet: &[u8]) -> Vec<Named> {
    walk(packet)
        .iter()
        .filter_map(|found| match found.what {
            What::Field(field, value) => {
                let name = found.layout.full_name(field.name);
                let checked_by_structure = matches!(field.kind, Kind::Checksum | Kind::Reserved)
                    || STRUCTURE.contains(&&name[ROOT.len() + 1..]);
                (!checked_by_structure).then_some((name, value))
            }
            What::Problem(problem) => panic!("{problem} in a good packet"),
            What::Begin | What::Raw(..) => None,
        })
        .collect()
}

/// Fields that say how the packet is made up. They are tested by what is found behind them.
const STRUCTURE: &[&str] = &[
    "version",
    "type",
    "ack.path_blocks",
    "ack.stream_blocks",
    "path_block.words",
    "item.kind",
    "item.length",
    "hello.addresses",
    "close.stream_blocks",
];

/// Collects what the codec reads, under the names of the table.
#[derive(Default)]
struct Expected(Vec<Named>);

impl Expected {
    fn put(&mut self, name: &str, value: impl Into<u64>) {
        self.0
            .push((format!("{ROOT}.{name}"), Value::Number(value.into())));
    }

    fn gid(&mut self, name: &str, gid: Gid) {
        self.0.push((format!("{ROOT}.{name}"), Value::Gid(gid.0)));
    }

    fn base(&mut self, base: &Base, psn: Option<&str>) {
        self.put("flags", base.flags.bits());
        self.put("path", base.path.0);
        self.put("epoch", base.epoch.0);
        self.put("connection", base.connection.0);
        if let Some(name) = psn {
            self.put(name, base.psn.0);
        }
        self.put("stamp", base.stamp.0);
    }

    fn data(&mut self, header: &DataHeader, payload: &[u8]) {
        self.put("data.opcode", header.opcode as u8);
        self.put("data.flags", header.flags.bits());
        self.put("data.attempt", header.attempt.0);
        self.put("data.payload_length", header.payload_bytes);
        self.put("data.qpn", header.qpn.get());
        self.put("data.token", header.token.get());
        self.put("data.msn", header.msn.0);
        self.put("data.ssn", header.ssn.0);
        self.put("data.message_length", header.message_bytes);
        self.put("data.offset", header.offset);
        if header.service() == Service::Ud {
            self.put("data.qkey", header.ud_qkey());
            self.put("data.source_qpn", header.ud_source_qpn().get());
        } else {
            self.put("data.remote_address", header.remote_address);
        }
        self.put("data.rkey", header.rkey.0);
        match header.opcode {
            Opcode::SendInv => self.put("data.invalidate_rkey", header.immediate),
            Opcode::Fill => self.put("data.fill_status", header.fill_status() as u32),
            opcode if opcode.has_immediate() => self.put("data.immediate", header.immediate),
            _ => {}
        }
        let operands = || AtomicOperands::parse(payload).expect("operands");
        match header.opcode {
            Opcode::CmpSwap => {
                self.put("compare_and_swap.compare", operands().first);
                self.put("compare_and_swap.swap", operands().second);
            }
            Opcode::FetchAdd => self.put("fetch_and_add.add", operands().first),
            Opcode::AtomicResp => {
                let before = payload.try_into().map(u64::from_be_bytes);
                self.put("atomic_result.before", before.expect("8 bytes"));
            }
            _ => {}
        }
    }

    fn path_block(&mut self, block: &PathBlock) {
        self.put("path_block.path", block.path.0);
        self.put("path_block.epoch", block.epoch.0);
        self.put("path_block.flags", block.flags.bits());
        self.put("path_block.cumulative", block.cumulative.0);
        self.put("path_block.echoed_stamp", block.echoed_stamp.0);
        self.put("path_block.ack_delay", block.ack_delay.0);
        self.put("path_block.ce_count", block.ce_count);
        self.put("path_block.duplicates", block.duplicates);
        self.put("path_block.received", block.received);
        for word in &block.vector.0[..block.vector.word_count()] {
            self.put("vector.word", *word);
        }
    }

    fn stream_block(&mut self, block: &StreamBlock) {
        self.put("stream_block.qpn", block.qpn.get());
        self.put("stream_block.code", block.code as u8);
        self.put("stream_block.token", block.token.get());
        self.put("stream_block.attempt", block.attempt.0);
        self.put("stream_block.msn_executed", block.msn_executed.0);
        self.put("stream_block.credit", block.credit.0);
        self.put("stream_block.rnr_timer", block.rnr_timer);
    }

    fn hello(&mut self, hello: &Hello) {
        self.put("hello.my_id", hello.identity.my_id.0);
        self.put("hello.incarnation", hello.identity.incarnation.0);
        self.put("hello.echo", hello.identity.echo.0);
        self.gid("hello.source_gid", hello.source_gid);
        self.gid("hello.destination_gid", hello.dest_gid);
        self.put("hello.port", hello.endpoint_port);
        self.put("hello.payload_size", hello.payload_bytes);
        self.put("hello.paths", hello.paths);
        self.put("hello.checksum_mode", hello.checksum_mode as u8);
        self.put("hello.window", hello.window_bytes);
        self.put("hello.w0", hello.w0_packets);
        self.put("hello.message_span", hello.message_span);
        self.put("hello.packet_span", hello.packet_span);
        for address in &hello.addresses {
            self.gid("address.gid", address.gid);
            self.put("address.plane", address.plane.0);
            self.put("address.speed", address.speed_mbps);
        }
    }

    fn open(&mut self, open: &Open) {
        self.put("open.from_qpn", open.from_qpn.get());
        self.put("open.flags", open.flags.bits());
        self.put("open.to_qpn", open.to_qpn.get());
        self.put("open.rnr_timer", open.rnr_timer);
        self.put("open.token", open.token.get());
        self.put("open.echo", open.echo.get());
        self.put("open.sq_psn", open.send_psn);
        self.put("open.rq_psn", open.receive_psn);
        self.put("open.credit", open.credit.0);
        self.put("open.max_dest_rd_atomic", open.max_dest_rd_atomic);
        self.put("open.max_rd_atomic", open.max_rd_atomic);
    }

    fn shut(&mut self, shut: &Shut) {
        self.put("shut.from_qpn", shut.from_qpn.get());
        self.put("shut.reason", shut.reason as u8);
        self.put("shut.token", shut.from_token.get());
        self.put("shut.to_qpn", shut.to_qpn.get());
        self.put("shut.to_token", shut.to_token.get());
        self.put("shut.msn_executed", shut.msn_executed.0);
    }

    fn item(&mut self, item: &ControlItem<'_>) {
        match item {
            ControlItem::Hello(hello) => self.hello(hello),
            ControlItem::Open(open) => self.open(open),
            ControlItem::Shut(shut) | ControlItem::ShutAnswer(shut) => self.shut(shut),
            ControlItem::Reset(reset) => self.put("reset.unknown_id", reset.unknown_id.0),
            ControlItem::Close(close) | ControlItem::CloseAnswer(close) => {
                self.put("close.reason", close.reason as u8);
                close
                    .stream_blocks()
                    .for_each(|block| self.stream_block(&block));
            }
        }
    }
}

/// What the codec reads in a packet.
fn by_codec(packet: &[u8]) -> Vec<Named> {
    let mut expected = Expected::default();
    match Packet::parse(packet).expect("a packet") {
        Packet::Data {
            base,
            header,
            payload,
        } => {
            let takes_psn = header.opcode.takes_psn();
            expected.base(&base, Some(if takes_psn { "psn" } else { "next_psn" }));
            expected.data(&header, payload);
        }
        Packet::Ack(ack) => {
            expected.base(&ack.base, Some("ack_number"));
            expected.put("ack.grant", ack.allowance.grant_kib_per_s);
            expected.put("ack.window", ack.allowance.window_bytes);
            expected.put("ack.w0", ack.allowance.w0_packets);
            ack.path_blocks()
                .for_each(|block| expected.path_block(&block));
            ack.stream_blocks()
                .for_each(|block| expected.stream_block(&block));
        }
        Packet::Control(control) => {
            expected.base(&control.base, None);
            control.items().for_each(|item| expected.item(&item));
        }
    }
    expected.0
}

/// A random good packet of one of the three types.
pub(super) fn random_packet(rng: &mut SmallRng) -> Vec<u8> {
    let base = random_base(rng);
    let mut buffer = vec![0xee; 1500];
    let length = match rng.random_range(0..3) {
        0 => return random_data_packet(rng, &base),
        1 => {
            let mut builder = AckBuilder::new(&mut buffer);
            for _ in 0..rng.random_range(0..40) {
                let _ = if rng.random() {
                    builder.push_path(&random_path_block(rng))
                } else {
                    builder.push_stream(&random_stream_block(rng))
                };
            }
            let allowance = Allowance {
                grant_kib_per_s: rng.random(),
                window_bytes: rng.random(),
                w0_packets: rng.random(),
            };
            let least_bytes = rng.random_range(0..600);
            builder.finish(&base, AckNumber(rng.random()), &allowance, least_bytes)
        }
        _ => {
            let mut builder = ControlBuilder::new(&mut buffer);
            if rng.random() {
                assert!(builder.push_hello(&random_hello(rng)));
            }
            for _ in 0..rng.random_range(1..8) {
                push_item(rng, &mut builder);
            }
            builder.finish(&base)
        }
    };
    buffer.truncate(length);
    buffer
}

fn random_data_packet(rng: &mut SmallRng, base: &Base) -> Vec<u8> {
    let (header, payload) = random_data(rng);
    let mut head = header.emit(base);
    if header.flags.contains(DataFlags::PAYLOAD_CHECKSUMMED) {
        DataHeader::extend_checksum(&mut head, [&payload[..]]);
    }
    let padding = vec![0; rng.random_range(0..20)];
    [&head[..], &payload, &padding].concat()
}

fn push_item(rng: &mut SmallRng, builder: &mut ControlBuilder<'_>) {
    let blocks = [random_stream_block(rng), random_stream_block(rng)];
    let fitted = match rng.random_range(0..6) {
        0 => builder.push_open(&random_open(rng)),
        1 => builder.push_shut(&random_shut(rng)),
        2 => builder.push_shut_answer(&random_shut(rng)),
        3 => builder.push_reset(&Reset {
            unknown_id: ConnectionId(rng.random()),
        }),
        4 => builder.push_close(CloseReason::Exit, &blocks).is_some(),
        _ => builder
            .push_close_answer(CloseReason::Error, &blocks[..rng.random_range(0..3)])
            .is_some(),
    };
    assert!(fitted, "eight items fit into 1500 bytes");
}

/// Every byte of a packet is in exactly one field, or in raw bytes.
fn assert_no_gaps(packet: &[u8], found: &[Found<'_>]) {
    let mut covered = vec![0_u8; packet.len()];
    for found in found {
        match found.what {
            What::Field(field, _) => {
                // Two fields share byte 0, each a half of it.
                let share = if field.bits < 8 { 1 } else { 2 };
                covered[found.at..found.at + found.bytes]
                    .iter_mut()
                    .for_each(|byte| *byte += share);
            }
            What::Raw(_, bytes) => covered[found.at..found.at + bytes.len()]
                .iter_mut()
                .for_each(|byte| *byte += 2),
            What::Begin | What::Problem(_) => {}
        }
    }
    if let Some(at) = covered.iter().position(|times| *times != 2) {
        panic!("byte {at} of {packet:02x?} is not in one field: {found:#?}");
    }
}

#[test]
fn the_table_reads_what_the_codec_reads() {
    let golden = golden::packets().into_values();
    let random = (0..PACKETS).map(|seed| random_packet(&mut SmallRng::seed_from_u64(seed)));
    let mut names = BTreeSet::new();
    for packet in golden.chain(random) {
        let by_table = by_table(&packet);
        assert_eq!(by_table, by_codec(&packet), "{packet:02x?}");
        names.extend(by_table.into_iter().map(|(name, _)| name));
    }
    // The test is worth something only if every field was there.
    for layout in LAYOUTS {
        for field in layout.fields {
            let name = layout.full_name(field.name);
            let excepted = matches!(field.kind, Kind::Checksum | Kind::Reserved)
                || STRUCTURE.contains(&&name[ROOT.len() + 1..]);
            assert!(excepted || names.contains(&name), "{name} never occurred");
        }
    }
}

#[test]
fn every_byte_of_a_packet_is_in_one_field() {
    for packet in golden::packets().into_values() {
        let found = walk(&packet);
        assert_no_gaps(&packet, &found);
        // Golden packets are what the text wants; random ones may have anything where an opcode has no immediate.
        for found in &found {
            if let What::Field(field, value) = found.what
                && matches!(field.kind, Kind::Reserved)
            {
                assert_eq!(value, Value::Number(0), "{}", field.name);
            }
        }
    }
    for seed in 0..PACKETS {
        let packet = random_packet(&mut SmallRng::seed_from_u64(seed));
        assert_no_gaps(&packet, &walk(&packet));
    }
}

/// At any time, the fields whose conditions hold cover each bit of a layout once.
#[test]
fn layouts_have_no_gaps_and_no_overlaps() {
    for layout in LAYOUTS {
        for first in 0..=u8::MAX {
            for opcode in 0..=u8::MAX {
                let mut packet = [0; 64];
                (packet[0], packet[16]) = (first, opcode);
                let mut covered = vec![0; 8 * layout.bytes];
                for field in layout.fields.iter().filter(|field| field.is_in(&packet)) {
                    covered[field.bit..field.bit + field.bits]
                        .iter_mut()
                        .for_each(|times| *times += 1);
                }
                assert!(
                    covered.iter().all(|times| *times == 1),
                    "{}: first byte {first:#x}, opcode {opcode:#x}: {covered:?}",
                    layout.title
                );
            }
        }
    }
}

#[test]
fn names_are_fit_for_filters_and_occur_once() {
    let mut names = BTreeSet::new();
    for layout in LAYOUTS {
        let fields = layout.fields.iter().map(|field| field.name);
        for name in fields.chain(layout.raws().map(|raw| raw.name)) {
            let name = layout.full_name(name);
            assert!(
                name.bytes()
                    .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.')),
                "{name}"
            );
            assert!(names.insert(name.clone()), "{name} occurs twice");
        }
    }
}

fn kind_of(name: &str) -> Kind {
    let mut fields = LAYOUTS.iter().flat_map(|layout| {
        layout
            .fields
            .iter()
            .map(|field| (layout.full_name(field.name), field.kind))
    });
    fields
        .find(|(found, _)| *found == format!("{ROOT}.{name}"))
        .unwrap_or_else(|| panic!("no field {name}"))
        .1
}

/// The defined values of a field are those that the codec takes, under the codec's names.
#[rstest]
#[case("data.opcode", |value| Opcode::from_wire(value).map(|opcode| opcode.to_string()))]
#[case("data.fill_status", |value: u8| FillStatus::from_wire(u32::from(value)).map(|status| status.to_string()))]
#[case("stream_block.code", |value| NakCode::from_wire(value).map(|code| code.to_string()))]
#[case("hello.checksum_mode", |value| ChecksumMode::from_wire(value).ok().map(|mode| mode.to_string()))]
#[case("shut.reason", |value| ShutReason::from_wire(value).ok().map(|reason| reason.to_string()))]
#[case("close.reason", |value| CloseReason::from_wire(value).ok().map(|reason| reason.to_string()))]
fn values_have_the_names_of_the_codec(
    #[case] field: &str,
    #[case] codec: fn(u8) -> Option<String>,
) {
    let (Kind::Choice(values) | Kind::Open(values)) = kind_of(field) else {
        panic!("{field} is no choice");
    };
    for value in 0..=u8::MAX {
        let named = values.iter().find(|(named, _)| *named == u64::from(value));
        assert_eq!(
            named.map(|(_, name)| (*name).to_owned()),
            codec(value),
            "{field} {value}"
        );
    }
}

/// The tables of WIRE.md have the places and widths of this one.
#[test]
fn the_tables_of_the_text_are_the_same() {
    let path = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../WIRE.md");
    let text = std::fs::read_to_string(path).expect("WIRE.md");
    let mut compared = 0;
    for layout in LAYOUTS {
        let sentence = format!("**[W-{}]**", layout.sentence);
        let (_, after) = text.split_once(&sentence).expect("the sentence");
        let (paragraph, _) = after.split_once("**[W-").expect("another sentence");
        if !paragraph.contains("| Byte | Bits |") || matches!(layout.name, "address" | "vector") {
            continue;
        }
        let rows: BTreeSet<(usize, usize)> = paragraph.lines().filter_map(row).collect();
        // The text counts DATA and ACK from the front of the packet.
        let origin = match layout.name {
            "data" | "ack" => BASE_BYTES,
            _ => 0,
        };
        let fields: BTreeSet<_> = layout
            .fields
            .iter()
            .filter(|field| !UD_ONLY.contains(&field.name))
            .map(|field| (field.bit / 8 + origin, field.bits))
            .collect();
        // Rows like "32 each" say what follows; they lie behind the fields.
        let rows: BTreeSet<_> = rows
            .into_iter()
            .filter(|(byte, _)| *byte < origin + layout.bytes)
            .collect();
        assert_eq!(
            fields, rows,
            "{} against W-{}",
            layout.title, layout.sentence
        );
        compared += 1;
    }
    assert_eq!(compared, 8, "tables are not found any more");
}

/// What the UD forms have in the place of the remote address is told in a sentence (2.22), not in the table.
const UD_ONLY: &[&str] = &["qkey", "source_qpn", "no_address"];

/// Byte and bits of a row `| 4 | 32 | connection id |`.
fn row(line: &str) -> Option<(usize, usize)> {
    let mut cells = line.split('|').map(str::trim).skip(1);
    let byte = cells.next()?.parse().ok()?;
    let bits = cells.next()?.split(' ').next()?.parse().ok()?;
    Some((byte, bits))
}

/// A packet of any length shows what it has, and says what it lacks.
#[test]
fn a_cut_packet_shows_what_is_there() {
    for (name, packet) in golden::packets() {
        let whole = walk(&packet).len();
        for length in 0..packet.len() {
            let found = walk(&packet[..length]);
            assert!(found.len() <= whole + 1, "{name} cut to {length}");
            assert!(
                found.iter().all(|found| found.at + found.bytes <= length),
                "{name} cut to {length}"
            );
        }
    }
    let packet = &golden::packets()["ack-streams"];
    let found = walk(&packet[..packet.len() - 1]);
    let problem = found.iter().find_map(|found| match found.what {
        What::Problem(problem) => Some(problem),
        _ => None,
    });
    assert_eq!(
        problem,
        Some(Problem::Short {
            wanted: 20,
            left: 19
        })
    );
}

#[rstest]
#[case("data-write", 16, 0x0c, "opcode has the undefined value 12")]
#[case("data-write", 21, 200, "200 bytes should follow, 16 do")]
#[case("ack-paths", 34, 9, "9 of them, 8 are allowed")]
#[case("control-shut", 20 + 3, 9, "reason has the undefined value 9")]
fn a_malformed_packet_says_where(
    #[case] golden: &str,
    #[case] at: usize,
    #[case] value: u8,
    #[case] expected: &str,
) {
    let mut packet = golden::packets().remove(golden).expect("a golden packet");
    packet[at] = value;
    let problems: Vec<_> = walk(&packet)
        .iter()
        .filter_map(|found| match found.what {
            What::Problem(problem) => Some(problem.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(problems, [expected]);
}

/// Sizes that the table takes from the codec's constants hold for the structure as well.
#[test]
fn layouts_are_as_long_as_their_fields() {
    for layout in LAYOUTS {
        let end = layout.fields.iter().map(|field| field.bit + field.bits);
        assert_eq!(end.max().unwrap_or(0), 8 * layout.bytes, "{}", layout.title);
        assert_eq!(field_names(layout).len(), layout.fields.len());
    }
}

fn field_names(layout: &Layout) -> BTreeSet<&str> {
    layout.fields.iter().map(|field| field.name).collect()
}
