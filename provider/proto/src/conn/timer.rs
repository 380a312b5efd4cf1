//! When something of a connection is due, and doing it. One deadline over everything: set-up, paths, the silence of the
//! peer, RNR waits, the delay of an ACK, the end of the linger time. While anything is outstanding there is a deadline.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::conn::reroll::Reroll;
use crate::conn::streams::List;
use crate::conn::{Connection, Context, State};
use crate::endpoint::qp::{Life, Phase, QpTable};
use crate::event::Event;
use crate::stream::Failure;
use crate::types::{QpId, Time};
use crate::wire::{ConnectionId, ShutReason};

/// A deadline that is served so much later shows that this end did not run: its process was stopped, or had no processor.
/// More than the longest pause between two probes.
const ABSENCE_NS: u64 = 50_000_000;

/// The earlier of two deadlines.
fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Connection {
    /// When [`Self::handle_timeout`] has something to do, or earlier.
    pub(crate) fn deadline(&mut self) -> Option<Time> {
        let mut deadline = match self.state {
            State::Opening => Some(self.hello_retry.at),
            State::Open => None,
            State::Closing(at) => return Some(at.min(self.hello_retry.at)),
            State::Dead => return Some(Time::ZERO),
        };
        let others = [
            self.opens_at,
            self.shuts_at,
            self.rnr_waits.peek().map(|Reverse((at, _))| *at),
            self.silence_at,
            self.linger_at,
            self.ack_deadline(),
            self.plane_check_at,
            self.inbound.active_until(),
            self.window_opens_at,
            self.reroll.as_ref().and_then(Reroll::at),
            self.spread.at(),
            self.sizes.search_at(),
            self.sleep_at,
            self.proved_dead_at(),
            self.paths_due(),
        ];
        for other in others {
            deadline = earlier(deadline, other);
        }
        deadline
    }

    /// The earliest deadline of the paths. Asked with every packet: only those are looked at that something was done to
    /// since the last time.
    pub(super) fn paths_due(&mut self) -> Option<Time> {
        if self.dirty_paths != 0 {
            while self.dirty_paths != 0 {
                let at = self.dirty_paths.trailing_zeros() as usize;
                self.dirty_paths &= self.dirty_paths - 1;
                self.path_deadlines[at] = self.paths[at].tx.poll_timeout();
            }
            self.first_path_deadline = self.path_deadlines.iter().copied().flatten().min();
        }
        self.first_path_deadline
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        if let Some(due) = self.deadline() {
            let late_ns = cx.now.since_ns(due.max(self.driven_at));
            if late_ns >= ABSENCE_NS {
                self.excuse_absence(cx, late_ns);
            }
        }
        self.driven_at = cx.now;
        match self.state {
            State::Closing(at) => {
                if at <= cx.now {
                    self.state = State::Dead;
                } else if self.hello_retry.at <= cx.now {
                    self.repeat_close(cx.now);
                }
                return;
            }
            State::Dead => return,
            State::Opening => {
                if self.hello_retry.at <= cx.now {
                    self.hello_retry.again(cx.now);
                    // The id that we echo may come from a late HELLO of a connection that is over; one without an echo
                    // is always answered by one that names the right id.
                    self.peer.id = ConnectionId::UNKNOWN;
                    self.hello_due =
                        !self.streams.is_empty(List::All) || self.ended.is_any_unanswered();
                    self.push_opens_with_hello(cx);
                }
            }
            State::Open => {}
        }
        // That the endpoint looks at the connection again is all that this one is for.
        self.window_opens_at = self.window_opens_at.filter(|at| *at > cx.now);
        self.stream_timeout(cx);
        self.silence_timeout(cx);
        self.ack_timeout(cx.now);
        self.activity_timeout(cx);
        self.plane_timeout(cx);
        self.waiting_timeout(cx);
        self.reroll_timeout(cx);
        self.spread_timeout(cx);
        self.search_timeout(cx);
        if self.paths_due().is_some_and(|due| due <= cx.now) {
            for at in 0..self.paths.len() {
                if self.path_deadlines[at].is_some_and(|due| due <= cx.now) {
                    self.path_timeout(cx, at);
                }
            }
        }
        if self.linger_at.is_some_and(|at| at <= cx.now) {
            self.linger_at = None;
            self.close_idle(cx.now, cx.shared);
        }
        self.sleep_timeout(cx);
    }

    /// An OPEN may have to be repeated at `at`.
    pub(super) fn arm_opens(&mut self, at: Time) {
        self.opens_at = earlier(self.opens_at, Some(at));
    }

    /// A SHUT may have to be repeated at `at`.
    pub(super) fn arm_shuts(&mut self, at: Time) {
        self.shuts_at = earlier(self.shuts_at, Some(at));
    }

    /// A stream may have begun to wait for a receive of the peer.
    pub(super) fn watch_rnr(&mut self, cx: &mut Context<'_>, id: QpId) {
        let now = cx.now;
        let Some(life) = cx.qps.life_mut(id) else {
            return;
        };
        let ends_at = life.requester.poll_timeout(now);
        if ends_at != life.rnr_ends_at {
            life.rnr_ends_at = ends_at;
            self.rnr_waits
                .extend(ends_at.map(|ends_at| Reverse((ends_at, id))));
        }
    }

    fn stream_timeout(&mut self, cx: &mut Context<'_>) {
        if self.opens_at.is_some_and(|at| at <= cx.now) {
            self.opens_at = self.repeat_opens(cx);
        }
        if self.shuts_at.is_some_and(|at| at <= cx.now) {
            self.shuts_at = self.repeat_shuts(cx);
        }
        while let Some(Reverse((at, id))) = self.rnr_waits.peek().copied() {
            if at > cx.now {
                break;
            }
            self.rnr_waits.pop();
            let index = self.index;
            let Some(life) = cx.qps.life_mut(id) else {
                continue;
            };
            // Entries of a wait that ended otherwise, or of an earlier life, stay until their time is over.
            if life.connection == Some(index) && life.rnr_ends_at == Some(at) {
                life.rnr_ends_at = None;
                self.watch_rnr(cx, id);
                self.make_ready(cx.qps, id);
            }
        }
    }

    // ---- Silence (WIRE 3.22) ----

    /// When the silence of the peer becomes too long for a life with work outstanding, or the time in which nothing of what
    /// it sends has passed.
    fn silence_limit(&self, qps: &QpTable, id: QpId) -> Option<Time> {
        let life = qps.get(id)?.life.as_deref()?;
        earlier(self.unheard_limit(life), self.narrow_limit(life))
    }

    fn unheard_limit(&self, life: &Life) -> Option<Time> {
        let patience_ns = life.patience_ns()?;
        let since = life.requester.waiting_since()?;
        match life.phase {
            // What other streams hear does not show that this one will ever be answered.
            Phase::Opening => Some(since + patience_ns),
            Phase::Open => Some(since.max(self.last_heard) + patience_ns),
            Phase::PeerGone | Phase::Failed => None,
        }
    }

    /// For `ns` this end neither asked nor listened: that is no silence of the peer (WIRE 3.22).
    fn excuse_absence(&mut self, cx: &mut Context<'_>, ns: u64) {
        self.last_heard = cx.now.min(self.last_heard + ns);
        self.excuse_suspicion(ns);
        if let Some(narrow) = &mut self.narrow {
            narrow.excuse(cx.now, ns);
        }
        for id in self.streams.of(List::Active) {
            if let Some(life) = cx.qps.life_mut(*id) {
                life.requester.excuse(cx.now, ns);
            }
        }
    }

    /// A life may have got work, or a shorter patience.
    #[inline]
    pub(crate) fn watch_silence(&mut self, cx: &Context<'_>, id: QpId) {
        if let Some(at) = self.silence_limit(cx.qps, id) {
            self.silence_at = earlier(self.silence_at, Some(at));
        }
    }

    fn silence_timeout(&mut self, cx: &mut Context<'_>) {
        if self.silence_at.is_none_or(|at| at > cx.now) {
            return;
        }
        self.silence_at = None;
        self.narrow = self.narrow.filter(|narrow| !narrow.is_over(cx.now));
        // Who has work is active.
        let active: SmallVec<[QpId; 16]> = SmallVec::from_slice(self.streams.of(List::Active));
        for id in active {
            match self.silence_limit(cx.qps, id) {
                Some(at) if at <= cx.now => {
                    self.end_of_patience(cx, id);
                    let failure = Failure::of_request(crate::types::Status::RetryExceeded);
                    self.fail_by_request(cx, id, failure);
                }
                later => self.silence_at = earlier(self.silence_at, later),
            }
        }
    }

    /// A life is about to fail because its peer is silent, or the way to it too narrow.
    fn end_of_patience(&self, cx: &mut Context<'_>, id: QpId) {
        let Some(life) = cx.qps.life_mut(id) else {
            return;
        };
        let heard = self.unheard_limit(life).is_none_or(|at| at > cx.now);
        let narrow = self.narrow.filter(|_| heard);
        if narrow.is_some() {
            // They would be sent again for ever. The FILLs in their place are small and pass.
            life.responder.drop_responses();
        }
        let event = Event::PeerSilent {
            qp: id,
            peer: self.routes.first().destination,
            own: life.key.source.to_ip(),
            answered: life.phase != Phase::Opening,
            swallowed_bytes: narrow.map(|narrow| narrow.bytes),
        };
        cx.shared.events.push_back(event);
    }

    /// A work request of ours failed: the queue pair goes to the error state, and the peer learns it.
    pub(crate) fn fail_by_request(&mut self, cx: &mut Context<'_>, id: QpId, failure: Failure) {
        if let Some(life) = cx.qps.life_mut(id) {
            life.drop_waiting_answers();
        }
        self.fail_life(cx, id, failure);
        self.tell_end_later(id, ShutReason::Error);
    }
}
