//! Does a route swallow large packets and carry small ones? What one path has seen of it (WIRE 4.25).
//!
//! A packet found lost by order was followed by something that arrived: the route works. If that happens to large packets
//! round after round, and none of that size or a larger one arrives, the route has a hole, and not bad luck: at 30 %
//! random loss one series in two millions is as long, and a series must go on for a while besides, in which a route
//! that is merely overfull lets something through. A dead route proves nothing here, because nothing arrives by it.
//!
//! Sizes are sorted into classes, so that packets of 1,400 bytes that arrive say nothing about those of 4,000, and those of
//! 4,000 that are lost nothing about those of 1,400. Used by `loss` (losses) and `tx` (arrivals, and the verdict).

use crate::types::Time;

/// UDP payloads up to this are not suspected: probes and markers are no larger, and a route that swallows these carries
/// nothing at all.
const CARRIED_BYTES: u32 = 128;

/// Upper ends of the classes of UDP payloads, the last one open: short messages, the least full packet, fallback, tunnels,
/// 1,500, half a page, 4 KiB.
const CLASS_ENDS: [u32; 7] = [320, 576, 1_216, 1_360, 1_472, 2_112, 4_160];
const CLASSES: usize = CLASS_ENDS.len() + 1;

/// Acknowledgements that proved a loss of the class, one after the other.
const HOLE_ROUNDS: u16 = 12;

/// From the first to the last of them at least. All that is lost is sent again meanwhile, once a round trip.
const HOLE_NS: u64 = 10_000_000;

/// Between two rounds of a series that is long enough: what is swallowed would else be sent again every round trip.
const SUSPECT_ROUND_NS: u64 = 500_000;

/// Rounds further apart do not belong to one series: more than the longest pause between two probes.
const SERIES_GAP_NS: u64 = 1_000_000_000;

/// Losses of one class since something as large arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Series {
    /// First and last round; of no account while there is none.
    begun: Time,
    last: Time,
    rounds: u16,
    /// The smallest packet that was lost.
    least_bytes: u32,
}

/// See the file's head. Most paths never lose a large packet, so that what is known of losses is made by the first one.
#[derive(Debug, Default)]
pub(super) struct HoleEvidence(Option<Box<Losses>>);

#[derive(Debug, Default)]
struct Losses {
    series: [Series; CLASSES],
    /// Least bytes lost in this round, by class; 0 is none.
    round: [u32; CLASSES],
    /// Any loss in this round; any series.
    in_round: bool,
    any: bool,
    /// Of the smallest packets that the last rounds have shown to be swallowed, until somebody takes note; 0 is none.
    hole_bytes: u32,
}

fn class(bytes: u32) -> usize {
    CLASS_ENDS.partition_point(|end| *end < bytes)
}

impl HoleEvidence {
    /// A packet of `bytes` (UDP payload) was found lost by order.
    #[inline]
    pub(super) fn on_lost(&mut self, bytes: u32) {
        if bytes > CARRIED_BYTES {
            self.0.get_or_insert_default().on_lost(bytes);
        }
    }

    /// Whatever one acknowledgement proves lost is one round.
    #[inline]
    pub(super) fn end_round(&mut self, now: Time) {
        if let Some(losses) = &mut self.0
            && std::mem::take(&mut losses.in_round)
        {
            losses.end_round(now);
        }
    }

    /// From when on the next round may be judged, where the last ones look like a hole.
    #[inline]
    pub(super) fn next_round_at(&self) -> Option<Time> {
        self.0.as_deref()?.next_round_at()
    }

    /// A packet of `bytes` arrived: losses of what is no larger were bad luck.
    #[inline]
    pub(super) fn on_arrived(&mut self, bytes: u32) {
        if let Some(losses) = &mut self.0
            && losses.any
            && bytes > CARRIED_BYTES
        {
            losses.on_arrived(bytes);
        }
    }

    /// Larger packets were proved to pass.
    pub(super) fn forget(&mut self) {
        if let Some(losses) = &mut self.0 {
            **losses = Losses::default();
        }
    }

    /// UDP payload bytes of the smallest packets that the route seems to swallow, once for each round that shows it.
    #[inline]
    pub(super) fn take_hole_bytes(&mut self) -> Option<u32> {
        let losses = self.0.as_deref_mut()?;
        let bytes = std::mem::take(&mut losses.hole_bytes);
        (bytes > 0).then_some(bytes)
    }
}

impl Series {
    fn is_long(&self) -> bool {
        self.rounds >= HOLE_ROUNDS
    }

    fn is_hole(&self) -> bool {
        self.is_long() && self.last.since_ns(self.begun) >= HOLE_NS
    }
}

impl Losses {
    fn on_lost(&mut self, bytes: u32) {
        let least = &mut self.round[class(bytes)];
        if *least == 0 || bytes < *least {
            *least = bytes;
        }
        self.in_round = true;
    }

    fn end_round(&mut self, now: Time) {
        self.any = true;
        self.hole_bytes = 0;
        for (series, lost) in self.series.iter_mut().zip(&mut self.round) {
            let lost = std::mem::take(lost);
            if lost == 0 {
                continue;
            }
            if series.rounds == 0 || now.since_ns(series.last) > SERIES_GAP_NS {
                *series = Series {
                    begun: now,
                    least_bytes: lost,
                    ..Series::default()
                };
            }
            series.rounds = series.rounds.saturating_add(1);
            series.last = now;
            series.least_bytes = series.least_bytes.min(lost);
            if self.hole_bytes == 0 && series.is_hole() {
                self.hole_bytes = series.least_bytes;
            }
        }
    }

    fn next_round_at(&self) -> Option<Time> {
        let long = self.series.iter().filter(|series| series.is_long());
        long.map(|series| series.last + SUSPECT_ROUND_NS).max()
    }

    fn on_arrived(&mut self, bytes: u32) {
        for series in &mut self.series {
            if series.least_bytes <= bytes {
                *series = Series::default();
            }
        }
        if self.hole_bytes <= bytes {
            self.hole_bytes = 0;
        }
        self.any = self.series.iter().any(|series| series.rounds > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn lose(evidence: &mut HoleEvidence, at_ms: u64, sizes: &[u32]) {
        sizes.iter().for_each(|bytes| evidence.on_lost(*bytes));
        evidence.end_round(Time::from_ns(at_ms * MS));
    }

    // WIRE 4.25
    #[test]
    fn a_hole_takes_rounds_and_time() {
        let mut evidence = HoleEvidence::default();
        // Many rounds in no time, as a full queue makes them; a train lost at once is one.
        for _ in 0..100 {
            lose(&mut evidence, 1, &[4_160; 16]);
        }
        assert_eq!(evidence.take_hole_bytes(), None);
        lose(&mut evidence, 11, &[4_160]);
        assert_eq!(evidence.take_hole_bytes(), Some(4_160));

        // Much time and few rounds.
        let mut evidence = HoleEvidence::default();
        for round in 0..11 {
            lose(&mut evidence, 20 * round, &[3_000, 4_160]);
            assert_eq!(evidence.take_hole_bytes(), None);
        }
        lose(&mut evidence, 220, &[3_500]);
        assert_eq!(evidence.take_hole_bytes(), Some(3_000));
    }

    // WIRE 4.25
    #[test]
    fn an_arrival_ends_the_series_of_what_is_no_larger() {
        let mut evidence = HoleEvidence::default();
        for round in 0..20 {
            lose(&mut evidence, 20 * round, &[1_448, 4_160]);
            evidence.on_arrived(1_448);
            evidence.on_arrived(64);
        }
        evidence.on_arrived(4_159);
        assert_eq!(evidence.take_hole_bytes(), Some(4_160));
        // Each round that shows it tells it once.
        assert_eq!(evidence.take_hole_bytes(), None);
        lose(&mut evidence, 400, &[4_160]);
        evidence.on_arrived(4_160);
        assert_eq!(evidence.take_hole_bytes(), None);
        lose(&mut evidence, 500, &[4_160]);
        assert_eq!(evidence.take_hole_bytes(), None);
    }

    // WIRE 4.25
    #[test]
    fn what_looks_like_a_hole_is_judged_now_and_then() {
        let mut evidence = HoleEvidence::default();
        for round in 0..12 {
            assert_eq!(evidence.next_round_at(), None);
            lose(&mut evidence, round, &[1_448, 4_160]);
        }
        let next_at = Time::from_ns(11 * MS + SUSPECT_ROUND_NS);
        assert_eq!(evidence.next_round_at(), Some(next_at));
        evidence.on_arrived(1_448);
        assert_eq!(evidence.next_round_at(), Some(next_at));
        evidence.on_arrived(4_160);
        assert_eq!(evidence.next_round_at(), None);
    }

    // WIRE 4.25
    #[test]
    fn what_a_route_that_answers_carries_is_not_suspected() {
        let mut evidence = HoleEvidence::default();
        for round in 0..100 {
            lose(&mut evidence, 20 * round, &[64, 80, 128]);
        }
        assert_eq!(evidence.take_hole_bytes(), None);
    }

    // WIRE 4.25
    #[test]
    fn losses_long_ago_do_not_count() {
        let mut evidence = HoleEvidence::default();
        for round in 0..11 {
            lose(&mut evidence, 20 * round, &[4_160]);
        }
        lose(&mut evidence, 5_000, &[4_160]);
        assert_eq!(evidence.take_hole_bytes(), None);
    }
}
