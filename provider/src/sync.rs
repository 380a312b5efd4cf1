//! Atomics and locks of the concurrent corners (`engine/gate.rs`, `engine/presence.rs`, `engine/nap.rs`, `verbs/cq.rs`):
//! parking_lot's and the standard library's, or, built with `--cfg loom`, loom's, which let a test try every order of the
//! threads and every value that a weak memory may show. `cargo xtask loom` runs those tests, whose names begin with
//! `loom_`; nothing else works in such a build.
//!
//! Loom takes SeqCst accesses for no more than AcqRel, but knows SeqCst *fences*: code here that needs one order of
//! everything says so with a fence.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use modelled::{Mutex, MutexGuard};

#[cfg(loom)]
mod modelled {
    use super::{AtomicBool, Ordering};
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    /// A lock with the methods of parking_lot's, and one word that decides who has it, as there. Not loom's own lock:
    /// loom does not try a failing `try_lock` in every order. Threads of a model are coroutines of one thread, so
    /// the lock around the value, which nobody but the owner of the word takes, never waits.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T> {
        taken: AtomicBool,
        value: parking_lot::Mutex<T>,
    }

    pub(crate) struct MutexGuard<'a, T> {
        /// `None` only while it is dropped.
        value: Option<parking_lot::MutexGuard<'a, T>>,
        taken: &'a AtomicBool,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex {
                taken: AtomicBool::new(false),
                value: parking_lot::Mutex::new(value),
            }
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            self.taken
                .compare_exchange(false, true, acquire, relaxed)
                .is_ok()
                .then(|| MutexGuard {
                    value: self.value.try_lock(),
                    taken: &self.taken,
                })
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            loop {
                if let Some(guard) = self.try_lock() {
                    return guard;
                }
                loom::thread::yield_now();
            }
        }

        /// There is no time in a model: waits for as long as it takes.
        pub(crate) fn try_lock_for(&self, _timeout: Duration) -> Option<MutexGuard<'_, T>> {
            Some(self.lock())
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_ref().expect("held until it is dropped")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_mut().expect("held until it is dropped")
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.value = None;
            self.taken.store(false, Ordering::Release);
        }
    }
}
