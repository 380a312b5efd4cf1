//! The RDMA netlink socket, by which libibverbs enumerates devices where the kernel has RDMA. It is refused when there is
//! a tree, so that libibverbs reads sysfs. This is also the moment when some copy of libibverbs is about to enumerate,
//! of which the plugin is told: its constructor runs once a process, and a copy that was loaded later does not know it.

use crate::next::{Missing, Next};
use crate::redirect;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// `NETLINK_RDMA`.
const NETLINK_RDMA: c_int = 20;

static NEXT: Next = Next::new(c"socket");
static ON_ENUMERATE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

type OnEnumerate = unsafe extern "C" fn();

/// Looks up the function behind the wrapper of this file.
pub(crate) fn resolve() {
    NEXT.resolve();
}

/// Asks that `callback` be called before each enumeration. The plugin looks for this symbol.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn metaroce_shim_on_enumerate(callback: OnEnumerate) {
    ON_ENUMERATE.store(callback as *mut c_void, Ordering::Release);
}

/// Wraps `socket`.
///
/// # Safety
/// As `socket` of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && redirect::is_active() {
        let callback = ON_ENUMERATE.load(Ordering::Acquire);
        if !callback.is_null() {
            // SAFETY: only `metaroce_shim_on_enumerate` stores here; the plugin is never unloaded.
            unsafe { std::mem::transmute::<*mut c_void, OnEnumerate>(callback)() };
        }
        redirect::set_errno(libc::EPROTONOSUPPORT);
        return -1;
    }
    let next = NEXT.get();
    if next.is_null() {
        return c_int::missing();
    }
    // SAFETY: the next definition of `socket`, with the caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, Socket>(next)(domain, kind, protocol) }
}
