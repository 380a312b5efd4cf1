//! A capture as a whole: connections, their paths, gaps, retransmissions and round trips. `path.rs` counts for one
//! path, `serial.rs` one sequence of numbers, `report.rs` writes it down.
//!
//! A connection is one direction: the packets with one connection id. The other direction carries its ACKs; which one
//! that is, HELLOs tell, and where they are not in the capture the stamps that ACKs echo.

mod path;
mod report;
mod serial;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use metaroce_proto::wire::{AckView, ControlItem, Packet};

use crate::datagram::ECN_CE;
use crate::packet::{Seen, Verdict};

pub use path::{Path, RoundTrips};
pub use serial::Serial;

/// Connections that are told apart; the packets of more are only counted. A port that somebody floods shows millions
/// of ids.
const CONNECTIONS_MAX: usize = 4096;

/// The packets with one connection id.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The id.
    pub id: u32,
    /// Sender of its first packet, whose source port is only that packet's.
    pub source: SocketAddr,
    /// Where they go.
    pub destination: SocketAddr,
    /// The id of the other direction, once known.
    pub peer: Option<u32>,
    /// Packets of any type.
    pub packets: u64,
    /// Paths by their number.
    pub paths: BTreeMap<u8, Path>,
    /// Numbers of the ACKs.
    pub acks: Serial,
    /// ACKs.
    pub ack_packets: u64,
    /// Items of CONTROL packets by kind.
    pub items: BTreeMap<&'static str, u64>,
}

/// The capture.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Frames in the file.
    pub frames: u64,
    /// Frames with metaroce packets.
    pub ours: u64,
    /// Packets, good and bad.
    pub packets: u64,
    /// Packets that the transport would drop, by cause.
    pub bad: BTreeMap<&'static str, u64>,
    /// Packets of which the capture has only a part; a train that is cut off counts as one.
    pub cut: u64,
    /// Packets of connections beyond those that are told apart.
    pub others: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    last_frame: u64,
    /// In the order of their appearance.
    connections: Vec<Connection>,
    by_id: BTreeMap<u32, usize>,
}

impl Summary {
    /// Takes a packet.
    pub fn see(&mut self, seen: &Seen<'_>) {
        self.packets += 1;
        self.first_ns.get_or_insert(seen.time_ns);
        self.last_ns = self.last_ns.max(seen.time_ns);
        self.ours += u64::from(seen.frame != self.last_frame);
        self.last_frame = seen.frame;
        self.cut += u64::from(seen.is_cut());
        match &seen.verdict {
            Verdict::Bad(error) => *self.bad.entry(error.name()).or_default() += 1,
            Verdict::Cut => {}
            Verdict::Good(packet) => self.good(seen, packet),
        }
    }

    /// The connections, in the order of their appearance.
    #[must_use]
    pub fn connections(&self) -> &[Connection] {
        &self.connections
    }

    fn good(&mut self, seen: &Seen<'_>, packet: &Packet<'_>) {
        let id = packet.base().connection.0;
        let Some(at) = self.connection(id, seen) else {
            self.others += 1;
            return;
        };
        let connection = &mut self.connections[at];
        connection.packets += 1;
        match packet {
            Packet::Data { base, header, .. } => {
                let path = connection.paths.entry(base.path.0).or_default();
                path.data(base, header, seen.ecn == ECN_CE, seen.time_ns);
            }
            Packet::Ack(ack) => {
                connection.ack_packets += 1;
                connection.acks.see(ack.number().0);
                self.ack(at, ack, seen.time_ns);
            }
            Packet::Control(control) => {
                for (item, name) in control.items().zip(seen.kinds()) {
                    *connection.items.entry(name).or_default() += 1;
                    if let ControlItem::Hello(hello) = item
                        && hello.identity.my_id.0 != id
                        && id != 0
                    {
                        connection.peer = Some(hello.identity.my_id.0);
                    }
                }
                self.introduce(at);
            }
        }
    }

    fn connection(&mut self, id: u32, seen: &Seen<'_>) -> Option<usize> {
        if let Some(at) = self.by_id.get(&id) {
            return Some(*at);
        }
        let at = self.connections.len();
        if at >= CONNECTIONS_MAX {
            return None;
        }
        self.by_id.insert(id, at);
        self.connections.push(Connection {
            id,
            source: seen.source,
            destination: seen.destination,
            peer: None,
            packets: 0,
            paths: BTreeMap::new(),
            acks: Serial::default(),
            ack_packets: 0,
            items: BTreeMap::new(),
        });
        Some(at)
    }

    /// Tells a connection's peer about it.
    fn introduce(&mut self, at: usize) {
        let (id, peer) = (self.connections[at].id, self.connections[at].peer);
        let peer = peer.and_then(|peer| self.by_id.get(&peer)).copied();
        if let Some(peer) = peer.filter(|peer| self.connections[*peer].peer.is_none()) {
            self.connections[peer].peer = Some(id);
        }
    }

    fn ack(&mut self, at: usize, ack: &AckView<'_>, time_ns: u64) {
        if self.connections[at].peer.is_none() {
            self.connections[at].peer = self.peer_by_stamp(at, ack);
            self.introduce(at);
        }
        let peer = self.connections[at].peer;
        let Some(peer) = peer.and_then(|peer| self.by_id.get(&peer)).copied() else {
            return;
        };
        for block in ack.path_blocks() {
            let path = self.connections[peer].paths.entry(block.path.0);
            path.or_default().echo(&block, time_ns);
        }
    }

    /// The one connection that has sent what an ACK echoes.
    fn peer_by_stamp(&self, at: usize, ack: &AckView<'_>) -> Option<u32> {
        let mut candidates = self.connections.iter().enumerate().filter(|(other, data)| {
            *other != at
                && ack.path_blocks().any(|block| {
                    let path = data.paths.get(&block.path.0);
                    path.is_some_and(|path| path.has_stamp(block.echoed_stamp.0))
                })
        });
        let found = candidates.next()?.1.id;
        candidates.next().is_none().then_some(found)
    }
}
