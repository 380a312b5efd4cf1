//! What happened to packets: the last ones, to be shown when a check fails, and a hash over all of them, by which two
//! runs are compared.

use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use metaroce_proto::types::Time;
use metaroce_proto::wire::dissect;

use crate::NodeId;

/// Packets kept for the report of a failure.
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
    /// The UDP checksum was wrong.
    Checksum,
    /// Nobody is there.
    Nobody,
}

#[derive(Clone, Debug)]
struct Line {
    at: Time,
    fate: Fate,
    from: NodeId,
    to: NodeId,
    route: (u8, u16),
    ce: bool,
    bytes: Rc<[u8]>,
}

/// See the file's head.
#[derive(Debug)]
pub struct Trace {
    lines: VecDeque<Line>,
    hash: u64,
    packets: u64,
    live: bool,
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
    pub bytes: &'a Rc<[u8]>,
}

impl Trace {
    /// An empty one; a `live` one prints every packet at once.
    pub fn new(live: bool) -> Self {
        Self {
            lines: VecDeque::new(),
            hash: 0xcbf2_9ce4_8422_2325,
            packets: 0,
            live,
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
                | (bytes.len() as u64) << 40,
        );
        // Headers are at most so long; payload is checked where it lands.
        for word in bytes[..bytes.len().min(64)].chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.mix(u64::from_le_bytes(padded));
        }
        self.packets += u64::from(seen.fate == Fate::Sent);
        let line = Line {
            at: seen.at,
            fate: seen.fate,
            from: seen.from,
            to: seen.to,
            route: seen.route,
            ce: seen.ce,
            bytes: seen.bytes.clone(),
        };
        if self.live {
            println!("{line}");
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
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

impl fmt::Display for Line {
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
            dissect(&self.bytes)
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
