//! From a datagram to its connection: by the id in the base header, HELLOs by the key that they name, RESETs by the id
//! that they echo.
//!
//! Only a HELLO tells the port that its sender listens on; source ports are deaf. So it is the HELLO that is answered by
//! a RESET when it echoes an id that is nobody's (WIRE 3.16), within a budget. Whoever gets no answer (to a probe, an
//! OPEN, a SHUT) sends a HELLO along with the repetition, and so learns within a few round trips that the peer has
//! forgotten the connection. Other packets with an unknown id are dropped without an answer.

use crate::conn::{Connection, Context, HelloVerdict};
use crate::endpoint::table::{ConnectionIndex, Key};
use crate::endpoint::{Endpoint, RxMeta};
use crate::host::Host;
use crate::telemetry::log::{Ending, What};
use crate::types::{Route, SourceSlot, Time};
use crate::wire::{
    Base, CloseReason, CloseView, ConnectionId, ControlBuilder, ControlItem, ControlView, Hello,
    Packet, RESET_PACKET_BYTES, Reset,
};

/// RESETs a second, and at once: as many as tell every connection of a busy host that this process is new.
const RESETS_PER_SECOND: u64 = 10_000;
const RESETS_AT_ONCE: u64 = 256;

/// How many RESETs may be sent.
pub(super) struct ResetBudget {
    tokens: u64,
    filled_at: Time,
}

impl ResetBudget {
    pub(super) fn new(now: Time) -> Self {
        Self {
            tokens: RESETS_AT_ONCE,
            filled_at: now,
        }
    }

    fn take(&mut self, now: Time) -> bool {
        let earned = now.since_ns(self.filled_at) * RESETS_PER_SECOND / 1_000_000_000;
        if earned > 0 {
            self.tokens = (self.tokens + earned).min(RESETS_AT_ONCE);
            self.filled_at = now;
        }
        let has = self.tokens > 0;
        self.tokens -= u64::from(has);
        has
    }
}

impl Endpoint {
    /// Takes a received datagram.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        meta: &RxMeta,
        datagram: &[u8],
        host: &mut dyn Host,
    ) {
        match Packet::parse(datagram) {
            Err(_) => self.shared.counters.dropped_malformed += 1,
            Ok(Packet::Data {
                base,
                header,
                payload,
            }) => {
                let Some(index) = self.find_open(now, meta, &base) else {
                    return;
                };
                self.note_batch(index);
                self.crowd.note(now, index);
                self.on_connection(now, index, |connection, cx| {
                    connection.handle_data(cx, host, meta, &base, &header, payload);
                });
            }
            Ok(Packet::Ack(view)) => {
                let Some(index) = self.find_open(now, meta, &view.base) else {
                    return;
                };
                self.crowd.note(now, index);
                self.on_connection(now, index, |connection, cx| {
                    connection.handle_ack(cx, &view)
                });
            }
            Ok(Packet::Control(view)) => self.handle_control(now, meta, &view),
        }
    }

    fn note_batch(&mut self, index: ConnectionIndex) {
        if let Some(connection) = self.connections.get_mut(index)
            && !connection.in_batch
        {
            connection.in_batch = true;
            self.batch.push(index);
        }
    }

    /// The connection that a packet names, if the packet comes from its peer.
    fn find(&mut self, meta: &RxMeta, base: &Base) -> Option<ConnectionIndex> {
        let Some(index) = self.connections.find_id(base.connection) else {
            self.shared.counters.dropped_unknown_connection += 1;
            return None;
        };
        if !self
            .connections
            .get(index)
            .is_some_and(|connection| connection.is_peer(meta.source.ip()))
        {
            self.shared.counters.dropped_wrong_source += 1;
            return None;
        }
        Some(index)
    }

    /// The same if it is open, or opens by this: the packet may have overtaken the OPEN that let it go (WIRE 3.3).
    fn find_open(&mut self, now: Time, meta: &RxMeta, base: &Base) -> Option<ConnectionIndex> {
        let index = self.find(meta, base)?;
        if self.is_opening(index) {
            self.on_connection(now, index, |connection, cx| connection.on_id_shown(cx));
            if self.is_opening(index) {
                self.shared.counters.dropped_unknown_connection += 1;
                return None;
            }
        }
        Some(index)
    }

    /// Answers a HELLO that echoes an id that is nobody's: smaller than the HELLO, and within the budget.
    fn answer_unknown(&mut self, now: Time, meta: &RxMeta, hello: &Hello) {
        let id = hello.identity.echo;
        if !id.is_known() || self.connections.find_id(id).is_some() || !self.resets.take(now) {
            return;
        }
        let mut packet = [0; RESET_PACKET_BYTES];
        let mut builder = ControlBuilder::new(&mut packet);
        if builder.push_reset(&Reset { unknown_id: id }) {
            let length = builder.finish(&Base::default());
            let mut destination = meta.source;
            destination.set_port(hello.endpoint_port);
            let route = Route {
                local: meta.local,
                source: SourceSlot(0),
                destination,
            };
            self.push_stray(route, &packet[..length]);
            self.shared.counters.resets_sent += 1;
        }
    }

    // ---- CONTROL ----

    fn handle_control(&mut self, now: Time, meta: &RxMeta, view: &ControlView<'_>) {
        let mut current = None;
        let begins = matches!(view.items().next(), Some(ControlItem::Hello(_)));
        if !begins {
            if view.is_reset() {
                self.handle_resets(now, meta, view);
                return;
            }
            current = self.find(meta, &view.base);
            let Some(index) = current else { return };
            self.on_connection(now, index, |connection, cx| connection.on_id_shown(cx));
        }
        self.shared.counters.control_received += 1;
        for item in view.items() {
            if let ControlItem::Hello(hello) = &item {
                current = self.handle_hello(now, meta, hello);
            }
            let Some(index) = current else { return };
            // It does not show that its sender knows us: everything else waits until one does (WIRE 3.24).
            let unproved = begins && self.is_opening(index);
            match item {
                ControlItem::Hello(_) | ControlItem::Reset(_) => {}
                ControlItem::Open(open) if unproved => {
                    self.on_connection(now, index, |connection, cx| {
                        connection.remember_open(cx, &open)
                    });
                }
                _ if unproved => self.shared.counters.dropped_control += 1,
                ControlItem::Close(close) => {
                    self.handle_close(now, meta, index, &close);
                    return;
                }
                item => {
                    self.on_connection(now, index, |connection, cx| {
                        handle_item(connection, cx, &item)
                    });
                }
            }
        }
    }

    fn is_opening(&self, index: ConnectionIndex) -> bool {
        let connection = self.connections.get(index);
        connection.is_some_and(|connection| connection.is_usable() && !connection.is_open())
    }

    /// The connection that a HELLO is for, if the rest of its packet may be read.
    fn handle_hello(&mut self, now: Time, meta: &RxMeta, hello: &Hello) -> Option<ConnectionIndex> {
        let key = Key {
            source: hello.dest_gid,
            dest: hello.source_gid,
            peer_port: hello.endpoint_port,
        };
        // Nobody here wants that peer: nothing is allocated. When somebody does, both ends repeat.
        let Some(index) = self.connections.find_key(&key) else {
            self.shared.counters.dropped_control += 1;
            self.answer_unknown(now, meta, hello);
            return None;
        };
        let source = meta.source.ip().to_canonical();
        let listed = hello
            .addresses
            .iter()
            .any(|address| address.gid.to_ip() == source);
        if source != hello.source_gid.to_ip() && !listed {
            self.shared.counters.dropped_wrong_source += 1;
            return None;
        }
        let verdict = self.on_connection(now, index, |connection, cx| {
            connection.handle_hello(cx, hello)
        })?;
        match verdict {
            HelloVerdict::Taken => Some(index),
            HelloVerdict::Void => {
                self.shared.counters.dropped_control += 1;
                None
            }
            HelloVerdict::Replace(candidate) => {
                if self.connections.find_id(candidate.fresh_id).is_some() {
                    return None;
                }
                self.replace(now, index, key, candidate.fresh_id, hello)
            }
        }
    }

    /// The other incarnation has proved itself: the old connection is over, and a new one takes its key.
    fn replace(
        &mut self,
        now: Time,
        index: ConnectionIndex,
        key: Key,
        my_id: ConnectionId,
        hello: &Hello,
    ) -> Option<ConnectionIndex> {
        let routes = Connection::routes_for(&self.shared.config, &key).ok()?;
        let was_open = self.connections.get(index).is_some_and(Connection::is_open);
        let unopened = self.remove_connection(now, index, Ending::PeerRestarted);
        let shared = &mut self.shared;
        shared.counters.connections_lost += u64::from(was_open);
        let index = self
            .connections
            .insert(|index| Box::new(Connection::new(index, key, my_id, routes, now, shared)));
        self.on_connection(now, index, |connection, cx| {
            let incarnation = hello.identity.incarnation;
            connection.log(now, cx.shared, What::PeerRestarted { incarnation });
            connection.adopt(cx, hello);
            for id in unopened {
                connection.attach(cx, id);
            }
        });
        Some(index)
    }

    /// WIRE 3.17: believed if it echoes an id that we send with and comes from an address of that peer.
    fn handle_resets(&mut self, now: Time, meta: &RxMeta, view: &ControlView<'_>) {
        let ip = meta.source.ip();
        for item in view.items() {
            let ControlItem::Reset(reset) = item else {
                continue;
            };
            let named = self.connections.indices().find(|index| {
                self.connections.get(*index).is_some_and(|connection| {
                    connection.peer_id() == reset.unknown_id
                        && connection.is_open()
                        && connection.is_peer(ip)
                })
            });
            let Some(index) = named.filter(|_| reset.unknown_id.is_known()) else {
                self.shared.counters.dropped_control += 1;
                return;
            };
            self.shared.counters.resets_received += 1;
            self.shared.counters.connections_lost += 1;
            self.bury(now, index, Ending::Reset);
            // One is enough: a RESET names one connection.
            return;
        }
    }

    /// The peer ends the connection: its last word, an answer, and the end.
    fn handle_close(
        &mut self,
        now: Time,
        meta: &RxMeta,
        index: ConnectionIndex,
        close: &CloseView<'_>,
    ) {
        let Some(connection) = self.connections.get(index) else {
            return;
        };
        let base = Base {
            connection: connection.peer_id(),
            ..Base::default()
        };
        let route = connection.answer_route(meta.local);
        let mut packet = [0; 64];
        let mut builder = ControlBuilder::new(&mut packet);
        if builder.push_close_answer(CloseReason::Idle, &[]).is_some() {
            let length = builder.finish(&base);
            self.push_stray(route, &packet[..length]);
        }
        self.on_connection(now, index, |connection, cx| {
            connection.handle_close(cx, close)
        });
        self.bury(now, index, Ending::ClosedByPeer);
    }
}

/// Items that concern the streams of a connection, or its end.
fn handle_item(connection: &mut Connection, cx: &mut Context<'_>, item: &ControlItem<'_>) {
    match item {
        ControlItem::Open(open) if connection.is_open() => connection.handle_open(cx, open),
        ControlItem::Shut(shut) => connection.handle_shut(cx, shut),
        ControlItem::ShutAnswer(shut) => connection.handle_shut_answer(cx, shut),
        ControlItem::CloseAnswer(_) => connection.handle_close_answer(),
        _ => cx.shared.counters.dropped_control += 1,
    }
}
