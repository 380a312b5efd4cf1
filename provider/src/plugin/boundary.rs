//! The C boundary: no panic crosses it, and results become what C expects.
//!
//! [`status`] for ops that return 0 or an errno, [`pointer()`] for those that return NULL and set errno, [`guarded`] for
//! the rest. Called by every `extern "C"` function of the plugin.

use crate::verbs::Errno;
use std::ffi::c_int;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; a panic in it (a bug of ours) becomes `fallback`. The panic's message goes to stderr on its way.
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
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
