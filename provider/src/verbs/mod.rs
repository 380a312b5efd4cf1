//! The verbs objects in safe Rust: what stands behind the pointers that a verbs program holds.
//!
//! The ops of `plugin/` turn C into these types and back, the engine takes work from them and reports to them. Read
//! first: [`qp`] (a queue pair and who calls it), [`send_queue`] and [`receive_queue`] (the life of a work request),
//! [`cq`] (completions and their events), then [`qp_state`] and [`qp_modify`] (states), [`mr`] and [`mr_memory`]
//! (registered memory; the only unsafe code here), [`channel`] and [`context`] (descriptors that libibverbs reads).
//!
//! Lock order: engine, then send or receive queue, then completion queue, then the pipe of its channel. No method here
//! calls the engine while it holds a lock that the engine could want; see [`qp_modify::Transport`].

pub mod census;
pub mod channel;
pub mod context;
pub mod cq;
pub mod errno;
pub mod limits;
pub mod mr;
pub mod mr_memory;
pub mod pd;
pub mod port;
pub mod qp;
pub mod qp_attributes;
pub mod qp_modify;
pub mod qp_state;
pub mod receive_queue;
pub mod send_queue;

pub use context::Context;
pub use cq::Cq;
pub use errno::Errno;
pub use pd::Pd;
pub use port::Port;
pub use qp::Qp;
pub use receive_queue::ReceiveQueue;
