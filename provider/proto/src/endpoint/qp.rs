//! The table of queue pairs, and what the core keeps of one: its number, and the life of its two half streams.
//!
//! The slot of a queue pair is the local part of its QPN, so a packet finds it by an index. QPNs rotate: the next one
//! is searched after the last one given out, so that one is not used again while others are free (WIRE 3.12).
//! `endpoint.rs` creates and destroys; `conn/` works on the lives.

use crate::conn::Places;
use crate::endpoint::table::{ConnectionIndex, Key};
use crate::stream::{Requester, RequesterConfig, Responder, ResponderConfig};
use crate::types::{ConnectParams, QpConfig, QpId, SendParams, Time};
use crate::wire::{Qpn, Token};

/// Queue pairs that one endpoint can have: 14 bits of the QPN.
const SLOTS: usize = 1 << Qpn::LOCAL_BITS;

/// First wait for an answer of the peer.
pub(crate) const RETRY_MIN_NS: u64 = 1_000_000;

/// Longest wait while the question is young: what the network loses, or does not carry for a while, costs no more.
const RETRY_YOUNG_NS: u64 = 16_000_000;

/// The same where the peer is known to be there, and waits for it too: an OPEN or DATA of it came.
const RETRY_PRESENT_NS: u64 = 4_000_000;

/// So long a question is young. After it the peer is probably not there (yet): it will ask itself when it comes.
const RETRY_YOUNG_FOR_NS: u64 = 1_000_000_000;

/// Longest wait later on: a queue pair whose peer never comes wakes the process no more often.
pub(crate) const RETRY_MAX_NS: u64 = 1_000_000_000;

/// When to repeat something, with doubling waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    /// When it is due.
    pub at: Time,
    wait_ns: u64,
    /// When it was asked for the first time, or it became known that the peer is there.
    since: Time,
    /// The peer is there.
    present: bool,
}

impl Retry {
    /// Due for the first time after the shortest wait.
    pub(crate) fn new(now: Time) -> Self {
        Self {
            at: now + RETRY_MIN_NS,
            wait_ns: RETRY_MIN_NS,
            since: now,
            present: false,
        }
    }

    /// The same, where the peer is known to be there.
    pub(crate) fn of_present(now: Time) -> Self {
        Self {
            present: true,
            ..Self::new(now)
        }
    }

    /// Whether it is time, or so close to it that questions which were asked one after the other can share packets.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.at <= now + self.wait_ns / 4
    }

    /// It was repeated at `now`.
    pub(crate) fn again(&mut self, now: Time) {
        let young = now.since_ns(self.since) < RETRY_YOUNG_FOR_NS;
        let most_ns = match (young, self.present) {
            (true, true) => RETRY_PRESENT_NS,
            (true, false) => RETRY_YOUNG_NS,
            (false, _) => RETRY_MAX_NS,
        };
        self.wait_ns = (self.wait_ns * 2).min(most_ns);
        self.at = now + self.wait_ns;
    }

    /// The peer asked in its turn, so it has not heard ours: the next one comes soon.
    pub(crate) fn hasten(&mut self, now: Time) {
        self.at = self.at.min(now + RETRY_PRESENT_NS);
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
    /// Its places in the lists of its connection.
    pub places: Places,
    /// When its RNR wait ends, if the connection waits for that.
    pub rnr_ends_at: Option<Time>,
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
    /// The life number `qp.lives` of a queue pair, which wants the connection `key`.
    pub(crate) fn new(qp: &Qp, key: Key, params: &ConnectParams, token: Token, now: Time) -> Self {
        let (config, number) = (&qp.config, qp.lives);
        Self {
            number,
            phase: Phase::Opening,
            places: Places::default(),
            rnr_ends_at: None,
            connection: None,
            key,
            params: *params,
            send: None,
            token,
            peer_token: Token::ZERO,
            retry: Retry::new(now),
            open_due: false,
            ready: false,
            news: false,
            established: false,
            answers_first: true,
            requester: Requester::new(&RequesterConfig {
                qp: qp.id,
                life: number,
                pd: config.pd,
                peer_qpn: params.dest_qpn,
            }),
            responder: Responder::new(&ResponderConfig {
                qp: qp.id,
                life: number,
                pd: config.pd,
                receive_queue: config.receive_queue,
                shared_receive_queue: config.shared_receive_queue,
                access: params.access,
                max_dest_rd_atomic: params.max_dest_rd_atomic,
                min_rnr_timer: params.min_rnr_timer,
                peer_qpn: params.dest_qpn,
            }),
        }
    }

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

    /// The queue pair is about to fail for a reason of this side, which a SHUT tells the peer: answers that wait for the
    /// peer's OPEN (WIRE 3.9) never go, for it is not asked for any more. (Where the peer's own request was wrong, what it
    /// asked for before is answered all the same.)
    pub(crate) fn drop_waiting_answers(&mut self) {
        if self.phase == Phase::Opening {
            self.responder.drop_responses();
        }
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
            // Numbers rotate through all slots: a table that grew with them would look like a leak. What was never used
            // is never touched, so it takes address space only.
            slots: Vec::with_capacity(SLOTS),
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
        let mut count = 0;
        while now.as_ns() < 60_000_000_000 {
            let before = now;
            retry.again(now);
            now = retry.at;
            let young = before.as_ns() < RETRY_YOUNG_FOR_NS;
            let most_ns = if young { RETRY_YOUNG_NS } else { RETRY_MAX_NS };
            assert!(now.since_ns(before) <= most_ns);
            count += 1;
        }
        retry.again(now);
        assert_eq!(retry.at.since_ns(now), RETRY_MAX_NS);
        assert!(count < 140, "{count} repetitions in a minute");
    }

    #[test]
    fn a_peer_that_is_there_is_asked_soon_again() {
        let mut retry = Retry::new(Time::ZERO);
        let mut now = Time::from_ns(20_000_000_000);
        for _ in 0..12 {
            retry.again(now);
        }
        assert_eq!(retry.at.since_ns(now), RETRY_MAX_NS);
        retry.hasten(now);
        assert_eq!(retry.at.since_ns(now), RETRY_PRESENT_NS);
        let mut retry = Retry::of_present(now);
        for _ in 0..12 {
            assert!(retry.at.since_ns(now) <= RETRY_PRESENT_NS);
            now = retry.at;
            retry.again(now);
        }
    }

    #[test]
    fn what_is_nearly_due_goes_along() {
        let retry = Retry::new(Time::ZERO);
        assert!(!retry.is_due(Time::from_ns(RETRY_MIN_NS / 2)));
        assert!(retry.is_due(Time::from_ns(RETRY_MIN_NS * 3 / 4)));
        assert!(retry.is_due(retry.at));
    }
}
