//! Sides (a requester and a responder each), joined in pairs by a pipe under the test's control.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use super::host::FakeHost;
use crate::event::{Event, QpFailure};
use crate::stream::*;
use crate::train::{Piece, Train};
use crate::types::*;
use crate::wire::{
    Base, DataHeader, FillStatus, Opcode, Packet as WirePacket, Qpn, Ssn, StreamBlock, Token,
};

pub(super) const PD: PdId = PdId(1);

/// A DATA packet under way.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) from: usize,
    pub(super) segment: SegmentRef,
    pub(super) header: DataHeader,
    pub(super) payload: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Side {
    pub(super) qp: QpId,
    pub(super) host: usize,
    pub(super) peer: usize,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) events: VecDeque<Event>,
    pub(super) failure: Option<Failure>,
}

/// What a pair of sides is made with; both ends the same.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer: u8,
    pub(super) rd_atomic: u8,
    pub(super) access: Access,
    pub(super) shared: bool,
    pub(super) message_span: u32,
    pub(super) packet_span: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            rnr_retry: 7,
            rnr_timer: 1,
            rd_atomic: 4,
            access: Access(0xf),
            shared: false,
            message_span: MESSAGE_SPAN,
            packet_span: PACKET_SPAN,
        }
    }
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) max_payload: u16,
    pub(super) hosts: Vec<FakeHost>,
    pub(super) holds: Vec<HoldBudget>,
    pub(super) sides: Vec<Side>,
    pub(super) flight: Vec<Packet>,
    pub(super) acks: Vec<(usize, SegmentRef)>,
    pub(super) blocks: Vec<(usize, StreamBlock)>,
}

impl World {
    pub(super) fn new(max_payload: u16, hold_bytes: u32) -> Self {
        Self {
            now: Time::from_ns(1),
            max_payload,
            hosts: vec![FakeHost::default(), FakeHost::default()],
            holds: vec![
                HoldBudget::new(hold_bytes, None),
                HoldBudget::new(hold_bytes, None),
            ],
            sides: Vec::new(),
            flight: Vec::new(),
            acks: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Connects a queue pair of host 0 with one of host 1; returns the first of the two sides.
    pub(super) fn connect(&mut self, setup: &Setup) -> usize {
        let first = self.sides.len();
        for host in 0..2 {
            let index = first + host;
            let (qp, peer_qpn) = (QpId::new(index as u16, 0), Self::qpn(first + 1 - host));
            let requester = RequesterConfig {
                qp,
                life: 3,
                pd: PD,
                peer_qpn,
            };
            let responder = ResponderConfig {
                qp,
                life: 3,
                pd: PD,
                receive_queue: self.queue(setup.shared, index),
                shared_receive_queue: setup.shared,
                access: setup.access,
                max_dest_rd_atomic: setup.rd_atomic,
                min_rnr_timer: setup.rnr_timer,
                peer_qpn,
            };
            self.sides.push(Side {
                qp,
                host,
                peer: first + 1 - host,
                requester: Requester::new(&requester),
                responder: Responder::new(&responder),
                events: VecDeque::new(),
                failure: None,
            });
        }
        for index in first..first + 2 {
            let (peer, host) = (self.sides[index].peer, 1 - self.sides[index].host);
            let credit = self.sides[peer].responder.credit(&mut self.hosts[host]);
            self.open(index, setup, credit);
        }
        first
    }

    fn open(&mut self, index: usize, setup: &Setup, credit: Ssn) {
        let side = &mut self.sides[index];
        side.requester.enable(&SendParams {
            sq_psn: 0,
            timeout: 14,
            retry_count: 7,
            rnr_retry: setup.rnr_retry,
            max_rd_atomic: setup.rd_atomic,
        });
        let token = Token::truncate(0x100 + side.peer as u32);
        side.responder.open(token);
        side.requester.open(&PeerStream {
            token,
            credit,
            shared_receive_queue: setup.shared,
            message_span: setup.message_span,
            packet_span: setup.packet_span,
        });
    }

    pub(super) fn qpn(side: usize) -> Qpn {
        Qpn::truncate(0x40 + side as u32)
    }

    /// The receive queue of a side; all sides of a host share one if `shared`.
    pub(super) fn queue(&self, shared: bool, side: usize) -> RqId {
        RqId(if shared { 1000 } else { side as u32 })
    }

    pub(super) fn submit(&mut self, side: usize, request: SendRequest) {
        let s = &mut self.sides[side];
        let result = s.requester.submit(self.now, request, &mut s.events);
        self.settle(side, result.err());
    }

    /// Ends a queue pair that failed, as `conn` does.
    pub(super) fn settle(&mut self, side: usize, failure: Option<Failure>) {
        let Some(failure) = failure else { return };
        let s = &mut self.sides[side];
        assert!(s.failure.is_none(), "a queue pair fails once");
        s.failure = Some(failure);
        fail(
            s.qp,
            &mut s.requester,
            &mut s.responder,
            failure,
            &mut self.holds[s.host],
            &mut s.events,
        );
    }

    /// Post receives and tell the responders that wait for them.
    pub(super) fn post(&mut self, sides: &[usize], queue: RqId, receive: Receive) {
        let host = self.sides[sides[0]].host;
        self.hosts[host].post(queue, receive);
        for &side in sides {
            let s = &mut self.sides[side];
            if s.responder.wants_receive_notice() {
                let result = s.responder.receives_posted(
                    &mut self.hosts[host],
                    &mut self.holds[host],
                    &mut s.events,
                );
                self.settle(side, result.err());
            }
        }
    }

    /// Builds the next packet of a side, a response if `response`, and puts it into the pipe.
    pub(super) fn send(&mut self, side: usize, response: bool) -> Option<Packet> {
        let (s, now, max) = (&mut self.sides[side], self.now, self.max_payload);
        let peeked = if response {
            s.responder.peek_segment(max)
        } else {
            s.requester.peek_segment(now, max)
        };
        let segment = if response {
            s.responder.next_segment(max)
        } else {
            s.requester.next_segment(now, max)
        };
        assert_eq!(peeked, segment, "peek and next agree");
        let packet = self.build(side, segment?);
        self.flight.push(packet.clone());
        Some(packet)
    }

    /// Builds the packet of a segment as it is now, for the first time or again.
    pub(super) fn build(&mut self, side: usize, segment: SegmentRef) -> Packet {
        let (header, payload) = match self.read(side, &segment) {
            Some(Ok(content)) => content,
            Some(Err(())) => {
                let s = &mut self.sides[side];
                let result = match segment.role {
                    Role::Request => s.requester.fail_message(
                        segment.msn,
                        Status::LocalProtection,
                        &mut s.events,
                    ),
                    Role::Response => {
                        s.responder
                            .fail_response(segment.msn, FillStatus::RemoteAccess);
                        Ok(())
                    }
                };
                self.settle(side, result.err());
                (self.fill_header(side, &segment), Vec::new())
            }
            None => (self.fill_header(side, &segment), Vec::new()),
        };
        let datagram = [&header.emit(&Base::default())[..], &payload].concat();
        match WirePacket::parse(&datagram) {
            Ok(WirePacket::Data {
                header: parsed,
                payload: seen,
                ..
            }) => {
                assert_eq!(
                    (parsed, seen),
                    (header, payload.as_slice()),
                    "the wire carries all of it"
                );
            }
            other => panic!("{header:?} is no packet: {other:?}"),
        }
        Packet {
            from: side,
            segment,
            header,
            payload,
        }
    }

    fn fill_header(&self, side: usize, segment: &SegmentRef) -> DataHeader {
        match segment.role {
            Role::Request => self.sides[side].requester.describe_fill(segment),
            Role::Response => self.sides[side].responder.describe_fill(segment),
        }
    }

    /// Header and payload; `Err` when the host cannot read the memory, `None` when the content is gone.
    fn read(&self, side: usize, segment: &SegmentRef) -> Option<Result<(DataHeader, Vec<u8>), ()>> {
        let s = &self.sides[side];
        let described = match segment.role {
            Role::Request => s.requester.describe(segment),
            Role::Response => s.responder.describe(segment),
        }?;
        let mut train = Train::default();
        train.start(Route {
            local: LocalIndex(0),
            source: SourceSlot(0),
            destination: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        });
        described.push_payload(&mut train);
        train.finish_segment(None);
        let mut payload = Vec::new();
        for piece in train.pieces(&train.segments()[0]) {
            match *piece {
                Piece::Bytes { start, length } => {
                    payload.extend_from_slice(train.bytes(start, length))
                }
                Piece::Memory { key, addr, length } => {
                    match self.hosts[s.host].memory(key, addr, length as usize) {
                        Some(bytes) => payload.extend_from_slice(bytes),
                        None => return Some(Err(())),
                    }
                }
            }
        }
        Some(Ok((described.header, payload)))
    }

    /// Delivers a packet to the other side; its acknowledgement goes onto its way.
    pub(super) fn deliver(&mut self, packet: &Packet) -> Option<Outcome> {
        self.acks.push((packet.from, packet.segment));
        let side = self.sides[packet.from].peer;
        let s = &mut self.sides[side];
        let (host, hold) = (&mut self.hosts[s.host], &mut self.holds[s.host]);
        let header = &packet.header;
        assert_eq!(header.qpn, Self::qpn(side));
        let to_requester =
            header.opcode.is_response() || header.fill_status() != FillStatus::Nothing;
        let (outcome, result) = if to_requester {
            (
                None,
                s.requester
                    .handle_response(header, &packet.payload, host, &mut s.events)
                    .map(|_| ()),
            )
        } else if header.opcode == Opcode::Fill {
            (None, Ok(()))
        } else {
            match s
                .responder
                .handle_request(header, &packet.payload, host, hold, &mut s.events)
            {
                Ok(outcome) => (Some(outcome), Ok(())),
                Err(failure) => (None, Err(failure)),
            }
        };
        self.settle(side, result.err());
        outcome
    }

    /// The packet is lost, and found lost: it is built anew and on its way again.
    pub(super) fn retransmit(&mut self, packet: &Packet) {
        let again = self.build(packet.from, packet.segment);
        self.flight.push(again);
    }

    /// Takes a side's stream block onto its way to the peer.
    pub(super) fn emit_block(&mut self, side: usize) -> StreamBlock {
        let s = &mut self.sides[side];
        let block = s.responder.take_block(&mut self.hosts[s.host]);
        self.blocks.push((s.peer, block));
        block
    }

    pub(super) fn deliver_block(&mut self, side: usize, block: &StreamBlock) {
        let s = &mut self.sides[side];
        let result = s
            .requester
            .handle_stream_block(self.now, block, &mut s.events);
        self.settle(side, result.err());
    }

    pub(super) fn deliver_ack(&mut self, side: usize, segment: &SegmentRef) {
        match segment.role {
            Role::Request => self.sides[side].requester.packet_acked(segment),
            Role::Response => self.sides[side].responder.packet_acked(segment),
        }
    }

    /// Everything without loss and in order until nothing moves: sends, delivers, acknowledges, tells.
    pub(super) fn run_in_order(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            for side in 0..self.sides.len() {
                moved |= self.send(side, false).is_some() | self.send(side, true).is_some();
            }
            for packet in std::mem::take(&mut self.flight) {
                self.deliver(&packet);
                moved = true;
            }
            for (side, segment) in std::mem::take(&mut self.acks) {
                self.deliver_ack(side, &segment);
            }
            for side in 0..self.sides.len() {
                if self.sides[side].responder.has_news() {
                    self.emit_block(side);
                    moved = true;
                }
            }
            for (side, block) in std::mem::take(&mut self.blocks) {
                self.deliver_block(side, &block);
            }
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Statuses of the send completions so far, with their cookies.
    pub(super) fn send_statuses(&self, side: usize) -> Vec<(u64, Status)> {
        let done = |event: &Event| match event {
            Event::SendDone(done) => Some((done.cookie, done.status)),
            _ => None,
        };
        self.sides[side].events.iter().filter_map(done).collect()
    }

    /// Statuses of the receive completions so far, with their cookies.
    pub(super) fn receive_statuses(&self, side: usize) -> Vec<(u64, Status)> {
        let done = |event: &Event| match event {
            Event::ReceiveDone(done) => Some((done.cookie, done.status)),
            _ => None,
        };
        self.sides[side].events.iter().filter_map(done).collect()
    }

    /// The asynchronous failure of a side, which must be its last event.
    pub(super) fn failure(&self, side: usize) -> Option<QpFailure> {
        match self.sides[side].events.back() {
            Some(Event::QpFailed { failure, .. }) => Some(*failure),
            _ => None,
        }
    }
}

/// A work request over one buffer, without flags.
pub(super) fn request(
    cookie: u64,
    operation: Operation,
    key: u32,
    addr: u64,
    length: u32,
) -> SendRequest {
    let mut sges = SgeList::new();
    if length > 0 {
        sges.push(Sge {
            addr,
            length,
            lkey: key,
        });
    }
    SendRequest {
        cookie,
        operation,
        payload: Payload::Gather(sges),
        length,
        fence: false,
        solicited: false,
        fault: None,
    }
}

/// A receive into one buffer.
pub(super) fn receive(cookie: u64, key: u32, addr: u64, length: u32) -> Receive {
    Receive {
        cookie,
        sges: SgeList::from_slice(&[Sge {
            addr,
            length,
            lkey: key,
        }]),
    }
}
