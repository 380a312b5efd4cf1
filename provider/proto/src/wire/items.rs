//! What CONTROL packets say: HELLO, OPEN, SHUT, RESET, CLOSE and the answers to the latter
//! (WIRE 2.34 to 2.39). Each item knows its own bytes; `control.rs` strings items together.

use std::fmt;

use smallvec::SmallVec;

use super::ack::{STREAM_BLOCK_BYTES, StreamBlock, checked_stream_blocks};
use super::base::{BASE_BYTES, PacketType};
use super::bytes::{
    checksum_without_field, get_array16, get_u16, get_u24, get_u32, get_u64, put_u16, put_u24,
    put_u32, put_u64,
};
use super::control::{ITEM_HEADER_BYTES, ItemKind};
use super::error::ParseError;
use super::flags::OpenFlags;
use super::types::{ConnectionId, Gid, Incarnation, Msn, PlaneId, Qpn, Ssn, Token};

/// Addresses that a HELLO may list: as many planes as are built, twice over.
pub const HELLO_ADDRESSES_MAX: usize = 16;
/// Bytes of a HELLO's body without addresses.
pub const HELLO_BYTES: usize = 72;
/// Bytes of one address of a HELLO.
pub const HELLO_ADDRESS_BYTES: usize = 20;
/// Bytes of an OPEN's body.
pub const OPEN_BYTES: usize = 32;
/// Bytes of a SHUT's body, and of its answer's.
pub const SHUT_BYTES: usize = 20;
/// Bytes of a RESET's body.
pub const RESET_BYTES: usize = 4;
/// Bytes of a CLOSE's body without stream blocks.
pub const CLOSE_BYTES: usize = 4;

/// Defines an enumeration of one wire byte with a text form.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$value_meta:meta])* $value:ident = $number:literal, $label:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$value_meta])* $value = $number,)+
        }

        impl $name {
            /// The defined values with their names, in ascending order.
            pub const NAMED: &'static [(u64, &'static str)] = &[$(($number, $label),)+];

            /// The value of a wire byte; an error if it is not defined.
            pub const fn from_wire(value: u8) -> Result<Self, ParseError> {
                match value {
                    $($number => Ok(Self::$value),)+
                    _ => Err(ParseError::BadItemField),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$value => $label,)+
                })
            }
        }
    };
}

wire_enum!(
    /// Which bytes the sender of a HELLO wants checksummed in what it receives.
    ChecksumMode {
        /// Headers only.
        #[default]
        Headers = 0, "headers";
        /// Headers and payload.
        HeadersAndPayload = 1, "headers-and-payload";
    }
);
wire_enum!(
    /// Why a life of a stream ended.
    ShutReason {
        /// The QP was destroyed.
        #[default]
        Destroyed = 0, "destroyed";
        /// The program moved the QP to RESET.
        Reset = 1, "reset";
        /// The QP went to the error state.
        Error = 2, "error";
        /// In an answer: that life is not known here (any more).
        Unknown = 3, "unknown";
    }
);
wire_enum!(
    /// Why a connection ends.
    CloseReason {
        /// Its last QP is gone.
        #[default]
        Idle = 0, "idle";
        /// The process exits, or closed the device.
        Exit = 1, "exit";
        /// The sender gave the connection up after an error.
        Error = 2, "error";
    }
);

/// The first 16 bytes of a HELLO: the same in all versions of the format (WIRE 2.35).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelloIdentity {
    /// Id that the receiver of the HELLO shall put into packets to its sender.
    pub my_id: ConnectionId,
    /// Run of the sending engine.
    pub incarnation: Incarnation,
    /// The id that the receiver of this HELLO had sent; unknown where none came yet.
    pub echo: ConnectionId,
}

impl HelloIdentity {
    /// Bytes of the identity.
    pub const BYTES: usize = 16;

    fn parse(body: &[u8]) -> Self {
        Self {
            my_id: ConnectionId(get_u32(body, 0)),
            incarnation: Incarnation(get_u64(body, 4)),
            echo: ConnectionId(get_u32(body, 12)),
        }
    }

    /// Version and identity of a datagram of *any* version that begins with a HELLO, so that an
    /// engine can name the version of a peer that it does not understand.
    #[must_use]
    pub fn peek(datagram: &[u8]) -> Option<(u8, Self)> {
        let identity_at = BASE_BYTES + ITEM_HEADER_BYTES;
        let checksum_at = datagram.len().checked_sub(4)?;
        if checksum_at < identity_at + Self::BYTES
            || datagram[0] & 0x0f != PacketType::Control as u8
            || datagram[BASE_BYTES] != ItemKind::Hello as u8
            || checksum_without_field(datagram, checksum_at) != get_u32(datagram, checksum_at)
        {
            return None;
        }
        Some((datagram[0] >> 4, Self::parse(&datagram[identity_at..])))
    }
}

/// An address of an endpoint and the plane that it is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneAddress {
    /// The address.
    pub gid: Gid,
    /// Its plane, as its owner numbers planes.
    pub plane: PlaneId,
    /// Speed of its link in Mb/s, 24 bits; 0 if not known.
    pub speed_mbps: u32,
}

/// The largest speed that an address can tell.
pub const SPEED_MAX_MBPS: u32 = 0x00ff_ffff;

/// Addresses of a HELLO; up to four need no allocation.
pub type PlaneAddresses = SmallVec<[PlaneAddress; 4]>;

/// Opens a connection, or says that it is open (WIRE 2.35).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Ids and incarnation.
    pub identity: HelloIdentity,
    /// GID that the sender's QPs use.
    pub source_gid: Gid,
    /// GID of the receiver that they address.
    pub dest_gid: Gid,
    /// UDP port of the sender's endpoint; answers go there, whatever route this came by.
    pub endpoint_port: u16,
    /// Payload bytes of a packet that the sender accepts.
    pub payload_bytes: u16,
    /// Path ids that the sender accepts: 0 to this less one. 1 to 256.
    pub paths: u16,
    /// What the sender wants checksummed in what it receives.
    pub checksum_mode: ChecksumMode,
    /// Bytes that the receiver of the HELLO may have in flight at first.
    pub window_bytes: u32,
    /// Packets that it may send together with an announcement.
    pub w0_packets: u16,
    /// Messages of a stream beyond the last executed one that the sender of the HELLO accepts.
    pub message_span: u32,
    /// Packets of such messages, the first excepted.
    pub packet_span: u32,
    /// Addresses of the endpoint, at most [`HELLO_ADDRESSES_MAX`].
    pub addresses: PlaneAddresses,
}

impl Hello {
    pub(super) fn wire_bytes(&self) -> usize {
        HELLO_BYTES + HELLO_ADDRESS_BYTES * self.addresses.len()
    }

    pub(super) fn parse(body: &[u8]) -> Result<Self, ParseError> {
        if body.len() < HELLO_BYTES {
            return Err(ParseError::BadItemLength);
        }
        let count = usize::from(body[55]);
        let paths = get_u16(body, 52);
        if count > HELLO_ADDRESSES_MAX || !(1..=256).contains(&paths) {
            return Err(ParseError::BadItemField);
        }
        let Some(addresses) = body[HELLO_BYTES..].get(..count * HELLO_ADDRESS_BYTES) else {
            return Err(ParseError::BadItemLength);
        };
        Ok(Self {
            identity: HelloIdentity::parse(body),
            source_gid: Gid(get_array16(body, 16)),
            dest_gid: Gid(get_array16(body, 32)),
            endpoint_port: get_u16(body, 48),
            payload_bytes: get_u16(body, 50),
            paths,
            checksum_mode: ChecksumMode::from_wire(body[54])?,
            window_bytes: get_u32(body, 56),
            w0_packets: get_u16(body, 60),
            message_span: get_u32(body, 64),
            packet_span: get_u32(body, 68),
            addresses: addresses
                .chunks_exact(HELLO_ADDRESS_BYTES)
                .map(|address| PlaneAddress {
                    gid: Gid(get_array16(address, 0)),
                    plane: PlaneId(address[16]),
                    speed_mbps: get_u24(address, 17),
                })
                .collect(),
        })
    }

    /// Writes to zeroed bytes, exactly [`Hello::wire_bytes`] long.
    pub(super) fn emit(&self, body: &mut [u8]) {
        put_u32(body, 0, self.identity.my_id.0);
        put_u64(body, 4, self.identity.incarnation.0);
        put_u32(body, 12, self.identity.echo.0);
        body[16..32].copy_from_slice(&self.source_gid.0);
        body[32..48].copy_from_slice(&self.dest_gid.0);
        put_u16(body, 48, self.endpoint_port);
        put_u16(body, 50, self.payload_bytes);
        put_u16(body, 52, self.paths);
        body[54] = self.checksum_mode as u8;
        body[55] = self.addresses.len() as u8;
        put_u32(body, 56, self.window_bytes);
        put_u16(body, 60, self.w0_packets);
        put_u32(body, 64, self.message_span);
        put_u32(body, 68, self.packet_span);
        let places = body[HELLO_BYTES..].chunks_exact_mut(HELLO_ADDRESS_BYTES);
        for (address, place) in self.addresses.iter().zip(places) {
            place[..16].copy_from_slice(&address.gid.0);
            place[16] = address.plane.0;
            put_u24(place, 17, address.speed_mbps.min(SPEED_MAX_MBPS));
        }
    }
}

/// Begins a life of a pair of streams, or answers that (WIRE 2.36).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// QP of the sender.
    pub from_qpn: Qpn,
    /// QP of the receiver.
    pub to_qpn: Qpn,
    /// Flags.
    pub flags: OpenFlags,
    /// RNR timer of the sender, in IBA's coding (5 bits).
    pub rnr_timer: u8,
    /// Life of the sender's QP, never 0.
    pub token: Token,
    /// Life of the receiver's QP as the sender knows it; 0 = unknown.
    pub echo: Token,
    /// `sq_psn` as the sender's program gave it.
    pub send_psn: u32,
    /// `rq_psn` as the sender's program gave it.
    pub receive_psn: u32,
    /// First receive number for which the sender has no receive posted.
    pub credit: Ssn,
    /// READs and atomics that the sender lets the peer have outstanding.
    pub max_dest_rd_atomic: u8,
    /// READs and atomics that the sender will have outstanding.
    pub max_rd_atomic: u8,
}

impl Open {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ParseError> {
        if body.len() < OPEN_BYTES {
            return Err(ParseError::BadItemLength);
        }
        let token = Token::truncate(get_u24(body, 8));
        if token.is_zero() {
            return Err(ParseError::BadItemField);
        }
        Ok(Self {
            from_qpn: Qpn::truncate(get_u24(body, 0)),
            flags: OpenFlags::from_bits(body[3]),
            to_qpn: Qpn::truncate(get_u24(body, 4)),
            rnr_timer: body[7],
            token,
            echo: Token::truncate(get_u24(body, 12)),
            send_psn: get_u32(body, 16),
            receive_psn: get_u32(body, 20),
            credit: Ssn(get_u32(body, 24)),
            max_dest_rd_atomic: body[28],
            max_rd_atomic: body[29],
        })
    }

    /// Writes to zeroed bytes.
    pub(super) fn emit(&self, body: &mut [u8]) {
        put_u24(body, 0, self.from_qpn.get());
        body[3] = self.flags.bits();
        put_u24(body, 4, self.to_qpn.get());
        body[7] = self.rnr_timer;
        put_u24(body, 8, self.token.get());
        put_u24(body, 12, self.echo.get());
        put_u32(body, 16, self.send_psn);
        put_u32(body, 20, self.receive_psn);
        put_u32(body, 24, self.credit.0);
        body[28] = self.max_dest_rd_atomic;
        body[29] = self.max_rd_atomic;
    }
}

/// Ends a life of a pair of streams, or answers that (WIRE 2.37).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shut {
    /// QP of the sender; in an answer, of the answerer.
    pub from_qpn: Qpn,
    /// Why.
    pub reason: ShutReason,
    /// Life of the sender's QP; 0 where it has none.
    pub from_token: Token,
    /// QP of the receiver.
    pub to_qpn: Qpn,
    /// Life of the receiver's QP; 0 = unknown.
    pub to_token: Token,
    /// Last message of the receiver's stream that the sender executed.
    pub msn_executed: Msn,
}

impl Shut {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ParseError> {
        if body.len() < SHUT_BYTES {
            return Err(ParseError::BadItemLength);
        }
        Ok(Self {
            from_qpn: Qpn::truncate(get_u24(body, 0)),
            reason: ShutReason::from_wire(body[3])?,
            from_token: Token::truncate(get_u24(body, 4)),
            to_qpn: Qpn::truncate(get_u24(body, 8)),
            to_token: Token::truncate(get_u24(body, 12)),
            msn_executed: Msn(get_u32(body, 16)),
        })
    }

    /// Writes to zeroed bytes.
    pub(super) fn emit(&self, body: &mut [u8]) {
        put_u24(body, 0, self.from_qpn.get());
        body[3] = self.reason as u8;
        put_u24(body, 4, self.from_token.get());
        put_u24(body, 8, self.to_qpn.get());
        put_u24(body, 12, self.to_token.get());
        put_u32(body, 16, self.msn_executed.0);
    }
}

/// "I do not know that connection id" (WIRE 2.38).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reset {
    /// The id that is not known.
    pub unknown_id: ConnectionId,
}

impl Reset {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ParseError> {
        if body.len() < RESET_BYTES {
            return Err(ParseError::BadItemLength);
        }
        Ok(Self {
            unknown_id: ConnectionId(get_u32(body, 0)),
        })
    }

    pub(super) fn emit(&self, body: &mut [u8]) {
        put_u32(body, 0, self.unknown_id.0);
    }
}

/// Ends a connection, with the last word about its streams; or answers that (WIRE 2.39).
#[derive(Clone, Copy, Debug)]
pub struct CloseView<'a> {
    /// Why.
    pub reason: CloseReason,
    blocks: &'a [u8],
}

impl<'a> CloseView<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        if body.len() < CLOSE_BYTES {
            return Err(ParseError::BadItemLength);
        }
        let count = usize::from(body[1]);
        let Some(blocks) = body[CLOSE_BYTES..].get(..count * STREAM_BLOCK_BYTES) else {
            return Err(ParseError::BadItemLength);
        };
        for block in blocks.chunks_exact(STREAM_BLOCK_BYTES) {
            StreamBlock::parse(block)?;
        }
        Ok(Self {
            reason: CloseReason::from_wire(body[0])?,
            blocks,
        })
    }

    /// The stream blocks, in the order of the packet.
    pub fn stream_blocks(&self) -> impl Iterator<Item = StreamBlock> + use<'a> {
        checked_stream_blocks(self.blocks)
    }
}
