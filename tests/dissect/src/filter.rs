//! Which packets are wanted: by connection, path, kind and queue pair. What is not asked for is not looked at.

use metaroce_proto::wire::Packet;
use metaroce_proto::wire::fields::{Kind, Value, What};

use crate::packet::Seen;

/// The questions. A packet passes if each of them, where it is asked, has the packet among its answers.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Connection ids: in the base header, or told in a HELLO or RESET.
    pub connections: Vec<u32>,
    /// Paths: of the packet itself, or of a block of an ACK.
    pub paths: Vec<u8>,
    /// Words for kinds: types, opcodes, kinds of items, flags, `bad`.
    pub kinds: Vec<String>,
    /// Queue pairs, in any field that holds one.
    pub qpns: Vec<u32>,
}

impl Filter {
    /// Whether a packet is wanted.
    #[must_use]
    pub fn passes(&self, seen: &Seen<'_>) -> bool {
        (self.connections.is_empty() || self.has_connection(seen))
            && (self.paths.is_empty() || self.has_path(seen))
            && (self.kinds.is_empty() || self.has_kind(seen))
            && (self.qpns.is_empty() || self.has_qpn(seen))
    }

    fn has_connection(&self, seen: &Seen<'_>) -> bool {
        const NAMES: [(&str, &str); 4] = [
            ("", "connection"),
            ("hello", "my_id"),
            ("hello", "echo"),
            ("reset", "unknown_id"),
        ];
        numbers(seen)
            .filter(|(layout, field, _, _)| NAMES.contains(&(layout, field)))
            .any(|(_, _, _, value)| self.connections.iter().any(|id| u64::from(*id) == value))
    }

    fn has_path(&self, seen: &Seen<'_>) -> bool {
        // The path in the base header of an ACK is only the route that it came by (WIRE 2.11).
        let layout = match seen.good() {
            Some(Packet::Ack(_)) => "path_block",
            Some(Packet::Control(_)) => return false,
            _ => "",
        };
        numbers(seen)
            .filter(|(found, field, _, _)| *found == layout && *field == "path")
            .any(|(_, _, _, value)| self.paths.iter().any(|path| u64::from(*path) == value))
    }

    fn has_kind(&self, seen: &Seen<'_>) -> bool {
        let words = seen.words();
        self.kinds
            .iter()
            .any(|kind| words.iter().any(|word| same_word(word, kind)))
    }

    fn has_qpn(&self, seen: &Seen<'_>) -> bool {
        numbers(seen)
            .filter(|(_, _, kind, _)| matches!(kind, Kind::Qpn))
            .any(|(_, _, _, value)| self.qpns.iter().any(|qpn| u64::from(*qpn) == value))
    }
}

/// Layout, name, kind and value of all numbers in a packet.
fn numbers<'a>(
    seen: &'a Seen<'_>,
) -> impl Iterator<Item = (&'static str, &'static str, Kind, u64)> + 'a {
    seen.found.iter().filter_map(|found| match found.what {
        What::Field(field, Value::Number(value)) => {
            Some((found.layout.name, field.name, field.kind, value))
        }
        _ => None,
    })
}

/// `read-resp` is READ_RESP.
fn same_word(word: &str, asked: &str) -> bool {
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    plain(word) == plain(asked)
}
