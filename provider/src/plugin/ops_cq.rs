//! Ops of completion queues, and those by which libibverbs says that it has read an event.
//!
//! The object is ours, the `ibv_cq` in front; libibverbs fills that (mutex, condition, channel) after `create_cq`.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use super::boundary::{guarded, os_error, pointer, status};
use super::context::context_of;
use crate::abi::*;
use crate::verbs::channel::{self, Channel};
use crate::verbs::{Cq, limits};

/// How long destroying waits for events to be acknowledged. The kernel waits for ever; a program that never acknowledges
/// gets EBUSY from us, and the object stays.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(60);
/// After so long a warning says what is being waited for.
const ACKNOWLEDGE_WARNING: Duration = Duration::from_secs(1);
/// One wait on the condition: a signal that gets lost costs no more.
const ACKNOWLEDGE_STEP: Duration = Duration::from_millis(100);

/// A completion queue.
#[repr(C)]
pub(super) struct CqObject {
    ibv: ibv_cq,
    pub(super) cq: Arc<Cq>,
    /// Calls of `poll_cq`; which of them makes progress though there are completions follows from it.
    pub(super) polls: AtomicU32,
}

/// The object behind an `ibv_cq`.
///
/// # Safety
/// `cq` is one that `create_cq` returned and that is not destroyed during `'a`.
pub(super) unsafe fn cq_of<'a>(cq: *mut ibv_cq) -> io::Result<&'a CqObject> {
    // SAFETY: the caller's promise; `ibv` is the first member of a `#[repr(C)]` structure.
    unsafe { cq.cast::<CqObject>().as_ref() }.ok_or_else(|| os_error(libc::EINVAL))
}

/// The op `create_cq`: EINVAL for a bad size, vector or channel.
pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    entries: c_int,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        // SAFETY: libibverbs passes a context of ours.
        let opened = unsafe { context_of(context)? };
        if !(0..limits::COMPLETION_VECTORS as c_int).contains(&vector) {
            return Err(os_error(libc::EINVAL));
        }
        // SAFETY: the program passes a channel of this context or NULL.
        let known = unsafe { channel_of(context, channel)? };
        if let Some(channel) = &known {
            channel.attach(opened);
        }
        let cq = Arc::new(Cq::new(i64::from(entries), known, &opened.events)?);
        // SAFETY: zero is a valid `ibv_cq` (pointers, numbers, a mutex and a condition at rest).
        let mut ibv: ibv_cq = unsafe { std::mem::zeroed() };
        ibv.context = context;
        ibv.channel = channel;
        ibv.cqe = cq.capacity() as c_int;
        let object = Box::into_raw(Box::new(CqObject {
            ibv,
            cq,
            polls: AtomicU32::new(0),
        }));
        // SAFETY: just made.
        unsafe { (*object).cq.set_user_handle(object as u64) };
        Ok(object.cast())
    })
}

/// # Safety
/// `channel` is a live channel or NULL.
unsafe fn channel_of(
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
) -> io::Result<Option<Arc<Channel>>> {
    // SAFETY: the caller's promise.
    let Some(channel) = (unsafe { channel.as_ref() }) else {
        return Ok(None);
    };
    if channel.context != context {
        return Err(os_error(libc::EINVAL));
    }
    channel::find(channel.fd)
        .map(Some)
        .ok_or_else(|| os_error(libc::EINVAL))
}

/// The op `resize_cq`.
pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    status(|| {
        // SAFETY: libibverbs passes a queue of ours.
        let granted = unsafe { cq_of(cq)? }.cq.resize(i64::from(entries))?;
        // SAFETY: as above; only this op writes the field.
        unsafe { (*cq).cqe = granted as c_int };
        Ok(())
    })
}

/// The op `destroy_cq`: EBUSY while queue pairs complete here, or when the program does not acknowledge events.
pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    status(|| {
        // SAFETY: libibverbs passes a queue of ours.
        let object = unsafe { cq_of(cq)? };
        let (completion_events, async_events) = object.cq.silence()?;
        // SAFETY: a live queue, whose mutex and condition libibverbs has initialised.
        let acknowledged = unsafe {
            wait_until_acknowledged(&raw mut (*cq).mutex, &raw mut (*cq).cond, || {
                let seen = ((*cq).comp_events_completed, (*cq).async_events_completed);
                seen == (completion_events, async_events)
            })
        };
        if !acknowledged {
            object.cq.unsilence();
            return Err(os_error(libc::EBUSY));
        }
        // SAFETY: the program gives up the object that `create_cq` made; no event points to it any more.
        unsafe {
            libc::pthread_mutex_destroy(&raw mut (*cq).mutex);
            libc::pthread_cond_destroy(&raw mut (*cq).cond);
            drop(Box::from_raw(cq.cast::<CqObject>()));
        }
        Ok(())
    })
}

/// Waits until `done`, which is called with the mutex held; false after [`ACKNOWLEDGE_TIMEOUT`].
///
/// # Safety
/// Mutex and condition are those of one live object, initialised.
pub(super) unsafe fn wait_until_acknowledged(
    mutex: *mut libc::pthread_mutex_t,
    condition: *mut libc::pthread_cond_t,
    done: impl Fn() -> bool,
) -> bool {
    let start = Instant::now();
    let mut warned = false;
    // SAFETY: the caller's promise.
    unsafe { libc::pthread_mutex_lock(mutex) };
    let mut reached = done();
    while !reached && start.elapsed() < ACKNOWLEDGE_TIMEOUT {
        if !warned && start.elapsed() > ACKNOWLEDGE_WARNING {
            log::warn!(
                "an object is being destroyed whose events were read but not acknowledged (ibv_ack_*_event)"
            );
            warned = true;
        }
        let until = deadline(ACKNOWLEDGE_STEP);
        // SAFETY: as above; the mutex is held.
        unsafe { libc::pthread_cond_timedwait(condition, mutex, &raw const until) };
        reached = done();
    }
    // SAFETY: held by this thread.
    unsafe { libc::pthread_mutex_unlock(mutex) };
    reached
}

/// The time of the realtime clock, by which conditions go, `from_now`.
fn deadline(from_now: Duration) -> libc::timespec {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let then = now + from_now;
    libc::timespec {
        tv_sec: then.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: i64::from(then.subsec_nanos()),
    }
}

/// Called by libibverbs after it read a completion event: there is room for one that waits.
pub(super) unsafe extern "C" fn cq_event(cq: *mut ibv_cq) {
    guarded((), || {
        // SAFETY: libibverbs passes a queue of ours.
        if let Ok(object) = unsafe { cq_of(cq) } {
            object.cq.event_delivered();
        }
    });
}

/// Called by libibverbs after it read an asynchronous event: there is room for one that waits.
pub(super) unsafe extern "C" fn async_event(
    context: *mut ibv_context,
    _event: *mut ibv_async_event,
) {
    guarded((), || {
        // SAFETY: libibverbs passes a context of ours.
        if let Ok(context) = unsafe { context_of(context) } {
            context.events.delivered();
        }
    });
}

const _: () = assert!(std::mem::offset_of!(CqObject, ibv) == 0);
