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

/// Does `write`, which writes to a file that the program knows nothing of, so that what the kernel says of it by a signal
/// (nobody reads the pipe any more, the file is as large as files may be) does not reach the program. The write then fails
/// with EPIPE or EFBIG.
pub fn without_signals_of_writing<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: zeroes are valid sets, which the calls fill, and a valid `timespec`; `pthread_sigmask` changes the calling
    // thread only, back to what it was at the end, and `sigtimedwait` takes what this thread got meanwhile, without waiting.
    unsafe {
        let (mut held, mut before, mut waited): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&raw mut held);
        libc::sigpending(&raw mut waited);
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            // One that waited before is the program's.
            if libc::sigismember(&raw const waited, signal) == 0 {
                libc::sigaddset(&raw mut held, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, &raw mut before);
        let result = write();
        let at_once: libc::timespec = zeroed();
        while libc::sigtimedwait(&raw const held, std::ptr::null_mut(), &raw const at_once) > 0 {}
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Write, pipe};

    #[test]
    fn a_pipe_that_nobody_reads_is_an_error_and_not_the_end_of_the_program() {
        // SAFETY: no pointers. Test programs ignore it, others do not.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (reader, mut writer) = pipe().unwrap();
        drop(reader);
        let result = without_signals_of_writing(|| writer.write(b"x"));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
        // Nor does it come later.
        let result = without_signals_of_writing(|| 7);
        assert_eq!(result, 7);
    }

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
