//! ACK packets: what the receiver allows, and blocks of what it has received (path blocks) and
//! executed (stream blocks) (WIRE 2.25 to 2.31).
//!
//! ```text
//! 16 grant (KiB/s)   20 window (bytes)   24 W0 (packets, 16)   26 path blocks (8)
//! 27 stream blocks (8)   28 CRC32C   32 path blocks, then stream blocks
//! ```
//! Parsing checks all blocks at once and allocates nothing: the view's iterators read them in
//! place. The builder writes blocks where they will be sent and refuses what does not fit.

use super::base::{BASE_BYTES, Base, PacketType};
use super::bitvector::{BitVector, VECTOR_WORDS};
use super::bytes::{checksum_without_field, get_u16, get_u24, get_u32, put_u16, put_u24, put_u32};
use super::error::ParseError;
use super::flags::PathFlags;
use super::types::{AckDelay, AckNumber, Attempt, Epoch, Msn, PathId, Psn, Qpn, Ssn, Stamp, Token};

/// Bytes of an ACK before its blocks.
pub const ACK_HEADER_BYTES: usize = BASE_BYTES + 16;
/// Bytes of a path block without bitvector words.
pub const PATH_BLOCK_BYTES: usize = 20;
/// Bytes of a path block with all 8 words.
pub const PATH_BLOCK_MAX_BYTES: usize = PATH_BLOCK_BYTES + 4 * VECTOR_WORDS;
/// Bytes of a stream block.
pub const STREAM_BLOCK_BYTES: usize = 20;

/// A grant without limit (WIRE 8.8).
pub const GRANT_UNLIMITED: u32 = u32::MAX;

/// Place of the CRC32C.
const CHECKSUM_AT: usize = 28;

/// What the receiver allows; counts only from the newest ACK (WIRE 5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Rate granted to this sender, in KiB/s; [`GRANT_UNLIMITED`] is no limit.
    pub grant_kib_per_s: u32,
    /// Bytes that this connection may have in flight.
    pub window_bytes: u32,
    /// Packets that may leave together with an announcement.
    pub w0_packets: u16,
}

/// What was received on one path (WIRE 2.28).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathBlock {
    /// The path.
    pub path: PathId,
    /// Newest epoch of which a packet has arrived.
    pub epoch: Epoch,
    /// Flags.
    pub flags: PathFlags,
    /// Lowest PSN not received.
    pub cumulative: Psn,
    /// Bit `i`: PSN `cumulative + i` was received. Bit 0 is always clear.
    pub vector: BitVector,
    /// Largest stamp seen on that epoch.
    pub echoed_stamp: Stamp,
    /// How long that packet waited here for this ACK.
    pub ack_delay: AckDelay,
    /// Packets of the path that came with a congestion mark, modulo 2^16.
    pub ce_count: u16,
    /// Packets that had been received before, modulo 2^16.
    pub duplicates: u16,
    /// Packets that arrived, modulo 2^16.
    pub received: u16,
}

impl PathBlock {
    /// Bytes that the block takes in an ACK.
    #[must_use]
    #[inline]
    pub fn wire_bytes(&self) -> usize {
        PATH_BLOCK_BYTES + 4 * self.vector.word_count()
    }

    /// Whether the block says that `psn` was received.
    #[must_use]
    #[inline]
    pub fn acknowledges(&self, psn: Psn) -> bool {
        psn.is_before(self.cumulative) || self.vector.get(psn.since(self.cumulative))
    }

    /// Reads the block at the front of `bytes` and says how long it was.
    #[inline]
    fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        if bytes.len() < PATH_BLOCK_BYTES {
            return Err(ParseError::BadLength);
        }
        let words = usize::from(bytes[2]);
        if words > VECTOR_WORDS {
            return Err(ParseError::TooManyWords);
        }
        let length = PATH_BLOCK_BYTES + 4 * words;
        if bytes.len() < length {
            return Err(ParseError::BadLength);
        }
        let mut vector = BitVector::EMPTY;
        for (word, value) in vector.0.iter_mut().enumerate().take(words) {
            *value = get_u32(bytes, PATH_BLOCK_BYTES + 4 * word);
        }
        if vector.get(0) {
            return Err(ParseError::BitvectorContradiction);
        }
        let block = Self {
            path: PathId(bytes[0]),
            epoch: Epoch(bytes[1]),
            flags: PathFlags::from_bits(bytes[3]),
            cumulative: Psn(get_u32(bytes, 4)),
            vector,
            echoed_stamp: Stamp(get_u32(bytes, 8)),
            ack_delay: AckDelay(get_u16(bytes, 12)),
            ce_count: get_u16(bytes, 14),
            duplicates: get_u16(bytes, 16),
            received: get_u16(bytes, 18),
        };
        Ok((block, length))
    }

    /// Writes the block; `bytes` is exactly [`PathBlock::wire_bytes`] long.
    #[inline]
    fn emit(&self, bytes: &mut [u8]) {
        debug_assert!(
            !self.vector.get(0),
            "the lowest PSN not received is received"
        );
        let words = self.vector.word_count();
        bytes[0] = self.path.0;
        bytes[1] = self.epoch.0;
        bytes[2] = words as u8;
        bytes[3] = self.flags.bits();
        put_u32(bytes, 4, self.cumulative.0);
        put_u32(bytes, 8, self.echoed_stamp.0);
        put_u16(bytes, 12, self.ack_delay.0);
        put_u16(bytes, 14, self.ce_count);
        put_u16(bytes, 16, self.duplicates);
        put_u16(bytes, 18, self.received);
        for (word, value) in self.vector.0[..words].iter().enumerate() {
            put_u32(bytes, PATH_BLOCK_BYTES + 4 * word, *value);
        }
    }
}

/// Why the first unexecuted message of a stream is refused (WIRE 2.31).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// Nothing is refused.
    #[default]
    None = 0,
    /// Too few receives posted: again later, as a new attempt.
    Rnr = 1,
    /// Key, protection domain, bounds or rights do not allow it.
    RemoteAccess = 2,
    /// The request is invalid: misaligned atomic, too many READs and atomics, unsupported.
    InvalidRequest = 3,
    /// The responder could not complete it.
    RemoteOperational = 4,
    /// A SEND longer than its receive; an invalid request to the sender.
    Length = 5,
    /// Strict visibility ran out of memory: again as a new attempt when all earlier messages are executed.
    Hold = 6,
}

impl NakCode {
    /// All codes, in the order of their values.
    pub const ALL: &'static [Self] = &[
        Self::None,
        Self::Rnr,
        Self::RemoteAccess,
        Self::InvalidRequest,
        Self::RemoteOperational,
        Self::Length,
        Self::Hold,
    ];

    /// The code of a wire value.
    #[must_use]
    #[inline]
    pub fn from_wire(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }

    /// Whether the QP fails by it, rather than send the message again.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        !matches!(self, Self::None | Self::Rnr | Self::Hold)
    }
}

/// What was executed of one stream (WIRE 2.29).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamBlock {
    /// The stream's QP at the receiver of the ACK.
    pub qpn: Qpn,
    /// What became of message `msn_executed + 1`.
    pub code: NakCode,
    /// Life of that QP.
    pub token: Token,
    /// Attempt that was refused, where `code` is not `None`.
    pub attempt: Attempt,
    /// Last message executed; all before are.
    pub msn_executed: Msn,
    /// First receive number for which no receive is posted.
    pub credit: Ssn,
    /// RNR timer, in IBA's coding (5 bits).
    pub rnr_timer: u8,
}

impl StreamBlock {
    /// Reads the block at the front of `bytes`.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Some(bytes) = bytes.first_chunk::<STREAM_BLOCK_BYTES>() else {
            return Err(ParseError::BadLength);
        };
        let Some(code) = NakCode::from_wire(bytes[3]) else {
            return Err(ParseError::UnknownCode);
        };
        Ok(Self {
            qpn: Qpn::truncate(get_u24(bytes, 0)),
            code,
            token: Token::truncate(get_u24(bytes, 4)),
            attempt: Attempt(bytes[7]),
            msn_executed: Msn(get_u32(bytes, 8)),
            credit: Ssn(get_u32(bytes, 12)),
            rnr_timer: bytes[16],
        })
    }

    /// Writes the block to the front of `bytes`.
    #[inline]
    pub(super) fn emit(&self, bytes: &mut [u8]) {
        put_u24(bytes, 0, self.qpn.get());
        bytes[3] = self.code as u8;
        put_u24(bytes, 4, self.token.get());
        bytes[7] = self.attempt.0;
        put_u32(bytes, 8, self.msn_executed.0);
        put_u32(bytes, 12, self.credit.0);
        put_u32(bytes, 16, u32::from(self.rnr_timer) << 24);
    }
}

/// Reads a list of stream blocks that was checked before.
pub(super) fn checked_stream_blocks(bytes: &[u8]) -> impl Iterator<Item = StreamBlock> + '_ {
    bytes
        .chunks_exact(STREAM_BLOCK_BYTES)
        .filter_map(|block| StreamBlock::parse(block).ok())
}

/// A checked ACK, read in place.
#[derive(Clone, Copy, Debug)]
pub struct AckView<'a> {
    /// Base header; its PSN field is the ACK number.
    pub base: Base,
    /// What the receiver allows.
    pub allowance: Allowance,
    path_blocks: &'a [u8],
    stream_blocks: &'a [u8],
}

impl<'a> AckView<'a> {
    /// Parses and checks a whole datagram that [`Base::parse`] said is an ACK.
    pub fn parse(base: Base, datagram: &'a [u8]) -> Result<Self, ParseError> {
        if datagram.len() < ACK_HEADER_BYTES {
            return Err(ParseError::TooShort);
        }
        let (head, blocks) = datagram.split_at(ACK_HEADER_BYTES);
        if checksum_without_field(datagram, CHECKSUM_AT) != get_u32(head, CHECKSUM_AT) {
            return Err(ParseError::BadChecksum);
        }
        let mut stream_start = 0;
        for _ in 0..datagram[26] {
            let (_, length) = PathBlock::parse(&blocks[stream_start..])?;
            stream_start += length;
        }
        let (path_blocks, rest) = blocks.split_at(stream_start);
        // WIRE 2.26: padding may follow.
        let stream_bytes = usize::from(datagram[27]) * STREAM_BLOCK_BYTES;
        let Some(stream_blocks) = rest.get(..stream_bytes) else {
            return Err(ParseError::BadLength);
        };
        for block in stream_blocks.chunks_exact(STREAM_BLOCK_BYTES) {
            StreamBlock::parse(block)?;
        }
        Ok(Self {
            base,
            allowance: Allowance {
                grant_kib_per_s: get_u32(datagram, 16),
                window_bytes: get_u32(datagram, 20),
                w0_packets: get_u16(datagram, 24),
            },
            path_blocks,
            stream_blocks,
        })
    }

    /// Number of the ACK within its connection.
    #[must_use]
    pub const fn number(&self) -> AckNumber {
        AckNumber(self.base.psn.0)
    }

    /// The path blocks, in the order of the packet.
    pub fn path_blocks(&self) -> impl Iterator<Item = PathBlock> + use<'a> {
        let mut rest = self.path_blocks;
        // All blocks were parsed once; the error arm only ends the walk.
        std::iter::from_fn(move || {
            let (block, length) = PathBlock::parse(rest).ok()?;
            rest = &rest[length..];
            Some(block)
        })
    }

    /// The stream blocks, in the order of the packet.
    pub fn stream_blocks(&self) -> impl Iterator<Item = StreamBlock> + use<'a> {
        checked_stream_blocks(self.stream_blocks)
    }
}

/// Writes an ACK into a caller's buffer, never longer than it.
#[derive(Debug)]
pub struct AckBuilder<'a> {
    buffer: &'a mut [u8],
    stream_start: usize,
    end: usize,
    path_blocks: u8,
    stream_blocks: u8,
}

impl<'a> AckBuilder<'a> {
    /// Begins an ACK of at most `buffer.len()` bytes: what the path's MTU carries.
    ///
    /// # Panics
    /// If the buffer does not hold [`ACK_HEADER_BYTES`].
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        assert!(
            buffer.len() >= ACK_HEADER_BYTES,
            "no room for an ACK without blocks"
        );
        Self {
            buffer,
            stream_start: ACK_HEADER_BYTES,
            end: ACK_HEADER_BYTES,
            path_blocks: 0,
            stream_blocks: 0,
        }
    }

    /// Bytes that are still free.
    #[must_use]
    pub const fn room_bytes(&self) -> usize {
        self.buffer.len() - self.end
    }

    /// Whether no block was pushed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.path_blocks == 0 && self.stream_blocks == 0
    }

    /// Adds a path block; false if it does not fit.
    #[must_use = "a block that did not fit has to wait for the next ACK"]
    pub fn push_path(&mut self, block: &PathBlock) -> bool {
        let length = block.wire_bytes();
        if length > self.room_bytes() || self.path_blocks == u8::MAX {
            return false;
        }
        // Path blocks come first on the wire, in whatever order they are pushed here.
        let (start, end) = (self.stream_start, self.stream_start + length);
        self.buffer.copy_within(start..self.end, end);
        block.emit(&mut self.buffer[start..end]);
        self.stream_start = end;
        self.end += length;
        self.path_blocks += 1;
        true
    }

    /// Adds a stream block; false if it does not fit.
    #[must_use = "a block that did not fit has to wait for the next ACK"]
    pub fn push_stream(&mut self, block: &StreamBlock) -> bool {
        if STREAM_BLOCK_BYTES > self.room_bytes() || self.stream_blocks == u8::MAX {
            return false;
        }
        block.emit(&mut self.buffer[self.end..]);
        self.end += STREAM_BLOCK_BYTES;
        self.stream_blocks += 1;
        true
    }

    /// Writes the header and the checksum; `number` replaces the PSN of `base`. An ACK shorter than `least_bytes` is
    /// padded (WIRE 2.26), as far as the buffer goes. Returns the length of the ACK, which lies at the front of the
    /// buffer.
    #[must_use]
    pub fn finish(
        self,
        base: &Base,
        number: AckNumber,
        allowance: &Allowance,
        least_bytes: usize,
    ) -> usize {
        let length = least_bytes.min(self.buffer.len()).max(self.end);
        let packet = &mut self.buffer[..length];
        packet[self.end..].fill(0);
        Base {
            psn: Psn(number.0),
            ..*base
        }
        .emit(PacketType::Ack, packet);
        put_u32(packet, 16, allowance.grant_kib_per_s);
        put_u32(packet, 20, allowance.window_bytes);
        put_u16(packet, 24, allowance.w0_packets);
        packet[26] = self.path_blocks;
        packet[27] = self.stream_blocks;
        let checksum = checksum_without_field(packet, CHECKSUM_AT);
        put_u32(packet, CHECKSUM_AT, checksum);
        length
    }
}
