//! Reads a packet by the table, as far as it goes: a packet that is cut or malformed shows all fields up to the place
//! where it is wrong, and what is wrong there. No checksum is looked at; that is `seal.rs`.

use std::fmt;

use super::{BASE, Field, Kind, Layout, Raw, Then};

/// Something in a packet.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// How deep it is nested: 0 for what is directly in the packet.
    pub depth: usize,
    /// Its first byte.
    pub at: usize,
    /// Its bytes; of a layout those of its fields, of a field the bytes that its bits touch.
    pub bytes: usize,
    /// The layout that it is, or is in.
    pub layout: &'static Layout,
    /// What it is.
    pub what: What<'a>,
}

/// What was found.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// The layout begins.
    Begin,
    /// A field.
    Field(&'static Field, Value),
    /// Bytes that have no fields.
    Raw(&'static Raw, &'a [u8]),
    /// The packet is wrong here.
    Problem(Problem),
}

/// What a field says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of all kinds but one.
    Number(u64),
    /// Of [`Kind::Gid`].
    Gid([u8; 16]),
}

/// How a packet is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It ends too early.
    Short {
        /// Bytes that should follow.
        wanted: usize,
        /// Bytes that do.
        left: usize,
    },
    /// A count is above its bound.
    TooMany {
        /// The count.
        count: u64,
        /// The bound.
        most: u64,
    },
    /// A field has a value that is not defined.
    UndefinedValue {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// There is no item.
    NoItem,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { wanted, left } => {
                write!(f, "{wanted} bytes should follow, {left} do")
            }
            Self::TooMany { count, most } => write!(f, "{count} of them, {most} are allowed"),
            Self::UndefinedValue { field, value } => {
                write!(f, "{field} has the undefined value {value}")
            }
            Self::NoItem => f.write_str("no item"),
        }
    }
}

/// Reads up to 64 bits of a packet; nothing if it ends before.
pub(super) fn bits(packet: &[u8], bit: usize, bits: usize) -> Option<u64> {
    debug_assert!(bits <= 64, "a number of {bits} bits");
    let end = bit + bits;
    let bytes = packet.get(bit / 8..end.div_ceil(8))?;
    // 64 bits that do not begin at a byte touch nine bytes, so the sum is wider than the value.
    let sum = bytes
        .iter()
        .fold(0_u128, |sum, byte| (sum << 8) | u128::from(*byte));
    let value = (sum >> (bytes.len() * 8 - (bit % 8) - bits)) & ((1_u128 << bits) - 1);
    u64::try_from(value).ok()
}

/// Everything in a packet, in the order of the wire. Problems stand where they are seen; what follows a problem may
/// be missing.
#[must_use]
pub fn walk(packet: &[u8]) -> Vec<Found<'_>> {
    let mut walker = Walker {
        packet,
        found: Vec::new(),
    };
    walker.layout(&BASE, 0, packet.len(), 0);
    walker.found
}

struct Walker<'a> {
    packet: &'a [u8],
    found: Vec<Found<'a>>,
}

impl<'a> Walker<'a> {
    fn push(
        &mut self,
        depth: usize,
        at: usize,
        bytes: usize,
        layout: &'static Layout,
        what: What<'a>,
    ) {
        self.found.push(Found {
            depth,
            at,
            bytes,
            layout,
            what,
        });
    }

    /// Reads a layout and what follows it, from byte `at`, not beyond `end`. Returns where it ended; nothing if
    /// the place where it ends cannot be told.
    fn layout(
        &mut self,
        layout: &'static Layout,
        at: usize,
        end: usize,
        depth: usize,
    ) -> Option<usize> {
        let left = end - at;
        if layout.bytes > 0 {
            self.push(depth, at, layout.bytes.min(left), layout, What::Begin);
        }
        for field in layout.fields {
            if (field.bit + field.bits).div_ceil(8) <= left && field.is_in(self.packet) {
                self.field(layout, field, at, depth + 1);
            }
        }
        if left < layout.bytes {
            let wanted = layout.bytes;
            let problem = Problem::Short { wanted, left };
            self.push(depth + 1, at, left, layout, What::Problem(problem));
            return None;
        }
        let mut next = at + layout.bytes;
        for then in layout.then {
            next = self.then(layout, then, at, next, end, depth)?;
        }
        Some(next)
    }

    fn field(
        &mut self,
        layout: &'static Layout,
        field: &'static Field,
        start: usize,
        depth: usize,
    ) {
        let at = start + field.bit / 8;
        let bytes = (field.bit % 8 + field.bits).div_ceil(8);
        let value = match field.kind {
            Kind::Gid => self.packet[at..]
                .first_chunk()
                .map(|bytes| Value::Gid(*bytes)),
            _ => field.number(self.packet, start).map(Value::Number),
        };
        let Some(value) = value else { return };
        self.push(depth, at, bytes, layout, What::Field(field, value));
        if let (Kind::Choice(values), Value::Number(value)) = (field.kind, value)
            && values.iter().all(|(defined, _)| *defined != value)
        {
            let field = field.label;
            let problem = Problem::UndefinedValue { field, value };
            self.push(depth, at, bytes, layout, What::Problem(problem));
        }
    }

    /// Reads one thing that follows a layout which began at `start`.
    fn then(
        &mut self,
        layout: &'static Layout,
        then: &'static Then,
        start: usize,
        at: usize,
        end: usize,
        depth: usize,
    ) -> Option<usize> {
        let left = end - at;
        match then {
            Then::Choose { by, cases } => {
                let chosen = chosen(cases, self.number(layout, by, start)?)?;
                self.layout(chosen, at, end, depth)
            }
            Then::Repeat {
                count,
                most,
                layout: part,
            } => {
                let (count, most) = (self.number(layout, count, start)?, *most);
                if count > most {
                    let problem = Problem::TooMany { count, most };
                    self.push(depth + 1, at, 0, part, What::Problem(problem));
                    return None;
                }
                (0..count).try_fold(at, |at, _| self.layout(part, at, end, depth + 1))
            }
            Then::Body {
                length,
                by,
                cases,
                raw,
            } => {
                let wanted = usize::try_from(self.number(layout, length, start)?).ok()?;
                let body_end = at + wanted.min(left);
                let known = self
                    .number(layout, by, start)
                    .and_then(|value| chosen(cases, value))
                    // A body that is missing as a whole has no fields to show.
                    .filter(|_| wanted > 0);
                let read = match known {
                    Some(known) => self.layout(known, at, body_end, depth + 1),
                    None => Some(at),
                };
                if let Some(read) = read {
                    self.raw(layout, raw, read, body_end, depth);
                }
                if wanted > left {
                    let problem = Problem::Short { wanted, left };
                    self.push(depth + 1, at, left, layout, What::Problem(problem));
                    return None;
                }
                Some(body_end)
            }
            Then::Items { layout, tail_bytes } => self.items(layout, at, end, *tail_bytes, depth),
            Then::One(part) => self.layout(part, at, end, depth),
            Then::Rest(raw) => {
                self.raw(layout, raw, at, end, depth);
                Some(end)
            }
        }
    }

    fn items(
        &mut self,
        layout: &'static Layout,
        mut at: usize,
        end: usize,
        tail_bytes: usize,
        depth: usize,
    ) -> Option<usize> {
        let Some(items_end) = end.checked_sub(tail_bytes).filter(|last| *last >= at) else {
            let (wanted, left) = (tail_bytes, end - at);
            let problem = Problem::Short { wanted, left };
            self.push(depth, at, left, layout, What::Problem(problem));
            return None;
        };
        if at == items_end {
            self.push(depth, at, 0, layout, What::Problem(Problem::NoItem));
        }
        // Each turn takes at least the header of an item.
        while at < items_end {
            at = self.layout(layout, at, items_end, depth)?;
        }
        Some(at)
    }

    fn raw(
        &mut self,
        layout: &'static Layout,
        raw: &'static Raw,
        at: usize,
        end: usize,
        depth: usize,
    ) {
        if at < end {
            let bytes = &self.packet[at..end];
            self.push(depth + 1, at, bytes.len(), layout, What::Raw(raw, bytes));
        }
    }

    fn number(&self, layout: &Layout, name: &str, start: usize) -> Option<u64> {
        let field = layout.fields.iter().find(|field| field.name == name)?;
        field.number(self.packet, start)
    }
}

fn chosen(cases: &[(u64, &'static Layout)], value: u64) -> Option<&'static Layout> {
    cases
        .iter()
        .find(|(case, _)| *case == value)
        .map(|(_, layout)| *layout)
}
