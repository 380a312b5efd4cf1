//! What the core tells its host: completions and asynchronous conditions, in the order in which they became true.

use std::net::{IpAddr, SocketAddr};

use crate::types::{QpId, Status};
use crate::wire::Qpn;

/// A send work request is done. Of each queue pair in the order of submission, every request exactly once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendDone {
    /// Queue pair.
    pub qp: QpId,
    /// Of the request.
    pub cookie: u64,
    /// How it ended.
    pub status: Status,
    /// More about an error (implementation-defined, `vendor_err`).
    pub vendor_error: u32,
}

/// What a receive completion reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveKind {
    /// IBV_WC_RECV
    Send,
    /// IBV_WC_RECV with IBV_WC_WITH_IMM
    SendImm([u8; 4]),
    /// IBV_WC_RECV with IBV_WC_WITH_INV: the key that the peer asks to invalidate
    SendInv(u32),
    /// IBV_WC_RECV_RDMA_WITH_IMM
    WriteImm([u8; 4]),
}

/// A receive that a message had bound is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveDone {
    /// Queue pair (also when the receive came from a shared queue).
    pub qp: QpId,
    /// Of the receive.
    pub cookie: u64,
    /// How it ended.
    pub status: Status,
    /// What arrived.
    pub kind: ReceiveKind,
    /// Bytes of the message (of an RDMA WRITE too).
    pub byte_length: u32,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// More about an error.
    pub vendor_error: u32,
}

/// Why a queue pair went to the error state by itself (`enum ibv_event_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpFailure {
    /// IBV_EVENT_QP_FATAL
    Fatal,
    /// IBV_EVENT_QP_REQ_ERR: the peer asked for something invalid
    InvalidRequest,
    /// IBV_EVENT_QP_ACCESS_ERR: the peer violated access rights
    AccessViolation,
}

/// Something that the host must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// See [`SendDone`].
    SendDone(SendDone),
    /// See [`ReceiveDone`].
    ReceiveDone(ReceiveDone),
    /// The queue pair is in the error state now: all its send work requests were completed before this event, and the
    /// receives that messages had bound too; the host flushes the receives that are still posted.
    QpFailed {
        /// Queue pair.
        qp: QpId,
        /// Why.
        failure: QpFailure,
    },
    /// First packet of the peer arrived while in RTR (IBV_EVENT_COMM_EST).
    Established {
        /// Queue pair.
        qp: QpId,
    },
    /// The peer was silent for as long as the queue pair allows (WIRE 3.22), or nothing of what has to be sent there has
    /// passed for so long (WIRE 4.32), which fails it now: for people who ask why.
    PeerSilent {
        /// Queue pair.
        qp: QpId,
        /// Where the peer receives, or should.
        peer: SocketAddr,
        /// Our own address.
        own: IpAddr,
        /// It had answered before.
        answered: bool,
        /// It is not silent, but the way there swallows packets of so many bytes (UDP payload) and more, and packets with
        /// data are no smaller.
        swallowed_bytes: Option<u32>,
    },
    /// The peer's host says that nobody listens there any more (WIRE 3.18): the connection ends now, and its queue pairs fail
    /// as soon as they have something to send. For people who ask why.
    PeerUnreachable {
        /// Where the peer received.
        peer: SocketAddr,
        /// Our own address.
        own: IpAddr,
        /// Queue pairs that used the connection.
        queue_pairs: u32,
    },
}
