//! Begin and end of a connection: HELLO, CLOSE (WIRE 3.1 to 3.6, 3.19). Symmetric: both ends send HELLO until the other
//! has shown that it knows their id, and simultaneous opening is the normal case. A HELLO that contradicts what is
//! known (a restarted peer, or a late word of one that is gone) is answered with a fresh id and changes nothing until
//! that id comes back.

use crate::conn::route::Routes;
use crate::conn::streams::List;
use crate::conn::{
    Candidate, Connection, Context, Item, RX_PATHS_MAX, Shared, State, TX_PATHS_MAX,
    UNKNOWN_INCARNATION, random_id,
};
use crate::endpoint::qp::{Phase, Retry};
use crate::endpoint::table::Key;
use crate::stream::{MESSAGE_SPAN, PACKET_SPAN};
use crate::telemetry::log::What;
use crate::types::Time;
use crate::wire::{
    ChecksumMode, CloseReason, CloseView, ConnectionId, Hello, HelloIdentity, StreamBlock,
};

/// Least payload of a packet that we agree to: below it a READ of 2 GiB would need more segments than is sane.
const PAYLOAD_MIN_BYTES: u16 = 256;

/// Copies of a CLOSE, each on another route.
const CLOSE_ROUTES: usize = 3;

/// How long an exit waits for the answer to its CLOSE.
const CLOSE_WAIT_NS: u64 = 100_000_000;

/// What became of a HELLO.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HelloVerdict {
    /// The rest of the packet may be read.
    Taken,
    /// It contradicts the connection, or cannot be used: the rest of the packet is void.
    Void,
    /// The other incarnation has shown that it knows its fresh id: this connection is over, the candidate takes its place.
    Replace(Candidate),
}

/// The HELLO of a connection, or to a candidate that may take its place.
pub(super) fn hello_item(
    key: &Key,
    my_id: ConnectionId,
    echo: ConnectionId,
    shared: &Shared,
) -> Hello {
    let config = &shared.config;
    let allowance = shared.fair_share.hello(shared.connections);
    Hello {
        identity: HelloIdentity {
            my_id,
            incarnation: shared.incarnation,
            echo,
        },
        source_gid: key.source,
        dest_gid: key.dest,
        endpoint_port: config.port_base.wrapping_add(config.index),
        payload_bytes: config.payload_bytes,
        paths: RX_PATHS_MAX as u16,
        checksum_mode: ChecksumMode::Headers,
        window_bytes: allowance.window_bytes,
        w0_packets: allowance.w0_packets,
        message_span: MESSAGE_SPAN,
        packet_span: PACKET_SPAN,
        addresses: Routes::own_addresses(config).collect(),
    }
}

impl Connection {
    /// Takes a HELLO for this connection's key.
    pub(crate) fn handle_hello(&mut self, cx: &mut Context<'_>, hello: &Hello) -> HelloVerdict {
        if matches!(self.state, State::Closing(_) | State::Dead)
            || hello.payload_bytes < PAYLOAD_MIN_BYTES
        {
            return HelloVerdict::Void;
        }
        let identity = hello.identity;
        if !identity.my_id.is_known() {
            return HelloVerdict::Void;
        }
        let same = identity.my_id == self.peer.id && identity.incarnation == self.peer.incarnation;
        let echoes = identity.echo == self.my_id;
        let told_another = self.peer.incarnation != UNKNOWN_INCARNATION
            && self.peer.incarnation != identity.incarnation;
        match (self.state, same) {
            // One of the two is gone, and which one does not show: a late HELLO of the old one may come last. With one id
            // for both, the streams of the new one would be opened on a connection that takes it for the old one.
            (State::Opening, _) if told_another => self.handle_stranger(cx, &identity),
            (State::Opening, _) => {
                if same {
                    self.hello_retry.hasten(cx.now);
                } else {
                    self.learn(cx, hello);
                    self.hello_retry = Retry::of_present(cx.now);
                }
                self.hello_due = true;
                if echoes {
                    self.open(cx);
                } else {
                    self.push_all_opens(cx);
                }
                HelloVerdict::Taken
            }
            (_, true) => {
                // It does not know our id yet, or our answer was lost; what it knows already needs no answer.
                self.hello_due |= !echoes;
                HelloVerdict::Taken
            }
            (_, false)
                if echoes
                    && identity.incarnation == self.peer.incarnation
                    && self.is_unused(cx) =>
            {
                // The id that we learnt belongs to a connection that the peer has with our previous incarnation: this is
                // the one that it keeps for us, and waits to see echoed.
                self.learn(cx, hello);
                self.hello_due = true;
                self.push_all_opens(cx);
                HelloVerdict::Taken
            }
            (_, false) => self.handle_stranger(cx, &identity),
        }
    }

    /// No stream was ever opened: nothing but CONTROL was exchanged.
    fn is_unused(&self, cx: &mut Context<'_>) -> bool {
        self.rx_paths.is_empty()
            && self.ended.is_empty()
            && self.streams.of(List::All).iter().all(|id| {
                let life = cx.qps.life_mut(*id);
                life.is_none_or(|life| life.phase == Phase::Opening)
            })
    }

    /// A HELLO of another incarnation, or of a connection that the peer began anew.
    fn handle_stranger(&mut self, cx: &mut Context<'_>, identity: &HelloIdentity) -> HelloVerdict {
        // Before the connection is open an incarnation keeps its fresh id whatever it calls itself: two ends that both took
        // a late HELLO for their peer's would else answer each fresh id of the other by a fresh one, for ever.
        let opening = self.state == State::Opening;
        let known = self.candidate.filter(|candidate| {
            (candidate.peer_id == identity.my_id || opening)
                && candidate.incarnation == identity.incarnation
        });
        if let Some(candidate) = known
            && identity.echo == candidate.fresh_id
        {
            return HelloVerdict::Replace(candidate);
        }
        // Not a fresh start but an answer, from the very peer that we are open with, to an id that is not ours any more:
        // a late packet made it look like a stranger there. Answering that would go on for ever.
        let is_answer = identity.echo.is_known() && identity.incarnation == self.peer.incarnation;
        if is_answer {
            return HelloVerdict::Void;
        }
        let fresh_id = known.map_or_else(
            || random_id(&mut cx.shared.rng),
            |candidate| candidate.fresh_id,
        );
        self.candidate = Some(Candidate {
            fresh_id,
            peer_id: identity.my_id,
            incarnation: identity.incarnation,
            answer_due: true,
        });
        HelloVerdict::Void
    }

    /// Takes over what the peer tells about itself.
    fn learn(&mut self, cx: &mut Context<'_>, hello: &Hello) {
        let config = &cx.shared.config;
        self.peer.id = hello.identity.my_id;
        self.several_ids |= self.learnt_id.is_known() && self.learnt_id != self.peer.id;
        self.learnt_id = self.peer.id;
        self.peer.incarnation = hello.identity.incarnation;
        self.peer.message_span = hello.message_span;
        self.peer.packet_span = hello.packet_span;
        let payload_bytes = config.payload_bytes.min(hello.payload_bytes);
        self.set_payload(payload_bytes);
        let config = &cx.shared.config;
        self.window.on_hello(hello.window_bytes, hello.w0_packets);
        self.routes
            .learn(config, cx.shared.usable, &hello.addresses);
        self.window.set_lanes(self.routes.lanes().len());
        let paths = usize::from(config.paths.max(1))
            .max(self.routes.lanes().len())
            .min(TX_PATHS_MAX)
            .min(usize::from(hello.paths));
        self.make_paths(cx.now, cx.shared, paths);
        self.plane_check_owed |= self.has_lane_to_try();
    }

    /// A packet that bears our id came from the peer: it knows us (WIRE 3.3). Where HELLOs with several ids came, one of
    /// them is a late one, and only a HELLO tells which.
    pub(crate) fn on_id_shown(&mut self, cx: &mut Context<'_>) {
        self.heard(cx.now);
        if self.state == State::Opening && self.peer.id.is_known() && !self.several_ids {
            self.open(cx);
        }
    }

    fn open(&mut self, cx: &mut Context<'_>) {
        self.state = State::Open;
        self.last_heard = cx.now;
        cx.shared.counters.connections_opened += 1;
        let what = What::ConnectionOpened {
            peer_id: self.peer.id,
            payload_bytes: self.payload_bytes,
            paths: self.paths.len() as u32,
        };
        self.log(cx.now, cx.shared, what);
        if let Some(sent_at) = self.hello_sent_at {
            // The answer to an earlier one makes it shorter than it is: then there is a question more.
            let rtt_ns = cx.now.since_ns(sent_at);
            self.window.set_round_trip(rtt_ns, 0);
            for path in &mut self.paths {
                path.tx.set_rtt_hint(rtt_ns);
            }
        }
        self.push_all_opens(cx);
    }

    /// What a candidate begins with.
    pub(crate) fn adopt(&mut self, cx: &mut Context<'_>, hello: &Hello) {
        self.learn(cx, hello);
        self.hello_due = true;
        self.open(cx);
    }

    /// Ends an open connection in order, because the process exits: the peer is told on several routes.
    pub(crate) fn close(&mut self, now: Time, shared: &mut Shared, reason: CloseReason) {
        self.outbox.clear();
        self.hello_due = false;
        self.candidate = None;
        match self.state {
            State::Open => {
                self.state = State::Closing(now + CLOSE_WAIT_NS);
                self.close_reason = reason;
                self.log(now, shared, What::ConnectionClosing { reason });
                self.hello_retry = Retry::new(now);
                for turn in 0..CLOSE_ROUTES {
                    let route = self.routes.nth(turn);
                    self.outbox.push_back(Item::Close(reason, route));
                }
            }
            State::Opening => self.state = State::Dead,
            State::Closing(_) | State::Dead => {}
        }
    }

    /// The linger time of a connection without queue pairs is over: it tells the peer, and ends without waiting.
    pub(super) fn close_idle(&mut self, now: Time, shared: &mut Shared) {
        self.close(now, shared, CloseReason::Idle);
        self.outbox.truncate(1);
    }

    /// Our CLOSE was not answered yet: once more, on another route (WIRE 3.19).
    pub(super) fn repeat_close(&mut self, now: Time) {
        self.hello_retry.again(now);
        let route = self.routes.nth(self.control_turn);
        self.outbox.push_back(Item::Close(self.close_reason, route));
    }

    /// Takes a CLOSE: the last word about our streams, then the end of the connection.
    pub(crate) fn handle_close(&mut self, cx: &mut Context<'_>, close: &CloseView<'_>) {
        for block in close.stream_blocks() {
            self.handle_stream_block(cx, &block);
        }
    }

    /// Takes the answer to our CLOSE.
    pub(crate) fn handle_close_answer(&mut self) {
        if matches!(self.state, State::Closing(_)) {
            self.state = State::Dead;
        }
    }

    /// The final stream blocks: of streams of which anything was executed or refused.
    pub(super) fn final_blocks(
        &self,
        cx: &mut Context<'_>,
        host: &mut dyn crate::host::Host,
    ) -> Vec<StreamBlock> {
        let told = |block: &StreamBlock| block.msn_executed.0 != 0 || block.code.is_fatal();
        let mut blocks: Vec<StreamBlock> = self.ended.blocks().filter(told).collect();
        for id in self.streams.of(List::All) {
            if let Some(life) = cx.qps.life_mut(*id) {
                blocks.push(life.responder.block(host));
            }
        }
        blocks.retain(told);
        blocks
    }
}
