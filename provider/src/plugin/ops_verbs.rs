//! The table of the ops of the verbs objects. They are in `ops_memory` (PD, MR, AH), `ops_cq`, `ops_qp` and `ops_data`
//! (posting and polling).

use std::ffi::c_void;

use super::ops::Op;
use super::{ops_cq, ops_data, ops_memory, ops_qp};

/// The ops, by name.
pub(crate) static OPS: &[Op] = &[
    Op {
        name: "alloc_pd",
        function: ops_memory::alloc_pd as *const c_void,
    },
    Op {
        name: "async_event",
        function: ops_cq::async_event as *const c_void,
    },
    Op {
        name: "cq_event",
        function: ops_cq::cq_event as *const c_void,
    },
    Op {
        name: "create_ah",
        function: ops_memory::create_ah as *const c_void,
    },
    Op {
        name: "create_cq",
        function: ops_cq::create_cq as *const c_void,
    },
    Op {
        name: "create_qp",
        function: ops_qp::create_qp as *const c_void,
    },
    Op {
        name: "create_qp_ex",
        function: ops_qp::create_qp_ex as *const c_void,
    },
    Op {
        name: "dealloc_pd",
        function: ops_memory::dealloc_pd as *const c_void,
    },
    Op {
        name: "dereg_mr",
        function: ops_memory::dereg_mr as *const c_void,
    },
    Op {
        name: "destroy_ah",
        function: ops_memory::destroy_ah as *const c_void,
    },
    Op {
        name: "destroy_cq",
        function: ops_cq::destroy_cq as *const c_void,
    },
    Op {
        name: "destroy_qp",
        function: ops_qp::destroy_qp as *const c_void,
    },
    Op {
        name: "modify_qp",
        function: ops_qp::modify_qp as *const c_void,
    },
    Op {
        name: "poll_cq",
        function: ops_data::poll_cq as *const c_void,
    },
    Op {
        name: "post_recv",
        function: ops_data::post_recv as *const c_void,
    },
    Op {
        name: "post_send",
        function: ops_data::post_send as *const c_void,
    },
    Op {
        name: "post_srq_recv",
        function: ops_data::post_srq_recv as *const c_void,
    },
    Op {
        name: "query_qp",
        function: ops_qp::query_qp as *const c_void,
    },
    Op {
        name: "reg_mr",
        function: ops_memory::reg_mr as *const c_void,
    },
    Op {
        name: "req_notify_cq",
        function: ops_data::req_notify_cq as *const c_void,
    },
    Op {
        name: "rereg_mr",
        function: ops_memory::rereg_mr as *const c_void,
    },
    Op {
        name: "resize_cq",
        function: ops_cq::resize_cq as *const c_void,
    },
];
