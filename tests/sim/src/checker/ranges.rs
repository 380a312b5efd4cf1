//! A set of bytes of a message, as sorted ranges that do not touch.

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// Adds `[start, end)`.
    pub fn add(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|range| range.1 < start);
        let last = self.0.partition_point(|range| range.0 <= end);
        let merged = self.0[first..last].iter().fold((start, end), |all, range| {
            (all.0.min(range.0), all.1.max(range.1))
        });
        self.0.splice(first..last, [merged]);
    }

    /// Whether all of `[0, length)` is in it.
    pub fn covers(&self, length: u32) -> bool {
        length == 0
            || self
                .0
                .first()
                .is_some_and(|range| range.0 == 0 && range.1 >= length)
    }

    /// How many bytes are in it.
    pub fn total(&self) -> u32 {
        self.0.iter().map(|range| range.1 - range.0).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(&[(0, 4), (4, 8)], 8, true)]
    #[case(&[(4, 8), (0, 4)], 8, true)]
    #[case(&[(0, 3), (4, 8)], 8, false)]
    #[case(&[(0, 3), (6, 8), (2, 7)], 8, true)]
    #[case(&[(1, 8)], 8, false)]
    #[case(&[(6, 8), (0, 2), (3, 5), (1, 7)], 8, true)]
    #[case(&[], 0, true)]
    #[case(&[], 1, false)]
    fn ranges_merge(#[case] added: &[(u32, u32)], #[case] length: u32, #[case] covered: bool) {
        let mut ranges = Ranges::default();
        for (start, end) in added {
            ranges.add(*start, *end);
        }
        assert_eq!(ranges.covers(length), covered, "{ranges:?}");
        assert_eq!(ranges.total() == length, covered, "{ranges:?}");
    }
}
