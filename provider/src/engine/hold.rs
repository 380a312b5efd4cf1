//! Whether it pays to let small requests gather before they are sent. Alone a packet costs some 3 µs of system call, in a
//! train a tenth of that; a program that posts one request at a time, with many under way, would never see a train.
//!
//! Only while the application polls, so that it comes back in a moment, and only for a moment: see `core.rs`. A program
//! that waits for each answer, or has a few requests under way, is not held up.

use metaroce_proto::types::Time;

/// Requests under way, beside those held, from which on holding pays.
const BUSY_REQUESTS: u64 = 8;
/// Most requests that are held.
const MOST_REQUESTS: u64 = 16;
/// Most bytes that are held: a train.
const MOST_BYTES: u64 = 60_000;
/// How long the first is held at most. Should the application stop polling, the background thread sends them, some
/// 100 µs later.
const LONGEST_NS: u64 = 10_000;

/// What is held, and what is under way.
#[derive(Debug, Default)]
pub(super) struct Hold {
    requests: u64,
    bytes: u64,
    /// When the first of them was posted.
    since: Time,
    /// Requests without completion, those held included. Only a hint: a queue pair that is reset takes its own with it.
    unfinished: u64,
}

impl Hold {
    /// Requests were given to the core and not yet sent.
    pub(super) fn posted(&mut self, now: Time, requests: u64, bytes: u64) {
        if self.requests == 0 {
            self.since = now;
        }
        self.requests += requests;
        self.bytes += bytes;
        self.unfinished += requests;
    }

    /// A request completed.
    pub(super) fn completed(&mut self) {
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    /// Requests vanished, nobody knows how many.
    pub(super) fn forget(&mut self) {
        self.unfinished = self.requests;
    }

    /// Everything is being sent.
    pub(super) fn release(&mut self) {
        (self.requests, self.bytes) = (0, 0);
    }

    /// Whether to wait for more.
    pub(super) fn waits(&self, now: Time) -> bool {
        self.requests > 0
            && self.unfinished >= self.requests + BUSY_REQUESTS
            && self.requests < MOST_REQUESTS
            && self.bytes < MOST_BYTES
            && now.since_ns(self.since) < LONGEST_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hold with `under_way` requests sent and one held since time 0.
    fn hold(under_way: u64) -> Hold {
        let mut hold = Hold::default();
        hold.posted(Time::ZERO, under_way, 0);
        hold.release();
        hold.posted(Time::ZERO, 1, 64);
        hold
    }

    #[test]
    fn nothing_waits_for_nothing_and_few_requests_never_wait() {
        assert!(!Hold::default().waits(Time::ZERO));
        assert!(!hold(BUSY_REQUESTS - 1).waits(Time::ZERO));
        assert!(hold(BUSY_REQUESTS).waits(Time::ZERO));
    }

    #[test]
    fn the_wait_ends_with_time_number_bytes_and_completions() {
        assert!(!hold(20).waits(Time::from_ns(LONGEST_NS)));
        let mut many = hold(20);
        many.posted(Time::ZERO, MOST_REQUESTS - 2, 64);
        assert!(many.waits(Time::ZERO));
        many.posted(Time::ZERO, 1, 64);
        assert!(!many.waits(Time::ZERO));
        let mut large = hold(20);
        large.posted(Time::ZERO, 1, MOST_BYTES);
        assert!(!large.waits(Time::ZERO));
        let mut done = hold(BUSY_REQUESTS);
        done.completed();
        assert!(!done.waits(Time::ZERO));
        let mut gone = hold(20);
        gone.forget();
        assert!(!gone.waits(Time::ZERO));
    }
}
