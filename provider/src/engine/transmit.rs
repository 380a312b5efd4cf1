//! Turns the trains of the core into packets: an iovec over its headers and the application's own memory, one send.
//! Called by `core.rs` only. Also the place where memory that cannot be read is found and told to the core.

use super::reach::Troubles;
use super::statistics::EngineCounters;
use crate::verbs::mr_memory::MrTable;
use metaroce_proto::endpoint::Endpoint;
use metaroce_proto::host::Host;
use metaroce_proto::train::{Piece, Segment, SegmentOwner, Train};
use metaroce_proto::types::{self as proto, LocalSet, Route, Time};
use metaroce_udp::{IoVec, LocalIndex, SendError, Sockets, SourceSlot};

/// How sending ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The core has nothing more to send now.
    All,
    /// The limit of this turn is reached; there may be more.
    Limit,
    /// The socket is full; the rest of the train is kept.
    Blocked,
}

/// Where trains come from and what happens to them is told: the core.
pub(super) trait TrainSource {
    /// See [`Endpoint::poll_transmit`].
    fn poll_transmit(&mut self, now: Time, train: &mut Train, host: &mut dyn Host) -> bool;
    /// See [`Endpoint::handle_bad_memory`].
    fn handle_bad_memory(&mut self, now: Time, owner: SegmentOwner, host: &mut dyn Host);
    /// See [`Endpoint::handle_too_large`].
    fn handle_too_large(&mut self, now: Time, route: Route, bytes: u32);
    /// See [`Endpoint::set_blocked`].
    fn set_blocked(&mut self, now: Time, blocked: LocalSet);
}

impl TrainSource for Endpoint {
    fn poll_transmit(&mut self, now: Time, train: &mut Train, host: &mut dyn Host) -> bool {
        Endpoint::poll_transmit(self, now, train, host)
    }

    fn handle_bad_memory(&mut self, now: Time, owner: SegmentOwner, host: &mut dyn Host) {
        Endpoint::handle_bad_memory(self, now, owner, host);
    }

    fn handle_too_large(&mut self, now: Time, route: Route, bytes: u32) {
        Endpoint::handle_too_large(self, now, route, bytes);
    }

    fn set_blocked(&mut self, now: Time, blocked: LocalSet) {
        Endpoint::set_blocked(self, now, blocked);
    }
}

/// A train that waits so long for room is lost: its packets may not be wanted any more.
const HELD_AT_MOST_NS: u64 = 20_000_000;

/// The train that is being sent, reused for ever.
#[derive(Default)]
pub(super) struct Transmitter {
    train: Train,
    /// Segments of `train` that are dealt with; all of them if there is no train.
    done: usize,
    iov: Vec<IoVec>,
    /// With several planes: trains for which there was no room, one an address at most, and since when.
    held: Vec<(Time, Train, usize)>,
    /// Trains to use again.
    spare: Vec<Train>,
}

/// What sending needs of the rest of the engine.
pub(super) struct SendContext<'a> {
    pub(super) now: Time,
    pub(super) endpoint: &'a mut dyn TrainSource,
    pub(super) host: &'a mut dyn Host,
    pub(super) memory: &'a MrTable,
    pub(super) sockets: &'a Sockets,
    pub(super) counters: &'a mut EngineCounters,
    pub(super) troubles: &'a mut Troubles,
    /// All packets leave by one interface: where it is full, everything waits. With several the others must not wait for it.
    pub(super) one_plane: bool,
}

impl Transmitter {
    /// Whether the rest of a train waits for room in the socket.
    pub(super) fn is_blocked(&self) -> bool {
        self.has_rest() || !self.held.is_empty()
    }

    fn has_rest(&self) -> bool {
        self.done < self.train.segments().len()
    }

    /// Sends what the core has, `limit` trains at most.
    pub(super) fn run(&mut self, context: &mut SendContext<'_>, limit: usize) -> Sent {
        self.retry_held(context);
        for _ in 0..limit {
            if !self.has_rest() {
                if !context
                    .endpoint
                    .poll_transmit(context.now, &mut self.train, context.host)
                {
                    return match self.held.is_empty() {
                        true => Sent::All,
                        false => Sent::Blocked,
                    };
                }
                self.done = 0;
            }
            if !self.send_rest(context) {
                context.counters.trains_blocked += 1;
                if context.one_plane {
                    return Sent::Blocked;
                }
                self.hold(context);
            }
        }
        Sent::Limit
    }

    /// There is no room for the rest of the train: it waits aside, and the core uses other planes. If another one waits there
    /// already, this one is lost.
    fn hold(&mut self, context: &mut SendContext<'_>) {
        let local = self.train.route.local;
        if self
            .held
            .iter()
            .any(|(_, train, _)| train.route.local == local)
        {
            self.report_unsent(context, SendError::WouldBlock);
            self.done = self.train.segments().len();
            return;
        }
        let train = std::mem::replace(&mut self.train, self.spare.pop().unwrap_or_default());
        self.held.push((context.now, train, self.done));
        self.done = self.train.segments().len();
        self.tell_blocked(context);
    }

    /// Sends what waits for room, if there is some now.
    fn retry_held(&mut self, context: &mut SendContext<'_>) {
        let before = self.held.len();
        for _ in 0..before {
            let (since, train, done) = self.held.remove(0);
            let empty = std::mem::replace(&mut self.train, train);
            self.done = done;
            let late = context.now.since_ns(since) >= HELD_AT_MOST_NS;
            if late {
                self.report_unsent(context, SendError::WouldBlock);
            }
            let is_done = late || self.send_rest(context);
            let train = std::mem::replace(&mut self.train, empty);
            match is_done {
                true => self.spare.push(train),
                false => self.held.push((since, train, self.done)),
            }
            self.done = self.train.segments().len();
        }
        if self.held.len() != before {
            self.tell_blocked(context);
        }
    }

    fn tell_blocked(&self, context: &mut SendContext<'_>) {
        let held = self.held.iter().map(|(_, train, _)| train.route.local);
        let blocked = held.fold(LocalSet::NONE, |set: LocalSet, local: proto::LocalIndex| {
            set.with(local)
        });
        context.endpoint.set_blocked(context.now, blocked);
    }

    /// Sends the segments from `done` on. False if the socket is full. Every pass deals with one segment at least
    /// or halves `most`, so it ends.
    fn send_rest(&mut self, context: &mut SendContext<'_>) -> bool {
        let total = self.train.segments().len();
        let mut most = total;
        while self.done < total {
            let end = total.min(self.done + most);
            let gathered = self.gather(context.memory, end);
            if gathered == self.done {
                self.report_bad_memory(context);
                continue;
            }
            match self.send(context, gathered) {
                Ok(()) => {
                    self.done = gathered;
                    most = total;
                }
                Err(SendError::WouldBlock) => return false,
                // Unmapped while registered. The kernel does not say where: halve until one segment is left.
                Err(SendError::BadMemory) if gathered - self.done > 1 => {
                    most = (gathered - self.done) / 2
                }
                Err(SendError::BadMemory) => self.report_bad_memory(context),
                Err(error) => {
                    self.report_unsent(context, error);
                    self.done = gathered;
                }
            }
        }
        true
    }

    /// Fills `iov` with the segments from `done` up to `end` or to the first whose memory is not registered any more.
    /// Returns where it stopped.
    fn gather(&mut self, memory: &MrTable, end: usize) -> usize {
        self.iov.clear();
        for (offset, segment) in self.train.segments()[self.done..end].iter().enumerate() {
            let length_before = self.iov.len();
            if !gather_segment(&self.train, segment, memory, &mut self.iov) {
                self.iov.truncate(length_before);
                return self.done + offset;
            }
        }
        end
    }

    /// One send of the segments from `done` up to `end`, which `iov` holds.
    fn send(&mut self, context: &mut SendContext<'_>, end: usize) -> Result<(), SendError> {
        let route = self.train.route;
        let source = SourceSlot {
            local: LocalIndex(route.local.0),
            index: u16::from(route.source.0),
        };
        let segment_len = self.train.segments()[self.done].length as u16;
        context.counters.send_calls += 1;
        match context
            .sockets
            .send_train(source, &route.destination, &self.iov, segment_len)
        {
            Ok(()) => {
                context.counters.packets_sent += (end - self.done) as u64;
                Ok(())
            }
            Err(failure) => {
                context.counters.packets_sent += failure.segments_sent as u64;
                self.done += failure.segments_sent;
                Err(failure.error)
            }
        }
    }

    /// The segment at `done` has memory that cannot be read: the core decides what becomes of its message.
    fn report_bad_memory(&mut self, context: &mut SendContext<'_>) {
        context.counters.bad_memory += 1;
        if let Some(owner) = self.train.segments()[self.done].owner {
            context
                .endpoint
                .handle_bad_memory(context.now, owner, context.host);
        }
        self.done += 1;
    }

    /// The segments are not on their way and never will be: for the core they are lost packets.
    fn report_unsent(&mut self, context: &mut SendContext<'_>, error: SendError) {
        let route: Route = self.train.route;
        context.counters.send_errors += 1;
        // No route, an interface that is down, an address that is gone: that says nothing about the peer, and may pass.
        if error == SendError::MessageTooLarge {
            let bytes = self.train.segments()[self.done].length;
            context.endpoint.handle_too_large(context.now, route, bytes);
        }
        if let SendError::Unreachable(errno) | SendError::Other(errno) = error {
            let dest = route.destination.ip();
            context.troubles.note(context.now, dest, errno);
        }
        log::debug!("sending to {} failed: {error}", route.destination);
    }
}

/// Appends the pieces of `segment`; false if some of its memory is not registered any more.
fn gather_segment(
    train: &Train,
    segment: &Segment,
    memory: &MrTable,
    iov: &mut Vec<IoVec>,
) -> bool {
    for piece in train.pieces(segment) {
        match *piece {
            Piece::Bytes { start, length } => {
                iov.push(IoVec::from_slice(train.bytes(start, length)))
            }
            Piece::Memory { length: 0, .. } => {}
            Piece::Memory { key, addr, length } => {
                let Some(pointer) = memory.resolve(key, addr, u64::from(length)) else {
                    return false;
                };
                iov.push(IoVec::from_address(
                    pointer.expose_provenance() as u64,
                    length as usize,
                ));
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::mr_memory::Region;
    use metaroce_proto::host::{AccessDenied, AtomicOperation, Visibility};
    use metaroce_proto::types::{Access, PdId, QpId, Receive, RqId};
    use metaroce_proto::wire::Msn;
    use metaroce_udp::{Config, PortChoice, RecvBatch};
    use rstest::rstest;
    use std::net::{IpAddr, Ipv4Addr};

    const PD: PdId = PdId(1);
    const HEADER: [u8; 16] = [0xaa; 16];
    const PAYLOAD: usize = 1000;
    /// Nothing is ever mapped there.
    const UNMAPPED: u64 = 4096;

    /// A host that nothing asks for anything.
    struct NoHost;

    impl Host for NoHost {
        fn check_remote(
            &mut self,
            _: PdId,
            _: u32,
            _: u64,
            _: u64,
            _: Access,
        ) -> Result<Visibility, AccessDenied> {
            Err(AccessDenied)
        }
        fn place(&mut self, _: PdId, _: u32, _: u64, _: &[u8]) -> Result<(), AccessDenied> {
            Err(AccessDenied)
        }
        fn atomic(
            &mut self,
            _: PdId,
            _: u32,
            _: u64,
            _: AtomicOperation,
        ) -> Result<u64, AccessDenied> {
            Err(AccessDenied)
        }
        fn take_receive(&mut self, _: RqId) -> Option<Receive> {
            None
        }
        fn receives_available(&mut self, _: RqId) -> u32 {
            0
        }
    }

    /// What the payload of a packet is to be.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Payload {
        Good,
        /// Its region was deregistered.
        Gone,
        /// Its region is registered and not mapped.
        Unmapped,
        /// More than a packet carries.
        Huge,
    }

    /// Gives out one train, and notes what it is told.
    #[derive(Default)]
    struct OneTrain {
        route: Option<Route>,
        packets: Vec<(Payload, u32, u64, u32)>,
        bad: Vec<u32>,
        too_large: Vec<u32>,
    }

    impl TrainSource for OneTrain {
        fn poll_transmit(&mut self, _: Time, train: &mut Train, _: &mut dyn Host) -> bool {
            let Some(route) = self.route.take() else {
                return false;
            };
            train.start(route);
            for (index, (_, key, addr, length)) in self.packets.iter().enumerate() {
                train.push_bytes(&HEADER);
                train.push_memory(*key, *addr, *length);
                let owner = SegmentOwner {
                    qp: QpId::new(0, 0),
                    msn: Msn(index as u32),
                    response: false,
                };
                train.finish_segment(Some(owner));
            }
            true
        }
        fn handle_bad_memory(&mut self, _: Time, owner: SegmentOwner, _: &mut dyn Host) {
            self.bad.push(owner.msn.0);
        }
        fn handle_too_large(&mut self, _: Time, _: Route, bytes: u32) {
            self.too_large.push(bytes);
        }
        fn set_blocked(&mut self, _: Time, _: LocalSet) {}
    }

    /// Packet `index` of the good memory.
    fn content(index: usize) -> Vec<u8> {
        (0..PAYLOAD)
            .map(|byte| (byte * 7 + index * 13) as u8)
            .collect()
    }

    fn region(host_addr: u64, length: usize) -> Region {
        Region {
            pd: PD,
            iova: 0x5000,
            length: length as u64,
            host_addr,
            access: Access::LOCAL_WRITE,
        }
    }

    /// Sends a train of `payloads` to itself. Returns what the source was told and the packets that arrived.
    fn send(payloads: &[Payload], segmentation_offload: bool) -> (OneTrain, Vec<Vec<u8>>) {
        let sockets = Sockets::open(&Config {
            locals: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            port: PortChoice::Range {
                base: 29500,
                count: 400,
            },
            source_ports: 1,
            segmentation_offload,
            ..Config::default()
        })
        .unwrap();
        let memory = MrTable::default();
        let bytes: Vec<u8> = (0..payloads.len())
            .flat_map(content)
            .chain(vec![0; 70_000])
            .collect();
        let good = memory
            .register(region(
                bytes.as_ptr().expose_provenance() as u64,
                bytes.len(),
            ))
            .unwrap();
        let unmapped = memory.register(region(UNMAPPED, PAYLOAD)).unwrap();
        let gone = memory.register(region(UNMAPPED, PAYLOAD)).unwrap();
        memory.deregister(gone);
        let packet = |(index, payload): (usize, &Payload)| match payload {
            Payload::Good => (
                *payload,
                good,
                0x5000 + (index * PAYLOAD) as u64,
                PAYLOAD as u32,
            ),
            Payload::Huge => (*payload, good, 0x5000, 65_510),
            Payload::Gone => (*payload, gone, 0x5000, PAYLOAD as u32),
            Payload::Unmapped => (*payload, unmapped, 0x5000, PAYLOAD as u32),
        };
        let destination = sockets.locals().next().unwrap().1;
        let route = Route {
            local: proto::LocalIndex(0),
            source: proto::SourceSlot(0),
            destination,
        };
        let mut source = OneTrain {
            route: Some(route),
            packets: payloads.iter().enumerate().map(packet).collect(),
            ..OneTrain::default()
        };
        let mut transmitter = Transmitter::default();
        let mut context = SendContext {
            now: Time::ZERO,
            endpoint: &mut source,
            host: &mut NoHost,
            memory: &memory,
            sockets: &sockets,
            counters: &mut EngineCounters::default(),
            troubles: &mut Troubles::default(),
            one_plane: true,
        };
        assert_eq!(transmitter.run(&mut context, 8), Sent::All);
        let mut batch = RecvBatch::new(4);
        let mut arrived = Vec::new();
        while sockets.recv(LocalIndex(0), &mut batch).unwrap() > 0 {
            arrived.extend(
                batch
                    .iter()
                    .flat_map(|message| message.packets().map(<[u8]>::to_vec).collect::<Vec<_>>()),
            );
        }
        (source, arrived)
    }

    #[rstest]
    fn only_packets_with_bad_memory_are_left_out_and_each_is_reported(
        #[values(true, false)] offload: bool,
        #[values(
            vec![Payload::Good],
            vec![Payload::Good; 12],
            vec![Payload::Gone],
            vec![Payload::Unmapped],
            vec![Payload::Good, Payload::Gone, Payload::Good],
            vec![Payload::Gone, Payload::Good, Payload::Gone],
            vec![Payload::Unmapped, Payload::Good, Payload::Good, Payload::Good, Payload::Unmapped],
            vec![Payload::Good, Payload::Good, Payload::Unmapped, Payload::Gone, Payload::Unmapped, Payload::Good],
            vec![Payload::Unmapped; 5]
        )]
        payloads: Vec<Payload>,
    ) {
        let (source, arrived) = send(&payloads, offload);
        let (good, bad): (Vec<usize>, Vec<usize>) =
            (0..payloads.len()).partition(|index| payloads[*index] == Payload::Good);
        let expected: Vec<Vec<u8>> = good
            .iter()
            .map(|index| [&HEADER[..], &content(*index)].concat())
            .collect();
        assert_eq!(arrived, expected);
        assert_eq!(
            source.bad,
            bad.iter().map(|index| *index as u32).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_packet_that_is_too_large_is_reported_with_its_size() {
        let (source, arrived) = send(&[Payload::Huge], true);
        assert_eq!(source.too_large, vec![65_526]);
        assert!(arrived.is_empty() && source.bad.is_empty());
    }
}
