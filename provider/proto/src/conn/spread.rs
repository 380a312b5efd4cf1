//! Ports that spread: paths whose ports lose, are marked or are slow together share a link (WIRE 4.24). Now and then the
//! paths of a busy connection are compared with one another, plane by plane; the one whose packets fare much worse than
//! those of most others draws a new port, the others keep theirs. What all suffer alike, random loss or a full receiver,
//! moves nobody. A move that did not help is judged like any other the next time.
//!
//! What moves because a route does not answer at all is in `probe.rs`.

use smallvec::SmallVec;

use crate::conn::schedule::TxPath;
use crate::conn::{Connection, Context};
use crate::telemetry::log::MoveCause;
use crate::types::{Driving, Time};

/// Between two comparisons.
const INTERVAL_RTTS: u64 = 32;
const BUSY_INTERVAL_NS: u64 = 500_000;
const SOCKETS_INTERVAL_NS: u64 = 20_000_000;
/// A path that sent less since the last one is not judged.
const PACKETS_LEAST: u64 = 32;
/// Of the paths of a plane so many must have been judged.
const PATHS_LEAST: usize = 3;
/// Part of the packets lost or marked that is worth a move …
const TROUBLE: f64 = 0.05;
/// … if it is so many times what half of the others have.
const TIMES_OTHERS: f64 = 4.0;
/// A round trip of so many times the median is as bad as any trouble: a link that is slow and does not mark.
const SLOW_TIMES: u64 = 3;

/// What the comparisons of one connection need to remember.
#[derive(Debug, Default)]
pub(super) struct Spread {
    at: Option<Time>,
    /// Sent since the last one, on all paths.
    packets: u64,
    /// By path: what it had sent, and what of that was lost or marked, at the last one.
    seen: SmallVec<[Seen; 1]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    sent: u64,
    troubled: u64,
}

impl Seen {
    fn of(path: &TxPath) -> Self {
        let counters = &path.counters;
        Self {
            sent: counters.data_packets_sent,
            troubled: counters.packets_lost + counters.ce_echoed,
        }
    }
}

/// A path that sent enough to be compared.
#[derive(Clone, Copy, Debug)]
struct Judged {
    at: usize,
    lane: usize,
    trouble: f64,
    srtt_ns: u64,
}

impl Spread {
    pub(super) fn at(&self) -> Option<Time> {
        self.at
    }

    /// Nothing was sent for long: the next comparison is with what was sent from then on.
    pub(super) fn let_go(&mut self) {
        if self.at.is_none() {
            self.seen = SmallVec::new();
        }
    }

    /// So many packets were sent.
    #[inline]
    pub(super) fn count(&mut self, packets: u64) {
        self.packets += packets;
    }

    /// Something was sent.
    #[inline]
    pub(super) fn arm(&mut self, now: Time, driving: Driving, rtt_ns: Option<u64>) {
        // Who sends a packet now and then has nothing to compare, and need not be woken for it.
        let enough = driving == Driving::Busy || self.packets >= PACKETS_LEAST;
        if self.at.is_none() && enough {
            let floor_ns = match driving {
                Driving::Busy => BUSY_INTERVAL_NS,
                Driving::Sockets => SOCKETS_INTERVAL_NS,
            };
            self.at = Some(now + floor_ns.max(INTERVAL_RTTS * rtt_ns.unwrap_or(0)));
        }
    }

    /// Those paths that sent enough since the last time.
    fn judge(
        &mut self,
        paths: &[TxPath],
        lane_of: impl Fn(&TxPath) -> Option<usize>,
    ) -> SmallVec<[Judged; 16]> {
        self.seen.resize(paths.len(), Seen::default());
        let mut judged = SmallVec::new();
        for (at, path) in paths.iter().enumerate() {
            let now = Seen::of(path);
            let before = std::mem::replace(&mut self.seen[at], now);
            let sent = now.sent.saturating_sub(before.sent);
            if sent < PACKETS_LEAST || path.tx.is_resting() {
                continue;
            }
            let troubled = now.troubled.saturating_sub(before.troubled);
            judged.push(Judged {
                at,
                lane: lane_of(path).unwrap_or(0),
                trouble: troubled as f64 / sent as f64,
                srtt_ns: path.tx.srtt_ns().unwrap_or(0),
            });
        }
        judged
    }
}

/// The path of `plane` that fares much worse than most others, if there is one.
fn outlier(plane: &[Judged]) -> Option<usize> {
    if plane.len() < PATHS_LEAST {
        return None;
    }
    let middle = plane.len() / 2;
    let mut troubles: SmallVec<[f64; 16]> = plane.iter().map(|one| one.trouble).collect();
    troubles.sort_unstable_by(f64::total_cmp);
    let mut srtts_ns: SmallVec<[u64; 16]> = plane.iter().map(|one| one.srtt_ns).collect();
    srtts_ns.sort_unstable();
    let (usual, usual_ns) = (troubles[middle], srtts_ns[middle]);
    let stands_out = |one: &&Judged| {
        (one.trouble >= TROUBLE && one.trouble >= TIMES_OTHERS * usual)
            || one.srtt_ns > SLOW_TIMES * usual_ns
    };
    let badness = |one: &Judged| (one.trouble, one.srtt_ns);
    plane
        .iter()
        .filter(stands_out)
        .max_by(|a, b| {
            badness(a)
                .partial_cmp(&badness(b))
                .unwrap_or(a.at.cmp(&b.at))
        })
        .map(|one| one.at)
}

impl Connection {
    /// Compares the paths, if it is time; one for each plane may move.
    pub(super) fn spread_timeout(&mut self, cx: &mut Context<'_>) {
        if self.spread.at.is_none_or(|at| at > cx.now) {
            return;
        }
        // The next packet sets the clock again.
        self.spread.at = None;
        self.spread.packets = 0;
        let mut judged = self
            .spread
            .judge(&self.paths, |path| self.routes.lane_of(&path.route));
        judged.sort_unstable_by_key(|one| (one.lane, one.at));
        for plane in judged.chunk_by(|a, b| a.lane == b.lane) {
            if let Some(at) = outlier(plane)
                && self.paths[at].tx.can_begin_epoch()
            {
                self.take_port(cx, at, MoveCause::WorseThanOthers);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn plane(troubles: &[(f64, u64)]) -> Vec<Judged> {
        let judged = |(at, &(trouble, srtt_ns)): (usize, &(f64, u64))| Judged {
            at,
            lane: 0,
            trouble,
            srtt_ns,
        };
        troubles.iter().enumerate().map(judged).collect()
    }

    // WIRE 4.24
    #[rstest]
    #[case::all_well(&[(0.0, 10), (0.0, 11), (0.0, 12)], None)]
    #[case::random_loss_strikes_all(&[(0.1, 10), (0.12, 10), (0.09, 10), (0.15, 10)], None)]
    #[case::one_is_marked(&[(0.0, 10), (0.4, 15), (0.01, 10), (0.0, 10)], Some(1))]
    #[case::the_worst_of_two(&[(0.0, 10), (0.4, 15), (0.5, 10), (0.0, 10), (0.0, 10)], Some(2))]
    #[case::a_little_is_nothing(&[(0.0, 10), (0.04, 10), (0.0, 10)], None)]
    #[case::one_is_slow_without_marks(&[(0.0, 10), (0.0, 10), (0.0, 31)], Some(2))]
    #[case::too_few_to_compare(&[(0.0, 10), (0.9, 10)], None)]
    fn who_fares_much_worse_than_most_stands_out(
        #[case] troubles: &[(f64, u64)],
        #[case] expected: Option<usize>,
    ) {
        assert_eq!(outlier(&plane(troubles)), expected);
    }

    #[test]
    fn it_is_armed_by_the_first_packet_only() {
        let mut spread = Spread::default();
        let us = |us: u64| Time::from_ns(us * 1_000);
        spread.arm(us(1), Driving::Busy, Some(10_000));
        spread.arm(us(100), Driving::Busy, Some(10_000));
        assert_eq!(spread.at(), Some(us(501)));
        let mut far = Spread::default();
        far.arm(us(0), Driving::Busy, Some(1_000_000));
        assert_eq!(far.at(), Some(us(32_000)));
    }
}
