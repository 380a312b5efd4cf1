//! The table of ops: name → function. `op_tables` says at which place each release of libibverbs wants which name.

use super::{op_tables::OpTable, ops_device, ops_verbs};
use std::ffi::c_void;

/// One op: its name in `struct verbs_context_ops`, and the function.
pub(crate) struct Op {
    /// Name of the member.
    pub(crate) name: &'static str,
    /// An `extern "C"` function of the member's type.
    pub(crate) function: *const c_void,
}

// SAFETY: the pointer is the address of a function, which any thread may read.
unsafe impl Sync for Op {}

/// All ops that we have. What is not here keeps libibverbs's own function, which says EOPNOTSUPP.
pub(super) fn all() -> impl Iterator<Item = &'static Op> {
    ops_device::OPS.iter().chain(ops_verbs::OPS)
}

/// The ops laid out for `verbs_set_ops` of a libibverbs that has this table; NULL where we have none.
pub(super) fn laid_out(table: &OpTable) -> Vec<*const c_void> {
    let of_name = |name: &&str| {
        all()
            .find(|op| op.name == *name)
            .map_or(std::ptr::null(), |op| op.function)
    };
    table.names().iter().map(of_name).collect()
}
