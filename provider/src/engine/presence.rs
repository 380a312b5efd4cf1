//! Who drives the engine: threads of the application that poll, one that blocks for events (`reader.rs`), or the background
//! thread.
//!
//! The background thread *serves* at first. A thread of the application that calls again and again without being away for
//! long makes it *watch* instead; it serves again when polls cease or a completion queue is armed. All of this is a matter
//! of speed only: whoever drives, everything is done under the engine's lock.

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};
use metaroce_proto::types::Time;

/// Longest absence between two calls of a thread that polls: more than a polling loop does in between, less than it takes
/// to wake the background thread. A program that waits for bytes in its own memory (`ib_write_lat`) stays away longer.
pub(super) const POLL_GAP_NS: u64 = 10_000;
/// Polls in a row after which the application is believed to poll: some 20 µs of spinning, more than a program makes that
/// wakes up, empties its queue and blocks again.
#[cfg(not(loom))]
pub(super) const FEWEST_POLLS: u32 = 64;
/// A model has no time for more.
#[cfg(loom)]
pub(super) const FEWEST_POLLS: u32 = 2;
/// The most that are asked for, after the application has ceased early again and again.
const MOST_POLLS: u32 = 1 << 16;
/// How much more is asked for after each such time.
const MORE_POLLS: u32 = 8;
/// Polling that ceased within so long a time was not steady: the missed poll cost as much as it gained.
const EARLY_NS: u64 = 20_000_000;

/// What both sides see, without the lock.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The background thread watches.
    watching: AtomicBool,
    /// It does because a thread that blocks for events drives (`reader.rs`), which arms before each time.
    reading: AtomicBool,
    /// Polls of the application so far.
    polls: AtomicU64,
    /// When the application's last call ended, in nanoseconds of the clock.
    last_call_ns: AtomicU64,
    /// How often a completion queue was armed.
    arms: AtomicU64,
    /// `arms` when the background thread was told to watch.
    arms_before: AtomicU64,
}

impl Presence {
    pub(super) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    /// Whether a thread of the application polls steadily.
    pub(super) fn is_polled(&self) -> bool {
        self.is_watching() && !self.is_reading()
    }

    /// Whether a thread that blocks for events drives.
    pub(super) fn is_reading(&self) -> bool {
        self.reading.load(Ordering::Relaxed)
    }

    /// The background thread shall watch, for a thread that blocks for events drives from now on.
    pub(super) fn watch_reader(&self) {
        self.reading.store(true, Ordering::Relaxed);
        self.watching.store(true, Ordering::Relaxed);
    }

    pub(super) fn count_poll(&self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Whether the application called within the last `gap_ns`.
    pub(super) fn called_within(&self, now: Time, gap_ns: u64) -> bool {
        now.as_ns()
            .saturating_sub(self.last_call_ns.load(Ordering::Relaxed))
            < gap_ns
    }

    /// A completion queue was armed. True if the background thread must be woken for it.
    pub(super) fn arm(&self) -> bool {
        self.arms.fetch_add(1, Ordering::Relaxed);
        // Partner: the fence in `watch`. Either it sees that we counted, or we see that it watches.
        fence(Ordering::SeqCst);
        self.is_polled()
    }

    /// Whether a completion queue was armed since the background thread was told to watch, by one who will not drive.
    pub(super) fn was_armed(&self) -> bool {
        !self.is_reading()
            && self.arms.load(Ordering::Relaxed) != self.arms_before.load(Ordering::Relaxed)
    }

    /// The background thread shall watch. False if a completion queue was armed since the application had armed
    /// `arms_before` times, when it began to poll without a break: whoever armed is about to sleep.
    fn watch(&self, arms_before: u64) -> bool {
        self.arms_before.store(arms_before, Ordering::Relaxed);
        self.watching.store(true, Ordering::Relaxed);
        // Partner: the fence in `arm`.
        fence(Ordering::SeqCst);
        let armed = self.was_armed();
        if armed {
            self.serve();
        }
        !armed
    }

    /// The background thread serves.
    pub(super) fn serve(&self) {
        self.watching.store(false, Ordering::Relaxed);
        self.reading.store(false, Ordering::Relaxed);
    }
}

/// How steadily the application polls; under the engine's lock.
#[derive(Debug)]
pub(super) struct Streak {
    /// Polls in a row.
    polls: u32,
    /// How many it takes.
    needed: u32,
    arms: u64,
    last_call: Time,
    watching_since: Time,
}

impl Default for Streak {
    fn default() -> Self {
        Streak {
            polls: 0,
            needed: FEWEST_POLLS,
            arms: 0,
            last_call: Time::ZERO,
            watching_since: Time::ZERO,
        }
    }
}

impl Streak {
    /// A call of the application begins.
    pub(super) fn begin_call(&mut self, presence: &Presence, now: Time) {
        let arms = presence.arms.load(Ordering::Relaxed);
        if now.since_ns(self.last_call) > POLL_GAP_NS || arms != self.arms {
            self.polls = 0;
            self.arms = arms;
        }
    }

    /// A call of the application ends.
    pub(super) fn end_call(&mut self, presence: &Presence, now: Time) {
        self.last_call = now;
        presence.last_call_ns.store(now.as_ns(), Ordering::Relaxed);
    }

    /// A poll ends. True if the background thread must be woken, to watch from now on.
    pub(super) fn end_poll(&mut self, presence: &Presence, now: Time) -> bool {
        self.end_call(presence, now);
        self.polls = self.polls.saturating_add(1);
        if self.polls < self.needed || presence.is_watching() {
            return false;
        }
        self.polls = 0;
        self.watching_since = now;
        presence.watch(self.arms)
    }

    /// How often the application had armed a completion queue when the present row of polls began.
    #[cfg(loom)]
    pub(super) fn arms_seen(&self) -> u64 {
        self.arms
    }

    /// Polls ceased while the background thread watched.
    pub(super) fn missed(&mut self, now: Time) {
        let early = now.since_ns(self.watching_since) < EARLY_NS;
        self.needed = if early {
            (self.needed * MORE_POLLS).min(MOST_POLLS)
        } else {
            FEWEST_POLLS
        };
        self.polls = 0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Polls `count` times, `gap_ns` apart, from `start_ns` on. True if the last made the background thread watch.
    fn poll(
        streak: &mut Streak,
        presence: &Presence,
        start_ns: u64,
        count: u32,
        gap_ns: u64,
    ) -> bool {
        let mut told = false;
        for index in 0..u64::from(count) {
            let now = Time::from_ns(start_ns + index * gap_ns);
            streak.begin_call(presence, now);
            told = streak.end_poll(presence, now);
        }
        told
    }

    #[test]
    fn steady_polling_makes_it_watch_and_slow_polling_does_not() {
        let (presence, mut streak) = (Presence::default(), Streak::default());
        assert!(!poll(&mut streak, &presence, 0, 1000, POLL_GAP_NS + 1));
        assert!(!poll(
            &mut streak,
            &presence,
            1 << 40,
            FEWEST_POLLS - 1,
            400
        ));
        assert!(!presence.is_watching());
        assert!(poll(&mut streak, &presence, 1 << 41, FEWEST_POLLS, 400));
        assert!(presence.is_watching() && !presence.was_armed());
        // It is told once.
        assert!(!poll(
            &mut streak,
            &presence,
            (1 << 41) + 100_000,
            1000,
            400
        ));
    }

    #[test]
    fn a_program_that_blocks_again_and_again_is_served() {
        let (presence, mut streak) = (Presence::default(), Streak::default());
        for round in 0..100 {
            assert!(!poll(
                &mut streak,
                &presence,
                round * 20_000,
                FEWEST_POLLS / 2,
                100
            ));
            assert!(!presence.arm());
        }
        assert!(!presence.is_watching());
    }

    #[test]
    fn arming_while_it_watches_asks_to_be_woken() {
        let (presence, mut streak) = (Presence::default(), Streak::default());
        assert!(poll(&mut streak, &presence, 0, FEWEST_POLLS, 400));
        assert!(presence.arm());
        assert!(presence.was_armed());
        presence.serve();
        assert!(!presence.arm());
    }

    #[test]
    fn arming_between_two_polls_of_another_thread_is_not_overlooked() {
        let (presence, mut streak) = (Presence::default(), Streak::default());
        assert!(!poll(&mut streak, &presence, 0, FEWEST_POLLS - 1, 400));
        let now = Time::from_ns(u64::from(FEWEST_POLLS) * 400);
        streak.begin_call(&presence, now);
        assert!(!presence.arm());
        assert!(!streak.end_poll(&presence, now));
        assert!(!presence.is_watching());
    }

    #[test]
    fn polling_that_ceases_early_must_be_steadier_the_next_time() {
        let (presence, mut streak) = (Presence::default(), Streak::default());
        assert!(poll(&mut streak, &presence, 1000, FEWEST_POLLS, 400));
        streak.missed(Time::from_ns(200_000));
        presence.serve();
        assert!(!poll(&mut streak, &presence, 300_000, FEWEST_POLLS, 400));
        assert!(poll(
            &mut streak,
            &presence,
            1_000_000,
            FEWEST_POLLS * MORE_POLLS,
            400
        ));
        for _ in 0..20 {
            streak.missed(Time::from_ns(1_300_000));
        }
        assert_eq!(streak.needed, MOST_POLLS);
        streak.missed(Time::from_ns(1_300_000 + EARLY_NS));
        assert_eq!(streak.needed, FEWEST_POLLS);
    }
}
