//! Streams: the ordered messages of one queue pair in one direction (WIRE section 6). "Was this message executed?"
//!
//! A queue pair has a [`Requester`] (its own work requests, and the answers to them) and a [`Responder`] (the peer's
//! requests, and our answers to those). Neither knows paths: what is to be sent leaves as a [`SegmentRef`], a small
//! record that the path layer keeps with the packet and gives back for a retransmission; [`Requester::describe`] and
//! [`Responder::describe`] turn it into header and payload, or say that its content is gone (then a FILL goes).
//! The path layer hands every packet to a stream at most once, which is what makes byte counts exact.
//! `conn` calls everything here; begin reading with `send.rs` and `recv.rs`.

mod credits;
mod describe;
mod execute;
mod executed;
mod messages;
mod need;
mod recv;
mod respond;
mod responses;
mod send;
mod visible;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use credits::rnr_timer_ns;
pub use describe::Described;
pub use recv::{MESSAGE_BYTES_MAX, Outcome, Responder, ResponderConfig};
pub use send::{PeerStream, Requester, RequesterConfig};
pub use visible::{HoldBudget, HoldCounts};

use crate::event::{Event, QpFailure};
use crate::types::{QpId, Status};
use crate::wire::{Attempt, Msn, Opcode};

/// Messages of a stream beyond the last executed one that a peer may have begun; told in HELLO. As many as one queue
/// pair needs to keep a fast link busy with single packets (100 Gb/s of 4 KiB for 600 µs); each costs the receiver
/// about 150 bytes.
pub const MESSAGE_SPAN: u32 = 2048;

/// Packets of such messages, the oldest message excepted; told in HELLO. What 64 paths of 256 packets have outstanding
/// at most, so that it binds only a peer that breaks the rules.
pub const PACKET_SPAN: u32 = 16_384;

/// ACKs in which a changed stream block is repeated, so that the loss of one or two does not cost a probe.
pub const BLOCK_REPEATS: u8 = 3;

/// Which half of a stream a packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    /// Part of a message of our own: [`Requester`].
    Request,
    /// Part of an answer to a READ or atomic of the peer: [`Responder`].
    Response,
}

/// What a DATA packet carries: enough to build it again as long as its content exists. The path layer keeps it beside
/// the PSN until the packet is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentRef {
    /// Queue pair that sends it.
    pub qp: QpId,
    /// Message; of a response the requester's.
    pub msn: Msn,
    /// Where in the message it begins.
    pub offset: u32,
    /// Payload bytes.
    pub length: u16,
    /// Life of the stream, counted locally: after a RESET the MSNs begin anew.
    pub life: u16,
    /// How often the message was begun afresh; of a response, how often the response was.
    pub attempt: Attempt,
    /// Which half of the stream it belongs to.
    pub role: Role,
}

impl SegmentRef {
    /// No queue pair has so high a slot: local numbers have 14 bits.
    const NOBODY: QpId = QpId::new(u16::MAX, u16::MAX);

    /// A packet that carries no part of any message: a FILL, padded as if it carried `length` bytes.
    pub const fn nothing(length: u16) -> Self {
        Self {
            qp: Self::NOBODY,
            msn: Msn(0),
            offset: 0,
            length,
            life: 0,
            attempt: Attempt(0),
            role: Role::Request,
        }
    }

    /// Of [`Self::nothing`]: the bytes that its padding stands for, 0 once it goes without.
    pub fn padding_for(&self) -> Option<u16> {
        (self.qp == Self::NOBODY).then_some(self.length)
    }
}

/// Why a queue pair must go to the error state now: the caller ends both halves by [`fail`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What the oldest incomplete send work request completes with; all later ones are flushed.
    pub status: Status,
    /// The asynchronous event.
    pub failure: QpFailure,
}

impl Failure {
    /// A work request of our own failed with `status`.
    pub const fn of_request(status: Status) -> Self {
        Self {
            status,
            failure: QpFailure::Fatal,
        }
    }

    /// The peer did what it must not.
    pub const fn of_peer(failure: QpFailure) -> Self {
        Self {
            status: Status::Flushed,
            failure,
        }
    }
}

/// Takes a queue pair to the error state by itself: completes its send work requests (the oldest with the failure's
/// status, the others flushed), then the receives that messages had bound, then tells the program.
pub fn fail(
    qp: QpId,
    requester: &mut Requester,
    responder: &mut Responder,
    failure: Failure,
    hold: &mut HoldBudget,
    events: &mut VecDeque<Event>,
) {
    requester.fail(failure.status, events);
    responder.fail(hold, events);
    events.push_back(Event::QpFailed {
        qp,
        failure: failure.failure,
    });
}

/// Whether the message that `opcode` asks for has an answer.
const fn is_answered(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::ReadReq) || opcode.is_atomic()
}
