//! The data path: `post_send`, `post_recv`, `poll_cq`, `req_notify_cq`.
//!
//! The lists of C are walked in place, under one lock of the queue; nothing is allocated once the queues have grown to
//! what the program uses (but for inline data over 64 bytes and lists over four entries, which do not fit into a stored
//! request). The engine's bell is rung after the lock is given back.

use std::ffi::{c_int, c_uint};
use std::io;
use std::sync::atomic::Ordering;

use metaroce_proto::types::{Operation, Payload, Sge, SgeList};
use smallvec::SmallVec;

use super::boundary::{errno_of, guarded, os_error, status};
use super::context::context_of;
use super::ops_cq::cq_of;
use super::ops_qp::qp_of;
use crate::abi::*;
use crate::verbs::cq::Cqe;
use crate::verbs::mr_memory::copy_from_program;
use crate::verbs::qp::Capabilities;
use crate::verbs::qp_modify::Transport;
use crate::verbs::receive_queue::ReceiveRequest;
use crate::verbs::send_queue::SendWork;

/// IBV_SEND_SIGNALED
const SEND_SIGNALED: u32 = 1 << 1;
/// Flags that a send may have.
const SEND_FLAGS: u32 = IBV_SEND_FENCE | SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// One in so many polls makes progress though there are completions: a program that always finds some must not starve
/// the protocol of acknowledgements.
const PROGRESS_EVERY: u32 = 16;

/// The op `post_send`.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    guarded(libc::EFAULT, || {
        // SAFETY: libibverbs passes a queue pair of ours, with its context.
        let found = unsafe {
            qp_of(qp).and_then(|object| {
                let context = context_of((*qp).context)?;
                context.check_process()?;
                Ok((object, context))
            })
        };
        let (object, context) = match found {
            Ok(found) => found,
            // SAFETY: the program passes a place for the pointer.
            Err(error) => return unsafe { refuse(bad, list, &error) },
        };
        let qp = &object.qp;
        let mut poster = qp.send_poster();
        let capabilities = qp.capabilities();
        let mut next = list;
        let mut result = 0;
        // Ends: each round takes a slot of the queue or leaves.
        // SAFETY: the program passes a list of work requests.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: as above, with what the request points to.
            let posted = unsafe { send_from_c(request, capabilities) }
                .and_then(|work| Ok(poster.post(work)?));
            if let Err(error) = posted {
                // SAFETY: as above.
                result = unsafe { refuse(bad, next, &error) };
                break;
            }
            next = request.next;
        }
        drop(poster);
        if next != list {
            context.doorbell(qp);
        }
        if qp.take_fail_request() {
            context.fail(qp);
        }
        result
    })
}

/// The op `post_recv`.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guarded(libc::EFAULT, || {
        // SAFETY: libibverbs passes a queue pair of ours, with its context.
        let found = unsafe {
            qp_of(qp).and_then(|object| {
                let context = context_of((*qp).context)?;
                context.check_process()?;
                Ok((object, context, object.qp.receive_poster()?))
            })
        };
        let (object, context, mut poster) = match found {
            Ok(found) => found,
            // SAFETY: the program passes a place for the pointer.
            Err(error) => return unsafe { refuse(bad, list, &error) },
        };
        let qp = &object.qp;
        let max_sge = qp.capabilities().max_recv_sge;
        let mut next = list;
        let mut result = 0;
        // Ends: each round takes a slot of the queue or leaves.
        // SAFETY: the program passes a list of work requests.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: as above, with the list that the request points to.
            let sges = unsafe { sges_from_c(request.sg_list, request.num_sge, max_sge) };
            let posted = sges.and_then(|sges| {
                Ok(poster.post(ReceiveRequest {
                    wr_id: request.wr_id,
                    sges,
                })?)
            });
            if let Err(error) = posted {
                // SAFETY: as above.
                result = unsafe { refuse(bad, next, &error) };
                break;
            }
            next = request.next;
        }
        let notice = poster.finish();
        if qp.receives_are_wanted() && notice {
            context.receive_doorbell(qp);
        }
        if qp.take_fail_request() {
            context.fail(qp);
        }
        result
    })
}

/// The op `post_srq_recv`: there are no shared receive queues, so nobody can have one to pass.
pub(super) unsafe extern "C" fn post_srq_recv(
    _srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a place for the pointer.
    unsafe { refuse(bad, list, &os_error(libc::EOPNOTSUPP)) }
}

/// Says which request was not posted.
///
/// # Safety
/// `bad` is writable or NULL.
unsafe fn refuse<T>(bad: *mut *mut T, request: *mut T, error: &io::Error) -> c_int {
    if !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad.write(request) };
    }
    errno_of(error)
}

/// A send out of C; inline data is copied.
///
/// # Safety
/// The list is readable, and for an inline request what it names.
unsafe fn send_from_c(request: &ibv_send_wr, capabilities: Capabilities) -> io::Result<SendWork> {
    let flags = request.send_flags;
    if flags & !SEND_FLAGS != 0 {
        return Err(os_error(libc::EINVAL));
    }
    // SAFETY: the union is read as the opcode says.
    let operation = unsafe { operation_from_c(request)? };
    // SAFETY: the caller's promise.
    let sges = unsafe { sges_from_c(request.sg_list, request.num_sge, capabilities.max_send_sge)? };
    let payload = if flags & IBV_SEND_INLINE != 0 {
        // SAFETY: the caller's promise.
        Payload::Inline(unsafe { copy_inline(&sges, capabilities.max_inline_data)? })
    } else {
        Payload::Gather(sges)
    };
    Ok(SendWork {
        wr_id: request.wr_id,
        operation,
        payload,
        signaled: flags & SEND_SIGNALED != 0,
        fence: flags & IBV_SEND_FENCE != 0,
        solicited: flags & IBV_SEND_SOLICITED != 0,
    })
}

/// EOPNOTSUPP for what verbs have and this device has not, EINVAL for what verbs have not.
///
/// # Safety
/// The member of `wr` that belongs to the opcode is initialised.
unsafe fn operation_from_c(request: &ibv_send_wr) -> io::Result<Operation> {
    let immediate = request.imm_data.to_ne_bytes();
    // SAFETY: the caller's promise, in every arm.
    unsafe {
        let rdma = || (request.wr.rdma.remote_addr, request.wr.rdma.rkey);
        Ok(match request.opcode {
            IBV_WR_SEND => Operation::Send,
            IBV_WR_SEND_WITH_IMM => Operation::SendImm(immediate),
            IBV_WR_RDMA_WRITE => {
                let (remote_addr, rkey) = rdma();
                Operation::Write { remote_addr, rkey }
            }
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                let (remote_addr, rkey) = rdma();
                Operation::WriteImm {
                    remote_addr,
                    rkey,
                    imm: immediate,
                }
            }
            IBV_WR_RDMA_READ => {
                let (remote_addr, rkey) = rdma();
                Operation::Read { remote_addr, rkey }
            }
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                let atomic = request.wr.atomic;
                Operation::CompareSwap {
                    remote_addr: atomic.remote_addr,
                    rkey: atomic.rkey,
                    compare: atomic.compare_add,
                    swap: atomic.swap,
                }
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let atomic = request.wr.atomic;
                Operation::FetchAdd {
                    remote_addr: atomic.remote_addr,
                    rkey: atomic.rkey,
                    add: atomic.compare_add,
                }
            }
            IBV_WR_LOCAL_INV | IBV_WR_BIND_MW | IBV_WR_SEND_WITH_INV | IBV_WR_TSO
            | IBV_WR_ATOMIC_WRITE => {
                return Err(os_error(libc::EOPNOTSUPP));
            }
            _ => return Err(os_error(libc::EINVAL)),
        })
    }
}

/// A scatter/gather list out of C; entries of length 0 name no byte and are left out.
///
/// # Safety
/// `list` points to `count` entries.
unsafe fn sges_from_c(list: *const ibv_sge, count: c_int, max: u32) -> io::Result<SgeList> {
    let count = usize::try_from(count).map_err(|_| os_error(libc::EINVAL))?;
    if count == 0 {
        return Ok(SgeList::new());
    }
    if count > max as usize || list.is_null() {
        return Err(os_error(libc::EINVAL));
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { std::slice::from_raw_parts(list, count) };
    let used = entries.iter().filter(|entry| entry.length > 0);
    Ok(used
        .map(|entry| Sge {
            addr: entry.addr,
            length: entry.length,
            lkey: entry.lkey,
        })
        .collect())
}

/// Copies inline data: EINVAL if it is more than was granted. Keys are not looked at.
///
/// # Safety
/// What the list names is readable.
unsafe fn copy_inline(sges: &[Sge], max_bytes: u32) -> io::Result<SmallVec<[u8; 64]>> {
    let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    if total > u64::from(max_bytes) {
        return Err(os_error(libc::EINVAL));
    }
    let mut bytes = SmallVec::with_capacity(total as usize);
    for sge in sges {
        // SAFETY: the caller's promise.
        unsafe {
            copy_from_program(sge.addr, sge.length as usize, |piece| {
                bytes.extend_from_slice(piece)
            })
        };
    }
    Ok(bytes)
}

/// The op `poll_cq`: up to `count` completions; negative for an error, also when the queue has overflowed and what was
/// saved of it has been polled. Where there is none, this thread does the engine's work.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, out: *mut ibv_wc) -> c_int {
    guarded(-libc::EFAULT, || {
        // SAFETY: libibverbs passes a queue of ours, with its context.
        let found =
            unsafe { cq_of(cq).and_then(|object| Ok((object, context_of((*cq).context)?))) };
        let (Ok((object, context)), Ok(limit)) = (found, usize::try_from(count)) else {
            return -libc::EINVAL;
        };
        if limit == 0 {
            return 0;
        }
        if context.check_process().is_err() {
            return -libc::EIO;
        }
        let poll = || {
            object.cq.poll(limit, |index, cqe| {
                // SAFETY: the program passes room for `count` completions.
                unsafe { out.add(index).write(completion_to_c(cqe)) };
            })
        };
        let mut found = poll();
        let polls = object.polls.fetch_add(1, Ordering::Relaxed);
        if found == 0 || polls % PROGRESS_EVERY == 0 {
            context.progress();
            if found == 0 {
                found = poll();
            }
        }
        if found == 0 && object.cq.overflowed() {
            return -libc::EIO;
        }
        found as c_int
    })
}

fn completion_to_c(cqe: &Cqe) -> ibv_wc {
    ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status,
        opcode: cqe.opcode,
        vendor_err: cqe.vendor_error,
        byte_len: cqe.byte_length,
        imm_data: cqe.immediate,
        qp_num: cqe.qpn,
        src_qp: cqe.source_qpn,
        wc_flags: cqe.flags as c_uint,
        ..ibv_wc::default()
    }
}

/// The op `req_notify_cq`: the next (solicited) completion raises an event, and the background thread takes over, for the
/// program is about to sleep.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status(|| {
        // SAFETY: libibverbs passes a queue of ours, with its context.
        let (object, context) = unsafe { (cq_of(cq)?, context_of((*cq).context)?) };
        object.cq.arm(solicited_only != 0);
        context.armed();
        Ok(())
    })
}

#[cfg(test)]
#[path = "ops_data_tests.rs"]
mod tests;
