//! The table of connections: found by the id in a packet (every packet) or by their key (set-up only).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::conn::Connection;
use crate::wire::{ConnectionId, Gid};

/// Place of a connection in its table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ConnectionIndex(pub u32);

/// What makes a connection: the addresses that its queue pairs use, and the peer's endpoint (WIRE 1.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub source: Gid,
    pub dest: Gid,
    pub peer_port: u16,
}

/// Connection ids are random and our own, so a multiplication spreads them well enough.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(32);
    }
}

/// All connections of an endpoint.
#[derive(Default)]
pub(crate) struct ConnectionTable {
    slots: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    by_id: HashMap<u32, u32, BuildHasherDefault<IdHasher>>,
    by_key: HashMap<Key, u32>,
}

impl ConnectionTable {
    /// Adds a connection made by `build` for its place. The caller made sure that id and key are new.
    pub(crate) fn insert(
        &mut self,
        build: impl FnOnce(ConnectionIndex) -> Box<Connection>,
    ) -> ConnectionIndex {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let connection = build(ConnectionIndex(index));
        self.by_id.insert(connection.my_id().0, index);
        self.by_key.insert(connection.key(), index);
        self.slots[index as usize] = Some(connection);
        ConnectionIndex(index)
    }

    /// Removes a connection.
    pub(crate) fn remove(&mut self, index: ConnectionIndex) -> Option<Box<Connection>> {
        let connection = self.slots.get_mut(index.0 as usize)?.take()?;
        self.by_id.remove(&connection.my_id().0);
        self.by_key.remove(&connection.key());
        self.free.push(index.0);
        Some(connection)
    }

    /// The connection at `index`.
    #[inline]
    pub(crate) fn get(&self, index: ConnectionIndex) -> Option<&Connection> {
        self.slots.get(index.0 as usize)?.as_deref()
    }

    /// The connection at `index`.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: ConnectionIndex) -> Option<&mut Connection> {
        self.slots.get_mut(index.0 as usize)?.as_deref_mut()
    }

    /// Which connection has the id.
    #[inline]
    pub(crate) fn find_id(&self, id: ConnectionId) -> Option<ConnectionIndex> {
        self.by_id.get(&id.0).map(|index| ConnectionIndex(*index))
    }

    /// Which connection has the key.
    pub(crate) fn find_key(&self, key: &Key) -> Option<ConnectionIndex> {
        self.by_key.get(key).map(|index| ConnectionIndex(*index))
    }

    /// Places of all connections.
    pub(crate) fn indices(&self) -> impl Iterator<Item = ConnectionIndex> + '_ {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_some())
            .map(|(at, _)| ConnectionIndex(at as u32))
    }

    /// All connections.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|slot| slot.as_deref())
    }

    /// All connections from place `from` on, with their places.
    pub(crate) fn iter_from(&self, from: usize) -> impl Iterator<Item = (usize, &Connection)> {
        let slots = self.slots.iter().enumerate().skip(from);
        slots.filter_map(|(at, slot)| Some((at, slot.as_deref()?)))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
