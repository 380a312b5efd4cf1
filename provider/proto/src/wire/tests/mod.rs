//! Tests of the codec as a whole: golden packets both ways, every cause of a drop, round trips
//! of random headers, hostile bytes, the table of fields against the codec, and that sentences cited in the code exist.

mod citations;
mod errors;
mod fields_test;
mod golden;
mod random;
mod segments;

use super::*;

/// Emits what was parsed again, padded with zeroes to `length`.
fn emit_again(packet: &Packet<'_>, length: usize) -> Vec<u8> {
    let mut buffer = vec![0xee; length];
    let end = match packet {
        Packet::Data {
            base,
            header,
            payload,
        } => {
            let mut head = header.emit(base);
            if header.flags.contains(DataFlags::PAYLOAD_CHECKSUMMED) {
                // In two pieces, as a scatter/gather list would have it.
                let (front, back) = payload.split_at(payload.len() / 2);
                DataHeader::extend_checksum(&mut head, [front, back]);
            }
            let end = DATA_HEADER_BYTES + payload.len();
            buffer[..DATA_HEADER_BYTES].copy_from_slice(&head);
            buffer[DATA_HEADER_BYTES..end].copy_from_slice(payload);
            buffer[end..].fill(0);
            length
        }
        Packet::Ack(ack) => {
            let mut builder = AckBuilder::new(&mut buffer);
            // Streams first: the builder puts path blocks in front by itself.
            for block in ack.stream_blocks() {
                assert!(builder.push_stream(&block));
            }
            for block in ack.path_blocks() {
                assert!(builder.push_path(&block));
            }
            builder.finish(&ack.base, ack.number(), &ack.allowance, 0)
        }
        Packet::Control(control) => {
            let mut builder = ControlBuilder::new(&mut buffer);
            for item in control.items() {
                emit_item_again(&mut builder, &item);
            }
            builder.finish(&control.base)
        }
    };
    buffer.truncate(end);
    buffer
}

fn emit_item_again(builder: &mut ControlBuilder<'_>, item: &ControlItem<'_>) {
    let blocks = |close: &CloseView<'_>| close.stream_blocks().collect::<Vec<_>>();
    let complete = match item {
        ControlItem::Hello(hello) => builder.push_hello(hello),
        ControlItem::Open(open) => builder.push_open(open),
        ControlItem::Shut(shut) => builder.push_shut(shut),
        ControlItem::ShutAnswer(shut) => builder.push_shut_answer(shut),
        ControlItem::Reset(reset) => builder.push_reset(reset),
        ControlItem::Close(close) => {
            let blocks = blocks(close);
            builder.push_close(close.reason, &blocks) == Some(blocks.len())
        }
        ControlItem::CloseAnswer(close) => {
            let blocks = blocks(close);
            builder.push_close_answer(close.reason, &blocks) == Some(blocks.len())
        }
    };
    assert!(complete, "{item} did not fit where it came from");
}

/// Writes the right checksum into a packet that a test has altered.
fn seal(packet: &mut [u8]) {
    let at = match packet[0] & 0x0f {
        1 => 60,
        2 => 28,
        _ => packet.len() - 4,
    };
    let covered = match packet[0] & 0x0f {
        1 if packet[17] & DataFlags::PAYLOAD_CHECKSUMMED.bits() == 0 => 64,
        1 => 64 + usize::from(u16::from_be_bytes([packet[20], packet[21]])),
        _ => packet.len(),
    };
    packet[at..at + 4].fill(0);
    let checksum = crc32c::crc32c(&packet[..covered]);
    packet[at..at + 4].copy_from_slice(&checksum.to_be_bytes());
}
