//! What the provider says about a run: a folder in which programs leave their counters (`METAROCE_STATS`) and, if wanted,
//! their event logs (`METAROCE_EVENTS`), and the sums over them.
//!
//! Used by the demo and by cases that must know that something really happened.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::Program;

/// Ending of the files with counters.
const COUNTERS: &str = "json";

/// Ending of the event logs.
const EVENTS: &str = "jsonl";

/// The folder; removed on drop. Everything is read when it is asked for: programs write their counters when they end.
#[derive(Debug)]
pub struct Statistics(PathBuf);

impl Statistics {
    /// An empty folder.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new() -> Result<Self> {
        /// Tells apart the folders of one process.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let folder = std::env::temp_dir().join(format!(
            "metaroce-statistics-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// `program`, leaving its counters here.
    #[must_use]
    pub fn counted(&self, program: Program) -> Program {
        program.env("METAROCE_STATS", self.pattern(COUNTERS))
    }

    /// `program`, leaving its event log here.
    #[must_use]
    pub fn logged(&self, program: Program) -> Program {
        program.env("METAROCE_EVENTS", self.pattern(EVENTS))
    }

    /// The provider puts the process number in place of %p.
    fn pattern(&self, ending: &str) -> PathBuf {
        self.0.join(format!("%p.{ending}"))
    }

    /// Sum of a counter over all programs and their devices; none if nobody left it.
    pub fn sum(&self, counter: &str) -> Option<u64> {
        let texts = self.texts(COUNTERS);
        let lines = texts.iter().flat_map(|text| text.lines());
        let values: Vec<u64> = lines.filter_map(|line| counter_in(line, counter)).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Records of the event logs that have each of `words` in them.
    pub fn events(&self, words: &[&str]) -> usize {
        let texts = self.texts(EVENTS);
        let lines = texts.iter().flat_map(|text| text.lines());
        lines
            .filter(|line| words.iter().all(|word| line.contains(word)))
            .count()
    }

    fn texts(&self, ending: &str) -> Vec<String> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let is_wanted = |path: &Path| path.extension().is_some_and(|found| found == ending);
        files
            .map(|file| file.path())
            .filter(|path| is_wanted(path))
            .filter_map(|path| fs::read_to_string(path).ok())
            .collect()
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A counter of one engine, which is a line of a file.
fn counter_in(line: &str, counter: &str) -> Option<u64> {
    let value: Value = serde_json::from_str(line).ok()?;
    value.get("counters")?.get(counter)?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_engines_are_summed() {
        let statistics = Statistics::new().unwrap();
        assert_eq!(statistics.sum("retransmissions"), None);
        let engine = |retransmissions| {
            format!(
                "{{\"device\": \"x\", \"counters\": {{\"retransmissions\": {retransmissions}}}}}\n"
            )
        };
        let write = |name: &str, text: String| fs::write(statistics.0.join(name), text).unwrap();
        write("1.json", engine(1) + &engine(2));
        write("2.json", engine(4));
        write("3.json", "no JSON".to_owned());
        write("4.jsonl", engine(8));
        assert_eq!(statistics.sum("retransmissions"), Some(7));
        assert_eq!(statistics.sum("probes"), None);
    }

    #[test]
    fn events_are_counted_by_their_words() {
        let statistics = Statistics::new().unwrap();
        let program = statistics.logged(Program::new("sh").args([
            "-c",
            "printf 'moved why=a\\nmoved why=b\\nrests why=a\\n' > ${METAROCE_EVENTS%%%*}$$.jsonl",
        ]));
        program.run().unwrap().success().unwrap();
        assert_eq!(statistics.events(&["moved"]), 2);
        assert_eq!(statistics.events(&["why=a", "moved"]), 1);
        let folder = statistics.0.clone();
        drop(statistics);
        assert!(!folder.exists());
    }
}
