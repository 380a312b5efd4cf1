//! The endpoint under test: a program that does what lines on its standard input say, and answers each by a JSON object.
//!
//! Ours is `c/target.c`, a plain verbs program over stock libibverbs and the built plugin; whose implementation has no
//! verbs writes a program that takes the same lines (README.md). Each script starts one of its own, so that nothing of an
//! earlier script is left.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Artefacts, artefacts, c_program};
use metaroce_proto::wire::{Gid, Qpn};
use serde_json::Value;

/// What a program gets to start, and to answer a line.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// What it gets to end when its input does.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Where ours listens.
const OUR_DEVICES: &str = "metaroce0=lo";

/// How targets are started.
#[derive(Clone, Debug)]
pub enum Start {
    /// Ours.
    Ours {
        /// `metaroce`.
        launcher: PathBuf,
        /// `c/target.c`, compiled.
        program: PathBuf,
    },
    /// A command of somebody else, for the shell.
    Command(String),
}

impl Start {
    /// Finds the built product, and compiles the target of it.
    ///
    /// # Errors
    /// The product is not built, or the program does not compile.
    pub fn ours() -> Result<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/target.c");
        Ok(Self::Ours {
            launcher: Artefacts::find()?.launcher(),
            program: c_program::compile_source(&source)?,
        })
    }

    /// Why [`Start::ours`] cannot work here; none if it can.
    pub fn unmet() -> Option<String> {
        [Need::Product, Need::VerbsHeaders]
            .into_iter()
            .find_map(Need::unmet)
    }

    fn command(&self) -> Command {
        match self {
            Self::Ours { launcher, program } => {
                let mut command = Command::new(launcher);
                command
                    .args(["run", "--"])
                    .arg(program)
                    .env("METAROCE_DEVICES", OUR_DEVICES)
                    // For this suite, not for the product, which would warn.
                    .env_remove(artefacts::FOLDER_VARIABLE);
                command
            }
            Self::Command(line) => {
                let mut command = Command::new("sh");
                command.args(["-c", line]);
                command
            }
        }
    }
}

/// A memory region of the target.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its number.
    pub number: u64,
    /// Where it begins, as remote address.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Identifier of the work request.
    pub id: u64,
    /// `enum ibv_wc_status`.
    pub status: u64,
    /// Bytes received.
    pub bytes: u64,
    /// `wc_flags`.
    pub flags: u64,
    /// Immediate, in host order.
    pub imm: u64,
}

/// The running program.
pub struct Target {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    launcher: Option<PathBuf>,
    /// The GID that its queue pairs have.
    pub gid: Gid,
    /// Completions that were taken and not asked for yet.
    completions: Vec<Completion>,
    /// Asynchronous events so far, by `enum ibv_event_type`.
    pub events: Vec<u64>,
}

impl Target {
    /// Starts one.
    ///
    /// # Errors
    /// It does not start, or does not say who it is.
    pub fn start(start: &Start) -> Result<Self> {
        let mut child = start
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the target")?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the target has no output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let launcher = match start {
            Start::Ours { launcher, .. } => Some(launcher.clone()),
            Start::Command(_) => None,
        };
        let mut target = Self {
            child,
            input,
            lines,
            launcher,
            gid: Gid::default(),
            completions: Vec::new(),
            events: Vec::new(),
        };
        let first = target.answer().context("the target's first line")?;
        target.gid = gid_of(first["gid"].as_str().unwrap_or_default())
            .with_context(|| format!("no gid of 32 hexadecimal digits in {first}"))?;
        Ok(target)
    }

    /// Address of the endpoint.
    pub fn ip(&self) -> IpAddr {
        self.gid.to_ip()
    }

    /// Does what `line` says.
    ///
    /// # Errors
    /// The target refuses, or has ended.
    pub fn tell(&mut self, line: &str) -> Result<Value> {
        let input = self.input.as_mut().context("the target was closed")?;
        writeln!(input, "{line}")
            .and_then(|()| input.flush())
            .with_context(|| format!("the target does not take `{line}`"))?;
        let answer = self.answer().with_context(|| format!("after `{line}`"))?;
        if let Some(error) = answer["error"].as_str() {
            bail!("the target refuses `{line}`: {error}");
        }
        Ok(answer)
    }

    fn answer(&mut self) -> Result<Value> {
        let line = match self.lines.recv_timeout(ANSWERS_WITHIN) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                bail!("the target says nothing for {ANSWERS_WITHIN:?}")
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the target has ended"),
        };
        serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))
    }

    fn number(&mut self, line: &str, field: &str) -> Result<u64> {
        let answer = self.tell(line)?;
        answer[field]
            .as_u64()
            .with_context(|| format!("no number {field} in the answer {answer} to `{line}`"))
    }

    /// Memory of its process that is in use, if it is ours.
    ///
    /// # Errors
    /// It has ended.
    pub fn resident_bytes(&self) -> Result<Option<u64>> {
        if self.launcher.is_none() {
            return Ok(None);
        }
        let file = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(&file).with_context(|| format!("no {file}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: u64 = kib
            .with_context(|| format!("no VmRSS in {file}"))?
            .parse()?;
        Ok(Some(kib * 1024))
    }

    /// Makes a queue pair in INIT; `more` are further words. Its number at the target, and its QPN.
    ///
    /// # Errors
    /// As [`Target::tell`].
    pub fn create(&mut self, more: &str) -> Result<(u64, Qpn)> {
        let answer = self.tell(&format!("create {more}"))?;
        let qpn = answer["qpn"]
            .as_u64()
            .and_then(|qpn| u32::try_from(qpn).ok());
        let qpn = qpn.and_then(Qpn::new);
        let number = answer["qp"].as_u64();
        number
            .zip(qpn)
            .with_context(|| format!("no queue pair in {answer}"))
    }

    /// Registers memory of `bytes`, each of value `fill`; `more` are further words.
    ///
    /// # Errors
    /// As [`Target::tell`].
    pub fn region(&mut self, bytes: u64, fill: u8, more: &str) -> Result<Region> {
        let answer = self.tell(&format!("region bytes={bytes} fill={fill} {more}"))?;
        let field = |name: &str| {
            answer[name]
                .as_u64()
                .with_context(|| format!("no {name} in {answer}"))
        };
        Ok(Region {
            number: field("region")?,
            addr: field("addr")?,
            rkey: u32::try_from(field("rkey")?)?,
        })
    }

    /// Bytes of a region.
    ///
    /// # Errors
    /// As [`Target::tell`].
    pub fn read(&mut self, region: &Region, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let line = format!(
            "read region={} offset={offset} bytes={bytes}",
            region.number
        );
        let answer = self.tell(&line)?;
        let hex = answer["hex"].as_str().unwrap_or_default();
        bytes_of(hex).with_context(|| format!("no bytes in {answer}"))
    }

    /// How many bytes of a region are not `value`.
    ///
    /// # Errors
    /// As [`Target::tell`].
    pub fn other_than(&mut self, region: &Region, value: u8) -> Result<u64> {
        self.number(
            &format!("other region={} value={value}", region.number),
            "other",
        )
    }

    /// State of a queue pair: `init`, `rts`, `error` …
    ///
    /// # Errors
    /// As [`Target::tell`].
    pub fn state(&mut self, qp: u64) -> Result<String> {
        let answer = self.tell(&format!("state qp={qp}"))?;
        Ok(answer["state"].as_str().unwrap_or_default().to_owned())
    }

    /// Takes what has completed and happened.
    ///
    /// # Errors
    /// As [`Target::tell`].
    pub fn poll(&mut self) -> Result<()> {
        let answer = self.tell("poll")?;
        for one in answer["completions"].as_array().into_iter().flatten() {
            let field = |name: &str| one[name].as_u64().unwrap_or(u64::MAX);
            self.completions.push(Completion {
                id: field("id"),
                status: field("status"),
                bytes: field("bytes"),
                flags: field("flags"),
                imm: field("imm"),
            });
        }
        let events = answer["events"].as_array().into_iter().flatten();
        self.events.extend(events.filter_map(Value::as_u64));
        Ok(())
    }

    /// The next completion that was taken.
    pub fn next_completion(&mut self) -> Option<Completion> {
        (!self.completions.is_empty()).then(|| self.completions.remove(0))
    }

    /// What `metaroce stat` tells of it, if it is ours.
    fn stat(&self) -> Result<Option<Value>> {
        let Some(launcher) = &self.launcher else {
            return Ok(None);
        };
        let pid = self.child.id().to_string();
        let output = Command::new(launcher)
            .args(["stat", "--once", "--json", "--pid", &pid])
            .output()
            .context("cannot start `metaroce stat`")?;
        let mut report: Value =
            serde_json::from_slice(&output.stdout).context("`metaroce stat` tells no JSON")?;
        Ok(Some(report["engines"][0].take()))
    }

    /// The sum of its counters whose name begins with `name`, if it has such: ours tells them to `metaroce stat`.
    ///
    /// # Errors
    /// `metaroce stat` fails.
    pub fn counter(&self, name: &str) -> Result<Option<u64>> {
        let Some(engine) = self.stat()? else {
            return Ok(None);
        };
        let counters = engine["counters"].as_object();
        let counters = counters.with_context(|| format!("no counters in {engine}"))?;
        let named = counters.iter().filter(|(other, _)| other.starts_with(name));
        Ok(Some(named.filter_map(|(_, value)| value.as_u64()).sum()))
    }

    /// Connections of other processes of its host, as far as it tells.
    ///
    /// # Errors
    /// `metaroce stat` fails.
    pub fn other_connections(&self) -> Result<u64> {
        let engine = self.stat()?;
        Ok(engine
            .and_then(|engine| engine["other_connections"].as_u64())
            .unwrap_or(0))
    }

    /// Lets it end in order. It goes on for a moment: its last packets can be received meanwhile.
    pub fn end(&mut self) {
        self.input = None;
    }

    /// Kills it, as a crash would.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        // First: at the end of its input it would leave in order.
        self.child.kill().context("cannot kill the target")?;
        self.child.wait().context("cannot wait for the target")?;
        self.input = None;
        Ok(())
    }

    /// Whether it ended well, in time.
    ///
    /// # Errors
    /// It did not.
    pub fn ended(&mut self) -> Result<()> {
        self.input = None;
        let end = Instant::now() + ENDS_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the target ended with {status}");
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "the target does not end within {ENDS_WITHIN:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A GID in the form of the lines.
pub fn gid_text(gid: Gid) -> String {
    gid.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn gid_of(hex: &str) -> Option<Gid> {
    Some(Gid(bytes_of(hex)?.try_into().ok()?))
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    let pairs = digits.chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_read_as_they_are_written() {
        let gid = Gid::from_ip("127.0.0.1".parse().unwrap());
        assert_eq!(gid_text(gid), "00000000000000000000ffff7f000001");
        assert_eq!(gid_of(&gid_text(gid)), Some(gid));
        assert_eq!(gid_of("00"), None);
    }

    /// A foreign target is any command that answers lines; what it refuses, and what it is silent about, is told.
    #[test]
    fn a_command_is_a_target() {
        let script = r#"echo '{"gid":"00000000000000000000ffff7f000001"}'
            read line; echo '{"error":"no '"$line"'"}'"#;
        let mut target = Target::start(&Start::Command(script.to_owned())).unwrap();
        assert_eq!(target.ip(), IpAddr::from([127, 0, 0, 1]));
        let error = target.tell("frobnicate").unwrap_err().to_string();
        assert!(error.contains("no frobnicate"), "{error}");
        let error = format!("{:#}", target.tell("poll").unwrap_err());
        assert!(error.contains("target"), "{error}");
        assert_eq!(target.counter("dropped").unwrap(), None);
    }
}
