//! The 256 bits of a path's selective acknowledgement (WIRE 5.5).
//!
//! Bit `i` stands for PSN `cumulative + i`; it is the vector of a path block on the wire and
//! the receive state of a path in memory, so that building an ACK is a copy.

use std::fmt;

/// How many PSNs the vector spans: as many as a path may have outstanding.
pub const VECTOR_BITS: u32 = 256;

/// 32-bit words of a full vector.
pub const VECTOR_WORDS: usize = VECTOR_BITS as usize / 32;

/// A fixed vector of 256 bits; bit 0 is the least significant bit of the first word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BitVector(pub [u32; VECTOR_WORDS]);

impl BitVector {
    /// No bit set.
    pub const EMPTY: Self = Self([0; VECTOR_WORDS]);

    /// Whether bit `index` is set; beyond the vector nothing is.
    #[must_use]
    #[inline]
    pub const fn get(&self, index: u32) -> bool {
        index < VECTOR_BITS && self.0[(index / 32) as usize] >> (index % 32) & 1 != 0
    }

    /// Sets bit `index` and says whether it was clear before.
    ///
    /// # Panics
    /// If `index` is not below [`VECTOR_BITS`].
    #[inline]
    pub const fn set(&mut self, index: u32) -> bool {
        assert!(index < VECTOR_BITS, "a PSN outside the vector");
        let word = &mut self.0[(index / 32) as usize];
        let bit = 1 << (index % 32);
        let was_clear = *word & bit == 0;
        *word |= bit;
        was_clear
    }

    /// Whether no bit is set.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; VECTOR_WORDS]
    }

    /// How many bits are set.
    #[must_use]
    #[inline]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// How many bits from bit 0 on are set without a gap.
    #[must_use]
    #[inline]
    pub fn leading_run(&self) -> u32 {
        let mut run = 0;
        for word in self.0 {
            run += word.trailing_ones();
            if word != u32::MAX {
                break;
            }
        }
        run
    }

    /// The highest bit set.
    #[must_use]
    #[inline]
    pub fn highest(&self) -> Option<u32> {
        let word = self.0.iter().rposition(|word| *word != 0)?;
        Some(word as u32 * 32 + 31 - self.0[word].leading_zeros())
    }

    /// Words up to the last one that is not 0: what travels.
    #[must_use]
    #[inline]
    pub fn word_count(&self) -> usize {
        self.0
            .iter()
            .rposition(|word| *word != 0)
            .map_or(0, |last| last + 1)
    }

    /// Drops the lowest `count` bits and moves the others down.
    #[inline]
    pub fn shift_down(&mut self, count: u32) {
        if count == 0 {
            return;
        }
        let (words, bits) = ((count / 32) as usize, count % 32);
        for target in 0..VECTOR_WORDS {
            let low = self.0.get(target + words).copied().unwrap_or(0);
            let high = self.0.get(target + words + 1).copied().unwrap_or(0);
            // As 64 bits, because a shift of a word by its own width is not defined.
            let pair = u64::from(high) << 32 | u64::from(low);
            self.0[target] = (pair >> bits) as u32;
        }
    }

    /// Indices of the bits that are set, ascending.
    pub fn ones(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(at, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                Some(at as u32 * 32 + bit)
            })
        })
    }
}

impl fmt::Display for BitVector {
    /// Runs of set bits relative to the cumulative PSN: `+1..3,+7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut index = 0;
        while index < VECTOR_BITS {
            if !self.get(index) {
                index += 1;
                continue;
            }
            let start = index;
            while self.get(index) {
                index += 1;
            }
            match index - start {
                1 => write!(f, "{separator}+{start}")?,
                _ => write!(f, "{separator}+{start}..{}", index - 1)?,
            }
            separator = ",";
        }
        if separator.is_empty() {
            f.write_str("-")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn vector(bits: impl IntoIterator<Item = u32>) -> BitVector {
        let mut vector = BitVector::EMPTY;
        for bit in bits {
            vector.set(bit);
        }
        vector
    }

    #[rstest]
    #[case(0)]
    #[case(1)]
    #[case(31)]
    #[case(32)]
    #[case(33)]
    #[case(64)]
    #[case(255)]
    #[case(256)]
    #[case(1000)]
    fn shifting_moves_every_bit(#[case] by: u32) {
        let bits = [0, 1, 30, 31, 32, 63, 64, 100, 254, 255];
        let mut shifted = vector(bits);
        shifted.shift_down(by);
        let expected = vector(bits.into_iter().filter_map(|bit| bit.checked_sub(by)));
        assert_eq!(shifted, expected);
    }

    #[rstest]
    #[case(vector([]), 0, 0, None)]
    #[case(vector([1]), 0, 1, Some(1))]
    #[case(vector(0..32), 32, 1, Some(31))]
    #[case(vector(0..33), 33, 2, Some(32))]
    #[case(vector(0..256), 256, 8, Some(255))]
    #[case(vector([0, 1, 2, 200]), 3, 7, Some(200))]
    fn queries_agree_with_the_bits(
        #[case] vector: BitVector,
        #[case] run: u32,
        #[case] words: usize,
        #[case] highest: Option<u32>,
    ) {
        assert_eq!(vector.leading_run(), run);
        assert_eq!(vector.word_count(), words);
        assert_eq!(vector.highest(), highest);
        assert_eq!(vector.ones().count() as u32, vector.count());
        assert!(vector.ones().all(|bit| vector.get(bit)));
        assert_eq!(vector.is_empty(), highest.is_none());
    }

    #[test]
    fn set_reports_a_duplicate() {
        let mut vector = BitVector::EMPTY;
        assert!(vector.set(77));
        assert!(!vector.set(77));
        assert!(!vector.get(256));
    }

    #[test]
    fn runs_are_shown() {
        assert_eq!(vector([1, 2, 3, 7]).to_string(), "+1..3,+7");
        assert_eq!(BitVector::EMPTY.to_string(), "-");
        assert_eq!(vector(250..256).to_string(), "+250..255");
    }
}
