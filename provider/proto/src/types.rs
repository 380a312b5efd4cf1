//! Words that the core shares with the engine and the verbs objects: time, handles, access rights,
//! work requests and their statuses. Nothing here knows packets (see `wire`) or sockets.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::ops::{Add, Sub};

use smallvec::SmallVec;

use crate::cc::Algorithm;
use crate::wire::{Gid, Qpn};

/// A reading of the engine's monotonic clock, in nanoseconds from an arbitrary start.
///
/// Kept as one more than that, so that an `Option<Time>`, of which a connection has dozens, takes no more than a `Time`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(NonZeroU64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Self = Self(NonZeroU64::MIN);

    /// From nanoseconds since the clock's start; what is after some 584 years is then.
    pub const fn from_ns(ns: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(ns))
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_ns(self) -> u64 {
        self.0.get() - 1
    }

    /// Nanoseconds from `earlier` to `self`; 0 if `earlier` is later.
    pub const fn since_ns(self, earlier: Self) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Add<u64> for Time {
    type Output = Self;
    fn add(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl Sub<u64> for Time {
    type Output = Self;
    fn sub(self, ns: u64) -> Self {
        Self::from_ns(self.as_ns().saturating_sub(ns))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.as_ns() / 1_000_000_000,
            self.as_ns() % 1_000_000_000
        )
    }
}

/// A queue pair of this endpoint: slot and generation, so that a handle that outlived its queue pair
/// never names the next owner of the slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpId(u32);

impl QpId {
    /// Handle of `slot` in its `generation`.
    pub const fn new(slot: u16, generation: u16) -> Self {
        Self((generation as u32) << 16 | slot as u32)
    }

    /// Index into a table of queue pairs.
    pub const fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// How many owners the slot had before.
    pub const fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

impl fmt::Debug for QpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp[{}.{}]", self.slot(), self.generation())
    }
}

/// A protection domain of this process; compared only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// A receive queue of the host: of one queue pair, or shared (SRQ).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct RqId(pub u32);

/// Access rights, the bits of `enum ibv_access_flags` that the transport looks at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Access(pub u32);

impl Access {
    /// IBV_ACCESS_LOCAL_WRITE
    pub const LOCAL_WRITE: Self = Self(1);
    /// IBV_ACCESS_REMOTE_WRITE
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// IBV_ACCESS_REMOTE_READ
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// IBV_ACCESS_REMOTE_ATOMIC
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// IBV_ACCESS_RELAXED_ORDERING
    pub const RELAXED_ORDERING: Self = Self(1 << 20);

    /// Whether every right of `wanted` is in `self`.
    pub const fn allows(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({:#x})", self.0)
    }
}

/// One entry of a scatter/gather list: the core carries it, only the host can touch what it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Address in the region's own address space (its iova).
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// lkey of the region.
    pub lkey: u32,
}

/// Scatter/gather lists of up to four entries need no allocation.
pub type SgeList = SmallVec<[Sge; 4]>;

/// Where the bytes of a send work request come from (or, for READ and atomics, where they go).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// Copied at post time (IBV_SEND_INLINE).
    Inline(SmallVec<[u8; 64]>),
    /// In registered memory.
    Gather(SgeList),
}

/// What a send work request asks for. `remote_addr` is in the address space of the remote region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// IBV_WR_SEND
    Send,
    /// IBV_WR_SEND_WITH_IMM; the immediate as the program gave it (network order, opaque here).
    SendImm([u8; 4]),
    /// IBV_WR_SEND_WITH_INV
    SendInv(u32),
    /// IBV_WR_RDMA_WRITE
    Write {
        /// Address in the remote region.
        remote_addr: u64,
        /// Key of the remote region.
        rkey: u32,
    },
    /// IBV_WR_RDMA_WRITE_WITH_IMM
    WriteImm {
        /// Address in the remote region.
        remote_addr: u64,
        /// Key of the remote region.
        rkey: u32,
        /// The immediate, as the program gave it.
        imm: [u8; 4],
    },
    /// IBV_WR_RDMA_READ
    Read {
        /// Address in the remote region.
        remote_addr: u64,
        /// Key of the remote region.
        rkey: u32,
    },
    /// IBV_WR_ATOMIC_CMP_AND_SWP
    CompareSwap {
        /// Address in the remote region.
        remote_addr: u64,
        /// Key of the remote region.
        rkey: u32,
        /// Value to compare with.
        compare: u64,
        /// Value to store if equal.
        swap: u64,
    },
    /// IBV_WR_ATOMIC_FETCH_AND_ADD
    FetchAdd {
        /// Address in the remote region.
        remote_addr: u64,
        /// Key of the remote region.
        rkey: u32,
        /// Value to add.
        add: u64,
    },
}

/// A send work request as the core takes it over. Work requests of a queue pair complete in the order
/// in which they were submitted, each with exactly one [`crate::event::Event::SendDone`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendRequest {
    /// Opaque to the core, returned with the completion.
    pub cookie: u64,
    /// What to do.
    pub operation: Operation,
    /// The local bytes.
    pub payload: Payload,
    /// Bytes of the message: the sum of the payload.
    pub length: u32,
    /// IBV_SEND_FENCE: wait for all earlier READs and atomics.
    pub fence: bool,
    /// IBV_SEND_SOLICITED.
    pub solicited: bool,
    /// Found wrong when it was posted (bad lkey, …): it completes with this status when its turn
    /// comes, and the queue pair fails then.
    pub fault: Option<Status>,
}

/// A posted receive, taken from its queue when a message binds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receive {
    /// Opaque to the core, returned with the completion.
    pub cookie: u64,
    /// Where the message goes.
    pub sges: SgeList,
}

impl Receive {
    /// Bytes that fit.
    pub fn capacity_bytes(&self) -> u64 {
        self.sges.iter().map(|s| u64::from(s.length)).sum()
    }
}

/// Completion statuses (`enum ibv_wc_status`, same numbers).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u32)]
pub enum Status {
    /// IBV_WC_SUCCESS
    Success = 0,
    /// IBV_WC_LOC_LEN_ERR
    LocalLength = 1,
    /// IBV_WC_LOC_QP_OP_ERR
    LocalQpOperation = 2,
    /// IBV_WC_LOC_PROT_ERR
    LocalProtection = 4,
    /// IBV_WC_WR_FLUSH_ERR
    Flushed = 5,
    /// IBV_WC_BAD_RESP_ERR
    BadResponse = 7,
    /// IBV_WC_LOC_ACCESS_ERR
    LocalAccess = 8,
    /// IBV_WC_REM_INV_REQ_ERR
    RemoteInvalidRequest = 9,
    /// IBV_WC_REM_ACCESS_ERR
    RemoteAccess = 10,
    /// IBV_WC_REM_OP_ERR
    RemoteOperation = 11,
    /// IBV_WC_RETRY_EXC_ERR
    RetryExceeded = 12,
    /// IBV_WC_RNR_RETRY_EXC_ERR
    RnrRetryExceeded = 13,
    /// IBV_WC_FATAL_ERR
    Fatal = 19,
    /// IBV_WC_GENERAL_ERR
    General = 21,
}

/// What `ibv_create_qp` tells the core.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Protection domain: remote keys must belong to it.
    pub pd: PdId,
    /// Receive queue that SENDs and immediates take from.
    pub receive_queue: RqId,
    /// The receive queue is shared with other queue pairs (no credits then, WIRE.md "Receives").
    pub shared_receive_queue: bool,
}

/// What a transition to RTR tells the core.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams {
    /// Own address (sgid_index).
    pub source_gid: Gid,
    /// The peer's address.
    pub dest_gid: Gid,
    /// The peer's queue pair; its upper ten bits name the peer's UDP port.
    pub dest_qpn: Qpn,
    /// rq_psn as given by the program, 24 bits; only compared.
    pub rq_psn: u32,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// Encoded RNR NAK timer (IBA table 45), told to the peer.
    pub min_rnr_timer: u8,
    /// qp_access_flags.
    pub access: Access,
}

/// What a transition to RTS tells the core.
#[derive(Clone, Copy, Debug)]
pub struct SendParams {
    /// sq_psn as given by the program, 24 bits; only compared.
    pub sq_psn: u32,
    /// Local ACK timeout: 4.096 µs × 2^timeout, 0 = unlimited (IBA).
    pub timeout: u8,
    /// 0…7
    pub retry_count: u8,
    /// 0…7, 7 = for ever.
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding at the peer.
    pub max_rd_atomic: u8,
}

/// Index into [`EndpointConfig::locals`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct LocalIndex(pub u8);

/// A set of own addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalSet(u64);

impl LocalSet {
    /// All there are.
    pub const ALL: Self = Self(u64::MAX);
    /// None.
    pub const NONE: Self = Self(0);

    /// The set with `local` as well. Those beyond the 64th are in no set but [`Self::ALL`].
    #[must_use]
    pub const fn with(self, local: LocalIndex) -> Self {
        Self(self.0 | Self::bit(local))
    }

    /// Whether `local` is in it.
    pub const fn has(self, local: LocalIndex) -> bool {
        self.0 & Self::bit(local) != 0 || self.0 == u64::MAX
    }

    /// A bit for each address, the first one lowest.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// From [`Self::bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    const fn bit(local: LocalIndex) -> u64 {
        if local.0 < 64 { 1 << local.0 } else { 0 }
    }
}

/// One of the engine's source sockets of a local address: the ECMP entropy of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct SourceSlot(pub u8);

/// What a path travels on: local address (and with it the plane), source port, destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Route {
    /// Local address to send from.
    pub local: LocalIndex,
    /// Source socket of that address.
    pub source: SourceSlot,
    /// Where to.
    pub destination: SocketAddr,
}

/// One address of the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalAddress {
    /// Address that the sockets are bound to.
    pub ip: IpAddr,
    /// Scope (interface index) for link-local IPv6, else 0.
    pub scope_id: u32,
    /// Plane that it is on.
    pub plane: u8,
    /// Speed of that plane's link, 0 if not known; only told.
    pub speed_mbps: u32,
}

/// The constants that depend on how promptly the two ends are driven (WIRE.md, probe floor).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driving {
    /// Both ends poll without sleeping (and the simulator of NICs).
    Busy,
    /// Sockets, threads that sleep.
    Sockets,
}

/// What the endpoint is told once.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Index of the bound port in the range: the upper ten bits of our QPNs.
    pub index: u16,
    /// First port of the range; the same on all hosts.
    pub port_base: u16,
    /// Own addresses, the device's GIDs in the order of the GID table.
    pub locals: Vec<LocalAddress>,
    /// Source sockets per local address, at most 255.
    pub source_slots: u8,
    /// Payload bytes of a full DATA packet that our MTU carries.
    pub payload_bytes: u16,
    /// Segments of a train at most, and bytes of a train at most.
    pub train_segments: u16,
    /// Bytes of a train at most (UDP payload).
    pub train_bytes: u32,
    /// Bytes that all peers together may have in flight to us (follows the real socket buffer).
    pub receive_window_bytes: u32,
    /// Paths per connection, 1…64.
    pub paths: u8,
    /// Timing constants.
    pub driving: Driving,
    /// Congestion control of the paths, as a sender.
    pub congestion: &'static Algorithm,
    /// Overrides the regions' own wish: `Some(true)` strict, `Some(false)` relaxed.
    pub force_strict: Option<bool>,
    /// Bytes of packets that may be held back for strict visibility at most, all connections together; how many of these
    /// may be used follows the need.
    pub hold_bytes: u32,
    /// Diagnostic: on average so often a path of each busy connection takes a random other route; 0 is never.
    pub reroll_ns: u64,
}
