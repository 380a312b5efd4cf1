//! The network of these tests: endpoints with a memory each, and datagrams that take a time, get lost, come twice or
//! out of order between source ports, all drawn from a seed. One clock; nothing happens between its events.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use smallvec::SmallVec;

use crate::endpoint::tests::telemetry::counters_add_up;
use crate::endpoint::{Endpoint, RxMeta};
use crate::event::{Event, QpFailure, ReceiveDone, SendDone};
use crate::host::{AccessDenied, AtomicOperation, Host, Visibility};
use crate::train::{Piece, Train};
use crate::types::*;
use crate::wire::{Gid, Qpn};

pub(super) const PORT_BASE: u16 = 24_791;
pub(super) const MS: u64 = 1_000_000;
const SOURCE_PORTS: u16 = 40_000;
/// Steps after which a test is stuck.
const STEPS_MAX: u32 = 20_000_000;

pub(super) const ALL_RIGHTS: Access = Access(0x10_000f);

/// A registered region.
pub(super) struct Region {
    pub pd: PdId,
    pub addr: u64,
    pub bytes: Vec<u8>,
    pub access: Access,
    pub visibility: Visibility,
}

/// A program's memory and receive queues.
#[derive(Default)]
pub(super) struct Memory {
    pub regions: HashMap<u32, Region>,
    pub receives: HashMap<RqId, VecDeque<Receive>>,
}

impl Memory {
    fn range(
        &mut self,
        pd: PdId,
        key: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<&mut [u8], AccessDenied> {
        let region = self.regions.get_mut(&key).ok_or(AccessDenied)?;
        let start = addr.checked_sub(region.addr).ok_or(AccessDenied)? as usize;
        if region.pd != pd || !region.access.allows(access) {
            return Err(AccessDenied);
        }
        region
            .bytes
            .get_mut(start..start + length as usize)
            .ok_or(AccessDenied)
    }

    pub(super) fn read(&self, key: u32, addr: u64, length: u32) -> Option<&[u8]> {
        let region = self.regions.get(&key)?;
        let start = addr.checked_sub(region.addr)? as usize;
        region.bytes.get(start..start + length as usize)
    }
}

impl Host for Memory {
    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<Visibility, AccessDenied> {
        self.range(pd, rkey, addr, length, access)?;
        Ok(self.regions[&rkey].visibility)
    }

    fn place(&mut self, pd: PdId, key: u32, addr: u64, bytes: &[u8]) -> Result<(), AccessDenied> {
        self.range(pd, key, addr, bytes.len() as u64, Access(0))?
            .copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AccessDenied> {
        let place = self.range(pd, rkey, addr, 8, Access::REMOTE_ATOMIC)?;
        let before = u64::from_ne_bytes((&*place).try_into().map_err(|_| AccessDenied)?);
        place.copy_from_slice(&operation.apply(before).to_ne_bytes());
        Ok(before)
    }

    fn take_receive(&mut self, queue: RqId) -> Option<Receive> {
        self.receives.get_mut(&queue)?.pop_front()
    }

    fn receives_available(&mut self, queue: RqId) -> u32 {
        self.receives
            .get(&queue)
            .map_or(0, |queue| queue.len() as u32)
    }
}

/// One process.
pub(super) struct Node {
    pub endpoint: Endpoint,
    pub memory: Memory,
    pub addresses: Vec<IpAddr>,
    pub port: u16,
    /// First source port of its own.
    source_base: u16,
    pub sends: Vec<SendDone>,
    pub receives: Vec<ReceiveDone>,
    pub failures: Vec<(QpId, QpFailure)>,
    pub established: Vec<QpId>,
    pub silent: Vec<(QpId, bool)>,
    /// Queue pairs of connections whose peer's host said that nobody listens there.
    pub unreachable: Vec<u32>,
    /// Packets of so many bytes were said not to pass when a queue pair failed.
    pub swallowed_bytes: Option<u32>,
    /// It does not run: what arrives is lost.
    pub dead: bool,
    /// It receives and does not send: the test does that.
    pub mute: bool,
}

struct Delivery {
    to: SocketAddr,
    from: SocketAddr,
    bytes: Vec<u8>,
}

/// What the network does to datagrams.
#[derive(Clone, Copy)]
pub(super) struct Weather {
    pub loss: f64,
    pub duplicates: f64,
    pub delay_ns: u64,
    /// A source port takes up to this longer than another.
    pub skew_ns: u64,
    /// A dead process is answered for by its kernel.
    pub icmp: bool,
    pub ce: f64,
}

pub(super) const CALM: Weather = Weather {
    loss: 0.0,
    duplicates: 0.0,
    delay_ns: 10_000,
    skew_ns: 0,
    icmp: false,
    ce: 0.0,
};

pub(super) struct Network {
    pub now: Time,
    pub nodes: Vec<Node>,
    pub weather: Weather,
    pub rng: SmallRng,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    deliveries: HashMap<u64, Delivery>,
    sequence: u64,
    train: Train,
    /// Source addresses whose packets vanish: a dead plane.
    pub cut: Vec<IpAddr>,
    /// Nothing passes from one plane to another.
    pub planes_apart: bool,
    /// Packets carried, for tests that look at them.
    pub sniffed: Option<Vec<Vec<u8>>>,
    pub carried: u64,
    /// Larger packets vanish, or are answered by ICMP, once so many packets were carried.
    pub largest: usize,
    /// Nobody listens at these addresses, and the host that packets to them come to says so.
    pub refused: Vec<IpAddr>,
    pub narrow_after: u64,
    pub tells_largest: bool,
    /// Only those from this address.
    pub narrow: Option<IpAddr>,
}

pub(super) fn config(index: u16, addresses: &[IpAddr]) -> EndpointConfig {
    EndpointConfig {
        index,
        port_base: PORT_BASE,
        locals: addresses
            .iter()
            .enumerate()
            .map(|(plane, ip)| LocalAddress {
                ip: *ip,
                scope_id: 0,
                plane: plane as u8,
                speed_mbps: 0,
            })
            .collect(),
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

pub(super) fn ip(host: u8, plane: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, plane, 0, host))
}

impl Network {
    pub(super) fn new(seed: u64, weather: Weather) -> Self {
        Self {
            now: Time::from_ns(1_000_000_000),
            nodes: Vec::new(),
            weather,
            rng: SmallRng::seed_from_u64(seed),
            queue: BinaryHeap::new(),
            deliveries: HashMap::new(),
            sequence: 0,
            train: Train::default(),
            cut: Vec::new(),
            planes_apart: false,
            sniffed: None,
            carried: 0,
            largest: usize::MAX,
            refused: Vec::new(),
            narrow_after: 0,
            tells_largest: false,
            narrow: None,
        }
    }

    pub(super) fn add(&mut self, config: EndpointConfig) -> usize {
        let at = self.nodes.len();
        let seed = self.rng.random();
        let node = Node {
            addresses: config.locals.iter().map(|local| local.ip).collect(),
            port: PORT_BASE + config.index,
            source_base: SOURCE_PORTS + at as u16 * 256,
            endpoint: Endpoint::new(config, seed, self.now),
            memory: Memory::default(),
            sends: Vec::new(),
            receives: Vec::new(),
            failures: Vec::new(),
            established: Vec::new(),
            silent: Vec::new(),
            swallowed_bytes: None,
            unreachable: Vec::new(),
            dead: false,
            mute: false,
        };
        self.nodes.push(node);
        at
    }

    /// Two hosts with `planes` addresses each.
    pub(super) fn pair(seed: u64, weather: Weather, planes: u8) -> Self {
        Self::unequal_pair(seed, weather, [planes; 2])
    }

    /// Two hosts with so many addresses.
    pub(super) fn unequal_pair(seed: u64, weather: Weather, planes: [u8; 2]) -> Self {
        let mut network = Self::new(seed, weather);
        for (host, planes) in (1..).zip(planes) {
            let addresses: Vec<_> = (0..planes).map(|plane| ip(host, plane)).collect();
            network.add(config(u16::from(host), &addresses));
        }
        network
    }

    fn joins(&self, from: IpAddr, to: IpAddr) -> bool {
        let plane = |ip| match ip {
            IpAddr::V4(v4) => Ipv4Addr::octets(&v4)[1],
            IpAddr::V6(_) => 0,
        };
        !self.planes_apart || plane(from) == plane(to)
    }

    // ---- Programs ----

    pub(super) fn region(
        &mut self,
        node: usize,
        key: u32,
        addr: u64,
        bytes: Vec<u8>,
        visibility: Visibility,
    ) {
        let region = Region {
            pd: PdId(1),
            addr,
            bytes,
            access: ALL_RIGHTS,
            visibility,
        };
        self.nodes[node].memory.regions.insert(key, region);
    }

    pub(super) fn create(&mut self, node: usize) -> (QpId, Qpn) {
        let queue = RqId(self.rng.random());
        let config = QpConfig {
            pd: PdId(1),
            receive_queue: queue,
            shared_receive_queue: false,
        };
        let created = self.nodes[node].endpoint.create_qp(config).unwrap();
        self.nodes[node]
            .memory
            .receives
            .insert(queue, VecDeque::new());
        created
    }

    pub(super) fn queue_of(&self, node: usize, qp: QpId) -> RqId {
        self.nodes[node]
            .endpoint
            .qps
            .get(qp)
            .unwrap()
            .config
            .receive_queue
    }

    pub(super) fn connect(&mut self, node: usize, qp: QpId, peer: usize, dest_qpn: Qpn) {
        let params = ConnectParams {
            source_gid: Gid::from_ip(self.nodes[node].addresses[0]),
            dest_gid: Gid::from_ip(self.nodes[peer].addresses[0]),
            dest_qpn,
            rq_psn: 0,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            access: ALL_RIGHTS,
        };
        let now = self.now;
        self.nodes[node]
            .endpoint
            .connect_qp(now, qp, &params)
            .unwrap();
        self.flush();
    }

    pub(super) fn enable(&mut self, node: usize, qp: QpId, timeout: u8, retry_count: u8) {
        let params = SendParams {
            sq_psn: 0,
            timeout,
            retry_count,
            rnr_retry: 7,
            max_rd_atomic: 16,
        };
        let now = self.now;
        self.nodes[node].endpoint.enable_send(now, qp, &params);
    }

    /// Two connected queue pairs, ready to send.
    pub(super) fn connected(&mut self, a: usize, b: usize) -> (QpId, QpId) {
        let (qp_a, qpn_a) = self.create(a);
        let (qp_b, qpn_b) = self.create(b);
        self.connect(a, qp_a, b, qpn_b);
        self.connect(b, qp_b, a, qpn_a);
        self.enable(a, qp_a, 14, 7);
        self.enable(b, qp_b, 14, 7);
        (qp_a, qp_b)
    }

    pub(super) fn submit(
        &mut self,
        node: usize,
        qp: QpId,
        cookie: u64,
        operation: Operation,
        payload: Payload,
    ) {
        let length = match &payload {
            Payload::Inline(bytes) => bytes.len() as u32,
            Payload::Gather(sges) => sges.iter().map(|sge| sge.length).sum(),
        };
        let request = SendRequest {
            cookie,
            operation,
            payload,
            length,
            fence: false,
            solicited: false,
            fault: None,
        };
        let now = self.now;
        self.nodes[node].endpoint.submit(now, qp, request);
        self.flush();
    }

    pub(super) fn post_receive(&mut self, node: usize, qp: QpId, cookie: u64, sge: Sge) {
        let queue = self.queue_of(node, qp);
        let Node {
            endpoint, memory, ..
        } = &mut self.nodes[node];
        let receive = Receive {
            cookie,
            sges: SmallVec::from_slice(&[sge]),
        };
        memory.receives.get_mut(&queue).unwrap().push_back(receive);
        if endpoint.wants_receive_notice(qp) {
            endpoint.receives_posted(self.now, qp, memory);
        }
        self.flush();
    }

    // ---- Time ----

    /// Lets everything leave that wants to, and takes all events.
    pub(super) fn flush(&mut self) {
        for at in 0..self.nodes.len() {
            if !self.nodes[at].dead {
                self.flush_node(at);
            }
        }
    }

    fn flush_node(&mut self, at: usize) {
        let mut train = std::mem::take(&mut self.train);
        let mut sent = 0;
        while !self.nodes[at].mute {
            let Node {
                endpoint, memory, ..
            } = &mut self.nodes[at];
            if !endpoint.poll_transmit(self.now, &mut train, memory) {
                break;
            }
            sent += 1;
            assert!(sent < 100_000, "poll_transmit does not end");
            self.carry(at, &train);
        }
        self.train = train;
        let node = &mut self.nodes[at];
        while let Some(event) = node.endpoint.poll_event() {
            match event {
                Event::SendDone(done) => node.sends.push(done),
                Event::ReceiveDone(done) => node.receives.push(done),
                Event::QpFailed { qp, failure } => node.failures.push((qp, failure)),
                Event::Established { qp } => node.established.push(qp),
                Event::PeerUnreachable { queue_pairs, .. } => node.unreachable.push(queue_pairs),
                Event::PeerSilent {
                    qp,
                    answered,
                    swallowed_bytes,
                    ..
                } => {
                    node.silent.push((qp, answered));
                    node.swallowed_bytes = swallowed_bytes.or(node.swallowed_bytes);
                }
            }
        }
    }

    pub(super) fn carry(&mut self, at: usize, train: &Train) {
        let node = &self.nodes[at];
        assert!(!train.is_empty());
        let from = SocketAddr::new(
            node.addresses[usize::from(train.route.local.0)],
            node.source_base + u16::from(train.route.source.0),
        );
        let (to, last) = (train.route.destination, train.segments().len() - 1);
        let mut packets = Vec::new();
        for (number, segment) in train.segments().iter().enumerate() {
            assert!(
                number == last || segment.length == train.segment_bytes(),
                "unequal segments"
            );
            assert!(
                segment.length <= train.segment_bytes(),
                "a last segment that is longer"
            );
            let mut bytes = Vec::new();
            for piece in train.pieces(segment) {
                match *piece {
                    Piece::Bytes { start, length } => {
                        bytes.extend_from_slice(train.bytes(start, length))
                    }
                    Piece::Memory { key, addr, length } => {
                        match node.memory.read(key, addr, length) {
                            Some(found) => bytes.extend_from_slice(found),
                            None => {
                                let owner = segment.owner.unwrap();
                                let Node {
                                    endpoint, memory, ..
                                } = &mut self.nodes[at];
                                endpoint.handle_bad_memory(self.now, owner, memory);
                                return;
                            }
                        }
                    }
                }
            }
            assert_eq!(bytes.len(), segment.length as usize);
            packets.push(bytes);
        }
        assert!(train.total_bytes() <= 65_507);
        for bytes in packets {
            self.inject(from, to, bytes);
        }
    }

    /// Puts a datagram on the wire.
    pub(super) fn inject(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        self.carried += 1;
        if let Some(sniffed) = &mut self.sniffed {
            sniffed.push(bytes.clone());
        }
        let vanishes = self.cut.contains(&from.ip()) || !self.joins(from.ip(), to.ip());
        if vanishes || self.rng.random_bool(self.weather.loss) {
            return;
        }
        let narrow = self.narrow.is_none_or(|narrow| narrow == from.ip())
            && self.carried > self.narrow_after;
        if bytes.len() > self.largest && narrow {
            if self.tells_largest {
                self.too_large(from, to);
            }
            return;
        }
        let skew = if self.weather.skew_ns == 0 {
            0
        } else {
            u64::from(from.port()) * 7919 % self.weather.skew_ns
        };
        let at = self.now + self.weather.delay_ns + skew;
        let copies = if self.rng.random_bool(self.weather.duplicates) {
            2
        } else {
            1
        };
        for copy in 0..copies {
            self.sequence += 1;
            self.deliveries.insert(
                self.sequence,
                Delivery {
                    to,
                    from,
                    bytes: bytes.clone(),
                },
            );
            self.queue.push(Reverse((at + copy * 3_000, self.sequence)));
        }
    }

    fn deliver(&mut self, delivery: Delivery) {
        let Delivery { to, from, bytes } = delivery;
        let ce = self.rng.random_bool(self.weather.ce);
        // Source ports are deaf.
        if self.refused.contains(&to.ip()) {
            self.unreachable(from, to);
            return;
        }
        let owner = |node: &&mut Node| node.addresses.contains(&to.ip()) && node.port == to.port();
        let Some(node) = self
            .nodes
            .iter_mut()
            .filter(|node| !node.dead)
            .find(|node| owner(node))
        else {
            if self.weather.icmp {
                self.unreachable(from, to);
            }
            return;
        };
        let local = node
            .addresses
            .iter()
            .position(|address| *address == to.ip())
            .unwrap();
        let meta = RxMeta {
            local: LocalIndex(local as u8),
            source: from,
            ce,
        };
        node.endpoint
            .handle_datagram(self.now, &meta, &bytes, &mut node.memory);
        node.endpoint.handle_batch_end(self.now, &mut node.memory);
    }

    fn unreachable(&mut self, from: SocketAddr, to: SocketAddr) {
        let now = self.now;
        for node in self
            .nodes
            .iter_mut()
            .filter(|node| node.addresses.contains(&from.ip()) && !node.dead)
        {
            let slot = from.port().wrapping_sub(node.source_base);
            if slot < 256 {
                node.endpoint
                    .handle_unreachable(now, to, Some(SourceSlot(slot as u8)));
            }
        }
    }

    fn too_large(&mut self, from: SocketAddr, to: SocketAddr) {
        let mut nodes = self.nodes.iter_mut();
        let Some(node) = nodes.find(|node| node.addresses.contains(&from.ip())) else {
            return;
        };
        let route = Route {
            local: LocalIndex(0),
            source: SourceSlot(0),
            destination: to,
        };
        let bytes = self.largest as u32 + 1;
        node.endpoint.handle_too_large(self.now, route, bytes);
    }

    /// The next thing that happens; false if nothing will.
    pub(super) fn step(&mut self, until: Time) -> bool {
        self.flush();
        let timers = self
            .nodes
            .iter_mut()
            .filter(|node| !node.dead)
            .filter_map(|node| node.endpoint.poll_timeout());
        let next = self
            .queue
            .peek()
            .map(|Reverse((at, _))| *at)
            .into_iter()
            .chain(timers)
            .min();
        let Some(next) = next.filter(|next| *next <= until) else {
            self.now = self.now.max(until);
            return false;
        };
        self.now = self.now.max(next);
        while let Some(Reverse((at, sequence))) = self.queue.peek().copied() {
            if at > self.now {
                break;
            }
            self.queue.pop();
            let delivery = self.deliveries.remove(&sequence).unwrap();
            self.deliver(delivery);
        }
        for node in self.nodes.iter_mut().filter(|node| !node.dead) {
            if node
                .endpoint
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                node.endpoint.handle_timeout(self.now, &mut node.memory);
            }
        }
        self.flush();
        true
    }

    /// Runs for `ns`.
    pub(super) fn run(&mut self, ns: u64) {
        let until = self.now + ns;
        self.run_while(until, |_| true);
    }

    /// Runs until `done` or until `ns` are over; says whether it was done.
    pub(super) fn run_until(&mut self, ns: u64, done: impl Fn(&Self) -> bool) -> bool {
        let until = self.now + ns;
        self.run_while(until, |network| !done(network));
        done(self)
    }

    fn run_while(&mut self, until: Time, go_on: impl Fn(&Self) -> bool) {
        let mut steps = 0;
        while go_on(self) && self.step(until) {
            steps += 1;
            assert!(steps < STEPS_MAX, "stuck at {:?}", self.now);
        }
        for node in &self.nodes {
            counters_add_up(&node.endpoint);
        }
    }
}

/// `length` bytes that differ from place to place.
pub(super) fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| {
            (at as u8)
                .wrapping_mul(31)
                .wrapping_add((at >> 8) as u8)
                .wrapping_add(seed)
        })
        .collect()
}

pub(super) fn gather(lkey: u32, addr: u64, length: u32) -> Payload {
    Payload::Gather(SmallVec::from_slice(&[Sge { addr, length, lkey }]))
}
