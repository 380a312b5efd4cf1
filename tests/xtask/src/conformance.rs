//! `cargo xtask conformance`: the packet scripts against our endpoint or another's, and what tests each sentence of WIRE.md.
//!
//! The suite (`tests/conformance`) knows its own arguments, which are handed on. Here the product is built for it, and the
//! unit tests that cite sentences are run for their verdicts, where all of our own is asked for.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use metaroce_e2e::artefacts;

use crate::handed_on::{self, Arguments};
use crate::test::Verdicts;
use crate::{build, output};

/// The package.
const PACKAGE: &str = "metaroce-conformance";

/// Packages whose unit tests cite sentences and run in seconds.
const UNIT_TESTS: [&str; 3] = ["metaroce-proto", "metaroce", "metaroce-udp"];

/// Runs the suite.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let given = &arguments.given;
    let has = |option: &str| {
        let mut words = given.iter().map(|one| one.to_string_lossy());
        words.any(|one| one.starts_with(option))
    };
    let looks = ["--list", "--help", "-h", "--no-scripts"]
        .into_iter()
        .any(has);
    if !looks && !has("--target") {
        build::build_product()?;
    }
    let mut more = Vec::new();
    // With a filter, or for another's endpoint, the verdicts of our unit tests are not asked for.
    if is_all(given) {
        more = vec!["--verdicts".to_owned(), unit_verdicts()?];
    }
    let mut command = build::cargo(&["run", "--quiet", "-p", PACKAGE, "--"])?;
    command.args(given).args(more);
    handed_on::run(command)
}

/// No filter among the arguments: nothing but `--report FILE`.
fn is_all(given: &[OsString]) -> bool {
    match given {
        [] => true,
        [option, _] => option == "--report",
        _ => false,
    }
}

/// Runs the unit tests, and returns the file with their verdicts.
fn unit_verdicts() -> Result<String> {
    output::line(format_args!("unit tests, for their verdicts …"));
    let mut test = vec!["test", "--lib", "--no-fail-fast"];
    for package in UNIT_TESTS {
        test.extend(["-p", package]);
    }
    let mut verdicts = Verdicts::default();
    build::run_lines(build::cargo(&test)?, |line| verdicts.count(line))?;
    write(&verdicts)
}

/// Writes verdicts where the suite reads them.
///
/// # Errors
/// The target folder cannot be written.
pub fn write(verdicts: &Verdicts) -> Result<String> {
    let file = folder()?.join("verdicts.txt");
    fs::write(&file, verdicts.text())
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file.to_string_lossy().into_owned())
}

/// Where the report of `cargo xtask test` goes.
///
/// # Errors
/// The target folder cannot be written.
pub fn report_file() -> Result<String> {
    Ok(folder()?.join("report.txt").to_string_lossy().into_owned())
}

fn folder() -> Result<PathBuf> {
    let folder = artefacts::target_folder()?.join("conformance");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_told_from_the_name_of_a_report() {
        let of = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(|word| (*word).into()).collect();
            is_all(&words)
        };
        assert!(of(&[]) && of(&["--report", "file"]));
        assert!(!of(&["acks::"]) && !of(&["acks::", "--report", "file"]));
    }
}
