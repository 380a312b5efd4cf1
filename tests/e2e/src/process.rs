//! A program that runs: waiting for it within bounds, its output, its end; killed with all its children
//! when its handle is dropped.
//!
//! Made by [`crate::Program::spawn`]. Nothing here waits without a bound, and every wait ends on Ctrl-C.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt;

/// How often waits look: short against anything measured, and cheap on two cores.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Output beyond this is not kept in memory; a runaway program must not exhaust it.
const KEPT_OUTPUT_BYTES: u64 = 4 << 20;

/// Lines of output that an error message repeats.
const SHOWN_LINES: usize = 15;

/// Sends a signal to the process group that child `pid` leads. The child must not have been waited for
/// yet: until then its number cannot pass to another group.
pub fn signal_group(pid: u32, signal: i32) {
    let Ok(group) = i32::try_from(pid) else {
        return;
    };
    if group > 1 {
        // SAFETY: kill takes numbers and touches no memory.
        unsafe { libc::kill(-group, signal) };
    }
}

/// Has the kernel kill the child when the thread that starts it ends, be it by SIGKILL: nothing is left
/// running on a fabric whose owner is gone. (So start programs on the thread that waits for them.)
fn die_with_parent(command: &mut Command) {
    let arm = || {
        // SAFETY: prctl with PR_SET_PDEATHSIG takes a number and is async-signal-safe, as code between
        // fork and exec must be.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(arm) };
}

/// A file that has no name any more: it is gone when the last handle is closed.
fn unnamed_file() -> Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("metaroce-e2e-{}-{number}", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create_new(true)
        .open(&path)
        .with_context(|| format!("cannot make {} for a program's output", path.display()))?;
    let _ = fs::remove_file(&path);
    Ok(file)
}

/// The last part of what a program wrote.
fn read_tail(file: &File) -> String {
    let length = file.metadata().map(|metadata| metadata.len()).unwrap_or(0);
    let start = length.saturating_sub(KEPT_OUTPUT_BYTES);
    // Bounded by KEPT_OUTPUT_BYTES.
    let mut bytes = vec![0; (length - start) as usize];
    match file.read_exact_at(&mut bytes, start) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("(output unreadable: {error})"),
    }
}

/// A program that was started.
#[derive(Debug)]
pub struct Proc {
    name: String,
    command_line: String,
    child: Child,
    /// Set once the process was reaped; its number may belong to another one from then on.
    status: Option<ExitStatus>,
    stdout: File,
    stderr: File,
    started: Instant,
    limit: Duration,
}

impl Proc {
    /// Starts `command` in a process group of its own.
    pub(crate) fn start(
        mut command: Command,
        name: String,
        command_line: String,
        limit: Duration,
    ) -> Result<Self> {
        let (stdout, stderr) = (unnamed_file()?, unnamed_file()?);
        command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            // The whole group is killed, and a terminal's Ctrl-C reaches only us.
            .process_group(0);
        die_with_parent(&mut command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start `{command_line}`"))?;
        Ok(Self {
            name,
            command_line,
            child,
            status: None,
            stdout,
            stderr,
            started: Instant::now(),
            limit,
        })
    }

    /// Process number of the program itself: everything in front of it execs.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        read_tail(&self.stdout)
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        read_tail(&self.stderr)
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn is_running(&mut self) -> Result<bool> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .with_context(|| format!("cannot wait for {}", self.name))?;
        }
        Ok(self.status.is_none())
    }

    /// Sends a signal to the program and its children; nothing happens if it has ended.
    pub fn signal(&self, signal: i32) {
        if self.status.is_some() {
            return;
        }
        signal_group(self.child.id(), signal);
    }

    /// Waits for its end, or kills it at its limit.
    ///
    /// # Errors
    /// The user interrupted, or the kernel does not tell.
    pub fn wait(mut self) -> Result<Outcome> {
        let ended = self.wait_while(self.limit, |_| true)?;
        if !ended {
            self.kill();
        }
        Ok(self.outcome(!ended))
    }

    /// Gives it `grace` to end by itself, then kills it. For the partner of a program that failed.
    ///
    /// # Errors
    /// As [`Proc::wait`].
    pub fn wait_at_most(mut self, grace: Duration) -> Result<Outcome> {
        self.limit = self.limit.min(self.started.elapsed() + grace);
        self.wait()
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// It ended before, `within` or its limit passed, or the user interrupted.
    pub fn wait_until(
        &mut self,
        what: &str,
        within: Duration,
        condition: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let limit = self.limit.min(self.started.elapsed() + within);
        let ended = self.wait_while(limit, |program| !condition(program))?;
        // What it did last may have made the condition true.
        if condition(self) {
            return Ok(());
        }
        let end = match ended {
            true => format!("ended before {what}"),
            false => format!("{what} did not happen within {:.1} s", limit.as_secs_f64()),
        };
        bail!("{}: {end}:\n{}", self.name, self.describe())
    }

    /// Waits until it listens on TCP `port`.
    ///
    /// # Errors
    /// As [`Proc::wait_until`].
    pub fn wait_listening(&mut self, port: u16, within: Duration) -> Result<()> {
        let pid = self.pid();
        self.wait_until(&format!("listening on TCP port {port}"), within, |_| {
            is_listening(pid, port)
        })
    }

    /// Waits until standard output or standard error has `text`.
    ///
    /// # Errors
    /// As [`Proc::wait_until`].
    pub fn wait_output(&mut self, text: &str, within: Duration) -> Result<()> {
        self.wait_until(&format!("writing `{text}`"), within, |program| {
            program.stdout().contains(text) || program.stderr().contains(text)
        })
    }

    /// Lets it run for `time`.
    ///
    /// # Errors
    /// It ended before or reached its limit, or the user interrupted.
    pub fn run_on(&mut self, time: Duration) -> Result<()> {
        let until = self.started.elapsed() + time;
        let ended = self.wait_while(until.min(self.limit), |_| true)?;
        if ended || self.started.elapsed() < until {
            bail!("{}: it should still run:\n{}", self.name, self.describe());
        }
        Ok(())
    }

    /// Waits for the end while `going` holds, until `limit` after the start; whether it ended.
    fn wait_while(&mut self, limit: Duration, going: impl Fn(&Self) -> bool) -> Result<bool> {
        loop {
            interrupt::check()?;
            if !self.is_running()? {
                return Ok(true);
            }
            if self.started.elapsed() >= limit || !going(self) {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }

    fn outcome(&self, timed_out: bool) -> Outcome {
        Outcome {
            name: self.name.clone(),
            command_line: self.command_line.clone(),
            status: self.status,
            timed_out,
            elapsed: self.started.elapsed(),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    fn describe(&self) -> String {
        self.outcome(false).describe()
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a program ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// The command line.
    pub command_line: String,
    /// Its exit status; none if it could not be had.
    pub status: Option<ExitStatus>,
    /// It was killed at its limit.
    pub timed_out: bool,
    /// From start to end.
    pub elapsed: Duration,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// Whether it ended by itself with status 0.
    pub fn succeeded(&self) -> bool {
        !self.timed_out && self.status.is_some_and(|status| status.success())
    }

    /// The outcome if it ended by itself with status 0.
    ///
    /// # Errors
    /// It did not: the message tells how it ended and what it wrote last.
    pub fn success(self) -> Result<Self> {
        if self.succeeded() {
            Ok(self)
        } else {
            bail!("{}", self.describe())
        }
    }

    /// Command line, end, and the last lines of output.
    pub fn describe(&self) -> String {
        let end = match self.status {
            _ if self.timed_out => format!("was killed after {:.1} s", self.elapsed.as_secs_f64()),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exited with status {code}"),
                (_, Some(signal)) => format!("was killed by signal {signal}"),
                _ => "ended strangely".to_owned(),
            },
            None => "still runs".to_owned(),
        };
        let mut text = format!("{} {end}\n  command: {}", self.name, self.command_line);
        for (stream, output) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let lines: Vec<&str> = output.lines().collect();
            let skipped = lines.len().saturating_sub(SHOWN_LINES);
            for line in &lines[skipped..] {
                text.push_str(&format!("\n  {stream}: {line}"));
            }
        }
        text
    }
}

/// Whether some process in the network namespace of process `pid` listens on TCP `port`.
fn is_listening(pid: u32, port: u16) -> bool {
    /// State LISTEN in /proc/net/tcp.
    const LISTEN: &str = "0A";
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next(), fields.nth(1));
            let local_port = local
                .and_then(|address| address.rsplit_once(':'))
                .map(|(_, hex)| hex);
            state == Some(LISTEN)
                && local_port.and_then(|hex| u16::from_str_radix(hex, 16).ok()) == Some(port)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;

    #[test]
    fn output_and_status_are_kept() {
        let outcome = Program::new("sh")
            .args(["-c", "echo out; echo err >&2; exit 3"])
            .run()
            .unwrap();
        assert_eq!(
            (outcome.stdout.as_str(), outcome.stderr.as_str()),
            ("out\n", "err\n")
        );
        let message = outcome.success().unwrap_err().to_string();
        assert!(
            message.contains("status 3") && message.contains("stderr: err"),
            "{message}"
        );
    }

    #[test]
    fn a_program_is_killed_at_its_limit_with_its_children() {
        let program = Program::new("sh").args(["-c", "sleep 100 & echo $!; wait"]);
        let outcome = program.limit(Duration::from_secs(1)).run().unwrap();
        assert!(outcome.timed_out && outcome.elapsed < Duration::from_secs(5));
        let child = outcome.stdout.trim().to_owned();
        let gone = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
        assert!(gone, "the child {child} outlived its parent");
    }

    #[test]
    fn dropping_a_program_kills_it() {
        let program = Program::new("sleep").args(["100"]).spawn().unwrap();
        let pid = program.pid();
        drop(program);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn listening_is_seen_without_a_blind_sleep() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(std::process::id(), port));
        drop(listener);
        assert!(!is_listening(std::process::id(), port));
    }

    #[test]
    fn waiting_for_output_ends_with_the_program() {
        let mut program = Program::new("sh")
            .args(["-c", "echo ready"])
            .spawn()
            .unwrap();
        program
            .wait_output("ready", Duration::from_secs(5))
            .unwrap();
        assert!(
            program
                .wait_output("never", Duration::from_secs(5))
                .unwrap_err()
                .to_string()
                .contains("ended before")
        );
    }
}
