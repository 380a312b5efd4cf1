//! The rdma-core provider plugin: how stock libibverbs loads metaroce and calls it.
//!
//! Nothing of libibverbs is linked. The constructor below finds every copy of libibverbs among the loaded objects
//! ([`libraries`], [`elf`]), registers with each whose layout is known ([`register`], [`op_tables`]), and hooks the two
//! system calls that ops do not reach ([`hooks`]). From then on libibverbs calls the functions of [`register`]
//! (devices), [`context`] (open, close) and [`ops_device`]/[`ops_verbs`] (everything else).
//!
//! Every function that C calls goes through [`boundary`]: check pointers, call safe Rust, map the result; no panic
//! crosses. Unsafe code of this crate is here, in `abi/` and in `verbs/mr_memory.rs`.

pub(crate) mod boundary;
pub(crate) mod context;
pub(crate) mod descriptors;
mod elf;
#[cfg(feature = "entry-points")]
pub mod entry;
mod extension;
mod gid_query;
mod hooks;
mod libraries;
mod op_tables;
mod ops;
mod ops_cq;
mod ops_data;
mod ops_device;
mod ops_memory;
mod ops_qp;
mod ops_verbs;
mod register;
mod signals;

pub(crate) use op_tables::SERVED;

use crate::engine;
use crate::verbs::mr_memory::mr_fork;
use std::ffi::{c_char, c_void};
use std::sync::Once;

/// Environment variable that chooses messages: `off`, `error`, `warn`, `info`, `debug`, `trace`, as `env_logger` reads it.
pub(crate) const LOG_VARIABLE: &str = "METAROCE_LOG";

/// Without it: what makes the device unusable, for programs print an errno at most.
const DEFAULT_LOG: &str = "error";

/// The symbol of the shim by which a plugin asks to be told of every enumeration.
const SHIM_SYMBOL: *const c_char = c"metaroce_shim_on_enumerate".as_ptr();

/// Runs when the dynamic linker loads this object, which it does once a process, however many copies of libibverbs ask
/// for it: later copies are registered when the shim says that somebody is about to enumerate.
extern "C" fn load() {
    boundary::guarded((), || {
        start_log();
        forget_everything_in_forked_children();
        register::register_with_all();
        subscribe_to_shim();
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = load;

/// Runs when the process ends by `exit`, after the program's own `atexit` functions: peers are told, so that they need not
/// find out.
extern "C" fn unload() {
    boundary::guarded((), engine::close_all);
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = unload;

/// A forked child must not touch the sockets and queue pairs of its parent.
fn forget_everything_in_forked_children() {
    unsafe extern "C" fn before() {
        boundary::guarded((), mr_fork::before_fork);
    }
    unsafe extern "C" fn in_parent() {
        mr_fork::after_fork_in_parent();
    }
    unsafe extern "C" fn in_child() {
        // Atomic operations: the child of a process with threads must do no more.
        mr_fork::after_fork_in_child();
        engine::after_fork_in_child();
    }
    // SAFETY: the functions stay, as this object is never unloaded.
    let result = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    if result != 0 {
        log::warn!("pthread_atfork failed ({result}): do not fork while devices are open");
    }
}

/// Called by the shim, inside `ibv_get_device_list` of some copy; keeps errno as it was.
extern "C" fn on_enumerate() {
    let saved = boundary::errno();
    boundary::guarded((), register::register_with_all);
    boundary::set_errno(saved);
}

/// The private ABI numbers under which copies of libibverbs look for the plugin's file: `-rdmavNN.so`.
pub(crate) fn private_abis() -> Vec<u32> {
    let mut numbers: Vec<u32> = op_tables::RELEASES
        .iter()
        .map(|release| release.private_abi)
        .collect();
    numbers.dedup();
    numbers
}

/// The releases of rdma-core with these version definitions, for people; `None` if unknown.
pub(crate) fn supported_release(private_abi: u32, public_minor: u32) -> Option<&'static str> {
    op_tables::Release::find(private_abi, public_minor).map(|release| release.rdma_core)
}

fn start_log() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let environment = env_logger::Env::new().filter_or(LOG_VARIABLE, DEFAULT_LOG);
        // Somebody else's logger in this copy of the `log` crate can only be that of a test.
        let _ = env_logger::Builder::from_env(environment).try_init();
    });
}

fn subscribe_to_shim() {
    type Subscribe = unsafe extern "C" fn(extern "C" fn());
    // SAFETY: the symbol is that of our own shim, whose definition has this type, or NULL.
    unsafe {
        let symbol: *mut c_void = libc::dlsym(libc::RTLD_DEFAULT, SHIM_SYMBOL);
        if !symbol.is_null() {
            std::mem::transmute::<*mut c_void, Subscribe>(symbol)(on_enumerate);
        }
    }
}

#[cfg(test)]
mod tests;
