//! A send queue: work requests from the post until the program has polled their completion.
//!
//! The program posts (`SendPoster::post`, checks in the order of its lines), the engine takes ([`SendQueue::take`])
//! and reports each as done in the same order ([`SendQueue::complete`]). A slot is free again when the program has
//! polled the completion of its request or of a later signaled one, as on hardware: an unsignaled request retires with
//! a later signaled one. Locked by `qp.rs`, which also pushes the completions.

use std::collections::VecDeque;

use metaroce_proto::types::{Access, Operation, Payload, PdId, SendRequest, Status};

use super::cq::CqeNumber;
use super::errno::Errno;
use super::limits::MAX_MESSAGE_BYTES;
use super::mr_memory::MrTable;
use super::qp_state::QpState;

/// Requests that there is room for at first, if the queue is so deep.
const FIRST_CAPACITY: usize = 4;

/// Bytes that an atomic works on.
const ATOMIC_BYTES: u64 = 8;

/// A send work request as the program posts it.
#[derive(Clone, Debug)]
pub struct SendWork {
    /// Returned with the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// The local bytes: copied already if inline; entries of length 0 left out.
    pub payload: Payload,
    /// IBV_SEND_SIGNALED
    pub signaled: bool,
    /// IBV_SEND_FENCE
    pub fence: bool,
    /// IBV_SEND_SOLICITED
    pub solicited: bool,
}

/// What is kept of a request for its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wqe {
    /// Returned with the completion.
    pub wr_id: u64,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// Bytes of the message.
    pub length: u32,
    /// Whether success is reported.
    pub signaled: bool,
}

/// Number of a request in its queue, over all lives of the queue pair: the core's cookie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct WqeNumber(pub u64);

/// Depths of a queue as granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendLimits {
    /// Requests.
    pub capacity: u32,
    /// Entries of a request.
    pub max_sge: u32,
    /// Inline bytes of a request.
    pub max_inline: u32,
    /// Every request is signaled (`sq_sig_all`).
    pub signal_all: bool,
}

/// The queue.
#[derive(Debug)]
pub struct SendQueue {
    limits: SendLimits,
    /// Posted and not done, oldest first.
    outstanding: VecDeque<Wqe>,
    /// Of those, the ones that the core has not taken yet.
    pending: VecDeque<SendRequest>,
    /// Number of the next request.
    next: u64,
    /// Requests below this number have free slots.
    released: u64,
    /// Completions pushed and perhaps not polled: when number `.0` is polled, requests below `.1` are released.
    releases: VecDeque<(CqeNumber, u64)>,
}

impl SendQueue {
    /// An empty queue.
    pub fn new(limits: SendLimits) -> Self {
        Self {
            limits,
            outstanding: VecDeque::new(),
            pending: VecDeque::new(),
            next: 0,
            released: 0,
            releases: VecDeque::new(),
        }
    }

    /// Takes a request in: EINVAL if the state or the request does not allow it, ENOMEM when no slot is free. A key or
    /// range that the program may not use is no error here: the request then fails when its turn comes.
    pub fn post(
        &mut self,
        state: QpState,
        polled: CqeNumber,
        pd: PdId,
        memory: &MrTable,
        work: SendWork,
    ) -> Result<(), Errno> {
        match state {
            QpState::ReadyToSend | QpState::SendQueueDrained | QpState::Error => {}
            _ => return Err(Errno::INVALID),
        }
        let length = self.check_payload(&work)?;
        if self.occupied() >= self.limits.capacity {
            self.release_polled(polled);
            if self.occupied() >= self.limits.capacity {
                return Err(Errno::NO_MEMORY);
            }
        }
        let fault = match &work.payload {
            Payload::Inline(_) => None,
            Payload::Gather(sges) => {
                let denied = memory
                    .check_list(pd, sges, local_rights(&work.operation))
                    .is_err();
                denied.then_some(Status::LocalProtection)
            }
        };
        if self.pending.capacity() == 0 {
            // Not before the first request, and no more than were asked for: many queue pairs have one or two.
            let capacity = (self.limits.capacity as usize).min(FIRST_CAPACITY);
            self.outstanding.reserve_exact(capacity);
            self.pending.reserve_exact(capacity);
            self.releases.reserve_exact(capacity);
        }
        self.outstanding.push_back(Wqe {
            wr_id: work.wr_id,
            opcode: completion_opcode(&work.operation),
            length,
            signaled: work.signaled || self.limits.signal_all,
        });
        self.pending.push_back(SendRequest {
            cookie: self.next,
            operation: work.operation,
            payload: work.payload,
            length,
            fence: work.fence,
            solicited: work.solicited,
            fault,
        });
        self.next += 1;
        Ok(())
    }

    /// The length of the message, if the payload is one that the operation may have.
    fn check_payload(&self, work: &SendWork) -> Result<u32, Errno> {
        let (length, entries) = match &work.payload {
            Payload::Inline(bytes) => {
                if bytes.len() > self.limits.max_inline as usize || !may_be_inline(&work.operation)
                {
                    return Err(Errno::INVALID);
                }
                (bytes.len() as u64, 1)
            }
            Payload::Gather(sges) => {
                if sges.len() > self.limits.max_sge as usize {
                    return Err(Errno::INVALID);
                }
                (
                    sges.iter().map(|sge| u64::from(sge.length)).sum(),
                    sges.len(),
                )
            }
        };
        let atomic = matches!(
            work.operation,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. }
        );
        if length > u64::from(MAX_MESSAGE_BYTES)
            || (atomic && (length != ATOMIC_BYTES || entries != 1))
        {
            return Err(Errno::INVALID);
        }
        Ok(length as u32)
    }

    fn occupied(&self) -> u32 {
        (self.next - self.released) as u32
    }

    fn release_polled(&mut self, polled: CqeNumber) {
        while let Some((number, released)) = self.releases.front().copied() {
            if number >= polled {
                return;
            }
            self.released = self.released.max(released);
            self.releases.pop_front();
        }
    }

    /// The oldest request that the core has not taken.
    pub fn take(&mut self) -> Option<SendRequest> {
        self.pending.pop_front()
    }

    /// Whether everything that the core has taken is done.
    pub fn is_drained(&self) -> bool {
        self.outstanding.len() == self.pending.len()
    }

    /// The oldest request is done; `None` if `number` is not its number, for it belongs to an earlier life.
    pub fn complete(&mut self, number: WqeNumber) -> Option<Wqe> {
        if self.oldest() == number {
            self.outstanding.pop_front()
        } else {
            None
        }
    }

    fn oldest(&self) -> WqeNumber {
        WqeNumber(self.next - self.outstanding.len() as u64)
    }

    /// The completion of the request that [`SendQueue::complete`] returned last was pushed under this number.
    pub fn completed(&mut self, number: CqeNumber) {
        let released = self.oldest().0;
        self.releases.push_back((number, released));
    }

    /// Takes the oldest request that is not done, when the core will report no more (destroy).
    pub fn abandon(&mut self) -> Option<Wqe> {
        self.pending.clear();
        self.outstanding.pop_front()
    }

    /// Forgets everything (RESET). Numbers go on, so that what the core still reports of the old life is not mistaken.
    pub fn clear(&mut self) {
        self.outstanding.clear();
        self.pending.clear();
        self.releases.clear();
        self.released = self.next;
    }

    /// Forgets what the core has not taken (first step of RESET).
    pub fn clear_pending(&mut self) {
        for _ in 0..self.pending.len() {
            self.outstanding.pop_back();
            self.next -= 1;
        }
        self.pending.clear();
    }
}

/// Rights that the local buffers of an operation need.
fn local_rights(operation: &Operation) -> Access {
    match operation {
        Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
            Access::LOCAL_WRITE
        }
        Operation::Send
        | Operation::SendImm(_)
        | Operation::SendInv(_)
        | Operation::Write { .. }
        | Operation::WriteImm { .. } => Access::default(),
    }
}

fn may_be_inline(operation: &Operation) -> bool {
    local_rights(operation) != Access::LOCAL_WRITE
}

/// `enum ibv_wc_opcode` of an operation.
fn completion_opcode(operation: &Operation) -> u32 {
    match operation {
        Operation::Send | Operation::SendImm(_) | Operation::SendInv(_) => 0,
        Operation::Write { .. } | Operation::WriteImm { .. } => 1,
        Operation::Read { .. } => 2,
        Operation::CompareSwap { .. } => 3,
        Operation::FetchAdd { .. } => 4,
    }
}

#[cfg(test)]
#[path = "send_queue_tests.rs"]
mod tests;
