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

/// Plugin files that one process may have: ours, and perhaps one of another installation.
const MAX_PLUGINS: usize = 8;
/// Filled from the front, never emptied: plugins are never unloaded.
static ON_ENUMERATE: [AtomicPtr<c_void>; MAX_PLUGINS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_PLUGINS];

type OnEnumerate = unsafe extern "C" fn();

/// Looks up the function behind the wrapper of this file.
pub(crate) fn resolve() {
    NEXT.resolve();
}

/// Asks that `callback` be called before each enumeration. The plugin looks for this symbol.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn metaroce_shim_on_enumerate(callback: OnEnumerate) {
    let callback = callback as *mut c_void;
    for slot in &ON_ENUMERATE {
        match slot.compare_exchange(
            std::ptr::null_mut(),
            callback,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return,
            Err(known) if known == callback => return,
            Err(_) => {}
        }
    }
}

fn tell_plugins() {
    for slot in &ON_ENUMERATE {
        let callback = slot.load(Ordering::Acquire);
        if callback.is_null() {
            return;
        }
        // SAFETY: only `metaroce_shim_on_enumerate` stores here; plugins are never unloaded.
        unsafe { std::mem::transmute::<*mut c_void, OnEnumerate>(callback)() };
    }
}

/// Wraps `socket`.
///
/// # Safety
/// As `socket` of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && redirect::is_active() {
        tell_plugins();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static CALLS: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn one() {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }

    unsafe extern "C" fn hundred() {
        CALLS.fetch_add(100, Ordering::Relaxed);
    }

    #[test]
    fn every_plugin_is_told_once() {
        tell_plugins();
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
        for callback in [one as OnEnumerate, hundred, one] {
            metaroce_shim_on_enumerate(callback);
        }
        tell_plugins();
        assert_eq!(CALLS.load(Ordering::Relaxed), 101);
    }
}
