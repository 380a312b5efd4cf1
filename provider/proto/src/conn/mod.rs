//! A connection: the only place that knows paths *and* streams.
//!
//! `endpoint.rs` finds the connection of a packet or a queue pair and calls it; what is to be done afterwards shows in
//! `wants_urgent`, `wants_data` and `deadline`. Files by role: `rx` reads
//! DATA, `ack` writes and reads acknowledgements, `schedule` decides what leaves next and on which path, `tx` builds the
//! packets, `timer` says when something is due and does it, `hello` opens and ends connections, `life` opens and ends
//! streams, `pmtu` and `narrow` follow what sizes pass, `route` draws routes, `planes` follows planes that come and go, `sleep` lets go of
//! what an idle connection does not need. State for sending and for receiving shares no keys: a connection to oneself has
//! both in one object (WIRE 3.6).

mod ack;
mod choose;
mod ended;
mod hello;
mod info;
mod lanes;
mod life;
mod narrow;
mod planes;
mod pmtu;
mod probe;
mod reroll;
mod route;
mod rx;
mod schedule;
mod sleep;
mod spread;
mod streams;
mod timer;
mod turns;
mod tx;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::Rng;
use rand::rngs::SmallRng;

use crate::cc::{ConnectionWindow, Drain, FairShare, Inbound};
use crate::conn::ack::AckState;
use crate::conn::ended::EndedLives;
use crate::conn::narrow::Narrow;
use crate::conn::pmtu::Sizes;
use crate::conn::probe::Suspicion;
use crate::conn::reroll::Reroll;
use crate::conn::route::Routes;
use crate::conn::schedule::TxPath;
use crate::conn::sleep::Parked;
use crate::conn::spread::Spread;
use crate::conn::streams::{List, Streams};
pub(crate) use crate::conn::turns::ProbeTurns;
use crate::endpoint::ConnectError;
use crate::endpoint::qp::{QpTable, Retry};
use crate::endpoint::table::{ConnectionIndex, Key};
use crate::event::Event;
use crate::path::{Constants, PathRx};
use crate::stream::{HoldBudget, SegmentRef};
use crate::telemetry::log::{Log, Subject, What};
use crate::telemetry::{Counters, EndedCounters, ReceivingCounters};
use crate::types::{EndpointConfig, LocalIndex, LocalSet, QpId, Route, Time};
use crate::wire::{CloseReason, ConnectionId, DATA_HEADER_BYTES, Incarnation, Shut, ShutReason};

pub(crate) use hello::HelloVerdict;
pub(crate) use life::{fail_if_gone, fail_life};
#[cfg(test)]
pub(crate) use sleep::ASLEEP_AFTER_NS;
pub(crate) use streams::Places;

/// Path ids that we accept of a peer; it bounds what a peer can make us allocate.
pub(crate) const RX_PATHS_MAX: usize = 64;

/// Most paths of a connection: as many bits as a set of paths has.
pub(crate) const TX_PATHS_MAX: usize = 64;

/// A connection outlives its last queue pair by this (WIRE 3.20).
pub(crate) const LINGER_NS: u64 = 1_000_000_000;

/// The peer's, before its first HELLO.
pub(crate) const UNKNOWN_INCARNATION: Incarnation = Incarnation(0);

/// Items that may wait in the outbox besides the OPENs and SHUTs of our own queue pairs; answers beyond are left out,
/// because their questions are repeated.
const OUTBOX_ANSWERS_MAX: usize = 256;

/// What all connections of an endpoint share.
pub(crate) struct Shared {
    pub config: EndpointConfig,
    /// Own addresses that packets can leave from.
    pub usable: LocalSet,
    /// Those whose interface has no room at the moment.
    pub blocked: LocalSet,
    pub constants: Constants,
    pub counters: Counters,
    /// Of paths that are gone with their connections.
    pub ended: EndedCounters,
    pub events: VecDeque<Event>,
    pub log: Log,
    pub hold: HoldBudget,
    pub probe_turns: ProbeTurns,
    pub fair_share: FairShare,
    pub drain: Drain,
    pub rng: SmallRng,
    pub incarnation: Incarnation,
    /// Connections that there are, those that are being opened included: they will all send at once, as likely as not.
    pub connections: u32,
    /// Reused by acknowledgements.
    pub acked: Vec<SegmentRef>,
    /// Reused by everything that is built before it is pushed into a train; see [`space`].
    pub packet: Vec<u8>,
}

/// What a connection works on besides itself.
pub(crate) struct Context<'a> {
    pub now: Time,
    pub shared: &'a mut Shared,
    pub qps: &'a mut QpTable,
}

/// Set-up and end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The peer has not shown that it knows our id.
    Opening,
    /// Both ends know each other.
    Open,
    /// Nothing more is sent but CLOSE; it is removed at the time given.
    Closing(Time),
    /// To be removed.
    Dead,
}

/// What the peer told in its HELLO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Id that it wants in our packets; unknown before its first HELLO.
    pub id: ConnectionId,
    pub incarnation: Incarnation,
    pub message_span: u32,
    pub packet_span: u32,
}

/// Another incarnation of the peer that has not yet echoed the fresh id that it was given (WIRE 3.5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub fresh_id: ConnectionId,
    pub peer_id: ConnectionId,
    pub incarnation: Incarnation,
    /// A HELLO to it is due.
    pub answer_due: bool,
}

/// Something to tell in a CONTROL packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    Open(QpId),
    Shut(Shut),
    ShutAnswer(Shut),
    /// A life went to the error state: becomes a SHUT.
    End(QpId, ShutReason),
    Close(CloseReason, Route),
}

/// What the receiver knows of a path of the peer.
pub(crate) struct RxPath {
    pub rx: PathRx,
    /// Where its last packet came to and from: the plane for acknowledgements.
    pub local: LocalIndex,
    pub from: Option<std::net::IpAddr>,
    /// What it counted since the connection began; nothing decides by it.
    pub counters: ReceivingCounters,
}

/// A connection; see the file's head.
pub(crate) struct Connection {
    index: ConnectionIndex,
    key: Key,
    my_id: ConnectionId,
    state: State,
    began_at: Time,
    peer: Peer,
    /// The id of the peer's latest HELLO, and whether those before it had another one.
    learnt_id: ConnectionId,
    several_ids: bool,
    candidate: Option<Candidate>,
    routes: Routes,
    /// Payload bytes of a full packet: what both ends and the route carry.
    payload_bytes: u16,
    sizes: Sizes,
    /// Even the smallest full packets do not pass.
    narrow: Option<Narrow>,

    // Set-up and end.
    hello_due: bool,
    /// Of HELLO; of CLOSE at the end.
    hello_retry: Retry,
    close_reason: CloseReason,
    /// When the last HELLO left.
    hello_sent_at: Option<Time>,
    /// When the peer was last asked whether it still knows the connection.
    asked_at: Option<Time>,
    /// Counts CONTROL packets, so that each takes another route.
    control_turn: usize,
    outbox: VecDeque<Item>,
    /// Queue pairs whose life uses the connection.
    streams: Streams,
    ended: EndedLives,
    /// When OPENs, SHUTs have to be looked at.
    opens_at: Option<Time>,
    shuts_at: Option<Time>,
    linger_at: Option<Time>,

    // Sending.
    paths: Vec<TxPath>,
    /// In their place while it sleeps.
    parked: Option<Parked>,
    /// When to look whether it may sleep.
    sleep_at: Option<Time>,
    /// Sets of paths, a bit each: with lost packets, with bare packets to send.
    lost_paths: u64,
    bare_paths: u64,
    /// Used since their last marker.
    unmarked_paths: u64,
    /// At least those that have something outstanding: something was done to them since nothing was.
    used_paths: u64,
    /// With a deadline that may have changed since it was last looked up.
    dirty_paths: u64,
    /// Deadline of each path as it was then, and the earliest of them.
    path_deadlines: Vec<Option<Time>>,
    first_path_deadline: Option<Time>,
    /// Streams that may have segments to send, in turns.
    ready: VecDeque<QpId>,
    window: ConnectionWindow,
    /// Path of the last train if that was a short one, and packets that may follow on it.
    short_trains: Option<(usize, u32)>,
    /// Path of the last train: of equally good ones the next has its turn.
    path_turn: usize,
    /// Something was lost a moment ago: until then tails get markers of their own (WIRE 4.11).
    lossy_until: Option<Time>,
    /// The latest transmission that was answered, by when it left.
    answered_sent_at: Time,
    /// The latest round trip of all paths.
    latest_rtt_ns: u64,
    /// The first of the paths that ask while none is answered.
    first_asking: Option<usize>,
    asking_paths: u64,
    /// Paths that leave it to those.
    excused_paths: u64,
    /// Paths that wait for a turn to probe, and that have one.
    turns_awaited: u64,
    turns_given: u64,
    suspicion: Option<Box<Suspicion>>,
    /// When a path's window of less than one packet, or the grant, lets the next train out, if that is what new data waits
    /// for.
    window_opens_at: Option<Time>,
    /// Path that asks when an answer does not come although all packets are acknowledged.
    waiting_path: Option<usize>,
    /// When that path was last found to have nobody to ask for.
    looked_at: Time,
    /// Stream that is asked for next.
    ask_turn: usize,
    /// When a plane without a working path is tried again.
    plane_check_at: Option<Time>,
    /// As soon as there is something to send again.
    plane_check_owed: bool,
    reroll: Option<Reroll>,
    spread: Spread,
    /// When something of the peer came last.
    last_heard: Time,
    /// When its timers were last served.
    driven_at: Time,
    /// Not later than the first silence that is too long.
    silence_at: Option<Time>,
    /// Ends of RNR waits, the first one on top.
    rnr_waits: BinaryHeap<Reverse<(Time, QpId)>>,

    // Receiving.
    rx_paths: Vec<RxPath>,
    ack: AckState,
    /// The peer as a sender.
    inbound: Inbound,
    /// When it last wrote to a strict region.
    strict_at: Option<Time>,

    // Places in the endpoint's queues.
    pub(crate) in_urgent: bool,
    pub(crate) in_ready: bool,
    pub(crate) in_batch: bool,
    pub(crate) in_touched: bool,
    pub(crate) in_busy: bool,
}

/// The first `bytes` of a buffer that is used again and again: it only grows, because bytes that are written anyway need no
/// zeros first.
fn space(buffer: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    &mut buffer[..bytes]
}

/// A random id that is not 0.
pub(crate) fn random_id(rng: &mut SmallRng) -> ConnectionId {
    ConnectionId(rng.random_range(1..=u32::MAX))
}

impl Connection {
    /// A connection that has to be opened.
    pub(crate) fn new(
        index: ConnectionIndex,
        key: Key,
        my_id: ConnectionId,
        routes: Routes,
        now: Time,
        shared: &mut Shared,
    ) -> Self {
        let peer = Peer {
            id: ConnectionId::UNKNOWN,
            incarnation: UNKNOWN_INCARNATION,
            message_span: 0,
            packet_span: 0,
        };
        let mut connection = Self {
            index,
            key,
            my_id,
            state: State::Opening,
            began_at: now,
            peer,
            learnt_id: ConnectionId::UNKNOWN,
            several_ids: false,
            candidate: None,
            routes,
            payload_bytes: shared.config.payload_bytes,
            sizes: Sizes::new(shared.config.payload_bytes),
            narrow: None,
            hello_due: true,
            hello_retry: Retry::new(now),
            close_reason: CloseReason::Idle,
            hello_sent_at: None,
            asked_at: None,
            control_turn: 0,
            outbox: VecDeque::new(),
            streams: Streams::default(),
            ended: EndedLives::default(),
            opens_at: None,
            shuts_at: None,
            // Until a queue pair uses it.
            linger_at: Some(now + LINGER_NS),
            paths: Vec::new(),
            parked: None,
            sleep_at: Some(sleep::look_at(now)),
            lost_paths: 0,
            bare_paths: 0,
            unmarked_paths: 0,
            used_paths: 0,
            dirty_paths: 0,
            path_deadlines: Vec::new(),
            first_path_deadline: None,
            ready: VecDeque::new(),
            window: ConnectionWindow::new(
                shared.config.driving,
                shared.config.payload_bytes,
                shared.config.train_bytes.min(
                    u32::from(shared.config.train_segments)
                        * u32::from(shared.config.payload_bytes),
                ),
                now,
            ),
            lossy_until: None,
            answered_sent_at: Time::ZERO,
            latest_rtt_ns: 0,
            first_asking: None,
            asking_paths: 0,
            excused_paths: 0,
            turns_awaited: 0,
            turns_given: 0,
            short_trains: None,
            path_turn: 0,
            suspicion: None,
            window_opens_at: None,
            waiting_path: None,
            looked_at: now,
            ask_turn: 0,
            plane_check_at: None,
            plane_check_owed: false,
            spread: Spread::default(),
            reroll: Reroll::new(shared.config.reroll_ns, &mut shared.rng),
            last_heard: now,
            driven_at: now,
            silence_at: None,
            rnr_waits: BinaryHeap::new(),
            rx_paths: Vec::new(),
            ack: AckState::default(),
            inbound: Inbound::new(),
            strict_at: None,
            in_urgent: false,
            in_ready: false,
            in_batch: false,
            in_touched: false,
            in_busy: false,
        };
        connection.make_paths(now, shared, usize::from(shared.config.paths));
        let what = What::ConnectionBegun {
            source: key.source,
            destination: key.dest,
            peer: connection.routes.first().destination,
        };
        connection.log(now, shared, what);
        connection
    }

    /// Takes down what happened to the connection.
    pub(crate) fn log(&self, now: Time, shared: &mut Shared, what: What) {
        let subject = Subject {
            connection: Some(self.my_id),
            ..Subject::default()
        };
        shared.log.push(now, subject, what);
    }

    /// Takes down what happened to path `at`.
    pub(super) fn log_path(&self, cx: &mut Context<'_>, at: usize, what: What) {
        let subject = Subject {
            connection: Some(self.my_id),
            path: Some(self.paths[at].tx.id()),
            qpn: None,
        };
        cx.shared.log.push(cx.now, subject, what);
    }

    /// Takes down what happened to the stream of `id`.
    pub(super) fn log_stream(&self, cx: &mut Context<'_>, id: QpId, what: What) {
        if !cx.shared.log.is_on() {
            return;
        }
        let subject = Subject {
            connection: Some(self.my_id),
            path: None,
            qpn: cx.qps.get(id).map(|qp| qp.qpn),
        };
        cx.shared.log.push(cx.now, subject, what);
    }

    /// Routes for `key`, or why there are none.
    pub(crate) fn routes_for(config: &EndpointConfig, key: &Key) -> Result<Routes, ConnectError> {
        Routes::new(config, key)
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    pub(crate) fn my_id(&self) -> ConnectionId {
        self.my_id
    }

    /// The id that it sends with.
    pub(crate) fn peer_id(&self) -> ConnectionId {
        self.peer.id
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// New queue pairs may use it.
    pub(crate) fn is_usable(&self) -> bool {
        matches!(self.state, State::Opening | State::Open)
    }

    /// Where an answer that does not wait goes: the endpoint port, on the plane of what it answers if there is one.
    pub(crate) fn answer_route(&self, local: LocalIndex) -> Route {
        let lanes = self.routes.lanes();
        let lane = lanes
            .iter()
            .find(|lane| lane.local == local)
            .unwrap_or(&lanes[0]);
        self.routes.over(lane, self.control_turn)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    pub(crate) fn is_peer(&self, ip: std::net::IpAddr) -> bool {
        self.routes.is_peer(ip.to_canonical())
    }

    /// UDP payload bytes of the largest packet that may be sent.
    fn packet_bytes(&self) -> usize {
        usize::from(self.payload_bytes) + DATA_HEADER_BYTES
    }

    /// UDP payload bytes of the largest ACK or CONTROL packet (WIRE 4.28).
    fn small_packet_bytes(&self) -> usize {
        self.packet_bytes().min(pmtu::UNSUSPECTED_PACKET_BYTES)
    }

    /// Something to send that comes before new data.
    pub(crate) fn wants_urgent(&self) -> bool {
        self.has_control()
            || self.ack.due > 0
            || (self.is_open()
                && ((self.lost_paths | self.bare_paths) != 0
                    || self.suspicion_wants_probe()
                    || self.sizes.wants_packet()))
    }

    /// Streams may have something to send.
    pub(crate) fn wants_data(&self) -> bool {
        self.is_open() && !self.ready.is_empty()
    }

    /// Packets of ours are not acknowledged.
    fn has_outstanding(&mut self) -> bool {
        while self.used_paths != 0 {
            let at = self.used_paths.trailing_zeros() as usize;
            if !self.paths[at].tx.is_idle() {
                return true;
            }
            self.used_paths &= self.used_paths - 1;
        }
        false
    }

    /// Anything unfinished.
    pub(crate) fn is_busy(&mut self, qps: &mut QpTable) -> bool {
        self.wants_urgent()
            || matches!(self.state, State::Closing(_))
            || !self.streams.is_empty(List::Opening)
            || self.has_outstanding()
            || self.ended.is_any_unanswered()
            || self.streams.leave_idle(qps)
    }
}
