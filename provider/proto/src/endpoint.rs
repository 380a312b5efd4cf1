//! The endpoint: where one engine receives. Owns the connections and the queue pairs' streams.
//!
//! The engine and the simulator see only this. Four kinds of methods: `handle_*` take what came from outside, `poll_*`
//! hand out what is to be done, the verbs (`create_qp` …) change queue pairs, the rest are queries. After every call
//! that is not a query: `poll_transmit` until it returns false, then `poll_event` until `None`, then sleep until
//! `poll_timeout` at most. Everything that touches application memory or posted receives is given the [`Host`].

mod crowd;
mod demux;
mod grants;
mod planes;
pub(crate) mod qp;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod timers;
mod verbs;

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use smallvec::SmallVec;

use crate::cc::{Drain, FairShare};
use crate::conn::{Connection, Context, ProbeTurns, Shared, random_id};
use crate::event::Event;
use crate::host::Host;
use crate::path::Constants;
use crate::stream::HoldBudget;
use crate::telemetry::log::{Ending, Log, Record, What};
use crate::telemetry::{ConnectionInfo, Counters, EndedCounters, EndpointInfo, GrantsInfo};
use crate::train::{SegmentOwner, Train};
use crate::types::{EndpointConfig, LocalIndex, LocalSet, QpId, Route, SourceSlot, Status, Time};
use crate::wire::{CloseReason, ConnectionId, FillStatus, Incarnation};
use crowd::Crowd;
use demux::ResetBudget;
use grants::Told;
pub use planes::SteerError;
use qp::QpTable;
use table::{ConnectionIndex, ConnectionTable};
use timers::Timers;

/// QPNs begin at a random number below this, so that a restarted process does not give the same ones at once.
const FIRST_QPN_SPREAD: u16 = 256;

/// Packets that belong to no connection and wait to be sent: answers, left out beyond.
const OUTBOX_MAX: usize = 256;

/// What the socket knows about a datagram besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxMeta {
    /// Our address that it came to.
    pub local: LocalIndex,
    /// Who sent it.
    pub source: SocketAddr,
    /// It bears a congestion mark.
    pub ce: bool,
}

/// Why a queue pair could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateQpError {
    /// All QPNs of this endpoint are in use.
    Full,
}

impl fmt::Display for CreateQpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str(
                "all queue pair numbers of this endpoint are in use: destroy some first",
            ),
        }
    }
}

impl std::error::Error for CreateQpError {}

/// Why a queue pair could not be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The handle names no queue pair, or one that is connected already.
    InvalidQp,
    /// The source GID is none of ours.
    UnknownSourceGid,
    /// The destination GID is no address that our source address can send to.
    UnroutableDestination,
    /// The peer's QPN is reserved, or its endpoint index is beyond the UDP ports.
    InvalidDestinationQpn,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidQp => "no such queue pair, or it is connected already",
            Self::UnknownSourceGid => "the source GID is not an address of this device: choose another sgid_index",
            Self::UnroutableDestination => {
                "the destination GID is not an address that the source address can send to: choose GIDs of one family"
            }
            Self::InvalidDestinationQpn => "the destination QPN is not a usable number of a metaroce queue pair",
        })
    }
}

impl std::error::Error for ConnectError {}

/// A packet that belongs to no connection.
type Stray = (Route, SmallVec<[u8; 64]>);

/// One engine's end of all its connections.
pub struct Endpoint {
    shared: Shared,
    qps: QpTable,
    connections: ConnectionTable,
    /// Connections with something to send that comes before new data; with new data.
    urgent: VecDeque<ConnectionIndex>,
    ready: VecDeque<ConnectionIndex>,
    /// Connections that may have data for addresses that were blocked.
    held_back: Vec<ConnectionIndex>,
    /// Connections that received something in the present batch.
    batch: Vec<ConnectionIndex>,
    /// Connections whose deadline may have changed since it was last armed.
    touched: Vec<ConnectionIndex>,
    /// At least the connections that are busy.
    busy: Vec<ConnectionIndex>,
    timers: Timers,
    told: Told,
    crowd: Crowd,
    outbox: VecDeque<Stray>,
    resets: ResetBudget,
    /// The process exits: nothing is opened any more.
    closed: bool,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("index", &self.shared.config.index)
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// A fresh endpoint; `seed` decides everything random: incarnation, ids, tokens, routes.
    pub fn new(config: EndpointConfig, seed: u64, now: Time) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let incarnation = Incarnation(rng.random());
        let qps = QpTable::new(config.index, rng.random_range(0..FIRST_QPN_SPREAD));
        let shared = Shared {
            usable: LocalSet::ALL,
            blocked: LocalSet::NONE,
            constants: Constants::new(config.driving, config.congestion),
            counters: Counters::default(),
            ended: EndedCounters::default(),
            events: VecDeque::new(),
            log: Log::default(),
            probe_turns: ProbeTurns::new(config.driving),
            hold: HoldBudget::new(config.hold_bytes, config.force_strict),
            fair_share: FairShare::new(config.receive_window_bytes, config.payload_bytes),
            rng,
            incarnation,
            drain: Drain::new(config.driving, now),
            connections: 0,
            acked: Vec::new(),
            packet: Vec::new(),
            config,
        };
        Self {
            shared,
            qps,
            connections: ConnectionTable::default(),
            urgent: VecDeque::new(),
            ready: VecDeque::new(),
            held_back: Vec::new(),
            batch: Vec::new(),
            touched: Vec::new(),
            busy: Vec::new(),
            timers: Timers::default(),
            told: Told::default(),
            crowd: Crowd::default(),
            outbox: VecDeque::new(),
            resets: ResetBudget::new(now),
            closed: false,
        }
    }

    // ---- What came from outside ----

    /// Ends a batch of received datagrams: acknowledgements that are due are queued.
    pub fn handle_batch_end(&mut self, now: Time, _host: &mut dyn Host) {
        let mut batch = std::mem::take(&mut self.batch);
        for index in batch.drain(..) {
            self.on_connection(now, index, |connection, cx| {
                connection.in_batch = false;
                connection.end_batch(cx);
            });
        }
        self.batch = batch;
        self.tell_grants(now);
    }

    /// Does what is due by now; harmless when nothing is.
    pub fn handle_timeout(&mut self, now: Time, _host: &mut dyn Host) {
        while let Some((index, at)) = self.shared.probe_turns.pop(now) {
            let asleep = self
                .connections
                .get(index)
                .is_none_or(Connection::is_asleep);
            if !asleep {
                self.on_connection(now, index, |connection, cx| {
                    connection.take_probe_turn(cx, at)
                });
            }
        }
        self.arm_touched();
        while let Some(index) = self.timers.pop_due(now) {
            let dead = self.on_connection(now, index, |connection, cx| {
                connection.handle_timeout(cx);
                let dead = connection.is_proved_dead(cx.now);
                if dead {
                    connection.tell_unreachable(cx.shared);
                }
                dead
            });
            if dead == Some(true) {
                self.shared.counters.connections_lost += 1;
                self.bury(now, index, Ending::Unreachable);
            }
        }
        self.tell_grants(now);
        self.arm_touched();
    }

    /// Takes an ICMP "port unreachable" for a datagram of ours: only a hint (WIRE 3.18).
    pub fn handle_unreachable(
        &mut self,
        now: Time,
        destination: SocketAddr,
        source: Option<SourceSlot>,
    ) {
        let indices: SmallVec<[ConnectionIndex; 8]> = self.connections.indices().collect();
        for index in indices {
            self.on_connection(now, index, |connection, cx| {
                connection.handle_unreachable(cx, destination, source);
            });
        }
    }

    /// The host could not read the memory of a packet that [`Self::poll_transmit`] gave it: the work request, or the
    /// READ of the peer, fails.
    pub fn handle_bad_memory(&mut self, now: Time, owner: SegmentOwner, _host: &mut dyn Host) {
        let Some(life) = self.qps.life_mut(owner.qp) else {
            return;
        };
        if owner.response {
            life.responder
                .fail_response(owner.msn, FillStatus::RemoteOperational);
        } else {
            let result = life.requester.fail_message(
                owner.msn,
                Status::LocalProtection,
                &mut self.shared.events,
            );
            if let Err(failure) = result {
                self.fail_by_request(now, owner.qp, failure);
            }
        }
        self.wake_stream(now, owner.qp);
    }

    /// A packet of `bytes` is larger than the route carries: smaller ones go to that peer from now on.
    pub fn handle_too_large(&mut self, now: Time, route: Route, bytes: u32) {
        self.shared.counters.too_large += 1;
        let indices: SmallVec<[ConnectionIndex; 8]> = self.connections.indices().collect();
        for index in indices {
            self.on_connection(now, index, |connection, cx| {
                connection.handle_too_large(cx, route.destination, bytes)
            });
        }
    }

    /// The process exits: every peer is told. Go on calling `poll_transmit` and the others until
    /// [`Self::outstanding`] is false or 100 ms are over.
    pub fn close(&mut self, now: Time) {
        self.closed = true;
        let indices: Vec<ConnectionIndex> = self.connections.indices().collect();
        for index in indices {
            self.on_connection(now, index, |connection, cx| {
                connection.end_activity(cx.shared);
                connection.close(cx.now, cx.shared, CloseReason::Exit);
            });
        }
    }

    // ---- What is to be done ----

    /// Fills `train` with the next packets to send; false when there is nothing to send now. Completions need not
    /// wait for this: calling [`Self::poll_event`] first gives a program its message before the ACK costs a send.
    pub fn poll_transmit(&mut self, now: Time, train: &mut Train, host: &mut dyn Host) -> bool {
        if let Some((route, bytes)) = self.outbox.pop_front() {
            train.start(route);
            train.push_bytes(&bytes);
            train.finish_segment(None);
            self.shared.counters.control_sent += 1;
            return true;
        }
        // Acknowledgements first, also before the answer that the program gives: on hardware a send has completed when its
        // answer comes, and programs with a send queue of one request (`ib_send_lat -e`) rely on it.
        if self.poll_urgent(now, train, host) || self.poll_ready(now, train) {
            return true;
        }
        self.arm_touched();
        false
    }

    fn poll_urgent(&mut self, now: Time, train: &mut Train, host: &mut dyn Host) -> bool {
        while let Some(index) = self.urgent.pop_front() {
            let Some(connection) = self.connections.get_mut(index) else {
                continue;
            };
            connection.in_urgent = false;
            if connection.is_asleep() {
                connection.wake(now, &self.shared);
            }
            let mut cx = Context {
                now,
                shared: &mut self.shared,
                qps: &mut self.qps,
            };
            let built = connection.poll_urgent(&mut cx, host, train);
            self.after(now, index);
            if built {
                return true;
            }
        }
        false
    }

    fn poll_ready(&mut self, now: Time, train: &mut Train) -> bool {
        while let Some(index) = self.ready.pop_front() {
            let Some(connection) = self.connections.get_mut(index) else {
                continue;
            };
            connection.in_ready = false;
            if connection.is_asleep() {
                connection.wake(now, &self.shared);
            }
            let mut cx = Context {
                now,
                shared: &mut self.shared,
                qps: &mut self.qps,
            };
            if connection.poll_data(&mut cx, train) {
                self.after(now, index);
                return true;
            }
            // It stays out of the queue until something happens to it.
            connection.in_ready = true;
            let is_known = self.held_back.last() == Some(&index);
            if self.shared.blocked != LocalSet::NONE && !is_known {
                self.held_back.push(index);
            }
            self.after(now, index);
            if let Some(connection) = self.connections.get_mut(index) {
                connection.in_ready = false;
            }
        }
        false
    }

    /// The next thing that the host must know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// The next record of the event log; `None` when there is none, or the log is off.
    pub fn poll_log(&mut self, now: Time) -> Option<Record> {
        self.shared.log.poll(now, &self.shared.counters)
    }

    /// When to call [`Self::handle_timeout`] at the latest; `None` when nothing can become due by itself.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        let connections = &mut self.connections;
        let touched = self
            .touched
            .iter()
            .filter_map(|index| connections.get_mut(*index)?.deadline());
        touched
            .chain(self.timers.next())
            .chain(self.told.due)
            .chain(self.shared.probe_turns.next())
            .min()
    }

    /// Keeps an event log from now on, of up to `capacity` records between two drains.
    pub fn enable_log(&mut self, capacity: usize) {
        self.shared.log.enable(capacity, &self.shared.counters);
    }

    // ---- Queries ----

    /// Connections that there are, whatever their state.
    #[must_use]
    pub fn connection_count(&self) -> u32 {
        self.shared.connections
    }

    /// Connections, of 64 at most, on which something came within the last millisecond or two.
    pub fn crowd(&mut self, now: Time) -> u32 {
        self.crowd.count(now)
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Anything unfinished at all: work requests, unacknowledged packets, set-up.
    ///
    /// Asked often: connections and streams that turn out to be idle are not looked at again until something happens to
    /// them.
    pub fn outstanding(&mut self) -> bool {
        if !self.outbox.is_empty() {
            return true;
        }
        while let Some(index) = self.busy.last().copied() {
            if let Some(connection) = self.connections.get_mut(index) {
                if connection.is_busy(&mut self.qps) {
                    return true;
                }
                connection.in_busy = false;
            }
            self.busy.pop();
        }
        false
    }

    /// The connections, for statistics.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionInfo> + '_ {
        self.connections
            .iter()
            .map(|connection| connection.info(&self.shared))
    }

    /// Up to `count` connections from place `from` on (0 is the first), and the place to go on from; `None` when that was
    /// all. For who must not hold the endpoint for as long as thousands of connections take: what opens and closes between
    /// two calls is told or not, but nothing is told twice.
    pub fn some_connections(
        &self,
        from: usize,
        count: usize,
    ) -> (Vec<ConnectionInfo>, Option<usize>) {
        let mut found = self.connections.iter_from(from);
        let some: Vec<(usize, &Connection)> = found.by_ref().take(count.max(1)).collect();
        let next = found.next().map(|(at, _)| at);
        let info = |(_, connection): (usize, &Connection)| connection.info(&self.shared);
        (some.into_iter().map(info).collect(), next)
    }

    /// The rates that all connections are held to as senders, in bytes of payload per second.
    pub fn allowed_bytes_per_s(&self) -> impl Iterator<Item = u64> + '_ {
        self.connections.iter().map(Connection::allowed_bytes_per_s)
    }

    /// The grants of all connections: cheaper than everything that there is to know of them.
    pub fn grants(&self) -> impl Iterator<Item = GrantsInfo> + '_ {
        self.connections.iter().map(Connection::grants_info)
    }

    /// The state of the endpoint as a whole, for statistics.
    pub fn info(&self) -> EndpointInfo {
        EndpointInfo {
            counters: self.shared.counters,
            ended: self.shared.ended,
            queue_pairs: self.qps.len() as u32,
            connections: self.connections.len() as u32,
            active_senders: self.shared.fair_share.active(),
            drain_bytes_per_s: self.shared.drain.bytes_per_s(),
            promised_bytes_per_s: self.shared.fair_share.promised(),
            held_bytes: u64::from(self.shared.hold.held_bytes()),
            held_most_bytes: u64::from(self.shared.hold.most_bytes()),
            hold_limit_bytes: u64::from(self.shared.hold.limit_bytes()),
        }
    }

    /// What it was configured with.
    pub fn config(&self) -> &EndpointConfig {
        &self.shared.config
    }

    // ---- Connections ----

    /// Lets `work` act on a connection, and then puts the connection wherever it belongs.
    fn on_connection<T>(
        &mut self,
        now: Time,
        index: ConnectionIndex,
        work: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let connection = self.connections.get_mut(index)?;
        if connection.is_asleep() {
            connection.wake(now, &self.shared);
        }
        let mut cx = Context {
            now,
            shared: &mut self.shared,
            qps: &mut self.qps,
        };
        let result = work(connection, &mut cx);
        self.after(now, index);
        Some(result)
    }

    /// Something was done to a connection: queues it for what it wants now.
    fn after(&mut self, now: Time, index: ConnectionIndex) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        if connection.is_dead() {
            self.bury(now, index, Ending::Closed);
            return;
        }
        if !connection.in_urgent && connection.wants_urgent() {
            connection.in_urgent = true;
            self.urgent.push_back(index);
        }
        if !connection.in_ready && connection.wants_data() {
            connection.in_ready = true;
            self.ready.push_back(index);
        }
        if !connection.in_touched {
            connection.in_touched = true;
            self.touched.push(index);
        }
        if !connection.in_busy {
            connection.in_busy = true;
            self.busy.push(index);
        }
    }

    fn arm_touched(&mut self) {
        while let Some(index) = self.touched.pop() {
            let Some(connection) = self.connections.get_mut(index) else {
                continue;
            };
            connection.in_touched = false;
            if let Some(deadline) = connection.deadline() {
                self.timers.arm(index, deadline);
            }
        }
    }

    /// A connection is over: its streams lose their peer, or start over if they never had one.
    fn bury(&mut self, now: Time, index: ConnectionIndex, why: Ending) {
        for id in self.remove_connection(now, index, why) {
            self.attach(now, id);
        }
    }

    /// Removes a connection; returns the queue pairs that never had a peer.
    fn remove_connection(&mut self, now: Time, index: ConnectionIndex, why: Ending) -> Vec<QpId> {
        let Some(mut connection) = self.connections.remove(index) else {
            return Vec::new();
        };
        self.shared.connections = self.connections.len() as u32;
        self.shared.fair_share.note_connections();
        self.timers.disarm(index);
        // The next connection at this place enters by itself.
        self.busy.retain(|busy| *busy != index);
        connection.wake(now, &self.shared);
        connection.end_activity(&mut self.shared);
        connection.end_counters(&mut self.shared);
        let streams = connection.stream_count();
        connection.log(
            now,
            &mut self.shared,
            What::ConnectionEnded { why, streams },
        );
        let mut cx = Context {
            now,
            shared: &mut self.shared,
            qps: &mut self.qps,
        };
        connection.kill(&mut cx)
    }

    /// Gives the life of `id` its connection, a new one if there is none.
    fn attach(&mut self, now: Time, id: QpId) {
        let Some(key) = self
            .qps
            .life_mut(id)
            .map(|life| life.key)
            .filter(|_| !self.closed)
        else {
            return;
        };
        let mut found = self.connections.find_key(&key);
        if let Some(index) = found
            && self
                .connections
                .get(index)
                .is_some_and(|connection| !connection.is_usable())
        {
            self.bury(now, index, Ending::Closed);
            found = self.connections.find_key(&key);
        }
        let index = match found {
            Some(index) => index,
            None => {
                // The routes were checked when the queue pair was connected.
                let Ok(routes) = Connection::routes_for(&self.shared.config, &key) else {
                    return;
                };
                let my_id = self.fresh_id();
                let shared = &mut self.shared;
                shared.connections = self.connections.len() as u32 + 1;
                shared.fair_share.note_connections();
                self.connections.insert(|index| {
                    Box::new(Connection::new(index, key, my_id, routes, now, shared))
                })
            }
        };
        self.on_connection(now, index, |connection, cx| connection.attach(cx, id));
    }

    /// An id that no connection has.
    fn fresh_id(&mut self) -> ConnectionId {
        loop {
            let id = random_id(&mut self.shared.rng);
            if self.connections.find_id(id).is_none() {
                return id;
            }
        }
    }

    /// The stream of a queue pair may have something to send.
    fn wake_stream(&mut self, now: Time, id: QpId) {
        let index = self.qps.life_mut(id).and_then(|life| life.connection);
        if let Some(index) = index {
            self.on_connection(now, index, |connection, cx| {
                connection.make_ready(cx.qps, id)
            });
        }
    }

    /// Queues a packet that belongs to no connection.
    fn push_stray(&mut self, route: Route, packet: &[u8]) {
        if self.outbox.len() < OUTBOX_MAX {
            self.outbox.push_back((route, SmallVec::from_slice(packet)));
        }
    }
}
