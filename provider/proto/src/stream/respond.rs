//! The responder's answers to READs and atomics: a queue in the order of execution. An answer is a source of segments,
//! of registered memory that is read when the packet leaves, or of the value that an atomic found, kept until the
//! packet is acknowledged (WIRE 6.12). `recv.rs` executes and queues; `conn` sends.

use std::collections::VecDeque;

use super::describe::{Described, Source};
use super::recv::Responder;
use super::{Role, SegmentRef};
use crate::types::QpId;
use crate::wire::{Attempt, DataHeader, FillStatus, Msn, Opcode, Qpn, Token};

/// What an answer consists of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// Bytes of a region of ours.
    Read { rkey: u32, addr: u64, length: u32 },
    /// What an atomic found, as it travels.
    Atomic([u8; Opcode::ATOMIC_RESULT_BYTES as usize]),
}

impl Content {
    const fn length(&self) -> u32 {
        match self {
            Self::Read { length, .. } => *length,
            Self::Atomic(_) => Opcode::ATOMIC_RESULT_BYTES as u32,
        }
    }
}

/// An answer that is not sent, or not acknowledged.
#[derive(Debug)]
struct Response {
    msn: Msn,
    /// That of the request at first (WIRE 2.21); one more each time the answer is begun afresh.
    attempt: Attempt,
    content: Content,
    sent: u32,
    sent_all: bool,
    /// It was sent once, so it does not count against max_dest_rd_atomic any more.
    was_sent: bool,
    /// Segments of all attempts that are not acknowledged.
    unacked: u32,
    /// It fails at the requester.
    failed: FillStatus,
}

impl Response {
    const fn is_done(&self) -> bool {
        self.sent_all && self.unacked == 0
    }
}

/// The answers of one stream.
#[derive(Debug)]
pub(super) struct Responses {
    qp: QpId,
    life: u16,
    peer_qpn: Qpn,
    peer_token: Token,
    /// In the order of execution, so by ascending MSN.
    queue: VecDeque<Response>,
    /// Index of the first that is not all sent.
    cursor: usize,
    /// Answers that are done but not at the front.
    done: usize,
    /// Answers that were never completely sent.
    unsent: u32,
    backlog_bytes: u64,
}

impl Responses {
    pub(super) fn new(qp: QpId, life: u16, peer_qpn: Qpn) -> Self {
        Self {
            qp,
            life,
            peer_qpn,
            peer_token: Token::ZERO,
            queue: VecDeque::new(),
            cursor: 0,
            done: 0,
            unsent: 0,
            backlog_bytes: 0,
        }
    }

    /// Gives memory back that no answer needs.
    pub(super) fn let_go(&mut self) {
        self.queue.shrink_to_fit();
    }

    pub(super) fn open(&mut self, peer_token: Token) {
        self.peer_token = peer_token;
    }

    pub(super) fn peer_token(&self) -> Token {
        self.peer_token
    }

    /// Queues the answer to an executed request.
    pub(super) fn push(&mut self, msn: Msn, attempt: Attempt, content: Content) {
        self.backlog_bytes += u64::from(content.length());
        self.unsent += 1;
        self.queue.push_back(Response {
            msn,
            attempt,
            content,
            sent: 0,
            sent_all: false,
            was_sent: false,
            unacked: 0,
            failed: FillStatus::Nothing,
        });
    }

    /// Answers that were never completely sent: they count against max_dest_rd_atomic (WIRE 6.24).
    pub(super) fn unsent(&self) -> u32 {
        self.unsent
    }

    fn peek(&self, max_payload: u16) -> Option<SegmentRef> {
        let response = self.queue.get(self.cursor)?;
        let left = match response.failed {
            FillStatus::Nothing => response.content.length() - response.sent,
            // One packet, which becomes the FILL that tells it.
            _ => 0,
        };
        Some(SegmentRef {
            qp: self.qp,
            msn: response.msn,
            offset: response.sent,
            // `min` of something that fits 16 bits.
            length: left.min(u32::from(max_payload)) as u16,
            life: self.life,
            attempt: response.attempt,
            role: Role::Response,
        })
    }

    fn next(&mut self, max_payload: u16) -> Option<SegmentRef> {
        let segment = self.peek(max_payload)?;
        let response = &mut self.queue[self.cursor];
        let total = response.content.length();
        response.sent += u32::from(segment.length);
        response.unacked += 1;
        let mut gone = u64::from(segment.length);
        if response.failed != FillStatus::Nothing || response.sent == total {
            gone += u64::from(total - response.sent);
            response.sent = total;
            response.sent_all = true;
            self.unsent -= u32::from(!response.was_sent);
            response.was_sent = true;
            // Behind it there may be answers that were sent, if this one was begun afresh.
            while self
                .queue
                .get(self.cursor)
                .is_some_and(|response| response.sent_all)
            {
                self.cursor += 1;
            }
        }
        self.backlog_bytes = self.backlog_bytes.saturating_sub(gone);
        Some(segment)
    }

    fn index(&self, msn: Msn) -> Option<usize> {
        let index = self
            .queue
            .partition_point(|response| response.msn.is_before(msn));
        self.queue
            .get(index)
            .filter(|response| response.msn == msn)
            .map(|_| index)
    }

    fn describe(&self, segment: &SegmentRef) -> Option<Described<'_>> {
        let response = &self.queue[self
            .index(segment.msn)
            .filter(|_| segment.life == self.life)?];
        if response.attempt != segment.attempt || response.failed != FillStatus::Nothing {
            return None;
        }
        let (opcode, source) = match response.content {
            Content::Read { .. } if segment.length == 0 => (Opcode::ReadResp, Source::Empty),
            Content::Read { rkey, addr, .. } => {
                let addr = addr.wrapping_add(u64::from(segment.offset));
                (
                    Opcode::ReadResp,
                    Source::Region {
                        key: rkey,
                        addr,
                        length: segment.length,
                    },
                )
            }
            Content::Atomic(value) => (Opcode::AtomicResp, Source::Result(value)),
        };
        let header = DataHeader {
            opcode,
            payload_bytes: segment.length,
            message_bytes: response.content.length(),
            ..self.keyed_header(segment)
        };
        Some(Described { header, source })
    }

    fn describe_fill(&self, segment: &SegmentRef) -> DataHeader {
        let response = self
            .index(segment.msn)
            .filter(|_| segment.life == self.life)
            .map(|index| &self.queue[index]);
        let status = response.map_or(FillStatus::Nothing, |response| response.failed);
        DataHeader {
            opcode: Opcode::Fill,
            attempt: response.map_or(segment.attempt, |response| response.attempt),
            immediate: status as u32,
            ..self.keyed_header(segment)
        }
    }

    fn keyed_header(&self, segment: &SegmentRef) -> DataHeader {
        DataHeader {
            attempt: segment.attempt,
            qpn: self.peer_qpn,
            token: self.peer_token,
            msn: segment.msn,
            offset: segment.offset,
            ..DataHeader::default()
        }
    }

    fn packet_acked(&mut self, segment: &SegmentRef) {
        let Some(index) = self
            .index(segment.msn)
            .filter(|_| segment.life == self.life)
        else {
            return;
        };
        let response = &mut self.queue[index];
        if response.unacked == 0 {
            return;
        }
        response.unacked -= 1;
        self.done += usize::from(response.is_done());
        while self.queue.front().is_some_and(Response::is_done) {
            self.queue.pop_front();
            self.done -= 1;
            self.cursor -= 1;
        }
        // One lost packet at the front must not make the queue grow: half of it done pays for the move.
        if self.done > 16 && self.done > self.queue.len() / 2 {
            self.queue.retain(|response| !response.is_done());
            self.done = 0;
            self.find_cursor();
        }
    }

    fn fail(&mut self, msn: Msn, status: FillStatus) {
        let Some(index) = self.index(msn) else { return };
        let response = &mut self.queue[index];
        if response.failed == FillStatus::Nothing && !response.is_done() {
            response.failed = status;
        }
    }

    fn restart(&mut self, msn: Msn) {
        let Some(index) = self.index(msn) else { return };
        let response = &mut self.queue[index];
        if response.failed != FillStatus::Nothing || response.is_done() {
            return;
        }
        self.backlog_bytes += u64::from(response.sent);
        response.attempt = response.attempt.next();
        response.sent = 0;
        response.sent_all = false;
        self.cursor = self.cursor.min(index);
    }

    fn find_cursor(&mut self) {
        self.cursor = self
            .queue
            .iter()
            .position(|response| !response.sent_all)
            .unwrap_or(self.queue.len());
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.cursor = 0;
        self.done = 0;
        self.unsent = 0;
        self.backlog_bytes = 0;
    }
}

impl Responder {
    /// The segment that [`Self::next_segment`] would return; changes nothing.
    pub fn peek_segment(&self, max_payload: u16) -> Option<SegmentRef> {
        self.responses.peek(max_payload)
    }

    /// The next segment of an answer to send for the first time (of its attempt). The caller must send it, or keep it
    /// and send it later. Its [`Self::describe`] may be `None`: then the FILL is what there is to send.
    pub fn next_segment(&mut self, max_payload: u16) -> Option<SegmentRef> {
        self.responses.next(max_payload)
    }

    /// Header and payload of a segment; `None` when the content is gone: a FILL goes instead ([`Self::describe_fill`]).
    pub fn describe(&self, segment: &SegmentRef) -> Option<Described<'_>> {
        self.responses.describe(segment)
    }

    /// Header of the FILL that takes the segment's place; if the answer failed, it says so (WIRE 6.25).
    pub fn describe_fill(&self, segment: &SegmentRef) -> DataHeader {
        self.responses.describe_fill(segment)
    }

    /// The packet that carried the segment, or the FILL in its place, is acknowledged: exactly once each.
    pub fn packet_acked(&mut self, segment: &SegmentRef) {
        self.responses.packet_acked(segment);
    }

    /// The memory that answers `msn` could not be read: that READ fails at the requester, told by FILL in the place of
    /// the packets of it that are not acknowledged.
    pub fn fail_response(&mut self, msn: Msn, status: FillStatus) {
        self.responses.fail(msn, status);
    }

    /// The packets of the answer to `msn` are too large for the path: it goes again as a new attempt.
    pub fn restart_response(&mut self, msn: Msn) {
        self.responses.restart(msn);
    }

    /// Bytes of answers not yet sent once.
    pub fn backlog_bytes(&self) -> u64 {
        self.responses.backlog_bytes
    }

    /// Answers are not sent, or not acknowledged.
    pub fn has_responses(&self) -> bool {
        !self.responses.queue.is_empty()
    }

    /// Bytes of the oldest answer that is not acknowledged; 0 if there is none.
    pub fn oldest_answer_bytes(&self) -> u32 {
        let mut answers = self.responses.queue.iter();
        let oldest = answers.find(|response| !response.is_done());
        oldest.map_or(0, |response| response.content.length())
    }

    /// The peer is gone: nobody waits for answers any more.
    pub fn drop_responses(&mut self) {
        self.responses.clear();
    }
}
