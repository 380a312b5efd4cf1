//! Ops of the context, the device and its port, and clean refusals of what this device does not have.

use super::boundary::{os_error, pointer, status};
use super::context::{self, context_of};
use super::ops::Op;
use crate::abi::*;
use crate::device::{Device, LinkRate, active_mtu_code};
use crate::verbs::limits;
use crate::verbs::port::{PORT, State};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The ops of this file, by name.
pub(crate) static OPS: &[Op] = &[
    Op {
        name: "alloc_mw",
        function: alloc_mw as *const c_void,
    },
    Op {
        name: "bind_mw",
        function: bind_mw as *const c_void,
    },
    Op {
        name: "dealloc_mw",
        function: dealloc_mw as *const c_void,
    },
    Op {
        name: "free_context",
        function: context::free_context as *const c_void,
    },
    Op {
        name: "query_device_ex",
        function: query_device_ex as *const c_void,
    },
    Op {
        name: "query_ece",
        function: ece as *const c_void,
    },
    Op {
        name: "query_port",
        function: query_port as *const c_void,
    },
    Op {
        name: "reg_dmabuf_mr",
        function: reg_dmabuf_mr as *const c_void,
    },
    Op {
        name: "set_ece",
        function: ece as *const c_void,
    },
];

/// `vendor_id`: none was assigned.
const VENDOR_ID: u32 = 0;
/// `phys_state`: LinkUp and Disabled of the InfiniBand architecture.
const PHYSICAL_LINK_UP: u8 = 5;
const PHYSICAL_DISABLED: u8 = 3;
/// `local_ca_ack_delay`: 4.096 µs × 2^15 = 134 ms, as the kernel's soft device has it: a process may be off the CPU.
const LOCAL_ACK_DELAY_CODE: u8 = 15;
/// `max_vl_num`: code for one virtual lane.
const ONE_VIRTUAL_LANE: u8 = 1;

/// Memory windows: not supported.
unsafe extern "C" fn alloc_mw(_pd: *mut ibv_pd, _kind: c_uint) -> *mut ibv_mw {
    pointer(|| Err(os_error(libc::EOPNOTSUPP)))
}

unsafe extern "C" fn bind_mw(_qp: *mut ibv_qp, _mw: *mut ibv_mw, _bind: *mut c_void) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn dealloc_mw(_mw: *mut ibv_mw) -> c_int {
    libc::EOPNOTSUPP
}

/// Enhanced connection establishment: not supported. NCCL takes EOPNOTSUPP for "no", and anything else for a failure.
unsafe extern "C" fn ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    libc::EOPNOTSUPP
}

/// Memory of other devices: not supported. NCCL probes with the descriptor -1, and takes EBADF for "supported".
unsafe extern "C" fn reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    pointer(|| Err(os_error(libc::EOPNOTSUPP)))
}

/// The op `query_device_ex`. `size_bytes` says how much of the structure the caller has: `ibv_query_device` passes only
/// the part that it returns.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attributes: *mut ibv_device_attr_ex,
    size_bytes: usize,
) -> c_int {
    status(|| {
        // SAFETY: libibverbs passes a context of ours, and `size_bytes` writable bytes.
        unsafe {
            let unknown_request = !input.is_null() && (*input).comp_mask != 0;
            if unknown_request || attributes.is_null() || size_bytes < size_of::<ibv_device_attr>()
            {
                return Err(os_error(libc::EINVAL));
            }
            let device = &context_of(context)?.device;
            attributes.cast::<u8>().write_bytes(0, size_bytes);
            (&raw mut (*attributes).orig_attr).write(device_attributes(device));
            let end = std::mem::offset_of!(ibv_device_attr_ex, phys_port_cnt_ex) + size_of::<u32>();
            if size_bytes >= end {
                (*attributes).phys_port_cnt_ex = u32::from(PORT);
            }
        }
        Ok(())
    })
}

fn device_attributes(device: &Device) -> ibv_device_attr {
    let rd_atomic = limits::MAX_RD_ATOMIC as c_int;
    ibv_device_attr {
        fw_ver: c_text(env!("CARGO_PKG_VERSION")),
        node_guid: device.node_guid.to_be(),
        sys_image_guid: device.node_guid.to_be(),
        max_mr_size: limits::MAX_MR_BYTES,
        // Every page size from 4 KiB on: nothing is pinned, so none matters.
        page_size_cap: 0xffff_f000,
        vendor_id: VENDOR_ID,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: limits::MAX_QP as c_int,
        max_qp_wr: limits::MAX_QP_WR as c_int,
        device_cap_flags: IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_PORT_ACTIVE_EVENT
            | IBV_DEVICE_CURR_QP_STATE_MOD,
        max_sge: limits::MAX_SGE as c_int,
        max_sge_rd: limits::MAX_SGE_READ as c_int,
        max_cq: limits::MAX_CQ as c_int,
        max_cqe: limits::MAX_CQE as c_int,
        max_mr: limits::MAX_MR as c_int,
        max_pd: limits::MAX_PD as c_int,
        max_qp_rd_atom: rd_atomic,
        max_ee_rd_atom: 0,
        max_res_rd_atom: rd_atomic * limits::MAX_QP as c_int,
        max_qp_init_rd_atom: rd_atomic,
        max_ee_init_rd_atom: 0,
        // Atomic among the operations of this device, which is what IBV_ATOMIC_HCA says.
        atomic_cap: IBV_ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 0,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: limits::MAX_AH as c_int,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: limits::MAX_SRQ as c_int,
        max_srq_wr: limits::MAX_SRQ_WR as c_int,
        max_srq_sge: limits::MAX_SRQ_SGE as c_int,
        max_pkeys: limits::MAX_PKEYS,
        local_ca_ack_delay: LOCAL_ACK_DELAY_CODE,
        phys_port_cnt: PORT,
    }
}

/// Text as C keeps it in a fixed array: cut to fit, ended and filled with NUL.
fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *place = byte as c_char;
    }
    array
}

/// The op `query_port`. libibverbs passes a structure at least as long as that of rdma-core 44, zeroed.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    status(|| {
        if port != PORT || attributes.is_null() {
            return Err(os_error(libc::EINVAL));
        }
        // SAFETY: libibverbs passes a context of ours and a writable structure.
        unsafe {
            let context = context_of(context)?;
            // A child process that cannot look goes by how it was when the device was opened.
            let now = context.port.look();
            attributes.write(port_attributes(&context.device, now.as_ref()));
        }
        Ok(())
    })
}

fn port_attributes(device: &Device, now: Option<&State>) -> ibv_port_attr {
    let active = now.map_or(device.active, State::is_active);
    let gids = now.map_or(device.gids.len(), |now| now.gids.len());
    let rate = LinkRate::of(device.speed_mbps);
    ibv_port_attr {
        state: if active {
            IBV_PORT_ACTIVE
        } else {
            IBV_PORT_DOWN
        },
        max_mtu: IBV_MTU_4096,
        active_mtu: active_mtu_code(device.mtu_bytes),
        gid_tbl_len: gids as c_int,
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_REINIT_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: limits::MAX_MESSAGE_BYTES,
        pkey_tbl_len: 1,
        max_vl_num: ONE_VIRTUAL_LANE,
        active_width: rate.width,
        active_speed: rate.speed,
        phys_state: if active {
            PHYSICAL_LINK_UP
        } else {
            PHYSICAL_DISABLED
        },
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        ..ibv_port_attr::default()
    }
}
