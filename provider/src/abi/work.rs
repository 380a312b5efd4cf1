//! Work requests, scatter/gather elements and work completions: what crosses the C boundary on the data path.

use super::{ibv_ah, ibv_mw, layout};
use std::ffi::{c_int, c_uint, c_void};

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

/// `wr.rdma` of a send work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// `wr.atomic` of a send work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// `wr.ud` of a send work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr_ud {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// `wr` of a send work request; the opcode and the QP's type say which member is meant.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union ibv_send_wr_remote {
    pub(crate) rdma: ibv_send_wr_rdma,
    pub(crate) atomic: ibv_send_wr_atomic,
    pub(crate) ud: ibv_send_wr_ud,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mw_bind_info {
    pub(crate) mr: *mut super::ibv_mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

/// `bind_mw` of a send work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr_bind_mw {
    pub(crate) mw: *mut ibv_mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

/// `tso` of a send work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr_tso {
    pub(crate) hdr: *mut c_void,
    pub(crate) hdr_sz: u16,
    pub(crate) mss: u16,
}

/// The unnamed union at the end of a send work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union ibv_send_wr_extension {
    pub(crate) bind_mw: ibv_send_wr_bind_mw,
    pub(crate) tso: ibv_send_wr_tso,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    /// Immediate data in network byte order (`__be32`), or the rkey to invalidate in host order.
    pub(crate) imm_data: u32,
    pub(crate) wr: ibv_send_wr_remote,
    /// `qp_type.xrc.remote_srqn`.
    pub(crate) xrc_remote_srqn: u32,
    pub(crate) extension: ibv_send_wr_extension,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data in network byte order (`__be32`).
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

layout! {
    ibv_sge: 16 { addr: 0, length: 8, lkey: 12 }
    ibv_recv_wr: 32 { wr_id: 0, next: 8, sg_list: 16, num_sge: 24 }
    ibv_send_wr: 128 {
        wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, imm_data: 36, wr: 40,
        xrc_remote_srqn: 72, extension: 80,
    }
    ibv_send_wr_rdma: 16 { remote_addr: 0, rkey: 8 }
    ibv_send_wr_atomic: 32 { remote_addr: 0, compare_add: 8, swap: 16, rkey: 24 }
    ibv_send_wr_ud: 16 { ah: 0, remote_qpn: 8, remote_qkey: 12 }
    ibv_send_wr_bind_mw: 48 { mw: 0, rkey: 8, bind_info: 16 }
    ibv_send_wr_tso: 16 { hdr: 0, hdr_sz: 8, mss: 10 }
    ibv_mw_bind_info: 32 { }
    ibv_wc: 48 {
        wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, imm_data: 24, qp_num: 28, src_qp: 32,
        wc_flags: 36, pkey_index: 40, slid: 42, sl: 44, dlid_path_bits: 45,
    }
}
