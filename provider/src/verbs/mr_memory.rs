//! The memory of the application: the table of registered regions, and every access to their bytes.
//!
//! All unsafe code that touches memory of the program is in this file; `post_send` (inline data), the engine (placing,
//! atomics, addresses for sends) and `mr.rs` (registering) come here. Nothing is pinned: a region is a promise of the
//! program that the range stays mapped until it deregisters it, and every SAFETY comment below leans on that promise.
//!
//! A key is an index and a tag. The tag starts at random and changes with every owner of the slot, so that a stale or
//! guessed key fails. Placing holds the table's read lock: deregistering waits for a place in progress, and once it
//! has returned nothing touches the memory any more. Read first: [`MrTable::locate`], then [`store_ascending`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use metaroce_proto::host::{AccessDenied, AtomicOperation, Visibility};
use metaroce_proto::types::{Access, PdId, Sge};
use parking_lot::RwLock;

use super::limits::{MAX_MR, MR_INDEX_BITS};

#[path = "mr_fork.rs"]
pub mod mr_fork;

/// Up to this many bytes are stored word by word in ascending order; more are copied, but for the last
/// [`TAIL_BYTES`]. Programs that poll memory poll slots and flags, which are far smaller (WIRE "Visibility").
const ASCENDING_BYTES: usize = 1_024;

/// Bytes at the end of a long copy that are stored in ascending order after all others.
const TAIL_BYTES: usize = 64;

/// A registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Protection domain that it belongs to.
    pub pd: PdId,
    /// Address of its first byte as peers and work requests name it.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Address of its first byte in this process.
    pub host_addr: u64,
    /// Rights.
    pub access: Access,
}

impl Region {
    /// Address in this process of `[addr, addr + length)`, if that lies inside. No sum can wrap: `addr` is at least
    /// `iova`, and the rest is compared by differences.
    fn host_of(&self, addr: u64, length: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.iova)?;
        let rest = self.length.checked_sub(offset)?;
        (length <= rest).then(|| self.host_addr.wrapping_add(offset))
    }
}

#[derive(Clone, Debug)]
struct Slot {
    tag: u32,
    region: Option<Region>,
}

#[derive(Clone, Debug, Default)]
struct Slots {
    /// Slot 0 is never given out, so that no key is 0.
    slots: Vec<Slot>,
    /// Free slots, used again in the order in which they became free: a stale key stays wrong for long.
    free: VecDeque<u32>,
}

/// The regions of a process. Keys are the process's, not a device's; the protection domain tells devices apart.
#[derive(Debug, Default)]
pub struct MrTable {
    inner: RwLock<Slots>,
}

const fn index_of(key: u32) -> usize {
    (key & ((1 << MR_INDEX_BITS) - 1)) as usize
}

const fn tag_of(key: u32) -> u32 {
    key >> MR_INDEX_BITS
}

const TAG_MASK: u32 = (1 << (32 - MR_INDEX_BITS)) - 1;

impl MrTable {
    /// The table of this process, which all devices and engines share. In a forked child it begins with the regions that
    /// its parent had: see `mr_fork.rs`.
    pub fn of_process() -> &'static Arc<Self> {
        mr_fork::table()
    }

    /// Adds a region whose memory the caller has probed ([`probe`]); `None` when the table is full. The result is both
    /// lkey and rkey.
    pub fn register(&self, region: Region) -> Option<u32> {
        let mut inner = self.inner.write();
        if inner.slots.is_empty() {
            inner.slots.push(Slot {
                tag: 0,
                region: None,
            });
        }
        // A quarter of the spare slots rest before they are used again, as long as the table can still grow.
        let rested = inner.free.len() > inner.slots.len() / 4;
        let may_grow = inner.slots.len() <= MAX_MR as usize;
        let index = if rested || !may_grow {
            inner.free.pop_front()?
        } else {
            inner.slots.push(Slot {
                tag: rand::random::<u32>() & TAG_MASK,
                region: None,
            });
            (inner.slots.len() - 1) as u32
        };
        let slot = &mut inner.slots[index as usize];
        slot.region = Some(region);
        Some(index | slot.tag << MR_INDEX_BITS)
    }

    /// Removes a region; waits for accesses in progress. `None` if the key names none.
    pub fn deregister(&self, key: u32) -> Option<Region> {
        let mut inner = self.inner.write();
        let index = index_of(key);
        let slot = inner
            .slots
            .get_mut(index)
            .filter(|slot| slot.tag == tag_of(key))?;
        let region = slot.region.take()?;
        // An odd step: all tags are used before one comes back. The step is random, so the next tag is not known.
        slot.tag = slot.tag.wrapping_add(rand::random::<u32>() | 1) & TAG_MASK;
        inner.free.push_back(index as u32);
        Some(region)
    }

    /// Replaces a region in place (rereg_mr): the key stays; waits for accesses in progress.
    pub fn replace(&self, key: u32, region: Region) -> bool {
        let mut inner = self.inner.write();
        match inner.slots.get_mut(index_of(key)) {
            Some(slot) if slot.tag == tag_of(key) && slot.region.is_some() => {
                slot.region = Some(region);
                true
            }
            _ => false,
        }
    }

    /// The region of a key.
    pub fn get(&self, key: u32) -> Option<Region> {
        Self::find(&self.inner.read(), key).copied()
    }

    /// Regions registered now.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        let inner = self.inner.read();
        inner.slots.len().saturating_sub(1 + inner.free.len())
    }

    fn find(slots: &Slots, key: u32) -> Option<&Region> {
        slots
            .slots
            .get(index_of(key))
            .filter(|slot| slot.tag == tag_of(key))?
            .region
            .as_ref()
    }

    /// The one place where a key, a protection domain, bounds and rights are checked.
    fn locate(
        slots: &Slots,
        pd: PdId,
        key: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(u64, &Region), AccessDenied> {
        let region = Self::find(slots, key).ok_or(AccessDenied)?;
        if region.pd != pd || !region.access.allows(access) {
            return Err(AccessDenied);
        }
        let host = region.host_of(addr, length).ok_or(AccessDenied)?;
        Ok((host, region))
    }

    /// Whether `[addr, addr + length)` of the region belongs to `pd` and grants `access`, and how the region wants
    /// writes to become visible.
    pub fn check_remote(
        &self,
        pd: PdId,
        key: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<Visibility, AccessDenied> {
        let inner = self.inner.read();
        let (_, region) = Self::locate(&inner, pd, key, addr, length, access)?;
        Ok(if region.access.allows(Access::RELAXED_ORDERING) {
            Visibility::Relaxed
        } else {
            Visibility::Strict
        })
    }

    /// Whether all entries of a scatter/gather list may be used by a work request of `pd`. One lock for the whole list.
    pub fn check_list(&self, pd: PdId, sges: &[Sge], access: Access) -> Result<(), AccessDenied> {
        if sges.is_empty() {
            return Ok(());
        }
        let inner = self.inner.read();
        for sge in sges {
            Self::locate(
                &inner,
                pd,
                sge.lkey,
                sge.addr,
                u64::from(sge.length),
                access,
            )?;
        }
        Ok(())
    }

    /// Writes `bytes` at `addr` of region `key`, in ascending order of visibility, the last word last. The region must
    /// be locally writable; remote rights were checked by [`MrTable::check_remote`] when the message began.
    pub fn place(&self, pd: PdId, key: u32, addr: u64, bytes: &[u8]) -> Result<(), AccessDenied> {
        let inner = self.inner.read();
        let (host, _) = Self::locate(
            &inner,
            pd,
            key,
            addr,
            bytes.len() as u64,
            Access::LOCAL_WRITE,
        )?;
        // SAFETY: `[host, host + len)` lies in a region that the program registered as writable and promised to keep
        // mapped until it deregisters it, which waits for the read lock held here. `bytes` is a packet of ours and
        // overlaps no memory of the program. Other threads of the program may read meanwhile: see `place_bytes`.
        unsafe { place_bytes(host as *mut u8, bytes) };
        drop(inner);
        Ok(())
    }

    /// Executes an atomic on the eight bytes at `addr` and returns the value before. Fails, too, if `addr` is not
    /// aligned in either address space.
    pub fn atomic(
        &self,
        pd: PdId,
        key: u32,
        addr: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AccessDenied> {
        let inner = self.inner.read();
        let (host, _) = Self::locate(&inner, pd, key, addr, 8, Access::REMOTE_ATOMIC)?;
        if !addr.is_multiple_of(8) || host % 8 != 0 {
            return Err(AccessDenied);
        }
        // SAFETY: eight aligned bytes of a region that the program registered for atomics (so also as writable), kept
        // mapped under the read lock as in `place`. Whoever else changes them does so by atomic instructions, or
        // verbs promise nothing about the value.
        let word = unsafe { AtomicU64::from_ptr(host as *mut u64) };
        Ok(match operation {
            AtomicOperation::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|value| value),
            AtomicOperation::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
        })
    }

    /// The address in this process of `[addr, addr + length)` of region `key`, for the iovec of a send. It is not
    /// dereferenced here: the kernel reads it, and answers EFAULT if it is not mapped any more.
    pub fn resolve(&self, key: u32, addr: u64, length: u64) -> Option<*const u8> {
        let inner = self.inner.read();
        let host = Self::find(&inner, key)?.host_of(addr, length)?;
        Some(host as *const u8)
    }
}

/// Copies bytes of the program that it named in a work request, piece by piece, to `push`.
///
/// # Safety
/// `[addr, addr + length)` is readable for the length of the call.
pub unsafe fn copy_from_program(addr: u64, length: usize, mut push: impl FnMut(&[u8])) {
    const PIECE_BYTES: usize = 256;
    let mut piece = [0_u8; PIECE_BYTES];
    let mut done = 0;
    while done < length {
        let count = PIECE_BYTES.min(length - done);
        // SAFETY: within the range that the caller vouches for; `piece` is our own stack. Copied, not borrowed, since
        // the program may change the bytes at any time and a `&[u8]` must not change.
        unsafe {
            std::ptr::copy_nonoverlapping((addr as *const u8).add(done), piece.as_mut_ptr(), count)
        };
        push(&piece[..count]);
        done += count;
    }
}

/// Writes `bytes` to `target` so that a thread which polls memory sees them in ascending order, the last word last.
///
/// # Safety
/// `[target, target + bytes.len())` is writable, and does not overlap `bytes`.
unsafe fn place_bytes(target: *mut u8, bytes: &[u8]) {
    if bytes.len() <= ASCENDING_BYTES {
        // SAFETY: the caller's promise.
        return unsafe { store_ascending(target, bytes) };
    }
    // The tail begins at a word, so that the copy and the stores do not share one.
    let end = target as usize + bytes.len();
    let split = ((end - TAIL_BYTES) & !7) - target as usize;
    // SAFETY: the caller's promise; `split` is less than `bytes.len()`, which is more than `ASCENDING_BYTES`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, split) };
    // Orders the copy, whose stores are no atomics to the compiler, before the first store of the tail. Partner: the
    // acquiring load of whoever polls the tail.
    fence(Ordering::Release);
    // SAFETY: as above.
    unsafe { store_ascending(target.add(split), &bytes[split..]) };
}

/// Stores in ascending order, each store as wide as the alignment of its place allows: a flag or counter of up to
/// eight bytes that is aligned, as the compiler aligns it, is never seen half written.
///
/// Every store is a Release (free on x86, `stlr` on ARM): it is not visible before those that precede it. Partner: the
/// acquiring load (or the volatile one that programs use on x86) of the thread that polls.
///
/// # Safety
/// As `place_bytes`.
unsafe fn store_ascending(target: *mut u8, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: `done` is below the length that the caller vouches for.
        let place = unsafe { target.add(done) };
        let rest = &bytes[done..];
        let address = place as usize;
        // SAFETY (all four): the place is aligned for the width, which does not exceed the rest.
        done += if let (0, Some(word)) = (address % 8, rest.first_chunk::<8>()) {
            // SAFETY: see above.
            unsafe { AtomicU64::from_ptr(place.cast()) }
                .store(u64::from_ne_bytes(*word), Ordering::Release);
            8
        } else if let (0, Some(word)) = (address % 4, rest.first_chunk::<4>()) {
            // SAFETY: see above.
            unsafe { AtomicU32::from_ptr(place.cast()) }
                .store(u32::from_ne_bytes(*word), Ordering::Release);
            4
        } else if let (0, Some(word)) = (address % 2, rest.first_chunk::<2>()) {
            // SAFETY: see above.
            unsafe { AtomicU16::from_ptr(place.cast()) }
                .store(u16::from_ne_bytes(*word), Ordering::Release);
            2
        } else {
            // SAFETY: see above.
            unsafe { AtomicU8::from_ptr(place) }.store(rest[0], Ordering::Release);
            1
        };
    }
}

/// Page size that probing steps by: the smallest one of the platforms that we run on.
const PAGE_BYTES: u64 = 4_096;

/// Pages whose presence is looked up in one call, and at most for one registration (256 MiB): beyond that a hole in the
/// middle is found when it is used, and registering stays cheap.
const PROBED_PAGES: u64 = 65_536;

/// Whether `[addr, addr + length)` is mapped, readable and, if `writable`, writable at both ends, as a device that pins
/// memory would find out when it registers it. Nothing is changed; pages at the ends may be faulted in.
pub fn probe(addr: u64, length: u64, writable: bool) -> bool {
    if length == 0 {
        return true;
    }
    let last = addr + (length - 1);
    is_mapped(addr, last)
        && [addr, last]
            .into_iter()
            .all(|place| is_readable(place) && (!writable || is_writable(place)))
}

/// Asks the kernel which pages of a range are resident, which fails for a range that is not wholly mapped.
fn is_mapped(first: u64, last: u64) -> bool {
    let start = first & !(PAGE_BYTES - 1);
    let pages = ((last - start) / PAGE_BYTES + 1).min(PROBED_PAGES);
    let mut resident = vec![0_u8; pages as usize];
    // SAFETY: the kernel reads no memory of the range, it only looks the mappings up, and writes one byte per page to
    // `resident`, which has that many.
    let result = unsafe {
        libc::mincore(
            start as *mut libc::c_void,
            (pages * PAGE_BYTES) as usize,
            resident.as_mut_ptr(),
        )
    };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM)
}

/// Makes the kernel read the eight bytes around `place`: a call that fails in any case, with EFAULT if they cannot be
/// read and with EINVAL otherwise.
fn is_readable(place: u64) -> bool {
    let set = (place & !7) as *const libc::sigset_t;
    // SAFETY: no valid `how` is -1, so the call changes no signal mask; the kernel checks the address itself.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, -1_i64, set, 0_usize, 8_usize) };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// Makes the kernel add 0 atomically to the four bytes around `place`, which fails with EFAULT if they are not
/// writable and changes nothing if they are.
fn is_writable(place: u64) -> bool {
    /// Nobody waits on it.
    static UNUSED: AtomicU32 = AtomicU32::new(0);
    /// FUTEX_OP_ADD 0, and "wake if the old value equals 0x7ff": at worst a waiter on the program's word wakes up
    /// spuriously, which every user of a futex must bear.
    const ADD_ZERO: u32 = 1 << 28 | 0x7ff;
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    let word = (place & !3) as *mut u32;
    // SAFETY: the kernel checks both addresses; adding 0 leaves the program's word as it is, atomically.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            UNUSED.as_ptr(),
            operation,
            0_usize,
            0_usize,
            word,
            ADD_ZERO,
        )
    };
    result >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

#[cfg(test)]
#[path = "mr_memory_tests.rs"]
mod tests;
