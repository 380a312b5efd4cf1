//! What a scenario that measures found: for people, and as JSON.

use std::{fmt, iter};

use serde_json::Value;

use crate::report::Sample;

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
    /// The same where it is several numbers.
    pub lists: Vec<(&'static str, Vec<f64>)>,
    /// More of it, which JSON leaves out.
    pub asides: Vec<(&'static str, f64)>,
    /// More for people: a line about each run.
    pub notes: Vec<String>,
    /// Packets simulated in all runs.
    pub packets: u64,
    /// Samples of the last run, if it took any.
    pub samples: Vec<Sample>,
}

impl Figures {
    /// One JSON object: the seed, the options and what was measured.
    #[must_use]
    pub fn json(&self) -> String {
        let measured = self.values.iter();
        // What is not a number becomes null.
        let measured = measured.map(|(name, value)| (*name, Value::from(*value)));
        let lists = self.lists.iter();
        let lists = lists.map(|(name, list)| (*name, Value::from(list.clone())));
        let members: Vec<String> = iter::once(("seed", Value::from(self.seed)))
            .chain(self.options.iter().cloned())
            .chain(measured)
            .chain(lists)
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
        for (name, list) in &self.lists {
            write!(f, " {name} {list:.4?}")?;
        }
        for (name, value) in self.values.iter().chain(&self.asides) {
            write!(f, " {name} {value:.4}")?;
        }
        Ok(())
    }
}
