//! The path layer: was this packet received?
//!
//! A path is a sequence space (PSN) with a window, a round-trip estimate and a state of loss; it keeps all of them
//! when it moves to another route. [`PathTx`] is everything that the sender of packets knows of one path, [`PathRx`]
//! everything that their receiver knows. Both are driven by `conn/` alone and know neither streams nor routes: the
//! sender's record of a packet is a type parameter, a move is a new epoch number. `entropy` helps `conn/` to choose
//! routes. Read `tx` first. WIRE.md "Path layer" is the normative text.

mod bare;
mod bits;
pub mod entropy;
mod loss;
mod pmtu;
mod probe;
mod rtt;
mod rx;
mod sent;
mod tx;

#[cfg(test)]
mod link_tests;
#[cfg(test)]
mod tests;

pub use rtt::RoundTrip;
pub use rx::{Arrival, ParkedRx, PathRx, Verdict};
pub use tx::{ParkedTx, PathTx};

use crate::cc::Algorithm;
use crate::types::{Driving, Time};
use crate::wire::{Epoch, Psn, Stamp, VECTOR_BITS};

/// Packets that a path may have outstanding: the width of the acknowledgement's bitvector.
pub const SPAN_PACKETS: u32 = VECTOR_BITS;

/// Epochs that a path may be beyond the newest one acknowledged. Epochs compare modulo 256, so half of that is the
/// most that could ever be told apart; a half of the half leaves room for packets that are still in the network.
pub const EPOCHS_AHEAD_MAX: u8 = 64;

/// A path that was silent for so long starts a new epoch before it sends, and no packet is in the network for so long:
/// stamps compare modulo 2^32 units (275 s), which is more than twice this.
pub const IDLE_EPOCH_NS: u64 = 60_000_000_000;

/// What all paths of an endpoint have in common: timing, and the algorithm of their windows. Every path has a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Constants {
    algorithm: &'static Algorithm,
    driving: Driving,
}

impl Constants {
    /// The constants for how promptly both ends are driven, and the algorithm of the windows.
    #[must_use]
    pub const fn new(driving: Driving, algorithm: &'static Algorithm) -> Self {
        Self { algorithm, driving }
    }

    /// Congestion control.
    #[must_use]
    pub const fn algorithm(self) -> &'static Algorithm {
        self.algorithm
    }
}

/// Timing of a path.
impl Driving {
    /// Least spacing of probes.
    const fn probe_floor_ns(self) -> u64 {
        match self {
            Self::Busy => 50_000,
            Self::Sockets => 500_000,
        }
    }

    /// Growth of the round trip that says nothing about queues: the noise of threads that are scheduled.
    const fn rtt_noise_ns(self) -> u64 {
        match self {
            Self::Busy => 0,
            Self::Sockets => 100_000,
        }
    }
}

/// Largest spacing of probes: how often a dead route is asked.
pub(crate) const PROBE_CEILING_NS: u64 = 20_000_000;
/// Spacing of probes before there is any round-trip estimate.
const PROBE_UNKNOWN_NS: u64 = 1_000_000;
/// Least retransmission timeout, the last resort.
const RTO_FLOOR_NS: u64 = 5_000_000;
/// Largest retransmission timeout.
const RTO_CEILING_NS: u64 = 1_000_000_000;

/// What goes into the base header of a transmission: the stamp names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Of the packet; of a packet without a PSN of its own, the next one.
    pub psn: Psn,
    /// Names the transmission.
    pub stamp: Stamp,
    /// Of the route that the path is on.
    pub epoch: Epoch,
}

/// Packets without a PSN of their own: never retransmitted, known by their stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bare {
    /// Ends the train that empties the backlog, so that the tail shows its gaps after one round trip.
    Marker,
    /// Asks whether the route works.
    Probe,
    /// Asks for a grant.
    Announce,
    /// A UC or UD packet: it needs a stamp and nothing of it is remembered.
    Unreliable,
}

/// What [`PathTx::handle_timeout`] asks for. Whatever it is, lost packets may wait in [`PathTx::next_lost`] after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathAction {
    /// Nothing was due.
    None,
    /// Time alone proved so many packets lost: retransmit them.
    Lost(u32),
    /// Send a probe on the route that the path is on.
    Probe,
    /// The route does not answer: choose another, call [`PathTx::move_to`], send a probe there. The path rests.
    MoveAndProbe,
    /// Last resort: the oldest outstanding packet was declared lost.
    Rto,
}

/// What an acknowledgement's block told about a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockOutcome {
    /// The block contradicts what was sent; nothing of it was used.
    pub invalid: bool,
    /// It told something new: a packet received, a later stamp.
    pub news: bool,
    /// It says that something sent on the present route arrived, later than what was known before.
    pub route_works: bool,
    /// Packets newly acknowledged.
    pub acked_packets: u32,
    /// Their bytes.
    pub acked_bytes: u64,
    /// UDP payload of the largest of them.
    pub largest_acked_bytes: u32,
    /// Packets newly declared lost.
    pub lost: u32,
    /// The route carries small packets and seems to swallow those of so many bytes (UDP payload) and more.
    pub hole_bytes: Option<u32>,
    /// When the echoed transmission left, if it is news that something sent on the present route arrived.
    pub answered_sent_at: Option<Time>,
    /// Round trip of the echoed transmission, without the peer's delay.
    pub rtt_ns: Option<u64>,
    /// Packets that arrived with a congestion mark since the last block.
    pub ce: u16,
    /// Packets that arrived since the last block, of any kind.
    pub received: u16,
    /// Packets that arrived in vain since the last block: they had been received before.
    pub spurious: u16,
    /// A probe is answered that was not before.
    pub probe_answered: bool,
    /// The path rested and does not any more.
    pub woke: bool,
}
