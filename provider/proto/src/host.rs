//! What the core needs from its host: registered memory and posted receives. The engine implements it over the
//! process's memory, the simulator over its own; the core itself never touches a byte of the application.

use crate::types::{Access, PdId, Receive, RqId};

/// How a region wants remote writes to become visible (WIRE.md "Visibility").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visibility {
    /// Registered with IBV_ACCESS_RELAXED_ORDERING: place whatever arrives, at once.
    Relaxed,
    /// Registered without: a WRITE's final packet last, WRITEs in order.
    Strict,
}

/// The key, the protection domain, the bounds or the rights do not allow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessDenied;

/// An atomic on eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOperation {
    /// Swap if equal.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store if equal.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// Value to add.
        add: u64,
    },
}

impl AtomicOperation {
    /// What the eight bytes hold afterwards if they held `before`. For hosts whose memory nobody else touches.
    #[must_use]
    pub const fn apply(self, before: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if compare == before => swap,
            Self::CompareSwap { .. } => before,
            Self::FetchAdd { add } => before.wrapping_add(add),
        }
    }
}

/// The host's memory and receive queues.
pub trait Host {
    /// Whether `[addr, addr + length)` of the region named by `rkey` belongs to `pd` and grants `access`.
    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<Visibility, AccessDenied>;

    /// Writes `bytes` at `addr` of the region `key` (lkey or rkey): within the call bytes become visible in ascending
    /// order, the last word last. Fails if the region is gone or too short. `pd` is checked too.
    fn place(&mut self, pd: PdId, key: u32, addr: u64, bytes: &[u8]) -> Result<(), AccessDenied>;

    /// Executes an atomic on the aligned eight bytes at `addr` and returns the value before, in host order.
    fn atomic(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AccessDenied>;

    /// Takes the oldest posted receive.
    fn take_receive(&mut self, queue: RqId) -> Option<Receive>;

    /// Posted receives that nothing has taken yet.
    fn receives_available(&mut self, queue: RqId) -> u32;

    /// The next receive that is posted there must be told (`Endpoint::receives_posted`), also while others wait. For hosts
    /// that do not tell all of them.
    fn want_receive_notice(&mut self, _queue: RqId) {}
}
