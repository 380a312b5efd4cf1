//! Which signals a thread may hold back.

use std::mem::zeroed;

/// Signals by which the processor or the kernel reports what the running code did. Held back they would end the process
/// without its handler.
const OF_THE_PROCESSOR: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    // From a filter of system calls; programs that have one carry the call out in the handler.
    libc::SIGSYS,
];

/// All signals that can wait: those that others send.
#[must_use]
pub fn signals_that_wait() -> libc::sigset_t {
    // SAFETY: zeroes are a valid set; the calls change that set only.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigfillset(&raw mut set);
        for signal in OF_THE_PROCESSOR {
            libc::sigdelset(&raw mut set, signal);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(libc::SIGINT, true)]
    #[case(libc::SIGUSR1, true)]
    #[case(libc::SIGALRM, true)]
    #[case(libc::SIGSEGV, false)]
    #[case(libc::SIGBUS, false)]
    #[case(libc::SIGSYS, false)]
    fn what_the_running_code_did_does_not_wait(#[case] signal: libc::c_int, #[case] waits: bool) {
        let set = signals_that_wait();
        // SAFETY: a set that was filled.
        let is_member = unsafe { libc::sigismember(&raw const set, signal) };
        assert_eq!(is_member == 1, waits);
    }
}
