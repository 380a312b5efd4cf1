//! The one background thread of an engine.
//!
//! It *watches* while the application polls: asleep on a timer, blind to the sockets, for a thread that wakes with every
//! packet would only take the processor away from the one that polls. It *serves* when the application does not poll
//! (passive target, blocked on a completion channel, computing): asleep in epoll until packets or timers come.
//! Handing over is prompt both ways: a poll that does not come is noticed within one timer, an armed completion queue
//! wakes the thread at once, and it stands back as soon as somebody polls steadily.

use super::clock::until;
use super::core::{Caller, Core, Turn};
use super::{Inner, MODE_SERVING, MODE_WATCHING};
use metaroce_proto::types::Time;
use metaroce_udp::{Poller, prepare_background_thread};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How soon a missing poll is noticed while something is going on.
const WATCH_BUSY: Duration = Duration::from_micros(100);
/// The same while nothing is.
const WATCH_IDLE: Duration = Duration::from_millis(1);
/// Polls in a row after which the application is believed to poll: some 20 µs of spinning, and more than a program makes
/// that wakes up, empties its queue and blocks again.
const HANDOVER_POLLS: u64 = 64;
/// While something is outstanding the thread looks at the core's timers this often at least: a post that brings the next
/// timeout forward then need not wake it.
pub(super) const SERVE_AT_MOST_NS: u64 = 1_000_000;
/// A turn that received so much is part of a stream …
const STREAM_BYTES: usize = 32 << 10;
/// … and the next packets are let to gather so long, instead of being woken for each: waking a sleeping processor costs
/// the *sender* some 10 µs. It gained a quarter of throughput.
const STREAM_NAP: Duration = Duration::from_micros(50);
/// Timer slack: the kernel's default of 50 µs would spoil the times above.
const TIMER_SLACK_NS: u64 = 1_000;
/// `Inner::sleep_until_ns` when the thread is awake, or wakes by itself soon enough.
pub(super) const AWAKE: u64 = 0;

/// Runs until the engine stops.
pub(super) fn run(inner: &Arc<Inner>, poller: &Poller) {
    prepare_background_thread(TIMER_SLACK_NS);
    let mut thread = Background {
        inner,
        poller,
        polls_at_entry: inner.polls.load(Ordering::Relaxed),
    };
    while !inner.stop.load(Ordering::Acquire) {
        if inner.mode.load(Ordering::Relaxed) == MODE_WATCHING {
            thread.watch();
        } else {
            thread.serve();
        }
    }
}

struct Background<'a> {
    inner: &'a Arc<Inner>,
    poller: &'a Poller,
    /// `Inner::polls` when the present mode began.
    polls_at_entry: u64,
}

impl Background<'_> {
    /// Sleeps once and looks whether the application polled meanwhile.
    fn watch(&mut self) {
        let polls = self.inner.polls.load(Ordering::Relaxed);
        let now = self.inner.clock.now();
        // Whoever holds the lock is at work on it.
        let busy = self
            .inner
            .gate
            .try_enter()
            .is_none_or(|core| core.busy(now));
        let woken = self
            .inner
            .waker
            .wait(if busy { WATCH_BUSY } else { WATCH_IDLE });
        if woken || self.inner.polls.load(Ordering::Relaxed) == polls {
            self.enter(MODE_SERVING);
        }
    }

    /// One turn, then sleep until there is something to do.
    fn serve(&mut self) {
        if self.application_polls() {
            self.enter(MODE_WATCHING);
            return;
        }
        let (turn, timeout) = self.turn();
        if turn.more || self.inner.stop.load(Ordering::Acquire) {
            return;
        }
        if turn.received_bytes >= STREAM_BYTES {
            self.inner.waker.wait(STREAM_NAP);
        } else if !self.spin(&turn) {
            if let Err(error) = self.poller.wait(&self.inner.sockets, timeout) {
                log::error!("waiting for packets failed: {error}");
                self.inner.waker.wait(WATCH_IDLE);
            }
        }
        self.inner.sleep_until_ns.store(AWAKE, Ordering::SeqCst);
    }

    /// A turn, and how long to sleep after it. The time of waking is published *before* the lock is released, so that
    /// whoever takes it next and brings the timeout forward can see that we will sleep too long.
    fn turn(&self) -> (Turn, Option<Duration>) {
        let inner = self.inner;
        let mut core = inner.gate.enter();
        let turn = core.turn(inner, Caller::Thorough);
        core.counters.background_turns += 1;
        let now = inner.clock.now();
        let wake_at = wake_time(&core, now);
        inner
            .sleep_until_ns
            .store(wake_at.map_or(u64::MAX, Time::as_ns), Ordering::SeqCst);
        inner.leave(core);
        (turn, wake_at.map(|at| until(now, at)))
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
            && !self.application_polls()
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

    /// Whether the application polls steadily since this mode began and since it last armed a completion queue.
    fn application_polls(&self) -> bool {
        let since = self
            .polls_at_entry
            .max(self.inner.polls_at_arm.load(Ordering::Relaxed));
        self.inner.polls.load(Ordering::Relaxed).wrapping_sub(since) >= HANDOVER_POLLS
    }

    fn enter(&mut self, mode: u8) {
        self.polls_at_entry = self.inner.polls.load(Ordering::Relaxed);
        // SeqCst with `Engine::armed`: either it sees this mode and wakes us, or we see its count of polls.
        self.inner.mode.store(mode, Ordering::SeqCst);
        if mode == MODE_WATCHING
            && self.inner.polls_at_arm.load(Ordering::SeqCst) >= self.polls_at_entry
        {
            // A completion queue was armed while we made up our mind.
            self.inner.mode.store(MODE_SERVING, Ordering::SeqCst);
        }
    }
}

/// When the thread must wake without being woken; `None` for never.
fn wake_time(core: &Core, now: Time) -> Option<Time> {
    let look_again = core.outstanding().then(|| now + SERVE_AT_MOST_NS);
    match (core.next_timeout(), look_again) {
        (Some(timeout), Some(look)) => Some(timeout.min(look)),
        (timeout, look) => timeout.or(look),
    }
}
