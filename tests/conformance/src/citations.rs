//! Where the tests of the repository cite sentences of WIRE.md (`WIRE 4.3`), and which test it is: the function that the
//! citation stands in, or in front of.
//!
//! What counts as a test: sources in folders `tests` and in files `tests.rs` and `*_tests.rs`, modules that are compiled
//! for tests only, the cases of `tests/e2e`, the programs in `tests/e2e/c`, the fuzzers' checks. A citation in other code
//! says who obeys, not who checks. This suite cites in its scripts' tables, which are no text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::sentences::{Number, leading_number};

/// A citation in a test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Citation {
    /// File, from the root of the workspace.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// The function.
    pub test: String,
}

/// Folders with sources, from the root.
const FOLDERS: [&str; 4] = ["provider", "verbs-shim", "tests/e2e", "tests/sim"];

/// More of them: checks that fuzzers make.
const FUZZERS: &str = "tests/fuzz/src";

/// All citations in tests of the workspace at `root`, by sentence.
///
/// # Errors
/// A source cannot be read.
pub fn in_tests(root: &Path) -> Result<BTreeMap<Number, Vec<Citation>>> {
    let mut files = Vec::new();
    for folder in FOLDERS.iter().chain([&FUZZERS]) {
        sources(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut found: BTreeMap<Number, Vec<Citation>> = BTreeMap::new();
    for path in files {
        let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path);
        let file = name.to_string_lossy().into_owned();
        for (number, citation) in of_file(&file, &text) {
            found.entry(number).or_default().push(citation);
        }
    }
    Ok(found)
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let is_source = path
            .extension()
            .is_some_and(|extension| ["rs", "c", "h"].iter().any(|known| extension == *known));
        if path.is_dir() {
            sources(&path, found)?;
        } else if is_source {
            found.push(path);
        }
    }
    Ok(())
}

/// Whether all of a file is tests.
fn is_test_file(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    file.contains("/tests/")
        || file.starts_with("tests/e2e/c/")
        || file.starts_with(FUZZERS)
        || name == "tests.rs"
        || name.ends_with("_tests.rs")
}

/// Citations of a file that are in its tests.
fn of_file(file: &str, text: &str) -> Vec<(Number, Citation)> {
    // A file about citations cites for its own sake.
    if file.ends_with("citations.rs") {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let begins = match is_test_file(file) {
        true => 0,
        // Test modules are at the end of a file, as the style has it.
        false => match lines
            .iter()
            .position(|line| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test"))
        {
            Some(at) if lines.get(at + 1).is_some_and(|next| next.ends_with('{')) => at,
            _ => return Vec::new(),
        },
    };
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().skip(begins) {
        for number in numbers(line) {
            let citation = Citation {
                file: file.to_owned(),
                line: at + 1,
                test: function(&lines, at).unwrap_or_default(),
            };
            found.push((number, citation));
        }
    }
    found
}

/// The numbers that a line cites: after `WIRE `, with more after commas, `and` and `to` (a range, of one chapter).
fn numbers(line: &str) -> Vec<Number> {
    let mut found: Vec<Number> = Vec::new();
    for part in line.split("WIRE ").skip(1) {
        let mut rest = part;
        let mut range = false;
        while let Some((number, after)) = leading_number(rest) {
            if range && let Some(Number(chapter, first)) = found.last().copied() {
                found.extend((first + 1..number.1).map(|between| Number(chapter, between)));
            }
            found.push(number);
            range = after.starts_with(" to ");
            let next = [", ", " to ", " and "]
                .iter()
                .find_map(|glue| after.strip_prefix(glue));
            match next {
                Some(next) => rest = next,
                None => break,
            }
        }
    }
    found
}

/// The function that line `at` stands in front of (as part of its comment or attributes), or in.
fn function(lines: &[&str], at: usize) -> Option<String> {
    let comment = |line: &str| {
        let line = line.trim_start();
        line.starts_with("//")
            || line.starts_with("#[")
            || line.starts_with('*')
            || line.starts_with("/*")
    };
    if comment(lines[at]) {
        // Attributes of several lines end at the function, too.
        let ahead = lines[at..]
            .iter()
            .take_while(|line| !line.trim().is_empty());
        if let Some(name) = ahead.take(40).find_map(|line| function_name(line))
            && lines[at..]
                .iter()
                .take_while(|line| function_name(line).is_none())
                .all(|line| is_front(line))
        {
            return Some(name);
        }
    }
    lines[..=at]
        .iter()
        .rev()
        .find_map(|line| function_name(line))
}

/// A line that may stand between a comment and its function.
fn is_front(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("//")
        || line.starts_with("#[")
        || line.starts_with('*')
        || line.starts_with("/*")
        || line.ends_with(")]")
        || line.ends_with(',')
        || line.ends_with('(')
}

fn function_name(line: &str) -> Option<String> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        rest.trim_start_matches(|c: char| "()acdeprstu:l ".contains(c) && c != 'f')
    });
    let rest = line
        .strip_prefix("fn ")
        .or_else(|| line.strip_prefix("static void "))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(rest[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_lists_are_read() {
        let line = "/// (WIRE 2.18 to 2.20, 4.1). Another: WIRE 9.2 and 9.3; see WIRE.md";
        let expected = [(2, 18), (2, 19), (2, 20), (4, 1), (9, 2), (9, 3)];
        assert_eq!(
            numbers(line),
            expected.map(|(chapter, number)| Number(chapter, number))
        );
    }

    #[test]
    fn a_citation_belongs_to_the_test_that_it_is_about() {
        let text = "\
/// Obeys WIRE 1.1.
fn code() {}

#[cfg(test)]
mod tests {
    /// WIRE 1.2
    #[rstest]
    #[case(1,
        2)]
    fn first(a: u32) {
        // WIRE 1.3
    }

    #[test]
    fn second() {
        check(); // WIRE 1.4
    }
}
";
        let found = of_file("provider/src/x.rs", text);
        let found: Vec<_> = found
            .iter()
            .map(|(number, citation)| (number.1, citation.test.as_str()))
            .collect();
        assert_eq!(found, [(2, "first"), (3, "first"), (4, "second")]);
        assert!(
            of_file(
                "provider/src/x.rs",
                "#[cfg(test)]\nmod tests;\n// WIRE 1.1\n"
            )
            .is_empty()
        );
        assert_eq!(
            of_file("provider/src/tests/x.rs", "// WIRE 1.1\nfn a() {}").len(),
            1
        );
    }
}
