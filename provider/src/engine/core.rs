//! What the engine's lock protects, and the one turn that every thread makes with it: receive, timers, events, send.
//! Called by `mod.rs` (application threads) and `background.rs`. A turn is bounded; [`Turn::more`] says that another
//! one would find something at once.

use super::Inner;
use super::hold::Hold;
use super::host::{EngineHost, Objects};
use super::neighbours::Neighbours;
use super::presence::Streak;
use super::pressure::Pressure;
use super::reach::Troubles;
use super::report::Report;
use super::statistics::EngineCounters;
use super::transmit::{SendContext, Sent, Transmitter};
use metaroce_proto::endpoint::{Endpoint, RxMeta};
use metaroce_proto::event::Event;
use metaroce_proto::types::{self as proto, LocalSet, QpId, Time};
use metaroce_udp::{Ecn, ErrorOrigin, LocalIndex, MAX_LOCALS, PeerError, Ready, RecvBatch};

/// Buffers of 64 KiB in one receive call.
const RECEIVE_MESSAGES: usize = 4;
/// Receive calls in one turn, as long as each brings a full batch …
const RECEIVES_PER_TURN: usize = 4;
/// … and all together less than this: where packets come one by one (loss, no GRO), acknowledging each batch of four
/// would cost more than receiving them.
const GATHER_BYTES: usize = 64 << 10;
/// Trains in one turn: half a megabyte at most, so that receiving and other threads get their turn within some 150 µs.
const TRAINS_PER_TURN: usize = 8;
/// A turn of a polling thread that received no more than this, and completed something, returns to the application
/// before it sends: the acknowledgement then leaves with the next call, and does not stand between the program and its
/// completion. For larger amounts the pipeline must be kept full instead.
const DEFER_BYTES: usize = 8 << 10;
/// A local address is polled every time for so long after it received something.
const HOT_NS: u64 = 10_000_000;
/// Polling turns between two that look at *all* local addresses.
const COLD_EVERY: u32 = 16;
/// Something came in so short a time ago: more is likely (see `background.rs`).
const RECENT_NS: u64 = 1_000_000;
/// The same while something is outstanding. After so long a silence the core's timers are all that can happen: a queue
/// pair whose peer never comes, or a request to a peer that is gone, is no reason to look again and again.
const RECENT_OUTSTANDING_NS: u64 = 2_000_000;
/// So many peers heard within a millisecond or two are a crowd, …
const CROWD: u32 = 8;
/// … if there are many more that come one after the other: those of a collective wait for each other, and are served at once.
const CROWD_CONNECTIONS: u32 = 512;
/// IPv6 and UDP headers: what an ICMP "too big" counts and the core does not.
const LOWER_HEADERS: u32 = 48;

/// Who makes a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// A thread of the application that polls.
    Polling,
    /// The background thread, or a call that does not come back soon.
    Thorough,
    /// The background thread, which was just told where packets wait.
    Told(Ready),
}

/// What a turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// When it began.
    pub(super) began: Time,
    /// Events dispatched.
    pub(super) events: usize,
    /// Bytes received.
    pub(super) received_bytes: usize,
    /// See [`Core::is_crowded`].
    pub(super) crowded: bool,
    /// Something came that was not an acknowledgement.
    pub(super) asked: bool,
    /// Anything at all happened.
    pub(super) worked: bool,
    /// There may be more to do right now.
    pub(super) more: bool,
}

/// The state of an engine.
pub(super) struct Core {
    pub(super) endpoint: Endpoint,
    pub(super) objects: Objects,
    pub(super) counters: EngineCounters,
    transmitter: Transmitter,
    /// What the kernel and the network said of the ways to peers.
    troubles: Troubles,
    batch: RecvBatch,
    errors: Vec<PeerError>,
    doorbells: Vec<QpId>,
    /// The core's next timeout, as of the last turn that changed anything.
    next_timeout: Option<Time>,
    /// Something is to be sent with the next turn, whatever that finds.
    send_due: bool,
    /// Requests that wait for more.
    pub(super) hold: Hold,
    pub(super) streak: Streak,
    last_received: Time,
    hot_until: [Time; MAX_LOCALS],
    cold_countdown: u32,
    pub(super) neighbours: Neighbours,
    pressure: Pressure,
    /// What the core was told of them.
    usable: LocalSet,
    /// A receive call failed, which was told.
    receive_failed: bool,
}

impl Core {
    pub(super) fn new(endpoint: Endpoint) -> Core {
        Core {
            endpoint,
            objects: Objects::default(),
            counters: EngineCounters::default(),
            transmitter: Transmitter::default(),
            troubles: Troubles::default(),
            batch: RecvBatch::new(RECEIVE_MESSAGES),
            errors: Vec::new(),
            doorbells: Vec::new(),
            next_timeout: None,
            send_due: false,
            hold: Hold::default(),
            streak: Streak::default(),
            last_received: Time::ZERO,
            hot_until: [Time::ZERO; MAX_LOCALS],
            cold_countdown: 0,
            neighbours: Neighbours::new(),
            pressure: Pressure::default(),
            usable: LocalSet::ALL,
            receive_failed: false,
        }
    }

    /// One turn.
    pub(super) fn turn(&mut self, inner: &Inner, caller: Caller) -> Turn {
        let mut now = inner.clock.now();
        let mut turn = Turn {
            began: now,
            ..Turn::default()
        };
        let mut changed = self.serve_doorbells(inner, now);
        changed |= self.follow_planes(inner, now);
        let may_wait = caller == Caller::Polling;
        if may_wait {
            self.streak.begin_call(&inner.presence, now);
        }
        if self.send_due && !(may_wait && self.waits(inner, now)) {
            turn.more |= self.send(inner, now);
            changed = true;
        }
        let is_due = self.next_timeout.is_some_and(|timeout| timeout <= now);
        let receives = match caller {
            // What waits at any address may be the answer that somebody would ask for in vain.
            Caller::Polling if is_due => Caller::Thorough,
            caller => caller,
        };
        let others_before = self.received_others();
        let messages = self.receive(inner, now, receives, &mut turn);
        turn.asked = self.received_others() != others_before;
        if messages > 0 {
            now = inner.clock.now();
            self.last_received = now;
            turn.crowded = self.is_crowded(now);
        }
        changed |= messages > 0;
        changed |= self.read_errors(inner, now);
        if self.next_timeout.is_some_and(|timeout| timeout <= now) {
            let mut host = EngineHost {
                memory: &inner.memory,
                objects: &self.objects,
            };
            self.endpoint.handle_timeout(now, &mut host);
            self.neighbours.look(&inner.clock, &mut self.endpoint, now);
            changed = true;
        }
        if !changed {
            return turn;
        }
        turn.worked = true;
        turn.events = self.dispatch_events(now);
        let serve_first = turn.events > 0 && turn.received_bytes <= DEFER_BYTES;
        if may_wait && (serve_first || self.waits(inner, now)) {
            self.send_due = true;
            self.next_timeout = self.endpoint.poll_timeout();
        } else {
            turn.more |= self.flush(inner, now, &mut turn.events);
        }
        turn
    }

    /// Packets received that were no acknowledgements.
    fn received_others(&self) -> u64 {
        let acks = self.endpoint.counters().acks_received;
        self.counters.packets_received.wrapping_sub(acks)
    }

    /// Tells the core which addresses can be used, if that has changed.
    fn follow_planes(&mut self, inner: &Inner, now: Time) -> bool {
        let usable = inner.planes.usable();
        let changed = std::mem::replace(&mut self.usable, usable) != usable;
        if changed {
            self.endpoint.set_usable(now, usable);
        }
        changed
    }

    /// Sends what is due, dispatches what that caused and learns the next timeout. True if there is more to send now.
    pub(super) fn flush(&mut self, inner: &Inner, now: Time, events: &mut usize) -> bool {
        let more = self.send(inner, now);
        *events += self.dispatch_events(now);
        self.next_timeout = self.endpoint.poll_timeout();
        more
    }

    /// Takes the requests that were posted to a queue pair and transmits, unless it pays to wait for more.
    pub(super) fn post(&mut self, inner: &Inner, now: Time, id: QpId) {
        self.streak.begin_call(&inner.presence, now);
        self.take_requests(now, id);
        self.send_posted(inner, now);
    }

    /// The same, and tells the core of new receives.
    pub(super) fn post_receives(&mut self, inner: &Inner, now: Time, id: QpId) {
        self.streak.begin_call(&inner.presence, now);
        self.drain(inner, now, id);
        self.send_posted(inner, now);
    }

    fn send_posted(&mut self, inner: &Inner, now: Time) {
        if self.waits(inner, now) {
            self.send_due = true;
            self.streak.end_call(&inner.presence, now);
        } else {
            self.flush(inner, now, &mut 0);
            self.streak.end_call(&inner.presence, inner.clock.now());
        }
    }

    /// Whether small requests are being gathered. Not unless the application polls.
    fn waits(&self, inner: &Inner, now: Time) -> bool {
        inner.presence.is_polled() && self.hold.waits(now)
    }

    /// Hands the requests that were posted to a queue pair to the core, and tells it of new receives.
    pub(super) fn drain(&mut self, inner: &Inner, now: Time, id: QpId) {
        self.take_requests(now, id);
        if self.endpoint.wants_receive_notice(id) {
            let mut host = EngineHost {
                memory: &inner.memory,
                objects: &self.objects,
            };
            self.endpoint.receives_posted(now, id, &mut host);
        }
    }

    fn take_requests(&mut self, now: Time, id: QpId) {
        let Some(qp) = self.objects.get(id) else {
            return;
        };
        let (mut requests, mut bytes) = (0, 0);
        while let Some(request) = qp.pop_submission() {
            requests += 1;
            bytes += u64::from(request.length);
            self.endpoint.submit(now, id, request);
        }
        self.hold.posted(now, requests, bytes);
    }

    /// Drains the queue pairs whose posting thread found the lock taken. True if there were any.
    pub(super) fn serve_doorbells(&mut self, inner: &Inner, now: Time) -> bool {
        if !inner.gate.has_left() {
            return false;
        }
        let mut doorbells = std::mem::take(&mut self.doorbells);
        inner.gate.take(&mut doorbells);
        for id in doorbells.drain(..) {
            self.drain(inner, now, id);
        }
        self.doorbells = doorbells;
        true
    }

    /// Calls the core with its host.
    pub(super) fn with_host<R>(
        &mut self,
        inner: &Inner,
        f: impl FnOnce(&mut Endpoint, &mut EngineHost<'_>) -> R,
    ) -> R {
        let mut host = EngineHost {
            memory: &inner.memory,
            objects: &self.objects,
        };
        f(&mut self.endpoint, &mut host)
    }

    /// When the core wants to be called.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.next_timeout
    }

    /// Whether anything is unfinished.
    pub(super) fn outstanding(&mut self) -> bool {
        self.send_due || self.transmitter.is_blocked() || self.endpoint.outstanding()
    }

    /// Whether the background thread should look again soon: something came in a moment ago, or something is unfinished
    /// and the peers are not silent.
    pub(super) fn busy(&mut self, now: Time) -> bool {
        now.since_ns(self.last_received) < RECENT_NS || self.expects(now)
    }

    /// Something is unfinished and the peers are not silent, or it is for us to send: see [`RECENT_OUTSTANDING_NS`].
    pub(super) fn expects(&mut self, now: Time) -> bool {
        let silent = now.since_ns(self.last_received) >= RECENT_OUTSTANDING_NS;
        self.send_due || self.transmitter.is_blocked() || (!silent && self.endpoint.outstanding())
    }

    /// Whether so many peers are heard at about the same time that waking for each packet would cost more than the packets.
    pub(super) fn is_crowded(&mut self, now: Time) -> bool {
        self.endpoint.connection_count() >= CROWD_CONNECTIONS && self.endpoint.crowd(now) >= CROWD
    }

    /// The line for the statistics file.
    pub(super) fn statistics(&self, inner: &Inner) -> String {
        Report::whole(self, inner.clock.now()).json(inner) + "\n"
    }

    fn dispatch_events(&mut self, now: Time) -> usize {
        let mut events = 0;
        // Bounded by what is posted: each event retires a request or is the only one of its kind.
        while let Some(event) = self.endpoint.poll_event() {
            if matches!(event, Event::SendDone(_)) {
                self.hold.completed();
            }
            self.objects.dispatch(&event, &self.troubles, now);
            events += 1;
        }
        events
    }

    /// Sends up to the limit of a turn. True if there is more that could leave right now.
    fn send(&mut self, inner: &Inner, now: Time) -> bool {
        let mut host = EngineHost {
            memory: &inner.memory,
            objects: &self.objects,
        };
        let mut context = SendContext {
            now,
            endpoint: &mut self.endpoint,
            host: &mut host,
            memory: &inner.memory,
            sockets: &inner.sockets,
            counters: &mut self.counters,
            troubles: &mut self.troubles,
            one_plane: inner.planes.is_one(),
        };
        self.hold.release();
        let sent = self.transmitter.run(&mut context, TRAINS_PER_TURN);
        self.send_due = sent != Sent::All;
        sent == Sent::Limit
    }

    /// One receive call for each local address that is worth it; everything that came is given to the core. Returns the
    /// number of messages.
    fn receive(&mut self, inner: &Inner, now: Time, caller: Caller, turn: &mut Turn) -> usize {
        self.cold_countdown = self.cold_countdown.wrapping_sub(1) % COLD_EVERY;
        let locals = inner.sockets.local_count();
        let any_hot = self.hot_until[..locals].iter().any(|until| *until > now);
        let mut total = 0;
        for index in 0..locals {
            let worth_it = match caller {
                Caller::Thorough => true,
                Caller::Told(ready) => ready.can_receive(LocalIndex(index as u8)),
                Caller::Polling => {
                    self.cold_countdown == 0 || !any_hot || self.hot_until[index] > now
                }
            };
            if worth_it {
                for _ in 0..RECEIVES_PER_TURN {
                    let messages = self.receive_at(inner, LocalIndex(index as u8), turn);
                    total += messages;
                    if messages < self.batch.capacity() || turn.received_bytes >= GATHER_BYTES {
                        break;
                    }
                }
            }
        }
        if total > 0 {
            let now = inner.clock.now();
            self.with_host(inner, |endpoint, host| endpoint.handle_batch_end(now, host));
            self.neighbours.look(&inner.clock, &mut self.endpoint, now);
            self.pressure.look(inner, &mut self.endpoint, now);
        }
        total
    }

    fn receive_at(&mut self, inner: &Inner, local: LocalIndex, turn: &mut Turn) -> usize {
        let messages = match inner.sockets.recv(local, &mut self.batch) {
            Ok(0) => return 0,
            Ok(messages) => messages,
            Err(error) => {
                // Once: it is tried again with every turn.
                if !std::mem::replace(&mut self.receive_failed, true) {
                    log::error!("receiving at address {} failed: {error}", local.0);
                }
                return 0;
            }
        };
        let now = inner.clock.now();
        let mut host = EngineHost {
            memory: &inner.memory,
            objects: &self.objects,
        };
        for message in self.batch.iter() {
            let meta = RxMeta {
                local: proto::LocalIndex(local.0),
                source: message.source,
                ce: message.ecn == Ecn::CongestionExperienced,
            };
            for packet in message.packets() {
                self.endpoint.handle_datagram(now, &meta, packet, &mut host);
                self.counters.packets_received += 1;
            }
            turn.received_bytes += message.bytes.len();
        }
        self.counters.messages_received += messages as u64;
        turn.more |= messages == self.batch.capacity();
        let index = usize::from(local.0);
        self.hot_until[index] = now + HOT_NS;
        messages
    }

    /// Tells the core what ICMP said. True if it said anything.
    fn read_errors(&mut self, inner: &Inner, now: Time) -> bool {
        if !inner.sockets.has_errors() {
            return false;
        }
        self.errors.clear();
        inner.sockets.recv_errors(&mut self.errors);
        for error in &self.errors {
            let source = proto::SourceSlot(error.source.index as u8);
            self.counters.icmp_errors += 1;
            match (error.errno, error.origin) {
                // The send call itself said so, and the core knows.
                (_, ErrorOrigin::Local) => {}
                (libc::EMSGSIZE, _) => {
                    let local = proto::LocalIndex(error.source.local.0);
                    let route = proto::Route {
                        local,
                        source,
                        destination: error.peer,
                    };
                    let bytes = error.mtu.saturating_sub(LOWER_HEADERS) + 1;
                    self.endpoint.handle_too_large(now, route, bytes);
                }
                _ if error.says_nobody_listens() => {
                    self.endpoint
                        .handle_unreachable(now, error.peer, Some(source));
                }
                // About the way there, which may come back: the packet is lost.
                _ => self.troubles.note(now, error.peer.ip(), error.errno),
            }
        }
        !self.errors.is_empty()
    }
}
