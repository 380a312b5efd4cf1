//! A thread of the application that blocks until a completion event comes, and does the engine's work meanwhile.
//!
//! Otherwise a packet wakes the background thread, and that the application: twice the time of a socket program that
//! blocks. Only a thread that comes back soon each time drives; for all others (rare events, streams, several threads that
//! read, programs that wait with poll or epoll) the background thread serves as before. It watches meanwhile
//! (`presence.rs`), and takes over if the reader stays away. All of this is a matter of speed only.
//!
//! Called by `verbs/` when libibverbs reads from a completion channel.

use super::Inner;
use super::background::STREAM_BYTES;
use super::core::Caller;
use super::{Engine, clock};
use metaroce_proto::types::Time;
use metaroce_udp::is_readable;
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two reads of one thread that begin in so short a time are a row.
const READ_GAP_NS: u64 = 500_000;
/// Reads in a row after which the thread drives.
const FEWEST_READS: u32 = 8;
/// The most that are asked for, after driving has ended early again and again.
const MOST_READS: u32 = 512;
/// How much more is asked for after each such time.
const MORE_READS: u32 = 8;
/// Driving that brought fewer events than this ended early.
const FEW_EVENTS: u32 = 64;
/// Without a packet for so long, the background thread takes over.
const PATIENCE_NS: u64 = 1_000_000;
/// Longest stay, whatever happens: signals and cancellation wait outside.
const LONGEST_NS: u64 = 10_000_000;

/// What a thread that wants to read shall do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driven {
    /// Read: there is something, or the background thread will see to it.
    Read,
    /// Let in what waits for this thread (signals, cancellation), then come back.
    Again,
}

/// Tells a thread from all others that live. The standard library's `ThreadId` allocates in a thread that it did not make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ThreadMark(usize);

impl ThreadMark {
    fn of_caller() -> Self {
        thread_local! {
            static PLACE: u8 = const { 0 };
        }
        ThreadMark(PLACE.with(|place| std::ptr::from_ref(place).addr()))
    }
}

/// How the application reads, as far as seen.
#[derive(Debug)]
struct Habit {
    thread: ThreadMark,
    last_read: Time,
    /// Reads in a row.
    reads: u32,
    /// How many it takes.
    needed: u32,
    /// It drives: the background thread was told to watch.
    drives: bool,
    /// Events since then.
    events: u32,
}

impl Default for Habit {
    fn default() -> Self {
        Habit {
            thread: ThreadMark(0),
            last_read: Time::ZERO,
            reads: 0,
            needed: FEWEST_READS,
            drives: false,
            events: 0,
        }
    }
}

impl Habit {
    /// `thread` wants to read. True if it shall drive.
    fn read(&mut self, now: Time, thread: ThreadMark) -> bool {
        let in_a_row = self.thread == thread && now.since_ns(self.last_read) <= READ_GAP_NS;
        self.thread = thread;
        self.last_read = now;
        self.reads = if in_a_row {
            self.reads.saturating_add(1)
        } else {
            0
        };
        self.reads >= self.needed
    }

    /// It drove until `now`.
    fn drove(&mut self, now: Time, driven: Driven) {
        if driven == Driven::Read {
            self.events += 1;
        }
        // A thread that was in here all the time has not been away.
        self.last_read = now;
    }

    /// The background thread serves again.
    fn ended(&mut self) {
        if !std::mem::take(&mut self.drives) {
            return;
        }
        self.needed = if self.events < FEW_EVENTS {
            (self.needed * MORE_READS).min(MOST_READS)
        } else {
            FEWEST_READS
        };
        self.reads = 0;
        self.events = 0;
    }
}

/// The readers of an engine.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// A thread is in [`Engine::drive`].
    seat: AtomicBool,
    habit: Mutex<Habit>,
}

impl Reader {
    /// Whether a thread that reads is at work, or asleep until packets come.
    pub(super) fn drives(&self) -> bool {
        self.seat.load(Ordering::Relaxed)
    }

    pub(super) fn sit(&self) -> Option<Seat<'_>> {
        let taken = self.seat.swap(true, Ordering::Relaxed);
        (!taken).then_some(Seat(&self.seat))
    }
}

/// Who drives; free again when it is dropped.
pub(super) struct Seat<'a>(&'a AtomicBool);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Engine {
    /// This thread is about to block until `event` is readable: if that is its habit it does the engine's work until
    /// then. Comes back within some 10 ms; earlier if `is_wanted` says so, which is asked when there is nothing to do.
    pub fn drive(&self, event: BorrowedFd<'_>, is_wanted: &dyn Fn() -> bool) -> Driven {
        let inner = &*self.inner;
        if inner.is_foreign() || inner.stop.load(Ordering::Relaxed) {
            return Driven::Read;
        }
        let Some(_seat) = inner.reader.sit() else {
            // Another thread reads too: neither would be there for the other's events.
            inner.hand_over();
            return Driven::Read;
        };
        if !inner.begins_to_drive() {
            return Driven::Read;
        }
        let driven = if is_readable(event) {
            Driven::Read
        } else {
            inner.drive(event, is_wanted)
        };
        inner.reader.habit.lock().drove(inner.clock.now(), driven);
        driven
    }
}

impl Inner {
    /// Whether the calling thread shall drive; the background thread is told.
    fn begins_to_drive(&self) -> bool {
        let mut habit = self.reader.habit.lock();
        if !self.presence.is_reading() {
            habit.ended();
        }
        if !habit.read(self.clock.now(), ThreadMark::of_caller()) {
            drop(habit);
            self.hand_over();
            return false;
        }
        if !std::mem::replace(&mut habit.drives, true) {
            drop(habit);
            self.presence.watch_reader();
            self.waker.wake();
        }
        true
    }

    /// The background thread serves from now on, if it does not yet.
    fn hand_over(&self) {
        if self.presence.is_reading() {
            self.presence.serve();
            self.waker.wake();
        }
    }

    fn drive(&self, event: BorrowedFd<'_>, is_wanted: &dyn Fn() -> bool) -> Driven {
        let start = self.clock.now();
        let mut packets_until = start + PATIENCE_NS;
        loop {
            let mut next_timeout = None;
            let mut turn = None;
            self.presence.count_poll();
            if let Some(mut core) = self.gate.try_enter() {
                let made = core.turn(self, Caller::Polling);
                core.counters.inline_turns += u64::from(made.worked);
                next_timeout = core.next_timeout();
                let now = self.clock.now();
                core.streak.end_call(&self.presence, now);
                turn = Some(made);
                self.leave(core);
            }
            let now = self.clock.now();
            let turn = turn.unwrap_or_default();
            if turn.events > 0 && is_readable(event) {
                return Driven::Read;
            }
            if turn.received_bytes > 0 {
                packets_until = now + PATIENCE_NS;
            }
            // The background thread knows how to let a stream gather.
            if turn.received_bytes >= STREAM_BYTES || now >= packets_until {
                self.hand_over();
            }
            if !self.presence.is_reading() {
                return Driven::Read;
            }
            if now.since_ns(start) >= LONGEST_NS {
                return Driven::Again;
            }
            if turn.worked {
                // What it put off is due with the next turn.
                continue;
            }
            let until = next_timeout.map_or(packets_until, |timeout| timeout.min(packets_until));
            if self.sockets.wait_or(event, clock::until(now, until)) {
                return Driven::Read;
            }
            if is_wanted() {
                return Driven::Again;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(habit: &mut Habit, start_ns: u64, gap_ns: u64, count: u32) -> bool {
        let thread = ThreadMark::of_caller();
        (0..u64::from(count)).fold(false, |_, index| {
            habit.read(Time::from_ns(start_ns + index * gap_ns), thread)
        })
    }

    #[test]
    fn a_thread_that_comes_back_soon_drives_and_a_slow_one_does_not() {
        let mut habit = Habit::default();
        assert!(!rows(&mut habit, 1 << 40, READ_GAP_NS + 1, 100));
        assert!(!rows(&mut habit, 1 << 41, 20_000, FEWEST_READS));
        assert!(rows(
            &mut habit,
            (1 << 41) + 1_000_000,
            20_000,
            FEWEST_READS + 1
        ));
    }

    #[test]
    fn two_threads_in_turns_do_not_drive() {
        let mut habit = Habit::default();
        let here = ThreadMark::of_caller();
        let there = std::thread::spawn(ThreadMark::of_caller).join().unwrap();
        assert_ne!(here, there);
        for round in 0..1000 {
            let thread = if round % 2 == 0 { here } else { there };
            assert!(!habit.read(Time::from_ns(round * 1000), thread));
        }
    }

    #[test]
    fn driving_that_ends_early_takes_a_longer_row_the_next_time() {
        let mut habit = Habit::default();
        habit.ended();
        assert_eq!(habit.needed, FEWEST_READS);
        for round in 1..=10 {
            habit.drives = true;
            habit.ended();
            assert_eq!(
                habit.needed,
                (FEWEST_READS * MORE_READS.pow(round.min(5))).min(MOST_READS)
            );
        }
        habit.drives = true;
        habit.events = FEW_EVENTS;
        habit.ended();
        assert_eq!(habit.needed, FEWEST_READS);
    }
}
