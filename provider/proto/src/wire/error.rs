//! Why bytes were not a packet. Every cause has a variant of its own, because drops are
//! counted by cause (WIRE 9.2); `ParseError::index` is the place in such a table of counters.

use std::fmt;

/// Defines the causes, their names and their count in one list.
macro_rules! parse_errors {
    ($($(#[$meta:meta])* $name:ident = $label:literal,)+) => {
        /// Why a datagram was dropped before anybody looked at its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ParseError {
            $($(#[$meta])* $name,)+
        }

        impl ParseError {
            /// All causes, in the order of [`ParseError::index`].
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Short name of the cause, for counters.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }
        }
    };
}

parse_errors! {
    /// Shorter than the headers of its type.
    TooShort = "too-short",
    /// The version nibble is not ours.
    UnknownVersion = "unknown-version",
    /// The type nibble is neither DATA, ACK nor CONTROL.
    UnknownType = "unknown-type",
    /// A payload or a block list claims more bytes than the datagram has, or an ACK has bytes left over.
    BadLength = "bad-length",
    /// The CRC32C does not match.
    BadChecksum = "bad-checksum",
    /// DATA with an opcode that does not exist.
    UnknownOpcode = "unknown-opcode",
    /// Offset, payload length and message length contradict each other or the opcode.
    BadSegment = "bad-segment",
    /// A FILL with a status that does not exist.
    UnknownFillStatus = "unknown-fill-status",
    /// A path block with more than 8 words.
    TooManyWords = "too-many-words",
    /// A path block whose bitvector says that the lowest missing packet was received.
    BitvectorContradiction = "bitvector-contradiction",
    /// A stream block with a code that does not exist.
    UnknownCode = "unknown-code",
    /// A CONTROL packet without an item.
    NoItem = "no-item",
    /// An item shorter than its kind needs, longer than the packet, or not of whole words.
    BadItemLength = "bad-item-length",
    /// An item with a field whose value is not defined (reason, checksum mode, address count).
    BadItemField = "bad-item-field",
    /// A HELLO that is not the first item of its packet.
    MisplacedItem = "misplaced-item",
}

impl ParseError {
    /// Number of causes.
    pub const COUNT: usize = Self::ALL.len();

    /// Place of the cause in a table of [`ParseError::COUNT`] counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for ParseError {}
