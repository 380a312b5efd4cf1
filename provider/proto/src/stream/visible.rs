//! Strict visibility (WIRE "Visibility"): a region that was registered without relaxed ordering shows the WRITEs of a
//! stream in order, and of each WRITE its final packet last. Packets that came too early are copied and held: the final
//! packet of the oldest message until the rest of it is there, and every packet of a later message until all earlier
//! ones are executed. One budget per engine bounds that; what exceeds it is refused (code HOLD) and sent again.
//!
//! The order holds among the WRITEs of a stream; the budget does not yet shrink the window told to peers by itself
//! (`conn` subtracts [`HoldBudget::held_bytes`]), nor does it know rate and round-trip times.

use crate::host::Visibility;

/// Bytes that a held packet costs besides its payload, so that many tiny ones are bounded too.
const OVERHEAD_BYTES: u32 = 64;

/// Buffers kept for reuse: as many packets as a train has, so that a steady trickle does not allocate.
const SPARE_BUFFERS: usize = 64;

/// Memory for packets that are held back for strict visibility: one budget per engine.
#[derive(Debug)]
pub struct HoldBudget {
    limit_bytes: u32,
    held_bytes: u32,
    force_strict: Option<bool>,
    spare: Vec<Vec<u8>>,
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
    /// At most `limit_bytes`; `force_strict` overrides what regions ask for.
    pub fn new(limit_bytes: u32, force_strict: Option<bool>) -> Self {
        Self {
            limit_bytes,
            held_bytes: 0,
            force_strict,
            spare: Vec::new(),
        }
    }

    /// Bytes held now: they come off the window told to peers.
    pub fn held_bytes(&self) -> u32 {
        self.held_bytes
    }

    /// Whether a region that asks for `wish` is treated as strict.
    pub(super) fn is_strict(&self, wish: Visibility) -> bool {
        self.force_strict.unwrap_or(wish == Visibility::Strict)
    }

    /// Copies a packet; `None` when that exceeds the budget. An `exempt` packet always gets its place: the final one of
    /// a stream's oldest message, which must arrive some time, and of which there is one a stream.
    pub(super) fn hold(&mut self, offset: u32, payload: &[u8], exempt: bool) -> Option<HeldPacket> {
        let cost = Self::cost(payload);
        if !exempt && cost > self.limit_bytes.saturating_sub(self.held_bytes) {
            return None;
        }
        self.held_bytes += cost;
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
