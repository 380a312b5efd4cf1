//! Sentences that the code of this crate cites exist in WIRE.md, and WIRE.md numbers its
//! sentences once each and in order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Section and sentence.
type Number = (u32, u32);

/// Reads `3.14` at the front of `text`, and what follows.
fn leading_number(text: &str) -> Option<(Number, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let section_end = digits(text);
    let after = text[section_end..].strip_prefix('.')?;
    let sentence_end = digits(after);
    let section = text[..section_end].parse().ok()?;
    let sentence = after[..sentence_end].parse().ok()?;
    Some(((section, sentence), &after[sentence_end..]))
}

/// Sentences of WIRE.md, in the order of the text.
fn sentences() -> Vec<Number> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../WIRE.md");
    let text = std::fs::read_to_string(path).expect("WIRE.md");
    text.split("[W-")
        .skip(1)
        .filter_map(|part| leading_number(part).map(|(number, _)| number))
        .collect()
}

/// Numbers cited in a source text: after `WIRE `, with more after commas and `to`.
fn citations(text: &str) -> Vec<Number> {
    let mut found = Vec::new();
    for part in text.split("WIRE ").skip(1) {
        let mut rest = part;
        while let Some((number, after)) = leading_number(rest) {
            found.push(number);
            let next = after
                .strip_prefix(", ")
                .or_else(|| after.strip_prefix(" to "));
            rest = match next.or_else(|| after.strip_prefix(" and ")) {
                Some(next) => next,
                None => break,
            };
        }
    }
    found
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a source folder") {
        let path = entry.expect("an entry of that folder").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_cited_sentence_exists() {
    let known: BTreeSet<_> = sentences().into_iter().collect();
    let mut files = Vec::new();
    sources(
        &PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    let mut cited = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source file");
        for number in citations(&text) {
            cited += 1;
            assert!(
                known.contains(&number),
                "{} cites sentence {}.{}, which WIRE.md does not have",
                file.display(),
                number.0,
                number.1
            );
        }
    }
    assert!(cited > 50, "citations are not found any more: {cited}");
}

#[test]
fn sentences_are_numbered_in_order() {
    let numbers = sentences();
    assert!(
        numbers.len() > 150,
        "sentences are not found any more: {}",
        numbers.len()
    );
    let mut expected = (1, 1);
    for number in numbers {
        let next_section = (expected.0 + 1, 1);
        assert!(
            number == expected || number == next_section,
            "sentence {}.{} where {}.{} was due",
            number.0,
            number.1,
            expected.0,
            expected.1
        );
        expected = (number.0, number.1 + 1);
    }
}

#[test]
fn citations_are_recognised() {
    assert_eq!(citations("// WIRE 2.3"), [(2, 3)]);
    assert_eq!(
        citations("(WIRE 2.18 to 2.23, 4.1). Another: WIRE 9.2 and 9.3; see WIRE.md"),
        [(2, 18), (2, 23), (4, 1), (9, 2), (9, 3)]
    );
}
