//! Checksums as data, and what they are good for beside checking: finding the packets in a datagram that is several.
//!
//! A capture on the machine that sends or receives shows trains as the kernel carries them: one large datagram, whose
//! packets have equal lengths but the last. Nothing in it says that length, so it is looked for: where the next packet
//! begins, a right checksum stands ([`segment_bytes`]).

use super::walk::bits;
use crate::wire::{BASE_BYTES, DATA_HEADER_BYTES, DataFlags, PacketType, VERSION};

/// How packets of one type are checksummed (WIRE 2.4, 2.24, 2.25, 2.32).
#[derive(Debug)]
pub struct PacketSeal {
    /// Value of the type field.
    pub packet_type: u64,
    /// Where the CRC32C stands.
    pub place: SealPlace,
    /// What it covers.
    pub covers: Covers,
    /// The shortest packet of this type.
    pub least_bytes: usize,
}

/// Where a CRC32C stands.
#[derive(Clone, Copy, Debug)]
pub enum SealPlace {
    /// So many bytes from the front of the packet.
    FromFront(usize),
    /// So many bytes before its end.
    FromEnd(usize),
}

/// What a CRC32C covers, itself counted as 0.
#[derive(Clone, Copy, Debug)]
pub enum Covers {
    /// The whole packet.
    Packet,
    /// The headers, and the payload if a flag says so.
    Headers {
        /// Bytes of the headers.
        bytes: usize,
        /// The 16 bits that tell the length of the payload.
        length_at: usize,
        /// The byte with the flag.
        flags_at: usize,
        /// The flag.
        payload_flag: u8,
    },
}

/// All types of packets.
pub static SEALS: [PacketSeal; 3] = [
    PacketSeal {
        packet_type: PacketType::Data as u64,
        place: SealPlace::FromFront(60),
        covers: Covers::Headers {
            bytes: DATA_HEADER_BYTES,
            length_at: 20,
            flags_at: 17,
            payload_flag: DataFlags::PAYLOAD_CHECKSUMMED.bits(),
        },
        least_bytes: DATA_HEADER_BYTES,
    },
    PacketSeal {
        packet_type: PacketType::Ack as u64,
        place: SealPlace::FromFront(28),
        covers: Covers::Packet,
        least_bytes: 32,
    },
    PacketSeal {
        packet_type: PacketType::Control as u64,
        place: SealPlace::FromEnd(4),
        covers: Covers::Packet,
        least_bytes: SHORTEST_PACKET_BYTES,
    },
];

/// No packet is shorter: a CONTROL packet with an empty item.
pub const SHORTEST_PACKET_BYTES: usize = BASE_BYTES + 4 + 4;

/// Checksums that are computed to cut one datagram, at most: in bytes that look like packets everywhere and are none,
/// each of 65,536 places would cost a pass over all of them. Real trains need one or two.
pub const SEGMENT_LOOKS_MAX: u32 = 1_000;

/// What the checksum says about bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// They are a packet, this long without padding.
    Right(usize),
    /// Their checksum is wrong.
    Wrong,
    /// They are of no version or type that is known, or too short to have a checksum.
    Not,
}

/// Checks version, type, lengths and checksum.
#[must_use]
pub fn seal_of(packet: &[u8]) -> Sealed {
    let Some(seal) = kind_of(packet).filter(|seal| packet.len() >= seal.least_bytes) else {
        return Sealed::Not;
    };
    let (covered, length) = match seal.covers {
        Covers::Packet => (packet.len(), packet.len()),
        Covers::Headers {
            bytes,
            length_at,
            flags_at,
            payload_flag,
        } => {
            let Some(payload) = bits(packet, 8 * length_at, 16) else {
                return Sealed::Not;
            };
            let length = bytes + payload as usize;
            if length > packet.len() {
                return Sealed::Not;
            }
            let whole = packet[flags_at] & payload_flag != 0;
            (if whole { length } else { bytes }, length)
        }
    };
    let at = match seal.place {
        SealPlace::FromFront(at) => at,
        SealPlace::FromEnd(bytes) => packet.len() - bytes,
    };
    let blank = crc32c::crc32c_append(crc32c::crc32c(&packet[..at]), &[0; 4]);
    let checksum = crc32c::crc32c_append(blank, &packet[at + 4..covered]);
    if bits(packet, 8 * at, 32) == Some(u64::from(checksum)) {
        Sealed::Right(length)
    } else {
        Sealed::Wrong
    }
}

/// The seal of the type that the first byte names.
fn kind_of(packet: &[u8]) -> Option<&'static PacketSeal> {
    let first = *packet.first()?;
    let seal = SEALS
        .iter()
        .find(|seal| seal.packet_type == u64::from(first & 0x0f))?;
    (first >> 4 == VERSION).then_some(seal)
}

/// Bytes of each packet but the last of a datagram that the kernel sent or merged; all bytes where it is one packet.
///
/// The packets of a train have equal lengths (WIRE 1.9), and so have those that are merged on the way in. So a length
/// is right if packets with a right checksum begin at its multiples. A DATA packet in front says where the second begins:
/// behind its payload and padding, which is zeros. Otherwise all lengths are tried. Where no checksum tells, the datagram is one packet.
#[must_use]
pub fn segment_bytes(datagram: &[u8]) -> usize {
    let (least, is_first_good) = match seal_of(datagram) {
        Sealed::Right(length) if length == datagram.len() => return length,
        Sealed::Right(length) => (length, true),
        // Damaged, or an ACK or CONTROL packet, whose checksum tells nothing before its end is known.
        Sealed::Wrong | Sealed::Not => (SHORTEST_PACKET_BYTES, false),
    };
    let mut looks = 0;
    let mut is_packet = |segment: &[u8]| {
        if kind_of(segment).is_none() {
            return false;
        }
        looks += 1;
        looks <= SEGMENT_LOOKS_MAX && matches!(seal_of(segment), Sealed::Right(_))
    };
    let padding = datagram.iter().skip(least).take_while(|byte| **byte == 0);
    let likely = least + padding.count();
    if is_first_good && datagram.chunks(likely).skip(1).any(&mut is_packet) {
        return likely;
    }
    let last = datagram.len().saturating_sub(SHORTEST_PACKET_BYTES);
    let mut lengths = least..=last;
    lengths
        .clone()
        .find(|bytes| datagram.chunks(*bytes).nth(1).is_some_and(&mut is_packet))
        .or_else(|| lengths.find(|bytes| datagram.chunks(*bytes).skip(2).any(&mut is_packet)))
        .unwrap_or(datagram.len())
}
