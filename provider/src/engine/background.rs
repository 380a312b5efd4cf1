//! The one background thread of an engine.
//!
//! It *watches* while the application polls: asleep on a timer, blind to the sockets, for a thread that wakes with every
//! packet would only take the processor away from the one that polls. It *serves* when the application does not poll
//! (passive target, blocked on a completion channel, computing): asleep in epoll until packets or timers come.
//! A thread that blocks for events may drive like one that polls (`reader.rs`).
//! Handing over is prompt both ways: a poll that does not come is noticed within one timer, an armed completion queue
//! wakes the thread at once, and it stands back as soon as somebody polls steadily (`presence.rs`).

use super::Inner;
use super::asked::Doorman;
use super::changes::Listener;
use super::clock::until;
use super::core::{Caller, Core, Turn};
use super::nap::SERVE_AT_MOST_NS;
use super::neighbours::Service;
use super::presence::POLL_GAP_NS;
use crate::sync::{MutexGuard, Ordering};
use metaroce_proto::types::Time;
use metaroce_udp::{Poller, Ready, prepare_background_thread};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// How soon a missing poll is noticed while something is going on.
const WATCH_BUSY: Duration = Duration::from_micros(100);
/// The same while nothing is.
const WATCH_IDLE: Duration = Duration::from_millis(1);
/// Looks in a row that may find the application posting and not polling, or busy between two events, before this thread
/// serves: posting a long list takes its time, but somebody must receive.
const MISSED_POLLS: u32 = 4;
/// A turn that received so much is part of a stream …
pub(super) const STREAM_BYTES: usize = 32 << 10;
/// … and the next packets are let to gather so long, instead of being woken for each: waking a sleeping processor costs
/// the *sender* some 10 µs. It gained a quarter of throughput.
const STREAM_NAP: Duration = Duration::from_micros(50);
/// The same where many peers send little each: a wake-up costs as much as what came.
const CROWD_NAP: Duration = Duration::from_micros(200);
/// The same where all that they send are acknowledgements, for which nobody waits.
const ACKS_NAP: Duration = Duration::from_millis(1);
/// So long after it was heard a crowd is expected to be heard again.
const CROWD_KEPT_NS: u64 = 100_000_000;
/// Pause while another thread is at work, which does what there is to do; twice as long each time, so many times.
const BUSY_NAP: Duration = Duration::from_micros(20);
const BUSY_NAP_DOUBLINGS: u32 = 3;
/// Asking which addresses have packets costs as much as looking at so many of them.
const FEW_ADDRESSES: usize = 2;
/// Timer slack: the kernel's default of 50 µs would spoil the times above.
const TIMER_SLACK_NS: u64 = 1_000;

/// Runs until the engine stops.
pub(super) fn run(inner: &Arc<Inner>, poller: &Poller, service: Service) {
    prepare_background_thread(TIMER_SLACK_NS);
    let thread = Background {
        inner,
        poller,
        missed_polls: Cell::new(0),
        doorman: Doorman::default(),
        listener: Listener::default(),
        service,
        found_busy: Cell::new(0),
        told: Cell::new(None),
        wait_failed: Cell::new(false),
        crowd_until: Cell::new(Time::ZERO),
        crowd_asks: Cell::new(false),
    };
    while !inner.stop.load(Ordering::Acquire) {
        if inner.presence.is_watching() {
            thread.watch();
        } else {
            thread.serve();
        }
    }
}

struct Background<'a> {
    inner: &'a Arc<Inner>,
    poller: &'a Poller,
    /// Looks in a row that saw the application post and not poll.
    missed_polls: Cell<u32>,
    doorman: Doorman,
    listener: Listener,
    /// The table that is shared with other processes.
    service: Service,
    /// Times in a row that another thread was found at work.
    found_busy: Cell<u32>,
    /// Where packets wait, if this thread was told and has not looked since.
    told: Cell<Option<Ready>>,
    /// Waiting failed, which was told.
    wait_failed: Cell<bool>,
    /// Until then a crowd that was heard is expected again.
    crowd_until: Cell<Time>,
    /// It asks: what it sent were not only acknowledgements.
    crowd_asks: Cell<bool>,
}

impl Background<'_> {
    /// Sleeps once and looks whether the application polled meanwhile.
    fn watch(&self) {
        let inner = self.inner;
        let polls = inner.presence.polls();
        let now = inner.clock.now();
        // Whoever holds the lock is at work on it.
        let busy = inner.gate.try_enter().is_none_or(|mut core| {
            let busy = core.busy(now);
            inner.leave(core);
            busy
        });
        let timeout = if busy { WATCH_BUSY } else { WATCH_IDLE };
        let asked = self.doorman.watched(inner, now);
        if inner.waker.wait_or(asked, timeout).readable {
            // This look came early: it says nothing of the application.
            self.doorman.look(inner, now);
            return;
        }
        self.service.look_now_and_then(inner, self.poller, now);
        let changes = inner.changes.as_ref();
        self.follow_changes(self.listener.hears_now_and_then(changes, now), now);
        if inner.presence.was_armed() {
            inner.presence.serve();
        } else if inner.gate.has_left() {
            // Whoever holds the lock will look at the door; if nobody does, leaving serves it.
            if let Some(core) = inner.gate.try_enter() {
                inner.leave(core);
            }
        } else if inner.presence.polls() != polls || inner.reader.drives() {
            self.missed_polls.set(0);
        } else if let Some(core) = inner.gate.try_enter() {
            self.miss_poll(core);
        }
        // Else the application is inside a call, which may take longer than we slept.
    }

    /// Looks after interfaces and addresses, if anything was heard of them.
    fn follow_changes(&self, heard: bool, now: Time) {
        let inner = self.inner;
        if heard {
            inner.port.look_for_changes();
            inner.planes.look(inner.port, now);
        }
        inner.planes.settle(now);
    }

    /// No poll came while this thread slept, and nobody is inside the engine.
    fn miss_poll(&self, mut core: MutexGuard<'_, Core>) {
        let inner = self.inner;
        let now = inner.clock.now();
        let missed = self.missed_polls.get() + 1;
        let posts = inner
            .presence
            .called_within(now, WATCH_BUSY.as_nanos() as u64);
        // A thread that blocks for events deals with what it got in between.
        let patient = posts || inner.presence.is_reading();
        let serve = !patient || missed >= MISSED_POLLS;
        self.missed_polls.set(if serve { 0 } else { missed });
        if serve {
            core.streak.missed(now);
            inner.presence.serve();
        }
        inner.leave(core);
    }

    /// One turn, then sleep until there is something to do.
    fn serve(&self) {
        let inner = self.inner;
        if self.told.get().is_none() && inner.sockets.local_count() > FEW_ADDRESSES {
            self.wait(Some(Duration::ZERO));
        }
        let Some((turn, timeout)) = self.turn() else {
            let times = self.found_busy.get();
            self.found_busy.set((times + 1).min(BUSY_NAP_DOUBLINGS));
            inner.waker.wait(match self.gathers() {
                true => ACKS_NAP,
                false => BUSY_NAP * (1 << times),
            });
            return;
        };
        self.found_busy.set(0);
        self.doorman.look_now_and_then(inner, turn.began);
        self.service
            .look_now_and_then(inner, self.poller, turn.began);
        let changes = inner.changes.as_ref();
        let heard = self.listener.hears_now_and_then(changes, turn.began);
        self.follow_changes(heard, turn.began);
        if turn.more || inner.stop.load(Ordering::Acquire) {
            return;
        }
        if turn.crowded {
            self.crowd_until.set(turn.began + CROWD_KEPT_NS);
            self.crowd_asks.set(turn.asked);
        }
        if turn.received_bytes >= STREAM_BYTES {
            inner.waker.wait(STREAM_NAP);
        } else if self.gathers() {
            self.wait_for_many(timeout);
        } else if turn.crowded || !self.spin(&turn) {
            let timeout = if turn.crowded {
                // Whatever is due meanwhile is as little late.
                inner.waker.wait(CROWD_NAP);
                Some(Duration::ZERO)
            } else {
                timeout
            };
            self.wait(timeout);
        }
        inner.nap.end();
    }

    /// Whether what comes is let to gather: many peers only acknowledge, and the application does not wait for an event.
    fn gathers(&self) -> bool {
        let expected = self.crowd_until.get() > self.inner.clock.now();
        expected && !self.crowd_asks.get() && !self.inner.presence.was_armed()
    }

    /// Sleeps until there is something to do, and then until all who were sent something at about the same time have
    /// acknowledged it: one turn for all of them.
    fn wait_for_many(&self, timeout: Option<Duration>) {
        let inner = self.inner;
        self.wait(timeout);
        let told = self.told.get();
        if told.is_some_and(|ready| ready.woken || ready.can_receive_any()) {
            // Nobody need wake it from this one.
            inner.nap.end();
            inner.waker.wait(ACKS_NAP);
            self.wait(Some(Duration::ZERO));
        }
    }

    /// Sleeps until there is something to do, `timeout` at most, and looks after what is not the core's business.
    fn wait(&self, timeout: Option<Duration>) {
        let inner = self.inner;
        match self.poller.wait(&inner.sockets, timeout) {
            Ok(ready) => {
                self.told.set(Some(ready));
                if ready.watched {
                    let now = inner.clock.now();
                    self.doorman.look(inner, now);
                    self.service.look(inner, self.poller, now);
                    self.follow_changes(self.listener.hears(inner.changes.as_ref(), now), now);
                }
            }
            Err(error) => {
                if !self.wait_failed.replace(true) {
                    log::error!("waiting for packets failed: {error}");
                }
                inner.waker.wait(WATCH_IDLE);
            }
        }
    }

    /// A turn, and how long to sleep after it. The time of waking is published *before* the lock is released, so that
    /// whoever takes it next and brings the timeout forward can see that we will sleep too long.
    ///
    /// `None` if another thread is at work. Never waits for the lock: it would be given to this thread while that does not
    /// run yet, and until it does nobody could work.
    fn turn(&self) -> Option<(Turn, Option<Duration>)> {
        let inner = self.inner;
        // What it was told may be old by the next time.
        let caller = self.told.take().map_or(Caller::Thorough, Caller::Told);
        let mut core = inner.gate.try_enter()?;
        let turn = core.turn(inner, caller);
        core.counters.background_turns += 1;
        let now = inner.clock.now();
        let wake_at = wake_time(&mut core, now);
        inner.nap.plan(wake_at);
        inner.leave(core);
        Some((turn, wake_at.map(|at| until(now, at))))
    }

    /// Looks for packets for as long as the user allows (`METAROCE_SPIN_US`) after a turn that found some. True if it found more.
    fn spin(&self, turn: &Turn) -> bool {
        let inner = self.inner;
        if !turn.worked || inner.settings.spin.is_zero() {
            return false;
        }
        let end = inner.clock.now() + inner.settings.spin.as_nanos() as u64;
        while inner.clock.now() < end
            && !inner.stop.load(Ordering::Relaxed)
            && !inner.presence.called_within(inner.clock.now(), POLL_GAP_NS)
        {
            if let Some(mut core) = inner.gate.try_enter() {
                let turn = core.turn(inner, Caller::Thorough);
                inner.leave(core);
                if turn.worked {
                    return true;
                }
            }
            std::hint::spin_loop();
        }
        false
    }
}

/// When the thread must wake without being woken; `None` for never.
fn wake_time(core: &mut Core, now: Time) -> Option<Time> {
    let look_again = core.expects(now).then(|| now + SERVE_AT_MOST_NS);
    let timeout = core.next_timeout();
    let timeout = match core.is_crowded(now) {
        // The timers of many, one after the other, are served together.
        true => timeout.map(|at| at.max(now + CROWD_NAP.as_nanos() as u64)),
        false => timeout,
    };
    match (timeout, look_again) {
        (Some(timeout), Some(look)) => Some(timeout.min(look)),
        (timeout, look) => timeout.or(look),
    }
}
