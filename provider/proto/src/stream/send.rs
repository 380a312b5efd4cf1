//! The requester: our own work requests, from submission to the last segment (WIRE section 6).
//!
//! Messages are numbered when they are submitted and leave in that order; what goes again after a refusal goes first.
//! Here is what may leave next and what a segment contains; `executed.rs` has what the peer said about them and their
//! completion, `responses.rs` the answers to READs and atomics. `conn` calls all of it.

use std::collections::VecDeque;

use super::describe::{Described, Source};
use super::{Failure, Role, SegmentRef, is_answered};
use crate::event::{Event, SendDone};
use crate::types::{Operation, Payload, PdId, QpId, SendParams, SendRequest, Status, Time};
use crate::wire::{
    AtomicOperands, Attempt, DataFlags, DataHeader, FillStatus, Msn, NakCode, Opcode, Qpn, Rkey,
    Ssn, Token,
};

/// What a requester is made with, when its queue pair goes to RTR.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Queue pair.
    pub qp: QpId,
    /// Which life of the queue pair this is, counted by the caller (see [`SegmentRef::life`]).
    pub life: u16,
    /// Protection domain of its local keys.
    pub pd: PdId,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
}

/// What the peer told in its OPEN and HELLO.
#[derive(Clone, Copy, Debug)]
pub struct PeerStream {
    /// Life of the peer's queue pair: goes into every packet to it.
    pub token: Token,
    /// The first receive number for which the peer has no receive.
    pub credit: Ssn,
    /// Its receives come from a shared queue: credits do not bind.
    pub shared_receive_queue: bool,
    /// Messages beyond the last executed one that it accepts.
    pub message_span: u32,
    /// Packets of such messages, the first excepted, that it accepts.
    pub packet_span: u32,
}

/// The answer to a READ or atomic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// The message has none.
    None,
    /// `received` bytes of the answer's `attempt` are placed.
    Pending { attempt: Attempt, received: u32 },
    /// All of it is placed.
    Complete,
}

/// A work request that is not complete.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) request: SendRequest,
    /// Receive that it takes; that of the next one that takes one, where it takes none (WIRE 6.2).
    pub(super) ssn: Ssn,
    pub(super) attempt: Attempt,
    /// A segment of it left once, of any attempt.
    pub(super) begun: bool,
    /// Bytes that left in this attempt.
    pub(super) sent: u32,
    /// All of this attempt left; tells an empty message from one not sent.
    pub(super) sent_all: bool,
    /// Segments that left, of all attempts: what the peer may count at most.
    pub(super) packets: u32,
    pub(super) answer: Answer,
    /// It fails with this status when its turn to complete comes.
    pub(super) failed: Option<Status>,
}

impl Entry {
    pub(super) fn opcode(&self) -> Opcode {
        match self.request.operation {
            Operation::Send => Opcode::Send,
            Operation::SendImm(_) => Opcode::SendImm,
            Operation::SendInv(_) => Opcode::SendInv,
            Operation::Write { .. } => Opcode::Write,
            Operation::WriteImm { .. } => Opcode::WriteImm,
            Operation::Read { .. } => Opcode::ReadReq,
            Operation::CompareSwap { .. } => Opcode::CmpSwap,
            Operation::FetchAdd { .. } => Opcode::FetchAdd,
        }
    }

    /// Payload bytes that the message takes on the wire.
    pub(super) fn wire_bytes(&self) -> u32 {
        match self.opcode() {
            Opcode::ReadReq => 0,
            opcode if opcode.is_atomic() => u32::from(Opcode::ATOMIC_OPERAND_BYTES),
            _ => self.request.length,
        }
    }

    pub(super) fn awaits_answer(&self) -> bool {
        matches!(self.answer, Answer::Pending { .. })
    }
}

/// The oldest unexecuted message was refused for want of a receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct RnrWait {
    pub(super) msn: Msn,
    /// When it goes again.
    pub(super) until: Time,
}

/// Our own work requests of one life of a queue pair.
///
/// `handle_stream_block`, `handle_response` and `packet_acked` take what came back, `peek_segment`, `next_segment` and
/// `poll_timeout` hand out what is to be done, `submit`, `fail_message`, `restart_message` and `fail` come from above.
#[derive(Debug)]
pub struct Requester {
    pub(super) config: RequesterConfig,
    peer: Option<PeerStream>,
    pub(super) rnr_retry: u8,
    max_rd_atomic: u8,
    /// Incomplete work requests in order of submission; the front is message `first`.
    pub(super) entries: VecDeque<Entry>,
    pub(super) first: Msn,
    /// Index of the first entry of which not all left once.
    pub(super) cursor: usize,
    /// Messages before the cursor that go again, oldest first.
    pub(super) again: VecDeque<Msn>,
    /// Receive that the next message takes, of those that take one.
    next_ssn: Ssn,
    pub(super) executed: Msn,
    pub(super) credit: Ssn,
    pub(super) rnr_wait: Option<RnrWait>,
    /// RNR refusals of the oldest unexecuted message.
    pub(super) rnr_retries: u8,
    pub(super) rnr_total: u64,
    /// The last refusal, until somebody takes it: for the event log.
    pub(super) refusal: Option<(Msn, NakCode)>,
    /// Nothing of this message or of a later one leaves: it is going to fail.
    pub(super) stop_at: Option<Msn>,
    /// READs and atomics that left and whose answers are not complete.
    pub(super) awaited_answers: u32,
    /// Messages that consume a receive, left, and are not executed.
    pub(super) receives_wanted: u32,
    /// Segments sent of messages after the oldest unexecuted one.
    pub(super) packets_after_oldest: u32,
    /// Segments sent and not acknowledged.
    unacked: u64,
    pub(super) backlog_bytes: u64,
    /// When work was given to an idle requester, or was last wanted again after an RNR wait.
    pub(super) busy_since: Time,
    pub(super) dead: bool,
}

/// RNR retries without end (IBA).
pub(super) const RNR_FOR_EVER: u8 = 7;

impl Requester {
    /// A requester that may neither be given work nor send yet.
    pub fn new(config: &RequesterConfig) -> Self {
        Self {
            config: *config,
            peer: None,
            rnr_retry: RNR_FOR_EVER,
            max_rd_atomic: 0,
            entries: VecDeque::new(),
            first: Msn(1),
            cursor: 0,
            again: VecDeque::new(),
            next_ssn: Ssn::ZERO,
            executed: Msn::ZERO,
            credit: Ssn::ZERO,
            rnr_wait: None,
            rnr_retries: 0,
            rnr_total: 0,
            refusal: None,
            stop_at: None,
            awaited_answers: 0,
            receives_wanted: 0,
            packets_after_oldest: 0,
            unacked: 0,
            backlog_bytes: 0,
            busy_since: Time::ZERO,
            dead: false,
        }
    }

    /// Nothing was submitted for long: what the entries took is given back.
    pub fn let_go(&mut self) {
        self.entries.shrink_to_fit();
        self.again.shrink_to_fit();
    }

    /// The queue pair goes to RTS.
    pub fn enable(&mut self, params: &SendParams) {
        self.rnr_retry = params.rnr_retry;
        self.max_rd_atomic = params.max_rd_atomic;
    }

    /// The peer answered OPEN: segments may leave. The first call counts.
    pub fn open(&mut self, peer: &PeerStream) {
        if self.peer.is_none() {
            self.peer = Some(*peer);
            self.credit = peer.credit;
        }
    }

    /// The peer answered OPEN.
    pub fn is_open(&self) -> bool {
        self.peer.is_some()
    }

    /// Takes a work request. After [`Self::fail`] it completes at once, flushed.
    pub fn submit(
        &mut self,
        now: Time,
        request: SendRequest,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Failure> {
        if self.dead {
            events.push_back(self.done(request.cookie, Status::Flushed));
            return Ok(());
        }
        if self.entries.is_empty() {
            self.busy_since = now;
        }
        let entry = self.entry(request);
        if entry.failed.is_some() {
            self.stop_before(self.first.advance(self.entries.len() as u32));
        }
        self.backlog_bytes += u64::from(entry.wire_bytes());
        self.entries.push_back(entry);
        self.complete_ready(events)
    }

    fn entry(&mut self, request: SendRequest) -> Entry {
        let mut entry = Entry {
            request,
            ssn: self.next_ssn,
            attempt: Attempt::ZERO,
            begun: false,
            sent: 0,
            sent_all: false,
            packets: 0,
            answer: Answer::None,
            failed: None,
        };
        let opcode = entry.opcode();
        if opcode.consumes_receive() {
            self.next_ssn = self.next_ssn.next();
        }
        let answered = is_answered(opcode);
        if answered {
            entry.answer = Answer::Pending {
                attempt: Attempt::ZERO,
                received: 0,
            };
        }
        // With no READ allowed to be outstanding it could wait for ever: nothing may hang.
        let never = answered && self.max_rd_atomic == 0;
        entry.failed = entry
            .request
            .fault
            .or(never.then_some(Status::LocalQpOperation));
        entry
    }

    pub(super) fn done(&self, cookie: u64, status: Status) -> Event {
        Event::SendDone(SendDone {
            qp: self.config.qp,
            cookie,
            status,
            vendor_error: 0,
        })
    }

    pub(super) fn stop_before(&mut self, msn: Msn) {
        self.stop_at = Some(self.stop_at.map_or(msn, |at| at.earlier(msn)));
    }

    /// Index of a message that is not complete.
    pub(super) fn index(&self, msn: Msn) -> Option<usize> {
        usize::try_from(self.first.distance(msn))
            .ok()
            .filter(|index| *index < self.entries.len())
    }

    fn msn_at(&self, index: usize) -> Msn {
        self.first.advance(index as u32)
    }

    /// The segment that [`Self::next_segment`] would return; changes nothing.
    pub fn peek_segment(&self, now: Time, max_payload: u16) -> Option<SegmentRef> {
        self.choose(now)
            .map(|index| self.segment_at(index, max_payload))
    }

    /// The next segment to send for the first time (of its attempt). The caller must send it, or keep it and send it
    /// later: it does not come again.
    pub fn next_segment(&mut self, now: Time, max_payload: u16) -> Option<SegmentRef> {
        let index = self.choose(now)?;
        let segment = self.segment_at(index, max_payload);
        let oldest_unexecuted = self.executed.next() == segment.msn;
        let entry = &mut self.entries[index];
        let opcode = entry.opcode();
        if !entry.begun {
            self.awaited_answers += u32::from(entry.awaits_answer());
            self.receives_wanted += u32::from(opcode.consumes_receive());
        }
        entry.begun = true;
        entry.sent += u32::from(segment.length);
        entry.sent_all = entry.sent == entry.wire_bytes();
        entry.packets += 1;
        if entry.sent_all {
            if index == self.cursor {
                self.cursor += 1;
            } else {
                self.again.retain(|msn| *msn != segment.msn);
            }
        }
        self.packets_after_oldest += u32::from(!oldest_unexecuted);
        self.backlog_bytes = self.backlog_bytes.saturating_sub(u64::from(segment.length));
        self.unacked += 1;
        Some(segment)
    }

    fn segment_at(&self, index: usize, max_payload: u16) -> SegmentRef {
        let entry = &self.entries[index];
        SegmentRef {
            qp: self.config.qp,
            msn: self.msn_at(index),
            offset: entry.sent,
            // `min` of something that fits 16 bits.
            length: (entry.wire_bytes() - entry.sent).min(u32::from(max_payload)) as u16,
            life: self.config.life,
            attempt: entry.attempt,
            role: Role::Request,
        }
    }

    /// Index of the message of which a segment may leave now.
    fn choose(&self, now: Time) -> Option<usize> {
        if self.dead || self.peer.is_none() {
            return None;
        }
        // What goes again goes first; only messages that want no receive overtake one that waits for a receive.
        let again = self
            .again
            .iter()
            .filter_map(|msn| self.index(*msn))
            .find(|index| self.may_continue(now, *index));
        again.or_else(|| {
            Some(self.cursor)
                .filter(|index| self.may_begin(*index) && self.may_continue(now, *index))
        })
    }

    /// Whether a message of which a part left (or that was just allowed to begin) may send its next segment.
    fn may_continue(&self, now: Time, index: usize) -> bool {
        let msn = self.msn_at(index);
        if self.stop_at.is_some_and(|at| !msn.is_before(at)) || self.rnr_holds(now, msn) {
            return false;
        }
        // WIRE 6.28: the oldest is exempt, of it the receiver needs a byte count and nothing for each packet.
        let span = self.peer.map_or(0, |peer| peer.packet_span);
        msn == self.executed.next() || self.packets_after_oldest < span
    }

    fn rnr_holds(&self, now: Time, msn: Msn) -> bool {
        self.rnr_wait
            .is_some_and(|wait| wait.msn == msn && now < wait.until)
    }

    /// Whether the message at the cursor may begin, if it has not begun already.
    fn may_begin(&self, index: usize) -> bool {
        let (Some(entry), Some(peer)) = (self.entries.get(index), self.peer.as_ref()) else {
            return false;
        };
        if entry.begun {
            return true;
        }
        let fence_holds = entry.request.fence && self.awaited_answers > 0;
        let answers_full =
            entry.awaits_answer() && self.awaited_answers >= u32::from(self.max_rd_atomic);
        let beyond_span = self.msn_at(index).since(self.executed) > peer.message_span;
        !fence_holds && !answers_full && !beyond_span && !self.lacks_receive(entry)
    }

    /// Whether a message that has not begun must wait for a receive. The oldest that wants one never does, so that
    /// a refusal can be counted against rnr_retry (WIRE 6.18); after a refusal newer ones stay behind the refused one
    /// (WIRE 6.16).
    fn lacks_receive(&self, entry: &Entry) -> bool {
        let bound_by_credit = self.peer.is_some_and(|peer| !peer.shared_receive_queue);
        entry.opcode().consumes_receive()
            && self.receives_wanted > 0
            && (self.rnr_wait.is_some() || (bound_by_credit && !entry.ssn.is_before(self.credit)))
    }

    /// Header and payload of a segment; `None` when the content is gone: a FILL goes instead ([`Self::describe_fill`]).
    ///
    /// Of an executed message everything arrived, whatever the path still waits for: its memory is not read again.
    pub fn describe(&self, segment: &SegmentRef) -> Option<Described<'_>> {
        if segment.life != self.config.life || segment.msn.is_at_or_before(self.executed) {
            return None;
        }
        let entry = &self.entries[self.index(segment.msn)?];
        if entry.attempt != segment.attempt || entry.failed.is_some() {
            return None;
        }
        Some(Described {
            header: self.header(entry, segment),
            source: Self::source(entry, segment),
        })
    }

    fn header(&self, entry: &Entry, segment: &SegmentRef) -> DataHeader {
        let (remote_address, rkey, immediate) = match entry.request.operation {
            Operation::Send => (0, 0, 0),
            Operation::SendImm(imm) => (0, 0, u32::from_be_bytes(imm)),
            Operation::SendInv(rkey) => (0, 0, rkey),
            Operation::WriteImm {
                remote_addr,
                rkey,
                imm,
            } => (remote_addr, rkey, u32::from_be_bytes(imm)),
            Operation::Write { remote_addr, rkey }
            | Operation::Read { remote_addr, rkey }
            | Operation::CompareSwap {
                remote_addr, rkey, ..
            }
            | Operation::FetchAdd {
                remote_addr, rkey, ..
            } => (remote_addr, rkey, 0),
        };
        let opcode = entry.opcode();
        DataHeader {
            opcode,
            flags: if entry.request.solicited {
                DataFlags::SOLICITED
            } else {
                DataFlags::NONE
            },
            ssn: entry.ssn,
            message_bytes: if opcode == Opcode::ReadReq {
                entry.request.length
            } else {
                entry.wire_bytes()
            },
            remote_address,
            rkey: Rkey(rkey),
            immediate,
            ..self.keyed_header(segment)
        }
    }

    fn source<'a>(entry: &'a Entry, segment: &SegmentRef) -> Source<'a> {
        match entry.request.operation {
            Operation::Read { .. } => Source::Empty,
            Operation::CompareSwap { compare, swap, .. } => Source::Operands(
                AtomicOperands {
                    first: compare,
                    second: swap,
                }
                .emit(),
            ),
            Operation::FetchAdd { add, .. } => Source::Operands(
                AtomicOperands {
                    first: add,
                    second: 0,
                }
                .emit(),
            ),
            _ if segment.length == 0 => Source::Empty,
            _ => match &entry.request.payload {
                Payload::Inline(bytes) => {
                    let start = segment.offset as usize;
                    Source::Bytes(&bytes[start..start + usize::from(segment.length)])
                }
                Payload::Gather(sges) => Source::Gather {
                    sges,
                    offset: segment.offset,
                    length: segment.length,
                },
            },
        }
    }

    /// The fields that every packet of a segment has, FILLs too.
    fn keyed_header(&self, segment: &SegmentRef) -> DataHeader {
        DataHeader {
            attempt: segment.attempt,
            payload_bytes: segment.length,
            qpn: self.config.peer_qpn,
            token: self.peer.map_or(Token::ZERO, |peer| peer.token),
            msn: segment.msn,
            offset: segment.offset,
            ..DataHeader::default()
        }
    }

    /// Header of the FILL that takes the segment's place: it fills the PSN and says nothing to the stream.
    pub fn describe_fill(&self, segment: &SegmentRef) -> DataHeader {
        DataHeader {
            opcode: Opcode::Fill,
            payload_bytes: 0,
            immediate: FillStatus::Nothing as u32,
            ..self.keyed_header(segment)
        }
    }

    /// The packet that carried the segment, or the FILL in its place, is acknowledged: exactly once each.
    pub fn packet_acked(&mut self, segment: &SegmentRef) {
        if segment.life == self.config.life {
            self.unacked = self.unacked.saturating_sub(1);
        }
    }

    /// The packets of message `msn` are too large for the path: the whole message goes again as a new attempt.
    pub fn restart_message(&mut self, msn: Msn) {
        if !msn.is_at_or_before(self.executed)
            && self
                .index(msn)
                .is_some_and(|index| self.entries[index].begun)
        {
            self.restart(msn);
        }
    }

    /// Begins a new attempt of a message that has begun and is not executed.
    pub(super) fn restart(&mut self, msn: Msn) {
        let Some(index) = self.index(msn) else { return };
        let entry = &mut self.entries[index];
        self.backlog_bytes += u64::from(entry.sent);
        entry.attempt = entry.attempt.next();
        entry.sent = 0;
        entry.sent_all = false;
        if index < self.cursor && !self.again.contains(&msn) {
            let at = self.again.partition_point(|other| other.is_before(msn));
            self.again.insert(at, msn);
        }
    }

    /// Bytes submitted and not yet sent once, those of a new attempt included.
    pub fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    /// Every work request is complete.
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// [`Self::fail`] was called.
    pub fn is_failed(&self) -> bool {
        self.dead
    }

    /// A message waits for a receive of the peer (flag of the base header).
    pub fn waits_for_credit(&self) -> bool {
        self.rnr_wait.is_some()
            || self
                .entries
                .get(self.cursor)
                .is_some_and(|entry| !entry.begun && self.lacks_receive(entry))
    }

    /// The oldest message that is not complete: it may use the reserve of the window.
    pub fn oldest_incomplete(&self) -> Option<Msn> {
        (!self.entries.is_empty()).then_some(self.first)
    }

    /// Bytes of data that the oldest request sends; 0 where only its answer has any, or there is none.
    pub fn oldest_data_bytes(&self) -> u32 {
        let oldest = self.entries.front();
        oldest.map_or(0, |entry| match entry.request.operation {
            Operation::Read { .. } => 0,
            _ => entry.request.length,
        })
    }

    /// Last message that the peer said it executed.
    pub fn executed(&self) -> Msn {
        self.executed
    }

    /// All packets sent are acknowledged, but a message that was sent is not complete: time to probe with (QPN, token).
    pub fn wants_probe(&self) -> bool {
        self.unacked == 0 && self.entries.front().is_some_and(|oldest| oldest.sent_all)
    }

    /// From when on the peer owes us something, the silence of its connection aside: after an RNR refusal that is in
    /// the future. `None`: nothing is owed.
    pub fn waiting_since(&self) -> Option<Time> {
        if self.entries.is_empty() {
            return None;
        }
        Some(
            self.rnr_wait
                .map_or(self.busy_since, |wait| wait.until.max(self.busy_since)),
        )
    }

    /// Nobody drove this end for `ns`: the peer does not owe that time.
    pub fn excuse(&mut self, now: Time, ns: u64) {
        self.busy_since = now.min(self.busy_since + ns);
    }

    /// When the RNR wait ends: then [`Self::next_segment`] has something again.
    pub fn poll_timeout(&self, now: Time) -> Option<Time> {
        self.rnr_wait
            .map(|wait| wait.until)
            .filter(|until| *until > now)
    }

    /// The last message that the peer refused since the last call.
    pub fn take_refusal(&mut self) -> Option<(Msn, NakCode)> {
        self.refusal.take()
    }

    /// RNR refusals so far, for the counters.
    pub fn rnr_count(&self) -> u64 {
        self.rnr_total
    }
}
