//! Sets of the 256 packets that a path may have outstanding, as bits relative to the lowest of them. The sender
//! compares them with an acknowledgement word by word: only bits that tell something new cost a step each.

use crate::wire::{BitVector, VECTOR_BITS};

const WORDS: usize = VECTOR_BITS as usize / 64;

/// 256 bits; bit 0 is the lowest of the first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Bits([u64; WORDS]);

impl Bits {
    /// The lowest `count` bits (at most 256).
    pub(super) fn lowest(count: u32) -> Self {
        let mut words = [0; WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            let here = count.saturating_sub(at as u32 * 64);
            *word = if here >= 64 {
                u64::MAX
            } else {
                (1 << here) - 1
            };
        }
        Self(words)
    }

    /// The bits of an acknowledgement.
    pub(super) fn from_vector(vector: &BitVector) -> Self {
        let mut words = [0; WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            *word = u64::from(vector.0[2 * at + 1]) << 32 | u64::from(vector.0[2 * at]);
        }
        Self(words)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(super) fn get(&self, index: u32) -> bool {
        index < VECTOR_BITS && self.0[index as usize / 64] >> (index % 64) & 1 != 0
    }

    pub(super) fn set(&mut self, index: u32) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    pub(super) fn clear(&mut self, index: u32) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    /// The lowest bit set.
    pub(super) fn first(&self) -> Option<u32> {
        let word = self.0.iter().position(|word| *word != 0)?;
        Some(word as u32 * 64 + self.0[word].trailing_zeros())
    }

    /// The highest bit set.
    pub(super) fn last(&self) -> Option<u32> {
        let word = self.0.iter().rposition(|word| *word != 0)?;
        Some(word as u32 * 64 + 63 - self.0[word].leading_zeros())
    }

    /// Moves all bits down by `count`; the lowest fall out.
    pub(super) fn shifted_down(&self, count: u32) -> Self {
        let (words, bits) = (count as usize / 64, count % 64);
        let mut result = [0; WORDS];
        for (at, word) in result.iter_mut().enumerate() {
            let low = self.0.get(at + words).copied().unwrap_or(0);
            let high = self.0.get(at + words + 1).copied().unwrap_or(0);
            let pair = u128::from(high) << 64 | u128::from(low);
            *word = (pair >> bits) as u64;
        }
        Self(result)
    }

    /// Moves all bits up by `count`; the highest fall out.
    pub(super) fn shifted_up(&self, count: u32) -> Self {
        let (words, bits) = (count as usize / 64, count % 64);
        let mut result = [0; WORDS];
        for (at, word) in result.iter_mut().enumerate() {
            let from = |back: usize| {
                at.checked_sub(words + back)
                    .and_then(|i| self.0.get(i))
                    .copied()
                    .unwrap_or(0)
            };
            let pair = u128::from(from(0)) << 64 | u128::from(from(1));
            *word = (pair << bits >> 64) as u64;
        }
        Self(result)
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// Takes the lowest bit out.
    pub(super) fn pop_first(&mut self) -> Option<u32> {
        let first = self.first()?;
        self.clear(first);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn bits(of: impl IntoIterator<Item = u32>) -> Bits {
        let mut bits = Bits::default();
        of.into_iter().for_each(|bit| bits.set(bit));
        bits
    }

    const SAMPLE: [u32; 11] = [0, 1, 31, 32, 63, 64, 127, 128, 200, 254, 255];

    #[rstest]
    fn shifts_move_every_bit(#[values(0, 1, 63, 64, 65, 128, 191, 192, 255, 256, 300)] count: u32) {
        let down = SAMPLE.into_iter().filter_map(|bit| bit.checked_sub(count));
        assert_eq!(bits(SAMPLE).shifted_down(count), bits(down));
        let up = SAMPLE
            .into_iter()
            .map(|bit| bit + count)
            .filter(|bit| *bit < 256);
        assert_eq!(bits(SAMPLE).shifted_up(count), bits(up));
    }

    #[rstest]
    fn lowest_is_a_prefix(#[values(0, 1, 63, 64, 65, 255, 256)] count: u32) {
        assert_eq!(Bits::lowest(count), bits(0..count));
        assert_eq!(Bits::lowest(count).last(), count.checked_sub(1));
    }

    #[test]
    fn an_acknowledgement_keeps_its_places() {
        let mut vector = BitVector::EMPTY;
        for bit in SAMPLE {
            vector.set(bit);
        }
        let mut taken = Bits::from_vector(&vector);
        assert_eq!(taken, bits(SAMPLE));
        for bit in SAMPLE {
            assert!(taken.get(bit));
            assert_eq!(taken.pop_first(), Some(bit));
        }
        assert!(taken.is_empty());
        assert!(!taken.get(256));
    }
}
