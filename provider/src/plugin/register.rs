//! Registration with every copy of libibverbs, and the ops by which it makes our devices.

use super::boundary::guarded;
use super::context;
use super::hooks;
use super::libraries::{self, Found, Library, Refusal};
use crate::abi::{verbs_device, verbs_device_ops, verbs_match_ent, verbs_sysfs_dev};
use crate::device::{fnv1a, is_our_name};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// Copies of libibverbs that one process may have. Each wheel brings one at most; the table is of fixed size so that it
/// needs no lock, which a fork in another thread could leave taken.
const MAX_LIBRARIES: usize = 32;

/// How long a thread waits at most for another to finish registering the same copy: a few list operations.
const REGISTRATION_WAIT: Duration = Duration::from_millis(100);

/// The copies that know us; filled from the front, never emptied.
static LIBRARIES: [AtomicPtr<Library>; MAX_LIBRARIES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_LIBRARIES];

/// Copies whose refusal was said (a hash of file and address), so that it is not said at each enumeration; beyond so many,
/// nothing is said.
static REFUSED: [AtomicUsize; MAX_LIBRARIES] = [const { AtomicUsize::new(0) }; MAX_LIBRARIES];

/// What became of an attempt to enter a copy into the table.
enum Claim {
    /// It is in the table now, and the caller has to register with it.
    Ours(&'static Library),
    /// Another thread was faster.
    Anothers,
    /// There is no room.
    Full,
}

/// We match by name only, but libibverbs walks the table without a look at the pointer: this is its end.
struct MatchTable([verbs_match_ent; 1]);
// SAFETY: immutable.
unsafe impl Sync for MatchTable {}
static MATCH_NOTHING: MatchTable = MatchTable([verbs_match_ent {
    driver_data: std::ptr::null_mut(),
    key: 0,
    vendor: 0,
    device: 0,
    kind: 0,
}]);

/// A new table for `verbs_register_driver`; each copy gets its own.
pub(super) fn device_ops() -> verbs_device_ops {
    verbs_device_ops {
        name: c"metaroce".as_ptr(),
        match_min_abi_version: 0,
        // The ABI version of the kernel's interface, of which we use nothing.
        match_max_abi_version: i32::MAX as u32,
        match_table: MATCH_NOTHING.0.as_ptr(),
        static_providers: std::ptr::null_mut(),
        match_device: Some(match_device),
        alloc_context: Some(context::alloc_context),
        import_context: None,
        alloc_device: Some(alloc_device),
        uninit_device: Some(uninit_device),
    }
}

/// Registers with every loaded copy that does not know us yet. Cheap when there is none; called again and again.
pub(super) fn register_with_all() {
    for found in libraries::find_all() {
        if wait_if_known(found.object.base()) {
            continue;
        }
        let library = match Library::open(&found) {
            Ok(library) => library,
            Err(Refusal::Gone) => continue,
            Err(Refusal::Unfit(reason)) => {
                refuse(&found, &reason);
                continue;
            }
        };
        match claim(library) {
            Claim::Ours(library) => {
                // SAFETY: the copy is pinned in memory.
                unsafe { hooks::install(&library.object) };
                library.register();
                log::debug!(
                    "registered with {} (rdma-core {})",
                    library.file.to_string_lossy(),
                    library.release.rdma_core
                );
            }
            Claim::Anothers => {}
            Claim::Full => refuse(
                &found,
                &format!("this process has {MAX_LIBRARIES} copies already"),
            ),
        }
    }
}

/// Says, once, that and why programs that use this copy will see no devices.
fn refuse(found: &Found, reason: &str) {
    let name = fnv1a(found.file.to_bytes()) as usize;
    // Zero is the mark of a free place.
    let key = (name ^ found.object.base()).max(1);
    for slot in &REFUSED {
        let before = slot.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed);
        match before {
            Ok(_) => {
                log::warn!(
                    "{}: no metaroce devices for programs that use this copy of libibverbs: {reason}",
                    found.file.to_string_lossy()
                );
                return;
            }
            Err(known) if known == key => return,
            Err(_) => {}
        }
    }
}

/// Whether the copy at `base` is in the table. If it is, waits (bounded) until the thread that put it there is done.
fn wait_if_known(base: usize) -> bool {
    for slot in &LIBRARIES {
        // Acquire: pairs with the release of `claim`.
        let library = slot.load(Ordering::Acquire);
        // SAFETY: entries are leaked boxes.
        let Some(library) = (unsafe { library.as_ref() }) else {
            return false;
        };
        if library.object.base() == base {
            let step = Duration::from_micros(100);
            let mut waited = Duration::ZERO;
            // Acquire: pairs with the release in `Library::register`.
            while !library.registered.load(Ordering::Acquire) && waited < REGISTRATION_WAIT {
                std::thread::sleep(step);
                waited += step;
            }
            return true;
        }
    }
    false
}

/// Puts a copy into the table, for ever. If that fails, the copy is let go.
fn claim(library: Box<Library>) -> Claim {
    let base = library.object.base();
    let library = Box::into_raw(library);
    let mut outcome = Claim::Full;
    for slot in &LIBRARIES {
        // Release: publishes the fields of the entry; acquire on failure, since the other's entry is read.
        match slot.compare_exchange(
            std::ptr::null_mut(),
            library,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            // SAFETY: the pointer is that of a box, now leaked.
            Ok(_) => return Claim::Ours(unsafe { &*library }),
            // SAFETY: entries are leaked boxes.
            Err(other) if unsafe { (*other).object.base() } == base => {
                outcome = Claim::Anothers;
                break;
            }
            Err(_) => {}
        }
    }
    // SAFETY: not published, so still ours alone.
    drop(unsafe { Box::from_raw(library) });
    wait_if_known(base);
    outcome
}

/// Whether a device that libibverbs found in sysfs is ours.
unsafe extern "C" fn match_device(device: *mut verbs_sysfs_dev) -> bool {
    guarded(false, || {
        // SAFETY: libibverbs passes a valid structure, in which the name ends with NUL.
        let name = unsafe { CStr::from_ptr((*device).ibdev_name.as_ptr()) };
        name.to_str().is_ok_and(is_our_name)
    })
}

/// `IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS`: without it libibverbs takes the optional access flags away before it
/// calls us, and with them the program's consent to relaxed ordering.
const CORE_SUPPORT: u64 = 1;

/// Allocates what libibverbs fills as the device.
unsafe extern "C" fn alloc_device(_device: *mut verbs_sysfs_dev) -> *mut verbs_device {
    // SAFETY: no preconditions; all-zero is what libibverbs expects, but for what the kernel would have told it.
    unsafe {
        let device = libc::calloc(1, size_of::<verbs_device>()).cast::<verbs_device>();
        if let Some(device) = device.as_mut() {
            device.core_support = CORE_SUPPORT;
        }
        device
    }
}

/// Frees a device that nobody holds any more.
unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: libibverbs passes what `alloc_device` returned, for the last time.
    unsafe { libc::free(device.cast()) }
}
