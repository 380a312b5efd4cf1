//! Which numbers of a sequence a capture has: PSNs of a path, numbers of ACKs.

use std::collections::BTreeSet;

/// A jump further than this is no gap: the sequence began anew, or a packet is forged. Paths have at most 256 numbers
/// outstanding, so a capture that lost a million packets still fits.
const JUMP_MAX: u32 = 1 << 20;

/// Numbers seen, missed, and seen again. They wrap at 2^32.
#[derive(Clone, Debug, Default)]
pub struct Serial {
    first: Option<u32>,
    last: u32,
    missing: BTreeSet<u32>,
    /// Numbers that came after later ones, for the first time.
    pub late: u64,
    /// Numbers that were seen before.
    pub again: u64,
    /// Times that the sequence jumped too far for a gap.
    pub jumps: u64,
}

impl Serial {
    /// Takes the next number of the capture.
    pub fn see(&mut self, number: u32) {
        if self.first.is_none() {
            (self.first, self.last) = (Some(number), number);
            return;
        }
        let ahead = number.wrapping_sub(self.last);
        let behind = self.last.wrapping_sub(number);
        if ahead == 0 {
            self.again += 1;
        } else if ahead <= JUMP_MAX && self.missing.len() + ahead as usize <= JUMP_MAX as usize {
            self.missing
                .extend((1..ahead).map(|step| self.last.wrapping_add(step)));
            self.last = number;
        } else if behind <= JUMP_MAX {
            if self.missing.remove(&number) {
                self.late += 1;
            } else {
                self.again += 1;
            }
        } else {
            self.jumps += 1;
            self.missing.clear();
            self.last = number;
        }
    }

    /// First and highest number.
    #[must_use]
    pub fn range(&self) -> Option<(u32, u32)> {
        self.first.map(|first| (first, self.last))
    }

    /// Numbers between the first and the highest that never came.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_late_and_repeated_numbers_are_told_apart() {
        let mut serial = Serial::default();
        for number in [u32::MAX - 1, 1, u32::MAX, 1, 5, 0, 3, 3] {
            serial.see(number);
        }
        assert_eq!(serial.range(), Some((u32::MAX - 1, 5)));
        assert_eq!(serial.missing(), 2, "2 and 4");
        assert_eq!((serial.late, serial.again, serial.jumps), (3, 2, 0));
        serial.see(1 << 30);
        assert_eq!((serial.missing(), serial.jumps), (0, 1));
    }
}
