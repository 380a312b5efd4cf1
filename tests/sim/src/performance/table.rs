//! Which scenarios measure, and what each has of the options. A new one is a file beside this and a line here.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};

use super::*;

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

/// The option that all have.
const EVERYWHERE: &str = "congestion";

/// All of them.
pub static SCENARIOS: &[Measuring] = &[
    Measuring {
        name: "loss",
        about: "Part of the goodput that is kept when packets get lost (kept)",
        options: &["loss", "rtt_us", "burst", "transport"],
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
        about: "Hosts on several planes send to one another: what they fill of all links (of_linear); many hosts and planes take \
                minutes of real time, --nodes 8 --connections 56 seconds",
        options: &["planes", "nodes", "connections", "rtt_us"],
        defaults: &[],
        measure: planes::measure,
    },
    Measuring {
        name: "victim",
        about: "A flow beside an incast with which it shares no bottleneck: what it loses (lost_fraction)",
        options: &["senders", "rtt_us"],
        defaults: &[],
        measure: victim::measure,
    },
    Measuring {
        name: "demand",
        about: "Several hosts send to one, the first over a slow link of its own: what all have of the best division (of_maxmin)",
        options: &["senders", "rtt_us"],
        defaults: &[("senders", "4")],
        measure: demand::measure,
    },
    Measuring {
        name: "drain",
        about: "Several hosts send to one whose software takes in 30 Gb/s and believes so with an error, without marks: what it takes in, and what is dropped (of_drain, drop_fraction)",
        options: &["senders", "estimate_error", "rtt_us"],
        defaults: &[],
        measure: drain::measure,
    },
    Measuring {
        name: "plane-death",
        about: "A plane dies without a word, or its way back only, or one of its spine links: how soon what is left is used (recover_us), and what fails (errors)",
        options: &["planes", "constants", "what", "rtt_us"],
        defaults: &[("planes", "8")],
        measure: plane_fault::death,
    },
    Measuring {
        name: "plane-return",
        about: "A plane that was dead for 30 ms comes back: how soon it is used (used_again_us)",
        options: &["planes", "constants", "rtt_us"],
        defaults: &[("planes", "8")],
        measure: plane_fault::comeback,
    },
    Measuring {
        name: "slow-plane",
        about: "One plane has a tenth of the others' rate at the receiver: what is used of all (of_sum)",
        options: &["planes", "queued_bytes", "rtt_us"],
        defaults: &[("planes", "4")],
        measure: plane_fault::slow,
    },
    Measuring {
        name: "moves",
        about: "Paths move every 200 µs between routes that differ by up to 20 µs: packets sent again in vain (spurious)",
        options: &["planes", "constants", "rtt_us"],
        defaults: &[("planes", "1")],
        measure: disorder::moves,
    },
    Measuring {
        name: "reordering",
        about: "Packets are overtaken by others on the same route: packets sent again in vain (spurious)",
        options: &["planes", "constants", "late", "late_us", "rtt_us"],
        defaults: &[("planes", "1")],
        measure: disorder::reordering,
    },
    Measuring {
        name: "pause",
        about: "The receiver is not run for a time: packets sent again in vain, and paths that are not used any more in the end (spurious, paths_given_up)",
        options: &["ms", "planes", "constants", "rtt_us"],
        defaults: &[("planes", "1")],
        measure: disorder::pause,
    },
    Measuring {
        name: "paths-fairness",
        about: "Connections with different numbers of paths through one link between switches: what each has of it (shares)",
        options: &["paths", "rtt_us"],
        defaults: &[],
        measure: sharing::paths,
    },
    Measuring {
        name: "permutation",
        about: "Every host of a leaf-spine fabric sends to one other: what all have of their links, and the one that has least (of_linear, least_of_line)",
        options: &["nodes", "planes", "rtt_us"],
        defaults: &[("nodes", "32"), ("planes", "1")],
        measure: sharing::permutation,
    },
    Measuring {
        name: "visibility",
        about: "Packets of one connection over several planes get lost: what is kept of the goodput where memory must show WRITEs \
                in order (of_relaxed)",
        options: &["planes", "loss", "rtt_us"],
        defaults: &[("planes", "8")],
        measure: visibility::measure,
    },
    Measuring {
        name: "collective",
        about: "A ring all-reduce or an all-to-all, with a round trip of 5 µs: its time, and the 99th percentile of the times of \
                single messages from submission to arrival (time_us, p99_us, null if it never ends, as over RoCEv2 when a \
                link dies)",
        options: &["kind", "bytes", "nodes", "world", "transport", "pfc"],
        defaults: &[("bytes", "16777216")],
        measure: collective::measure,
    },
];

impl Measuring {
    /// How it is asked for on a command line.
    #[must_use]
    pub fn command(&self) -> Command {
        let options = Options::augment_args(Command::new(self.name)).about(self.about);
        options.mut_args(|arg| {
            let has = self.has(arg.get_id().as_str());
            let default = self.default_of(arg.get_id().as_str());
            // So that a number below its range is told as one, and not as an option that nobody knows.
            let negative = arg.get_action().takes_values();
            let arg = arg.hide(!has).allow_negative_numbers(negative);
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
            let own = self.options.iter().chain([&EVERYWHERE]);
            let own: Vec<String> = own.map(|name| option(name)).collect();
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
        option == EVERYWHERE || self.options.contains(&option)
    }

    fn default_of(&self, option: &str) -> Option<&'static str> {
        let found = self.defaults.iter().find(|(name, _)| *name == option);
        found.map(|(_, default)| *default)
    }

    /// Runs it.
    pub fn run(&self, options: &Options) -> Result<Figures, String> {
        let usual = options.congestion == <&Algorithm>::default();
        if options.transport == Transport::Rocev2 && self.options.contains(&"transport") && !usual {
            return Err("--congestion is metaroce's; the model of RoCEv2 has its own".into());
        }
        let measured = (self.measure)(options)?;
        let all = serde_json::to_value(options).map_err(|error| error.to_string())?;
        let value = |name: &&'static str| (*name, all[*name].clone());
        // What all have is told where it is not as always.
        let everywhere = [&EVERYWHERE].into_iter().filter(|_| !usual);
        Ok(Figures {
            name: self.name,
            seed: options.seed,
            options: self.options.iter().chain(everywhere).map(value).collect(),
            values: measured.values,
            lists: measured.lists,
            asides: measured.asides,
            notes: measured.notes,
            packets: measured.packets,
            samples: measured.samples,
        })
    }
}

/// The scenario of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Measuring> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}
