//! Ops of protection domains, memory regions and address handles.
//!
//! Each object is ours from the first byte: `#[repr(C)]`, the part that C sees in front, made by a `Box` and freed by
//! the op that destroys it. Read first: `verbs/mr.rs`.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Arc;

use super::boundary::{os_error, pointer, status};
use super::context::context_of;
use super::ops_qp::address_from_c;
use crate::abi::*;
use crate::verbs::census::{Census, Place};
use crate::verbs::mr::{self, Change, Registration};
use crate::verbs::qp_modify::Transport;
use crate::verbs::{Pd, limits};

/// A protection domain.
#[repr(C)]
pub(super) struct PdObject {
    ibv: ibv_pd,
    pub(super) pd: Arc<Pd>,
}

/// A memory region.
#[repr(C)]
struct MrObject {
    verbs: verbs_mr,
    pd: Arc<Pd>,
}

/// An address handle.
#[repr(C)]
struct AhObject {
    ibv: ibv_ah,
    pd: Arc<Pd>,
    _place: Place,
}

/// The object behind an `ibv_pd`.
///
/// # Safety
/// `pd` is one that `alloc_pd` returned and that is not deallocated during `'a`.
pub(super) unsafe fn pd_of<'a>(pd: *mut ibv_pd) -> io::Result<&'a PdObject> {
    // SAFETY: the caller's promise; `ibv` is the first member of a `#[repr(C)]` structure.
    unsafe { pd.cast::<PdObject>().as_ref() }.ok_or_else(|| os_error(libc::EINVAL))
}

/// The op `alloc_pd`.
pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        let pd = Pd::new()?;
        let handle = pd.id().0;
        let object = Box::new(PdObject {
            ibv: ibv_pd { context, handle },
            pd: Arc::new(pd),
        });
        Ok(Box::into_raw(object).cast())
    })
}

/// The op `dealloc_pd`: EBUSY while something belongs to it.
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        // SAFETY: libibverbs passes a domain of ours.
        if unsafe { pd_of(pd)? }.pd.is_used() {
            return Err(os_error(libc::EBUSY));
        }
        // SAFETY: the program gives up the object that `alloc_pd` made; nothing else points to it.
        drop(unsafe { Box::from_raw(pd.cast::<PdObject>()) });
        Ok(())
    })
}

/// The op `reg_mr`. libibverbs fills `context`, `pd`, `addr` and `length` once more.
pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: libibverbs passes a domain of ours, with its context.
        let (domain, context) = unsafe { (&pd_of(pd)?.pd, (*pd).context) };
        // SAFETY: the context of a live domain is open.
        let opened = unsafe { context_of(context)? };
        let wanted = Registration {
            host_addr: addr as u64,
            length: length as u64,
            iova,
            access: access as u32,
        };
        let key = mr::register(opened.memory(), domain.id(), &wanted)?;
        domain.attach();
        let ibv_mr = ibv_mr {
            context,
            pd,
            addr,
            length,
            handle: key,
            lkey: key,
            rkey: key,
        };
        let object = Box::new(MrObject {
            verbs: verbs_mr {
                ibv_mr,
                mr_type: 0,
                access,
            },
            pd: Arc::clone(domain),
        });
        Ok(Box::into_raw(object).cast())
    })
}

/// The op `rereg_mr`. libibverbs has checked the flags, and fills `pd`, `addr` and `length` when we succeed.
pub(super) unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    status(|| {
        let has = |flag: u32| flags as u32 & flag != 0;
        // SAFETY: libibverbs passes a region of ours, which no other thread changes meanwhile.
        let object =
            unsafe { mr.cast::<MrObject>().as_mut() }.ok_or_else(|| os_error(libc::EINVAL))?;
        let domain = if has(IBV_REREG_MR_CHANGE_PD) {
            // SAFETY: the program passes a domain of ours.
            Some(unsafe { &pd_of(pd)?.pd })
        } else {
            None
        };
        let change = Change {
            translation: has(IBV_REREG_MR_CHANGE_TRANSLATION)
                .then_some((addr as u64, length as u64)),
            pd: domain.map(|domain| domain.id()),
            access: has(IBV_REREG_MR_CHANGE_ACCESS).then_some(access as u32),
        };
        // SAFETY: the context of a live region is open.
        let context = unsafe { context_of(object.verbs.ibv_mr.context)? };
        mr::reregister(context.memory(), object.verbs.ibv_mr.lkey, &change)?;
        context.quiesce();
        if let Some(domain) = domain {
            domain.attach();
            std::mem::replace(&mut object.pd, Arc::clone(domain)).detach();
        }
        if change.access.is_some() {
            object.verbs.access = access;
        }
        Ok(())
    })
}

/// The op `dereg_mr`: never fails on use. When it returns, nothing of ours touches the memory any more.
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    status(|| {
        if mr.is_null() {
            return Err(os_error(libc::EINVAL));
        }
        // SAFETY: the program gives up the object that `reg_mr` made.
        let object = unsafe { Box::from_raw(mr.cast::<MrObject>()) };
        // SAFETY: the context of a live region is open.
        let context = unsafe { context_of(object.verbs.ibv_mr.context)? };
        context.memory().deregister(object.verbs.ibv_mr.lkey);
        context.quiesce();
        object.pd.detach();
        Ok(())
    })
}

/// The op `create_ah`: EINVAL without a GRH, for another port than 1 or a GID index that is not there.
pub(super) unsafe extern "C" fn create_ah(
    pd: *mut ibv_pd,
    attributes: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    static CENSUS: Census = Census::new(limits::MAX_AH, "address handles");
    pointer(|| {
        // SAFETY: libibverbs passes a domain of ours, with its context, which is open.
        let (domain, context) = unsafe { (&pd_of(pd)?.pd, context_of((*pd).context)?) };
        // SAFETY: the program passes attributes or NULL.
        let attributes = unsafe { attributes.as_ref() }.ok_or_else(|| os_error(libc::EINVAL))?;
        address_from_c(attributes).check(&|index| context.source_gid(index))?;
        let place = CENSUS.enter()?;
        domain.attach();
        // SAFETY: a live domain.
        let context = unsafe { (*pd).context };
        let ibv = ibv_ah {
            context,
            pd,
            handle: 0,
        };
        let object = Box::new(AhObject {
            ibv,
            pd: Arc::clone(domain),
            _place: place,
        });
        Ok(Box::into_raw(object).cast())
    })
}

/// The op `destroy_ah`.
pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    status(|| {
        if ah.is_null() {
            return Err(os_error(libc::EINVAL));
        }
        // SAFETY: the program gives up the object that `create_ah` made.
        let object = unsafe { Box::from_raw(ah.cast::<AhObject>()) };
        object.pd.detach();
        Ok(())
    })
}

const _: () = assert!(std::mem::offset_of!(PdObject, ibv) == 0);
const _: () = assert!(std::mem::offset_of!(MrObject, verbs) == 0);
const _: () = assert!(std::mem::offset_of!(AhObject, ibv) == 0);
