//! What happened: packets and their fates, and the event logs of the endpoints, in one sequence. The last lines are kept, to
//! be shown when a check fails; all can be printed as they come, as text or as JSON; and a hash over all packets, by which
//! two runs are compared.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;

use metaroce_proto::telemetry::json::Json;
use metaroce_proto::telemetry::log::{Record, route_by_number};
use metaroce_proto::types::Time;
use metaroce_proto::wire::dissect;

use crate::NodeId;

/// What to print while a run goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Show {
    /// Every packet, dissected.
    pub packets: bool,
    /// The event logs of the endpoints.
    pub events: bool,
    /// A JSON object a line instead of text.
    pub json: bool,
}

/// Lines kept for the report of a failure.
pub const KEPT: usize = 200;

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It left its node.
    Sent,
    /// It reached its node's socket.
    Arrived,
    /// Lost at random.
    Lost,
    /// Lost with a route, a direction or a plane that is dead.
    Dark,
    /// A queue was full.
    Overflow,
    /// Larger than the way carries.
    TooLarge,
    /// The UDP checksum was wrong.
    Checksum,
    /// Nobody is there.
    Nobody,
}

#[derive(Clone, Debug)]
enum Line {
    Packet(PacketLine),
    /// Boxed: it is large and, beside packets, rare.
    Event(Box<(NodeId, Record)>),
}

#[derive(Clone, Debug)]
struct PacketLine {
    at: Time,
    fate: Fate,
    from: NodeId,
    to: NodeId,
    route: (u8, u16),
    ce: bool,
    bytes: Vec<u8>,
    uncarried_bytes: u32,
}

/// See the file's head.
#[derive(Debug)]
pub struct Trace {
    lines: VecDeque<Line>,
    hash: u64,
    packets: u64,
    show: Show,
}

/// Everything about a packet that a trace takes down.
pub struct Seen<'a> {
    /// When.
    pub at: Time,
    /// What became of it.
    pub fate: Fate,
    /// Sender.
    pub from: NodeId,
    /// Receiver.
    pub to: NodeId,
    /// Plane and source port.
    pub route: (u8, u16),
    /// Congestion mark.
    pub ce: bool,
    /// The packet.
    pub bytes: &'a [u8],
    /// Bytes after these that are not carried.
    pub uncarried_bytes: u32,
}

impl Trace {
    /// An empty one; what `show` names is printed at once.
    pub fn new(show: Show) -> Self {
        Self {
            lines: VecDeque::new(),
            hash: 0xcbf2_9ce4_8422_2325,
            packets: 0,
            show,
        }
    }

    /// Takes a packet down.
    pub fn note(&mut self, seen: &Seen<'_>) {
        let bytes = seen.bytes;
        self.mix(seen.at.as_ns());
        self.mix(
            seen.fate as u64
                | (seen.from.0 as u64) << 8
                | (seen.to.0 as u64) << 24
                | (bytes.len() as u64 + u64::from(seen.uncarried_bytes)) << 40,
        );
        // Headers are at most so long; payload is checked where it lands.
        let (words, rest) = bytes[..bytes.len().min(64)].as_chunks();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut padded = [0; 8];
            padded[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(padded));
        }
        self.packets += u64::from(seen.fate == Fate::Sent);
        // Copied to where the oldest line was: a line that held the packet itself would keep its memory from being used again.
        let mut copied = self.make_room();
        copied.clear();
        copied.extend_from_slice(bytes);
        let line = Line::Packet(PacketLine {
            at: seen.at,
            fate: seen.fate,
            from: seen.from,
            to: seen.to,
            route: seen.route,
            ce: seen.ce,
            bytes: copied,
            uncarried_bytes: seen.uncarried_bytes,
        });
        self.keep(line, self.show.packets);
    }

    /// Takes down a record of a node's event log. It decides nothing, the hash included.
    pub fn note_event(&mut self, node: NodeId, record: Record) {
        self.keep(Line::Event(Box::new((node, record))), self.show.events);
    }

    fn keep(&mut self, line: Line, shown: bool) {
        if shown {
            let text = if self.show.json {
                line.json()
            } else {
                line.to_string()
            };
            // That nobody reads it any more (`| head`) is no reason to end.
            let _ = writeln!(std::io::stdout(), "{text}");
        }
        self.make_room();
        self.lines.push_back(line);
    }

    /// There is room for another line. The bytes of the one that had to go, to be used again.
    fn make_room(&mut self) -> Vec<u8> {
        if self.lines.len() < KEPT {
            return Vec::new();
        }
        match self.lines.pop_front() {
            Some(Line::Packet(oldest)) => oldest.bytes,
            _ => Vec::new(),
        }
    }

    /// Lets a number decide about the hash.
    pub fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(23);
    }

    /// Hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Packets that were sent.
    pub fn packets(&self) -> u64 {
        self.packets
    }
}

impl PacketLine {
    /// The packet, with zeros for what was not carried.
    fn whole(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len() + self.uncarried_bytes as usize, 0);
        bytes
    }
}

impl Line {
    fn json(&self) -> String {
        let mut out = String::new();
        let mut json = Json::object(&mut out);
        match self {
            Self::Packet(packet) => {
                json.number("at_ns", packet.at.as_ns())
                    .text("packet", format!("{:?}", packet.fate).to_lowercase())
                    .text("from", packet.from)
                    .text("to", packet.to)
                    .number("plane", u64::from(packet.route.0))
                    .number("port", u64::from(packet.route.1))
                    .truth("ce", packet.ce)
                    .text("content", dissect(&packet.whole()));
            }
            Self::Event(event) => {
                let (node, record) = &**event;
                json.number("at_ns", record.at.as_ns()).text("node", node);
                record.write(&mut json, &route_by_number);
            }
        }
        drop(json);
        out
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet(packet) => packet.fmt(f),
            Self::Event(event) => {
                let (node, record) = &**event;
                write!(f, "{:?} {node}: {record}", record.at)
            }
        }
    }
}

impl fmt::Display for PacketLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            fate,
            from,
            to,
            route: (plane, port),
            ..
        } = self;
        let mark = if self.ce { " CE" } else { "" };
        write!(
            f,
            "{at:?} {fate:?} {from}->{to} plane {plane} port {port}{mark}: {}",
            dissect(&self.whole())
        )
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
