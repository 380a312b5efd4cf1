//! Signals that arrive while a hooked `read` does something else than reading.
//!
//! What the program sees must be what `read` would do: a handler without SA_RESTART ends the call with EINTR, one with
//! it does not. `ppoll` knows no such difference, so signals are held back, and looked at before they are let in.
//! Called by `hooks.rs`.

use metaroce_udp::signals_that_wait;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// What [`Held::waiting`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waiting {
    /// Nothing that the thread would take.
    Nothing,
    /// Signals, none of which ends a blocking call that can be taken up again.
    Restarting,
    /// A signal whose handler ends a blocking call.
    Interrupting,
}

/// While it lives, this thread takes no signals (but those of the processor); they come when they are let in.
#[must_use]
pub(super) struct Held {
    before: libc::sigset_t,
}

impl Held {
    pub(super) fn enter() -> Self {
        let held = signals_that_wait();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: changes the calling thread only; the old set is written to a local, for which zeroes are a valid value
        // should the call fail (it cannot: the arguments are right).
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, before.as_mut_ptr());
            Held {
                before: before.assume_init(),
            }
        }
    }

    /// What would come if signals were let in now.
    pub(super) fn waiting(&self) -> Waiting {
        let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: writes one set, for which zeroes are a valid value too.
        let pending = unsafe {
            libc::sigpending(pending.as_mut_ptr());
            pending.assume_init()
        };
        let mut waiting = Waiting::Nothing;
        for signal in 1..=libc::SIGRTMAX() {
            // SAFETY: two sets that were filled.
            let comes = unsafe {
                libc::sigismember(&raw const pending, signal) == 1
                    && libc::sigismember(&raw const self.before, signal) == 0
            };
            if comes {
                if interrupts(signal) {
                    return Waiting::Interrupting;
                }
                waiting = Waiting::Restarting;
            }
        }
        waiting
    }
}

impl Held {
    /// Not by `Drop`: handlers run in here, and may leave it by a jump. The caller has nothing under way that would need an end.
    pub(super) fn let_in(self) {
        // SAFETY: changes the calling thread only, to what it was.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, null_mut()) };
    }
}

/// Whether the handler of `signal` ends a blocking call.
fn interrupts(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; writes one `sigaction`, for which zeroes are a valid value too.
    let action = unsafe {
        libc::sigaction(signal, null(), action.as_mut_ptr());
        action.assume_init()
    };
    let has_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    has_handler && action.sa_flags & libc::SA_RESTART == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_signal: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }

    fn handle(signal: libc::c_int, flags: libc::c_int) {
        // SAFETY: the handler does what a handler may do; all other members may be zero.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0);
        }
    }

    fn raise(signal: libc::c_int) {
        // SAFETY: sends to the calling thread.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    /// One test: handlers belong to the process.
    #[test]
    fn signals_wait_and_are_told_apart() {
        handle(libc::SIGUSR1, libc::SA_RESTART);
        handle(libc::SIGUSR2, 0);
        let held = Held::enter();
        assert_eq!(held.waiting(), Waiting::Nothing);
        raise(libc::SIGUSR1);
        assert_eq!(held.waiting(), Waiting::Restarting);
        raise(libc::SIGUSR2);
        assert_eq!(held.waiting(), Waiting::Interrupting);
        // One that the thread had blocked itself is not for now.
        let inner = Held::enter();
        assert_eq!(inner.waiting(), Waiting::Nothing);
        inner.let_in();
        assert_eq!(HANDLED.load(Ordering::Relaxed), 0);
        held.let_in();
        assert_eq!(HANDLED.load(Ordering::Relaxed), 2);
    }
}
