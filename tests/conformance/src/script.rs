//! A script, and running it.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::bench::{Bench, Place};
use crate::target::Start;

/// Endpoint index of the first script's peer; the others follow, some indices apart, so that late packets of one script
/// do not reach the next.
const FIRST_INDEX: u16 = 16;

/// Indices that a script may use.
const INDICES_EACH: u16 = 12;

/// Indices of the port range.
const INDICES: u16 = 1024;

/// "Send this, expect that within t."
#[derive(Clone, Copy)]
pub struct Script {
    /// Chapter and name.
    pub name: &'static str,
    /// The sentences of WIRE.md that it tests.
    pub cites: &'static [&'static str],
    /// What it does.
    pub run: fn(&mut Bench) -> Result<()>,
}

/// How a script ended.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Its name.
    pub name: &'static str,
    /// What it found wrong.
    pub error: Option<String>,
    /// How long it took.
    pub took: Duration,
}

impl Script {
    /// Runs it against a fresh target; `number` is its place among the scripts.
    pub fn run(&self, start: &Start, place: &Place, number: usize) -> Verdict {
        let started = Instant::now();
        let spread = number as u16 % ((INDICES - FIRST_INDEX) / INDICES_EACH);
        let index = FIRST_INDEX + INDICES_EACH * spread;
        let error = Bench::new(start, place, index).map_or_else(
            |error| Some(format!("{error:#}")),
            |mut bench| self.judge(&mut bench),
        );
        Verdict {
            name: self.name,
            error,
            took: started.elapsed(),
        }
    }

    fn judge(&self, bench: &mut Bench) -> Option<String> {
        let mut wrong = Vec::new();
        let result = (self.run)(bench);
        if let Err(error) = &result {
            let cites: Vec<String> = self.cites.iter().map(|cite| format!("W-{cite}")).collect();
            wrong.push(format!("{error:#} (tests {})", cites.join(", ")));
        }
        wrong.extend(bench.peer.violations(bench.whole && result.is_ok()));
        if wrong.is_empty() {
            return None;
        }
        let history = bench.peer.history();
        Some(format!(
            "{}\nthe last packets:\n{history}",
            wrong.join("\n")
        ))
    }
}
