//! Packets that were parsed or altered, written again: for tools and tests that damage packets on purpose and want them
//! past the checksum, or that check that nothing is lost between bytes and types. The transport itself does not use it.

use super::{
    ACK_HEADER_BYTES, AckBuilder, BASE_BYTES, CONTROL_OVERHEAD_BYTES, CloseView, ControlBuilder,
    ControlItem, DATA_HEADER_BYTES, DataFlags, DataHeader, Packet,
};

/// Emits what was parsed again, from its types, in a packet of `length` bytes or less; `None` if something of it does not
/// fit. DATA is padded with zeroes to `length`.
#[must_use]
pub fn emit_again(packet: &Packet<'_>, length: usize) -> Option<Vec<u8>> {
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
            buffer.get_mut(..DATA_HEADER_BYTES)?.copy_from_slice(&head);
            buffer
                .get_mut(DATA_HEADER_BYTES..end)?
                .copy_from_slice(payload);
            buffer[end..].fill(0);
            length
        }
        Packet::Ack(ack) if length >= ACK_HEADER_BYTES => {
            let mut builder = AckBuilder::new(&mut buffer);
            // Streams first: the builder puts path blocks in front by itself.
            let complete = ack.stream_blocks().all(|block| builder.push_stream(&block))
                && ack.path_blocks().all(|block| builder.push_path(&block));
            complete.then(|| builder.finish(&ack.base, ack.number(), &ack.allowance, 0))?
        }
        Packet::Control(control) if length >= CONTROL_OVERHEAD_BYTES => {
            let mut builder = ControlBuilder::new(&mut buffer);
            let complete = control
                .items()
                .all(|item| emit_item_again(&mut builder, &item));
            (complete && !builder.is_empty()).then(|| builder.finish(&control.base))?
        }
        _ => return None,
    };
    buffer.truncate(end);
    Some(buffer)
}

fn emit_item_again(builder: &mut ControlBuilder<'_>, item: &ControlItem<'_>) -> bool {
    let blocks = |close: &CloseView<'_>| close.stream_blocks().collect::<Vec<_>>();
    match item {
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
    }
}

/// Writes the right checksum into a packet that was altered. Does nothing to one that has no room for a checksum, or
/// whose type or length field says that it has none.
pub fn seal(packet: &mut [u8]) {
    if packet.len() < BASE_BYTES {
        return;
    }
    let (at, covered) = match packet[0] & 0x0f {
        1 if packet.len() >= DATA_HEADER_BYTES => {
            let payload = usize::from(u16::from_be_bytes([packet[20], packet[21]]));
            let flags = DataFlags::from_bits(packet[17]);
            let checksummed = flags.contains(DataFlags::PAYLOAD_CHECKSUMMED);
            let covered = DATA_HEADER_BYTES + if checksummed { payload } else { 0 };
            (DATA_HEADER_BYTES - 4, covered)
        }
        2 if packet.len() >= ACK_HEADER_BYTES => (ACK_HEADER_BYTES - 4, packet.len()),
        3 if packet.len() >= CONTROL_OVERHEAD_BYTES => (packet.len() - 4, packet.len()),
        _ => return,
    };
    if covered > packet.len() {
        return;
    }
    packet[at..at + 4].fill(0);
    let checksum = crc32c::crc32c(&packet[..covered]);
    packet[at..at + 4].copy_from_slice(&checksum.to_be_bytes());
}
