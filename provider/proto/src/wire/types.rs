//! The newtypes of the wire: sequence numbers, identifiers, stamps.
//!
//! Everything that travels in a header has a type of its own here, so that a path's
//! sequence number cannot be used as a message number. Serial numbers wrap (WIRE 1.20)
//! and therefore have no `Ord`: ask `is_before`, `is_after` or `distance`. Used by
//! every module of the crate; no parsing happens here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Defines a wrapping serial number with comparison modulo its width.
macro_rules! serial_number {
    ($(#[$meta:meta])* $name:ident, $unsigned:ty, $signed:ty) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $unsigned);

        impl $name {
            /// The number 0, from which counting starts.
            pub const ZERO: Self = Self(0);

            /// The number after this one.
            #[must_use]
            #[inline]
            pub const fn next(self) -> Self {
                Self(self.0.wrapping_add(1))
            }

            /// The number `steps` after this one.
            #[must_use]
            #[inline]
            pub const fn advance(self, steps: $unsigned) -> Self {
                Self(self.0.wrapping_add(steps))
            }

            /// The number `steps` before this one.
            #[must_use]
            #[inline]
            pub const fn retreat(self, steps: $unsigned) -> Self {
                Self(self.0.wrapping_sub(steps))
            }

            /// Steps from `self` to `other`: positive when `other` is later, negative
            /// when it is earlier. Right as long as they are less than half the space apart.
            #[must_use]
            #[inline]
            pub const fn distance(self, other: Self) -> $signed {
                other.0.wrapping_sub(self.0) as $signed
            }

            /// Steps from `earlier` up to `self`, without a sign: for a caller who knows
            /// that `earlier` is not later than `self`.
            #[must_use]
            #[inline]
            pub const fn since(self, earlier: Self) -> $unsigned {
                self.0.wrapping_sub(earlier.0)
            }

            /// Whether `self` is strictly earlier than `other`.
            #[must_use]
            #[inline]
            pub const fn is_before(self, other: Self) -> bool {
                self.distance(other) > 0
            }

            /// Whether `self` is strictly later than `other`.
            #[must_use]
            #[inline]
            pub const fn is_after(self, other: Self) -> bool {
                other.is_before(self)
            }

            /// Whether `self` is `other` or earlier.
            #[must_use]
            #[inline]
            pub const fn is_at_or_before(self, other: Self) -> bool {
                self.distance(other) >= 0
            }

            /// The later of the two.
            #[must_use]
            #[inline]
            pub const fn later(self, other: Self) -> Self {
                if self.is_before(other) { other } else { self }
            }

            /// The earlier of the two.
            #[must_use]
            #[inline]
            pub const fn earlier(self, other: Self) -> Self {
                if self.is_before(other) { self } else { other }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

serial_number!(
    /// Packet sequence number of one path (WIRE 4.1).
    Psn, u32, i32
);
serial_number!(
    /// Message sequence number of one stream: counts from 1, 0 is "none executed" (WIRE 6.1).
    Msn, u32, i32
);
serial_number!(
    /// Receive number of one stream: which posted receive a SEND takes, from 0 (WIRE 6.2).
    Ssn, u32, i32
);
serial_number!(
    /// Number of an ACK within its connection; only the newest one's grant counts (WIRE 5.2).
    AckNumber, u32, i32
);
serial_number!(
    /// Which route of a path a packet was sent on: counts the path's moves, modulo 256 (WIRE 1.7).
    Epoch, u8, i8
);
serial_number!(
    /// How often a message was begun afresh after a refusal, modulo 256 (WIRE 6.9).
    Attempt, u8, i8
);
serial_number!(
    /// A time stamp in units of 64 ns, modulo 2^32 (275 s); on one path stamps strictly
    /// increase and so name a transmission (WIRE 2.9).
    Stamp, u32, i32
);

impl Stamp {
    /// Length of one unit of a stamp.
    pub const UNIT_NS: u64 = 64;

    /// The stamp of a point in time given in nanoseconds.
    #[must_use]
    #[inline]
    pub const fn from_ns(now_ns: u64) -> Self {
        // The upper bits are dropped on purpose: stamps wrap.
        Self((now_ns / Self::UNIT_NS) as u32)
    }

    /// Nanoseconds from `earlier` to `self`, for a caller who knows the order.
    #[must_use]
    #[inline]
    pub const fn ns_since(self, earlier: Self) -> u64 {
        self.since(earlier) as u64 * Self::UNIT_NS
    }
}

/// How long the receiver held an acknowledgement back, in units of 64 ns (WIRE 5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AckDelay(pub u16);

impl AckDelay {
    /// "Take no round-trip sample from this block."
    pub const NO_SAMPLE: Self = Self(u16::MAX);

    /// The delay in wire units; one too long for the field (4.19 ms) becomes "no sample".
    #[must_use]
    #[inline]
    pub const fn from_ns(delay_ns: u64) -> Self {
        let units = delay_ns / Stamp::UNIT_NS;
        if units >= u16::MAX as u64 {
            Self::NO_SAMPLE
        } else {
            Self(units as u16)
        }
    }

    /// The delay in nanoseconds, or nothing where no sample may be taken.
    #[must_use]
    #[inline]
    pub const fn as_ns(self) -> Option<u64> {
        if self.0 == u16::MAX {
            None
        } else {
            Some(self.0 as u64 * Stamp::UNIT_NS)
        }
    }
}

impl Default for AckDelay {
    fn default() -> Self {
        Self::NO_SAMPLE
    }
}

impl fmt::Display for AckDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_ns() {
            Some(delay_ns) => write!(f, "{delay_ns}ns"),
            None => f.write_str("no-sample"),
        }
    }
}

/// Defines a 24-bit identifier whose upper byte is always 0.
macro_rules! identifier_24 {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// 0: unknown, or none.
            pub const ZERO: Self = Self(0);
            /// The largest value that 24 bits hold.
            pub const MAX: Self = Self(0x00ff_ffff);

            /// Takes a value of at most 24 bits.
            #[must_use]
            #[inline]
            pub const fn new(value: u32) -> Option<Self> {
                if value <= Self::MAX.0 { Some(Self(value)) } else { None }
            }

            /// Takes the low 24 bits of any value.
            #[must_use]
            #[inline]
            pub const fn truncate(value: u32) -> Self {
                Self(value & Self::MAX.0)
            }

            /// The value.
            #[must_use]
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// Whether this is 0.
            #[must_use]
            #[inline]
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

identifier_24!(
    /// Queue pair number, 24 bits: endpoint index (10) and local number (14) (WIRE 1.13).
    Qpn
);
identifier_24!(
    /// Names one life of a stream, from RTR to RESET; random, never 0 while alive (WIRE 3.10).
    Token
);

impl Qpn {
    /// How many low bits of a QPN are the number local to its endpoint.
    pub const LOCAL_BITS: u32 = 14;

    /// The index of the endpoint's UDP port in the configured range (upper 10 bits).
    #[must_use]
    #[inline]
    pub const fn endpoint_index(self) -> u16 {
        (self.0 >> Self::LOCAL_BITS) as u16
    }

    /// The number within the endpoint (lower 14 bits).
    #[must_use]
    #[inline]
    pub const fn local_number(self) -> u16 {
        (self.0 & ((1 << Self::LOCAL_BITS) - 1)) as u16
    }

    /// Whether a QP may bear this number: 0, 1 and 0xFFFFFF are reserved by IBA (WIRE 3.12).
    #[must_use]
    #[inline]
    pub const fn is_usable(self) -> bool {
        self.0 > 1 && self.0 != Self::MAX.0
    }
}

/// Defines a plain identifier shown in hexadecimal.
macro_rules! identifier {
    ($(#[$meta:meta])* $name:ident, $inner:ty, $format:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

identifier!(
    /// Names a connection at its receiver; random, chosen by the receiving side, 0 = unknown (WIRE 2.7).
    ConnectionId, u32, "{:#010x}"
);
identifier!(
    /// Names one run of an engine; a restarted process has another one (WIRE 3.5).
    Incarnation, u64, "{:#018x}"
);
identifier!(
    /// Number of a path within its connection.
    PathId, u8, "{}"
);
identifier!(
    /// Remote key of a memory region.
    Rkey, u32, "{:#010x}"
);
identifier!(
    /// Plane of a multi-plane fabric, as the sender of a HELLO numbers its own addresses.
    PlaneId, u8, "{}"
);

impl ConnectionId {
    /// "Not known yet": in the base header of a first HELLO, and as an echo.
    pub const UNKNOWN: Self = Self(0);

    /// Whether the id is known.
    #[must_use]
    #[inline]
    pub const fn is_known(self) -> bool {
        self.0 != 0
    }
}

/// A RoCE v2 GID: an IPv6 address, or an IPv4 address mapped into one (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IPv4 address.
    #[must_use]
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// The GID of an IPv6 address.
    #[must_use]
    pub const fn from_ipv6(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }

    /// The GID of an address of either family.
    #[must_use]
    pub const fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::from_ipv4(v4),
            IpAddr::V6(v6) => Self::from_ipv6(v6),
        }
    }

    /// The IPv4 address, where the GID maps one.
    #[must_use]
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// The address to send to: IPv4 where one is mapped, else IPv6.
    #[must_use]
    pub fn to_ip(self) -> IpAddr {
        match self.to_ipv4() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from(self.0)),
        }
    }

    /// Whether this is the all-zero GID, which names nobody.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Self::from_ip(address)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, 1, 1)]
    #[case(1, 0, -1)]
    #[case(u32::MAX, 0, 1)]
    #[case(0, u32::MAX, -1)]
    #[case(0xffff_fff0, 0x10, 0x20)]
    #[case(0, 0x7fff_ffff, i32::MAX)]
    fn serial_numbers_compare_across_the_wrap(
        #[case] from: u32,
        #[case] to: u32,
        #[case] steps: i32,
    ) {
        let (a, b) = (Psn(from), Psn(to));
        assert_eq!(a.distance(b), steps);
        assert_eq!(a.is_before(b), steps > 0);
        assert_eq!(a.is_after(b), steps < 0);
        assert_eq!(a.later(b), if steps > 0 { b } else { a });
        assert_eq!(a.earlier(b), if steps > 0 { a } else { b });
    }

    #[test]
    fn a_number_is_neither_before_nor_after_itself() {
        assert!(!Msn(7).is_before(Msn(7)));
        assert!(!Msn(7).is_after(Msn(7)));
        assert!(Msn(7).is_at_or_before(Msn(7)));
    }

    #[test]
    fn epochs_and_attempts_compare_modulo_256() {
        assert!(Epoch(255).is_before(Epoch(0)));
        assert!(Attempt(250).is_before(Attempt(3)));
        assert_eq!(Epoch(255).next(), Epoch(0));
    }

    #[test]
    fn stamps_measure_time_across_the_wrap() {
        let before = Stamp(u32::MAX);
        let after = before.advance(3);
        assert_eq!(after.ns_since(before), 192);
        assert_eq!(Stamp::from_ns(64 * (1 << 32) + 640), Stamp(10));
    }

    #[rstest]
    #[case(0, Some(0))]
    #[case(63, Some(0))]
    #[case(6_400, Some(6_400))]
    #[case(0xfffe * 64, Some(0xfffe * 64))]
    #[case(0xffff * 64, None)]
    #[case(u64::MAX, None)]
    fn ack_delay_saturates_to_no_sample(#[case] delay_ns: u64, #[case] expected: Option<u64>) {
        assert_eq!(AckDelay::from_ns(delay_ns).as_ns(), expected);
    }

    #[test]
    fn identifiers_of_24_bits_refuse_more() {
        assert_eq!(Qpn::new(0x0100_0000), None);
        assert_eq!(Qpn::new(0x00ff_ffff), Some(Qpn::MAX));
        assert_eq!(Token::truncate(0xab12_3456).get(), 0x12_3456);
        assert_eq!(Qpn::truncate(0x00c0_4005).endpoint_index(), 0x301);
        assert_eq!(Qpn::truncate(0x00c0_4005).local_number(), 5);
        assert!(!Qpn::truncate(1).is_usable());
        assert!(Qpn::truncate(2).is_usable());
    }

    #[test]
    fn gids_map_ipv4() {
        let gid = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 7));
        assert_eq!(gid.to_string(), "::ffff:10.0.0.7");
        assert_eq!(gid.to_ipv4(), Some(Ipv4Addr::new(10, 0, 0, 7)));
        let six = Gid::from_ipv6(Ipv6Addr::LOCALHOST);
        assert_eq!(six.to_ipv4(), None);
        assert_eq!(six.to_ip(), IpAddr::V6(Ipv6Addr::LOCALHOST));
    }
}
