//! The codec: bytes become checked types here, once, at the edge; types become bytes.
//!
//! [`Packet::parse`] is the only way in; what comes out cannot be wrong in itself (known
//! opcode, lengths that agree, checksum right), so nobody further in checks that again. Drops
//! carry their cause ([`ParseError`]). DATA leaves by [`DataHeader::emit`], ACKs by
//! [`AckBuilder`], CONTROL by [`ControlBuilder`], none of which allocates. The normative text
//! is `WIRE.md`, sections 1 and 2; one file here per family of headers. `Display` of a packet
//! is the dissector: `{}` one line, `{:#}` all fields, one a line. [`fields`] is the format as data, for
//! tools that show packets field by field, broken ones included.

mod ack;
mod again;
mod base;
mod bitvector;
mod bytes;
mod control;
mod data;
mod display;
mod error;
pub mod fields;
mod flags;
mod items;
mod opcode;
mod types;

#[cfg(test)]
mod tests;

pub use ack::{
    ACK_HEADER_BYTES, AckBuilder, AckView, Allowance, GRANT_UNLIMITED, NakCode, PATH_BLOCK_BYTES,
    PATH_BLOCK_MAX_BYTES, PathBlock, STREAM_BLOCK_BYTES, StreamBlock,
};
pub use again::{emit_again, seal};
pub use base::{BASE_BYTES, Base, PacketType, VERSION};
pub use bitvector::{BitVector, VECTOR_BITS, VECTOR_WORDS};
pub use control::{
    CONTROL_OVERHEAD_BYTES, ControlBuilder, ControlItem, ControlView, ITEM_HEADER_BYTES, ItemKind,
    RESET_PACKET_BYTES,
};
pub use data::{AtomicOperands, DATA_HEADER_BYTES, DataHeader};
pub use display::{Dissection, dissect};
pub use error::ParseError;
pub use flags::{BaseFlags, DataFlags, OpenFlags, PathFlags};
pub use items::{
    CLOSE_BYTES, ChecksumMode, CloseReason, CloseView, HELLO_ADDRESS_BYTES, HELLO_ADDRESSES_MAX,
    HELLO_BYTES, Hello, HelloIdentity, OPEN_BYTES, Open, PlaneAddress, PlaneAddresses, RESET_BYTES,
    Reset, SHUT_BYTES, SPEED_MAX_MBPS, Shut, ShutReason,
};
pub use opcode::{FillStatus, Opcode, Service};
pub use types::*;

/// A checked packet.
#[derive(Clone, Debug)]
pub enum Packet<'a> {
    /// A part of a message, or a NOP or FILL.
    Data {
        /// Base header.
        base: Base,
        /// DATA header.
        header: DataHeader,
        /// Payload without padding.
        payload: &'a [u8],
    },
    /// An acknowledgement.
    Ack(AckView<'a>),
    /// HELLO, OPEN, SHUT, RESET, CLOSE.
    Control(ControlView<'a>),
}

impl<'a> Packet<'a> {
    /// Checks a datagram and reads it in place. Nothing is looked up: whether connection, path
    /// and stream exist is the caller's question.
    ///
    /// # Errors
    /// The cause for which the datagram must be dropped.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ParseError> {
        let (packet_type, base) = Base::parse(datagram)?;
        Ok(match packet_type {
            PacketType::Data => {
                let (header, payload) = DataHeader::parse(datagram)?;
                Self::Data {
                    base,
                    header,
                    payload,
                }
            }
            PacketType::Ack => Self::Ack(AckView::parse(base, datagram)?),
            PacketType::Control => Self::Control(ControlView::parse(base, datagram)?),
        })
    }

    /// The base header.
    #[must_use]
    #[inline]
    pub const fn base(&self) -> &Base {
        match self {
            Self::Data { base, .. } => base,
            Self::Ack(ack) => &ack.base,
            Self::Control(control) => &control.base,
        }
    }
}
