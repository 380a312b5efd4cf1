//! Ctrl-C and SIGTERM become a flag that every wait looks at, so that destructors run: namespaces and
//! programs are removed on the way out.
//!
//! [`install`] is called once by `main` of xtask and of the e2e tests; [`check`] by every wait loop.

use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Result, bail};

/// The signal that came, set by its handler; 0 is none. Relaxed is enough: it guards no other memory.
static REQUESTED: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(signal: libc::c_int) {
    // A second signal means that the first one did not help: leave the ordinary way.
    if REQUESTED.swap(signal, Ordering::Relaxed) != 0 {
        // SAFETY: signal and raise are async-signal-safe; the default action ends this process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Catches SIGINT, SIGTERM and SIGHUP from now on.
pub fn install() {
    let handler: extern "C" fn(libc::c_int) = on_signal;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only touches an atomic and calls async-signal-safe functions.
        unsafe {
            libc::signal(signal, handler as *const () as libc::sighandler_t);
        }
    }
}

/// Whether the user asked to stop.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed) != 0
}

/// The exit status of a program that was asked to stop, as shells have it: 128 and the signal.
pub fn exit_status() -> Option<u8> {
    status_of(REQUESTED.load(Ordering::Relaxed))
}

fn status_of(signal: libc::c_int) -> Option<u8> {
    u8::try_from(128 + signal).ok().filter(|_| signal != 0)
}

/// Fails once the user asked to stop.
///
/// # Errors
/// "interrupted".
pub fn check() -> Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_says_which_signal() {
        assert_eq!(status_of(0), None);
        assert_eq!(status_of(libc::SIGINT), Some(130));
        assert_eq!(status_of(libc::SIGTERM), Some(143));
    }
}
