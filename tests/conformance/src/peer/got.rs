//! What came from the target, parsed once and owned.

use std::net::SocketAddr;
use std::time::Instant;

use metaroce_proto::wire::{
    Allowance, Base, BaseFlags, CloseReason, ControlItem, DataHeader, Hello, Opcode, Open, Packet,
    ParseError, PathBlock, Reset, Shut, StreamBlock,
};

use crate::sockets::Datagram;

/// An item of a CONTROL packet.
#[derive(Clone, Debug)]
pub enum Item {
    /// HELLO
    Hello(Hello),
    /// OPEN
    Open(Open),
    /// SHUT
    Shut(Shut),
    /// SHUT-ANSWER
    ShutAnswer(Shut),
    /// RESET
    Reset(Reset),
    /// CLOSE, with the final stream blocks.
    Close(CloseReason, Vec<StreamBlock>),
    /// CLOSE-ANSWER
    CloseAnswer,
}

/// What a packet says behind its base header.
#[derive(Clone, Debug)]
pub enum Body {
    /// DATA
    Data {
        /// Its header.
        header: DataHeader,
        /// Its payload, without padding.
        payload: Vec<u8>,
    },
    /// ACK
    Ack {
        /// Grant, window and W0.
        allowance: Allowance,
        /// In the order of the packet.
        paths: Vec<PathBlock>,
        /// In the order of the packet.
        streams: Vec<StreamBlock>,
    },
    /// CONTROL
    Control(Vec<Item>),
}

/// A packet of the target.
#[derive(Clone, Debug)]
pub struct Got {
    /// When it was read from the socket.
    pub at: Instant,
    /// The target's source port and address.
    pub from: SocketAddr,
    /// Its ECN bits, where they are known.
    pub ecn: Option<u8>,
    /// Base header.
    pub base: Base,
    /// The rest.
    pub body: Body,
    /// The whole packet.
    pub bytes: Vec<u8>,
}

impl Got {
    /// Parses a datagram.
    ///
    /// # Errors
    /// It is malformed.
    pub fn of(datagram: Datagram) -> Result<Self, ParseError> {
        let (base, body) = match Packet::parse(&datagram.bytes)? {
            Packet::Data {
                base,
                header,
                payload,
            } => {
                let payload = payload.to_vec();
                (base, Body::Data { header, payload })
            }
            Packet::Ack(view) => {
                let body = Body::Ack {
                    allowance: view.allowance,
                    paths: view.path_blocks().collect(),
                    streams: view.stream_blocks().collect(),
                };
                (view.base, body)
            }
            Packet::Control(view) => (view.base, Body::Control(view.items().map(item).collect())),
        };
        Ok(Self {
            at: datagram.at,
            from: datagram.from,
            ecn: datagram.ecn,
            base,
            body,
            bytes: datagram.bytes,
        })
    }

    /// Header and payload, if it is DATA.
    pub fn data(&self) -> Option<(&DataHeader, &[u8])> {
        match &self.body {
            Body::Data { header, payload } => Some((header, payload)),
            _ => None,
        }
    }

    /// Header and payload of DATA that takes a PSN.
    pub fn message(&self) -> Option<(&DataHeader, &[u8])> {
        self.data().filter(|(header, _)| header.opcode.takes_psn())
    }

    /// Whether it is a NOP with all of `flags`.
    pub fn is_nop(&self, flags: BaseFlags) -> bool {
        self.data()
            .is_some_and(|(header, _)| header.opcode == Opcode::Nop)
            && self.base.flags.contains(flags)
    }

    /// Whether it was sent before under its PSN.
    pub fn is_again(&self) -> bool {
        self.base.flags.contains(BaseFlags::RETRANSMISSION)
    }

    /// Path and PSN.
    pub fn place(&self) -> (u8, u32) {
        (self.base.path.0, self.base.psn.0)
    }

    /// The block of `path`, if it is an ACK with one.
    pub fn block(&self, path: u8) -> Option<&PathBlock> {
        match &self.body {
            Body::Ack { paths, .. } => paths.iter().find(|block| block.path.0 == path),
            _ => None,
        }
    }

    /// The stream blocks, if it is an ACK.
    pub fn streams(&self) -> &[StreamBlock] {
        match &self.body {
            Body::Ack { streams, .. } => streams,
            _ => &[],
        }
    }

    /// Grant, window and W0, if it is an ACK.
    pub fn allowance(&self) -> Option<&Allowance> {
        match &self.body {
            Body::Ack { allowance, .. } => Some(allowance),
            _ => None,
        }
    }

    /// Whether it may have come by itself: an ACK that tells what is allowed, and answers nothing.
    pub fn is_correction(&self) -> bool {
        matches!(&self.body, Body::Ack { paths, .. } if paths.is_empty())
    }

    /// The items, if it is CONTROL.
    pub fn items(&self) -> &[Item] {
        match &self.body {
            Body::Control(items) => items,
            _ => &[],
        }
    }

    /// Its HELLO.
    pub fn hello(&self) -> Option<&Hello> {
        match self.items().first()? {
            Item::Hello(hello) => Some(hello),
            _ => None,
        }
    }

    /// Its first OPEN.
    pub fn open(&self) -> Option<&Open> {
        self.items().iter().find_map(|item| match item {
            Item::Open(open) => Some(open),
            _ => None,
        })
    }

    /// Its first SHUT.
    pub fn shut(&self) -> Option<&Shut> {
        self.items().iter().find_map(|item| match item {
            Item::Shut(shut) => Some(shut),
            _ => None,
        })
    }

    /// Its first SHUT-ANSWER.
    pub fn shut_answer(&self) -> Option<&Shut> {
        self.items().iter().find_map(|item| match item {
            Item::ShutAnswer(shut) => Some(shut),
            _ => None,
        })
    }

    /// Its CLOSE.
    pub fn close(&self) -> Option<(CloseReason, &[StreamBlock])> {
        self.items().iter().find_map(|item| match item {
            Item::Close(reason, blocks) => Some((*reason, blocks.as_slice())),
            _ => None,
        })
    }

    /// Whether it answers a CLOSE.
    pub fn is_close_answer(&self) -> bool {
        let mut items = self.items().iter();
        items.any(|item| matches!(item, Item::CloseAnswer))
    }

    /// The id that its RESET does not know.
    pub fn reset(&self) -> Option<&Reset> {
        self.items().iter().find_map(|item| match item {
            Item::Reset(reset) => Some(reset),
            _ => None,
        })
    }
}

fn item(item: ControlItem<'_>) -> Item {
    match item {
        ControlItem::Hello(hello) => Item::Hello(hello),
        ControlItem::Open(open) => Item::Open(open),
        ControlItem::Shut(shut) => Item::Shut(shut),
        ControlItem::ShutAnswer(shut) => Item::ShutAnswer(shut),
        ControlItem::Reset(reset) => Item::Reset(reset),
        ControlItem::Close(close) => Item::Close(close.reason, close.stream_blocks().collect()),
        ControlItem::CloseAnswer(_) => Item::CloseAnswer,
    }
}
