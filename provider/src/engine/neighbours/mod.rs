//! The other processes of the host that receive behind the same port: how many connections they have (WIRE.md, 8.13), and
//! what the senders to them want, which is told (`metaroce stat`) and lowers no grant (8.14).
//!
//! All grants of a host together could make its drain, and not each process's. But where more processes than processors
//! receive, each is kept from its socket for longer than an interval of the drain's measurement, takes the queue that gathered
//! for its drain, and divides that; eight processes on two processors came from 13 Gb/s down to 2. Nor does a drain help that
//! somebody states: a sender that waits for a processor loses the turns of its grant meanwhile, and eight processes that send
//! over a link of 2 Gb/s, on the same two processors, used 22 to 37 % of it. There a host is better off with a lone sender's
//! freedom in each process.
//!
//! [`Neighbours`] is asked after each receive, like `pressure.rs`, and looks at the shared [`Table`] at most every
//! millisecond; a process that receives nothing does nothing. [`Service`] gets the table, in the background thread.
//! Without a table an engine shares with nobody, and works.

mod service;
mod table;

pub(super) use service::Service;

use super::clock::Clock;
use super::registry::generation;
use metaroce_proto::cc::Others;
use metaroce_proto::endpoint::Endpoint;
use metaroce_proto::types::Time;
use std::sync::Arc;
use table::{Owner, Table};

/// Between two looks, each at all slots in use: a fraction of what a demand is measured for.
const INTERVAL_NS: u64 = 1_000_000;

/// This engine's part in it; protected by the engine's lock.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// Whose slot it is: a child process has none, though it inherits the memory.
    generation: u32,
    owner: Owner,
    table: Option<Arc<Table>>,
    slot: Option<usize>,
    next_at: Time,
    /// Others count senders to this process.
    is_heard: bool,
    others: Others,
}

impl Neighbours {
    pub(super) fn new() -> Neighbours {
        Neighbours {
            generation: generation(),
            owner: Owner::random(),
            table: None,
            slot: None,
            next_at: Time::ZERO,
            is_heard: false,
            others: Others::default(),
        }
    }

    /// Uses `table` from now on.
    pub(super) fn join(&mut self, table: Arc<Table>) {
        self.leave();
        self.next_at = Time::ZERO;
        self.table = Some(table);
    }

    /// Something was received, or a sender was silent for too long.
    pub(super) fn look(&mut self, clock: &Clock, endpoint: &mut Endpoint, now: Time) {
        let Some(table) = self.table.clone() else {
            return;
        };
        let own = endpoint.receivers_share();
        let is_quiet = own.unlimited == 0 && own.limited_bytes_per_s == 0;
        let is_due = now >= self.next_at;
        // That all have ended is told at once: there may be no later look.
        if !(is_due || is_quiet && self.is_heard) {
            return;
        }
        let now_ns = clock.on_host_ns(now);
        self.publish(&table, now_ns, &own);
        self.is_heard = self.slot.is_some() && !is_quiet;
        if !is_due {
            return;
        }
        self.next_at = now + INTERVAL_NS;
        let others = table.others(self.slot, now_ns);
        let before = std::mem::replace(&mut self.others, others);
        if others.connections != before.connections {
            let connections = others.connections;
            endpoint.set_others(
                now,
                Others {
                    connections,
                    ..Others::default()
                },
            );
        }
    }

    fn publish(&mut self, table: &Table, now_ns: u64, own: &Others) {
        let mine = |slot: &usize| table.publish(*slot, self.owner, now_ns, own);
        if self.slot.as_ref().is_some_and(mine) {
            return;
        }
        // None yet, or it was given to another while this process said nothing.
        self.slot = table.claim(self.owner, now_ns).filter(mine);
    }

    /// What the others said at the last look.
    pub(super) fn others(&self) -> Others {
        self.others
    }

    /// This engine ends.
    pub(super) fn leave(&mut self) {
        let (slot, table) = (self.slot.take(), self.table.take());
        if let (Some(slot), Some(table)) = (slot, table)
            && self.generation == generation()
        {
            table.release(slot, self.owner);
        }
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.leave();
    }
}
