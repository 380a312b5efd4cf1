//! The wire format as data: where each field of each header lies, what it means and what follows it.
//!
//! The codec beside this module is what the transport runs; this table is what tools read: the dissector of
//! `cargo xtask dissect` walks it ([`walk()`]), and the Wireshark dissector is generated from it. The tests hold it
//! equal to the codec (every field of random packets), to itself (no bit without a field) and to the tables of WIRE.md.
//! Read first: [`Layout`], then `table.rs`.

mod seal;
mod table;
mod walk;

pub use seal::{
    Covers, PacketSeal, SEALS, SEGMENT_LOOKS_MAX, SHORTEST_PACKET_BYTES, SealPlace, Sealed,
    seal_of, segment_bytes,
};
pub use table::{
    ACK, BASE, CLOSE, CONTROL, DATA, HELLO, HELLO_ADDRESS, ITEM, LAYOUTS, OPEN, PATH_BLOCK, RESET,
    SHUT, STREAM_BLOCK, TRAILER, VECTOR_WORD,
};
pub use walk::{Found, Problem, Value, What, walk};

/// First part of every field's full name, as filters have it: `metaroce.psn`.
pub const ROOT: &str = "metaroce";

/// A run of bytes with fixed fields, and what may follow it.
#[derive(Debug)]
pub struct Layout {
    /// Part of the full names of its fields; empty for the base header.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// Sentence of WIRE.md with its table.
    pub sentence: &'static str,
    /// Bytes of its fields.
    pub bytes: usize,
    /// Its fields. At any time those whose conditions hold cover every bit once.
    pub fields: &'static [Field],
    /// What follows, in this order.
    pub then: &'static [Then],
}

/// Some bits with one meaning.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Last part of its full name.
    pub name: &'static str,
    /// Its name for people.
    pub label: &'static str,
    /// First bit, counted from the front of the layout, the most significant bit of a byte first.
    pub bit: usize,
    /// Bits.
    pub bits: usize,
    /// What the bits say.
    pub kind: Kind,
    /// It is there if all of these hold.
    pub when: &'static [Condition],
    /// Its place in one line about the packet.
    pub brief: Brief,
}

/// How a field is shown in one line about its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brief {
    /// Not at all.
    No,
    /// As `name=value`; of flags the names of those that are set.
    Named,
    /// Only the name of its value: what kind of thing the packet is.
    Headline,
}

/// What the bits of a field say.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A number, and its unit if it has one.
    Number(&'static str),
    /// An identifier, shown in hexadecimal.
    Hex,
    /// A queue pair number.
    Qpn,
    /// Independent bits: mask and name; the other bits are reserved.
    Flags(&'static [(u8, &'static str)]),
    /// One of these values; another one makes the packet malformed.
    Choice(&'static [(u64, &'static str)]),
    /// One of these values, or one of a later version that is skipped.
    Open(&'static [(u64, &'static str)]),
    /// A time stamp in units of 64 ns (WIRE 2.9).
    Stamp,
    /// A time in units of 64 ns; all ones = no sample (WIRE 2.28).
    AckDelay,
    /// A rate in KiB/s; all ones = no limit (WIRE 2.25).
    Grant,
    /// A GID: an IPv6 address, or an IPv4 address mapped into one.
    Gid,
    /// A CRC32C.
    Checksum,
    /// Sent as 0, ignored when received (WIRE 2.3).
    Reserved,
}

/// A condition on bits of the packet, which hold what kind of packet it is. False where the packet has not
/// so many bits.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// First bit, counted from the front of the *packet*.
    pub bit: usize,
    /// Bits.
    pub bits: usize,
    /// The bits have one of these values …
    pub values: &'static [u64],
    /// … or none of them, if this is false.
    pub holds: bool,
}

/// What follows a layout's fixed bytes. Fields are named by their short names, and are fields of that layout.
#[derive(Debug)]
pub enum Then {
    /// The layout that a field chooses; without one, raw bytes to the end.
    Choose {
        /// The field.
        by: &'static str,
        /// Its values.
        cases: &'static [(u64, &'static Layout)],
    },
    /// As many of a layout as a field says.
    Repeat {
        /// The field.
        count: &'static str,
        /// What it may say at most.
        most: u64,
        /// The layout.
        layout: &'static Layout,
    },
    /// As many bytes as a field says, in a layout that another one chooses; what is not in the layout is raw.
    Body {
        /// Field with the number of bytes.
        length: &'static str,
        /// Field that chooses.
        by: &'static str,
        /// Its values.
        cases: &'static [(u64, &'static Layout)],
        /// Name of the raw bytes.
        raw: Raw,
    },
    /// A layout again and again, at least once, until so many bytes are left.
    Items {
        /// The layout.
        layout: &'static Layout,
        /// Bytes that follow the last one.
        tail_bytes: usize,
    },
    /// One layout.
    One(&'static Layout),
    /// All bytes that are left, if any.
    Rest(Raw),
}

/// Bytes without a layout.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    /// Last part of the full name.
    pub name: &'static str,
    /// Name for people.
    pub label: &'static str,
}

impl Layout {
    /// The full name of something in it, for filters.
    #[must_use]
    pub fn full_name(&self, name: &str) -> String {
        if self.name.is_empty() {
            format!("{ROOT}.{name}")
        } else {
            format!("{ROOT}.{}.{name}", self.name)
        }
    }

    /// The names of its raw bytes.
    pub fn raws(&self) -> impl Iterator<Item = &Raw> {
        self.then.iter().filter_map(|then| match then {
            Then::Body { raw, .. } | Then::Rest(raw) => Some(raw),
            _ => None,
        })
    }
}

impl Condition {
    /// Whether it holds for a packet.
    #[must_use]
    pub fn is_met(&self, packet: &[u8]) -> bool {
        walk::bits(packet, self.bit, self.bits)
            .is_some_and(|value| self.values.contains(&value) == self.holds)
    }
}

impl Field {
    /// Whether it is there in a packet.
    #[must_use]
    pub fn is_in(&self, packet: &[u8]) -> bool {
        self.when.iter().all(|condition| condition.is_met(packet))
    }

    /// Its bits in a packet, `start` being the front of its layout; nothing if the packet ends before.
    ///
    /// # Panics
    /// If it is a [`Kind::Gid`], which has too many bits for a number.
    #[must_use]
    pub fn number(&self, packet: &[u8], start: usize) -> Option<u64> {
        walk::bits(packet, 8 * start + self.bit, self.bits)
    }
}

/// A flag's name as part of a field's full name.
#[must_use]
pub fn flag_name(name: &str) -> String {
    name.replace('-', "_")
}
