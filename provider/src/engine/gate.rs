//! The lock of an engine, and the work that is left at its door.
//!
//! Any thread of the application may do the engine's work, one at a time. Who finds the lock taken does not wait: it
//! leaves its work and goes. Whoever holds the lock looks at the door once more *after* unlocking, or work left in
//! the last moment would lie there until somebody happens to come by.

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, fence};
use std::time::Duration;

/// Rounds after unlocking before somebody else must be told to go on: keeps one thread's call from serving all the
/// others for ever.
const MAX_ROUNDS: usize = 16;

/// A state `S` behind a lock, and work `W` left for its holder.
pub(super) struct Gate<S, W> {
    state: Mutex<S>,
    left: Mutex<Vec<W>>,
    /// `left` is not empty. Lets the holder look without taking a lock.
    has_left: AtomicBool,
}

/// What [`Gate::leave`] found.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// All work is done or will be done by the present holder.
    Served,
    /// Work remains after [`MAX_ROUNDS`]: wake somebody.
    Remains,
}

impl<S, W> Gate<S, W> {
    pub(super) fn new(state: S) -> Self {
        Gate {
            state: Mutex::new(state),
            left: Mutex::new(Vec::new()),
            has_left: AtomicBool::new(false),
        }
    }

    /// The state, if nobody has it.
    pub(super) fn try_enter(&self) -> Option<MutexGuard<'_, S>> {
        self.state.try_lock()
    }

    /// The state, after waiting for whoever has it.
    pub(super) fn enter(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// As [`Gate::enter`], but gives up after `timeout`.
    pub(super) fn enter_within(&self, timeout: Duration) -> Option<MutexGuard<'_, S>> {
        self.state.try_lock_for(timeout)
    }

    /// Whether work was left. For the holder of the state: it takes the work with [`Gate::take`].
    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Moves the work that was left to the end of `into`. For the holder of the state only.
    pub(super) fn take(&self, into: &mut Vec<W>) {
        let mut left = self.left.lock();
        self.has_left.store(false, Ordering::Relaxed);
        into.append(&mut left);
    }

    /// Unlocks, then does what was left meanwhile with `serve` (which must [`Gate::take`] it).
    pub(super) fn exit(&self, guard: MutexGuard<'_, S>, mut serve: impl FnMut(&mut S)) -> Left {
        drop(guard);
        for _ in 0..MAX_ROUNDS {
            // Partner: the fence in `leave`. Either we see its flag here, or its try_lock sees that we have unlocked.
            fence(Ordering::SeqCst);
            if !self.has_left() {
                return Left::Served;
            }
            let Some(mut state) = self.state.try_lock() else {
                return Left::Served;
            };
            serve(&mut state);
        }
        Left::Remains
    }

    /// Leaves `work` for the holder of the state; does it here, with `serve`, if there is none any more.
    pub(super) fn leave(&self, work: W, mut serve: impl FnMut(&mut S)) -> Left {
        self.left.lock().push(work);
        self.has_left.store(true, Ordering::Relaxed);
        // Partner: the fence in `exit`.
        fence(Ordering::SeqCst);
        match self.state.try_lock() {
            None => Left::Served,
            Some(mut state) => {
                serve(&mut state);
                self.exit(state, serve)
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// The state of the test gate: the sum of all work done, and a place to take it to.
    #[derive(Default)]
    struct Sum {
        total: u64,
        taken: Vec<u64>,
    }

    fn serve(gate: &Gate<Sum, u64>, state: &mut Sum) {
        gate.take(&mut state.taken);
        state.total += state.taken.drain(..).sum::<u64>();
    }

    #[test]
    fn work_left_while_the_lock_is_taken_is_done_at_exit() {
        let gate = Gate::new(Sum::default());
        let guard = gate.try_enter().unwrap();
        assert!(gate.try_enter().is_none());
        assert_eq!(
            gate.leave(5, |_| unreachable!("the lock is taken")),
            Left::Served
        );
        assert_eq!(gate.exit(guard, |state| serve(&gate, state)), Left::Served);
        assert_eq!(gate.enter().total, 5);
    }

    #[test]
    fn endless_work_does_not_hold_a_thread_for_ever() {
        let gate = Gate::new(Sum::default());
        let guard = gate.enter();
        let _ = gate.leave(1, |_| ());
        let endless = |state: &mut Sum| {
            serve(&gate, state);
            gate.left.lock().push(1);
            gate.has_left.store(true, Ordering::Relaxed);
        };
        assert_eq!(gate.exit(guard, endless), Left::Remains);
        assert_eq!(gate.enter().total, MAX_ROUNDS as u64);
    }

    #[test]
    fn no_work_is_ever_stranded() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 20_000;
        let gate = Arc::new(Gate::new(Sum::default()));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let gate = gate.clone();
                std::thread::spawn(move || {
                    let mut remains = 0;
                    for _ in 0..ROUNDS {
                        let left = match gate.try_enter() {
                            Some(mut state) => {
                                state.total += 1;
                                gate.exit(state, |state| serve(&gate, state))
                            }
                            None => gate.leave(1, |state| serve(&gate, state)),
                        };
                        remains += u64::from(left == Left::Remains);
                    }
                    remains
                })
            })
            .collect();
        let remains: u64 = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        let mut state = gate.enter();
        if remains > 0 {
            // Somebody was told that work remains: that is not stranded.
            serve(&gate, &mut state);
        }
        assert!(!gate.has_left(), "work at the door of an empty room");
        assert_eq!(state.total, THREADS * ROUNDS);
    }
}
