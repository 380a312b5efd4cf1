//! The C boundary: no panic crosses it, no thread is cancelled behind it, and results become what C expects.
//!
//! [`status`] for ops that return 0 or an errno, [`pointer()`] for those that return NULL and set errno, [`guarded`] for
//! the rest. Called by every `extern "C"` function of the plugin.

use crate::verbs::Errno;
use std::ffi::c_int;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; a panic in it (a bug of ours) becomes `fallback`. The panic's message goes to stderr on its way.
///
/// The thread cannot be cancelled meanwhile: `sendmsg`, `recvmsg`, `write` and others are cancellation points, verbs are
/// not, and a cancellation unwinds the stack, past locks that others wait for. One that is asked for comes to pass at the
/// program's next cancellation point.
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    let _not_now = Uncancelable::enter();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// PTHREAD_CANCEL_DISABLE
const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old_state: *mut c_int) -> c_int;
}

/// While it lives, this thread is not cancelled.
struct Uncancelable {
    state_before: c_int,
}

impl Uncancelable {
    fn enter() -> Self {
        let mut state_before = 0;
        // SAFETY: changes the calling thread only; the old state is written to a local.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut state_before) };
        Self { state_before }
    }
}

impl Drop for Uncancelable {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: as above; the state is one that the C library gave out. Not a cancellation point.
        unsafe { pthread_setcancelstate(self.state_before, &raw mut disabled) };
    }
}

/// Runs an op that returns 0 or a positive errno.
pub(crate) fn status(body: impl FnOnce() -> io::Result<()>) -> c_int {
    match guarded(Err(io::Error::from_raw_os_error(libc::EFAULT)), body) {
        Ok(()) => 0,
        Err(error) => errno_of(&error),
    }
}

/// Runs an op that returns an object, or NULL with errno set.
pub(crate) fn pointer<T>(body: impl FnOnce() -> io::Result<*mut T>) -> *mut T {
    match guarded(Err(io::Error::from_raw_os_error(libc::EFAULT)), body) {
        Ok(object) => object,
        Err(error) => {
            set_errno(errno_of(&error));
            std::ptr::null_mut()
        }
    }
}

/// An error with this errno.
pub(crate) fn os_error(errno: c_int) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// The errno that says the same as `error`.
pub(crate) fn errno_of(error: &io::Error) -> c_int {
    Errno::from(error).0
}

/// errno of this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the address of the calling thread's errno is valid for the life of the thread.
    unsafe { *libc::__errno_location() }
}

/// Sets errno of this thread.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}
