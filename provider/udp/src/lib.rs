//! The UDP sockets of one engine: trains of packets out (UDP_SEGMENT), merged packets in (UDP_GRO),
//! ECN marks and ICMP errors. This crate knows bytes and addresses and nothing of the protocol.
//!
//! Its only caller is the engine of the crate `metaroce`. Read first: [`Sockets::open`], then [`Sockets::send_train`] and
//! [`Sockets::recv`].
//!
//! * One *receive socket* for each local address, all on one port. They never send.
//! * Several *source sockets* for each local address, one ephemeral port each: the port is the entropy that
//!   ECMP hashes. They never receive data (a filter drops it), only ICMP errors.
//! * [`Poller`] and [`Waker`] let a background thread sleep until something happens.
//! * [`SharedMemory`] is what the engines of several processes share.
//!
//! Nothing here allocates once the sockets, the [`RecvBatch`] and the error list exist.

mod address;
mod config;
mod errors;
mod explained;
mod poller;
mod recv;
mod send;
mod shared;
mod signals;
mod sockets;
mod sockopt;
mod split;

pub use config::{Config, PortChoice};
pub use errors::{ErrorOrigin, MAX_ERRORS_PER_CALL, PeerError};
pub use explained::{errno_of, explain};
pub use poller::{Poller, Ready, Wakened, Waker, is_readable, prepare_background_thread};
pub use recv::{BUFFER_BYTES, Ecn, MAX_MESSAGES, Received, RecvBatch};
pub use send::{
    IoVec, MAX_TRAIN_BYTES, MAX_TRAIN_IOVECS, MAX_TRAIN_SEGMENTS, SendError, SendFailure,
};
pub use shared::{SharedMemory, receive_descriptor, send_descriptor};
pub use signals::{signals_that_wait, without_signals_of_writing};
pub use sockets::{LocalIndex, MAX_LOCALS, ReceiveFill, Sockets, SourceSlot, can_bind};
