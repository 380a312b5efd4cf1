//! One run of a scenario that measures, and the command that gives the same again. Used by `sections.rs`.

use anyhow::{Result, anyhow};
use metaroce_sim::performance::{Figures, Options, find};
use serde_json::Value;

/// A run.
pub(crate) struct Run {
    pub(crate) command: String,
    pub(crate) figures: Figures,
}

impl Run {
    /// Runs `name` with its own defaults but for what `set` changes.
    pub(crate) fn new(name: &str, seed: u64, set: impl FnOnce(&mut Options)) -> Result<Self> {
        let scenario = find(name).ok_or_else(|| anyhow!("no scenario '{name}'"))?;
        let mut options = scenario.default_options();
        options.seed = seed;
        set(&mut options);
        let figures = scenario
            .run(&options)
            .map_err(|problem| anyhow!("{name}: {problem}"))?;
        Ok(Self {
            command: command(figures.name, &figures.options, figures.seed),
            figures,
        })
    }

    /// A figure of it.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.figures.value(name)
    }
}

/// Every option is named, also where it has its default.
fn command(scenario: &str, options: &[(&'static str, Value)], seed: u64) -> String {
    let mut command = format!("cargo xtask sim {scenario}");
    for (name, value) in options {
        let name = name.replace('_', "-");
        match value {
            Value::Bool(false) => {}
            Value::Bool(true) => command += &format!(" --{name}"),
            Value::String(text) => command += &format!(" --{name} {text}"),
            value => command += &format!(" --{name} {value}"),
        }
    }
    command + &format!(" --seed {seed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_what_was_asked() {
        let options = [
            ("rtt_us", Value::from(10)),
            ("world", Value::from("loss0.1")),
            ("pfc", Value::from(true)),
            ("other", Value::from(false)),
        ];
        let told = "cargo xtask sim collective --rtt-us 10 --world loss0.1 --pfc --seed 7";
        assert_eq!(command("collective", &options, 7), told);
    }
}
