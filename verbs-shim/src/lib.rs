//! LD_PRELOAD stand-in for sysfs and /dev/infiniband below libibverbs.
//!
//! Without a kernel RDMA stack, stock libibverbs finds no devices. This library sits between libibverbs (and programs
//! that look at sysfs themselves, as NCCL and UCX do) and the C library. With `METAROCE_TREE=DIRECTORY`, paths below
//! `/sys/class/infiniband`, `/sys/class/infiniband_verbs`, `/dev/infiniband` and `/etc/libibverbs.d` are looked up below
//! that directory (`redirect`); netlink sockets of the RDMA kind fail, so that libibverbs reads sysfs ([`netlink`]).
//! Everything else, and everything without that variable, passes straight through.
//!
//! A wrapper may run in a signal handler, between fork and exec, or on a small stack, and gets whatever pointers programs
//! pass: so the functions behind are resolved at load (`next`), nothing is allocated or locked, a buffer for a new name
//! is on the stack only when there is one, and NULL paths go through to the C library. No code here can panic.
//!
//! It depends on nothing else of metaroce: a second copy of the plugin in a process would be a disaster. The plugin finds
//! this library by the symbol `metaroce_shim_on_enumerate`.

pub mod directories;
pub mod links;
pub mod netlink;
mod next;
pub mod open;
mod redirect;
pub mod stat;

/// Runs when the dynamic linker has loaded this library; wrappers that are called even earlier help themselves.
extern "C" fn load() {
    redirect::initialise();
    open::resolve();
    stat::resolve();
    links::resolve();
    directories::resolve();
    netlink::resolve();
}

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static CONSTRUCTOR: extern "C" fn() = load;
