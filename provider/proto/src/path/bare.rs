//! Transmissions without a PSN of their own (markers, probes, announces): their stamps and send times,
//! beside the sent ring, so that an echo of one gives a round-trip sample. They are never retransmitted, so forgetting
//! one costs a sample and nothing else. Used by `tx` only.

use std::collections::VecDeque;

use crate::path::Bare;
use crate::types::Time;

/// More than a path has in flight of these: one marker a train that empties the backlog, a probe a round trip.
const REMEMBERED_MAX: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Entry {
    transmission: u64,
    sent_at: Time,
    kind: Bare,
}

/// The bare transmissions that no echo has passed yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct BareLog {
    entries: VecDeque<Entry>,
}

impl BareLog {
    pub(super) fn push(&mut self, transmission: u64, sent_at: Time, kind: Bare) {
        if self.entries.len() == REMEMBERED_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            transmission,
            sent_at,
            kind,
        });
    }

    /// Forgets what is not later than the echoed transmission: the receiver echoes the largest stamp, so none of them
    /// is echoed any more. Returns send time and kind of the echoed one, if it is here.
    pub(super) fn take_echoed(&mut self, transmission: u64) -> Option<(Time, Bare)> {
        let mut echoed = None;
        while let Some(entry) = self.entries.front() {
            if entry.transmission > transmission {
                break;
            }
            if entry.transmission == transmission {
                echoed = Some((entry.sent_at, entry.kind));
            }
            self.entries.pop_front();
        }
        echoed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_finds_its_transmission_and_forgets_earlier_ones() {
        let mut log = BareLog::default();
        for i in 1..=4 {
            log.push(i * 10, Time::from_ns(i), Bare::Probe);
        }
        assert_eq!(log.take_echoed(20), Some((Time::from_ns(2), Bare::Probe)));
        assert_eq!(log.take_echoed(10), None);
        assert_eq!(log.take_echoed(35), None);
        assert_eq!(log.take_echoed(40), Some((Time::from_ns(4), Bare::Probe)));
        assert!(log.entries.is_empty());
    }

    #[test]
    fn the_log_is_bounded() {
        let mut log = BareLog::default();
        for i in 0..1_000 {
            log.push(i, Time::ZERO, Bare::Marker);
        }
        assert_eq!(log.entries.len(), REMEMBERED_MAX);
        assert!(log.take_echoed(999).is_some());
    }
}
