//! From a UDP datagram to the metaroce packets in it, and what is wrong with those that are none.

use std::net::SocketAddr;

use metaroce_proto::wire::fields::{Found, Kind, Value, What, segment_bytes, walk};
use metaroce_proto::wire::{ControlItem, Packet, ParseError};

use crate::datagram::Datagram;

/// A packet of a capture, good or bad.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// Number of its frame in the file.
    pub frame: u64,
    /// Which packet of that frame, from 1.
    pub part: usize,
    /// Packets in the frame.
    pub parts: usize,
    /// When the frame was captured, since 1970.
    pub time_ns: u64,
    /// From.
    pub source: SocketAddr,
    /// To.
    pub destination: SocketAddr,
    /// ECN codepoint.
    pub ecn: u8,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// How many of them were captured; the others are shown as zeros.
    pub captured: usize,
    /// What the transport would make of it.
    pub verdict: Verdict<'a>,
    /// Its fields, as far as it has any.
    pub found: Vec<Found<'a>>,
}

/// What the transport would make of a packet.
#[derive(Clone, Debug)]
pub enum Verdict<'a> {
    /// It would be taken.
    Good(Packet<'a>),
    /// The capture cut off so much of it that nobody can tell.
    Cut,
    /// It would be dropped.
    Bad(ParseError),
}

/// The packets of a datagram: several where the kernel sent or merged a train.
pub fn packets(frame: u64, time_ns: u64, datagram: &Datagram) -> impl Iterator<Item = Seen<'_>> {
    let payload = &datagram.payload[..];
    let segment = segment_bytes(payload).max(1);
    let parts = payload.len().div_ceil(segment).max(1);
    (0..parts).map(move |part| {
        let start = part * segment;
        let bytes = &payload[start..payload.len().min(start + segment)];
        let captured = datagram.captured.saturating_sub(start).min(bytes.len());
        let verdict = match Packet::parse(bytes) {
            Ok(packet) => Verdict::Good(packet),
            Err(_) if captured < bytes.len() => Verdict::Cut,
            Err(error) => Verdict::Bad(error),
        };
        Seen {
            frame,
            part: part + 1,
            parts,
            time_ns,
            source: datagram.source,
            destination: datagram.destination,
            ecn: datagram.ecn,
            bytes,
            captured,
            verdict,
            // Zeros that were not captured are no fields.
            found: walk(&bytes[..captured]),
        }
    })
}

impl Seen<'_> {
    /// The packet, if the transport would take it.
    #[must_use]
    pub fn good(&self) -> Option<&Packet<'_>> {
        match &self.verdict {
            Verdict::Good(packet) => Some(packet),
            Verdict::Cut | Verdict::Bad(_) => None,
        }
    }

    /// Whether the capture has only a part of it, or of the train that it begins.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.captured < self.bytes.len()
    }

    /// What it is: the opcode, `ACK`, or the kinds of its items.
    #[must_use]
    pub fn kinds(&self) -> Vec<&'static str> {
        match self.good() {
            None => Vec::new(),
            Some(Packet::Data { header, .. }) => vec![header.opcode.name()],
            Some(Packet::Ack(_)) => vec!["ACK"],
            Some(Packet::Control(control)) => {
                control.items().map(|item| item_name(&item)).collect()
            }
        }
    }

    /// All words that name its kind, for a filter.
    #[must_use]
    pub fn words(&self) -> Vec<&'static str> {
        let mut words = self.kinds();
        words.push(match &self.verdict {
            Verdict::Good(Packet::Data { .. }) => "DATA",
            Verdict::Good(Packet::Ack(_)) => "ACK",
            Verdict::Good(Packet::Control(_)) => "CONTROL",
            Verdict::Cut => "CUT",
            Verdict::Bad(_) => "BAD",
        });
        if let Some(Value::Number(flags)) = self.value("flags") {
            let named = self.found.iter().find_map(|found| match found.what {
                What::Field(field, _) if found.layout.name.is_empty() => match field.kind {
                    Kind::Flags(named) => Some(named),
                    _ => None,
                },
                _ => None,
            });
            words.extend(
                named
                    .unwrap_or_default()
                    .iter()
                    .filter(|(mask, _)| flags & u64::from(*mask) != 0)
                    .map(|(_, name)| *name),
            );
        }
        words
    }

    /// A field of the base header.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Value> {
        self.found.iter().find_map(|found| match found.what {
            What::Field(field, value) if found.layout.name.is_empty() && field.name == name => {
                Some(value)
            }
            _ => None,
        })
    }
}

fn item_name(item: &ControlItem<'_>) -> &'static str {
    match item {
        ControlItem::Hello(_) => "HELLO",
        ControlItem::Open(_) => "OPEN",
        ControlItem::Shut(_) => "SHUT",
        ControlItem::ShutAnswer(_) => "SHUT-ANSWER",
        ControlItem::Reset(_) => "RESET",
        ControlItem::Close(_) => "CLOSE",
        ControlItem::CloseAnswer(_) => "CLOSE-ANSWER",
    }
}
