//! Which path a train of new segments takes (WIRE 8.9, 8.10). `schedule.rs` asks, once a train.
//!
//! Paths that would finish it about as soon as the best one take turns: many senders that all follow the least round trip meet on
//! one plane, and leave it together when they see its queue. What fits into one train takes the best path, whatever the turn.

use crate::conn::schedule::TxPath;
use crate::conn::{Connection, Context};

/// Paths that finish a train at most so many of the fastest round trips later than the best one are as good.
const EQUAL_ROUND_TRIPS: u64 = 2;

/// Packets for which one more path is worth having: what a path is sent in a round trip shows its losses in time.
const PACKETS_PER_PATH: u64 = 4;

/// Paths that are used on every lane, however small the grant: of two one is always near.
const PATHS_PER_LANE: u64 = 2;

/// Streams whose backlog is looked at.
const BACKLOG_STREAMS: usize = 8;

/// What all paths of a connection are judged by.
struct Train {
    packets: u32,
    /// Payload bytes that wait, those of the train included.
    backlog_bytes: u64,
    /// Least smoothed round trip of the paths that do not rest.
    fastest_ns: Option<u64>,
    /// The paths that are used now, as bits.
    used: u64,
}

/// The lower, the better: whether the train has to be cut, and when it is over.
type Rank = (bool, u64);

impl Connection {
    /// A small grant makes trains short, of one packet even. As many packets as a whole train would have follow one another
    /// on one path: a message that one train could carry takes one path (WIRE 4.12), and needs one marker.
    pub(super) fn path_of_short_trains(&self, cx: &Context<'_>) -> Option<usize> {
        let (at, _) = self.short_trains?;
        let path = &self.paths[at];
        let goes_on = self.window.train_packets() < self.train_packets(cx.shared);
        let has_room = path.tx.can_send(cx.now) && !cx.shared.blocked.has(path.route.local);
        (goes_on && has_room).then_some(at)
    }

    /// The path that was used last, where the peer has very many: to look at all of them for one small message costs more than
    /// a better one gains (WIRE 8.12).
    pub(super) fn path_in_crowd(&self, cx: &Context<'_>) -> Option<usize> {
        let path = self.paths.get(self.path_turn)?;
        let good = self.window.is_in_crowd()
            && !path.tx.is_resting()
            && path.tx.can_send(cx.now)
            && !cx.shared.blocked.has(path.route.local);
        good.then_some(self.path_turn)
    }

    /// The path for a train of `packets`; `None` if no path has room.
    pub(super) fn choose_path(&mut self, cx: &mut Context<'_>, packets: u32) -> Option<usize> {
        let awake = self.paths.iter().filter(|path| !path.tx.is_resting());
        let train = Train {
            packets,
            backlog_bytes: self.backlog_bytes(cx),
            fastest_ns: awake.filter_map(|path| path.tx.srtt_ns()).min(),
            used: self.used_paths(cx),
        };
        let count = self.paths.len();
        let in_flight = |at: usize| self.paths[at].tx.packets_in_flight();
        let ranks =
            (0..count).filter_map(|at| Some((self.rank(cx, at, &train)?, in_flight(at), at)));
        let ((splits, finish_ns), _, best) = ranks.min()?;
        let train_bytes = self.train_packets(cx.shared) * u32::from(self.payload_bytes);
        let chosen = if train.backlog_bytes > u64::from(train_bytes) {
            let equal_ns = EQUAL_ROUND_TRIPS * train.fastest_ns.unwrap_or(0);
            let last = (splits, finish_ns.saturating_add(equal_ns));
            (1..=count)
                .map(|step| (self.path_turn + step) % count)
                .find(|at| self.rank(cx, *at, &train).is_some_and(|rank| rank <= last))
                .unwrap_or(best)
        } else {
            best
        };
        self.path_turn = chosen;
        Some(chosen)
    }

    /// As many paths as the grant has use for (WIRE 8.22), as bits: those that rest, or cannot send now, left out. The last path
    /// never rests: where all do, all may send.
    fn used_paths(&self, cx: &Context<'_>) -> u64 {
        if self.paths.iter().all(|path| path.tx.is_resting()) {
            return u64::MAX;
        }
        let by_grant = self.window.packets_by_grant();
        let wanted = by_grant.map_or(u64::MAX, |packets| packets / PACKETS_PER_PATH);
        let wanted = wanted.max(PATHS_PER_LANE * self.routes.lanes().len() as u64);
        let paths =
            self.paths.iter().enumerate().filter(|(_, path)| {
                !path.tx.is_resting() && !cx.shared.blocked.has(path.route.local)
            });
        let bits = paths.map(|(at, _)| 1 << at);
        bits.take(wanted as usize)
            .fold(0, |all, bit: u64| all | bit)
    }

    /// How soon path `at` would be done with the train; `None` if it has no room or is not worth it.
    fn rank(&self, cx: &Context<'_>, at: usize, train: &Train) -> Option<Rank> {
        let path = &self.paths[at];
        let room = path.tx.room(cx.now);
        let blocked = cx.shared.blocked.has(path.route.local);
        if room == 0 || blocked || train.used & (1 << at) == 0 {
            return None;
        }
        // A path without a sample is tried as if it were the fastest.
        let srtt_ns = path.tx.srtt_ns().or(train.fastest_ns).unwrap_or(0);
        if self.is_too_slow(at, srtt_ns, train) {
            return None;
        }
        let window = (path.tx.window().packets() as u64).max(1);
        let packets = u64::from(path.tx.packets_in_flight() + train.packets);
        // From the least round trip: what others measured when they queued is in the second term, as far as it is
        // still in flight. Otherwise a path that once met a queue of its own making would never be tried again.
        let least_ns = path.tx.min_rtt_ns().unwrap_or(srtt_ns);
        Some((room < train.packets, least_ns + srtt_ns * packets / window))
    }

    /// Whether a path is so slow that waiting for the faster ones is better.
    fn is_too_slow(&self, at: usize, srtt_ns: u64, train: &Train) -> bool {
        let fastest_ns = train.fastest_ns;
        let Some(fastest_ns) = fastest_ns.filter(|fastest_ns| srtt_ns > 2 * fastest_ns) else {
            return false;
        };
        let faster = |path: &&TxPath| {
            !path.tx.is_resting() && path.tx.srtt_ns().is_some_and(|ns| ns * 2 < srtt_ns)
        };
        let busy = self
            .paths
            .iter()
            .filter(faster)
            .any(|path| path.tx.packets_in_flight() > 0);
        if !busy {
            return false;
        }
        let rate: f64 = self
            .paths
            .iter()
            .enumerate()
            .filter(|(other, path)| *other != at && faster(path))
            .filter_map(|(_, path)| Some(path.tx.window().packets() / path.tx.srtt_ns()? as f64))
            .sum();
        let packets = train.backlog_bytes as f64 / f64::from(self.payload_bytes.max(1));
        (srtt_ns as f64) > fastest_ns as f64 + packets / rate.max(f64::MIN_POSITIVE)
    }

    /// Payload bytes that wait for their first transmission in the first few streams.
    fn backlog_bytes(&self, cx: &mut Context<'_>) -> u64 {
        let mut bytes = 0;
        for id in self.ready.iter().take(BACKLOG_STREAMS) {
            if let Some(life) = cx.qps.life_mut(*id) {
                bytes += life.requester.backlog_bytes() + life.responder.backlog_bytes();
            }
        }
        bytes
    }
}
