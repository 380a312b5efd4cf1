//! The base header, 16 bytes at the front of every packet (WIRE 2.5 to 2.11).
//!
//! ```text
//!  0  version (4) and type (4)     1  flags     2  path     3  epoch
//!  4  connection id (32)           8  PSN (32)             12  time stamp (32)
//! ```

use super::bytes::{get_u32, put_u32};
use super::error::ParseError;
use super::flags::BaseFlags;
use super::types::{ConnectionId, Epoch, PathId, Psn, Stamp};

/// The version of the format that this module speaks (WIRE 2.6).
pub const VERSION: u8 = 1;

/// Bytes of the base header.
pub const BASE_BYTES: usize = 16;

/// What follows the base header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    /// A part of a message, or a NOP or FILL.
    Data = 1,
    /// Acknowledgement of paths and streams.
    Ack = 2,
    /// HELLO, OPEN, SHUT, RESET, CLOSE.
    Control = 3,
}

/// The base header without version and type, which the kind of packet decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Flags.
    pub flags: BaseFlags,
    /// Path that the packet travels on.
    pub path: PathId,
    /// Route of the path, counted by its moves.
    pub epoch: Epoch,
    /// Connection at the receiver of the packet.
    pub connection: ConnectionId,
    /// Packet sequence number of the path; of an ACK the ACK number, see [`super::AckView::number`].
    pub psn: Psn,
    /// When this transmission left.
    pub stamp: Stamp,
}

impl Base {
    /// Reads type and header; the caller checks the rest of the packet.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(PacketType, Self), ParseError> {
        let Some(bytes) = bytes.first_chunk::<BASE_BYTES>() else {
            return Err(ParseError::TooShort);
        };
        if bytes[0] >> 4 != VERSION {
            return Err(ParseError::UnknownVersion);
        }
        let packet_type = match bytes[0] & 0x0f {
            1 => PacketType::Data,
            2 => PacketType::Ack,
            3 => PacketType::Control,
            _ => return Err(ParseError::UnknownType),
        };
        let base = Self {
            flags: BaseFlags::from_bits(bytes[1]),
            path: PathId(bytes[2]),
            epoch: Epoch(bytes[3]),
            connection: ConnectionId(get_u32(bytes, 4)),
            psn: Psn(get_u32(bytes, 8)),
            stamp: Stamp(get_u32(bytes, 12)),
        };
        Ok((packet_type, base))
    }

    /// Writes the header to the first 16 bytes of `bytes`.
    #[inline]
    pub fn emit(&self, packet_type: PacketType, bytes: &mut [u8]) {
        bytes[0] = (VERSION << 4) | packet_type as u8;
        bytes[1] = self.flags.bits();
        bytes[2] = self.path.0;
        bytes[3] = self.epoch.0;
        put_u32(bytes, 4, self.connection.0);
        put_u32(bytes, 8, self.psn.0);
        put_u32(bytes, 12, self.stamp.0);
    }
}
