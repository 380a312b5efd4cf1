//! A train: the packets of one (GSO) send, as plain data. The core fills it, the engine turns it into an iovec over
//! the application's own memory, the simulator gathers it from its own. Reused: no allocation after warm-up.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use crate::types::{LocalIndex, QpId, Route, SourceSlot};
use crate::wire::Msn;

/// A run of bytes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// In the train's own buffer: headers, control packets, inline data, padding.
    Bytes {
        /// First byte.
        start: u32,
        /// Bytes.
        length: u32,
    },
    /// In registered memory of the host: `addr` in the address space of region `key`.
    Memory {
        /// Key of the region.
        key: u32,
        /// Address in the region's address space.
        addr: u64,
        /// Bytes.
        length: u32,
    },
}

/// Whose memory a packet carries: told back when the host cannot read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentOwner {
    /// Queue pair.
    pub qp: QpId,
    /// Message.
    pub msn: Msn,
    /// Part of a READ response, not of a request.
    pub response: bool,
}

/// One packet of a train.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its pieces, an index range of [`Train::pieces`].
    pub pieces: Range<usize>,
    /// UDP payload bytes.
    pub length: u32,
    /// Whose memory, if any.
    pub owner: Option<SegmentOwner>,
}

/// The packets of one send. All segments but the last have the same length.
#[derive(Debug)]
pub struct Train {
    /// What it travels on.
    pub route: Route,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    segments: Vec<Segment>,
    open_start: usize,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            route: Route {
                local: LocalIndex(0),
                source: SourceSlot(0),
                destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            },
            bytes: Vec::new(),
            pieces: Vec::new(),
            segments: Vec::new(),
            open_start: 0,
        }
    }
}

impl Train {
    /// Empties the train and gives it a route.
    pub fn start(&mut self, route: Route) {
        self.route = route;
        self.bytes.clear();
        self.pieces.clear();
        self.segments.clear();
        self.open_start = 0;
    }

    /// Appends bytes to the packet under construction.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        self.pieces.push(Piece::Bytes {
            start,
            length: bytes.len() as u32,
        });
    }

    /// Appends `length` zero bytes to the packet under construction.
    pub fn push_padding(&mut self, length: u32) {
        let start = self.bytes.len() as u32;
        self.bytes.resize(self.bytes.len() + length as usize, 0);
        self.pieces.push(Piece::Bytes { start, length });
    }

    /// Appends registered memory to the packet under construction.
    pub fn push_memory(&mut self, key: u32, addr: u64, length: u32) {
        self.pieces.push(Piece::Memory { key, addr, length });
    }

    /// Ends the packet under construction.
    pub fn finish_segment(&mut self, owner: Option<SegmentOwner>) {
        let pieces = self.open_start..self.pieces.len();
        let length = self.pieces[pieces.clone()]
            .iter()
            .map(|piece| match piece {
                Piece::Bytes { length, .. } | Piece::Memory { length, .. } => *length,
            })
            .sum();
        self.open_start = pieces.end;
        self.segments.push(Segment {
            pieces,
            length,
            owner,
        });
    }

    /// The packets.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The pieces of a packet, in order.
    pub fn pieces(&self, segment: &Segment) -> &[Piece] {
        &self.pieces[segment.pieces.clone()]
    }

    /// The bytes of a [`Piece::Bytes`].
    pub fn bytes(&self, start: u32, length: u32) -> &[u8] {
        &self.bytes[start as usize..(start + length) as usize]
    }

    /// Length of all packets but the last, which may be shorter (UDP_SEGMENT).
    pub fn segment_bytes(&self) -> u32 {
        self.segments.first().map_or(0, |segment| segment.length)
    }

    /// UDP payload bytes of the whole train.
    pub fn total_bytes(&self) -> u32 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// No packet in it.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}
