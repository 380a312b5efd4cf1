//! The limits of the device, in one table: `query_device` reports them, the verbs objects enforce them.
//!
//! Each is named with its reason. A request beyond a limit fails with EINVAL where it is an argument (a depth, a size)
//! and with ENOMEM where it is a count of objects; nothing is cut down silently.

/// Queue pairs of a device in a process: 14 bits of the QPN are local, and numbers rest a while before they are used again.
pub const MAX_QP: u32 = 16_000;

/// Work requests of a send or receive queue.
pub const MAX_QP_WR: u32 = 32_768;

/// Scatter/gather entries of a work request: 30 and the headers fit into one iovec of a send.
pub const MAX_SGE: u32 = 30;

/// Scatter/gather entries of a READ.
pub const MAX_SGE_READ: u32 = MAX_SGE;

/// Inline bytes that every queue pair gets, whether it asked or not: perftest takes 220 and 236 for granted.
pub const INLINE_BYTES: u32 = 256;

/// Inline bytes that a queue pair may ask for: still one packet at MTU 1500.
pub const MAX_INLINE_BYTES: u32 = 1_024;

/// Bytes of a message (`max_msg_sz`), as InfiniBand has it.
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// Completion queues of a process.
pub const MAX_CQ: u32 = 65_536;

/// Entries of a completion queue. Memory is taken as entries arrive, not in advance.
pub const MAX_CQE: u32 = (1 << 22) - 1;

/// Completion vectors: one, for the progress of an engine is not split over interrupts.
pub const COMPLETION_VECTORS: u32 = 1;

/// Bits of a memory key that are the index; the rest are the tag that makes stale and guessed keys fail.
pub const MR_INDEX_BITS: u32 = 20;

/// Memory regions of a process, all devices together; index 0 stays free, so that no key is 0.
pub const MAX_MR: u32 = (1 << MR_INDEX_BITS) - 1;

/// Bytes of a memory region: nothing is pinned, so all of the address space.
pub const MAX_MR_BYTES: u64 = u64::MAX;

/// Protection domains of a process.
pub const MAX_PD: u32 = 65_536;

/// Address handles of a process.
pub const MAX_AH: u32 = 65_536;

/// READs and atomics outstanding per queue pair, in either role.
pub const MAX_RD_ATOMIC: u8 = 16;

/// Shared receive queues: none yet.
pub const MAX_SRQ: u32 = 0;

/// Work requests of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 0;

/// Scatter/gather entries of a shared receive queue's work requests.
pub const MAX_SRQ_SGE: u32 = 0;

/// Partition keys: the default one.
pub const MAX_PKEYS: u16 = 1;

/// Largest encoded local ACK timeout (5 bits).
pub const MAX_TIMEOUT: u8 = 31;

/// Largest retry count and RNR retry count (3 bits; 7 RNR retries mean for ever).
pub const MAX_RETRY: u8 = 7;

/// Largest encoded RNR NAK timer (5 bits).
pub const MAX_RNR_TIMER: u8 = 31;

/// Sequence numbers and QP numbers are 24 bits.
pub const MAX_24_BIT: u32 = 0x00ff_ffff;
