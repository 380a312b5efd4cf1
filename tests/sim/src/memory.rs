//! The memory of a node: registered regions (vectors of bytes with keys, protection domain and rights) and posted
//! receives. [`HostView`] is what the endpoint sees of it; every access is told to the checker first.
//!
//! The lkey and the rkey of a region differ, so that a key that is used for the wrong purpose is found.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use metaroce_proto::host::{AccessDenied, AtomicOperation, Host, Visibility};
use metaroce_proto::types::{Access, PdId, Receive, RqId, Time};

use crate::NodeId;
use crate::checker::Ledger;

/// Index of a region in its node's memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionIndex(pub u32);

/// A piece of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Region.
    pub region: RegionIndex,
    /// Address in the region's address space.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
}

#[derive(Debug)]
struct Region {
    pd: PdId,
    base: u64,
    access: Access,
    length: u32,
    /// Empty in hollow memory.
    bytes: Vec<u8>,
    registered: bool,
}

/// Which key of a region something was asked for with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// lkey
    Local,
    /// rkey
    Remote,
}

/// Registered memory and receive queues of a node.
#[derive(Debug, Default)]
pub struct Memory {
    regions: Vec<Region>,
    queues: BTreeMap<RqId, VecDeque<Receive>>,
    /// What the endpoint was told to do with all regions.
    force_strict: Option<bool>,
    /// Nothing is in it: see [`crate::scenario::Scenario::carry_payloads`].
    hollow: bool,
    /// What is seen of hollow regions, all of them: as long as the longest.
    nothing: Vec<u8>,
}

impl Memory {
    /// No memory yet; `force_strict` is what the endpoint was configured with.
    pub fn new(force_strict: Option<bool>) -> Self {
        Self {
            force_strict,
            ..Self::default()
        }
    }

    /// Regions that are registered from now on are hollow: only their bounds exist.
    pub fn make_hollow(&mut self) {
        self.hollow = true;
    }

    /// Whether it is.
    pub fn is_hollow(&self) -> bool {
        self.hollow
    }

    /// Registers `length` zero bytes.
    pub fn register(&mut self, pd: PdId, length: u32, access: Access) -> RegionIndex {
        let index = RegionIndex(self.regions.len() as u32);
        // No region begins at the alignment of its vector, and none ends where another begins.
        let base = ((u64::from(index.0) + 1) << 32) + 0x1000;
        let carried = if self.hollow { 0 } else { length };
        if self.hollow && self.nothing.len() < length as usize {
            self.nothing = vec![0; length as usize];
        }
        self.regions.push(Region {
            pd,
            base,
            access,
            length,
            bytes: vec![0; carried as usize],
            registered: true,
        });
        index
    }

    /// Ends a registration: its keys are nobody's from now on.
    pub fn deregister(&mut self, region: RegionIndex) {
        self.regions[region.0 as usize].registered = false;
    }

    /// Address of a region's first byte; 0 for one that went with its process, which a peer may still name.
    pub fn base(&self, region: RegionIndex) -> u64 {
        self.regions
            .get(region.0 as usize)
            .map_or(0, |region| region.base)
    }

    /// lkey of a region.
    pub fn lkey(region: RegionIndex) -> u32 {
        region.0 << 4 | 2
    }

    /// rkey of a region.
    pub fn rkey(region: RegionIndex) -> u32 {
        region.0 << 4 | 5
    }

    /// The registered region of a key.
    pub fn find(&self, key: u32) -> Option<(RegionIndex, KeyKind)> {
        let kind = match key & 0xf {
            2 => KeyKind::Local,
            5 => KeyKind::Remote,
            _ => return None,
        };
        let index = RegionIndex(key >> 4);
        self.regions
            .get(index.0 as usize)
            .filter(|region| region.registered)?;
        Some((index, kind))
    }

    /// Whether a region was registered without relaxed ordering.
    fn asks_for_order(&self, region: RegionIndex) -> bool {
        !self.regions[region.0 as usize]
            .access
            .allows(Access::RELAXED_ORDERING)
    }

    /// Where in a region some bytes are, if they are in it.
    fn range(&self, region: RegionIndex, addr: u64, length: u64) -> Option<Range<usize>> {
        let region = self.regions.get(region.0 as usize)?;
        let start = addr.checked_sub(region.base)?;
        let end = start.checked_add(length)?;
        let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        (end <= u64::from(region.length)).then_some(range)
    }

    /// Bytes of a region.
    pub fn bytes(&self, region: RegionIndex, addr: u64, length: u64) -> Option<&[u8]> {
        let range = self.range(region, addr, length)?;
        if self.hollow {
            return self.nothing.get(range);
        }
        self.regions[region.0 as usize].bytes.get(range)
    }

    /// Bytes of a region, to be changed.
    pub fn bytes_mut(&mut self, region: RegionIndex, addr: u64, length: u64) -> Option<&mut [u8]> {
        let range = self.range(region, addr, length)?;
        if self.hollow {
            return self.nothing.get_mut(range);
        }
        self.regions[region.0 as usize].bytes.get_mut(range)
    }

    /// Posts a receive.
    pub fn post(&mut self, queue: RqId, receive: Receive) {
        self.queues.entry(queue).or_default().push_back(receive);
    }

    /// Takes all posted receives of a queue away.
    pub fn clear_queue(&mut self, queue: RqId) -> VecDeque<Receive> {
        self.queues.remove(&queue).unwrap_or_default()
    }
}

/// What an endpoint sees of its node.
pub struct HostView<'a> {
    /// The node.
    pub node: NodeId,
    /// Now.
    pub now: Time,
    /// Its memory.
    pub memory: &'a mut Memory,
    /// Told of every access.
    pub ledger: &'a mut Ledger,
}

impl Host for HostView<'_> {
    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<Visibility, AccessDenied> {
        let (index, kind) = self.memory.find(rkey).ok_or(AccessDenied)?;
        let region = &self.memory.regions[index.0 as usize];
        if kind != KeyKind::Remote || region.pd != pd || !region.access.allows(access) {
            return Err(AccessDenied);
        }
        self.memory.bytes(index, addr, length).ok_or(AccessDenied)?;
        Ok(if self.memory.asks_for_order(index) {
            Visibility::Strict
        } else {
            Visibility::Relaxed
        })
    }

    fn place(&mut self, pd: PdId, key: u32, addr: u64, bytes: &[u8]) -> Result<(), AccessDenied> {
        let (index, kind) = self.memory.find(key).ok_or(AccessDenied)?;
        if self.memory.regions[index.0 as usize].pd != pd {
            return Err(AccessDenied);
        }
        let hollow = self.memory.hollow;
        let target = self
            .memory
            .bytes_mut(index, addr, bytes.len() as u64)
            .ok_or(AccessDenied)?;
        if !hollow {
            target.copy_from_slice(bytes);
        }
        let strict = self
            .memory
            .force_strict
            .unwrap_or(self.memory.asks_for_order(index));
        self.ledger
            .placed(self.now, self.node, (index, kind), strict, addr, bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AccessDenied> {
        let (index, kind) = self.memory.find(rkey).ok_or(AccessDenied)?;
        let region = &self.memory.regions[index.0 as usize];
        if kind != KeyKind::Remote
            || region.pd != pd
            || !region.access.allows(Access::REMOTE_ATOMIC)
            || !addr.is_multiple_of(8)
        {
            return Err(AccessDenied);
        }
        let cell = self.memory.bytes_mut(index, addr, 8).ok_or(AccessDenied)?;
        let before = u64::from_ne_bytes(<[u8; 8]>::try_from(&*cell).map_err(|_| AccessDenied)?);
        cell.copy_from_slice(&operation.apply(before).to_ne_bytes());
        Ok(before)
    }

    fn take_receive(&mut self, queue: RqId) -> Option<Receive> {
        self.memory.queues.get_mut(&queue)?.pop_front()
    }

    fn receives_available(&mut self, queue: RqId) -> u32 {
        self.memory
            .queues
            .get(&queue)
            .map_or(0, |queue| queue.len() as u32)
    }
}
