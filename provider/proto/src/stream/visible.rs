//! Strict visibility (WIRE "Visibility"): a region that was registered without relaxed ordering shows the WRITEs of a
//! stream in order, and of each WRITE its final packet last. Packets that came too early are copied and held: the final
//! packet of the oldest message until the rest of it is there, and every packet of a later message until all earlier
//! ones are executed. One budget per engine bounds that; what exceeds it is refused (code HOLD) and sent again.
//!
//! The budget follows the need (`need.rs`). Those who write to strict regions are told a window no larger than what can
//! still be held (`conn/ack.rs`), so that a refusal is the exception.

use super::need::Need;
use crate::host::Visibility;
use crate::types::Time;

/// Bytes that a held packet costs besides its payload, so that many tiny ones are bounded too.
const OVERHEAD_BYTES: u32 = 64;

/// Buffers kept for reuse: as many packets as a train has, so that a steady trickle does not allocate.
const SPARE_BUFFERS: usize = 64;

/// Memory for packets that are held back for strict visibility: one budget per engine.
#[derive(Debug)]
pub struct HoldBudget {
    need: Need,
    held_bytes: u32,
    most_bytes: u32,
    counts: HoldCounts,
    /// A packet for a strict region came since somebody asked.
    strict: bool,
    force_strict: Option<bool>,
    spare: Vec<Vec<u8>>,
}

/// What a budget counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldCounts {
    /// Packets that were held back.
    pub packets: u64,
    /// Packets for which there was no room: their messages were refused.
    pub refusals: u64,
}

/// A packet that waits for its turn.
#[derive(Debug)]
pub(super) struct HeldPacket {
    /// Where in the message.
    pub(super) offset: u32,
    /// Its payload.
    pub(super) bytes: Vec<u8>,
}

impl HoldBudget {
    /// Never more than `max_bytes`; `force_strict` overrides what regions ask for.
    pub fn new(max_bytes: u32, force_strict: Option<bool>) -> Self {
        Self {
            need: Need::new(max_bytes),
            held_bytes: 0,
            most_bytes: 0,
            counts: HoldCounts::default(),
            strict: false,
            force_strict,
            spare: Vec::new(),
        }
    }

    /// Bytes held now.
    pub fn held_bytes(&self) -> u32 {
        self.held_bytes
    }

    /// The most that was held at a time.
    pub fn most_bytes(&self) -> u32 {
        self.most_bytes
    }

    /// What may be held now.
    pub fn limit_bytes(&self) -> u32 {
        self.need.limit_bytes()
    }

    /// What can still be held: no more should be under way to strict regions.
    pub fn room_bytes(&self) -> u32 {
        self.limit_bytes().saturating_sub(self.held_bytes)
    }

    /// What it counted.
    pub fn counts(&self) -> HoldCounts {
        self.counts
    }

    /// A request packet with so much payload arrived at `now`; it is given to its stream next.
    pub fn on_arrival(&mut self, now: Time, payload_bytes: u32) {
        self.need.on_arrival(now, payload_bytes);
    }

    /// What comes in at `bytes_per_s` while a packet is missed for two round trips will have to be held.
    pub fn expect(&mut self, bytes_per_s: u64, rtt_ns: u64) {
        self.need.expect(bytes_per_s, rtt_ns);
    }

    /// Whether a packet for a strict region came since the last call.
    pub fn take_strict(&mut self) -> bool {
        std::mem::take(&mut self.strict)
    }

    /// Whether a region that asks for `wish` is treated as strict.
    pub(super) fn is_strict(&self, wish: Visibility) -> bool {
        self.force_strict.unwrap_or(wish == Visibility::Strict)
    }

    /// A packet for a strict region is about to be placed or held.
    pub(super) fn note_strict(&mut self) {
        self.strict = true;
    }

    /// A stream begins to wait for a message before others; to be given to [`Self::waited`].
    pub(super) fn begin_wait(&self) -> u64 {
        self.need.arrived_bytes()
    }

    /// A stream has waited since [`Self::begin_wait`] said `since`.
    pub(super) fn waited(&mut self, since: u64) {
        self.need.waited(since);
    }

    /// Copies a packet; `None` when that exceeds the budget. An `exempt` packet always gets its place: the final one of
    /// a stream's oldest message, which must arrive some time, and of which there is one a stream.
    pub(super) fn hold(&mut self, offset: u32, payload: &[u8], exempt: bool) -> Option<HeldPacket> {
        let cost = Self::cost(payload);
        if !exempt && cost > self.room_bytes() {
            self.counts.refusals += 1;
            return None;
        }
        self.counts.packets += 1;
        self.held_bytes += cost;
        self.most_bytes = self.most_bytes.max(self.held_bytes);
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(payload);
        Some(HeldPacket { offset, bytes })
    }

    /// Takes a held packet's memory back.
    pub(super) fn release(&mut self, packet: HeldPacket) {
        let cost = Self::cost(&packet.bytes);
        debug_assert!(cost <= self.held_bytes, "released more than was held");
        self.held_bytes = self.held_bytes.saturating_sub(cost);
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(packet.bytes);
        }
    }

    fn cost(payload: &[u8]) -> u32 {
        payload.len() as u32 + OVERHEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn the_budget_is_kept_and_given_back() {
        let mut budget = HoldBudget::new(1000, None);
        let first = budget.hold(0, &[1; 400], false).expect("fits");
        let second = budget.hold(400, &[2; 400], false).expect("fits");
        assert!(
            budget.hold(800, &[3; 10], false).is_none(),
            "928 of 1000 are taken"
        );
        let exempt = budget.hold(800, &[3; 400], true).expect("exempt");
        assert_eq!(budget.held_bytes(), 3 * 464);
        assert!(budget.hold(0, &[], false).is_none());
        for packet in [first, second, exempt] {
            budget.release(packet);
        }
        assert_eq!(budget.held_bytes(), 0);
        let again = budget.hold(7, &[9; 3], false).expect("fits");
        assert_eq!(
            (again.offset, again.bytes.as_slice()),
            (7, &[9; 3][..]),
            "a reused buffer holds nothing old"
        );
    }

    #[rstest]
    #[case(None, Visibility::Strict, true)]
    #[case(None, Visibility::Relaxed, false)]
    #[case(Some(true), Visibility::Relaxed, true)]
    #[case(Some(false), Visibility::Strict, false)]
    fn an_override_wins(
        #[case] force: Option<bool>,
        #[case] wish: Visibility,
        #[case] strict: bool,
    ) {
        assert_eq!(HoldBudget::new(0, force).is_strict(wish), strict);
    }
}
