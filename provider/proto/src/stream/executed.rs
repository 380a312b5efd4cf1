//! The requester's other half: what the peer said it executed or refused, and the completion of work requests, in the
//! order of submission and each exactly once.

use std::collections::VecDeque;

use super::send::{Answer, RNR_FOR_EVER, Requester, RnrWait};
use super::{Failure, rnr_timer_ns};
use crate::event::Event;
use crate::types::{Status, Time};
use crate::wire::{Msn, NakCode, StreamBlock};

impl Requester {
    /// Takes what the peer executed and, if there is one, its refusal of the message after that.
    pub fn handle_stream_block(
        &mut self,
        now: Time,
        block: &StreamBlock,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Failure> {
        if self.dead || !self.is_open() {
            return Ok(());
        }
        self.advance_executed(block.msn_executed);
        if self.credit.is_before(block.credit) {
            self.credit = block.credit;
        }
        // WIRE 6.22: a code about a lower message is stale.
        let refusal = if block.msn_executed == self.executed {
            self.handle_refusal(now, block)
        } else {
            Ok(())
        };
        self.end_rnr_wait(now);
        self.complete_ready(events)?;
        refusal
    }

    /// Merges a claim that all messages up to `msn` are executed. One about a message that never began is a lie or
    /// damage, and is ignored.
    pub(super) fn advance_executed(&mut self, msn: Msn) {
        if !self.executed.is_before(msn)
            || !self
                .index(msn)
                .is_some_and(|index| self.entries[index].begun)
        {
            return;
        }
        while self.executed.is_before(msn) {
            self.executed = self.executed.next();
            let (executed, oldest) = (self.index(self.executed), self.index(self.executed.next()));
            if let Some(entry) = executed.map(|index| &mut self.entries[index]) {
                // Executed in an earlier attempt than the present one: the rest of that need not leave.
                let unsent = entry.wire_bytes() - entry.sent;
                entry.sent += unsent;
                entry.sent_all = true;
                self.backlog_bytes = self.backlog_bytes.saturating_sub(u64::from(unsent));
                self.receives_wanted -= u32::from(entry.opcode().consumes_receive());
            }
            self.cursor = self.cursor.max(executed.map_or(0, |index| index + 1));
            if let Some(index) = oldest {
                self.packets_after_oldest -= self.entries[index].packets;
            }
        }
        self.rnr_retries = 0;
        self.again.retain(|again| msn.is_before(*again));
        self.rnr_wait = self.rnr_wait.filter(|wait| msn.is_before(wait.msn));
    }

    /// A refusal concerns the oldest unexecuted message and one of its attempts; of an older attempt it is stale.
    fn handle_refusal(&mut self, now: Time, block: &StreamBlock) -> Result<(), Failure> {
        let msn = self.executed.next();
        if block.code.is_fatal() {
            // The peer's queue pair has failed for good, so this cannot be stale. Answers of earlier messages may
            // still be on their way, and complete before.
            let Some(index) = self.index(msn) else {
                return Err(Failure::of_request(status_of(block.code)));
            };
            if self.entries[index].failed.is_none() {
                self.refusal = Some((msn, block.code));
            }
            self.entries[index]
                .failed
                .get_or_insert(status_of(block.code));
            self.stop_before(msn);
            return Ok(());
        }
        let Some(index) = self.index(msn) else {
            return Ok(());
        };
        let entry = &self.entries[index];
        if block.code == NakCode::None || entry.attempt != block.attempt || !entry.begun {
            return Ok(());
        }
        if block.code == NakCode::Rnr && !entry.opcode().consumes_receive() {
            return Ok(());
        }
        self.refusal = Some((msn, block.code));
        if block.code == NakCode::Rnr {
            self.rnr_total += 1;
            if self.rnr_retry != RNR_FOR_EVER && self.rnr_retries >= self.rnr_retry {
                self.entries[index]
                    .failed
                    .get_or_insert(Status::RnrRetryExceeded);
                self.stop_before(msn);
                return Ok(());
            }
            self.rnr_retries = self.rnr_retries.saturating_add(1);
            self.rnr_wait = Some(RnrWait {
                msn,
                until: now + rnr_timer_ns(block.rnr_timer),
            });
        }
        // HOLD: all earlier messages are executed, or it would not be told; so it goes again at once, and first.
        self.restart(msn);
        Ok(())
    }

    /// A receive for the refused message was told: it goes again at once.
    fn end_rnr_wait(&mut self, now: Time) {
        let Some(wait) = self.rnr_wait.filter(|wait| now < wait.until) else {
            return;
        };
        if self
            .index(wait.msn)
            .is_some_and(|index| self.entries[index].ssn.is_before(self.credit))
        {
            self.rnr_wait = Some(RnrWait { until: now, ..wait });
        }
    }

    /// Completes what is due, oldest first; a failed message fails the queue pair when it is the oldest.
    pub(super) fn complete_ready(&mut self, events: &mut VecDeque<Event>) -> Result<(), Failure> {
        while let Some(oldest) = self.entries.front() {
            if let Some(status) = oldest.failed {
                return Err(Failure::of_request(status));
            }
            if !self.first.is_at_or_before(self.executed) || oldest.awaits_answer() {
                break;
            }
            let cookie = oldest.request.cookie;
            self.entries.pop_front();
            self.first = self.first.next();
            // Executed messages have left, so the cursor is behind them.
            self.cursor -= 1;
            events.push_back(self.done(cookie, Status::Success));
        }
        Ok(())
    }

    /// Message `msn` fails with `status` when its turn comes, and nothing newer leaves any more: its memory could not
    /// be read, for example.
    pub fn fail_message(
        &mut self,
        msn: Msn,
        status: Status,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Failure> {
        let Some(index) = self.index(msn) else {
            return Ok(());
        };
        // Executed and answered: only its turn to complete has not come.
        let safe = msn.is_at_or_before(self.executed) && !self.entries[index].awaits_answer();
        if !safe {
            self.entries[index].failed.get_or_insert(status);
            self.stop_before(msn);
        }
        self.complete_ready(events)
    }

    /// Completes everything: the oldest with `status`, the rest flushed. Later submissions are flushed at once, and
    /// answers that still arrive are dropped.
    pub fn fail(&mut self, status: Status, events: &mut VecDeque<Event>) {
        let mut status = status;
        while let Some(entry) = self.entries.pop_front() {
            self.first = self.first.next();
            events.push_back(self.done(entry.request.cookie, status));
            status = Status::Flushed;
        }
        self.dead = true;
        self.cursor = 0;
        self.again.clear();
        self.rnr_wait = None;
        self.awaited_answers = 0;
        self.receives_wanted = 0;
        self.packets_after_oldest = 0;
        self.backlog_bytes = 0;
    }

    /// The answer of the message at `index` is complete. That proves that it and all earlier ones are executed.
    pub(super) fn answer_complete(&mut self, index: usize) {
        self.entries[index].answer = Answer::Complete;
        self.awaited_answers -= 1;
        self.advance_executed(self.first.advance(index as u32));
    }
}

/// What a work request completes with when the peer refused it for good (IBA 9.7.5.2).
fn status_of(code: NakCode) -> Status {
    match code {
        NakCode::RemoteAccess => Status::RemoteAccess,
        NakCode::InvalidRequest | NakCode::Length => Status::RemoteInvalidRequest,
        NakCode::RemoteOperational => Status::RemoteOperation,
        NakCode::Rnr => Status::RnrRetryExceeded,
        NakCode::None | NakCode::Hold => Status::General,
    }
}
