//! The sent ring: what is outstanding on one path, at most 256 packets from the lowest unacknowledged one.
//!
//! A packet is in exactly one of three states. *In flight*: in one of two lists, in the order of its latest
//! transmission; `recent` for the present epoch, `older` for all epochs before. *Lost*: declared so, waits for its
//! retransmission, in no list. *Acknowledged*: gone, its slot free. The lists run through the slots themselves, so
//! sending, acknowledging, losing and moving (all of `recent` becomes the tail of `older`) cost a constant each.
//!
//! Transmissions are named by 64-bit numbers whose low 32 bits are the wire's stamps: nothing here wraps but PSNs.
//! The ring grows by doubling up to 256 slots and never shrinks: no allocation after that, and a path that never
//! had more than 16 packets outstanding stays small. Used by `tx` and, for verdicts, by `loss.rs`.

use crate::path::SPAN_PACKETS;
use crate::path::bits::Bits;
use crate::types::Time;
use crate::wire::{Epoch, Psn};

/// Slots of a ring that was just used for the first time.
const SLOTS_MIN: usize = 16;

/// No neighbour in a list.
const NONE: u16 = u16::MAX;

/// One outstanding packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<R> {
    /// What to do when it is lost: the caller's.
    pub(super) record: R,
    /// Bytes of the packet.
    pub(super) bytes: u32,
    /// The latest transmission; the low 32 bits are its stamp.
    pub(super) transmission: u64,
    /// The clock at the latest transmission (its stamp may run ahead of the clock within a train).
    pub(super) sent_at: Time,
    /// Epoch of the latest transmission.
    pub(super) epoch: Epoch,
    /// How often it was sent.
    pub(super) transmissions: u16,
    /// Neighbours in its list, by the low eight bits of their PSNs.
    previous: u16,
    next: u16,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u16,
    tail: u16,
}

impl List {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct SentRing<R> {
    slots: Vec<Slot<R>>,
    /// Lowest PSN not acknowledged, or the next one where nothing is outstanding.
    base: Psn,
    /// PSNs from `base` to the next new one.
    span: u32,
    /// Relative to `base`.
    unacked: Bits,
    /// Relative to `base`; a subset of `unacked`.
    lost: Bits,
    recent: List,
    older: List,
    packets_in_flight: u32,
    bytes_in_flight: u64,
}

impl<R: Copy> SentRing<R> {
    pub(super) fn new(first: Psn) -> Self {
        Self {
            slots: Vec::new(),
            base: first,
            span: 0,
            unacked: Bits::default(),
            lost: Bits::default(),
            recent: List::EMPTY,
            older: List::EMPTY,
            packets_in_flight: 0,
            bytes_in_flight: 0,
        }
    }

    pub(super) fn base(&self) -> Psn {
        self.base
    }

    pub(super) fn next_psn(&self) -> Psn {
        self.base.advance(self.span)
    }

    pub(super) fn span(&self) -> u32 {
        self.span
    }

    /// Not acknowledged, relative to [`Self::base`].
    pub(super) fn unacked(&self) -> &Bits {
        &self.unacked
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unacked.is_empty()
    }

    pub(super) fn packets_in_flight(&self) -> u32 {
        self.packets_in_flight
    }

    pub(super) fn bytes_in_flight(&self) -> u64 {
        self.bytes_in_flight
    }

    /// Lowest packet that is lost and not sent again yet.
    pub(super) fn first_lost(&self) -> Option<(Psn, R)> {
        let index = self.lost.first()?;
        let psn = self.base.advance(index);
        Some((psn, self.slot(psn).record))
    }

    /// The outstanding packet `psn`.
    pub(super) fn get(&self, psn: Psn) -> Option<&Slot<R>> {
        self.unacked
            .get(psn.since(self.base))
            .then(|| self.slot(psn))
    }

    /// The same, to change its record or size; sizes of packets in flight are kept in step.
    pub(super) fn replace(&mut self, psn: Psn, record: R, bytes: u32) {
        let index = psn.since(self.base);
        if !self.unacked.get(index) {
            return;
        }
        let in_flight = !self.lost.get(index);
        let slot = self.slot_mut(psn);
        slot.record = record;
        let before = std::mem::replace(&mut slot.bytes, bytes);
        if in_flight {
            self.bytes_in_flight += u64::from(bytes);
            self.bytes_in_flight -= u64::from(before);
        }
    }

    /// Takes a new packet into flight.
    ///
    /// # Panics
    /// If 256 are outstanding already: the caller asks for room first.
    pub(super) fn push(
        &mut self,
        record: R,
        bytes: u32,
        transmission: u64,
        sent_at: Time,
        epoch: Epoch,
    ) -> Psn {
        assert!(self.span < SPAN_PACKETS, "a packet beyond the path's span");
        let psn = self.next_psn();
        let slot = Slot {
            record,
            bytes,
            transmission,
            sent_at,
            epoch,
            transmissions: 1,
            previous: NONE,
            next: NONE,
        };
        if self.span as usize == self.slots.len() {
            self.grow(slot);
        }
        self.unacked.set(self.span);
        self.span += 1;
        *self.slot_mut(psn) = slot;
        self.enter_flight(psn);
        psn
    }

    /// Sends a lost packet again. False if it is not waiting for that.
    pub(super) fn push_again(
        &mut self,
        psn: Psn,
        transmission: u64,
        sent_at: Time,
        epoch: Epoch,
    ) -> bool {
        let index = psn.since(self.base);
        if !self.lost.get(index) {
            return false;
        }
        self.lost.clear(index);
        let slot = self.slot_mut(psn);
        slot.transmission = transmission;
        slot.sent_at = sent_at;
        slot.epoch = epoch;
        slot.transmissions = slot.transmissions.saturating_add(1);
        self.enter_flight(psn);
        true
    }

    /// Takes an outstanding packet out, `index` relative to the base; the base stays until [`Self::advance`].
    pub(super) fn acknowledge(&mut self, index: u32) -> Slot<R> {
        let psn = self.base.advance(index);
        if self.lost.get(index) {
            self.lost.clear(index);
        } else {
            self.leave_flight(psn);
        }
        self.unacked.clear(index);
        *self.slot(psn)
    }

    /// Moves the base up to the lowest unacknowledged packet.
    pub(super) fn advance(&mut self) {
        let by = self.unacked.first().unwrap_or(self.span);
        self.base = self.base.advance(by);
        self.span -= by;
        self.unacked = self.unacked.shifted_down(by);
        self.lost = self.lost.shifted_down(by);
    }

    /// The path moved: everything in flight is of an older epoch now.
    pub(super) fn age(&mut self) {
        if self.recent.head == NONE {
            return;
        }
        if self.older.head == NONE {
            self.older = self.recent;
        } else {
            let (tail, head) = (self.older.tail, self.recent.head);
            self.slot_at(tail).next = head;
            self.slot_at(head).previous = tail;
            self.older.tail = self.recent.tail;
        }
        self.recent = List::EMPTY;
    }

    /// The packet in flight on the present epoch that was sent first.
    pub(super) fn oldest_recent(&self) -> Option<(Psn, &Slot<R>)> {
        self.named(self.recent.head)
    }

    /// The packet in flight on an older epoch that was sent first.
    pub(super) fn oldest_older(&self) -> Option<(Psn, &Slot<R>)> {
        self.named(self.older.head)
    }

    /// The one sent next after `psn` in the same list.
    pub(super) fn sent_after(&self, psn: Psn) -> Option<(Psn, &Slot<R>)> {
        self.named(self.slot(psn).next)
    }

    /// Declares a packet in flight lost.
    pub(super) fn declare_lost(&mut self, psn: Psn) {
        let index = psn.since(self.base);
        debug_assert!(self.unacked.get(index) && !self.lost.get(index));
        self.leave_flight(psn);
        self.lost.set(index);
    }

    fn named(&self, low: u16) -> Option<(Psn, &Slot<R>)> {
        if low == NONE {
            return None;
        }
        // The low eight bits name a PSN, because no more than 256 are outstanding.
        let psn = self
            .base
            .advance(u32::from(low).wrapping_sub(self.base.0) & 0xff);
        Some((psn, self.slot(psn)))
    }

    fn enter_flight(&mut self, psn: Psn) {
        let low = low_bits(psn);
        let tail = std::mem::replace(&mut self.recent.tail, low);
        if tail == NONE {
            self.recent.head = low;
        } else {
            self.slot_at(tail).next = low;
        }
        let slot = self.slot_mut(psn);
        slot.previous = tail;
        slot.next = NONE;
        let bytes = u64::from(slot.bytes);
        self.packets_in_flight += 1;
        self.bytes_in_flight += bytes;
    }

    fn leave_flight(&mut self, psn: Psn) {
        let low = low_bits(psn);
        let Slot {
            previous,
            next,
            bytes,
            ..
        } = *self.slot(psn);
        if previous != NONE {
            self.slot_at(previous).next = next;
        } else if self.recent.head == low {
            self.recent.head = next;
        } else {
            debug_assert_eq!(self.older.head, low, "a packet in no list");
            self.older.head = next;
        }
        if next != NONE {
            self.slot_at(next).previous = previous;
        } else if self.recent.tail == low {
            self.recent.tail = previous;
        } else {
            debug_assert_eq!(self.older.tail, low, "a packet in no list");
            self.older.tail = previous;
        }
        self.packets_in_flight -= 1;
        self.bytes_in_flight -= u64::from(bytes);
    }

    /// Doubles the ring; `filler` is overwritten before it is ever read.
    fn grow(&mut self, filler: Slot<R>) {
        let slots = (self.slots.len() * 2).max(SLOTS_MIN);
        debug_assert!(slots <= SPAN_PACKETS as usize);
        let before = std::mem::replace(&mut self.slots, vec![filler; slots]);
        for index in 0..self.span {
            let psn = self.base.advance(index);
            self.slots[psn.0 as usize & (slots - 1)] = before[psn.0 as usize & (before.len() - 1)];
        }
    }

    fn slot(&self, psn: Psn) -> &Slot<R> {
        &self.slots[psn.0 as usize & (self.slots.len() - 1)]
    }

    fn slot_mut(&mut self, psn: Psn) -> &mut Slot<R> {
        let mask = self.slots.len() - 1;
        &mut self.slots[psn.0 as usize & mask]
    }

    /// By the low eight bits of a PSN: enough, because there are at most 256 slots.
    fn slot_at(&mut self, low: u16) -> &mut Slot<R> {
        let mask = self.slots.len() - 1;
        &mut self.slots[low as usize & mask]
    }
}

fn low_bits(psn: Psn) -> u16 {
    (psn.0 & 0xff) as u16
}
