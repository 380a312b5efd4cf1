//! Options of the scenarios that measure: each with its name, default, range and help, here and nowhere else. `table.rs`
//! says which scenario has which of them, and what it wants other defaults for.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Command, FromArgMatches, ValueEnum};
use metaroce_proto::cc::{ALGORITHMS, Algorithm};
use metaroce_proto::types::Driving;
use serde::Serialize;

/// Hosts that send, at most: as many as there are addresses of hosts in a /24.
const HOSTS_MAX: u64 = 254;

/// Addresses that an endpoint tells its peers of at most.
const PLANES_MAX: i64 = 16;

/// Bytes outstanding at most: what a stream may have beyond its oldest message.
const QUEUED_BYTES_MAX: u64 = 64 << 20;

/// As many as 254 hosts may exchange with messages of the longest.
const BYTES_MAX: i64 = 254 << 20;

/// What is asked of the scenarios; each looks at its own.
#[derive(Clone, PartialEq, Debug, Args, Serialize)]
pub struct Options {
    /// Everything random comes from it.
    #[arg(skip = 1_u64)]
    pub seed: u64,
    /// Part of all packets that is lost, data and acknowledgements alike (1 % is 0.01).
    #[arg(long, value_name = "P", default_value = "0.01", value_parser = part)]
    pub loss: f64,
    /// Packets that are lost in a row at most.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub burst: u32,
    /// Round trip of a packet of no length, in µs.
    #[arg(long, value_name = "R", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub rtt_us: u64,
    /// Bytes of a message; of a collective, bytes of each host.
    #[arg(long, value_name = "N", default_value = "65536",
        value_parser = clap::value_parser!(u32).range(1..=BYTES_MAX))]
    pub bytes: u32,
    /// Hosts that send to one.
    #[arg(long, value_name = "N", default_value = "8", value_parser = count(2, HOSTS_MAX))]
    pub senders: usize,
    /// Planes.
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=PLANES_MAX))]
    pub planes: u8,
    /// Hosts on the planes.
    #[arg(long, value_name = "N", default_value = "64", value_parser = count(2, HOSTS_MAX))]
    pub nodes: usize,
    /// Connections between the hosts, a multiple of their number.
    #[arg(long, value_name = "N", default_value = "4032", value_parser = count(1, HOSTS_MAX * (HOSTS_MAX - 1)))]
    pub connections: usize,
    /// What the receiver believes of what it can take in is wrong by this part.
    #[arg(long, value_name = "E", default_value = "0", allow_negative_numbers = true, value_parser = error_part)]
    pub estimate_error: f64,
    /// Timing constants of the hosts.
    #[arg(long, default_value = "busy")]
    pub constants: Constants,
    /// What dies.
    #[arg(long, default_value = "plane")]
    pub what: What,
    /// Bytes of WRITEs that are outstanding.
    #[arg(long, value_name = "N", default_value = "8388608", value_parser = clap::value_parser!(u64).range(65_536..=QUEUED_BYTES_MAX))]
    pub queued_bytes: u64,
    /// Part of the packets that are late.
    #[arg(long, value_name = "P", default_value = "0.01", value_parser = part)]
    pub late: f64,
    /// By up to so many µs.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub late_us: u64,
    /// Length of the pause.
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub ms: u64,
    /// Paths of each connection.
    #[arg(long, value_name = "N,N", default_value = "4,32", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=64))]
    pub paths: Vec<u8>,
    /// What is done.
    #[arg(long, value_enum, default_value = "allreduce")]
    pub kind: Kind,
    /// What is in the way.
    #[arg(long, value_enum, default_value = "clean")]
    pub world: Surroundings,
    /// Who carries the messages.
    #[arg(long, value_enum, default_value = "metaroce")]
    pub transport: Transport,
    /// Congestion control of the senders.
    #[arg(long, value_name = "NAME", default_value = ALGORITHMS[0].name, value_parser = algorithm())]
    #[serde(serialize_with = "name_of")]
    pub congestion: &'static Algorithm,
    /// Queues that never drop, as under PFC.
    #[arg(long)]
    pub pfc: bool,
}

/// A collective operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Around a ring, in 2 (n − 1) steps, each with one n-th of the bytes.
    Allreduce,
    /// One n-th of the bytes to each other host, all submitted at once.
    Alltoall,
}

/// What is in the way of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
pub enum Surroundings {
    /// One switch: flows meet at their receiver only.
    #[serde(rename = "clean")]
    Clean,
    /// Leaves and spines: the hash leads flows over the same links.
    #[serde(rename = "collide")]
    Collide,
    /// The same, and 0.1 % of all packets is lost.
    #[value(name = "loss0.1")]
    #[serde(rename = "loss0.1")]
    Loss01,
    /// The same, and 1 % of all packets is lost.
    #[serde(rename = "loss1")]
    Loss1,
    /// Leaves and spines, and a link between two of them dies silently 20 µs after the begin.
    #[serde(rename = "deadlink")]
    Deadlink,
}

/// Who carries messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// The transport.
    Metaroce,
    /// A model of RoCEv2 NICs.
    Rocev2,
}

/// Which timing constants hosts have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Constants {
    /// Those of hosts that look at their sockets all the time.
    Busy,
    /// Those of hosts that wait for the kernel.
    Sockets,
}

impl Constants {
    pub(super) fn driving(self) -> Driving {
        match self {
            Self::Busy => Driving::Busy,
            Self::Sockets => Driving::Sockets,
        }
    }
}

/// What dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// All links of a plane.
    Plane,
    /// Its link to the sender, on which only acknowledgements come.
    Return,
    /// One of four spines' link, in both directions.
    Spine,
}

impl Default for Options {
    fn default() -> Self {
        let matches = Self::augment_args(Command::new("defaults")).get_matches_from([""]);
        Self::from_arg_matches(&matches).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Options {
    pub(super) fn rtt_ns(&self) -> u64 {
        self.rtt_us * 1_000
    }
}

/// A part of the packets: never all of them, or nothing would ever end.
fn part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=0.9).contains(&part) {
        Ok(part)
    } else {
        Err("must be a part from 0 to 0.9 (1 % is 0.01)".into())
    }
}

/// By so much of itself something may be thought too small or too large.
fn error_part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (-0.9..=9.0).contains(&part) {
        Ok(part)
    } else {
        Err("must be a part from -0.9 to 9 (20 % too much is 0.2)".into())
    }
}

/// The congestion control of a name.
fn algorithm() -> impl TypedValueParser<Value = &'static Algorithm> {
    PossibleValuesParser::new(ALGORITHMS.iter().map(|one| one.name))
        .try_map(|name| Algorithm::by_name(&name).ok_or("there is none of this name"))
}

fn name_of<S: serde::Serializer>(one: &&'static Algorithm, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(one.name)
}

fn count(least: u64, most: u64) -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u64)
        .range(least..=most)
        .map(|count| count as usize)
}
