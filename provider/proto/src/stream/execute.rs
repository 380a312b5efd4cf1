//! The responder's execution: in the order of MSNs, each message when everything of it arrived and all earlier ones are
//! executed (WIRE 6.8). Receive completions, answers and failures are made here and nowhere else.

use std::collections::VecDeque;

use super::messages::{Fault, Message, Refusal, State};
use super::recv::Responder;
use super::respond::Content;
use super::{Failure, HoldBudget, is_answered};
use crate::event::{Event, ReceiveDone, ReceiveKind};
use crate::host::{AtomicOperation, Host};
use crate::types::{Receive, Status};
use crate::wire::{DataFlags, Opcode};

impl Responder {
    /// Executes what is due. Bounded by the span of messages.
    pub(super) fn execute_ready(
        &mut self,
        host: &mut dyn Host,
        hold: &mut HoldBudget,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Failure> {
        while let Some(front) = self.messages.front_mut() {
            match front.state {
                State::Absent => break,
                State::Failed(fault) => return Err(self.raise(fault, events)),
                // A complete message that is refused is a WRITE_IMM, which lacks nothing but the receive.
                State::Refused(_) if !front.complete => break,
                State::Refused(_) | State::Receiving => {}
            }
            if !front.held.is_empty() && Self::settle(front, self.config.pd, host, hold).is_err() {
                front.state = State::Failed(Fault::AccessDenied);
                front.drop_held(hold);
                continue;
            }
            if !front.complete || !self.execute_front(host, events)? {
                break;
            }
            self.messages.advance();
            if let Some(since) = self.waits_since.take() {
                hold.waited(since);
            }
            if let Some(oldest) = self.messages.front() {
                self.packets_after_oldest -= oldest.packets;
            }
        }
        Ok(())
    }

    /// Places what was held of the message that is the oldest now: all but the final packet at once, that one when the
    /// rest is there (WIRE 7.3).
    fn settle(
        front: &mut Message,
        pd: crate::types::PdId,
        host: &mut dyn Host,
        hold: &mut HoldBudget,
    ) -> Result<(), crate::host::AccessDenied> {
        let length = u64::from(front.length);
        let is_final = |offset: u32, bytes: usize| u64::from(offset) + bytes as u64 == length;
        let mut index = 0;
        let mut last = None;
        let mut result = Ok(());
        while index < front.held.len() {
            let packet = &front.held[index];
            if is_final(packet.offset, packet.bytes.len()) {
                last = Some(index);
                index += 1;
                continue;
            }
            let address = front.remote_address.wrapping_add(u64::from(packet.offset));
            result = result.and(host.place(pd, front.rkey.0, address, &packet.bytes));
            // The final packet, if passed, lies before `index` and is not what `swap_remove` moves.
            hold.release(front.held.swap_remove(index));
        }
        if let Some(index) = last.filter(|_| front.complete) {
            let packet = front.held.swap_remove(index);
            let address = front.remote_address.wrapping_add(u64::from(packet.offset));
            result = result.and(host.place(pd, front.rkey.0, address, &packet.bytes));
            hold.release(packet);
        }
        result
    }

    /// Executes the oldest message, which is complete. False: it lacks a receive.
    fn execute_front(
        &mut self,
        host: &mut dyn Host,
        events: &mut VecDeque<Event>,
    ) -> Result<bool, Failure> {
        let Some(front) = self.messages.front() else {
            return Ok(false);
        };
        let opcode = front.opcode;
        if opcode.consumes_receive() {
            return self.execute_receive(host, events);
        }
        if is_answered(opcode) {
            let content = match self.execute_answered(host) {
                Ok(content) => content,
                Err(fault) => return Err(self.raise(fault, events)),
            };
            let attempt = self
                .messages
                .front()
                .map_or_else(Default::default, |front| front.attempt);
            self.unexecuted_answers -= 1;
            self.responses
                .push(self.messages.executed().next(), attempt, content);
        }
        Ok(true)
    }

    /// READ: its answer is queued, the bytes are read when they leave. Atomic: done now, once.
    fn execute_answered(&self, host: &mut dyn Host) -> Result<Content, Fault> {
        let Some(front) = self.messages.front() else {
            return Err(Fault::InvalidRequest);
        };
        let (rkey, addr) = (front.rkey.0, front.remote_address);
        let operation = match front.opcode {
            Opcode::CmpSwap => AtomicOperation::CompareSwap {
                compare: front.operands.first,
                swap: front.operands.second,
            },
            Opcode::FetchAdd => AtomicOperation::FetchAdd {
                add: front.operands.first,
            },
            _ => {
                return Ok(Content::Read {
                    rkey,
                    addr,
                    length: front.length,
                });
            }
        };
        let found = host
            .atomic(self.config.pd, rkey, addr, operation)
            .map_err(|_| Fault::AccessDenied)?;
        Ok(Content::Atomic(found.to_be_bytes()))
    }

    /// SEND and WRITE_IMM: consume a receive and complete it.
    fn execute_receive(
        &mut self,
        host: &mut dyn Host,
        events: &mut VecDeque<Event>,
    ) -> Result<bool, Failure> {
        let Some(front) = self.messages.front_mut() else {
            return Ok(false);
        };
        if self.receives.bind_through(front.ssn, host).is_err() {
            // Only a WRITE_IMM comes here without one. It keeps what it has: when a receive is posted before the next
            // attempt arrives, it is executed at once.
            let first = front.state == State::Receiving;
            front.state = State::Refused(Refusal::Rnr);
            if first {
                self.rnr_total += 1;
                self.refusal = Some((self.messages.executed().next(), Refusal::Rnr.code()));
            }
            return Ok(false);
        }
        let Some(receive) = self.receives.consume(front.ssn) else {
            // Two messages with one receive number.
            return Err(self.raise(Fault::InvalidRequest, events));
        };
        events.push_back(self.receive_done(&receive, Status::Success));
        Ok(true)
    }

    /// The completion of a receive by the oldest message.
    fn receive_done(&self, receive: &Receive, status: Status) -> Event {
        let (kind, byte_length, solicited) = match self.messages.front() {
            Some(front) => {
                let imm = front.immediate.to_be_bytes();
                let kind = match front.opcode {
                    Opcode::SendImm => ReceiveKind::SendImm(imm),
                    Opcode::SendInv => ReceiveKind::SendInv(front.immediate),
                    Opcode::WriteImm => ReceiveKind::WriteImm(imm),
                    _ => ReceiveKind::Send,
                };
                (
                    kind,
                    front.length,
                    front.flags.contains(DataFlags::SOLICITED),
                )
            }
            None => (ReceiveKind::Send, 0, false),
        };
        Event::ReceiveDone(ReceiveDone {
            qp: self.config.qp,
            cookie: receive.cookie,
            status,
            kind,
            byte_length: if status == Status::Success {
                byte_length
            } else {
                0
            },
            source_qpn: self.config.peer_qpn,
            solicited,
            vendor_error: 0,
        })
    }

    /// The oldest message failed: the queue pair does.
    fn raise(&mut self, fault: Fault, events: &mut VecDeque<Event>) -> Failure {
        let front = self
            .messages
            .front()
            .map(|front| (front.attempt, front.ssn));
        if let Some((attempt, ssn)) = front {
            self.fault = Some((fault.code(), attempt));
            if let Some(status) = fault.receive_status()
                && let Some(receive) = self.receives.consume(ssn)
            {
                events.push_back(self.receive_done(&receive, status));
            }
        }
        self.dead = true;
        Failure::of_peer(fault.failure())
    }

    /// Completes the receives that messages had bound (flushed) and takes no more requests (WIRE 6.20). Answers to what
    /// was executed before still go: to the peer those READs succeeded.
    pub fn fail(&mut self, hold: &mut HoldBudget, events: &mut VecDeque<Event>) {
        self.dead = true;
        self.waits_since = None;
        self.messages.drop_all(hold);
        self.unexecuted_answers = 0;
        self.packets_after_oldest = 0;
        while let Some(receive) = self.receives.pop() {
            events.push_back(self.receive_done(&receive, Status::Flushed));
        }
    }

    /// As [`Self::fail`], and forgets the answers: RESET, destroy.
    pub fn end(&mut self, hold: &mut HoldBudget, events: &mut VecDeque<Event>) {
        self.fail(hold, events);
        self.responses.clear();
    }
}
