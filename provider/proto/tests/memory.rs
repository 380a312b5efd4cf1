//! What a connection and a queue pair take of the heap, counted by an allocator: in use, and after seconds of idleness.
//!
//! One endpoint is counted; its peers, each with an endpoint of its own, and the network between them are not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use metaroce_proto::endpoint::{Endpoint, RxMeta};
use metaroce_proto::event::Event;
use metaroce_proto::host::{AccessDenied, AtomicOperation, Host, Visibility};
use metaroce_proto::train::{Piece, Train};
use metaroce_proto::types::*;
use metaroce_proto::wire::{Gid, Qpn};

const PORT_BASE: u16 = 24_791;
const MS: u64 = 1_000_000;
const DELAY_NS: u64 = 10_000;
/// The endpoint that is counted.
const SELF: usize = 0;
const PEERS: usize = 64;
/// Of a connection that has been idle for a while, and of one more queue pair of it: what they are held to.
const IDLE_CONNECTION_BYTES: i64 = 8 << 10;
const QUEUE_PAIR_BYTES: i64 = 2 << 10;
/// By then an idle connection has let go of what it does not need.
const IDLE_NS: u64 = 8_000 * MS;

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of what one thread takes while it wants to know.
struct Counting;

fn count(bytes: i64) {
    if COUNTS.get() {
        BYTES.set(BYTES.get() + bytes);
        CALLS.set(CALLS.get() + u64::from(bytes > 0));
    }
}

// SAFETY: every call goes to the system's allocator as it is; counting touches thread locals without destructors, which
// allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above; the memory came from there.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// All memory there is, of zeros; and as many receives as anybody takes.
struct Zeros;

impl Host for Zeros {
    fn check_remote(
        &mut self,
        _pd: PdId,
        _rkey: u32,
        _addr: u64,
        _length: u64,
        _access: Access,
    ) -> Result<Visibility, AccessDenied> {
        Ok(Visibility::Relaxed)
    }

    fn place(&mut self, _: PdId, _key: u32, _addr: u64, _bytes: &[u8]) -> Result<(), AccessDenied> {
        Ok(())
    }

    fn atomic(
        &mut self,
        _pd: PdId,
        _rkey: u32,
        _addr: u64,
        _operation: AtomicOperation,
    ) -> Result<u64, AccessDenied> {
        Ok(0)
    }

    fn take_receive(&mut self, _queue: RqId) -> Option<Receive> {
        None
    }

    fn receives_available(&mut self, _queue: RqId) -> u32 {
        0
    }
}

struct Datagram {
    at: Time,
    from: SocketAddr,
    to: usize,
    bytes: Vec<u8>,
}

/// An endpoint, its peers, and wires of equal length between them.
struct World {
    now: Time,
    endpoints: Vec<Endpoint>,
    wire: VecDeque<Datagram>,
    train: Train,
    done: usize,
}

fn ip(node: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + node as u8))
}

fn node_of(ip: IpAddr) -> usize {
    match ip {
        IpAddr::V4(v4) => usize::from(v4.octets()[3]) - 1,
        IpAddr::V6(_) => unreachable!("nobody has such an address"),
    }
}

fn config(node: usize) -> EndpointConfig {
    EndpointConfig {
        index: 0,
        port_base: PORT_BASE,
        locals: vec![LocalAddress {
            ip: ip(node),
            scope_id: 0,
            plane: 0,
            speed_mbps: 0,
        }],
        source_slots: 16,
        payload_bytes: 4096,
        train_segments: 15,
        train_bytes: 65_000,
        receive_window_bytes: 2 << 20,
        paths: 16,
        driving: Driving::Sockets,
        congestion: Default::default(),
        force_strict: None,
        hold_bytes: 4 << 20,
        reroll_ns: 0,
    }
}

impl World {
    fn new(peers: usize) -> Self {
        let now = Time::from_ns(1_000_000_000);
        let endpoint = |node| Endpoint::new(config(node), 7 + node as u64, now);
        Self {
            now,
            endpoints: (0..=peers).map(endpoint).collect(),
            wire: VecDeque::new(),
            train: Train::default(),
            done: 0,
        }
    }

    /// Does something to an endpoint, and counts what it takes if it is the one.
    fn with<T>(&mut self, node: usize, work: impl FnOnce(&mut Endpoint, &mut Train) -> T) -> T {
        COUNTS.set(node == SELF);
        let result = work(&mut self.endpoints[node], &mut self.train);
        COUNTS.set(false);
        result
    }

    fn create(&mut self, node: usize) -> (QpId, Qpn) {
        let config = QpConfig {
            pd: PdId(1),
            receive_queue: RqId(1),
            shared_receive_queue: false,
        };
        self.with(node, |endpoint, _| endpoint.create_qp(config).unwrap())
    }

    fn connect(&mut self, node: usize, qp: QpId, peer: usize, dest_qpn: Qpn) {
        let now = self.now;
        let params = ConnectParams {
            source_gid: Gid::from_ip(ip(node)),
            dest_gid: Gid::from_ip(ip(peer)),
            dest_qpn,
            rq_psn: 0,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            access: Access(0x0f),
        };
        let send = SendParams {
            sq_psn: 0,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
        };
        self.with(node, |endpoint, _| {
            endpoint.connect_qp(now, qp, &params).unwrap();
            endpoint.enable_send(now, qp, &send);
        });
    }

    /// A queue pair to each peer: those here, those there.
    fn connect_all(&mut self) -> Vec<(QpId, QpId)> {
        let peers = 1..self.endpoints.len();
        let pair = |peer| {
            let (here, qpn_here) = self.create(SELF);
            let (there, qpn_there) = self.create(peer);
            self.connect(SELF, here, peer, qpn_there);
            self.connect(peer, there, SELF, qpn_here);
            (here, there)
        };
        peers.map(pair).collect()
    }

    fn write(&mut self, node: usize, qp: QpId, length: u32) {
        let now = self.now;
        let sges = SgeList::from_slice(&[Sge {
            addr: 0,
            length,
            lkey: 1,
        }]);
        let request = SendRequest {
            cookie: 0,
            operation: Operation::Write {
                remote_addr: 0,
                rkey: 1,
            },
            payload: Payload::Gather(sges),
            length,
            fence: false,
            solicited: false,
            fault: None,
        };
        self.with(node, |endpoint, _| endpoint.submit(now, qp, request));
    }

    /// `times` WRITEs of `length` both ways on all `pairs`, one after the other, so that all paths have their turns.
    fn use_all(&mut self, pairs: &[(QpId, QpId)], times: usize, length: u32) {
        for _ in 0..times {
            for (at, (here, there)) in pairs.iter().enumerate() {
                self.write(SELF, *here, length);
                self.write(at % PEERS + 1, *there, length);
            }
            self.done = 0;
            for _ in 0..100 {
                self.run(10 * MS);
                if self.done == 2 * pairs.len() {
                    break;
                }
            }
            assert_eq!(self.done, 2 * pairs.len(), "some WRITEs did not complete");
        }
    }

    fn flush(&mut self, node: usize) {
        let now = self.now;
        while self.with(node, |endpoint, train| {
            endpoint.poll_transmit(now, train, &mut Zeros)
        }) {
            let train = &self.train;
            let from = SocketAddr::new(ip(node), 40_000 + u16::from(train.route.source.0));
            for segment in train.segments() {
                let mut bytes = Vec::new();
                for piece in train.pieces(segment) {
                    match *piece {
                        Piece::Bytes { start, length } => {
                            bytes.extend_from_slice(train.bytes(start, length));
                        }
                        Piece::Memory { length, .. } => {
                            bytes.resize(bytes.len() + length as usize, 0);
                        }
                    }
                }
                self.wire.push_back(Datagram {
                    at: now + DELAY_NS,
                    from,
                    to: node_of(train.route.destination.ip()),
                    bytes,
                });
            }
        }
        while let Some(event) = self.with(node, |endpoint, _| endpoint.poll_event()) {
            if let Event::SendDone(done) = event {
                assert_eq!(done.status, Status::Success);
                self.done += 1;
            }
        }
    }

    fn run(&mut self, ns: u64) {
        let until = self.now + ns;
        loop {
            for node in 0..self.endpoints.len() {
                self.flush(node);
            }
            let timers = self.endpoints.iter_mut().filter_map(Endpoint::poll_timeout);
            let arrival = self.wire.front().map(|datagram| datagram.at);
            let Some(next) = timers.chain(arrival).min().filter(|at| *at <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            let now = self.now;
            while self.wire.front().is_some_and(|first| first.at <= now) {
                let Some(datagram) = self.wire.pop_front() else {
                    break;
                };
                let meta = RxMeta {
                    local: LocalIndex(0),
                    source: datagram.from,
                    ce: false,
                };
                self.with(datagram.to, |endpoint, _| {
                    endpoint.handle_datagram(now, &meta, &datagram.bytes, &mut Zeros);
                    endpoint.handle_batch_end(now, &mut Zeros);
                });
            }
            for node in 0..self.endpoints.len() {
                self.with(node, |endpoint, _| endpoint.handle_timeout(now, &mut Zeros));
            }
        }
    }
}

fn taken() -> i64 {
    BYTES.get()
}

#[test]
fn an_idle_connection_and_one_more_queue_pair_take_little() {
    let mut world = World::new(PEERS);
    // What the endpoint has once, and buffers that all share, are there before the count begins.
    let mut first = World::new(1);
    let pairs = first.connect_all();
    first.use_all(&pairs, 20, 1_000_000);
    let before = taken();
    let pairs = world.connect_all();
    world.run(100 * MS);
    let opened = taken();
    world.use_all(&pairs, 20, 1_000_000);
    let used = taken();
    world.run(IDLE_NS);
    let idle = taken();
    let more = world.connect_all();
    world.use_all(&more, 5, 1_000_000);
    let more_used = taken();
    world.run(IDLE_NS);
    let more_idle = taken();
    let each = |from: i64, to: i64| (to - from) / PEERS as i64;
    let queue_pair = each(idle, more_idle);
    println!("a connection, apart from its queue pair of {queue_pair} B:");
    println!("{} B opened", each(before, opened) - queue_pair);
    println!("{} B used", each(before, used) - queue_pair);
    println!("{} B idle", each(before, idle) - queue_pair);
    println!(
        "and {} B used with two queue pairs",
        each(before, more_used)
    );
    assert!(each(before, idle) - queue_pair <= IDLE_CONNECTION_BYTES);
    assert!(queue_pair <= QUEUE_PAIR_BYTES);

    // What slept works again, as it did.
    world.use_all(&pairs, 3, 9_000);
}

#[test]
fn a_connection_in_use_allocates_nothing() {
    let mut world = World::new(1);
    let pairs = world.connect_all();
    world.use_all(&pairs, 100, 1_000_000);
    let before = CALLS.get();
    // Longer than an idle connection stays awake, with pauses.
    for _ in 0..8 {
        world.use_all(&pairs, 10, 100_000);
        world.run(800 * MS);
    }
    assert_eq!(
        CALLS.get() - before,
        0,
        "allocations of a connection in use"
    );
}
