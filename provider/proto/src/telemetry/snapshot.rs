//! Snapshots of an endpoint: plain values, taken by [`crate::endpoint::Endpoint::info`] and
//! [`crate::endpoint::Endpoint::some_connections`] when somebody asks, and by nobody else. The engine adds what only it
//! knows (port numbers, its own counters) and tells them to `metaroce stat`.

use std::net::{IpAddr, SocketAddr};

use crate::telemetry::{Counters, ReceivingCounters, SendingCounters};
use crate::types::{LocalIndex, Route, Time};
use crate::wire::{ConnectionId, Gid, PathId};

/// An endpoint as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndpointInfo {
    /// Since the start.
    pub counters: Counters,
    /// The part of them that paths counted which are gone.
    pub ended: EndedCounters,
    /// Queue pairs that exist.
    pub queue_pairs: u32,
    /// Connections that exist.
    pub connections: u32,
    /// Connections whose peer is sending now.
    pub active_senders: u32,
    /// What the host can take in, as far as it was measured.
    pub drain_bytes_per_s: Option<u64>,
    /// What of that is promised to its senders, all together.
    pub promised_bytes_per_s: u64,
    /// Bytes of packets that are held back for strict visibility.
    pub held_bytes: u64,
    /// The most that was held at a time since the start.
    pub held_most_bytes: u64,
    /// What may be held now.
    pub hold_limit_bytes: u64,
}

/// What the paths of connections counted that are over. With the counters of the paths that exist these are, name by
/// name, the endpoint's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedCounters {
    /// Connections that are over, whatever became of them.
    pub connections: u64,
    /// As senders.
    pub sending: SendingCounters,
    /// As receivers.
    pub receiving: ReceivingCounters,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// The peer has not answered yet.
    Opening,
    /// Both ends know each other.
    Open,
    /// It is about to end.
    Closing,
}

impl ConnectionState {
    /// In one word, for people and for JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Open => "open",
            Self::Closing => "closing",
        }
    }
}

/// A connection.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionInfo {
    /// The id that the peer sends with: names the connection as long as it lives.
    pub id: ConnectionId,
    /// The id that we send with; 0 as long as it is unknown.
    pub peer_id: ConnectionId,
    /// Our address.
    pub source_gid: Gid,
    /// The peer's address.
    pub dest_gid: Gid,
    /// Where the peer receives.
    pub peer: SocketAddr,
    /// How far it is.
    pub state: ConnectionState,
    /// The peer answered.
    pub open: bool,
    /// When it was made.
    pub began_at: Time,
    /// When something of the peer came last, or when it was made.
    pub last_heard_at: Time,
    /// Queue pairs that use it.
    pub streams: u32,
    /// Of these, those that wait for the peer's queue pair.
    pub streams_opening: u32,
    /// Payload of a full packet, on all of its paths: as much as the way carries, as far as it is known.
    pub payload_bytes: u16,
    /// What both ends take.
    pub most_payload_bytes: u16,
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u64,
    /// Bytes that may be in flight now.
    pub window_bytes: u64,
    /// The rate that the peer allows, bytes per second; `u64::MAX` where it does not limit.
    pub grant_bytes_per_s: u64,
    /// What its paths may travel on.
    pub lanes: Vec<LaneInfo>,
    /// Its paths, as a sender.
    pub paths: Vec<PathInfo>,
    /// The peer's paths.
    pub receiving_paths: Vec<ReceivingPathInfo>,
}

/// The grants of a connection, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantsInfo {
    /// The id that the peer sends with: that of its ACKs.
    pub id: ConnectionId,
    /// The id that we send with: that of our ACKs. 0 as long as it is unknown.
    pub peer_id: ConnectionId,
    /// The rate that the peer allows, bytes per second; `u64::MAX` where it does not limit.
    pub grant_bytes_per_s: u64,
    /// The peer is sending.
    pub peer_active: bool,
    /// It was measured to want no more than a part of what it gets (WIRE 8.17).
    pub peer_limited: bool,
    /// What of the drain is promised to it, in bytes per second: by the ACK that was made last. 0 as long as it was told
    /// nothing since it began to send.
    pub promised_bytes_per_s: u64,
}

/// A way between the two ends: a plane, with an address of each (WIRE 4.30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneInfo {
    /// The plane's number.
    pub plane: u8,
    /// Own address.
    pub local: LocalIndex,
    /// The peer's address and port.
    pub destination: SocketAddr,
    /// Both ends have a plane of this number.
    pub joined: bool,
    /// Packets can leave this host there, as far as it knows.
    pub up: bool,
    /// The program has not switched it off.
    pub enabled: bool,
    /// It is joined, or something was answered over it.
    pub proved: bool,
    /// Speed of the own link, 0 if not known.
    pub speed_mbps: u32,
    /// Speed of the peer's link, 0 if not known.
    pub peer_speed_mbps: u32,
    /// Paths on it …
    pub paths: u32,
    /// … and of them those that rest.
    pub resting_paths: u32,
    /// Payload sent on it, retransmissions not counted.
    pub data_bytes_sent: u64,
}

/// What a path is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Nothing outstanding.
    Idle,
    /// Packets are outstanding and answered in time.
    Busy,
    /// A probe is not answered yet.
    Probing,
    /// No new packets until a probe is answered.
    Resting,
}

impl PathState {
    /// In one word, for people and for JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Probing => "probing",
            Self::Resting => "resting",
        }
    }
}

/// One path of a connection, as a sender. Times are 0 before the first sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathInfo {
    /// Its number in the packets.
    pub id: PathId,
    /// What it is doing.
    pub state: PathState,
    /// What it travels on now.
    pub route: Route,
    /// Plane of the route.
    pub plane: u8,
    /// Epoch of the route: moves so far, modulo 256.
    pub epoch: u8,
    /// It rests: it did not answer its probes.
    pub resting: bool,
    /// It took over the route of another path.
    pub copied_route: bool,
    /// Probes unanswered since the route last worked.
    pub probes_unanswered: u32,
    /// Packets sent and not acknowledged, lost ones included.
    pub outstanding_packets: u32,
    /// Packets sent and neither acknowledged nor lost.
    pub in_flight_packets: u32,
    /// Their bytes.
    pub in_flight_bytes: u64,
    /// Packets that its window allows; may be less than one.
    pub window_packets: f64,
    /// The window still doubles every round trip.
    pub slow_start: bool,
    /// Marked fraction of its packets, averaged over round trips; 1 before the first mark.
    pub marked_fraction: f64,
    /// Smoothed round-trip time.
    pub srtt_ns: u64,
    /// Least round-trip time on this route.
    pub min_rtt_ns: u64,
    /// Mean deviation of the round-trip time.
    pub rtt_variation_ns: u64,
    /// How long the peer usually waits before it acknowledges.
    pub ack_delay_ns: u64,
    /// How long packets that overtook each other are waited for.
    pub reorder_tolerance_ns: u64,
    /// What it counted.
    pub counters: SendingCounters,
}

/// One path of the peer, as a receiver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivingPathInfo {
    /// Its number in the packets.
    pub id: PathId,
    /// Our address that its last packet came to.
    pub local: LocalIndex,
    /// Plane of that address.
    pub plane: u8,
    /// Where its last packet came from.
    pub from: Option<IpAddr>,
    /// Newest epoch.
    pub epoch: u8,
    /// What it counted.
    pub counters: ReceivingCounters,
}
