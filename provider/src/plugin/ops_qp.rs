//! Ops of queue pairs, but for posting (`ops_data.rs`). Read first: `verbs/qp_modify.rs`.
//!
//! A provider fills an `ibv_qp` itself, with mutex, condition and all; libibverbs only keeps `state` after `modify_qp`.

use std::ffi::{c_int, c_uint};
use std::io;
use std::sync::Arc;

use metaroce_proto::wire::Gid;

use super::boundary::{os_error, pointer, status};
use super::context::context_of;
use super::ops_cq::{cq_of, wait_until_acknowledged};
use super::ops_memory::pd_of;
use crate::abi::*;
use crate::verbs::qp::{Capabilities, QpParts};
use crate::verbs::qp_attributes::{AddressVector, Attributes};
use crate::verbs::qp_modify::{self, Modification};
use crate::verbs::qp_state::{Mask, QpState};
use crate::verbs::{Qp, ReceiveQueue};

/// Room behind the `ibv_qp` for what libibverbs knows as `verbs_qp`; zero: no extended interface was granted.
const ROOM_BYTES: usize = VERBS_QP_ROOM_BYTES - size_of::<ibv_qp>();

/// A queue pair.
#[repr(C)]
pub(super) struct QpObject {
    ibv: ibv_qp,
    room: [u8; ROOM_BYTES],
    pub(super) qp: Arc<Qp>,
}

/// The object behind an `ibv_qp`.
///
/// # Safety
/// `qp` is one that `create_qp` returned and that is not destroyed during `'a`.
pub(super) unsafe fn qp_of<'a>(qp: *mut ibv_qp) -> io::Result<&'a QpObject> {
    // SAFETY: the caller's promise; `ibv` is the first member of a `#[repr(C)]` structure.
    unsafe { qp.cast::<QpObject>().as_ref() }.ok_or_else(|| os_error(libc::EINVAL))
}

/// The op `create_qp`: EOPNOTSUPP for other types than RC and for shared receive queues, EINVAL for depths beyond the
/// limits. The granted depths are written back.
pub(super) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: libibverbs passes a domain of ours; the program passes attributes or NULL.
        let wanted = unsafe { wanted.as_mut() }.ok_or_else(|| os_error(libc::EINVAL))?;
        // SAFETY: as above.
        unsafe { create(pd, wanted) }
    })
}

/// The op `create_qp_ex`: only what `create_qp` can do too. perftest and UCX then take the plain interface.
pub(super) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    wanted: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program passes attributes or NULL.
        let extended = unsafe { wanted.as_ref() }.ok_or_else(|| os_error(libc::EINVAL))?;
        let has = |bit: u32| extended.comp_mask & bit != 0;
        let unknown =
            extended.comp_mask & !(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0;
        if unknown || (has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && extended.create_flags != 0) {
            return Err(os_error(libc::EOPNOTSUPP));
        }
        if !has(IBV_QP_INIT_ATTR_PD) {
            return Err(os_error(libc::EINVAL));
        }
        // SAFETY: the extended structure begins with all members of the plain one.
        let plain = unsafe { &mut *wanted.cast::<ibv_qp_init_attr>() };
        // SAFETY: as in `create_qp`.
        unsafe { create((*wanted).pd, plain) }
    })
}

/// # Safety
/// `pd`, `send_cq` and `recv_cq` are live objects of ours or NULL.
unsafe fn create(pd: *mut ibv_pd, wanted: &mut ibv_qp_init_attr) -> io::Result<*mut ibv_qp> {
    check_type(wanted)?;
    // SAFETY: the caller's promise.
    let (domain, send_cq, receive_cq) =
        unsafe { (pd_of(pd)?, cq_of(wanted.send_cq)?, cq_of(wanted.recv_cq)?) };
    // SAFETY: live objects.
    let (context, contexts) = unsafe {
        let context = (*pd).context;
        (
            context,
            [(*wanted.send_cq).context, (*wanted.recv_cq).context],
        )
    };
    if contexts.iter().any(|other| *other != context) {
        return Err(os_error(libc::EINVAL));
    }
    // SAFETY: the context of a live domain is open.
    let opened = unsafe { context_of(context)? };
    let capabilities = Capabilities {
        max_send_wr: wanted.cap.max_send_wr,
        max_recv_wr: wanted.cap.max_recv_wr,
        max_send_sge: wanted.cap.max_send_sge,
        max_recv_sge: wanted.cap.max_recv_sge,
        max_inline_data: wanted.cap.max_inline_data,
    }
    .grant()?;
    let qp = opened.create_qp(&QpParts {
        pd: Arc::clone(&domain.pd),
        send_cq: Arc::clone(&send_cq.cq),
        receive_cq: Arc::clone(&receive_cq.cq),
        receive_queue: Arc::new(ReceiveQueue::new(
            capabilities.max_recv_wr,
            capabilities.max_recv_sge,
        )),
        memory: Arc::clone(opened.memory()),
        events: Arc::downgrade(&opened.events),
        capabilities,
        signal_all: wanted.sq_sig_all != 0,
    })?;
    wanted.cap = cap_to_c(capabilities);
    let ibv = ibv_qp {
        context,
        qp_context: wanted.qp_context,
        pd,
        send_cq: wanted.send_cq,
        recv_cq: wanted.recv_cq,
        srq: std::ptr::null_mut(),
        handle: qp.qpn().get(),
        qp_num: qp.qpn().get(),
        state: IBV_QPS_RESET,
        qp_type: wanted.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let object = Box::into_raw(Box::new(QpObject {
        ibv,
        room: [0; ROOM_BYTES],
        qp,
    }));
    // SAFETY: just made.
    unsafe { (*object).qp.set_user_handle(object as u64) };
    Ok(object.cast())
}

fn check_type(wanted: &ibv_qp_init_attr) -> io::Result<()> {
    match wanted.qp_type {
        IBV_QPT_RC if wanted.srq.is_null() => Ok(()),
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_RAW_PACKET | IBV_QPT_XRC_SEND
        | IBV_QPT_XRC_RECV | IBV_QPT_DRIVER => {
            // Not a warning: many programs ask for such a queue pair to see whether there is any.
            log::info!(
                "a queue pair of type {} {} is refused: this version has RC without shared receive queues only",
                wanted.qp_type,
                if wanted.srq.is_null() {
                    "(2 RC, 3 UC, 4 UD)"
                } else {
                    "with an SRQ"
                },
            );
            Err(os_error(libc::EOPNOTSUPP))
        }
        _ => Err(os_error(libc::EINVAL)),
    }
}

/// The op `modify_qp`.
pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    wanted: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: libibverbs passes a queue pair of ours with its context; the program passes attributes or NULL.
        let (object, context) = unsafe { (qp_of(qp)?, context_of((*qp).context)?) };
        // SAFETY: as above.
        let wanted = unsafe { wanted.as_ref() }.ok_or_else(|| os_error(libc::EINVAL))?;
        let modification = Modification {
            mask: Mask(mask as u32),
            state: wanted.qp_state,
            current_state: wanted.cur_qp_state,
            attributes: attributes_from_c(wanted),
        };
        qp_modify::modify(&object.qp, &**context, &modification)?;
        Ok(())
    })
}

/// The op `query_qp`: everything, whatever `_mask` asks for.
pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        // SAFETY: libibverbs passes a queue pair of ours; the program passes writable structures.
        let (object, ibv) = unsafe { (qp_of(qp)?, &*qp) };
        let cap = cap_to_c(object.qp.capabilities());
        if attributes.is_null() || init.is_null() {
            return Err(os_error(libc::EINVAL));
        }
        // SAFETY: as above.
        unsafe {
            attributes.write(attributes_to_c(&object.qp, cap));
            init.write(ibv_qp_init_attr {
                qp_context: ibv.qp_context,
                send_cq: ibv.send_cq,
                recv_cq: ibv.recv_cq,
                srq: ibv.srq,
                cap,
                qp_type: ibv.qp_type,
                sq_sig_all: c_int::from(object.qp.signal_all()),
            });
        }
        Ok(())
    })
}

/// The op `destroy_qp`: when it returns, every posted work request has completed. EBUSY when the program does not
/// acknowledge events.
pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    status(|| {
        // SAFETY: libibverbs passes a queue pair of ours with its context, which is open.
        let (object, context) = unsafe { (qp_of(qp)?, context_of((*qp).context)?) };
        let events = object.qp.silence();
        // SAFETY: a live queue pair; mutex and condition were initialised when it was made.
        let acknowledged = unsafe {
            wait_until_acknowledged(&raw mut (*qp).mutex, &raw mut (*qp).cond, || {
                (*qp).events_completed == events
            })
        };
        if !acknowledged {
            object.qp.unsilence();
            return Err(os_error(libc::EBUSY));
        }
        context.destroy_qp(&object.qp);
        // SAFETY: the program gives up the object that `create_qp` made; no event points to it any more.
        unsafe {
            libc::pthread_mutex_destroy(&raw mut (*qp).mutex);
            libc::pthread_cond_destroy(&raw mut (*qp).cond);
            drop(Box::from_raw(qp.cast::<QpObject>()));
        }
        Ok(())
    })
}

fn cap_to_c(capabilities: Capabilities) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: capabilities.max_send_wr,
        max_recv_wr: capabilities.max_recv_wr,
        max_send_sge: capabilities.max_send_sge,
        max_recv_sge: capabilities.max_recv_sge,
        max_inline_data: capabilities.max_inline_data,
    }
}

/// An address vector out of C.
pub(super) fn address_from_c(address: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        dest_gid: Gid(address.grh.dgid.raw),
        flow_label: address.grh.flow_label,
        sgid_index: address.grh.sgid_index,
        hop_limit: address.grh.hop_limit,
        traffic_class: address.grh.traffic_class,
        dlid: address.dlid,
        service_level: address.sl,
        source_path_bits: address.src_path_bits,
        static_rate: address.static_rate,
        is_global: address.is_global != 0,
        port: address.port_num,
    }
}

fn address_to_c(address: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid {
                raw: address.dest_gid.0,
            },
            flow_label: address.flow_label,
            sgid_index: address.sgid_index,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        },
        dlid: address.dlid,
        sl: address.service_level,
        src_path_bits: address.source_path_bits,
        static_rate: address.static_rate,
        is_global: u8::from(address.is_global),
        port_num: address.port,
    }
}

fn attributes_from_c(given: &ibv_qp_attr) -> Attributes {
    Attributes {
        path_mtu: given.path_mtu,
        rq_psn: given.rq_psn,
        sq_psn: given.sq_psn,
        dest_qpn: given.dest_qp_num,
        access: given.qp_access_flags,
        address: address_from_c(&given.ah_attr),
        pkey_index: given.pkey_index,
        port: given.port_num,
        drained_notify: given.en_sqd_async_notify != 0,
        max_rd_atomic: given.max_rd_atomic,
        max_dest_rd_atomic: given.max_dest_rd_atomic,
        min_rnr_timer: given.min_rnr_timer,
        timeout: given.timeout,
        retry_count: given.retry_cnt,
        rnr_retry: given.rnr_retry,
        migration: given.path_mig_state,
    }
}

fn attributes_to_c(qp: &Qp, cap: ibv_qp_cap) -> ibv_qp_attr {
    let attributes = qp.attributes();
    let state = qp.state() as c_uint;
    ibv_qp_attr {
        qp_state: state,
        cur_qp_state: state,
        path_mtu: attributes.path_mtu,
        path_mig_state: attributes.migration,
        rq_psn: attributes.rq_psn,
        sq_psn: attributes.sq_psn,
        dest_qp_num: attributes.dest_qpn,
        qp_access_flags: attributes.access,
        cap,
        ah_attr: address_to_c(&attributes.address),
        pkey_index: attributes.pkey_index,
        en_sqd_async_notify: u8::from(attributes.drained_notify),
        sq_draining: u8::from(qp.state() == QpState::SendQueueDrained && qp.is_draining()),
        max_rd_atomic: attributes.max_rd_atomic,
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
        min_rnr_timer: attributes.min_rnr_timer,
        port_num: attributes.port,
        timeout: attributes.timeout,
        retry_cnt: attributes.retry_count,
        rnr_retry: attributes.rnr_retry,
        ..ibv_qp_attr::default()
    }
}

const _: () = assert!(std::mem::offset_of!(QpObject, ibv) == 0);
const _: () = assert!(std::mem::offset_of!(QpObject, qp) >= VERBS_QP_ROOM_BYTES);
