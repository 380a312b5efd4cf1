//! `cargo xtask test` and `cargo xtask ci`: everything that is to be tested, counted.
//!
//! The parts: lints (ci only), unit and integration tests of all crates with the simulator's, and the
//! end-to-end suite against a release build. What was skipped is listed with its reason, and the last line
//! is always `N passed, N failed, N skipped`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use metaroce_e2e::{artefacts, interrupt, packages};

use crate::{build, conformance, output};

/// Arguments of `test` and `ci`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Leave out the slow end-to-end cases.
    #[arg(long)]
    quick: bool,
    /// Only tests whose name has this in it.
    filter: Option<String>,
}

/// Name of the end-to-end package, which is tested after the others.
const E2E: &str = "metaroce-e2e";

/// Runs every test.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut report = Report::default();
    run_tests(arguments, &mut report)?;
    Ok(report.close())
}

/// Runs the lints and every test.
pub fn run_with_lints(arguments: &Arguments) -> Result<ExitCode> {
    let mut report = Report::default();
    report.part("format", |part| {
        part.check("fmt", &["fmt", "--all", "--check", "--", "-l"], &[])
    })?;
    report.part("lints", |part| {
        let clippy = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        part.check("clippy", &clippy, &[])
    })?;
    report.part("documentation", |part| {
        let doc = [
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ];
        part.check("doc", &doc, &[("RUSTDOCFLAGS", "-D warnings")])
    })?;
    run_tests(arguments, &mut report)?;
    Ok(report.close())
}

fn run_tests(arguments: &Arguments, report: &mut Report) -> Result<()> {
    install_packages();
    let filter: Vec<&str> = arguments.filter.iter().map(String::as_str).collect();
    report.part("release build", |part| {
        let mut build = vec!["build", "--release"];
        build.extend(
            artefacts::PACKAGES
                .iter()
                .flat_map(|package| ["-p", package]),
        );
        part.check("build", &build, &[])
    })?;
    report.part("unit and integration tests", |part| {
        let mut test = vec!["test", "--workspace", "--exclude", E2E, "--no-fail-fast"];
        test.extend(&filter);
        part.tests(&test, &[])
    })?;
    report.part("end-to-end tests", |part| {
        let mut test = vec!["test", "-p", E2E, "--no-fail-fast"];
        test.extend(&filter);
        let quick = if arguments.quick { "1" } else { "0" };
        part.tests(&test, &[("METAROCE_E2E_QUICK", quick)])
    })?;
    // A part of the tests says nothing about the sentences.
    if let Some(filter) = &arguments.filter {
        report.close_empty_filter(filter);
        return Ok(());
    }
    let mut verdicts = Verdicts::default();
    for part in &report.parts {
        verdicts.passed.extend(part.names.iter().cloned());
        verdicts.failed.extend(part.failed.iter().cloned());
    }
    let (verdicts, file) = (conformance::write(&verdicts)?, conformance::report_file()?);
    report.part("sentences of WIRE.md", |part| {
        let report = ["run", "-p", "metaroce-conformance", "--", "--no-scripts"];
        let files = ["--verdicts", &verdicts, "--report", &file];
        part.check("report", &[&report[..], &files[..]].concat(), &[])
    })
}

/// Without a package the tests that need it are skipped and say so, so this is no failure.
fn install_packages() {
    if let Err(error) = packages::install_missing(packages::TEST) {
        output::line(format_args!(
            "packages are missing, tests that need them will be skipped: {error:#}"
        ));
    }
}

/// How a test went.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    /// With the reason.
    Skipped(String),
}

/// The test of a harness's output whose verdict has not been seen yet.
#[derive(Debug, Default)]
struct Running(Option<String>);

impl Running {
    /// Takes one line: `test NAME ... ok`, `FAILED`, `ignored[, reason]`. What a test prints itself may stand between the
    /// name and the verdict. Returns the test that has ended.
    fn line(&mut self, line: &str) -> Option<(String, Verdict)> {
        let verdict = match line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        {
            Some((name, verdict)) => {
                self.0 = Some(name.trim().to_owned());
                verdict
            }
            None => line,
        };
        let verdict = match verdict.trim() {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed,
            verdict if verdict.starts_with("ok <") => Verdict::Passed,
            verdict => Verdict::Skipped(ignored(verdict)?),
        };
        Some((self.0.take()?, verdict))
    }
}

/// How tests went, by their names.
#[derive(Debug, Default)]
pub struct Verdicts {
    passed: Vec<String>,
    failed: Vec<String>,
    running: Running,
}

impl Verdicts {
    /// Takes one line of a test harness's output.
    pub fn count(&mut self, line: &str) {
        match self.running.line(line) {
            Some((name, Verdict::Passed)) => self.passed.push(name),
            Some((name, Verdict::Failed)) => self.failed.push(name),
            Some((_, Verdict::Skipped(_))) | None => {}
        }
    }

    /// A line each: name and verdict.
    pub fn text(&self) -> String {
        let passed = self.passed.iter().map(|name| format!("{name} ok\n"));
        let failed = self.failed.iter().map(|name| format!("{name} FAILED\n"));
        passed.chain(failed).collect()
    }
}

/// What ran, part by part.
#[derive(Debug, Default)]
struct Report {
    parts: Vec<Part>,
}

impl Report {
    fn part(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut Part) -> Result<()>,
    ) -> Result<()> {
        output::line(format_args!("\n== {name}"));
        let started = Instant::now();
        let mut part = Part {
            name,
            ..Part::default()
        };
        let result = work(&mut part);
        part.seconds = started.elapsed().as_secs_f64();
        self.parts.push(part);
        interrupt::check()?;
        result
    }

    /// A filter that no test has in its name would pass, and nothing would have been tested.
    fn close_empty_filter(&mut self, filter: &str) {
        let seen = |part: &Part| part.names.len() + part.failed.len() + part.skipped.len();
        let none = self.parts.iter().map(seen).sum::<usize>() == 0;
        if let Some(part) = self.parts.last_mut().filter(|_| none) {
            part.failed.push(format!(
                "no test has \"{filter}\" in its name; names of end-to-end cases have spaces (\"neighbours::8 hosts\"), those of others \
                 underscores"
            ));
        }
    }

    /// Prints the counts, and tells whether all went well.
    fn close(&self) -> ExitCode {
        output::line(format_args!("\n== summary"));
        for part in &self.parts {
            output::line(format_args!(
                "{:<28} {:>5} passed {:>4} failed {:>4} skipped {:>6.0} s",
                part.name,
                part.passed,
                part.failed.len(),
                part.skipped.len(),
                part.seconds
            ));
        }
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (test, reason) in self.parts.iter().flat_map(|part| &part.skipped) {
            by_reason.entry(reason).or_default().push(test);
        }
        for (reason, tests) in by_reason {
            output::line(format_args!("skipped, {reason}: {}", tests.join(", ")));
        }
        for part in &self.parts {
            for test in &part.failed {
                output::line(format_args!("failed, {}: {test}", part.name));
            }
        }
        let passed: u64 = self.parts.iter().map(|part| part.passed).sum();
        let failed: usize = self.parts.iter().map(|part| part.failed.len()).sum();
        let skipped: usize = self.parts.iter().map(|part| part.skipped.len()).sum();
        output::line(format_args!(
            "{passed} passed, {failed} failed, {skipped} skipped"
        ));
        if failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// One part of the run.
#[derive(Debug, Default)]
struct Part {
    name: &'static str,
    passed: u64,
    failed: Vec<String>,
    /// Name and reason.
    skipped: Vec<(String, String)>,
    running: Running,
    /// Of the tests that passed.
    names: Vec<String>,
    seconds: f64,
}

impl Part {
    /// Counts a cargo command that succeeds or fails as a whole; `tool` is what it runs.
    fn check(
        &mut self,
        tool: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<()> {
        let component = match tool {
            "fmt" => Some("rustfmt"),
            "clippy" => Some("clippy"),
            _ => None,
        };
        if let Some(component) = component
            && !has_component(tool)?
        {
            let reason = format!("not installed: rustup component add {component}");
            self.skipped.push((component.to_owned(), reason));
            return Ok(());
        }
        match build::run_cargo(arguments, environment) {
            Ok(()) => self.passed += 1,
            Err(error) => self.failed.push(format!("{error:#}")),
        }
        Ok(())
    }

    /// Runs `cargo test …`, shows its output and counts its tests.
    fn tests(&mut self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
        let mut command = build::cargo(arguments)?;
        command.envs(environment.iter().copied());
        let status = build::run_lines(command, |line| {
            output::line(format_args!("{line}"));
            self.count(line);
        })?;
        if let Some(name) = self.running.0.take() {
            self.failed
                .push(format!("{name} (took the whole run down)"));
        }
        if !status.success() && self.failed.is_empty() {
            // Nothing was counted as failed: it did not compile.
            self.failed
                .push(format!("`cargo {}` failed ({status})", arguments.join(" ")));
        }
        Ok(())
    }

    /// Takes one line of a test harness's output.
    fn count(&mut self, line: &str) {
        match self.running.line(line) {
            Some((name, Verdict::Passed)) => {
                self.passed += 1;
                self.names.push(name);
            }
            Some((name, Verdict::Failed)) => self.failed.push(name),
            Some((name, Verdict::Skipped(reason))) => self.skipped.push((name, reason)),
            None => {}
        }
    }
}

/// The reason of a verdict `ignored`, `ignored, REASON` or `ignored (REASON)`.
fn ignored(verdict: &str) -> Option<String> {
    let reason = verdict.strip_prefix("ignored")?;
    let reason = match reason
        .strip_prefix(" (")
        .and_then(|reason| reason.strip_suffix(')'))
    {
        Some(reason) => reason,
        None if reason.is_empty() => "ignored in the source",
        None => reason.strip_prefix(", ")?,
    };
    Some(reason.to_owned())
}

fn has_component(tool: &str) -> Result<bool> {
    let output = build::cargo(&[tool, "--version"])?.output()?;
    Ok(output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_harnesses_are_counted() {
        let mut part = Part::default();
        for line in [
            "running 5 tests",
            "test wire::tests::round_trip ... ok",
            "test fabric::loss at MTU 9000     ... FAILED",
            "test slow ... ignored",
            "test needs_root ... ignored, needs root",
            "test devices::a       ... ignored (metaroce (release) is not built: cargo build)",
            "test contract::bytes ... rounds 356, bytes 1326630325",
            "ok, said the server",
            "ok",
            "test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.33s",
        ] {
            part.count(line);
        }
        assert_eq!(
            (part.passed, part.failed.as_slice()),
            (2, &["fabric::loss at MTU 9000".to_owned()][..])
        );
        assert_eq!(part.names, ["wire::tests::round_trip", "contract::bytes"]);
        let reasons: Vec<&str> = part
            .skipped
            .iter()
            .map(|(_, reason)| reason.as_str())
            .collect();
        assert_eq!(
            reasons,
            [
                "ignored in the source",
                "needs root",
                "metaroce (release) is not built: cargo build"
            ]
        );
    }

    #[test]
    fn a_filter_without_tests_fails() {
        let with = |lines: &[&str]| {
            let build = Part {
                passed: 1,
                ..Part::default()
            };
            let mut part = Part::default();
            lines.iter().for_each(|line| part.count(line));
            let mut report = Report {
                parts: vec![build, part],
            };
            report.close_empty_filter("8_hosts");
            report.parts.pop().unwrap().failed
        };
        assert!(with(&[])[0].starts_with("no test has \"8_hosts\" in its name"));
        assert!(with(&["test a::8_hosts ... ok"]).is_empty());
        assert!(with(&["test a::8_hosts ... ignored, needs root"]).is_empty());
    }

    #[test]
    fn a_failure_decides_the_exit_code() {
        let good = Report {
            parts: vec![Part {
                passed: 1,
                ..Part::default()
            }],
        };
        let bad = Report {
            parts: vec![Part {
                failed: vec!["x".into()],
                ..Part::default()
            }],
        };
        assert_eq!(
            format!("{:?}", good.close()),
            format!("{:?}", ExitCode::SUCCESS)
        );
        assert_eq!(
            format!("{:?}", bad.close()),
            format!("{:?}", ExitCode::FAILURE)
        );
    }
}
