//! What a simulated program asks for, as numbers; `program.rs` does it.

use metaroce_proto::types::Status;
use rand::Rng;
use rand::rngs::SmallRng;

/// How often each kind of request is drawn, relative to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    /// SENDs of all kinds.
    pub send: u32,
    /// WRITEs.
    pub write: u32,
    /// WRITEs with immediate.
    pub write_imm: u32,
    /// READs.
    pub read: u32,
    /// Atomics.
    pub atomic: u32,
    /// A WRITE and a READ of what it wrote.
    pub write_read: u32,
    /// A READ and a fenced SEND of what it brought.
    pub read_send: u32,
}

impl Mix {
    /// Some of everything.
    pub const ALL: Self = Self {
        send: 8,
        write: 8,
        write_imm: 4,
        read: 4,
        atomic: 3,
        write_read: 2,
        read_send: 2,
    };
    /// Only SENDs.
    pub const SENDS: Self = Self {
        send: 1,
        write: 0,
        write_imm: 0,
        read: 0,
        atomic: 0,
        write_read: 0,
        read_send: 0,
    };
    /// Only WRITEs, some with immediate.
    pub const WRITES: Self = Self {
        send: 0,
        write: 7,
        write_imm: 1,
        read: 0,
        atomic: 0,
        write_read: 0,
        read_send: 0,
    };
    /// Only WRITEs with immediate.
    pub const WRITES_IMM: Self = Self {
        send: 0,
        write: 0,
        write_imm: 1,
        read: 0,
        atomic: 0,
        write_read: 0,
        read_send: 0,
    };
    /// Only READs.
    pub const READS: Self = Self {
        send: 0,
        write: 0,
        write_imm: 0,
        read: 1,
        atomic: 0,
        write_read: 0,
        read_send: 0,
    };
    /// Only atomics.
    pub const ATOMICS: Self = Self {
        send: 0,
        write: 0,
        write_imm: 0,
        read: 0,
        atomic: 1,
        write_read: 0,
        read_send: 0,
    };

    pub(crate) fn draw(&self, rng: &mut SmallRng) -> Draw {
        let weights = [
            (self.send, Draw::Send),
            (self.write, Draw::Write),
            (self.write_imm, Draw::WriteImm),
            (self.read, Draw::Read),
            (self.atomic, Draw::Atomic),
            (self.write_read, Draw::WriteRead),
            (self.read_send, Draw::ReadSend),
        ];
        let total = weights.iter().map(|(weight, _)| weight).sum::<u32>().max(1);
        let mut rest = rng.random_range(0..total);
        for (weight, draw) in weights {
            if rest < weight {
                return draw;
            }
            rest -= weight;
        }
        Draw::Send
    }
}

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Draw {
    Send,
    Write,
    WriteImm,
    Read,
    Atomic,
    WriteRead,
    ReadSend,
}

/// A request that must fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// WRITE with a key that is nobody's.
    WriteKey,
    /// WRITE past the end of its region.
    WriteBounds,
    /// WRITE to a region that only allows reading.
    WriteRights,
    /// WRITE to a region of another protection domain.
    WriteDomain,
    /// WRITE that uses an lkey as its rkey.
    WriteLocalKey,
    /// WRITE with immediate, with a key that is nobody's.
    WriteImmKey,
    /// READ with a key that is nobody's.
    ReadKey,
    /// READ that lands where no region is.
    ReadLanding,
    /// Atomic with a key that is nobody's.
    AtomicKey,
    /// Atomic at an address that is no multiple of 8.
    AtomicAlignment,
    /// SEND that is longer than its receive.
    SendTooLong,
    /// SEND whose memory is not registered.
    SendLocalKey,
    /// Found wrong by the verbs layer when it was posted.
    Fault,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::WriteKey,
        Self::WriteBounds,
        Self::WriteRights,
        Self::WriteDomain,
        Self::WriteLocalKey,
        Self::WriteImmKey,
        Self::ReadKey,
        Self::ReadLanding,
        Self::AtomicKey,
        Self::AtomicAlignment,
        Self::SendTooLong,
        Self::SendLocalKey,
        Self::Fault,
    ];

    /// What the request must complete with.
    pub const fn status(self) -> Status {
        match self {
            Self::WriteKey
            | Self::WriteBounds
            | Self::WriteRights
            | Self::WriteDomain
            | Self::WriteLocalKey
            | Self::WriteImmKey
            | Self::ReadKey
            | Self::AtomicKey => Status::RemoteAccess,
            Self::AtomicAlignment | Self::SendTooLong => Status::RemoteInvalidRequest,
            Self::ReadLanding | Self::SendLocalKey | Self::Fault => Status::LocalProtection,
        }
    }
}

/// What a program does when it has sent everything and received everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It keeps its queue pair.
    Stay,
    /// It destroys its queue pair at once.
    Destroy,
    /// Its process exits as soon as all its programs are at their end.
    Exit,
}

/// What one side of a connected pair does.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Requests in all.
    pub messages: u32,
    /// Requests outstanding at most.
    pub depth: u32,
    /// Longest message.
    pub max_bytes: u32,
    /// All messages have the greatest length.
    pub all_long: bool,
    /// Kinds of requests.
    pub mix: Mix,
    /// Of a hundred WRITEs go to a region with relaxed ordering.
    pub relaxed_percent: u32,
    /// Most scatter/gather entries.
    pub sges: u32,
    /// Of a hundred requests are fenced.
    pub fence_percent: u32,
    /// Up to this long between a completion and the next request.
    pub think_ns: u64,
    /// Receives kept posted.
    pub receives: u32,
    /// Receives posted before anything arrives.
    pub first_receives: u32,
    /// Up to this long between the completion of a receive and the posting of the next.
    pub receive_delay_ns: u64,
    /// The program goes to RTR and RTS up to this late.
    pub start_ns: u64,
    /// Between RTR, when the connection begins to be set up, and RTS lies up to this.
    pub idle_ns: u64,
    /// QP attributes.
    pub timeout: u8,
    /// QP attribute.
    pub retry_count: u8,
    /// QP attribute.
    pub rnr_retry: u8,
    /// QP attribute.
    pub min_rnr_timer: u8,
    /// QP attribute, for both directions.
    pub rd_atomic: u8,
    /// Half-way there is a request that must fail.
    pub mistake: Option<Mistake>,
    /// At the end.
    pub ending: Ending,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            messages: 100,
            depth: 16,
            max_bytes: 20_000,
            all_long: false,
            mix: Mix::ALL,
            relaxed_percent: 50,
            sges: 5,
            fence_percent: 5,
            think_ns: 0,
            receives: 32,
            first_receives: 32,
            receive_delay_ns: 0,
            start_ns: 0,
            idle_ns: 0,
            timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 4,
            rd_atomic: 8,
            mistake: None,
            ending: Ending::Stay,
        }
    }
}

impl Workload {
    /// Nothing is sent.
    pub fn silent() -> Self {
        Self {
            messages: 0,
            ..Self::default()
        }
    }

    /// How long the peer may be silent before a request fails.
    pub const fn patience_ns(&self) -> u64 {
        (self.retry_count as u64 + 1) * (4_096 << self.timeout)
    }

    /// A length for the next message.
    pub(crate) fn draw_bytes(&self, rng: &mut SmallRng, payload_bytes: u32) -> u32 {
        if self.all_long {
            return self.max_bytes;
        }
        let length = match rng.random_range(0..20) {
            0 => 0,
            1..=4 => rng.random_range(1..=64),
            5..=8 => rng.random_range(1..=4_096),
            9..=11 => payload_bytes * rng.random_range(1..=8) + rng.random_range(0..3) - 1,
            12 => self.max_bytes,
            _ => rng.random_range(0..=self.max_bytes),
        };
        length.min(self.max_bytes)
    }
}
