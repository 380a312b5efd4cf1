//! What is said where there is no process to show: that nobody uses metaroce, or that the filters match nobody and who
//! there is. Called by [`super::text`] for what is shown and by [`super::run`] for the error at the end.

use super::Options;
use super::sample::Sample;
use super::text::plain;
use std::fmt::Write;

/// No more processes than these are listed: that fits a screen.
const LISTED: usize = 16;

/// Why `sample` is empty; lines without the last line's end.
pub(super) fn explain(sample: &Sample, options: &Options) -> String {
    // Root is told of everybody's.
    let nobody = if sample.as_root {
        "no process"
    } else {
        "no process of this user"
    };
    let others = match sample.others {
        0 => String::new(),
        others => format!("\n{others} of other users (root sees them)"),
    };
    let Some(filter) = options.filter() else {
        return format!(
            "{nobody} uses metaroce (start programs with `metaroce run -- COMMAND`){others}"
        );
    };
    if sample.passed_over.is_empty() {
        return format!(
            "{nobody} matches {filter}: none uses metaroce (start programs with `metaroce run -- COMMAND`){others}"
        );
    }
    let mut out = format!("{nobody} matches {filter}; there are:");
    for engine in sample.passed_over.iter().take(LISTED) {
        let _ = write!(
            out,
            "\n  pid {}  {}  UDP {}",
            engine.pid,
            plain(&engine.name.device),
            engine.name.udp_port
        );
    }
    if let further @ 1.. = sample.passed_over.len().saturating_sub(LISTED) {
        let _ = write!(out, "\n  and {further} more");
    }
    out + &others
}
