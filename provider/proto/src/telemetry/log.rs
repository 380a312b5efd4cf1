//! The event log of an endpoint: what happened to connections, paths and streams, as values. Off unless somebody asked
//! ([`crate::endpoint::Endpoint::enable_log`]); then a ring of records that the host drains
//! ([`crate::endpoint::Endpoint::poll_log`]). Only what is rare is logged, never a packet: drops are told as sums. Each kind of
//! record names its fields once, and both forms, text (`name key=value …`) and JSON, follow from that.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use smallvec::{SmallVec, smallvec};

use crate::event::QpFailure;
use crate::telemetry::Counters;
use crate::telemetry::json::Json;
use crate::types::{Route, Status, Time};
use crate::wire::{
    CloseReason, ConnectionId, Gid, Incarnation, Msn, NakCode, PathId, Qpn, ShutReason,
};

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Nobody uses it any more, or this process exits.
    Closed,
    /// The peer said so.
    ClosedByPeer,
    /// The peer does not know it (any more).
    Reset,
    /// The peer's kernel says that nobody is there.
    Unreachable,
    /// The peer has started anew.
    PeerRestarted,
}

impl Ending {
    const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ClosedByPeer => "closed_by_peer",
            Self::Reset => "reset",
            Self::Unreachable => "unreachable",
            Self::PeerRestarted => "peer_restarted",
        }
    }
}

/// Why a path took another route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveCause {
    /// Two probes stayed unanswered.
    Silence,
    /// It had copied another path's route, and takes a port of its own.
    OwnPort,
    /// A plane that no working path is on is tried.
    PlaneTried,
    /// Its plane went down at this host, was switched off, or swallows what carries data.
    PlaneClosed,
    /// Its packets fared much worse than those of most other paths of the plane.
    WorseThanOthers,
    /// For no reason: a diagnostic (`METAROCE_REROLL_US`).
    Reroll,
}

impl MoveCause {
    const fn name(self) -> &'static str {
        match self {
            Self::Silence => "silence",
            Self::OwnPort => "own_port",
            Self::PlaneTried => "plane_tried",
            Self::PlaneClosed => "plane_closed",
            Self::WorseThanOthers => "worse_than_others",
            Self::Reroll => "reroll",
        }
    }
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum What {
    /// A connection is to be opened.
    ConnectionBegun {
        /// Our address.
        source: Gid,
        /// The peer's address.
        destination: Gid,
        /// Where the peer receives.
        peer: SocketAddr,
    },
    /// Both ends know each other.
    ConnectionOpened {
        /// The id that we send with.
        peer_id: ConnectionId,
        /// Payload of a full packet.
        payload_bytes: u16,
        /// Paths.
        paths: u32,
    },
    /// It tells the peer that it ends.
    ConnectionClosing {
        /// Why.
        reason: CloseReason,
    },
    /// It is gone.
    ConnectionEnded {
        /// Why.
        why: Ending,
        /// Queue pairs that used it.
        streams: u32,
    },
    /// The peer of the connection has started anew.
    PeerRestarted {
        /// Its new incarnation.
        incarnation: Incarnation,
    },
    /// Smaller packets from now on.
    PayloadShrunk {
        /// Payload of a full packet.
        payload_bytes: u16,
    },
    /// Larger packets from now on: some were proved to pass.
    PayloadGrown {
        /// Payload of a full packet.
        payload_bytes: u16,
    },
    /// A path took another route.
    PathMoved {
        /// Why.
        why: MoveCause,
        /// The old one.
        from: Route,
        /// The new one.
        to: Route,
        /// Its epoch.
        epoch: u8,
    },
    /// A path sends nothing new until a probe is answered.
    PathRests,
    /// A path that rested works again.
    PathReturns,
    /// Another probe is due while earlier ones are not answered.
    ProbeUnanswered {
        /// How many.
        unanswered: u32,
    },
    /// The retransmission timeout of a path is over.
    Timeout {
        /// Packets outstanding.
        outstanding_packets: u32,
    },
    /// A path's window was cut.
    WindowCut {
        /// Packets before.
        from_packets: f64,
        /// Packets now.
        to_packets: f64,
        /// Packets that the peer received with a mark since its last acknowledgement.
        marked: u16,
        /// Packets found lost.
        lost: u32,
    },
    /// The life of a stream wants its peer.
    StreamOpening {
        /// The peer's queue pair.
        peer_qpn: Qpn,
    },
    /// DATA may flow.
    StreamOpened,
    /// The peer's life ended.
    StreamPeerGone,
    /// The queue pair went to the error state by itself.
    StreamFailed {
        /// What the oldest request completes with.
        status: Status,
        /// The asynchronous event.
        failure: QpFailure,
    },
    /// The program ended the life.
    StreamEnded {
        /// How.
        reason: ShutReason,
    },
    /// A message of ours was refused.
    RefusedByPeer {
        /// Which.
        msn: Msn,
        /// Why.
        code: NakCode,
    },
    /// A message of the peer was refused here and will come again.
    RefusedHere {
        /// Which.
        msn: Msn,
        /// Why.
        code: NakCode,
    },
    /// Packets were dropped since the last such record.
    Dropped {
        /// Name of the counter that says why.
        reason: &'static str,
        /// How many.
        packets: u64,
    },
    /// Nobody drained the log in time: the oldest records are gone.
    RecordsLost {
        /// How many.
        records: u64,
    },
}

/// A value of a record.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Field {
    Number(u64),
    Fraction(f64),
    Word(&'static str),
    Id(u32),
    Gid(Gid),
    Address(SocketAddr),
    Route(Route),
    Close(CloseReason),
    Shut(ShutReason),
}

type Fields = SmallVec<[(&'static str, Field); 8]>;

impl What {
    /// Its name in text and JSON.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ConnectionBegun { .. } => "connection_begun",
            Self::ConnectionOpened { .. } => "connection_opened",
            Self::ConnectionClosing { .. } => "connection_closing",
            Self::ConnectionEnded { .. } => "connection_ended",
            Self::PeerRestarted { .. } => "peer_restarted",
            Self::PayloadShrunk { .. } => "payload_shrunk",
            Self::PayloadGrown { .. } => "payload_grown",
            Self::PathMoved { .. } => "path_moved",
            Self::PathRests => "path_rests",
            Self::PathReturns => "path_returns",
            Self::ProbeUnanswered { .. } => "probe_unanswered",
            Self::Timeout { .. } => "timeout",
            Self::WindowCut { .. } => "window_cut",
            Self::StreamOpening { .. } => "stream_opening",
            Self::StreamOpened => "stream_opened",
            Self::StreamPeerGone => "stream_peer_gone",
            Self::StreamFailed { .. } => "stream_failed",
            Self::StreamEnded { .. } => "stream_ended",
            Self::RefusedByPeer { .. } => "refused_by_peer",
            Self::RefusedHere { .. } => "refused_here",
            Self::Dropped { .. } => "dropped",
            Self::RecordsLost { .. } => "records_lost",
        }
    }

    fn fields(&self) -> Fields {
        let number = |value: u32| Field::Number(u64::from(value));
        match *self {
            Self::ConnectionBegun {
                source,
                destination,
                peer,
            } => smallvec![
                ("source", Field::Gid(source)),
                ("destination", Field::Gid(destination)),
                ("peer", Field::Address(peer)),
            ],
            Self::ConnectionOpened {
                peer_id,
                payload_bytes,
                paths,
            } => smallvec![
                ("peer_id", Field::Id(peer_id.0)),
                ("payload_bytes", number(u32::from(payload_bytes))),
                ("paths", number(paths)),
            ],
            Self::ConnectionClosing { reason } => smallvec![("reason", Field::Close(reason))],
            Self::ConnectionEnded { why, streams } => {
                smallvec![
                    ("why", Field::Word(why.name())),
                    ("streams", number(streams))
                ]
            }
            Self::PeerRestarted { incarnation } => {
                smallvec![("incarnation", Field::Number(incarnation.0))]
            }
            Self::PayloadShrunk { payload_bytes } | Self::PayloadGrown { payload_bytes } => {
                smallvec![("payload_bytes", number(u32::from(payload_bytes)))]
            }
            Self::PathMoved {
                why,
                from,
                to,
                epoch,
            } => smallvec![
                ("why", Field::Word(why.name())),
                ("from", Field::Route(from)),
                ("to", Field::Route(to)),
                ("epoch", number(u32::from(epoch))),
            ],
            Self::PathRests | Self::PathReturns | Self::StreamOpened | Self::StreamPeerGone => {
                Fields::new()
            }
            Self::ProbeUnanswered { unanswered } => smallvec![("unanswered", number(unanswered))],
            Self::Timeout {
                outstanding_packets,
            } => smallvec![("outstanding_packets", number(outstanding_packets))],
            Self::WindowCut {
                from_packets,
                to_packets,
                marked,
                lost,
            } => smallvec![
                ("from_packets", Field::Fraction(from_packets)),
                ("to_packets", Field::Fraction(to_packets)),
                ("marked", number(u32::from(marked))),
                ("lost", number(lost)),
            ],
            Self::StreamOpening { peer_qpn } => smallvec![("peer_qpn", number(peer_qpn.get()))],
            Self::StreamFailed { status, failure } => smallvec![
                ("status", Field::Word(status_name(status))),
                ("failure", Field::Word(failure_name(failure))),
            ],
            Self::StreamEnded { reason } => smallvec![("reason", Field::Shut(reason))],
            Self::RefusedByPeer { msn, code } | Self::RefusedHere { msn, code } => {
                smallvec![
                    ("msn", number(msn.0)),
                    ("code", Field::Word(code_name(code)))
                ]
            }
            Self::Dropped { reason, packets } => {
                smallvec![
                    ("reason", Field::Word(reason)),
                    ("packets", Field::Number(packets))
                ]
            }
            Self::RecordsLost { records } => smallvec![("records", Field::Number(records))],
        }
    }
}

const fn status_name(status: Status) -> &'static str {
    match status {
        Status::Success => "success",
        Status::LocalLength => "local_length",
        Status::LocalQpOperation => "local_qp_operation",
        Status::LocalProtection => "local_protection",
        Status::Flushed => "flushed",
        Status::BadResponse => "bad_response",
        Status::LocalAccess => "local_access",
        Status::RemoteInvalidRequest => "remote_invalid_request",
        Status::RemoteAccess => "remote_access",
        Status::RemoteOperation => "remote_operation",
        Status::RetryExceeded => "retry_exceeded",
        Status::RnrRetryExceeded => "rnr_retry_exceeded",
        Status::Fatal => "fatal",
        Status::General => "general",
    }
}

const fn failure_name(failure: QpFailure) -> &'static str {
    match failure {
        QpFailure::Fatal => "fatal",
        QpFailure::InvalidRequest => "invalid_request",
        QpFailure::AccessViolation => "access_violation",
    }
}

const fn code_name(code: NakCode) -> &'static str {
    match code {
        NakCode::None => "none",
        NakCode::Rnr => "rnr",
        NakCode::RemoteAccess => "remote_access",
        NakCode::InvalidRequest => "invalid_request",
        NakCode::RemoteOperational => "remote_operational",
        NakCode::Length => "length",
        NakCode::Hold => "hold",
    }
}

/// What a record is about; all parts may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Subject {
    /// A connection, by the id that its peer sends with.
    pub connection: Option<ConnectionId>,
    /// A path of it.
    pub path: Option<PathId>,
    /// A queue pair.
    pub qpn: Option<Qpn>,
}

/// One line of the log.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Record {
    /// When.
    pub at: Time,
    /// About what.
    pub subject: Subject,
    /// What happened.
    pub what: What,
}

/// Says what a route is in the words of the host, who knows port numbers.
pub type RouteName<'a> = &'a dyn Fn(&Route) -> String;

/// A route by its numbers, for hosts that know no better.
#[must_use]
pub fn route_by_number(route: &Route) -> String {
    format!("{}#{}>{}", route.local.0, route.source.0, route.destination)
}

impl Record {
    /// `name connection=… path=… qpn=… key=value …`, without the time.
    #[must_use]
    pub fn text(&self, route: RouteName<'_>) -> String {
        let mut text = self.what.name().to_owned();
        for (key, field) in self.all_fields() {
            text.push_str(&match field {
                Field::Number(value) => format!(" {key}={value}"),
                Field::Fraction(value) => format!(" {key}={value:.2}"),
                Field::Route(value) => format!(" {key}={}", route(&value)),
                other => format!(" {key}={}", other.word()),
            });
        }
        text
    }

    /// The same as members of an object, the name as `event`.
    pub fn write(&self, json: &mut Json<'_>, route: RouteName<'_>) {
        json.text("event", self.what.name());
        for (key, field) in self.all_fields() {
            match field {
                Field::Number(value) => json.number(key, value),
                Field::Fraction(value) => json.fraction(key, value),
                Field::Route(value) => json.text(key, route(&value)),
                other => json.text(key, other.word()),
            };
        }
    }

    fn all_fields(&self) -> impl Iterator<Item = (&'static str, Field)> {
        let subject = [
            self.subject
                .connection
                .map(|id| ("connection", Field::Id(id.0))),
            self.subject
                .path
                .map(|path| ("path", Field::Number(u64::from(path.0)))),
            self.subject
                .qpn
                .map(|qpn| ("qpn", Field::Number(u64::from(qpn.get())))),
        ];
        subject.into_iter().flatten().chain(self.what.fields())
    }
}

impl Field {
    fn word(self) -> String {
        match self {
            Self::Number(value) => value.to_string(),
            Self::Fraction(value) => value.to_string(),
            Self::Word(word) => word.to_owned(),
            Self::Id(id) => format!("{id:08x}"),
            Self::Gid(gid) => gid.to_string(),
            Self::Address(address) => address.to_string(),
            Self::Route(route) => route_by_number(&route),
            Self::Close(reason) => reason.to_string(),
            Self::Shut(reason) => reason.to_string(),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&route_by_number))
    }
}

/// The log of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// None while it is off.
    ring: Option<Ring>,
}

#[derive(Debug)]
struct Ring {
    records: VecDeque<Record>,
    capacity: usize,
    lost: u64,
    /// The counters as of the last drops that were told.
    told: Counters,
}

impl Log {
    /// Keeps up to `capacity` records from now on.
    pub(crate) fn enable(&mut self, capacity: usize, counters: &Counters) {
        let capacity = capacity.max(1);
        self.ring = Some(Ring {
            records: VecDeque::with_capacity(capacity),
            capacity,
            lost: 0,
            told: *counters,
        });
    }

    /// Whether anybody wants records: for callers that would have to find out what to write.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.ring.is_some()
    }

    /// Takes a record down. A branch, when it is off.
    #[inline]
    pub(crate) fn push(&mut self, at: Time, subject: Subject, what: What) {
        if let Some(ring) = &mut self.ring {
            ring.push(Record { at, subject, what });
        }
    }

    /// The next record; drops since the last time come last.
    pub(crate) fn poll(&mut self, now: Time, counters: &Counters) -> Option<Record> {
        let ring = self.ring.as_mut()?;
        let plain = |what| Record {
            at: now,
            subject: Subject::default(),
            what,
        };
        let records = std::mem::take(&mut ring.lost);
        if records > 0 {
            return Some(plain(What::RecordsLost { records }));
        }
        if let Some(record) = ring.records.pop_front() {
            return Some(record);
        }
        if ring.told == *counters {
            return None;
        }
        let dropped = counters
            .iter()
            .zip(ring.told.iter())
            .filter(|((name, now), (_, told))| {
                (name.starts_with("dropped_") || *name == "receive_overflows") && now > told
            });
        for ((reason, now), (_, told)) in dropped {
            let packets = now - told;
            ring.records
                .push_back(plain(What::Dropped { reason, packets }));
        }
        ring.told = *counters;
        ring.records.pop_front()
    }
}

impl Ring {
    fn push(&mut self, record: Record) {
        if self.records.len() >= self.capacity {
            self.records.pop_front();
            self.lost += 1;
        }
        self.records.push_back(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LocalIndex, SourceSlot};

    fn moved() -> Record {
        let route = |source: u8| Route {
            local: LocalIndex(0),
            source: SourceSlot(source),
            destination: "10.0.0.2:25000".parse().unwrap(),
        };
        Record {
            at: Time::from_ns(5),
            subject: Subject {
                connection: Some(ConnectionId(0xab)),
                path: Some(PathId(3)),
                qpn: None,
            },
            what: What::PathMoved {
                why: MoveCause::Silence,
                from: route(1),
                to: route(2),
                epoch: 9,
            },
        }
    }

    #[test]
    fn text_and_json_say_the_same() {
        assert_eq!(
            moved().to_string(),
            "path_moved connection=000000ab path=3 why=silence from=0#1>10.0.0.2:25000 to=0#2>10.0.0.2:25000 epoch=9"
        );
        let mut out = String::new();
        moved().write(&mut Json::object(&mut out), &|route| {
            format!("port {}", route.source.0)
        });
        assert_eq!(
            out,
            r#"{"event":"path_moved","connection":"000000ab","path":3,"why":"silence","from":"port 1","to":"port 2","epoch":9}"#
        );
    }

    #[test]
    fn a_log_that_is_off_keeps_nothing() {
        let mut log = Log::default();
        log.push(Time::ZERO, Subject::default(), What::PathRests);
        let counters = Counters {
            dropped_control: 1,
            ..Counters::default()
        };
        assert!(!log.is_on());
        assert_eq!(log.poll(Time::ZERO, &counters), None);
    }

    #[test]
    fn a_full_ring_says_how_much_is_lost_and_drops_come_as_sums() {
        let mut log = Log::default();
        let mut counters = Counters {
            dropped_control: 5,
            ..Counters::default()
        };
        log.enable(2, &counters);
        for unanswered in 1..=5 {
            log.push(
                Time::ZERO,
                Subject::default(),
                What::ProbeUnanswered { unanswered },
            );
        }
        counters.dropped_control = 12;
        counters.acks_sent = 3;
        let mut told = Vec::new();
        while let Some(record) = log.poll(Time::from_ns(7), &counters) {
            told.push(record.to_string());
        }
        assert_eq!(
            told,
            [
                "records_lost records=3",
                "probe_unanswered unanswered=4",
                "probe_unanswered unanswered=5",
                "dropped reason=dropped_control packets=7",
            ]
        );
        assert_eq!(log.poll(Time::from_ns(8), &counters), None);
    }
}
