//! CONTROL packets: base header, items, CRC32C (WIRE 2.32, 2.33).
//!
//! ```text
//! 16 item … item   CRC32C          item: kind (8), reserved (8), length of the body (16), body
//! ```
//! Items of any kinds share a packet, so that a HELLO and the OPENs that wait for it are one
//! datagram. Unknown kinds are skipped and longer bodies than known are cut: room to grow.

use super::ack::{STREAM_BLOCK_BYTES, StreamBlock};
use super::base::{BASE_BYTES, Base, PacketType};
use super::bytes::{checksum_without_field, get_u16, get_u32, put_u16, put_u32};
use super::error::ParseError;
use super::items::{
    CLOSE_BYTES, CloseReason, CloseView, HELLO_ADDRESSES_MAX, Hello, OPEN_BYTES, Open, RESET_BYTES,
    Reset, SHUT_BYTES, Shut,
};

/// Bytes in front of an item's body.
pub const ITEM_HEADER_BYTES: usize = 4;
/// Bytes of a CONTROL packet besides its items.
pub const CONTROL_OVERHEAD_BYTES: usize = BASE_BYTES + 4;
/// Bytes of a whole RESET packet: a shorter packet is never answered by one (WIRE 3.16).
pub const RESET_PACKET_BYTES: usize = CONTROL_OVERHEAD_BYTES + ITEM_HEADER_BYTES + RESET_BYTES;

/// Kind of an item, its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ItemKind {
    /// Opens a connection.
    Hello = 1,
    /// Begins a life of a pair of streams.
    Open = 2,
    /// Ends it.
    Shut = 3,
    /// Answer to a SHUT.
    ShutAnswer = 4,
    /// Answer to an unknown connection id.
    Reset = 5,
    /// Ends a connection.
    Close = 6,
    /// Answer to a CLOSE.
    CloseAnswer = 7,
}

impl ItemKind {
    const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Hello,
            2 => Self::Open,
            3 => Self::Shut,
            4 => Self::ShutAnswer,
            5 => Self::Reset,
            6 => Self::Close,
            7 => Self::CloseAnswer,
            _ => return None,
        })
    }
}

/// One thing that a CONTROL packet says.
#[derive(Clone, Debug)]
pub enum ControlItem<'a> {
    /// See [`Hello`].
    Hello(Hello),
    /// See [`Open`].
    Open(Open),
    /// See [`Shut`].
    Shut(Shut),
    /// Answer to a SHUT.
    ShutAnswer(Shut),
    /// See [`Reset`].
    Reset(Reset),
    /// See [`CloseView`].
    Close(CloseView<'a>),
    /// Answer to a CLOSE.
    CloseAnswer(CloseView<'a>),
}

impl<'a> ControlItem<'a> {
    fn parse(kind: ItemKind, body: &'a [u8]) -> Result<Self, ParseError> {
        Ok(match kind {
            ItemKind::Hello => Self::Hello(Hello::parse(body)?),
            ItemKind::Open => Self::Open(Open::parse(body)?),
            ItemKind::Shut => Self::Shut(Shut::parse(body)?),
            ItemKind::ShutAnswer => Self::ShutAnswer(Shut::parse(body)?),
            ItemKind::Reset => Self::Reset(Reset::parse(body)?),
            ItemKind::Close => Self::Close(CloseView::parse(body)?),
            ItemKind::CloseAnswer => Self::CloseAnswer(CloseView::parse(body)?),
        })
    }
}

/// Takes the first item off `items`: its kind byte and body.
fn split_item(items: &[u8]) -> Result<(u8, &[u8], &[u8]), ParseError> {
    let Some((head, rest)) = items.split_first_chunk::<ITEM_HEADER_BYTES>() else {
        return Err(ParseError::BadItemLength);
    };
    let length = usize::from(get_u16(head, 2));
    if length % 4 != 0 || length > rest.len() {
        return Err(ParseError::BadItemLength);
    }
    let (body, rest) = rest.split_at(length);
    Ok((head[0], body, rest))
}

/// A checked CONTROL packet, read in place.
#[derive(Clone, Copy, Debug)]
pub struct ControlView<'a> {
    /// Base header; path, epoch and PSN mean nothing here.
    pub base: Base,
    items: &'a [u8],
}

impl<'a> ControlView<'a> {
    /// Parses and checks a whole datagram that [`Base::parse`] said is CONTROL.
    pub fn parse(base: Base, datagram: &'a [u8]) -> Result<Self, ParseError> {
        if datagram.len() < CONTROL_OVERHEAD_BYTES {
            return Err(ParseError::TooShort);
        }
        let checksum_at = datagram.len() - 4;
        if checksum_without_field(datagram, checksum_at) != get_u32(datagram, checksum_at) {
            return Err(ParseError::BadChecksum);
        }
        let items = &datagram[BASE_BYTES..checksum_at];
        if items.is_empty() {
            return Err(ParseError::NoItem);
        }
        let mut rest = items;
        while !rest.is_empty() {
            let (kind, body, after) = split_item(rest)?;
            if let Some(kind) = ItemKind::from_wire(kind) {
                // WIRE 2.35
                if kind == ItemKind::Hello && rest.len() < items.len() {
                    return Err(ParseError::MisplacedItem);
                }
                ControlItem::parse(kind, body)?;
            }
            rest = after;
        }
        Ok(Self { base, items })
    }

    /// The items of known kinds, in the order of the packet.
    pub fn items(&self) -> impl Iterator<Item = ControlItem<'a>> + use<'a> {
        let mut rest = self.items;
        // All items were parsed once; the error arms only end the walk.
        std::iter::from_fn(move || {
            while !rest.is_empty() {
                let (kind, body, after) = split_item(rest).ok()?;
                rest = after;
                if let Some(kind) = ItemKind::from_wire(kind) {
                    return ControlItem::parse(kind, body).ok();
                }
            }
            None
        })
    }

    /// Whether the packet answers an unknown connection id: such a one is never answered by
    /// a RESET itself.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.items()
            .any(|item| matches!(item, ControlItem::Reset(_)))
    }
}

/// Writes a CONTROL packet into a caller's buffer, never longer than it.
#[derive(Debug)]
pub struct ControlBuilder<'a> {
    buffer: &'a mut [u8],
    end: usize,
}

impl<'a> ControlBuilder<'a> {
    /// Begins a packet of at most `buffer.len()` bytes: what the path's MTU carries.
    ///
    /// # Panics
    /// If the buffer does not hold [`CONTROL_OVERHEAD_BYTES`].
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        assert!(
            buffer.len() >= CONTROL_OVERHEAD_BYTES,
            "no room for a CONTROL packet without items"
        );
        Self {
            buffer,
            end: BASE_BYTES,
        }
    }

    /// Bytes that are still free for items and their headers.
    #[must_use]
    pub const fn room_bytes(&self) -> usize {
        self.buffer.len() - self.end - 4
    }

    /// Whether no item was pushed: such a packet must not be sent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end == BASE_BYTES
    }

    /// Makes room for an item; its body is zeroed.
    fn item(&mut self, kind: ItemKind, length: usize) -> Option<&mut [u8]> {
        if ITEM_HEADER_BYTES + length > self.room_bytes() || length > usize::from(u16::MAX) {
            return None;
        }
        debug_assert_eq!(length % 4, 0, "items are whole words");
        let start = self.end;
        self.end += ITEM_HEADER_BYTES + length;
        let item = &mut self.buffer[start..self.end];
        item.fill(0);
        item[0] = kind as u8;
        put_u16(item, 2, length as u16);
        Some(&mut item[ITEM_HEADER_BYTES..])
    }

    /// Adds a HELLO; false if it does not fit, or lists too many addresses.
    #[must_use = "an item that did not fit needs another packet"]
    pub fn push_hello(&mut self, hello: &Hello) -> bool {
        debug_assert!(
            self.is_empty(),
            "a HELLO comes first, where every version finds it"
        );
        debug_assert!((1..=256).contains(&hello.paths), "paths: 1 to 256");
        if hello.addresses.len() > HELLO_ADDRESSES_MAX {
            return false;
        }
        self.item(ItemKind::Hello, hello.wire_bytes())
            .map(|body| hello.emit(body))
            .is_some()
    }

    /// Adds an OPEN; false if it does not fit.
    #[must_use = "an item that did not fit needs another packet"]
    pub fn push_open(&mut self, open: &Open) -> bool {
        debug_assert!(!open.token.is_zero(), "0 is no token");
        self.item(ItemKind::Open, OPEN_BYTES)
            .map(|body| open.emit(body))
            .is_some()
    }

    /// Adds a SHUT; false if it does not fit.
    #[must_use = "an item that did not fit needs another packet"]
    pub fn push_shut(&mut self, shut: &Shut) -> bool {
        self.item(ItemKind::Shut, SHUT_BYTES)
            .map(|body| shut.emit(body))
            .is_some()
    }

    /// Adds the answer to a SHUT; false if it does not fit.
    #[must_use = "an item that did not fit needs another packet"]
    pub fn push_shut_answer(&mut self, shut: &Shut) -> bool {
        self.item(ItemKind::ShutAnswer, SHUT_BYTES)
            .map(|body| shut.emit(body))
            .is_some()
    }

    /// Adds a RESET; false if it does not fit.
    #[must_use = "an item that did not fit needs another packet"]
    pub fn push_reset(&mut self, reset: &Reset) -> bool {
        self.item(ItemKind::Reset, RESET_BYTES)
            .map(|body| reset.emit(body))
            .is_some()
    }

    /// Adds a CLOSE with as many of the stream blocks as fit and says how many; nothing if not
    /// even an empty one fits. Blocks left over go into a further packet.
    #[must_use = "blocks that did not fit need another packet"]
    pub fn push_close(&mut self, reason: CloseReason, blocks: &[StreamBlock]) -> Option<usize> {
        self.close(ItemKind::Close, reason, blocks)
    }

    /// Adds the answer to a CLOSE, like [`ControlBuilder::push_close`].
    #[must_use = "blocks that did not fit need another packet"]
    pub fn push_close_answer(
        &mut self,
        reason: CloseReason,
        blocks: &[StreamBlock],
    ) -> Option<usize> {
        self.close(ItemKind::CloseAnswer, reason, blocks)
    }

    fn close(
        &mut self,
        kind: ItemKind,
        reason: CloseReason,
        blocks: &[StreamBlock],
    ) -> Option<usize> {
        let room_bytes = self
            .room_bytes()
            .checked_sub(ITEM_HEADER_BYTES + CLOSE_BYTES)?;
        let count = blocks
            .len()
            .min(room_bytes / STREAM_BLOCK_BYTES)
            .min(usize::from(u8::MAX));
        let body = self.item(kind, CLOSE_BYTES + count * STREAM_BLOCK_BYTES)?;
        body[0] = reason as u8;
        body[1] = count as u8;
        let places = body[CLOSE_BYTES..].chunks_exact_mut(STREAM_BLOCK_BYTES);
        for (block, place) in blocks.iter().zip(places) {
            block.emit(place);
        }
        Some(count)
    }

    /// Writes the base header and the checksum. Returns the length of the packet, which lies at
    /// the front of the buffer.
    #[must_use]
    pub fn finish(self, base: &Base) -> usize {
        debug_assert!(!self.is_empty(), "a CONTROL packet without an item");
        let packet = &mut self.buffer[..self.end + 4];
        base.emit(PacketType::Control, packet);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&packet[..self.end]), &[0; 4]);
        put_u32(packet, self.end, checksum);
        packet.len()
    }
}
