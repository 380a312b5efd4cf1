//! The DATA header: 48 bytes after the base header, then the payload (WIRE 2.12 to 2.24).
//!
//! ```text
//! 16 opcode   17 flags   18 attempt   19 reserved   20 payload length (16)   22 QPN (24)
//! 25 token (24)   28 MSN   32 SSN   36 message length   40 offset
//! 44 remote address (64)   52 rkey   56 immediate   60 CRC32C
//! ```
//! This is the fast path: over a million packets a second go through `parse` and `emit`
//! of one core, so there is no allocation and each byte is looked at once.

use super::base::{BASE_BYTES, Base, PacketType};
use super::bytes::{get_u16, get_u24, get_u32, get_u64, put_u16, put_u24, put_u32, put_u64};
use super::error::ParseError;
use super::flags::DataFlags;
use super::opcode::{FillStatus, Opcode, Service};
use super::types::{Attempt, Msn, Qpn, Rkey, Ssn, Token};

/// Bytes of base and DATA header together; the payload starts here.
pub const DATA_HEADER_BYTES: usize = BASE_BYTES + 48;

/// Place of the CRC32C.
const CHECKSUM_AT: usize = 60;

/// The fields of a DATA packet behind its base header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataHeader {
    /// What is asked for.
    pub opcode: Opcode,
    /// Flags.
    pub flags: DataFlags,
    /// How often the message was begun afresh.
    pub attempt: Attempt,
    /// Bytes of payload in this packet; padding may follow them.
    pub payload_bytes: u16,
    /// Queue pair that the packet is for; of a response the requester's.
    pub qpn: Qpn,
    /// Life of that queue pair; 0 in UD.
    pub token: Token,
    /// Message; of a response the requester's.
    pub msn: Msn,
    /// Which posted receive the message takes; as far as the message before, where it takes none.
    pub ssn: Ssn,
    /// Bytes of the whole message; of a READ request the bytes to read.
    pub message_bytes: u32,
    /// Where in the message this payload begins.
    pub offset: u32,
    /// Remote address of the message's first byte; of UD see [`DataHeader::ud_qkey`].
    pub remote_address: u64,
    /// Key of the remote address.
    pub rkey: Rkey,
    /// Immediate, key to invalidate, or status of a FILL.
    pub immediate: u32,
}

impl DataHeader {
    /// Parses and checks a whole datagram that [`Base::parse`] said is DATA.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((head, rest)) = datagram.split_first_chunk::<DATA_HEADER_BYTES>() else {
            return Err(ParseError::TooShort);
        };
        let flags = DataFlags::from_bits(head[17]);
        let payload_bytes = get_u16(head, 20);
        let Some(payload) = rest.get(..usize::from(payload_bytes)) else {
            return Err(ParseError::BadLength);
        };
        // One pass over a copy with the field blanked is faster than three over its parts.
        let mut blanked = *head;
        put_u32(&mut blanked, CHECKSUM_AT, 0);
        let mut checksum = crc32c::crc32c(&blanked);
        if flags.contains(DataFlags::PAYLOAD_CHECKSUMMED) {
            checksum = crc32c::crc32c_append(checksum, payload);
        }
        if checksum != get_u32(head, CHECKSUM_AT) {
            return Err(ParseError::BadChecksum);
        }
        let Some(opcode) = Opcode::from_wire(head[16]) else {
            return Err(ParseError::UnknownOpcode);
        };
        let header = Self {
            opcode,
            flags,
            attempt: Attempt(head[18]),
            payload_bytes,
            qpn: Qpn::truncate(get_u24(head, 22)),
            token: Token::truncate(get_u24(head, 25)),
            msn: Msn(get_u32(head, 28)),
            ssn: Ssn(get_u32(head, 32)),
            message_bytes: get_u32(head, 36),
            offset: get_u32(head, 40),
            remote_address: get_u64(head, 44),
            rkey: Rkey(get_u32(head, 52)),
            immediate: get_u32(head, 56),
        };
        header.check()?;
        Ok((header, payload))
    }

    /// Whether lengths, offset and status agree with the opcode (WIRE 2.18 to 2.23).
    #[inline]
    fn check(&self) -> Result<(), ParseError> {
        let (payload, message) = (u32::from(self.payload_bytes), self.message_bytes);
        let fits = if self.opcode.is_segmented() {
            // An empty packet exists only as the single packet of an empty message.
            u64::from(self.offset) + u64::from(payload) <= u64::from(message)
                && (payload != 0 || message == 0)
        } else if self.opcode.is_atomic() {
            let operands = u32::from(Opcode::ATOMIC_OPERAND_BYTES);
            self.offset == 0 && payload == operands && message == operands
        } else {
            match self.opcode {
                Opcode::ReadReq => self.offset == 0 && payload == 0,
                Opcode::AtomicResp => {
                    let result = u32::from(Opcode::ATOMIC_RESULT_BYTES);
                    self.offset == 0 && payload == result && message == result
                }
                // A datagram is one packet.
                Opcode::UdSend | Opcode::UdSendImm => self.offset == 0 && payload == message,
                // NOP and FILL carry nothing; a FILL keeps the other fields of what it replaces.
                _ => payload == 0,
            }
        };
        if !fits {
            return Err(ParseError::BadSegment);
        }
        if self.opcode == Opcode::Fill && FillStatus::from_wire(self.immediate).is_none() {
            return Err(ParseError::UnknownFillStatus);
        }
        Ok(())
    }

    /// The 64 header bytes with their checksum. Where the payload is checksummed too
    /// (flag set), call [`DataHeader::extend_checksum`] on the result.
    #[must_use]
    #[inline]
    pub fn emit(&self, base: &Base) -> [u8; DATA_HEADER_BYTES] {
        debug_assert_eq!(
            self.check(),
            Ok(()),
            "a header that no peer would accept: {self:?}"
        );
        let mut head = [0; DATA_HEADER_BYTES];
        base.emit(PacketType::Data, &mut head);
        head[16] = self.opcode as u8;
        head[17] = self.flags.bits();
        head[18] = self.attempt.0;
        put_u16(&mut head, 20, self.payload_bytes);
        put_u24(&mut head, 22, self.qpn.get());
        put_u24(&mut head, 25, self.token.get());
        put_u32(&mut head, 28, self.msn.0);
        put_u32(&mut head, 32, self.ssn.0);
        put_u32(&mut head, 36, self.message_bytes);
        put_u32(&mut head, 40, self.offset);
        put_u64(&mut head, 44, self.remote_address);
        put_u32(&mut head, 52, self.rkey.0);
        put_u32(&mut head, 56, self.immediate);
        // The field is still 0 here, as the checksum wants it.
        let checksum = crc32c::crc32c(&head);
        put_u32(&mut head, CHECKSUM_AT, checksum);
        head
    }

    /// Continues the checksum of emitted header bytes over the payload, given in as many
    /// pieces as it lies in memory (WIRE 2.24). Padding is not part of it.
    #[inline]
    pub fn extend_checksum<'a>(
        head: &mut [u8; DATA_HEADER_BYTES],
        payload: impl IntoIterator<Item = &'a [u8]>,
    ) {
        debug_assert!(
            DataFlags::from_bits(head[17]).contains(DataFlags::PAYLOAD_CHECKSUMMED),
            "the header does not say that its payload is checksummed"
        );
        let of_header = get_u32(head, CHECKSUM_AT);
        let checksum = payload.into_iter().fold(of_header, crc32c::crc32c_append);
        put_u32(head, CHECKSUM_AT, checksum);
    }

    /// Remote address of this packet's first payload byte, wrapping as the address space does;
    /// bounds are checked against the memory region.
    #[must_use]
    #[inline]
    pub const fn place_address(&self) -> u64 {
        self.remote_address.wrapping_add(self.offset as u64)
    }

    /// Whether the message's last byte (or its single empty packet) is in here.
    #[must_use]
    #[inline]
    pub const fn is_last_segment(&self) -> bool {
        self.offset as u64 + self.payload_bytes as u64 == self.message_bytes as u64
    }

    /// Status of a FILL; [`FillStatus::Nothing`] for every other opcode.
    #[must_use]
    #[inline]
    pub fn fill_status(&self) -> FillStatus {
        match self.opcode {
            Opcode::Fill => FillStatus::from_wire(self.immediate).unwrap_or_default(),
            _ => FillStatus::Nothing,
        }
    }

    /// What the remote-address field of UD holds: Q_Key and source QPN (WIRE 2.22).
    #[must_use]
    #[inline]
    pub const fn ud_remote_address(qkey: u32, source: Qpn) -> u64 {
        ((qkey as u64) << 32) | ((source.get() as u64) << 8)
    }

    /// Q_Key of a UD packet.
    #[must_use]
    #[inline]
    pub const fn ud_qkey(&self) -> u32 {
        (self.remote_address >> 32) as u32
    }

    /// Source QPN of a UD packet.
    #[must_use]
    #[inline]
    pub const fn ud_source_qpn(&self) -> Qpn {
        Qpn::truncate((self.remote_address >> 8) as u32)
    }

    /// Kind of queue pair that the packet belongs to.
    #[must_use]
    #[inline]
    pub const fn service(&self) -> Service {
        self.opcode.service()
    }
}

/// Operands of an atomic request, the 16 bytes of its payload (WIRE 2.20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicOperands {
    /// CMP_SWAP: value to compare with; FETCH_ADD: value to add.
    pub first: u64,
    /// CMP_SWAP: value to store if equal; FETCH_ADD: 0.
    pub second: u64,
}

impl AtomicOperands {
    /// Reads the payload of an atomic request; nothing if it is not 16 bytes long.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let payload = <&[u8; 16]>::try_from(payload).ok()?;
        Some(Self {
            first: get_u64(payload, 0),
            second: get_u64(payload, 8),
        })
    }

    /// The payload.
    #[must_use]
    pub fn emit(&self) -> [u8; Opcode::ATOMIC_OPERAND_BYTES as usize] {
        let mut payload = [0; Opcode::ATOMIC_OPERAND_BYTES as usize];
        put_u64(&mut payload, 0, self.first);
        put_u64(&mut payload, 8, self.second);
        payload
    }
}
