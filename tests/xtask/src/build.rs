//! Running cargo, and building the product.
//!
//! cargo runs in a process group of its own and is told of Ctrl-C and SIGTERM from here, so that the tests
//! below it get the chance to remove their fabrics, whoever was sent the signal.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use metaroce_e2e::{Artefacts, artefacts, interrupt, process::signal_group};

/// What an interrupted cargo gets to end before it is killed.
const GRACE: Duration = Duration::from_secs(30);

/// SIGINT and SIGKILL, whose numbers are the same on all Linux machines.
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// A cargo command in the workspace's root folder, with the target folder that this tool was built in.
pub fn cargo(arguments: &[&str]) -> Result<Command> {
    // cargo names itself to what it runs; a PATH may not have it (sudo).
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(artefacts::workspace_folder())
        .env("CARGO_TARGET_DIR", artefacts::target_folder()?)
        .stdin(Stdio::null())
        .process_group(0);
    Ok(command)
}

/// Runs a command to its end; its standard output goes line by line to `line`.
///
/// # Errors
/// It cannot be started, or the user interrupted.
pub fn run_lines(mut command: Command, mut line: impl FnMut(&str) + Send) -> Result<ExitStatus> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                line(&text);
            }
        });
        wait(&mut child)
    })
}

/// Runs a cargo command to its end and shows its output.
///
/// # Errors
/// It cannot be started or failed, or the user interrupted.
pub fn run_cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut command = cargo(arguments)?;
    command.envs(environment.iter().copied());
    let status = wait(&mut command.spawn().context("cannot start cargo")?)?;
    if !status.success() {
        bail!("`cargo {}` failed ({status})", arguments.join(" "));
    }
    Ok(())
}

/// Runs a command that [`cargo`] made, or one in a process group of its own, to its end and shows its output.
///
/// # Errors
/// It cannot be started, or the user interrupted.
pub fn run(mut command: Command) -> Result<ExitStatus> {
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    wait(&mut child)
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    let mut interrupted_at: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for cargo")? {
            interrupt::check()?;
            return Ok(status);
        }
        match interrupted_at {
            None if interrupt::requested() => {
                signal_group(child.id(), SIGINT);
                interrupted_at = Some(Instant::now());
            }
            Some(at) if at.elapsed() > GRACE => signal_group(child.id(), SIGKILL),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Builds the plugin, the shim and the launcher as users get them.
///
/// # Errors
/// They do not build.
pub fn build_product() -> Result<Artefacts> {
    let mut arguments = vec!["build", "--release"];
    for package in artefacts::PACKAGES {
        arguments.extend(["-p", package]);
    }
    run_cargo(&arguments, &[])?;
    Artefacts::in_folder(&artefacts::target_folder()?.join("release"))
}
