//! Hooks of `write`, `ioctl` and `read` in a copy of libibverbs, for what no op reaches: completion channels, and the GID table
//! ([`gid_query`]).
//!
//! `ibv_create_comp_channel` writes a command to the context's `cmd_fd`, which in our case is `/dev/null`. So the slots
//! through which libibverbs (that object only, not the program) calls `write` and `ioctl` are pointed here. Calls on
//! descriptors that are not ours go on to what was there before: libc, or the hooks of a second plugin file.
//!
//! `ibv_get_cq_event` reads from a channel's descriptor. Before that read blocks, its thread may do the engine's work for a
//! while (`engine/reader.rs`), which saves waking the background thread first.
//!
//! No locks that are waited for without a bound: a hook may run in a forked child.

use super::boundary::{errno_of, guarded, set_errno};
use super::descriptors;
use super::elf::{self, Object, Slot};
use super::gid_query;
use super::libraries::object_base_of;
use super::signals::{Held, Waiting};
use crate::engine::Driven;
use crate::verbs::{Port, channel};
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type Read = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize) -> isize;
type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// `IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL`.
const CREATE_COMP_CHANNEL: u32 = 17;

/// A command of the kernel's verbs interface in its `write` form: the header, and the first field of the commands that
/// answer, which is where the answer goes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Command {
    command: u32,
    in_words: u16,
    out_words: u16,
    response: u64,
}

/// Contexts that one process may have open at a time: beyond the descriptors that it may have by default.
const MAX_CONTEXTS: usize = 4096;
/// Bytes of a completion event (`struct ib_uverbs_comp_event_desc`), which `ibv_get_cq_event` reads at a time.
const EVENT_BYTES: usize = 8;
/// Value of a free place in [`COMMAND_FDS`].
const NO_FD: i32 = -1;

/// The `cmd_fd` of every open context of ours.
static COMMAND_FDS: [AtomicI32; MAX_CONTEXTS] = [const { AtomicI32::new(NO_FD) }; MAX_CONTEXTS];
/// The port behind each of them.
static PORTS: [AtomicPtr<Port>; MAX_CONTEXTS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_CONTEXTS];
/// Places of [`COMMAND_FDS`] that were ever used: where a search may end.
static COMMAND_FDS_USED: AtomicUsize = AtomicUsize::new(0);

/// What the slots held before.
static NEXT_WRITE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static NEXT_READ: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static NEXT_IOCTL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// Set while this thread is in a hook. Two plugin files that hook several copies in different order may come to call
    /// each other; the second time round, the call goes to libc.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Says that libibverbs's calls on `fd` are for us, and which port they ask about. False if there are too many contexts.
pub(super) fn own(fd: c_int, port: &'static Port) -> bool {
    for (place, slot) in COMMAND_FDS.iter().enumerate() {
        if slot
            .compare_exchange(NO_FD, fd, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            // Nobody calls on the descriptor before the context is returned.
            PORTS[place].store(std::ptr::from_ref(port).cast_mut(), Ordering::Release);
            COMMAND_FDS_USED.fetch_max(place + 1, Ordering::AcqRel);
            return true;
        }
    }
    false
}

/// Takes back [`own`].
pub(super) fn disown(fd: c_int) {
    for slot in &COMMAND_FDS[..COMMAND_FDS_USED.load(Ordering::Acquire)] {
        if slot
            .compare_exchange(fd, NO_FD, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return;
        }
    }
}

fn place_of(fd: c_int) -> Option<usize> {
    let used = COMMAND_FDS_USED.load(Ordering::Acquire);
    let is_it = |slot: &AtomicI32| slot.load(Ordering::Acquire) == fd;
    COMMAND_FDS[..used]
        .iter()
        .position(is_it)
        .filter(|_| fd >= 0)
}

fn is_ours(fd: c_int) -> bool {
    place_of(fd).is_some()
}

/// Points the slots of `object` to the hooks.
///
/// # Safety
/// The object is loaded and stays so.
pub(super) unsafe fn install(object: &Object) {
    let hooks: [(&CStr, *mut c_void, &AtomicPtr<c_void>); 3] = [
        (c"read", hooked_read as Read as *mut c_void, &NEXT_READ),
        (c"write", hooked_write as Write as *mut c_void, &NEXT_WRITE),
        (c"ioctl", hooked_ioctl as Ioctl as *mut c_void, &NEXT_IOCTL),
    ];
    for (name, hook, next) in hooks {
        // SAFETY: the object is loaded.
        let slots = unsafe { object.slots_of(name) };
        if slots.is_empty() {
            log::warn!(
                "no slot for {name:?} in this libibverbs: completion channels will not work"
            );
        }
        for slot in slots {
            // SAFETY: the slot is one of a loaded object and holds the address of a function of the hook's type.
            unsafe { redirect(object, slot, hook, next) };
        }
    }
}

/// # Safety
/// `slot` belongs to `object`, which is loaded, and to a function of the type of `hook`.
unsafe fn redirect(object: &Object, slot: Slot, hook: *mut c_void, next: &AtomicPtr<c_void>) {
    let page_bytes = elf::page_bytes();
    let page = (slot.address / page_bytes * page_bytes) as *mut c_void;
    // SAFETY: the slot is mapped, aligned and holds a pointer. libibverbs may call through it at any time, hence atomics.
    let cell = unsafe { AtomicPtr::<c_void>::from_ptr(slot.address as *mut *mut c_void) };
    let old = cell.load(Ordering::Acquire);
    // A slot that was not bound yet points into the object's own table of stubs; calling that would bind it anew and
    // undo the hook. Nor does the C library's function replace another plugin's hook that an earlier copy showed.
    let next_is_known = !next.load(Ordering::Acquire).is_null();
    let base = object_base_of(old);
    let own_stub = base.is_none() || base == Some(object.base());
    let plain = base == object_base_of(libc::getpid as *const c_void);
    if old != hook && !own_stub && !(plain && next_is_known) {
        next.store(old, Ordering::Release);
    }
    let protect = |protection| {
        // SAFETY: one page that holds the slot; whoever reads or writes it does so through this page's mapping.
        unsafe { libc::mprotect(page, page_bytes, protection) == 0 }
    };
    if !protect(libc::PROT_READ | libc::PROT_WRITE) {
        log::warn!("cannot unprotect a slot of libibverbs: completion channels will not work");
        return;
    }
    cell.store(hook, Ordering::Release);
    // Only what the dynamic linker had protected: a lazily bound table must stay writable.
    if slot.read_only {
        protect(libc::PROT_READ);
    }
}

/// Calls `through` with the next function, or `direct` if there is none or this thread is inside a hook already.
fn pass_on<T>(
    next: &AtomicPtr<c_void>,
    through: impl FnOnce(*mut c_void) -> T,
    direct: impl FnOnce() -> T,
) -> T {
    let next = next.load(Ordering::Acquire);
    if next.is_null() || INSIDE.replace(true) {
        return direct();
    }
    let result = through(next);
    INSIDE.set(false);
    result
}

unsafe extern "C-unwind" {
    /// A cancellation point: a thread that is cancelled here unwinds through the caller, which must own nothing then.
    #[link_name = "read"]
    fn read_or_cancel(fd: c_int, bytes: *mut c_void, count: usize) -> isize;
    fn pthread_testcancel();
}

/// The thread may be cancelled in here, as in the read that the program thinks it is: nothing in this function's own frame
/// needs to be cleaned up.
unsafe extern "C-unwind" fn hooked_read(fd: c_int, bytes: *mut c_void, count: usize) -> isize {
    if count == EVENT_BYTES {
        loop {
            let held = Held::enter();
            let wait = guarded(Wait::Over, || wait_for_event(fd, &held));
            // Signals come now. A handler may leave by a jump, after which nothing of the above is put back any more: so it
            // must all be put back by now.
            held.let_in();
            match wait {
                Wait::Over => break,
                // SAFETY: takes no arguments; see above.
                Wait::GoesOn => unsafe { pthread_testcancel() },
                Wait::Interrupted => {
                    set_errno(libc::EINTR);
                    return -1;
                }
            }
        }
    }
    // SAFETY: the arguments are those of the caller; the pointer came out of a slot for `read`.
    unsafe {
        pass_on(
            &NEXT_READ,
            |next| std::mem::transmute::<*mut c_void, Read>(next)(fd, bytes, count),
            || read_or_cancel(fd, bytes, count),
        )
    }
}

/// How far a thread is that waits before it reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    /// Read now.
    Over,
    /// Nothing yet: wait again.
    GoesOn,
    /// By a signal that ends such a read.
    Interrupted,
}

fn wait_for_event(fd: c_int, held: &Held) -> Wait {
    let driven = channel::drive(fd, &|| held.waiting() != Waiting::Nothing);
    match (held.waiting(), driven) {
        // A read that need not wait has its result, whatever signals came.
        (Waiting::Interrupting, _) if descriptors::would_wait(fd) => Wait::Interrupted,
        (_, Driven::Read) | (Waiting::Interrupting, _) => Wait::Over,
        (_, Driven::Again) => Wait::GoesOn,
    }
}

unsafe extern "C" fn hooked_write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    if !is_ours(fd) {
        // SAFETY: the arguments are those of the caller; the pointer came out of a slot for `write`.
        return unsafe {
            pass_on(
                &NEXT_WRITE,
                |next| std::mem::transmute::<*mut c_void, Write>(next)(fd, bytes, count),
                || libc::write(fd, bytes, count),
            )
        };
    }
    let result = guarded(Err(libc::EFAULT), || {
        if bytes.is_null() || count < size_of::<Command>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: libibverbs passes at least as many readable bytes as it says; their alignment is not promised.
        let command = unsafe { bytes.cast::<Command>().read_unaligned() };
        // SAFETY: as above.
        unsafe { answer(&command) }
    });
    match result {
        Ok(()) => isize::try_from(count).unwrap_or(isize::MAX),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Carries out a command; `Err` is an errno.
///
/// # Safety
/// `command.response` is where libibverbs wants the answer.
unsafe fn answer(command: &Command) -> Result<(), c_int> {
    if command.command != CREATE_COMP_CHANNEL {
        return Err(libc::ENOSYS);
    }
    if command.response == 0 {
        return Err(libc::EFAULT);
    }
    let fd = channel::create().map_err(|error| errno_of(&error))?;
    // SAFETY: the response of this command begins with the descriptor, 32 bits wide, in memory of libibverbs.
    unsafe { (command.response as *mut i32).write_unaligned(fd) };
    Ok(())
}

/// C declares `ioctl` with variable arguments; on x86-64 and aarch64 a third one travels like a fixed one.
unsafe extern "C" fn hooked_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if let Some(place) = place_of(fd) {
        let result = guarded(Err(libc::EFAULT), || {
            let port = PORTS[place].load(Ordering::Acquire);
            // SAFETY: ports live as long as the process; libibverbs passes what the request says.
            unsafe { gid_query::answer(port.as_ref().ok_or(libc::EBADF)?, request, argument) }
        });
        return match result {
            Ok(()) => 0,
            Err(errno) => {
                set_errno(errno);
                -1
            }
        };
    }
    // SAFETY: as in `hooked_write`.
    unsafe {
        pass_on(
            &NEXT_IOCTL,
            |next| std::mem::transmute::<*mut c_void, Ioctl>(next)(fd, request, argument),
            || libc::ioctl(fd, request, argument),
        )
    }
}
