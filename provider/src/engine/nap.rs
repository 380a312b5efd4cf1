//! How long the background thread sleeps, told to those who may have to wake it.
//!
//! The thread publishes when it will wake *before* it releases the engine's lock, and sleeps after. Whoever takes the lock
//! next and brings the core's next timeout forward sees that it would sleep too long, and wakes it. Used by
//! `background.rs` (the thread) and `mod.rs` (everybody else).

use crate::sync::{AtomicU64, Ordering};
use metaroce_proto::types::Time;

/// It is awake, or wakes by itself soon enough.
const AWAKE: u64 = 0;
/// While something is outstanding the thread looks at the core's timers this often at least: a post that brings the next
/// timeout forward then need not wake it.
pub(super) const SERVE_AT_MOST_NS: u64 = 1_000_000;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Nap {
    /// When the thread wakes by itself, in nanoseconds of the clock; `u64::MAX` for never.
    until_ns: AtomicU64,
}

impl Nap {
    pub(super) fn new() -> Self {
        Nap {
            until_ns: AtomicU64::new(AWAKE),
        }
    }

    /// The thread will sleep until then, or until it is woken. Under the engine's lock, whose release publishes it.
    pub(super) fn plan(&self, until: Option<Time>) {
        let until_ns = until.map_or(u64::MAX, Time::as_ns);
        self.until_ns.store(until_ns, Ordering::Release);
    }

    /// The thread has slept, or is being woken. Without the lock: who still sees the plan wakes it once too often.
    pub(super) fn end(&self) {
        self.until_ns.store(AWAKE, Ordering::Release);
    }

    /// Whether the thread must be woken for a timeout at `due`. Under the engine's lock.
    pub(super) fn is_too_long_for(&self, due: Option<Time>) -> bool {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        let due_ns = due.map_or(u64::MAX, Time::as_ns);
        until_ns != AWAKE && due_ns.saturating_add(SERVE_AT_MOST_NS) < until_ns
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_a_timeout_well_before_the_end_of_the_nap_wakes() {
        let (nap, at) = (Nap::new(), |ns| Some(Time::from_ns(ns)));
        assert!(!nap.is_too_long_for(at(5)));
        nap.plan(at(10_000_000));
        assert!(nap.is_too_long_for(at(5)));
        assert!(!nap.is_too_long_for(at(10_000_000 - SERVE_AT_MOST_NS)));
        assert!(!nap.is_too_long_for(None));
        nap.plan(None);
        assert!(nap.is_too_long_for(at(u64::MAX - 2 * SERVE_AT_MOST_NS)));
        assert!(!nap.is_too_long_for(None));
        nap.end();
        assert!(!nap.is_too_long_for(at(5)));
    }
}
