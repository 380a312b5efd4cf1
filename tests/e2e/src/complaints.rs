//! Checks the table of `README.md` beside this crate: each complaint in it that is not open as a whole is quoted by a test, and each
//! test that it names exists.

use std::fs;
use std::path::Path;

use crate::artefacts::workspace_folder;

/// Where tests are.
const FOLDERS: [&str; 3] = ["provider", "tests", "verbs-shim"];

/// What a test writes before the complaints that it answers.
const MARK: &str = "What users complain about:";

/// All sources below `folder`, comments joined to one line each.
fn read_sources(folder: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_sources(&path, into);
        } else if path
            .extension()
            .is_some_and(|kind| kind == "rs" || kind == "c")
        {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| {
                let line = line.trim();
                let comment = line.strip_prefix("///").or(line.strip_prefix('*'));
                comment.unwrap_or(line).trim()
            });
            into.push(lines.collect::<Vec<_>>().join(" "));
        }
    }
}

/// The parts of `text` between two `quotes`.
fn quoted(text: &str, quote: char) -> Vec<&str> {
    text.split(quote).skip(1).step_by(2).collect()
}

/// Whether a complaint is quoted: one after the other of its parts, in whatever tests.
fn is_quoted(complaint: &str, sources: &[String]) -> bool {
    let marked = |source: &&String| source.contains(MARK);
    complaint.split("; ").all(|part| {
        sources
            .iter()
            .filter(marked)
            .any(|source| source.contains(part))
    })
}

fn exists(name: &str, sources: &[String]) -> bool {
    match name.split_once("::") {
        Some((file, what)) => {
            let path = workspace_folder().join(format!("tests/e2e/tests/cases/{file}.rs"));
            let text = fs::read_to_string(path).unwrap_or_default();
            // Some names are put together: what all of them have in common is the last word.
            let last = what.split_whitespace().next_back().unwrap_or_default();
            text.contains(what) || text.contains(last)
        }
        None => sources
            .iter()
            .any(|source| source.contains(&format!("fn {name}("))),
    }
}

#[test]
fn every_complaint_of_the_table_is_quoted_by_a_test_and_every_test_in_it_exists() {
    let mut sources = Vec::new();
    for folder in FOLDERS {
        read_sources(&workspace_folder().join(folder), &mut sources);
    }
    let table = fs::read_to_string(workspace_folder().join("tests/e2e/README.md")).unwrap();
    let mut rows = 0;
    for row in table.lines().filter(|line| line.starts_with("| \"")) {
        rows += 1;
        let (complaint, proof) = row[2..].split_once(" | ").expect("two columns");
        let complaint = complaint.trim_matches('"');
        if !proof.starts_with("**open**") {
            assert!(
                is_quoted(complaint, &sources),
                "no test quotes \"{complaint}\""
            );
        }
        let tests = quoted(proof, '`').into_iter();
        for name in tests
            .filter(|name| !name.contains('=') && !name.starts_with("cargo") && *name != "bench")
        {
            assert!(exists(name, &sources), "{complaint}: there is no {name}");
        }
    }
    assert!(rows > 25, "{rows} rows");
}
