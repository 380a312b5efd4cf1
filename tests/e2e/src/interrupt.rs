//! Ctrl-C and SIGTERM become a flag that every wait looks at, so that destructors run: namespaces and
//! programs are removed on the way out.
//!
//! [`install`] is called once by `main` of xtask and of the e2e tests; [`check`] by every wait loop.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

/// Set by the signal handler. Relaxed is enough: the flag guards no other memory.
static REQUESTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(signal: libc::c_int) {
    // A second signal means that the first one did not help: leave the ordinary way.
    if REQUESTED.swap(true, Ordering::Relaxed) {
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
    REQUESTED.load(Ordering::Relaxed)
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
