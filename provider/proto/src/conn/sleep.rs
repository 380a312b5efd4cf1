//! A connection that has nothing to do for seconds lets go of what it needs to work, and takes it again with the first thing
//! that happens to it. Who keeps thousands of connections open uses few of them at a time.
//!
//! Asleep it has no paths but what [`ParkedTx`] keeps of each, and no buffers. The endpoint wakes it before anything is done
//! to it; queries take it as it is. A connection in use pays one look every few seconds and allocates nothing.

use std::net::IpAddr;

use crate::conn::route::Routes;
use crate::conn::schedule::TxPath;
use crate::conn::streams::List;
use crate::conn::{Connection, Context, RxPath, Shared, State};
use crate::endpoint::qp::QpTable;
use crate::path::{ParkedRx, ParkedTx, PathTx};
use crate::telemetry::{ReceivingCounters, SendingCounters};
use crate::types::{LocalIndex, Route, SourceSlot, Time};

/// Nothing came for so long: longer than any program pauses between two steps of its work, as long as a least round trip
/// counts.
pub(crate) const ASLEEP_AFTER_NS: u64 = 5_000_000_000;

/// Connections are looked at together: one wake-up of the process for all that became idle within so long a time.
const LOOK_STEP_NS: u64 = 1_000_000_000;

/// What stays of the paths.
pub(super) struct Parked {
    pub tx: Box<[ParkedPath]>,
    pub rx: Box<[ParkedRxPath]>,
}

/// What stays of a [`TxPath`].
pub(super) struct ParkedPath {
    pub tx: ParkedTx,
    pub counters: SendingCounters,
    pub sent_elsewhere_bytes: u64,
    /// Its route: number of the lane, and source.
    lane: u8,
    source: SourceSlot,
    pub copied: bool,
}

impl ParkedPath {
    /// `lane`: number of the one that it is on.
    fn new(path: TxPath, lane: usize) -> Self {
        Self {
            tx: path.tx.park(),
            counters: path.counters,
            sent_elsewhere_bytes: path.sent_elsewhere_bytes,
            lane: lane as u8,
            source: path.route.source,
            copied: path.copied,
        }
    }

    pub(super) fn route(&self, routes: &Routes) -> Route {
        routes.lanes()[usize::from(self.lane)].over(self.source)
    }

    fn wake(self, routes: &Routes, now: Time, shared: &Shared) -> TxPath {
        TxPath {
            route: self.route(routes),
            tx: PathTx::wake(self.tx, shared.constants, now),
            counters: self.counters,
            sent_elsewhere_bytes: self.sent_elsewhere_bytes,
            copied: self.copied,
            markers_due: 0,
            announce_due: false,
            probes_due: 0,
            search_losses: 0,
        }
    }
}

/// What stays of an [`RxPath`].
pub(super) struct ParkedRxPath {
    rx: ParkedRx,
    counters: ReceivingCounters,
    from: Option<IpAddr>,
    local: LocalIndex,
}

impl ParkedRxPath {
    fn new(path: &RxPath) -> Self {
        Self {
            rx: path.rx.park(),
            counters: path.counters,
            from: path.from,
            local: path.local,
        }
    }

    /// The path as it was.
    pub(super) fn wake(&self) -> RxPath {
        RxPath {
            rx: self.rx.wake(),
            local: self.local,
            from: self.from,
            counters: self.counters,
        }
    }
}

/// When to look whether a connection of which something came at `heard` may sleep.
pub(super) fn look_at(heard: Time) -> Time {
    let due = heard + ASLEEP_AFTER_NS;
    Time::from_ns(due.as_ns().next_multiple_of(LOOK_STEP_NS))
}

/// Gives memory back that buffers do not need.
macro_rules! let_go {
    ($($buffer:expr),+ $(,)?) => { $($buffer.shrink_to_fit();)+ };
}

impl Connection {
    /// What is left of the paths while it sleeps.
    pub(super) fn parked_paths(&self) -> &[ParkedPath] {
        self.parked.as_ref().map_or(&[], |parked| &parked.tx)
    }

    /// The same of the peer's.
    pub(super) fn parked_rx_paths(&self) -> &[ParkedRxPath] {
        self.parked.as_ref().map_or(&[], |parked| &parked.rx)
    }

    /// Whether it sleeps.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.parked.is_some()
    }

    /// Something is about to be done to it.
    #[cold]
    pub(crate) fn wake(&mut self, now: Time, shared: &Shared) {
        let Some(parked) = self.parked.take() else {
            return;
        };
        let routes = &self.routes;
        let paths = parked.tx.into_iter();
        self.paths = paths.map(|path| path.wake(routes, now, shared)).collect();
        self.rx_paths = parked.rx.iter().map(ParkedRxPath::wake).collect();
        self.path_deadlines = vec![None; self.paths.len()];
        self.forget_probe_turns();
        self.sleep_at = Some(look_at(now));
    }

    /// Looks whether it may sleep, if it is time.
    pub(super) fn sleep_timeout(&mut self, cx: &mut Context<'_>) {
        if self.sleep_at.is_none_or(|at| at > cx.now) {
            return;
        }
        let silent_ns = cx.now.since_ns(self.last_heard);
        if silent_ns < ASLEEP_AFTER_NS {
            self.sleep_at = Some(look_at(self.last_heard));
        } else if self.can_sleep(cx.qps) {
            self.sleep_at = None;
            self.sleep(cx.qps);
        } else {
            self.sleep_at = Some(look_at(cx.now));
        }
    }

    fn can_sleep(&mut self, qps: &mut QpTable) -> bool {
        self.state == State::Open
            && self.candidate.is_none()
            && self.suspicion.is_none()
            && self.ready.is_empty()
            && self.rnr_waits.is_empty()
            && self.waiting_path.is_none()
            && !self.sizes.is_searching()
            && self.paths_due().is_none()
            && self.rx_paths.iter().all(|path| path.rx.can_park())
            && self
                .paths
                .iter()
                .all(|path| path.tx.can_park() && self.routes.lane_of(&path.route).is_some())
            && !self.is_busy(qps)
    }

    fn sleep(&mut self, qps: &mut QpTable) {
        let (paths, routes) = (std::mem::take(&mut self.paths), &self.routes);
        let parked = paths.into_iter().map(|path| {
            let lane = routes.lane_of(&path.route).unwrap_or(0);
            ParkedPath::new(path, lane)
        });
        self.parked = Some(Parked {
            tx: parked.collect(),
            rx: self.rx_paths.iter().map(ParkedRxPath::new).collect(),
        });
        self.rx_paths = Vec::new();
        self.path_deadlines = Vec::new();
        self.dirty_paths = 0;
        self.first_path_deadline = None;
        self.end_asking();
        self.spread.let_go();
        self.ack.let_go();
        self.streams.let_go();
        let_go!(self.outbox, self.ready, self.rnr_waits);
        // Once in a spell of idleness: that is when all of them may be looked at.
        for id in self.streams.of(List::All) {
            if let Some(life) = qps.life_mut(*id) {
                life.requester.let_go();
                life.responder.let_go();
            }
        }
    }
}
