//! `cargo xtask fuzz`: runs the targets of `tests/fuzz` under libFuzzer, one after the other, and says what came of it.
//!
//! It needs no other toolchain and no cargo subcommand: the flags below are those that `cargo fuzz` uses, and the address
//! sanitizer's runtime comes with the toolchain. What has been found in earlier runs (the corpus) stays in the target
//! folder. A failing input is made smaller, kept, and printed with the command that runs it again without a fuzzer.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use metaroce_e2e::artefacts;

use crate::{build, output};

/// Arguments of `fuzz`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Which target; all if none is named. `list` shows them.
    target: Option<String>,
    /// How long for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Without the address sanitizer: some three times faster, blind to wrong accesses to memory.
    #[arg(long)]
    no_sanitizer: bool,
}

/// Coverage that libFuzzer steers by.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=4 --cfg fuzzing";

/// Flags and environment by which a stable compiler takes the sanitizer.
pub const SANITIZER: &str = "-Zsanitizer=address";
/// See [`SANITIZER`].
pub const UNSTABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

/// Longest input that is printed in full.
const PRINT_BYTES: usize = 200;

/// Time for making a failing input smaller.
const MINIMISE_SECONDS: u64 = 60;

/// An input that takes longer has hung.
const HANG_SECONDS: u64 = 25;

/// Memory that an input may take: far more than any needs.
const MEMORY_MIB: u64 = 3_000;

struct Target {
    name: String,
    max_bytes: String,
    about: String,
}

/// Runs one target or all.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let targets = targets()?;
    let wanted: Vec<&Target> = match arguments.target.as_deref() {
        Some("list") => {
            for target in &targets {
                output::line(format_args!("{:<12} {}", target.name, target.about));
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some(name) => targets
            .iter()
            .filter(|target| target.name == name)
            .collect(),
        None => targets.iter().collect(),
    };
    ensure!(
        !wanted.is_empty(),
        "no such target; `cargo xtask fuzz list` shows them"
    );
    let binaries = build_targets(&wanted, !arguments.no_sanitizer)?;
    let mut failed = 0;
    for target in wanted {
        failed += usize::from(!run_target(target, &binaries, arguments.seconds)?);
    }
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// `fuzz-replay` knows the targets and their seeds.
fn replay(arguments: &[&str]) -> Result<Command> {
    let mut command = build::cargo(&["run", "--quiet", "-p", "metaroce-fuzz", "--"])?;
    command.args(arguments);
    Ok(command)
}

fn targets() -> Result<Vec<Target>> {
    let output = replay(&["--list"])?.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the fuzz targets do not build");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let parse = |line: &str| {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        Some(Target {
            name: words.next()?,
            max_bytes: words.next()?,
            about: words.next()?,
        })
    };
    Ok(text.lines().filter_map(parse).collect())
}

/// Builds the libFuzzer binaries; returns their folder.
fn build_targets(targets: &[&Target], sanitizer: bool) -> Result<PathBuf> {
    ensure!(
        ["c++", "g++", "clang++"].iter().any(|name| is_there(name)),
        "libFuzzer needs a C++ compiler: apt-get install g++"
    );
    let triple = host_triple()?;
    let folder = artefacts::target_folder()?.join(if sanitizer {
        "libfuzzer-asan"
    } else {
        "libfuzzer"
    });
    let manifest = artefacts::workspace_folder().join("tests/fuzz/libfuzzer/Cargo.toml");
    let mut command = build::cargo(&["build", "--release", "--target", &triple])?;
    command.arg("--manifest-path").arg(manifest);
    for target in targets {
        command.args(["--bin", &target.name]);
    }
    let mut flags = COVERAGE.to_owned();
    if sanitizer {
        flags = format!("{flags} {SANITIZER}");
        command.env(UNSTABLE.0, UNSTABLE.1);
    }
    command
        .env("CARGO_TARGET_DIR", &folder)
        .env("RUSTFLAGS", flags);
    let status = build::run(command)?;
    if !status.success() {
        bail!(
            "the fuzz targets do not build with libFuzzer; with a toolchain that has no address sanitizer try --no-sanitizer"
        );
    }
    Ok(folder.join(triple).join("release"))
}

/// True if nothing failed.
fn run_target(target: &Target, binaries: &Path, seconds: u64) -> Result<bool> {
    let folder = artefacts::target_folder()?.join("fuzz");
    let corpus = folder.join("corpus").join(&target.name);
    let crashes = folder.join("failures");
    fs::create_dir_all(&crashes)?;
    let mut seeds = replay(&["--seeds", &target.name])?;
    seeds.arg(&corpus);
    ensure!(build::run(seeds)?.success(), "no seeds for {}", target.name);
    output::line(format_args!(
        "\n== {}: {} ({seconds} s)",
        target.name, target.about
    ));
    let prefix = crashes.join(format!("{}-", target.name));
    let began = SystemTime::now();
    let mut fuzzer = fuzzer(target, binaries);
    fuzzer
        .arg(&corpus)
        .arg(format!("-max_len={}", target.max_bytes))
        .arg(format!("-artifact_prefix={}", prefix.display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={HANG_SECONDS}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .args(["-print_final_stats=1", "-verbosity=1"]);
    if build::run(fuzzer)?.success() {
        return Ok(true);
    }
    let found = newest_since(&crashes, &target.name, began)
        .with_context(|| format!("{} failed and left no input", target.name))?;
    let small = minimise(target, binaries, &found)?;
    tell(target, &small)?;
    Ok(false)
}

fn fuzzer(target: &Target, binaries: &Path) -> Command {
    let mut command = Command::new(binaries.join(&target.name));
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// The failing input that was written last.
fn newest_since(folder: &Path, target: &str, began: SystemTime) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let times = entries.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let written = entry.metadata().ok()?.modified().ok()?;
        // File systems keep coarser times than the clock.
        let late = written + Duration::from_secs(1) >= began;
        (late && name.starts_with(target)).then_some((written, entry.path()))
    });
    times.max().map(|(_, path)| path)
}

/// A smaller input that fails too; the same one if none was found in time.
fn minimise(target: &Target, binaries: &Path, input: &Path) -> Result<PathBuf> {
    output::line(format_args!(
        "\n== {}: making the failing input smaller",
        target.name
    ));
    let small = input.with_extension("small");
    let mut command = fuzzer(target, binaries);
    command
        .arg(input)
        .arg("-minimize_crash=1")
        .arg(format!("-max_total_time={MINIMISE_SECONDS}"))
        .arg(format!("-exact_artifact_path={}", small.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // It says failure when it can go no further, too.
    let _ended = build::run(command)?;
    Ok(if small.exists() { small } else { input.into() })
}

fn tell(target: &Target, input: &Path) -> Result<()> {
    let bytes = fs::read(input)?;
    output::line(format_args!(
        "\n{} FAILED with {} bytes in {}",
        target.name,
        bytes.len(),
        input.display()
    ));
    if bytes.len() <= PRINT_BYTES {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        output::line(format_args!("  {}", hex.join(" ")));
    }
    output::line(format_args!("run it again:"));
    output::line(format_args!(
        "  cargo run -p metaroce-fuzz -- {} {}",
        target.name,
        input.display()
    ));
    output::line(format_args!(
        "keep it: copy it to tests/fuzz/regressions and name it in tests/fuzz/src/tests.rs"
    ));
    Ok(())
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The sanitizer wants the target named, or it would be linked into build scripts too.
pub fn host_triple() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("rustc does not name its host")
}
