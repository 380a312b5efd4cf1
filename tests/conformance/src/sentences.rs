//! The sentences of WIRE.md, and those of them that only say what words mean.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Chapter and number of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(pub u32, pub u32);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A sentence.
#[derive(Clone, Debug)]
pub struct Sentence {
    /// Its number.
    pub number: Number,
    /// How it begins.
    pub beginning: String,
}

/// Letters of a sentence that are shown.
const SHOWN: usize = 72;

/// Sentences that nothing can violate by itself: they name things, or say who may do what with the text. With the reason.
pub const DEFINITIONS: &[(Number, &str)] = &[
    (Number(1, 1), "says how the text binds"),
    (Number(1, 12), "names roles"),
    (
        Number(8, 11),
        "a rule for whoever sets the number of paths: an endpoint does not know the product",
    ),
];

/// Reads `3.14` at the front of `text`, and what follows.
pub fn leading_number(text: &str) -> Option<(Number, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let chapter_end = digits(text);
    let after = text[chapter_end..].strip_prefix('.')?;
    let sentence_end = digits(after);
    let chapter = text[..chapter_end].parse().ok()?;
    let sentence = after[..sentence_end].parse().ok()?;
    Some((Number(chapter, sentence), &after[sentence_end..]))
}

/// All sentences of WIRE.md in the workspace at `root`, in its order. Withdrawn ones are left out.
///
/// # Errors
/// The file cannot be read.
pub fn all(root: &Path) -> Result<Vec<Sentence>> {
    let path = root.join("provider/WIRE.md");
    let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    Ok(of_text(&text))
}

fn of_text(text: &str) -> Vec<Sentence> {
    let parts = text.split("**[W-").skip(1);
    parts
        .filter_map(|part| {
            let (number, rest) = leading_number(part)?;
            let rest = rest.trim_start_matches("]**").replace('\n', " ");
            let rest = rest.trim_start_matches([' ', '◆']);
            let beginning = rest.chars().take(SHOWN).collect();
            (!rest.starts_with("withdrawn")).then_some(Sentence { number, beginning })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_found_with_their_beginnings() {
        let text = "**[W-1.1]** One.\n\n**[W-1.2]** ◆ Two\nlines.\n\n**[W-1.3]** withdrawn";
        let found = of_text(text);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[1].number, found[1].beginning.trim()),
            (Number(1, 2), "Two lines.")
        );
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert!(all(&root).unwrap().len() > 150);
    }
}
