//! What happens to a datagram between two nodes. Each node has one link a plane, which it fills at the link's rate; the
//! plane has several routes of different length, of which the source port chooses one (ECMP); the port of the switch
//! towards the receiver has a finite queue that marks (CE) when it is long. Faults are drawn from the seed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use metaroce_proto::types::{SourceSlot, Time};
use rand::Rng;
use rand::rngs::SmallRng;

use crate::NodeId;
use crate::script::{Script, Step};
use crate::trace::Fate;

/// Routes that a plane has between two nodes.
pub const ROUTES: u64 = 8;

/// Bytes of Ethernet, IP and UDP around a datagram, as they take time on the link.
pub(crate) const LOWER_BYTES: u64 = 66;

/// Bytes from the start of a datagram in which damage is shown to the parser; further on the UDP checksum finds it.
const HEADER_BYTES: usize = 64;

/// First source port of a node.
const SOURCE_PORT_BASE: u16 = 50_000;

/// The network's properties.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Planes.
    pub planes: u8,
    /// Rate of a node's link.
    pub link_bits_per_s: u64,
    /// Rate of a switch's port towards a node.
    pub port_bits_per_s: u64,
    /// Queue of that port.
    pub queue_bytes: u64,
    /// It marks above this.
    pub mark_bytes: u64,
    /// One-way delay of the shortest route.
    pub delay_ns: u64,
    /// Routes are longer by up to this.
    pub route_spread_ns: u64,
    /// Packets are late by up to this, without overtaking one another.
    pub jitter_ns: u64,
    /// Part of the packets that leave their order.
    pub reorder: f64,
    /// By up to this.
    pub reorder_ns: u64,
    /// Part of the packets that get lost one by one.
    pub loss: f64,
    /// Part of the packets with which a burst of losses begins.
    pub burst: f64,
    /// Longest burst.
    pub burst_ns: u64,
    /// Part of the packets that arrive twice.
    pub duplicate: f64,
    /// Part of the packets that are damaged.
    pub corrupt: f64,
    /// Part of the packets that are marked for no reason.
    pub mark: f64,
    /// Larger UDP payloads vanish.
    pub largest_bytes: u64,
    /// What happens to the first packets one by one, before all of the above.
    pub script: Script,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            planes: 1,
            link_bits_per_s: 100_000_000_000,
            port_bits_per_s: 100_000_000_000,
            queue_bytes: 1 << 20,
            mark_bytes: 130_000,
            delay_ns: 5_000,
            route_spread_ns: 0,
            jitter_ns: 0,
            reorder: 0.0,
            reorder_ns: 0,
            loss: 0.0,
            burst: 0.0,
            burst_ns: 0,
            duplicate: 0.0,
            corrupt: 0.0,
            mark: 0.0,
            largest_bytes: u64::MAX,
            script: Script::default(),
        }
    }
}

/// A datagram under way.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Sender.
    pub from: NodeId,
    /// Receiver.
    pub to: NodeId,
    /// Plane.
    pub plane: u8,
    /// Source socket.
    pub slot: SourceSlot,
    /// Destination.
    pub destination: SocketAddr,
    /// Congestion mark.
    pub ce: bool,
    /// UDP payload.
    pub bytes: Rc<[u8]>,
    /// Bytes after these that are counted and not carried.
    pub uncarried_bytes: u32,
}

/// Address of a node on a plane.
pub fn address(node: NodeId, plane: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(
        10,
        plane,
        (node.0 >> 8) as u8,
        node.0 as u8 + 1,
    ))
}

/// Node and plane of an address.
pub fn owner(ip: IpAddr) -> Option<(NodeId, u8)> {
    let IpAddr::V4(v4) = ip else { return None };
    let [ten, plane, high, low] = v4.octets();
    (ten == 10 && low > 0).then(|| {
        (
            NodeId((usize::from(high) << 8) | (usize::from(low) - 1)),
            plane,
        )
    })
}

/// Port of a source socket.
pub fn source_port(slot: SourceSlot) -> u16 {
    SOURCE_PORT_BASE + u16::from(slot.0)
}

/// Source socket of a port.
pub fn slot_of(port: u16) -> Option<SourceSlot> {
    port.checked_sub(SOURCE_PORT_BASE)
        .and_then(|slot| u8::try_from(slot).ok())
        .map(SourceSlot)
}

/// A part of the network that delivers nothing for a time.
#[derive(Clone, Copy, Debug)]
pub struct Darkness {
    /// Only from this node.
    pub from: Option<NodeId>,
    /// Only to this node.
    pub to: Option<NodeId>,
    /// Only on this plane.
    pub plane: Option<u8>,
    /// Only on these routes, a bit each.
    pub routes: u8,
    /// Until then.
    pub until: Time,
}

impl Datagram {
    /// Which of the plane's routes the switches choose for it.
    pub fn route(&self) -> u64 {
        let mixed = u64::from(source_port(self.slot)) << 32
            | (self.from.0 as u64) << 20
            | (self.to.0 as u64) << 8;
        let mixed = (mixed | u64::from(self.plane)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32 & (ROUTES - 1)
    }

    /// Bytes of UDP payload.
    pub fn length(&self) -> u64 {
        self.bytes.len() as u64 + u64::from(self.uncarried_bytes)
    }

    /// What it takes of a socket's buffer, as the kernel counts: with its own structures, in powers of two.
    pub fn buffer_bytes(&self) -> u64 {
        (self.length() + 512).next_power_of_two()
    }

    /// Where it comes from.
    pub fn source(&self) -> SocketAddr {
        SocketAddr::new(address(self.from, self.plane), source_port(self.slot))
    }
}

/// A transmitter that sends one packet after the other.
#[derive(Clone, Copy, Default, Debug)]
struct Line {
    free_at: Time,
}

impl Line {
    fn backlog_bytes(&self, now: Time, bits_per_s: u64) -> u64 {
        self.free_at.since_ns(now) * (bits_per_s / 1_000_000) / 8_000
    }

    /// When the last bit of a packet that comes now has left.
    fn transmit(&mut self, now: Time, bytes: u64, bits_per_s: u64) -> Time {
        let ns = (bytes + LOWER_BYTES) * 8_000 / (bits_per_s / 1_000_000).max(1);
        self.free_at = self.free_at.max(now) + ns;
        self.free_at
    }
}

/// The network's state.
#[derive(Debug)]
pub struct Network {
    config: NetworkConfig,
    rng: SmallRng,
    nodes: usize,
    links: Vec<Line>,
    ports: Vec<Line>,
    /// Where a packet on (sender, plane, route) may arrive at the earliest: order is kept.
    last_arrival: Vec<Time>,
    /// Everything is lost until then.
    burst_until: Time,
    dark: Vec<Darkness>,
}

impl Network {
    /// The network of `nodes` nodes.
    pub fn new(config: NetworkConfig, nodes: usize, rng: SmallRng) -> Self {
        let lines = nodes * usize::from(config.planes);
        Self {
            links: vec![Line::default(); lines],
            ports: vec![Line::default(); lines],
            last_arrival: vec![Time::ZERO; lines * ROUTES as usize],
            config,
            rng,
            nodes,
            burst_until: Time::ZERO,
            dark: Vec::new(),
        }
    }

    /// Its properties now.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Changes a property while it runs.
    pub fn config_mut(&mut self) -> &mut NetworkConfig {
        &mut self.config
    }

    /// A part goes dark.
    pub fn darken(&mut self, darkness: Darkness) {
        self.dark.push(darkness);
    }

    /// Bytes that a node has handed to its links and that have not left, per link.
    pub fn backlog_bytes(&self, node: NodeId, now: Time) -> u64 {
        let rate = self.config.link_bits_per_s;
        let of_plane = |plane| self.links[self.line(node, plane)].backlog_bytes(now, rate);
        (0..self.config.planes).map(of_plane).sum::<u64>() / u64::from(self.config.planes)
    }

    fn line(&self, node: NodeId, plane: u8) -> usize {
        debug_assert!(node.0 < self.nodes, "{node} exists");
        node.0 * usize::from(self.config.planes) + usize::from(plane)
    }

    fn is_dark(&mut self, now: Time, datagram: &Datagram) -> bool {
        self.dark.retain(|dark| dark.until > now);
        let route = datagram.route();
        self.dark.iter().any(|dark| {
            dark.from.is_none_or(|from| from == datagram.from)
                && dark.to.is_none_or(|to| to == datagram.to)
                && dark.plane.is_none_or(|plane| plane == datagram.plane)
                && dark.routes >> route & 1 == 1
        })
    }

    fn is_lost(&mut self, now: Time) -> bool {
        if self.burst_until > now {
            return true;
        }
        if self.config.burst > 0.0 && self.rng.random_bool(self.config.burst) {
            self.burst_until = now + self.rng.random_range(0..=self.config.burst_ns);
            return true;
        }
        self.config.loss > 0.0 && self.rng.random_bool(self.config.loss)
    }

    /// A node sends. Every copy that survives is in `arrivals` with the time at which it reaches the last switch.
    pub fn send(
        &mut self,
        now: Time,
        mut datagram: Datagram,
        arrivals: &mut Vec<(Time, Datagram)>,
    ) -> Result<(), Fate> {
        let line = self.line(datagram.from, datagram.plane);
        let left = self.links[line].transmit(now, datagram.length(), self.config.link_bits_per_s);
        if self.is_dark(now, &datagram) {
            return Err(Fate::Dark);
        }
        if datagram.length() > self.config.largest_bytes {
            return Err(Fate::TooLarge);
        }
        if let Some(step) = self.config.script.next(now, &datagram) {
            return self.follow(step, left, datagram, arrivals);
        }
        if self.is_lost(now) {
            return Err(Fate::Lost);
        }
        if self.config.corrupt > 0.0 && self.rng.random_bool(self.config.corrupt) {
            datagram.bytes = self.damage(&datagram.bytes).ok_or(Fate::Checksum)?;
        }
        if self.config.mark > 0.0 && self.rng.random_bool(self.config.mark) {
            datagram.ce = true;
        }
        if self.config.duplicate > 0.0 && self.rng.random_bool(self.config.duplicate) {
            let at = self.arrival(left, &datagram);
            arrivals.push((at + self.rng.random_range(0..50_000), datagram.clone()));
        }
        let at = self.arrival(left, &datagram);
        arrivals.push((at, datagram));
        Ok(())
    }

    /// What the script says.
    fn follow(
        &mut self,
        step: Step,
        left: Time,
        mut datagram: Datagram,
        arrivals: &mut Vec<(Time, Datagram)>,
    ) -> Result<(), Fate> {
        let at = self.arrival(left, &datagram);
        match step {
            Step::Lose => return Err(Fate::Lost),
            Step::Deliver { mark } => datagram.ce |= mark,
            Step::Delay(ns) => {
                arrivals.push((at + ns, datagram));
                return Ok(());
            }
            Step::Duplicate(ns) => arrivals.push((at + ns, datagram.clone())),
            Step::Alter(bytes) => datagram.bytes = bytes,
            Step::Replay(earlier) => arrivals.push((at, *earlier)),
        }
        arrivals.push((at, datagram));
        Ok(())
    }

    fn arrival(&mut self, left: Time, datagram: &Datagram) -> Time {
        let route = datagram.route();
        let config = &self.config;
        let jitter_ns = if config.jitter_ns > 0 {
            self.rng.random_range(0..=config.jitter_ns)
        } else {
            0
        };
        let length_ns = config.delay_ns + config.route_spread_ns * route / (ROUTES - 1);
        let at = left + length_ns + jitter_ns;
        if config.reorder > 0.0 && self.rng.random_bool(config.reorder) {
            return at + self.rng.random_range(0..=config.reorder_ns);
        }
        let line = self.line(datagram.from, datagram.plane);
        let last = &mut self.last_arrival[line * ROUTES as usize + route as usize];
        *last = at.max(*last);
        *last
    }

    /// Flips some bits; `None` where the UDP checksum finds it.
    fn damage(&mut self, bytes: &[u8]) -> Option<Rc<[u8]>> {
        let mut damaged = bytes.to_vec();
        let mut found = false;
        for _ in 0..self.rng.random_range(1..=3) {
            let bit = self.rng.random_range(0..damaged.len() * 8);
            found |= bit / 8 >= HEADER_BYTES;
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        // Packets other than DATA are all header, with a checksum of our own over everything.
        let is_data = bytes[0] & 0xf == 1;
        (!found || !is_data).then(|| damaged.into())
    }

    /// A datagram reaches the last switch: when it reaches its node, if it does.
    pub fn forward(&mut self, now: Time, datagram: &mut Datagram) -> Result<Time, Fate> {
        let line = self.line(datagram.to, datagram.plane);
        let (rate, bytes) = (self.config.port_bits_per_s, datagram.length());
        let backlog = self.ports[line].backlog_bytes(now, rate);
        if backlog + bytes > self.config.queue_bytes {
            return Err(Fate::Overflow);
        }
        datagram.ce |= backlog > self.config.mark_bytes;
        Ok(self.ports[line].transmit(now, bytes, rate))
    }
}
