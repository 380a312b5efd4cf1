//! The sets of flags of the headers. Bits that are not defined are dropped on the way in, so that
//! a flag of a later version never reaches code that cannot know it (WIRE 2.3).

use std::fmt;

/// Defines a set of flag bits kept in one byte.
macro_rules! flag_set {
    ($(#[$meta:meta])* $name:ident { $($(#[$flag_meta:meta])* $flag:ident = $bit:literal, $label:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(u8);

        impl $name {
            /// No flag set.
            pub const NONE: Self = Self(0);
            $($(#[$flag_meta])* pub const $flag: Self = Self($bit);)+
            const DEFINED: u8 = 0 $(| $bit)+;
            /// The flags with their names, lowest bit first.
            pub const NAMED: &'static [(u8, &'static str)] = &[$(($bit, $label),)+];

            /// The flags of a byte from the wire; undefined bits are dropped (WIRE 2.3).
            #[must_use]
            #[inline]
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits & Self::DEFINED)
            }

            /// The byte for the wire.
            #[must_use]
            #[inline]
            pub const fn bits(self) -> u8 {
                self.0
            }

            /// Whether all flags of `other` are set.
            #[must_use]
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any flag of `other` is set.
            #[must_use]
            #[inline]
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// These flags and those of `other`.
            #[must_use]
            #[inline]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// These flags without those of `other`.
            #[must_use]
            #[inline]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// These flags with those of `other` set or cleared.
            #[must_use]
            #[inline]
            pub const fn set(self, other: Self, on: bool) -> Self {
                if on { self.with(other) } else { self.without(other) }
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut separator = "";
                $(if self.contains(Self::$flag) {
                    write!(f, "{separator}{}", $label)?;
                    separator = "+";
                })+
                if separator.is_empty() { f.write_str("-") } else { Ok(()) }
            }
        }
    };
}

flag_set!(
    /// Flags of the base header (WIRE 2.8).
    BaseFlags {
        /// Acknowledge this packet at once.
        ACK_REQUESTED = 0x01, "ack-requested";
        /// This packet was sent before under the same PSN.
        RETRANSMISSION = 0x02, "retransmission";
        /// The sender has nothing more to send for the first time.
        BACKLOG_EMPTY = 0x04, "backlog-empty";
        /// Last segment of the train that emptied the backlog on this path.
        MARKER = 0x08, "marker";
        /// Asks whether the route works; the answer proves what is missing.
        PROBE = 0x10, "probe";
        /// A sender wants to start: asks for a grant.
        ANNOUNCE = 0x20, "announce";
        /// A SEND of this stream waits for a posted receive.
        WAITING_FOR_CREDIT = 0x40, "waiting-for-credit";
    }
);
flag_set!(
    /// Flags of the DATA header (WIRE 2.13).
    DataFlags {
        /// The completion of this message is a solicited event.
        SOLICITED = 0x01, "solicited";
        /// The CRC covers the payload too.
        PAYLOAD_CHECKSUMMED = 0x02, "payload-checksummed";
    }
);
flag_set!(
    /// Flags of a path block of an ACK (WIRE 5.6).
    PathFlags {
        /// The newest packet of this path arrived with a congestion mark.
        CE_STATE = 0x01, "ce";
    }
);
flag_set!(
    /// Flags of an OPEN (WIRE 2.36).
    OpenFlags {
        /// Receives come from a shared receive queue: no credits are given.
        SRQ = 0x01, "srq";
        /// The sender has not yet seen its own token echoed and wants an OPEN back.
        ANSWER_WANTED = 0x02, "answer-wanted";
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undefined_flag_bits_are_dropped() {
        assert_eq!(BaseFlags::from_bits(0xff).bits(), 0x7f);
        let flags = BaseFlags::PROBE | BaseFlags::MARKER;
        assert!(flags.contains(BaseFlags::PROBE));
        assert_eq!(flags.without(BaseFlags::PROBE), BaseFlags::MARKER);
        assert_eq!(flags.to_string(), "marker+probe");
        assert_eq!(DataFlags::NONE.to_string(), "-");
    }
}
