//! The live screen: each sample is drawn over the one before, from the top, and never larger than the terminal, so that
//! nothing scrolls, flickers or touches what was scrolled off before. Called by [`super::run`] for each sample.

use std::fmt::Write;

/// To the top left corner.
const HOME: &str = "\x1b[H";
/// Erases from the cursor to the end of its line.
const ERASE_LINE: &str = "\x1b[K";
/// Erases from the cursor to the end of the screen; what was scrolled off stays.
const ERASE_BELOW: &str = "\x1b[J";
/// At the end of a line of which more is to the right.
const CUT: char = '>';

/// Columns and rows of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

impl Size {
    /// That of the terminal at stdout, as it is now; none if it is none, or does not know.
    pub(super) fn of_stdout() -> Option<Self> {
        let (columns, rows) = terminal_size::terminal_size_of(std::io::stdout())?;
        Some(Self {
            columns: usize::from(columns.0),
            rows: usize::from(rows.0),
        })
    }
}

/// What draws `text` over what the screen shows. The row below the text is left to the cursor.
pub(super) fn frame(text: &str, size: Option<Size>) -> String {
    let columns = size.map_or(usize::MAX, |size| size.columns);
    let rows = size.map_or(usize::MAX, |size| size.rows.saturating_sub(1).max(1));
    let lines: Vec<&str> = text.lines().collect();
    let shown = if lines.len() > rows {
        rows - 1
    } else {
        lines.len()
    };
    let mut out = String::from(HOME);
    for line in &lines[..shown] {
        draw(&mut out, line, columns);
    }
    if shown < lines.len() {
        let note = format!(
            "{} more lines (all: --once, one process: -p PID)",
            lines.len() - shown
        );
        draw(&mut out, &note, columns);
    }
    out.push_str(ERASE_BELOW);
    out
}

fn draw(out: &mut String, line: &str, columns: usize) {
    let line = cut(line, columns);
    // Beside the last column a terminal erases what is in it.
    let erase = if line.is_ascii() && line.len() >= columns {
        ""
    } else {
        ERASE_LINE
    };
    let _ = writeln!(out, "{line}{erase}");
}

/// As much of a line as fits.
fn cut(line: &str, columns: usize) -> String {
    // What is not ASCII may be two columns wide, and is not worth tables of which is.
    let width = |character: char| if character.is_ascii() { 1 } else { 2 };
    if line.chars().map(width).sum::<usize>() <= columns {
        return line.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |character: &char| {
        let fits = width(*character) <= left;
        left = left.saturating_sub(width(*character));
        fits
    };
    let mut line: String = line.chars().take_while(fits).collect();
    line.push(CUT);
    line
}
