//! The messages of a peer that are not executed: what each is, how much of it arrived, and what is wrong with it. A ring
//! by MSN, whose front is the oldest unexecuted one; never longer than the span that we told the peer. `recv.rs` decides.

use std::collections::VecDeque;

use super::visible::{HeldPacket, HoldBudget};
use crate::event::QpFailure;
use crate::types::Status;
use crate::wire::{
    AtomicOperands, Attempt, DataFlags, DataHeader, Msn, NakCode, Opcode, Rkey, Ssn,
};

/// Why a message cannot be executed, ever: the queue pair fails by it when its turn comes (WIRE 6.21).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// Key, protection domain, bounds or rights.
    AccessDenied,
    /// What is asked for is not allowed.
    InvalidRequest,
    /// A SEND that is longer than its receive.
    TooLong,
    /// A receive whose memory cannot be written.
    BadReceive,
}

impl Fault {
    /// What the peer is told.
    pub(super) const fn code(self) -> NakCode {
        match self {
            Self::AccessDenied => NakCode::RemoteAccess,
            Self::InvalidRequest => NakCode::InvalidRequest,
            Self::TooLong => NakCode::Length,
            Self::BadReceive => NakCode::RemoteOperational,
        }
    }

    /// What our program is told.
    pub(super) const fn failure(self) -> QpFailure {
        match self {
            Self::AccessDenied => QpFailure::AccessViolation,
            Self::InvalidRequest | Self::TooLong => QpFailure::InvalidRequest,
            // The peer did nothing wrong.
            Self::BadReceive => QpFailure::Fatal,
        }
    }

    /// What the message's own receive completes with, where it is to blame.
    pub(super) const fn receive_status(self) -> Option<Status> {
        match self {
            Self::TooLong => Some(Status::LocalLength),
            Self::BadReceive => Some(Status::LocalProtection),
            Self::AccessDenied | Self::InvalidRequest => None,
        }
    }
}

/// Why an attempt was refused; the peer sends the message again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Too few receives.
    Rnr,
    /// Too little memory to hold it back.
    Hold,
}

impl Refusal {
    pub(super) const fn code(self) -> NakCode {
        match self {
            Self::Rnr => NakCode::Rnr,
            Self::Hold => NakCode::Hold,
        }
    }
}

/// How far a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum State {
    /// No packet of it arrived.
    #[default]
    Absent,
    /// A part arrived, or all.
    Receiving,
    /// The present attempt is refused: its packets are dropped.
    Refused(Refusal),
    /// Its packets are dropped.
    Failed(Fault),
}

/// An unexecuted message. All fields but the state mean nothing while it is absent.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) state: State,
    pub(super) opcode: Opcode,
    pub(super) flags: DataFlags,
    pub(super) attempt: Attempt,
    /// The remote region is a strict one.
    pub(super) strict: bool,
    /// Everything arrived.
    pub(super) complete: bool,
    pub(super) length: u32,
    /// Bytes that arrived in this attempt.
    pub(super) received: u32,
    /// Packets that arrived in this attempt.
    pub(super) packets: u32,
    pub(super) ssn: Ssn,
    pub(super) remote_address: u64,
    pub(super) rkey: Rkey,
    pub(super) immediate: u32,
    pub(super) operands: AtomicOperands,
    /// Packets that wait for their turn (strict regions).
    pub(super) held: Vec<HeldPacket>,
}

impl Message {
    /// Begins an attempt with its first packet; keeps the list of held packets, which must be empty.
    pub(super) fn begin(&mut self, header: &DataHeader) {
        debug_assert!(
            self.held.is_empty(),
            "held packets of an attempt that is over"
        );
        *self = Self {
            state: State::Receiving,
            opcode: header.opcode,
            flags: header.flags.without(DataFlags::PAYLOAD_CHECKSUMMED),
            attempt: header.attempt,
            length: header.message_bytes,
            ssn: header.ssn,
            remote_address: header.remote_address,
            rkey: header.rkey,
            immediate: header.immediate,
            held: std::mem::take(&mut self.held),
            ..Self::default()
        };
    }

    /// Whether a packet says the same of its message as the first one did (WIRE 2.16).
    pub(super) fn agrees_with(&self, header: &DataHeader) -> bool {
        self.opcode == header.opcode
            && self.length == header.message_bytes
            && self.ssn == header.ssn
            && self.remote_address == header.remote_address
            && self.rkey == header.rkey
            && self.immediate == header.immediate
    }

    /// Gives the memory of all held packets back.
    pub(super) fn drop_held(&mut self, hold: &mut HoldBudget) {
        self.held.drain(..).for_each(|packet| hold.release(packet));
    }
}

/// The ring of unexecuted messages.
#[derive(Debug, Default)]
pub(super) struct MessageTable {
    /// Last executed message; the front of the ring is the next.
    executed: Msn,
    ring: VecDeque<Message>,
    /// Lists of held packets, empty, kept for their memory.
    spare_list: Vec<HeldPacket>,
}

impl MessageTable {
    /// Last executed message.
    pub(super) fn executed(&self) -> Msn {
        self.executed
    }

    /// As if all messages up to `msn` had been executed.
    #[cfg(test)]
    pub(super) fn start_after(&mut self, msn: Msn) {
        self.executed = msn;
    }

    /// How far beyond the last executed message `msn` is; 0 or less: it is executed.
    pub(super) fn ahead(&self, msn: Msn) -> i32 {
        self.executed.distance(msn)
    }

    /// The message that is `ahead` (≥ 1) of the last executed one; the ring grows to hold it.
    pub(super) fn slot(&mut self, ahead: u32) -> &mut Message {
        let index = ahead as usize - 1;
        if index >= self.ring.len() {
            self.ring.resize_with(index + 1, Message::default);
        }
        &mut self.ring[index]
    }

    /// The oldest unexecuted message, if anything of it or of a later one arrived.
    pub(super) fn front(&self) -> Option<&Message> {
        self.ring.front()
    }

    /// See [`Self::front`].
    pub(super) fn front_mut(&mut self) -> Option<&mut Message> {
        self.ring.front_mut()
    }

    /// The oldest one is executed.
    pub(super) fn advance(&mut self) {
        if let Some(mut done) = self.ring.pop_front() {
            debug_assert!(
                done.held.is_empty(),
                "executed before its bytes were placed"
            );
            // The list of one message serves the next strict one.
            if self.spare_list.capacity() == 0 {
                self.spare_list = std::mem::take(&mut done.held);
            }
        }
        self.executed = self.executed.next();
    }

    /// Keeps a packet of the message that is `ahead`.
    pub(super) fn keep(&mut self, ahead: u32, packet: HeldPacket) {
        let spare = std::mem::take(&mut self.spare_list);
        let message = self.slot(ahead);
        let unused = if message.held.capacity() == 0 {
            std::mem::replace(&mut message.held, spare)
        } else {
            spare
        };
        message.held.push(packet);
        self.spare_list = unused;
    }

    /// Gives memory back that no message needs.
    pub(super) fn let_go(&mut self) {
        self.ring.shrink_to_fit();
        self.spare_list = Vec::new();
    }

    /// Forgets all messages that are not executed.
    pub(super) fn drop_all(&mut self, hold: &mut HoldBudget) {
        self.ring
            .iter_mut()
            .for_each(|message| message.drop_held(hold));
        self.ring.clear();
    }
}
