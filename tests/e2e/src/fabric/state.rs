//! The record of a fabric: what was made, so that exactly this is removed again, also by a later process.
//!
//! One JSON file per fabric in a folder that goes with a reboot, as the namespaces do. It is written
//! before the first namespace is made, so a process that dies half-way leaves nothing unrecorded.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::shape::{Shape, Topology};

/// Folder of the records; `TMPDIR` stands in where there is no /run.
const RUN_FOLDER: &str = "/run";

/// What is remembered of a fabric.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// The fabric's name, which prefixes its namespaces.
    pub name: String,
    /// How hosts are joined.
    pub topology: Topology,
    /// How many hosts.
    #[serde(default = "two_hosts")]
    pub hosts: u8,
    /// MTU of every link, in bytes.
    pub mtu_bytes: u32,
    /// Whether the kernel has IPv6, so that IPv6 addresses and routes were made.
    pub ipv6: bool,
    /// All namespaces that belong to it.
    pub namespaces: Vec<String>,
    /// The process that removes it at its end; none for a fabric made by hand.
    pub owner: Option<Owner>,
}

/// What records say that were made before there could be more.
fn two_hosts() -> u8 {
    2
}

/// A process, told apart from a later one of the same number by its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Process number.
    pub pid: u32,
    /// Start time in clock ticks after boot, from /proc/PID/stat.
    pub started_ticks: u64,
}

impl Owner {
    /// The calling process.
    pub fn current() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            started_ticks: started_ticks(pid).unwrap_or(0),
        }
    }

    /// Whether that very process still runs.
    pub fn is_alive(&self) -> bool {
        started_ticks(self.pid) == Some(self.started_ticks)
    }
}

/// Field 22 of /proc/PID/stat. The second field is a name in parentheses that may hold anything, so
/// counting starts behind the last parenthesis.
fn started_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

/// The folder that holds the records.
pub fn folder() -> PathBuf {
    let base = Path::new(RUN_FOLDER);
    let base = if base.is_dir() {
        base.to_owned()
    } else {
        std::env::temp_dir()
    };
    base.join("metaroce-fabric")
}

fn file_of(name: &str) -> PathBuf {
    folder().join(format!("{name}.json"))
}

impl State {
    /// What the fabric looks like.
    pub fn shape(&self) -> Shape {
        self.topology.with_hosts(self.hosts)
    }

    /// Writes the record of a new fabric.
    ///
    /// # Errors
    /// There is one of that name already, or the folder cannot be written.
    pub fn create(&self) -> Result<()> {
        let path = file_of(&self.name);
        // Written aside and linked into place: the record appears whole, or not at all, and never in the
        // place of another one.
        let files = self.files();
        fs::create_dir_all(&files).with_context(|| format!("cannot make {}", files.display()))?;
        let fresh = files.join(format!("record.{}", std::process::id()));
        fs::write(&fresh, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("cannot write {}", fresh.display()))?;
        let linked = fs::hard_link(&fresh, &path);
        let _ = fs::remove_file(&fresh);
        match linked {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "a fabric named `{0}` is up already: `cargo xtask fabric down --name {0}` removes it, \
                 `--name OTHER` makes a second one beside it",
                self.name
            ),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
        }
    }

    /// Reads the record of the fabric `name`; none if there is no such fabric.
    ///
    /// # Errors
    /// The record is unreadable.
    pub fn load(name: &str) -> Result<Option<Self>> {
        let path = file_of(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let state = serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is damaged; remove it, and the namespaces {name}-… with `ip netns del`",
                path.display()
            )
        })?;
        Ok(Some(state))
    }

    /// The records of all fabrics; damaged ones are left out.
    pub fn all() -> Vec<Self> {
        let Ok(entries) = fs::read_dir(folder()) else {
            return Vec::new();
        };
        let mut all: Vec<Self> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                Self::load(name.strip_suffix(".json")?).ok().flatten()
            })
            .collect();
        all.sort_by(|left, right| left.name.cmp(&right.name));
        all
    }

    /// Forgets the record.
    pub fn remove(&self) {
        // The record last: what it names is removed again if this is cut short.
        let _ = fs::remove_dir_all(self.files());
        let _ = fs::remove_file(file_of(&self.name));
    }

    /// The folder of what belongs to this fabric beside the record: compiled programs, counts.
    pub fn files(&self) -> PathBuf {
        folder().join(format!("{}.d", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_a_reused_number_is_not() {
        let me = Owner::current();
        assert!(me.started_ticks > 0);
        assert!(me.is_alive());
        assert!(
            !Owner {
                started_ticks: me.started_ticks + 1,
                ..me
            }
            .is_alive()
        );
    }
}
