//! The table of queue pairs, and what the core keeps of one: its number, and the life of its two half streams.
//!
//! The slot of a queue pair is the local part of its QPN, so a packet finds it by an index. QPNs rotate: the next one
//! is searched after the last one given out, so that one is not used again while others are free (WIRE 3.12).
//! `endpoint.rs` creates and destroys; `conn/` works on the lives.

use crate::endpoint::table::{ConnectionIndex, Key};
use crate::stream::{Requester, Responder};
use crate::types::{ConnectParams, QpConfig, QpId, SendParams, Time};
use crate::wire::{Qpn, Token};

/// Queue pairs that one endpoint can have: 14 bits of the QPN.
const SLOTS: usize = 1 << Qpn::LOCAL_BITS;

/// First wait for an answer of the peer; doubled up to [`RETRY_MAX_NS`].
pub(crate) const RETRY_MIN_NS: u64 = 1_000_000;

/// Longest wait for an answer of the peer.
pub(crate) const RETRY_MAX_NS: u64 = 100_000_000;

/// The same where the peer is known to be there, and waits for it too: it sends us DATA.
pub(crate) const RETRY_PRESENT_NS: u64 = 4_000_000;

/// When to repeat something, with doubling waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    /// When it is due.
    pub at: Time,
    wait_ns: u64,
}

impl Retry {
    /// Due for the first time after the shortest wait.
    pub(crate) fn new(now: Time) -> Self {
        Self {
            at: now + RETRY_MIN_NS,
            wait_ns: RETRY_MIN_NS,
        }
    }

    /// It was repeated at `now`.
    pub(crate) fn again(&mut self, now: Time) {
        self.again_within(now, RETRY_MAX_NS);
    }

    /// The same, to be due again after `most_ns` at the latest.
    pub(crate) fn again_within(&mut self, now: Time, most_ns: u64) {
        self.wait_ns = (self.wait_ns * 2).min(most_ns);
        self.at = now + self.wait_ns;
    }
}

/// How far the life of a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Our OPEN is not answered yet.
    Opening,
    /// DATA may flow.
    Open,
    /// The peer ended it, or is dead: the next send work request fails.
    PeerGone,
    /// In the error state.
    Failed,
}

/// One life of a queue pair's streams: from RTR to RESET.
pub(crate) struct Life {
    /// Counted per queue pair; records in the sent rings name it.
    pub number: u16,
    /// How far it is.
    pub phase: Phase,
    /// Its connection; none when that is gone.
    pub connection: Option<ConnectionIndex>,
    /// Key of the connection that it wants.
    pub key: Key,
    /// What RTR said.
    pub params: ConnectParams,
    /// What RTS said.
    pub send: Option<SendParams>,
    /// Names this life to the peer.
    pub token: Token,
    /// Names the peer's life; 0 = unknown.
    pub peer_token: Token,
    /// When to repeat the OPEN.
    pub retry: Retry,
    /// An OPEN waits in the connection's outbox.
    pub open_due: bool,
    /// In the connection's queue of streams that may have segments to send.
    pub ready: bool,
    /// In the connection's queue of streams whose block is news.
    pub news: bool,
    /// The first packet of the peer was told to the program.
    pub established: bool,
    /// An answer leaves before the next request: they take turns.
    pub answers_first: bool,
    /// Our work requests.
    pub requester: Requester,
    /// The peer's requests.
    pub responder: Responder,
}

impl Life {
    /// How long the peer may be silent; `None` = for ever.
    pub(crate) fn patience_ns(&self) -> Option<u64> {
        let send = self.send.as_ref()?;
        if send.timeout == 0 {
            return None;
        }
        // Five bits on the wire of IBA.
        let exponent = u32::from(send.timeout.min(31));
        Some((u64::from(send.retry_count) + 1) * (4096 << exponent))
    }

    /// Whether DATA of the peer belongs to it.
    pub(crate) fn accepts(&self, connection: ConnectionIndex, token: Token) -> bool {
        self.connection == Some(connection)
            && self.token == token
            && !self.peer_token.is_zero()
            && matches!(self.phase, Phase::Opening | Phase::Open | Phase::Failed)
    }
}

/// A queue pair.
pub(crate) struct Qp {
    pub id: QpId,
    pub qpn: Qpn,
    pub config: QpConfig,
    /// None before RTR.
    pub life: Option<Box<Life>>,
    /// Lives so far.
    pub lives: u16,
}

/// All queue pairs of an endpoint.
pub(crate) struct QpTable {
    endpoint_index: u16,
    slots: Vec<Slot>,
    next: usize,
    used: usize,
}

#[derive(Default)]
struct Slot {
    generation: u16,
    qp: Option<Box<Qp>>,
}

impl QpTable {
    /// An empty table; numbers are given out from `first` on.
    pub(crate) fn new(endpoint_index: u16, first: u16) -> Self {
        Self {
            endpoint_index,
            slots: Vec::new(),
            next: usize::from(first) % SLOTS,
            used: 0,
        }
    }

    fn qpn_of(&self, slot: usize) -> Qpn {
        Qpn::truncate(u32::from(self.endpoint_index) << Qpn::LOCAL_BITS | slot as u32)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// A new queue pair in a free slot, or nothing when all are taken.
    pub(crate) fn insert(&mut self, config: QpConfig) -> Option<&Qp> {
        if self.used >= SLOTS {
            return None;
        }
        for step in 0..SLOTS {
            let slot = (self.next + step) % SLOTS;
            let qpn = self.qpn_of(slot);
            let taken = self.slots.get(slot).is_some_and(|slot| slot.qp.is_some());
            if taken || !qpn.is_usable() {
                continue;
            }
            if self.slots.len() <= slot {
                self.slots.resize_with(slot + 1, Slot::default);
            }
            self.next = (slot + 1) % SLOTS;
            self.used += 1;
            let place = &mut self.slots[slot];
            place.generation = place.generation.wrapping_add(1);
            let id = QpId::new(slot as u16, place.generation);
            return Some(place.qp.insert(Box::new(Qp {
                id,
                qpn,
                config,
                life: None,
                lives: 0,
            })));
        }
        None
    }

    /// Forgets a queue pair.
    pub(crate) fn remove(&mut self, id: QpId) -> Option<Box<Qp>> {
        self.get(id)?;
        self.used -= 1;
        self.slots[id.slot()].qp.take()
    }

    /// By handle.
    #[inline]
    pub(crate) fn get(&self, id: QpId) -> Option<&Qp> {
        let qp = self.slots.get(id.slot())?.qp.as_deref()?;
        (qp.id == id).then_some(qp)
    }

    /// By handle.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: QpId) -> Option<&mut Qp> {
        let qp = self.slots.get_mut(id.slot())?.qp.as_deref_mut()?;
        (qp.id == id).then_some(qp)
    }

    /// By number.
    #[inline]
    pub(crate) fn by_qpn(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        if qpn.endpoint_index() != self.endpoint_index {
            return None;
        }
        self.slots
            .get_mut(usize::from(qpn.local_number()))?
            .qp
            .as_deref_mut()
    }

    /// The present life of a queue pair.
    #[inline]
    pub(crate) fn life_mut(&mut self, id: QpId) -> Option<&mut Life> {
        self.get_mut(id)?.life.as_deref_mut()
    }

    /// The life that a record in a sent ring names, if it is still the present one.
    #[inline]
    pub(crate) fn life_of_record(&mut self, id: QpId, number: u16) -> Option<&mut Life> {
        self.life_mut(id).filter(|life| life.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{PdId, RqId};

    const CONFIG: QpConfig = QpConfig {
        pd: PdId(1),
        receive_queue: RqId(1),
        shared_receive_queue: false,
    };

    #[test]
    fn numbers_rotate_and_reserved_ones_are_left_out() {
        let mut table = QpTable::new(0, 0);
        let first = table.insert(CONFIG).map(|qp| (qp.id, qp.qpn)).unwrap();
        assert_eq!(first.1.get(), 2);
        assert!(table.remove(first.0).is_some());
        let second = table.insert(CONFIG).unwrap().qpn;
        assert_eq!(second.get(), 3);
        assert!(table.get(first.0).is_none());
        let mut count = 1;
        while table.insert(CONFIG).is_some() {
            count += 1;
        }
        assert_eq!(count, SLOTS - 2);
    }

    #[test]
    fn a_handle_does_not_name_the_next_owner_of_its_slot() {
        let mut table = QpTable::new(1023, 16_382);
        let id = table.insert(CONFIG).unwrap().id;
        assert_eq!(id.slot(), 16_382);
        table.remove(id);
        for _ in 0..SLOTS - 1 {
            let next = table.insert(CONFIG).unwrap();
            assert!(next.qpn.is_usable());
            assert_ne!(next.id, id);
            let next = next.id;
            if next.slot() == id.slot() {
                break;
            }
        }
        assert!(table.get(id).is_none());
        assert!(table.remove(id).is_none());
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        let mut retry = Retry::new(Time::ZERO);
        let mut now = retry.at;
        assert_eq!(now.as_ns(), RETRY_MIN_NS);
        for _ in 0..20 {
            let before = now;
            retry.again(now);
            now = retry.at;
            assert!(now.since_ns(before) <= RETRY_MAX_NS);
        }
        retry.again(now);
        assert_eq!(retry.at.since_ns(now), RETRY_MAX_NS);
    }
}
