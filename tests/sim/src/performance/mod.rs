//! How fast the transport is in a fabric: scenarios by name that measure one thing each and give it as a few figures.
//! `cargo xtask sim NAME` runs them; each is a file here and a line of [`SCENARIOS`]. All hold the contract of verbs, too, or give no figures.
//!
//! The links have 100 Gb/s, packets 4 KiB of payload, and hosts are as good as a host can be: they look at their sockets
//! all the time (see [`host`]), so that what is measured is the transport and nothing else.

mod incast;
mod loss;
mod options;
mod planes;
mod tail;

use std::{fmt, iter};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};
use metaroce_proto::types::Driving;
use serde_json::Value;

use crate::NodeId;
use crate::fabric::FabricConfig;
use crate::network::LOWER_BYTES;
use crate::node::HostConfig;
use crate::report::Outcome;
use crate::scenario::{Pair, Scenario};
use crate::workload::{Mix, Workload};
use crate::world::World;
pub use options::Options;

/// A scenario that measures.
#[derive(Debug)]
pub struct Measuring {
    /// Its name.
    pub name: &'static str,
    /// What it shows, and the keys of its figures.
    pub about: &'static str,
    /// Those of [`Options`] that it has.
    pub options: &'static [&'static str],
    /// Where it has another default.
    pub defaults: &'static [(&'static str, &'static str)],
    measure: fn(&Options) -> Result<Measured, String>,
}

/// All of them.
pub static SCENARIOS: &[Measuring] = &[
    Measuring {
        name: "loss",
        about: "Part of the goodput that is kept when packets get lost (kept)",
        options: &["loss", "rtt_us", "burst"],
        defaults: &[],
        measure: loss::measure,
    },
    Measuring {
        name: "tail",
        about: "Times of single messages, one at a time (median_us, p999_us)",
        options: &["bytes", "loss", "rtt_us"],
        defaults: &[],
        measure: tail::measure,
    },
    Measuring {
        name: "incast",
        about: "Several hosts send to one: from the last one's start until all may send at the same rate (jain_time_us, null if \
                they never may), what is used of its link, and what it drops (link_use, drop_fraction)",
        options: &["senders", "rtt_us"],
        defaults: &[],
        measure: incast::measure,
    },
    Measuring {
        name: "planes",
        about: "Hosts on several planes send to one another: what they fill of all links (of_linear)",
        options: &["planes", "nodes", "connections", "rtt_us"],
        defaults: &[],
        measure: planes::measure,
    },
];

/// Rate of the links.
const LINK_BITS_PER_S: f64 = 100e9;

/// Of a full packet with all headers, Ethernet, IP and UDP included, this part is payload.
const PAYLOAD_SHARE: f64 = 4096.0 / (4096.0 + 64.0 + LOWER_BYTES as f64);

/// What a scenario found.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// Scenario.
    pub name: &'static str,
    /// Seed.
    pub seed: u64,
    /// Its options.
    pub options: Vec<(&'static str, Value)>,
    /// What it measured; NaN where there was nothing to measure.
    pub values: Vec<(&'static str, f64)>,
    /// More of it, which JSON leaves out.
    pub asides: Vec<(&'static str, f64)>,
    /// More for people: a line about each run.
    pub notes: Vec<String>,
    /// Packets simulated in all runs.
    pub packets: u64,
}

impl Figures {
    /// One JSON object: the seed, the options and what was measured.
    #[must_use]
    pub fn json(&self) -> String {
        let measured = self.values.iter();
        // What is not a number becomes null.
        let measured = measured.map(|(name, value)| (*name, Value::from(*value)));
        let members: Vec<String> = iter::once(("seed", Value::from(self.seed)))
            .chain(self.options.iter().cloned())
            .chain(measured)
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .collect();
        format!("{{{}}}", members.join(","))
    }

    /// A value or an aside by its name.
    #[must_use]
    pub fn value(&self, name: &str) -> f64 {
        let mut all = self.values.iter().chain(&self.asides);
        let found = all.find(|(known, _)| *known == name);
        found.map_or(f64::NAN, |(_, value)| *value)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        write!(f, "{} seed {}", self.name, self.seed)?;
        for (name, value) in &self.options {
            write!(f, " {name} {value}")?;
        }
        write!(f, ":")?;
        for (name, value) in self.values.iter().chain(&self.asides) {
            write!(f, " {name} {value:.4}")?;
        }
        Ok(())
    }
}

/// What a scenario measured; see [`Figures`].
#[derive(Debug, Default)]
struct Measured {
    values: Vec<(&'static str, f64)>,
    asides: Vec<(&'static str, f64)>,
    notes: Vec<String>,
    packets: u64,
}

impl Measured {
    /// Runs a scenario; its contract must hold.
    fn run(&mut self, scenario: &Scenario) -> Result<Outcome, String> {
        let outcome = World::run(scenario, false);
        self.packets += outcome.packets;
        self.notes.push(outcome.summary());
        if outcome.is_right() {
            Ok(outcome)
        } else {
            Err(outcome.to_string())
        }
    }
}

impl Measuring {
    /// How it is asked for on a command line.
    #[must_use]
    pub fn command(&self) -> Command {
        let options = Options::augment_args(Command::new(self.name)).about(self.about);
        options.mut_args(|arg| {
            let has = self.has(arg.get_id().as_str());
            let default = self.default_of(arg.get_id().as_str());
            let arg = arg.hide(!has);
            match default {
                Some(default) => arg.default_value(default),
                None => arg,
            }
        })
    }

    /// What was asked for with [`Measuring::command`]; options of other scenarios are refused.
    pub fn options(&self, matches: &ArgMatches) -> Result<Options, String> {
        let given = |id: &&Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        let known = Options::augment_args(Command::new(self.name));
        let ids = known.get_arguments().map(clap::Arg::get_id);
        if let Some(wrong) = ids.filter(given).find(|id| !self.has(id.as_str())) {
            let option = |name: &str| format!("--{}", name.replace('_', "-"));
            let own: Vec<String> = self.options.iter().map(|name| option(name)).collect();
            return Err(format!(
                "{} has no option {}; it has {}",
                self.name,
                option(wrong.as_str()),
                own.join(", ")
            ));
        }
        Options::from_arg_matches(matches).map_err(|error| error.to_string())
    }

    /// What it does if nothing else is asked for.
    pub fn default_options(&self) -> Options {
        let matches = self.command().get_matches_from([self.name]);
        self.options(&matches)
            .unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn has(&self, option: &str) -> bool {
        self.options.contains(&option)
    }

    fn default_of(&self, option: &str) -> Option<&'static str> {
        let found = self.defaults.iter().find(|(name, _)| *name == option);
        found.map(|(_, default)| *default)
    }

    /// Runs it.
    pub fn run(&self, options: &Options) -> Result<Figures, String> {
        let measured = (self.measure)(options)?;
        let all = serde_json::to_value(options).map_err(|error| error.to_string())?;
        let value = |name: &&'static str| (*name, all[*name].clone());
        Ok(Figures {
            name: self.name,
            seed: options.seed,
            options: self.options.iter().map(value).collect(),
            values: measured.values,
            asides: measured.asides,
            notes: measured.notes,
            packets: measured.packets,
        })
    }
}

/// The scenario of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Measuring> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

/// A host that does nothing but drive its endpoint: it reads what comes at once, and its timers are exact.
#[must_use]
pub fn host() -> HostConfig {
    HostConfig {
        wake_ns: 0,
        timer_slack_ns: 0,
        packet_ns: 0,
        receive_buffer_bytes: 16 << 20,
        // Two trains: enough to keep the link busy, and little for a retransmission to wait behind.
        send_buffer_bytes: 32 << 10,
        train_segments: 4,
        driving: Driving::Busy,
        ..HostConfig::default()
    }
}

/// Those hosts in a fabric, WRITEs in one direction on each pair of nodes.
fn scenario(
    name: &str,
    seed: u64,
    fabric: FabricConfig,
    writes: &Workload,
    pairs: &[[NodeId; 2]],
) -> Scenario {
    let mut scenario = Scenario::two(name, seed, writes.clone());
    let nodes = pairs.iter().flatten().map(|node| node.0 + 1).max();
    scenario.hosts = vec![host(); nodes.unwrap_or(0)];
    scenario.pairs = pairs
        .iter()
        .map(|nodes| Pair {
            nodes: *nodes,
            workloads: [writes.clone(), listens(writes.max_bytes)],
            shared: false,
        })
        .collect();
    scenario.fabric = Some(fabric);
    scenario.carry_payloads = false;
    // Virtual time is the limit: what is measured is long, and not more likely to hang for that.
    scenario.limit_events = u64::MAX;
    scenario
}

/// WRITEs of `bytes`, `depth` of them outstanding, one after the other.
fn writes(bytes: u32, depth: u32, messages: u32) -> Workload {
    Workload {
        messages,
        depth,
        max_bytes: bytes,
        all_long: true,
        mix: Mix {
            write: 1,
            write_imm: 0,
            ..Mix::WRITES
        },
        relaxed_percent: 100,
        sges: 1,
        fence_percent: 0,
        ..Workload::default()
    }
}

/// The other end of [`writes`].
fn listens(bytes: u32) -> Workload {
    Workload {
        max_bytes: bytes,
        receives: 2,
        sges: 1,
        ..Workload::silent()
    }
}
