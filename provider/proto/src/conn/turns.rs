//! Probes take turns where thousands of connections begin or wake together (WIRE 4.33): a host that answers late because it
//! is asked so much would else be asked all the more. Who finds no turn left waits in a queue, and its timers with it.
//!
//! Asked by `conn/probe.rs` when a probe is due; the endpoint gives the turns that become free ([`ProbeTurns::next`]).

use std::collections::VecDeque;

use crate::conn::{Connection, Context};
use crate::endpoint::table::ConnectionIndex;
use crate::types::{Driving, Time};

/// Probes that may leave together after a while without any, and the distance of more in nanoseconds. On sockets a probe and
/// its two answers cost either host some 20 µs.
const fn limits(driving: Driving) -> (u64, u64) {
    match driving {
        Driving::Busy => (1_024, 1_000),
        Driving::Sockets => (256, 50_000),
    }
}

/// The turns of all connections of an endpoint.
#[derive(Debug)]
pub(crate) struct ProbeTurns {
    /// As many of them as may leave at once.
    at_once_ns: u64,
    spacing_ns: u64,
    /// All that were given are paid by then.
    paid_at: Time,
    /// Connections and paths that wait for a turn.
    waiting: VecDeque<(ConnectionIndex, u8)>,
}

impl ProbeTurns {
    pub(crate) fn new(driving: Driving) -> Self {
        let (at_once, spacing_ns) = limits(driving);
        Self {
            at_once_ns: at_once * spacing_ns,
            spacing_ns,
            paid_at: Time::ZERO,
            waiting: VecDeque::new(),
        }
    }

    /// When there is a turn.
    fn free_at(&self) -> Time {
        let paid_ns = self.paid_at.as_ns() + self.spacing_ns;
        Time::from_ns(paid_ns.saturating_sub(self.at_once_ns))
    }

    /// When a turn becomes free that somebody waits for.
    pub(crate) fn next(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then(|| self.free_at())
    }

    /// Who has the turn now.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(ConnectionIndex, usize)> {
        if self.free_at() > now {
            return None;
        }
        let (index, at) = self.waiting.pop_front()?;
        Some((index, usize::from(at)))
    }

    fn take(&mut self, now: Time) {
        self.paid_at = self.paid_at.max(now) + self.spacing_ns;
    }

    /// Takes a turn, if there is one that nobody waits for.
    fn try_take(&mut self, now: Time) -> bool {
        let free = self.waiting.is_empty() && self.free_at() <= now;
        if free {
            self.take(now);
        }
        free
    }

    /// Path `at` waits. Returns when its turn comes at the latest.
    fn wait(&mut self, index: ConnectionIndex, at: usize) -> Time {
        self.waiting.push_back((index, at as u8));
        self.last_turn()
    }

    /// When the last of those who wait has its turn, if all before use theirs.
    fn last_turn(&self) -> Time {
        self.free_at() + (self.waiting.len() as u64).saturating_sub(1) * self.spacing_ns
    }
}

impl Connection {
    /// Whether path `at`, whose probe is due, has a turn; if not, it waits for one.
    pub(super) fn has_probe_turn(&mut self, cx: &mut Context<'_>, at: usize) -> bool {
        let bit = 1 << at;
        if self.turns_given & bit != 0 {
            self.turns_given &= !bit;
            return true;
        }
        let turns = &mut cx.shared.probe_turns;
        let until = if self.turns_awaited & bit != 0 {
            turns.last_turn().max(cx.now + turns.spacing_ns)
        } else if turns.try_take(cx.now) {
            return true;
        } else {
            turns.wait(self.index, at).max(cx.now + turns.spacing_ns)
        };
        self.turns_awaited |= bit;
        self.path_mut(at).tx.postpone_probe(until);
        false
    }

    /// Path `at` has a turn, if it still wants one.
    pub(crate) fn take_probe_turn(&mut self, cx: &mut Context<'_>, at: usize) {
        let bit = 1 << at;
        if self.turns_awaited & bit == 0 {
            return;
        }
        self.turns_awaited &= !bit;
        let now = cx.now;
        let path = &mut self.path_mut(at).tx;
        path.end_postponement(now);
        if path.is_probe_due(now) {
            cx.shared.probe_turns.take(now);
            self.turns_given |= bit;
        }
    }

    /// The paths are others.
    pub(super) fn forget_probe_turns(&mut self) {
        (self.turns_awaited, self.turns_given) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Time {
        Time::from_ns(us * 1_000)
    }

    // WIRE 4.33
    #[test]
    fn many_probes_leave_at_once_and_then_one_after_the_other() {
        let mut turns = ProbeTurns::new(Driving::Sockets);
        let start = us(1_000_000);
        let at_once = (0..1_000).filter(|_| turns.try_take(start)).count();
        assert_eq!(at_once, 256);
        assert!(!turns.try_take(start + 49_999));
        assert!(turns.try_take(start + 50_000));
        assert!(!turns.try_take(start + 50_000));
        // Who has to wait is served in the order of asking, and nobody overtakes it.
        assert_eq!(turns.next(), None);
        assert_eq!(turns.wait(ConnectionIndex(7), 3), start + 100_000);
        assert_eq!(turns.wait(ConnectionIndex(8), 0), start + 150_000);
        assert_eq!(turns.next(), Some(start + 100_000));
        assert!(!turns.try_take(start + 1_000_000));
        assert_eq!(turns.pop(start + 99_999), None);
        assert_eq!(turns.pop(start + 100_000), Some((ConnectionIndex(7), 3)));
        turns.take(start + 100_000);
        assert_eq!(turns.pop(start + 100_000), None);
        // A turn that was not needed is the next one's.
        assert_eq!(turns.pop(start + 150_000), Some((ConnectionIndex(8), 0)));
        assert!(turns.try_take(start + 150_000));
    }
}
