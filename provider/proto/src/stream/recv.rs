//! The responder: the peer's requests, from the packet to the completion (WIRE section 6, in the order of its checks).
//!
//! A packet is placed when it arrives ([`Responder::handle_request`]: admit, examine, place); a message has its effects
//! on completion queues, and is answered, when it and all earlier ones are complete (`execute.rs`). What is wrong with a
//! message is remembered and raised when its turn comes. Whether the packet belongs to this life (token), and to a queue
//! pair in a state to receive, `conn` has checked before.

use std::collections::VecDeque;

use super::credits::{BindError, BoundReceives};
use super::describe::scatter;
use super::messages::{Fault, MessageTable, Refusal, State};
use super::respond::Responses;
use super::{BLOCK_REPEATS, Failure, HoldBudget, MESSAGE_SPAN, PACKET_SPAN, is_answered};
use crate::event::{Event, QpFailure};
use crate::host::Host;
use crate::types::{Access, PdId, QpId, RqId};
use crate::wire::{
    AtomicOperands, Attempt, DataHeader, Msn, NakCode, Opcode, Qpn, Ssn, StreamBlock, Token,
};

/// Longest message (IBA: 2 GiB); what a device reports as max_msg_sz.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 31;

/// What a responder is made with, when its queue pair goes to RTR.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// Queue pair.
    pub qp: QpId,
    /// Which life of the queue pair this is, counted by the caller (see [`super::SegmentRef::life`]).
    pub life: u16,
    /// Protection domain: keys must belong to it.
    pub pd: PdId,
    /// Where receives come from.
    pub receive_queue: RqId,
    /// The receive queue is shared: no credits are given.
    pub shared_receive_queue: bool,
    /// What the peer may do.
    pub access: Access,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Encoded RNR timer, told to the peer.
    pub min_rnr_timer: u8,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
}

/// What became of a packet that did no harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Its bytes are where they belong (or held for their turn).
    Placed,
    /// Its message is executed already: dropped, and the stream block is owed.
    AlreadyExecuted,
    /// Dropped: its message is refused or failed, or the packet is of an older attempt.
    Refused,
}

/// What a stream block says besides credit: when that changes, the peer must hear of it.
type Told = (Msn, NakCode, Attempt);

/// The peer's requests of one life of a queue pair, and our answers.
///
/// `handle_request` takes packets, `receives_posted`, `set_access`, `fail` and `end` come from above, `take_block`
/// and `next_segment` hand out what is to be told and sent.
#[derive(Debug)]
pub struct Responder {
    pub(super) config: ResponderConfig,
    pub(super) messages: MessageTable,
    pub(super) receives: BoundReceives,
    pub(super) responses: Responses,
    /// READs and atomics that arrived and are not executed.
    pub(super) unexecuted_answers: u32,
    /// Packets that arrived of messages after the oldest unexecuted one.
    pub(super) packets_after_oldest: u32,
    /// The queue pair failed: told with the attempt of the message that is to blame.
    pub(super) fault: Option<(NakCode, Attempt)>,
    pub(super) dead: bool,
    told: Told,
    told_credit: Ssn,
    /// The peer may be waiting for a receive, so posting one is news.
    starved: bool,
    /// ACKs into which the stream block should still go.
    repeats: u8,
    urgent: bool,
    pub(super) rnr_total: u64,
    /// Packets are held until the oldest message is executed: what the budget said when that began.
    pub(super) waits_since: Option<u64>,
    /// The last refusal, until somebody takes it: for the event log.
    pub(super) refusal: Option<(Msn, NakCode)>,
}

/// A message whose packet is not placed: what becomes of it.
enum Trouble {
    /// The message is refused or will fail.
    Message(State),
    /// The packet is of no use; its message stays as it is.
    Packet,
    /// The peer broke the protocol: the queue pair fails now.
    Protocol,
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Message(State::Failed(fault))
    }
}

impl Responder {
    /// A responder that has executed nothing.
    pub fn new(config: &ResponderConfig) -> Self {
        Self {
            config: *config,
            messages: MessageTable::default(),
            receives: BoundReceives::new(config.receive_queue, config.shared_receive_queue),
            responses: Responses::new(config.qp, config.life, config.peer_qpn),
            unexecuted_answers: 0,
            packets_after_oldest: 0,
            fault: None,
            dead: false,
            told: (Msn::ZERO, NakCode::None, Attempt::ZERO),
            told_credit: Ssn::ZERO,
            starved: true,
            repeats: 0,
            urgent: false,
            rnr_total: 0,
            waits_since: None,
            refusal: None,
        }
    }

    /// Nothing came for long: memory of what is done is given back.
    pub fn let_go(&mut self) {
        self.messages.let_go();
        self.receives.let_go();
        self.responses.let_go();
    }

    /// The peer told the token of its life: answers and blocks can be built.
    pub fn open(&mut self, peer_token: Token) {
        self.responses.open(peer_token);
    }

    /// What the peer may do from now on.
    pub fn set_access(&mut self, access: Access) {
        self.config.access = access;
    }

    /// Takes a request packet of the right life that the path layer had not received before.
    pub fn handle_request(
        &mut self,
        header: &DataHeader,
        payload: &[u8],
        host: &mut dyn Host,
        hold: &mut HoldBudget,
        events: &mut VecDeque<Event>,
    ) -> Result<Outcome, Failure> {
        if self.dead {
            self.owe_block();
            return Ok(Outcome::Refused);
        }
        let Some(ahead) = u32::try_from(self.messages.ahead(header.msn))
            .ok()
            .filter(|ahead| *ahead > 0)
        else {
            // WIRE 6.7: it must not overwrite memory that is in use for something else by now.
            self.owe_block();
            return Ok(Outcome::AlreadyExecuted);
        };
        let result = match self.admit(ahead, header, payload, host, hold) {
            Ok(()) => self
                .execute_ready(host, hold, events)
                .map(|()| Outcome::Placed),
            Err(Trouble::Message(state)) => {
                let message = self.messages.slot(ahead);
                message.state = state;
                message.complete = false;
                message.drop_held(hold);
                self.rnr_total += u64::from(state == State::Refused(Refusal::Rnr));
                if let State::Refused(refusal) = state {
                    self.refusal = Some((header.msn, refusal.code()));
                }
                self.execute_ready(host, hold, events)
                    .map(|()| Outcome::Refused)
            }
            Err(Trouble::Packet) => Ok(Outcome::Refused),
            Err(Trouble::Protocol) => Err(self.protocol_error(header.attempt)),
        };
        self.refresh_news();
        result
    }

    /// Brings a packet to its message and its bytes to their place.
    fn admit(
        &mut self,
        ahead: u32,
        header: &DataHeader,
        payload: &[u8],
        host: &mut dyn Host,
        hold: &mut HoldBudget,
    ) -> Result<(), Trouble> {
        if ahead > MESSAGE_SPAN
            || !header.opcode.is_request()
            || header.message_bytes > MESSAGE_BYTES_MAX
        {
            return Err(Trouble::Protocol);
        }
        let message = self.messages.slot(ahead);
        let begins = message.state == State::Absent || message.attempt.is_before(header.attempt);
        if begins {
            self.begin(ahead, header, hold);
            self.examine(ahead, header, host, hold)?;
        } else if header.attempt.is_before(message.attempt) || message.state != State::Receiving {
            // WIRE 6.9, 6.15 and 6.21.
            return Err(Trouble::Packet);
        } else if message.complete || !message.agrees_with(header) {
            return Err(Trouble::Protocol);
        }
        self.count_packet(ahead)?;
        self.place(ahead, header, payload, host, hold)
    }

    /// Begins an attempt of a message, in place of an older one if there was one.
    fn begin(&mut self, ahead: u32, header: &DataHeader, hold: &mut HoldBudget) {
        let message = self.messages.slot(ahead);
        if message.state != State::Absent {
            self.unexecuted_answers -= u32::from(is_answered(message.opcode));
            self.packets_after_oldest -= if ahead > 1 { message.packets } else { 0 };
            message.drop_held(hold);
        }
        message.begin(header);
        self.unexecuted_answers += u32::from(is_answered(header.opcode));
    }

    /// All checks of a message that its first packet allows.
    fn examine(
        &mut self,
        ahead: u32,
        header: &DataHeader,
        host: &mut dyn Host,
        hold: &HoldBudget,
    ) -> Result<(), Trouble> {
        let right = match header.opcode {
            Opcode::Write | Opcode::WriteImm => Access::REMOTE_WRITE,
            Opcode::ReadReq => Access::REMOTE_READ,
            Opcode::CmpSwap | Opcode::FetchAdd => Access::REMOTE_ATOMIC,
            _ => return self.examine_send(header, host),
        };
        // What the queue pair does not allow at all is an invalid request (IBA 9.7.4.1.2); what a key does not allow
        // is an access error.
        if !self.config.access.allows(right) {
            return Err(Fault::InvalidRequest.into());
        }
        let mut length = u64::from(header.message_bytes);
        if is_answered(header.opcode) {
            let outstanding = self.unexecuted_answers + self.responses.unsent();
            if outstanding > u32::from(self.config.max_dest_rd_atomic) {
                return Err(Fault::InvalidRequest.into());
            }
        }
        if header.opcode.is_atomic() {
            length = u64::from(Opcode::ATOMIC_RESULT_BYTES);
            if !header.remote_address.is_multiple_of(length) {
                return Err(Fault::InvalidRequest.into());
            }
        }
        // WIRE 6.13: of an empty message the key is not checked.
        if length > 0 {
            let wish = host
                .check_remote(
                    self.config.pd,
                    header.rkey.0,
                    header.remote_address,
                    length,
                    right,
                )
                .map_err(|_| Trouble::from(Fault::AccessDenied))?;
            self.messages.slot(ahead).strict = header.opcode.is_write() && hold.is_strict(wish);
        }
        if header.opcode.consumes_receive() {
            // WIRE 6.14. A WRITE_IMM needs it only when it is executed, so too few are no reason to refuse it now.
            match self.receives.bind_through(header.ssn, host) {
                Ok(()) | Err(BindError::Empty) => {}
                Err(BindError::OutOfRange) => return Err(Fault::InvalidRequest.into()),
            }
        }
        Ok(())
    }

    fn examine_send(&mut self, header: &DataHeader, host: &mut dyn Host) -> Result<(), Trouble> {
        if !matches!(
            header.opcode,
            Opcode::Send | Opcode::SendImm | Opcode::SendInv
        ) {
            return Err(Fault::InvalidRequest.into());
        }
        match self.receives.bind_through(header.ssn, host) {
            Ok(()) => {}
            Err(BindError::Empty) => return Err(Trouble::Message(State::Refused(Refusal::Rnr))),
            Err(BindError::OutOfRange) => return Err(Fault::InvalidRequest.into()),
        }
        let capacity = self
            .receives
            .get(header.ssn)
            .map_or(0, |receive| receive.capacity_bytes());
        if u64::from(header.message_bytes) > capacity {
            return Err(Fault::TooLong.into());
        }
        Ok(())
    }

    /// WIRE 6.28: later messages may have so many packets, the oldest any number.
    fn count_packet(&mut self, ahead: u32) -> Result<(), Trouble> {
        self.messages.slot(ahead).packets += 1;
        if ahead > 1 {
            self.packets_after_oldest += 1;
            if self.packets_after_oldest > PACKET_SPAN {
                return Err(Trouble::Protocol);
            }
        }
        Ok(())
    }

    /// Writes a packet to its final place, or holds it back for a strict region.
    fn place(
        &mut self,
        ahead: u32,
        header: &DataHeader,
        payload: &[u8],
        host: &mut dyn Host,
        hold: &mut HoldBudget,
    ) -> Result<(), Trouble> {
        let pd = self.config.pd;
        let message = self.messages.slot(ahead);
        if is_answered(header.opcode) {
            message.operands = AtomicOperands::parse(payload).unwrap_or_default();
            message.complete = true;
            return Ok(());
        }
        let bytes = payload.len() as u32;
        if bytes > message.length - message.received || header.offset > message.length - bytes {
            return Err(Trouble::Protocol);
        }
        message.received += bytes;
        message.complete = message.received == message.length;
        if bytes == 0 {
            // The single packet of an empty message; others have a payload (WIRE 2.18).
            return if message.complete {
                Ok(())
            } else {
                Err(Trouble::Protocol)
            };
        }
        if header.opcode.is_send() {
            let sges = self
                .receives
                .get(header.ssn)
                .map_or(&[][..], |receive| &receive.sges);
            return scatter(host, pd, sges, header.offset, payload)
                .map_err(|_| Fault::BadReceive.into());
        }
        // WIRE 7.3 and 7.4.
        let is_oldest = ahead == 1;
        if message.strict {
            hold.note_strict();
        }
        if message.strict && (!is_oldest || (header.is_last_segment() && !message.complete)) {
            if !is_oldest {
                self.waits_since.get_or_insert_with(|| hold.begin_wait());
            }
            let packet = hold.hold(header.offset, payload, is_oldest);
            let packet = packet.ok_or(Trouble::Message(State::Refused(Refusal::Hold)))?;
            self.messages.keep(ahead, packet);
            return Ok(());
        }
        host.place(pd, header.rkey.0, header.place_address(), payload)
            .map_err(|_| Fault::AccessDenied.into())
    }

    /// The peer broke the protocol: told at once, because there is no telling what it would do next.
    pub(super) fn protocol_error(&mut self, attempt: Attempt) -> Failure {
        self.fault = Some((NakCode::InvalidRequest, attempt));
        self.dead = true;
        Failure::of_peer(QpFailure::InvalidRequest)
    }

    /// Receives were posted to its queue: a refused message may go on, a peer that waits hears of it at once.
    pub fn receives_posted(
        &mut self,
        host: &mut dyn Host,
        hold: &mut HoldBudget,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Failure> {
        if self.dead {
            return Ok(());
        }
        let mut heard = false;
        if let Some(ssn) = self
            .refused_for_receive()
            .filter(|ssn| self.receives.get(*ssn).is_none())
        {
            // Bound now, also from a shared queue: so it is there when the message comes again.
            heard = self.receives.bind_through(ssn, host).is_ok();
        }
        let result = self.execute_ready(host, hold, events);
        if heard {
            self.owe_block();
            self.urgent = true;
        }
        if self.starved && self.told_credit.is_before(self.receives.credit(host)) {
            self.owe_block();
            self.urgent = true;
            self.starved = false;
        }
        self.refresh_news();
        result
    }

    /// Receive number of the oldest message, if it is refused for want of it.
    fn refused_for_receive(&self) -> Option<Ssn> {
        let front = self.messages.front()?;
        (front.state == State::Refused(Refusal::Rnr)).then_some(front.ssn)
    }

    /// Whether [`Self::receives_posted`] would do anything: the peer was refused, or told that there is no receive.
    pub fn wants_receive_notice(&self) -> bool {
        !self.dead && (self.starved || self.refused_for_receive().is_some())
    }

    /// A packet of the stream said that its sender waits for a receive.
    pub fn on_peer_waits(&mut self, host: &mut dyn Host) {
        if self.told_credit.is_before(self.receives.credit(host)) {
            self.owe_block();
            self.urgent = true;
        } else {
            self.starved = true;
            host.want_receive_notice(self.config.receive_queue);
        }
    }

    /// The stream block must go (again): a probe named the stream, for example.
    pub fn owe_block(&mut self) {
        self.repeats = self.repeats.max(1);
    }

    /// The stream block should be in the next ACK.
    pub fn has_news(&self) -> bool {
        self.repeats > 0
    }

    /// And that ACK should go at once.
    pub fn has_urgent_news(&self) -> bool {
        self.urgent
    }

    fn refresh_news(&mut self) {
        let now = self.state_to_tell();
        if now != self.told {
            // A refusal or failure stops the peer's work: it should know at once, and when it may go on.
            self.urgent |=
                now.1 != NakCode::None || (self.told.1 != NakCode::None && now.0 != self.told.0);
            self.repeats = BLOCK_REPEATS;
            self.told = now;
        }
    }

    fn state_to_tell(&self) -> Told {
        let (code, attempt) = self.fault.unwrap_or_else(|| match self.messages.front() {
            Some(front) => match front.state {
                State::Refused(refusal) => (refusal.code(), front.attempt),
                _ => (NakCode::None, Attempt::ZERO),
            },
            None => (NakCode::None, Attempt::ZERO),
        });
        (self.messages.executed(), code, attempt)
    }

    /// The block for an ACK; counts as one of its repetitions.
    pub fn take_block(&mut self, host: &mut dyn Host) -> StreamBlock {
        let block = self.block(host);
        self.repeats = self.repeats.saturating_sub(1);
        self.urgent = false;
        // A peer that waits goes on waiting until a block gives it more: what it is told now may be no news to it, while
        // the messages that use its credit up are still under way (WIRE 6.19).
        let still_waits = self.starved && !self.told_credit.is_before(block.credit);
        self.told_credit = block.credit;
        self.starved = !self.config.shared_receive_queue
            && (still_waits || block.credit == self.receives.next_unbound());
        block
    }

    /// The block as it is now (CLOSE).
    pub fn block(&self, host: &mut dyn Host) -> StreamBlock {
        let (msn_executed, code, attempt) = self.state_to_tell();
        StreamBlock {
            qpn: self.config.peer_qpn,
            code,
            token: self.responses.peer_token(),
            attempt,
            msn_executed,
            credit: self.credit(host),
            rnr_timer: self.config.min_rnr_timer,
        }
    }

    /// The first receive number for which there is no receive (OPEN); a shared queue gives none but what is bound.
    pub fn credit(&self, host: &mut dyn Host) -> Ssn {
        self.receives.credit(host)
    }

    /// Last message executed.
    pub fn executed(&self) -> Msn {
        self.messages.executed()
    }

    /// The queue pair takes no more requests.
    pub fn is_failed(&self) -> bool {
        self.dead
    }

    /// The last message that was refused since the last call.
    pub fn take_refusal(&mut self) -> Option<(Msn, NakCode)> {
        self.refusal.take()
    }

    /// RNR refusals so far, for the counters.
    pub fn rnr_count(&self) -> u64 {
        self.rnr_total
    }
}
