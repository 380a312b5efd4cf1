//! What tests each sentence of WIRE.md, and whether it passed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::citations::{self, Citation};
use crate::peer::STANDING_CITES;
use crate::script::Verdict;
use crate::scripts;
use crate::sentences::{self, DEFINITIONS, Number, Sentence};

/// A standing check's name: it is made in every script.
const STANDING: &str = "every script";

/// How other tests went, by their names and by those of their functions: passed only if all cases did.
pub type Others = BTreeMap<String, bool>;

/// One sentence's line of the report.
#[derive(Debug)]
pub struct Line {
    sentence: Sentence,
    /// Scripts of this suite; whether they passed, if they ran.
    scripts: Vec<(&'static str, Option<bool>)>,
    /// Other tests.
    others: Vec<(Citation, Option<bool>)>,
    definition: Option<&'static str>,
}

impl Line {
    fn is_tested(&self) -> bool {
        self.definition.is_some() || !self.scripts.is_empty() || !self.others.is_empty()
    }

    fn verdicts(&self) -> impl Iterator<Item = Option<bool>> + '_ {
        let scripts = self.scripts.iter().map(|(_, verdict)| *verdict);
        scripts.chain(self.others.iter().map(|(_, verdict)| *verdict))
    }

    /// `passed`, `FAILED`, `cited` (nothing of it ran now), `definition` or `UNTESTED`.
    fn word(&self) -> &'static str {
        if !self.is_tested() {
            "UNTESTED"
        } else if self.verdicts().any(|verdict| verdict == Some(false)) {
            "FAILED"
        } else if self.verdicts().any(|verdict| verdict == Some(true)) {
            "passed"
        } else if self.definition.is_some() {
            "definition"
        } else {
            "cited"
        }
    }
}

/// The report of all sentences.
#[derive(Debug)]
pub struct Report {
    lines: Vec<Line>,
}

impl Report {
    /// Collects it: `verdicts` of the scripts that ran, `others` of tests that ran.
    ///
    /// # Errors
    /// A source cannot be read, or a script cites what is no sentence.
    pub fn collect(root: &Path, verdicts: &[Verdict], others: &Others) -> Result<Self> {
        let mut lines: BTreeMap<Number, Line> = BTreeMap::new();
        for sentence in sentences::all(root)? {
            let definition = DEFINITIONS
                .iter()
                .find(|(number, _)| *number == sentence.number)
                .map(|(_, reason)| *reason);
            let line = Line {
                scripts: Vec::new(),
                others: Vec::new(),
                definition,
                sentence,
            };
            lines.insert(line.sentence.number, line);
        }
        let standing =
            (!verdicts.is_empty()).then(|| verdicts.iter().all(|verdict| verdict.error.is_none()));
        for cite in STANDING_CITES {
            add(&mut lines, STANDING, cite, standing)?;
        }
        for script in scripts::all() {
            let verdict = verdicts.iter().find(|verdict| verdict.name == script.name);
            let passed = verdict
                .map(|verdict| verdict.error.is_none())
                .or_else(|| others.get(script.name).copied());
            for cite in script.cites {
                add(&mut lines, script.name, cite, passed)?;
            }
        }
        for (number, citations) in citations::in_tests(root)? {
            let line = lines.get_mut(&number).with_context(|| {
                let Citation { file, line, .. } = &citations[0];
                format!("{file}:{line} cites W-{number}, which WIRE.md does not have")
            })?;
            let with_verdict = citations.into_iter().map(|citation| {
                let passed = others.get(&citation.test).copied();
                (citation, passed)
            });
            line.others.extend(with_verdict);
        }
        Ok(Self {
            lines: lines.into_values().collect(),
        })
    }

    /// Sentences that nothing tests.
    pub fn untested(&self) -> Vec<String> {
        let lines = self.lines.iter().filter(|line| !line.is_tested());
        lines
            .map(|line| {
                let Sentence { number, beginning } = &line.sentence;
                format!("W-{number} {beginning}")
            })
            .collect()
    }

    /// How many sentences there are of each word.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for line in &self.lines {
            *counts.entry(line.word()).or_default() += 1;
        }
        let parts: Vec<String> = counts
            .iter()
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        format!("{} sentences: {}", self.lines.len(), parts.join(", "))
    }

    /// All of it, for people.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "# What tests each sentence of WIRE.md\n\n\
             `passed` and `FAILED` are of what ran for this report; `cited`: its tests did not run now.\n\n",
        );
        for line in &self.lines {
            let Sentence { number, beginning } = &line.sentence;
            let _ = writeln!(text, "W-{number} {} — {beginning}", line.word());
            if let Some(reason) = line.definition {
                let _ = writeln!(text, "    a definition: {reason}");
            }
            for (name, passed) in &line.scripts {
                let _ = writeln!(text, "    {:7} {name}", verdict_word(*passed));
            }
            for (citation, passed) in &line.others {
                let Citation { file, line, test } = citation;
                let _ = writeln!(text, "    {:7} {file}:{line} {test}", verdict_word(*passed));
            }
        }
        let _ = writeln!(text, "\n{}", self.summary());
        text
    }
}

const fn verdict_word(passed: Option<bool>) -> &'static str {
    match passed {
        Some(true) => "passed",
        Some(false) => "FAILED",
        None => "-",
    }
}

fn add(
    lines: &mut BTreeMap<Number, Line>,
    name: &'static str,
    cite: &str,
    passed: Option<bool>,
) -> Result<()> {
    let number = sentences::leading_number(cite)
        .filter(|(_, rest)| rest.is_empty())
        .map(|(number, _)| number)
        .with_context(|| format!("script {name} cites {cite:?}"))?;
    let line = lines
        .get_mut(&number)
        .with_context(|| format!("script {name} cites W-{number}, which WIRE.md does not have"))?;
    line.scripts.push((name, passed));
    Ok(())
}

/// Reads verdicts of other tests: lines `NAME ok` and `NAME FAILED`, as test harnesses name them.
pub fn read_others(text: &str) -> Others {
    let mut others = Others::new();
    for line in text.lines() {
        let Some((name, verdict)) = line.rsplit_once(' ') else {
            continue;
        };
        // `module::function::case_1` of rstest, `module::function` of others.
        let mut parts = name.rsplit("::");
        let last = parts.next().unwrap_or(name);
        let function = match last.strip_prefix("case_") {
            Some(_) => parts.next().unwrap_or(last),
            None => last,
        };
        for key in [function, name] {
            let passed = others.entry(key.to_owned()).or_insert(true);
            *passed &= verdict == "ok";
        }
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_of_all_cases_count() {
        let others = read_others("a::b::one ok\na::two::case_1 ok\na::two::case_2_x FAILED\n");
        assert_eq!(others.get("one"), Some(&true));
        assert_eq!(others.get("two"), Some(&false));
        let scripts = read_others("acks::at once on a gap ok\n");
        assert_eq!(scripts.get("acks::at once on a gap"), Some(&true));
    }

    /// Every sentence of WIRE.md is tested by a script of this suite, or by another test that cites it.
    #[test]
    fn no_sentence_is_untested() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let report = Report::collect(&root, &[], &Others::new()).unwrap();
        let untested = report.untested();
        assert!(
            untested.is_empty(),
            "no test cites these; write one, or cite it in one that checks it:\n{}",
            untested.join("\n")
        );
    }
}
