//! A host of plain vectors.

use std::collections::{HashMap, VecDeque};

use crate::host::{AccessDenied, AtomicOperation, Host, Visibility};
use crate::types::{Access, PdId, Receive, RqId, Sge};

/// Every right of a region, strict.
pub(super) const ALL: Access = Access(0xf);
/// Every right of a region, relaxed.
pub(super) const ALL_RELAXED: Access = Access(0xf | Access::RELAXED_ORDERING.0);

#[derive(Debug)]
struct Region {
    pd: PdId,
    base: u64,
    access: Access,
    bytes: Vec<u8>,
}

/// Registered memory and receive queues.
#[derive(Default, Debug)]
pub(crate) struct FakeHost {
    regions: HashMap<u32, Region>,
    queues: HashMap<RqId, VecDeque<Receive>>,
    next_key: u32,
}

impl FakeHost {
    /// Registers zeroed memory; returns key and address.
    pub(crate) fn register(&mut self, pd: PdId, length: usize, access: Access) -> (u32, u64) {
        self.next_key += 1;
        let base = 0x10_0000 + u64::from(self.next_key) * 0x1_0000_0000;
        self.regions.insert(
            self.next_key,
            Region {
                pd,
                base,
                access,
                bytes: vec![0; length],
            },
        );
        (self.next_key, base)
    }

    pub(crate) fn deregister(&mut self, key: u32) {
        self.regions.remove(&key);
    }

    pub(crate) fn post(&mut self, queue: RqId, receive: Receive) {
        self.queues.entry(queue).or_default().push_back(receive);
    }

    pub(crate) fn memory(&self, key: u32, addr: u64, length: usize) -> Option<&[u8]> {
        let region = self.regions.get(&key)?;
        let start = usize::try_from(addr.checked_sub(region.base)?).ok()?;
        region.bytes.get(start..start.checked_add(length)?)
    }

    fn memory_mut(
        &mut self,
        pd: PdId,
        key: u32,
        addr: u64,
        length: usize,
    ) -> Result<&mut [u8], AccessDenied> {
        let region = self
            .regions
            .get_mut(&key)
            .filter(|region| region.pd == pd)
            .ok_or(AccessDenied)?;
        let start = addr
            .checked_sub(region.base)
            .and_then(|start| usize::try_from(start).ok())
            .ok_or(AccessDenied)?;
        region
            .bytes
            .get_mut(start..start + length)
            .ok_or(AccessDenied)
    }

    pub(crate) fn fill(&mut self, key: u32, addr: u64, bytes: &[u8]) {
        let pd = self.regions[&key].pd;
        self.memory_mut(pd, key, addr, bytes.len())
            .expect("a test's own memory")
            .copy_from_slice(bytes);
    }

    pub(crate) fn gather(&self, sges: &[Sge]) -> Vec<u8> {
        let part = |sge: &Sge| {
            self.memory(sge.lkey, sge.addr, sge.length as usize)
                .expect("registered")
                .to_vec()
        };
        sges.iter()
            .filter(|sge| sge.length > 0)
            .flat_map(part)
            .collect()
    }
}

impl Host for FakeHost {
    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<Visibility, AccessDenied> {
        let granted = self.regions.get(&rkey).ok_or(AccessDenied)?.access;
        if !granted.allows(access) {
            return Err(AccessDenied);
        }
        self.memory_mut(pd, rkey, addr, length as usize)?;
        let relaxed = granted.allows(Access::RELAXED_ORDERING);
        Ok(if relaxed {
            Visibility::Relaxed
        } else {
            Visibility::Strict
        })
    }

    fn place(&mut self, pd: PdId, key: u32, addr: u64, bytes: &[u8]) -> Result<(), AccessDenied> {
        self.memory_mut(pd, key, addr, bytes.len())?
            .copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AccessDenied> {
        let bytes = self.memory_mut(pd, rkey, addr, 8)?;
        let before = u64::from_ne_bytes(<[u8; 8]>::try_from(&*bytes).map_err(|_| AccessDenied)?);
        bytes.copy_from_slice(&operation.apply(before).to_ne_bytes());
        Ok(before)
    }

    fn take_receive(&mut self, queue: RqId) -> Option<Receive> {
        self.queues.get_mut(&queue)?.pop_front()
    }

    fn receives_available(&mut self, queue: RqId) -> u32 {
        self.queues
            .get(&queue)
            .map_or(0, |queue| queue.len() as u32)
    }
}
