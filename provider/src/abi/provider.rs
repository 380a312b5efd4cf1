//! The private structures of rdma-core's `driver.h` that a provider touches.
//!
//! That header is installed nowhere. These layouts are the same in rdma-core 36 to 65; what did change between releases
//! (`verbs_context_ops`, the place of `ibv_context` inside `verbs_context`) is data in `plugin/op_tables.rs` or probed at
//! run time in `plugin/context.rs`, and so has no structure here.

use super::{ibv_context, ibv_device, ibv_mr, layout};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicI32;

/// `struct list_node` of ccan.
#[repr(C)]
pub(crate) struct list_node {
    pub(crate) next: *mut list_node,
    pub(crate) prev: *mut list_node,
}

/// `struct verbs_sysfs_dev`: what libibverbs found out about a device before it asks the providers.
#[repr(C)]
pub(crate) struct verbs_sysfs_dev {
    pub(crate) entry: list_node,
    pub(crate) provider_data: *mut c_void,
    /// `match` in C.
    pub(crate) match_entry: *const verbs_match_ent,
    pub(crate) flags: c_uint,
    pub(crate) sysfs_name: [c_char; 64],
    pub(crate) sysfs_cdev: libc::dev_t,
    pub(crate) ibdev_name: [c_char; 64],
    pub(crate) ibdev_path: [c_char; 256],
    pub(crate) modalias: [c_char; 512],
    pub(crate) node_guid: u64,
    pub(crate) driver_id: u32,
    pub(crate) node_type: c_int,
    pub(crate) ibdev_idx: c_int,
    pub(crate) num_ports: u32,
    pub(crate) abi_ver: u32,
    pub(crate) time_created: libc::timespec,
}

/// `struct verbs_device`: allocated by the provider's `alloc_device`, filled and counted by libibverbs.
#[repr(C)]
pub(crate) struct verbs_device {
    pub(crate) device: ibv_device,
    /// Set by libibverbs after `alloc_device`: the very table that was registered, which tells its copies apart.
    pub(crate) ops: *const verbs_device_ops,
    pub(crate) refcount: AtomicI32,
    pub(crate) entry: list_node,
    pub(crate) sysfs: *mut verbs_sysfs_dev,
    pub(crate) core_support: u64,
}

/// `struct verbs_match_ent`: `kind` 0 ends a table.
#[repr(C)]
pub(crate) struct verbs_match_ent {
    pub(crate) driver_data: *mut c_void,
    /// Union of a modalias pointer and a driver id.
    pub(crate) key: u64,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) kind: u8,
}

/// `struct verbs_device_ops`: what a provider registers.
#[repr(C)]
pub(crate) struct verbs_device_ops {
    pub(crate) name: *const c_char,
    pub(crate) match_min_abi_version: u32,
    pub(crate) match_max_abi_version: u32,
    /// Never NULL: libibverbs walks it unchecked for every device of the kernel.
    pub(crate) match_table: *const verbs_match_ent,
    pub(crate) static_providers: *mut *const verbs_device_ops,
    pub(crate) match_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> bool>,
    pub(crate) alloc_context:
        Option<unsafe extern "C" fn(*mut ibv_device, c_int, *mut c_void) -> *mut c_void>,
    pub(crate) import_context: Option<unsafe extern "C" fn(*mut ibv_device, c_int) -> *mut c_void>,
    pub(crate) alloc_device:
        Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> *mut verbs_device>,
    pub(crate) uninit_device: Option<unsafe extern "C" fn(*mut verbs_device)>,
}

/// `struct verbs_mr`: what the MR ops hand out and get back. `mr_type` 0 is an ordinary region.
#[repr(C)]
pub(crate) struct verbs_mr {
    pub(crate) ibv_mr: ibv_mr,
    pub(crate) mr_type: c_uint,
    pub(crate) access: c_int,
}

/// `_verbs_init_and_alloc_context(device, cmd_fd, alloc_size, context_offset, driver_id)`: returns the allocation, with
/// `verbs_context` at the given offset, or NULL with errno set.
pub(crate) type VerbsInitAndAllocContext =
    unsafe extern "C" fn(*mut ibv_device, c_int, usize, *mut c_void, u32) -> *mut c_void;
/// `verbs_set_ops(verbs_context, verbs_context_ops)`.
pub(crate) type VerbsSetOps = unsafe extern "C" fn(*mut c_void, *const *const c_void);
/// `verbs_uninit_context(verbs_context)`: closes `cmd_fd` and `async_fd`; does not free.
pub(crate) type VerbsUninitContext = unsafe extern "C" fn(*mut c_void);
/// `verbs_register_driver_N(ops)`.
pub(crate) type VerbsRegisterDriver = unsafe extern "C" fn(*const verbs_device_ops);

/// How `ibv_context` lies behind `verbs_context` in the oldest layout served; later ones put it further on.
pub(crate) const SMALLEST_CONTEXT_OFFSET_BYTES: usize = 320;

const _: () = assert!(align_of::<ibv_context>() == 8);

layout! {
    list_node: 16 { next: 0, prev: 8 }
    verbs_sysfs_dev: 992 {
        entry: 0, provider_data: 16, match_entry: 24, flags: 32, sysfs_name: 36, sysfs_cdev: 104, ibdev_name: 112,
        ibdev_path: 176, modalias: 432, node_guid: 944, driver_id: 952, node_type: 956, ibdev_idx: 960, num_ports: 964,
        abi_ver: 968, time_created: 976,
    }
    verbs_device: 712 { device: 0, ops: 664, refcount: 672, entry: 680, sysfs: 696, core_support: 704 }
    verbs_match_ent: 24 { driver_data: 0, key: 8, vendor: 16, device: 18, kind: 20 }
    verbs_device_ops: 72 {
        name: 0, match_min_abi_version: 8, match_max_abi_version: 12, match_table: 16, static_providers: 24,
        match_device: 32, alloc_context: 40, import_context: 48, alloc_device: 56, uninit_device: 64,
    }
    verbs_mr: 56 { ibv_mr: 0, mr_type: 48, access: 52 }
}
