//! One host: an endpoint, its socket's receive buffer, and when it is driven. Real hosts read their sockets in batches,
//! some time after a datagram came, and are not run at all now and then; all of that is drawn here.

use std::collections::VecDeque;

use metaroce_proto::cc::Algorithm;
use metaroce_proto::endpoint::Endpoint;
use metaroce_proto::train::Train;
use metaroce_proto::types::{Driving, EndpointConfig, LocalAddress, Time};

use crate::NodeId;
use crate::memory::Memory;
use crate::network::{Datagram, address};

/// Port range of all nodes.
pub const PORT_BASE: u16 = 24_791;

/// Source sockets of each address.
pub const SOURCE_SLOTS: u8 = 32;

/// Records of an endpoint's log between two of its turns: more than one turn can make.
const LOG_RECORDS: usize = 1024;

/// ICMP errors that a host sends at once, and one a second after that, as Linux does.
const ICMP_BURST: u32 = 6;
const ICMP_INTERVAL_NS: u64 = 1_000_000_000;

/// How a host drives its endpoint.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// A datagram is read up to this later.
    pub wake_ns: u64,
    /// Timers are up to this late.
    pub timer_slack_ns: u64,
    /// Work for each packet, sent or received.
    pub packet_ns: u64,
    /// More work for each received one: software that takes in less than its link brings.
    pub intake_ns: u64,
    /// Datagrams read in one go.
    pub batch: usize,
    /// The socket's receive buffer.
    pub receive_buffer_bytes: u64,
    /// The socket's send buffer.
    pub send_buffer_bytes: u64,
    /// Packets leave before completions are looked at.
    pub sends_first: bool,
    /// Payload of a full packet.
    pub payload_bytes: u16,
    /// Paths per connection.
    pub paths: u8,
    /// Packets of a train at most.
    pub train_segments: u16,
    /// Which timing constants.
    pub driving: Driving,
    /// Congestion control of its paths.
    pub congestion: &'static Algorithm,
    /// Speed of its port: payload of UDP, in bits per second.
    pub port_bits_per_s: Option<u64>,
    /// What it believes to be able to take in if that is less. What it does not know it measures.
    pub drain_bits_per_s: Option<u64>,
    /// It grants so many times what it may: 1, unless what is tested is that this is found.
    pub grants_times: u32,
    /// For all regions.
    pub force_strict: Option<bool>,
    /// The most memory for packets that are held back.
    pub hold_bytes: u32,
    /// On average so often a path of each busy connection takes another route for no reason; 0 is never.
    pub reroll_ns: u64,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            wake_ns: 2_000,
            timer_slack_ns: 20_000,
            packet_ns: 300,
            intake_ns: 0,
            batch: 64,
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 256 << 10,
            sends_first: true,
            payload_bytes: 4096,
            paths: 16,
            train_segments: 64,
            driving: Driving::Sockets,
            congestion: Default::default(),
            port_bits_per_s: None,
            drain_bits_per_s: None,
            grants_times: 1,
            force_strict: None,
            hold_bytes: 64 << 20,
            reroll_ns: 0,
        }
    }
}

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// Its endpoint runs.
    Up,
    /// It says goodbye, until then at most.
    Closing(Time),
    /// The process is gone; the kernel answers with ICMP.
    Gone,
    /// The host is gone: nothing answers.
    Silent,
}

/// See the file's head.
#[derive(Debug)]
pub struct Node {
    /// Itself.
    pub id: NodeId,
    /// How it is driven.
    pub config: HostConfig,
    /// Is there anybody?
    pub life: Life,
    /// How often it was started.
    pub generation: u64,
    /// Its end of all connections.
    pub endpoint: Endpoint,
    /// Its memory.
    pub memory: Memory,
    /// Datagrams in the socket's buffer.
    pub inbox: VecDeque<Box<Datagram>>,
    /// Bytes of them.
    pub inbox_bytes: u64,
    /// The most that there were.
    pub longest_inbox_bytes: u64,
    /// Datagrams that found it full, not told yet.
    pub drops: u32,
    /// Datagrams that found it full, in all.
    pub drops_total: u64,
    /// It is not run until then.
    pub paused_until: Time,
    /// It works until then.
    pub busy_until: Time,
    /// Its next turn.
    pub turn_at: Option<Time>,
    /// Turns in a row that were asked for at once and found nothing to do.
    pub spins: u32,
    /// Turns that it made.
    pub turns: u64,
    /// Reused.
    pub train: Train,
    /// Datagrams that were not carried whole are given to the endpoint from here, with any bytes after the first ones.
    pub scratch: Vec<u8>,
    logs: bool,
    icmp_left: u32,
    icmp_filled_at: Time,
}

/// What an endpoint is told about its host.
pub fn endpoint_config(id: NodeId, planes: u8, config: &HostConfig) -> EndpointConfig {
    let local = |plane| LocalAddress {
        ip: address(id, plane),
        scope_id: 0,
        plane,
        speed_mbps: 0,
    };
    EndpointConfig {
        index: id.0 as u16,
        port_base: PORT_BASE,
        locals: (0..planes).map(local).collect(),
        source_slots: SOURCE_SLOTS,
        payload_bytes: config.payload_bytes,
        train_segments: config.train_segments,
        train_bytes: 65_507,
        receive_window_bytes: (config.receive_buffer_bytes / 2) as u32,
        paths: config.paths,
        driving: config.driving,
        congestion: config.congestion,
        force_strict: config.force_strict,
        hold_bytes: config.hold_bytes,
        reroll_ns: config.reroll_ns,
    }
}

impl Node {
    /// A node that has just been started.
    pub fn new(id: NodeId, planes: u8, config: HostConfig, seed: u64, now: Time) -> Self {
        let mut endpoint = Endpoint::new(endpoint_config(id, planes, &config), seed, now);
        let bytes = |bits: Option<u64>| bits.map(|bits| bits / 8);
        endpoint.set_drain(
            bytes(config.port_bits_per_s),
            bytes(config.drain_bits_per_s),
        );
        Self {
            id,
            life: Life::Up,
            generation: 0,
            endpoint,
            memory: Memory::new(config.force_strict),
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            longest_inbox_bytes: 0,
            drops: 0,
            drops_total: 0,
            paused_until: Time::ZERO,
            busy_until: Time::ZERO,
            turn_at: None,
            spins: 0,
            turns: 0,
            train: Train::default(),
            scratch: Vec::new(),
            config,
            logs: false,
            icmp_left: ICMP_BURST,
            icmp_filled_at: Time::ZERO,
        }
    }

    /// Its endpoint keeps a log of events.
    pub fn enable_log(&mut self) {
        self.logs = true;
        self.endpoint.enable_log(LOG_RECORDS);
    }

    /// It is started again on the same port, with nothing of what it had.
    pub fn restart(&mut self, planes: u8, seed: u64, now: Time) {
        let mut fresh = Self::new(self.id, planes, self.config.clone(), seed, now);
        fresh.generation = self.generation + 1;
        fresh.turns = self.turns;
        if self.logs {
            fresh.enable_log();
        }
        if self.memory.is_hollow() {
            fresh.memory.make_hollow();
        }
        *self = fresh;
    }

    /// Whether an endpoint is there.
    pub fn is_up(&self) -> bool {
        matches!(self.life, Life::Up | Life::Closing(_))
    }

    /// UDP port of the endpoint.
    pub fn port(&self) -> u16 {
        PORT_BASE + self.id.0 as u16
    }

    /// A datagram reaches the socket: takes room for it, or counts it as dropped where its buffer is full.
    pub fn take_room(&mut self, datagram: &Datagram) -> bool {
        let cost = datagram.buffer_bytes();
        if self.inbox_bytes + cost > self.config.receive_buffer_bytes {
            self.drops += 1;
            self.drops_total += 1;
            return false;
        }
        self.inbox_bytes += cost;
        self.longest_inbox_bytes = self.longest_inbox_bytes.max(self.inbox_bytes);
        true
    }

    /// How full the socket's buffer is.
    pub fn fill_per_mille(&self) -> u64 {
        self.inbox_bytes * 1_000 / self.config.receive_buffer_bytes.max(1)
    }

    /// Whether it answers a datagram with ICMP.
    pub fn answers_unreachable(&mut self, now: Time) -> bool {
        if self.life != Life::Gone {
            return false;
        }
        if now.since_ns(self.icmp_filled_at) >= ICMP_INTERVAL_NS {
            self.icmp_left = (self.icmp_left + 1).min(ICMP_BURST);
            self.icmp_filled_at = now;
        }
        let answers = self.icmp_left > 0;
        self.icmp_left -= u32::from(answers);
        answers
    }
}
