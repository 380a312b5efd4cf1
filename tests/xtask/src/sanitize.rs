//! `cargo xtask sanitize` and `cargo xtask loom`: the corners that the compiler cannot check.
//!
//! `sanitize` runs the tests of the crates with unsafe code, and the seeds of the fuzz targets (which call the C entry
//! points over real sockets), under the address sanitizer that comes with the toolchain, or under valgrind. (Miri would
//! see more, but it needs a component that only nightly toolchains have, and can neither open sockets nor call C.)
//! `loom` runs the models of `engine/` and `verbs/` that try every order of their threads: the very code, with its atomics
//! and locks exchanged by one switch (`provider/src/sync.rs`).

use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;
use metaroce_e2e::artefacts;

use crate::{build, fuzz};

/// Arguments of `sanitize`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Under valgrind (apt-get install valgrind) instead of the address sanitizer: slower, but it also sees memory that
    /// was never written.
    #[arg(long)]
    valgrind: bool,
    /// Only tests whose name has this in it.
    filter: Option<String>,
}

/// What has unsafe code, or runs it with odd arguments.
const PACKAGES: [&str; 4] = ["metaroce", "metaroce-udp", "metaroce-shim", "metaroce-fuzz"];

/// The sanitizer puts its own functions in the place of libc's, so that there is no import to be found.
const SANITIZER_SKIPS: [&str; 1] = ["finds_the_slots_of_an_imported_function"];

/// Tests with time limits that valgrind is too slow for, or that measure.
const VALGRIND_SKIPS: [&str; 2] = ["measurements", "no_work_is_ever_stranded"];

/// Leaks are not looked for: what lives as long as the process is never freed, on purpose.
const SANITIZER_OPTIONS: (&str, &str) = ("ASAN_OPTIONS", "detect_leaks=0");

/// The models, by the start of their names.
const MODELS: &str = "loom_";

/// Runs the tests under the sanitizer or valgrind.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let triple = fuzz::host_triple()?;
    let mut command = build::cargo(&["test", "--lib", "--tests", "--no-fail-fast"])?;
    for package in PACKAGES {
        command.args(["-p", package]);
    }
    command.args(["--target", &triple]);
    if arguments.valgrind {
        let name = triple.to_uppercase().replace('-', "_");
        command.env(
            format!("CARGO_TARGET_{name}_RUNNER"),
            "valgrind --quiet --error-exitcode=99",
        );
    } else {
        // A folder of its own: other flags would build everything anew each time.
        let folder = artefacts::target_folder()?.join("sanitize");
        command
            .env("CARGO_TARGET_DIR", folder)
            .env("RUSTFLAGS", fuzz::SANITIZER)
            .env(fuzz::UNSTABLE.0, fuzz::UNSTABLE.1)
            .env(SANITIZER_OPTIONS.0, SANITIZER_OPTIONS.1);
    }
    command.args(&arguments.filter);
    command.arg("--");
    let skips: &[&str] = match arguments.valgrind {
        true => &VALGRIND_SKIPS,
        false => &SANITIZER_SKIPS,
    };
    for name in skips {
        command.args(["--skip", name]);
    }
    finish(command)
}

/// Runs the models.
pub fn loom() -> Result<ExitCode> {
    let mut command = build::cargo(&["test", "--release", "-p", "metaroce", "--lib", MODELS])?;
    command
        .env("CARGO_TARGET_DIR", artefacts::target_folder()?.join("loom"))
        .env("RUSTFLAGS", "--cfg loom");
    finish(command)
}

fn finish(command: Command) -> Result<ExitCode> {
    Ok(match build::run(command)?.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
