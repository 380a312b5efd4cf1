//! The objects of which a verbs program holds pointers: device, context, PD, MR, CQ, QP, SRQ, AH, completion channel.
//!
//! The provider allocates PD, MR, CQ, QP, SRQ and AH, commonly as the first member of a larger structure of its own;
//! libibverbs allocates contexts (`verbs_context`, see `plugin/context.rs`) and completion channels. libibverbs itself
//! sets `context`, `pd` and the like after the op returned only for some objects, so the provider fills them all.

use super::layout;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`: what `ibv_get_device_list` returns. The first member of `verbs_device`.
#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) _ops: [*mut c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// `struct ibv_context_ops`: the function pointers that the inline functions of `verbs.h` call. Set through
/// `verbs_set_ops`, never by hand.
#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) slots: [*mut c_void; 32],
}

/// `struct ibv_context`: an open device.
#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

/// `struct ibv_mr`. A provider hands out a [`super::verbs_mr`], of which this is the first member.
#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) mw_type: c_uint,
}

/// `struct ibv_comp_channel`: allocated by libibverbs; the fd is ours (`plugin/hooks.rs`).
#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// `struct ibv_qp`. `verbs_qp` begins with it; the extended form grew from 352 to 360 bytes in rdma-core 45.
#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_uint,
    pub(crate) qp_type: c_uint,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// Bytes that a QP must leave for libibverbs from the address of its `ibv_qp` on: `verbs_qp` is 368 to 376 bytes in the
/// releases known, and `ibv_qp_to_qp_ex` reads its `comp_mask` (which must read as zero) near the end.
pub(crate) const VERBS_QP_ROOM_BYTES: usize = 512;

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct ibv_ah`.
#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

layout! {
    ibv_device: 664 { _ops: 0, node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408 }
    ibv_context_ops: 256 { }
    ibv_context: 328 {
        device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320,
    }
    ibv_pd: 16 { context: 0, handle: 8 }
    ibv_mr: 48 { context: 0, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40 }
    ibv_mw: 32 { context: 0, pd: 8, rkey: 16, handle: 20, mw_type: 24 }
    ibv_comp_channel: 16 { context: 0, fd: 8, refcnt: 12 }
    ibv_cq: 128 {
        context: 0, channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32, cond: 72, comp_events_completed: 120,
        async_events_completed: 124,
    }
    ibv_qp: 160 {
        context: 0, qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48, qp_num: 52, state: 56,
        qp_type: 60, mutex: 64, cond: 104, events_completed: 152,
    }
    ibv_srq: 128 { context: 0, srq_context: 8, pd: 16, handle: 24, mutex: 32, cond: 72, events_completed: 120 }
    ibv_ah: 24 { context: 0, pd: 8, handle: 16 }
}
