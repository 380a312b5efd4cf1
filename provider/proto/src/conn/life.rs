//! Begin and end of streams: OPEN, SHUT, and what becomes of work requests when the peer is gone (WIRE 3.7 to 3.15,
//! 3.21). A life is attached to its connection from RTR to RESET; it may send when the peer has echoed its token.

use crate::conn::pmtu::UNSUSPECTED_PACKET_BYTES;
use crate::conn::streams::List;
use crate::conn::{Connection, Context, Item, OUTBOX_ANSWERS_MAX, Shared};
use crate::endpoint::qp::{Life, Phase, QpTable, Retry};
use crate::event::QpFailure;
use crate::host::Host;
use crate::stream::{self, Failure, PeerStream};
use crate::telemetry::log::{Subject, What};
use crate::types::{QpId, Status, Time};
use crate::wire::{
    CONTROL_OVERHEAD_BYTES, HELLO_ADDRESS_BYTES, HELLO_ADDRESSES_MAX, HELLO_BYTES,
    ITEM_HEADER_BYTES, Msn, NakCode, OPEN_BYTES, Open, OpenFlags, Qpn, Shut, ShutReason, Ssn,
    StreamBlock, Token,
};

/// sq_psn in an OPEN before the program gave one: no PSN of 24 bits.
const PSN_UNKNOWN: u32 = u32::MAX;

/// Bits of a PSN as programs give it.
const PSN_MASK: u32 = 0x00ff_ffff;

/// OPENs that ride with a HELLO to a peer whose id is not known: beside the longest one they fit into the smallest packet.
/// The others follow when the id is known.
const OPENS_WITH_HELLO: usize = 4;
const _: () = assert!(
    CONTROL_OVERHEAD_BYTES
        + (ITEM_HEADER_BYTES + HELLO_BYTES + HELLO_ADDRESSES_MAX * HELLO_ADDRESS_BYTES)
        + OPENS_WITH_HELLO * (ITEM_HEADER_BYTES + OPEN_BYTES)
        <= UNSUSPECTED_PACKET_BYTES
);

/// The failure of work requests whose peer is gone.
const PEER_LOST: Failure = Failure {
    status: Status::RetryExceeded,
    failure: QpFailure::Fatal,
};

impl Connection {
    /// The life of `id` begins to use the connection.
    pub(crate) fn attach(&mut self, cx: &mut Context<'_>, id: QpId) {
        let Some(life) = cx.qps.life_mut(id) else {
            return;
        };
        life.connection = Some(self.index);
        life.phase = Phase::Opening;
        life.peer_token = Token::ZERO;
        life.retry = Retry::new(cx.now);
        life.open_due = false;
        life.ready = false;
        life.news = false;
        life.rnr_ends_at = None;
        let at = life.retry.at;
        let peer_qpn = life.params.dest_qpn;
        self.log_stream(cx, id, What::StreamOpening { peer_qpn });
        for list in [List::All, List::Opening, List::Active] {
            self.streams.enter(cx.qps, id, list);
        }
        self.linger_at = None;
        self.arm_opens(at);
        self.watch_silence(cx, id);
        let rides = self.hello_due && self.outbox.len() < OPENS_WITH_HELLO;
        if self.peer.id.is_known() || rides {
            self.push_open(cx.qps, id);
        }
    }

    /// A HELLO to a peer whose id is not known is due: some OPENs ride with it.
    pub(super) fn push_opens_with_hello(&mut self, cx: &mut Context<'_>) {
        for at in 0..self.streams.of(List::Opening).len() {
            if self.outbox.len() >= OPENS_WITH_HELLO {
                break;
            }
            let id = self.streams.of(List::Opening)[at];
            self.push_open(cx.qps, id);
        }
    }

    /// An OPEN of `id` is to be sent.
    pub(super) fn push_open(&mut self, qps: &mut QpTable, id: QpId) {
        if let Some(life) = qps.life_mut(id)
            && !life.open_due
        {
            life.open_due = true;
            self.outbox.push_back(Item::Open(id));
        }
    }

    /// The OPENs of all lives that wait for an answer are to be sent.
    pub(super) fn push_all_opens(&mut self, cx: &mut Context<'_>) {
        for at in 0..self.streams.of(List::Opening).len() {
            let id = self.streams.of(List::Opening)[at];
            self.push_open(cx.qps, id);
        }
    }

    /// OPENs that were not answered in time are repeated. Returns when to look again.
    pub(super) fn repeat_opens(&mut self, cx: &mut Context<'_>) -> Option<Time> {
        let mut next: Option<Time> = None;
        for at in 0..self.streams.of(List::Opening).len() {
            let id = self.streams.of(List::Opening)[at];
            let Some(life) = cx.qps.life_mut(id) else {
                continue;
            };
            let due = life.retry.is_due(cx.now);
            if due {
                life.retry.again(cx.now);
            }
            let again = life.retry.at;
            next = Some(next.map_or(again, |next| next.min(again)));
            if due && self.is_open() {
                self.push_open(cx.qps, id);
                self.ask_if_known(cx.now);
            }
        }
        next
    }

    /// The OPEN of a life as it is now.
    pub(super) fn open_item(life: &Life, from_qpn: Qpn, srq: bool, host: &mut dyn Host) -> Open {
        let flags = OpenFlags::NONE
            .set(OpenFlags::SRQ, srq)
            .set(OpenFlags::ANSWER_WANTED, life.phase == Phase::Opening);
        Open {
            from_qpn,
            to_qpn: life.params.dest_qpn,
            flags,
            rnr_timer: life.params.min_rnr_timer & 0x1f,
            token: life.token,
            echo: life.peer_token,
            send_psn: life.send.map_or(PSN_UNKNOWN, |send| send.sq_psn & PSN_MASK),
            receive_psn: life.params.rq_psn & PSN_MASK,
            credit: life.responder.credit(host),
            max_dest_rd_atomic: life.params.max_dest_rd_atomic,
            max_rd_atomic: life.send.map_or(0, |send| send.max_rd_atomic),
        }
    }

    /// Takes an OPEN that came with a HELLO which does not show that the peer knows our id: it may be late, or a lie. A life
    /// that is opening remembers the token and tells its own, which costs it nothing if another token comes later; whatever
    /// the OPEN echoes, nothing is open yet, and nothing is answered that is over (WIRE 3.24).
    pub(crate) fn remember_open(&mut self, cx: &mut Context<'_>, open: &Open) {
        let found = cx
            .qps
            .by_qpn(open.to_qpn)
            .and_then(|qp| Some((qp.id, qp.life.as_deref_mut()?)))
            .filter(|(_, life)| life.phase == Phase::Opening && self.is_between(life, open));
        let Some((id, life)) = found else {
            cx.shared.counters.dropped_unknown_qp += 1;
            return;
        };
        let at = Self::hear_token(life, cx.now, open.token);
        self.arm_opens(at);
        self.push_open(cx.qps, id);
    }

    /// Whether an OPEN is for this life, of the queue pair that its program wants.
    fn is_between(&self, life: &Life, open: &Open) -> bool {
        let psn_fits = open.send_psn > PSN_MASK || open.send_psn == life.params.rq_psn & PSN_MASK;
        life.connection == Some(self.index) && life.params.dest_qpn == open.from_qpn && psn_fits
    }

    /// A life that is opening hears the token of the peer's. Returns when to repeat its OPEN.
    fn hear_token(life: &mut Life, now: Time, token: Token) -> Time {
        if life.peer_token == token {
            life.retry.hasten(now);
        } else {
            life.peer_token = token;
            life.responder.open(token);
            // The peer is there now, and waits for our OPEN.
            life.retry = Retry::of_present(now);
        }
        life.retry.at
    }

    /// Takes an OPEN of the peer.
    pub(crate) fn handle_open(&mut self, cx: &mut Context<'_>, open: &Open) {
        let echoes_ended = self.repeat_shut_of(cx, open.to_qpn, open.echo);
        let Some(qp) = cx.qps.by_qpn(open.to_qpn) else {
            cx.shared.counters.dropped_unknown_qp += 1;
            return;
        };
        let id = qp.id;
        let Some(life) = qp.life.as_deref_mut() else {
            return;
        };
        if !self.is_between(life, open) {
            cx.shared.counters.dropped_unknown_qp += 1;
            return;
        }
        // Both ends may echo what is over at the other: a life that is opening learns the peer's token all the same. And a
        // late OPEN of our former life may mislead the very life of the peer that ours is open with: only ours can tell it.
        let misled = life.phase == Phase::Open && life.peer_token == open.token;
        if echoes_ended && life.phase != Phase::Opening && !misled {
            return;
        }
        let echoed = open.echo == life.token;
        match life.phase {
            Phase::Opening => {
                let at = Self::hear_token(life, cx.now, open.token);
                if echoed {
                    self.opened(cx, id, open);
                } else {
                    self.arm_opens(at);
                }
            }
            Phase::Open if life.peer_token == open.token => {}
            // In the error state, and the peer has not heard of it: it must not wait for answers. Who sent us DATA has.
            Phase::Failed if life.peer_token == open.token || life.peer_token.is_zero() => {
                if life.established || !open.flags.contains(OpenFlags::ANSWER_WANTED) {
                    return;
                }
                let shut = Shut {
                    from_qpn: open.to_qpn,
                    reason: ShutReason::Error,
                    from_token: life.token,
                    to_qpn: open.from_qpn,
                    to_token: open.token,
                    msn_executed: life.responder.executed(),
                };
                self.push_answer(Item::Shut(shut));
                return;
            }
            // Another life of the peer's queue pair: ours is bound to the one that it knew. A SHUT tells its end.
            _ => {
                cx.shared.counters.dropped_bad_token += 1;
                return;
            }
        }
        if open.flags.contains(OpenFlags::ANSWER_WANTED) {
            self.push_open(cx.qps, id);
        }
    }

    /// The peer has echoed the token of `id`.
    fn opened(&mut self, cx: &mut Context<'_>, id: QpId, open: &Open) {
        let Some(life) = cx.qps.life_mut(id) else {
            return;
        };
        life.phase = Phase::Open;
        life.requester.open(&PeerStream {
            token: open.token,
            credit: open.credit,
            shared_receive_queue: open.flags.contains(OpenFlags::SRQ),
            message_span: self.peer.message_span,
            packet_span: self.peer.packet_span,
        });
        self.stop_opening(cx.qps, id);
        self.log_stream(cx, id, What::StreamOpened);
        self.watch_silence(cx, id);
        self.make_ready(cx.qps, id);
    }

    /// The same, where nobody is at hand who could say how many receives there are.
    pub(super) fn tell_end_later(&mut self, id: QpId, reason: ShutReason) {
        self.outbox.push_back(Item::End(id, reason));
    }

    /// If a life of ours that `token` names has ended, tells that again.
    pub(super) fn repeat_shut_of(&mut self, cx: &mut Context<'_>, qpn: Qpn, token: Token) -> bool {
        let Some(shut) = self.ended.find(qpn, token).map(|ended| ended.shut) else {
            return false;
        };
        if self.ended.tell_again(qpn, token) {
            self.ack_now(cx);
        }
        self.push_answer(Item::Shut(shut));
        true
    }

    /// Queues an answer to something that the peer repeats, unless too many wait.
    pub(super) fn push_answer(&mut self, item: Item) {
        let our_own = self.streams.of(List::Opening).len() + self.ended.unanswered();
        if self.outbox.len() < OUTBOX_ANSWERS_MAX + our_own {
            self.outbox.push_back(item);
        }
    }

    /// Tells the peer that a life of ours has ended, and remembers it until it has answered.
    pub(crate) fn tell_end(
        &mut self,
        cx: &mut Context<'_>,
        id: QpId,
        reason: ShutReason,
        host: &mut dyn Host,
    ) {
        let Some(qp) = cx.qps.get_mut(id) else { return };
        let from_qpn = qp.qpn;
        let Some(life) = qp.life.as_deref_mut() else {
            return;
        };
        let known = self.ended.find(from_qpn, life.token).is_some();
        // Before the connection is open the peer's life may be open already: an OPEN of ours has echoed it.
        let may_be_known = self.is_open() || (self.is_usable() && !life.peer_token.is_zero());
        if known || life.phase == Phase::PeerGone || !may_be_known {
            return;
        }
        let block = life.responder.block(host);
        let shut = Shut {
            from_qpn,
            reason,
            from_token: life.token,
            to_qpn: life.params.dest_qpn,
            to_token: life.peer_token,
            msn_executed: life.responder.executed(),
        };
        let repeats = if block.code.is_fatal() {
            stream::BLOCK_REPEATS
        } else {
            0
        };
        let look_at = self.ended.add(cx.now, shut, block, repeats);
        if repeats > 0 {
            self.ack_now(cx);
        }
        self.outbox.push_back(Item::Shut(shut));
        self.arm_shuts(look_at);
    }

    /// SHUTs that were not answered in time are repeated, old ones forgotten. Returns when to look again.
    pub(super) fn repeat_shuts(&mut self, cx: &mut Context<'_>) -> Option<Time> {
        let (waiting, outbox) = (self.outbox.len(), &mut self.outbox);
        let next = self
            .ended
            .repeat(cx.now, |shut| outbox.push_back(Item::Shut(shut)));
        if self.outbox.len() > waiting {
            self.ask_if_known(cx.now);
        }
        next
    }

    /// Takes a SHUT: what the peer executed, then the end of its life.
    pub(crate) fn handle_shut(&mut self, cx: &mut Context<'_>, shut: &Shut) {
        let mut answer = Shut {
            from_qpn: shut.to_qpn,
            reason: ShutReason::Unknown,
            from_token: Token::ZERO,
            to_qpn: shut.from_qpn,
            to_token: shut.from_token,
            msn_executed: Msn(0),
        };
        let index = self.index;
        let found = cx
            .qps
            .by_qpn(shut.to_qpn)
            .and_then(|qp| Some((qp.id, qp.life.as_deref_mut()?)));
        if let Some((id, life)) =
            found.filter(|(_, life)| is_end_of(life, shut) && life.connection == Some(index))
        {
            let (opening, established) = (life.phase == Phase::Opening, life.established);
            answer.reason = shut.reason;
            answer.from_token = life.token;
            answer.msn_executed = life.responder.executed();
            if life.phase == Phase::Open {
                let last_word = StreamBlock {
                    qpn: shut.to_qpn,
                    code: NakCode::None,
                    token: life.token,
                    msn_executed: shut.msn_executed,
                    credit: Ssn(0),
                    ..StreamBlock::default()
                };
                if let Err(failure) =
                    life.requester
                        .handle_stream_block(cx.now, &last_word, &mut cx.shared.events)
                {
                    self.fail_life(cx, id, failure);
                }
            }
            // It ended before it heard of ours, or by RESET while ours is opening: the peer's next life may still be for
            // ours, and its OPEN says so. Until then nothing changes: DATA that bears our token may come first. (A life
            // of the peer in the error state answers our OPEN by a SHUT that names ours.)
            let unheard = shut.to_token.is_zero();
            let goes_on = match shut.reason {
                ShutReason::Reset => unheard || !established,
                ShutReason::Error => unheard,
                ShutReason::Destroyed | ShutReason::Unknown => false,
            };
            if !opening || !goes_on {
                self.peer_gone(cx, id);
            }
        }
        self.push_answer(Item::ShutAnswer(answer));
    }

    /// Takes the answer to a SHUT, or the answer to a probe for a life that the peer does not know.
    pub(crate) fn handle_shut_answer(&mut self, cx: &mut Context<'_>, shut: &Shut) {
        if self.ended.answered(cx.now, shut.to_qpn, shut.to_token) {
            return;
        }
        if shut.reason != ShutReason::Unknown || shut.from_token.is_zero() {
            return;
        }
        for at in 0..self.streams.of(List::All).len() {
            let id = self.streams.of(List::All)[at];
            let Some(life) = cx.qps.life_mut(id) else {
                continue;
            };
            if life.params.dest_qpn == shut.from_qpn && life.peer_token == shut.from_token {
                self.peer_gone(cx, id);
                return;
            }
        }
    }

    /// The peer of a stream is gone for good: what is outstanding fails now, what comes later at once.
    pub(super) fn peer_gone(&mut self, cx: &mut Context<'_>, id: QpId) {
        let Some(life) = cx.qps.life_mut(id) else {
            return;
        };
        life.responder.drop_responses();
        if matches!(life.phase, Phase::PeerGone | Phase::Failed) {
            return;
        }
        life.phase = Phase::PeerGone;
        let idle = life.requester.is_idle();
        self.stop_opening(cx.qps, id);
        self.log_stream(cx, id, What::StreamPeerGone);
        if !idle {
            fail_life(cx, id, PEER_LOST);
        }
    }

    /// A queue pair goes to the error state by itself.
    pub(super) fn fail_life(&mut self, cx: &mut Context<'_>, id: QpId, failure: Failure) {
        self.stop_opening(cx.qps, id);
        fail_life(cx, id, failure);
    }

    /// Takes down that the program ended the life of `id`.
    pub(crate) fn log_end(&self, cx: &mut Context<'_>, id: QpId, reason: ShutReason) {
        self.log_stream(cx, id, What::StreamEnded { reason });
    }

    /// The OPEN of `id` is not repeated any more.
    pub(crate) fn stop_opening(&mut self, qps: &mut QpTable, id: QpId) {
        self.streams.leave(qps, id, List::Opening);
    }

    /// The life of `id` does not use the connection any more.
    pub(crate) fn detach(&mut self, cx: &mut Context<'_>, id: QpId) {
        self.streams.leave_all(cx.qps, id);
        if let Some(life) = cx.qps.life_mut(id) {
            life.connection = None;
        }
        if self.streams.is_empty(List::All) {
            self.linger_at = Some(cx.now + super::LINGER_NS);
        }
    }

    /// The connection ends: every life loses its peer. Returns those whose OPEN was not answered: they start over.
    pub(crate) fn kill(&mut self, cx: &mut Context<'_>) -> Vec<QpId> {
        self.state = super::State::Dead;
        let mut unopened = Vec::new();
        for id in self.streams.take_all(cx.qps) {
            let Some(life) = cx.qps.life_mut(id) else {
                continue;
            };
            life.connection = None;
            // Who received something was known to the peer's life, which is gone: there is nothing to begin anew.
            if life.phase == Phase::Opening && !life.established {
                unopened.push(id);
            } else {
                self.peer_gone(cx, id);
            }
        }
        unopened
    }
}

/// Whether a SHUT ends the peer's side of `life`.
fn is_end_of(life: &Life, shut: &Shut) -> bool {
    let ours = shut.to_token == life.token || shut.to_token.is_zero();
    let theirs = shut.from_token == life.peer_token && !life.peer_token.is_zero();
    // While ours is opening, the OPEN of the peer's life may have been lost; it names ours.
    let unheard = life.phase == Phase::Opening && shut.to_token == life.token;
    life.params.dest_qpn == shut.from_qpn && ours && (theirs || unheard)
}

/// A life without a connection, or with one, fails.
pub(crate) fn fail_life(cx: &mut Context<'_>, id: QpId, failure: Failure) {
    let Some(life) = cx.qps.life_mut(id) else {
        return;
    };
    if life.phase == Phase::Failed {
        return;
    }
    life.phase = Phase::Failed;
    let Shared {
        hold,
        events,
        counters,
        ..
    } = &mut *cx.shared;
    stream::fail(
        id,
        &mut life.requester,
        &mut life.responder,
        failure,
        hold,
        events,
    );
    counters.qp_failures += 1;
    let subject = Subject {
        qpn: cx.qps.get(id).map(|qp| qp.qpn),
        ..Subject::default()
    };
    let what = What::StreamFailed {
        status: failure.status,
        failure: failure.failure,
    };
    cx.shared.log.push(cx.now, subject, what);
}

/// A work request was submitted to a life whose peer is gone.
pub(crate) fn fail_if_gone(cx: &mut Context<'_>, id: QpId) {
    let gone = cx
        .qps
        .life_mut(id)
        .is_some_and(|life| life.phase == Phase::PeerGone && !life.requester.is_idle());
    if gone {
        fail_life(cx, id, PEER_LOST);
    }
}
