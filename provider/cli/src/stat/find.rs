//! Which engines there are: the sockets whose names are ours, in the list that the kernel keeps for each network
//! namespace. Those of other namespaces (containers) are found through the processes in them; asking them takes root.

use anyhow::{Context, Result};
use metaroce::telemetry::SocketName;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The socket listens (`__SO_ACCEPTCON`), as /proc/net/unix has it: each connection of it is listed with its name too.
const LISTENING: u32 = 1 << 16;

/// The engines of one network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// Its identity.
    pub(crate) inode: u64,
    /// A file by which it can be entered; none for our own.
    pub(crate) entrance: Option<PathBuf>,
    /// The names of the sockets.
    pub(crate) names: Vec<SocketName>,
}

/// The engines of our own network namespace.
///
/// # Errors
/// The kernel's list cannot be read.
pub(crate) fn own_namespace() -> Result<Namespace> {
    let own = Path::new("/proc/self");
    let table =
        fs::read(own.join("net/unix")).context("cannot read /proc/net/unix (is /proc mounted?)")?;
    Ok(Namespace {
        inode: inode_of(own).unwrap_or(0),
        entrance: None,
        names: names(&table),
    })
}

/// All that can be found: our own namespace first. Namespaces without an engine are left out.
///
/// # Errors
/// The kernel's list of our own namespace cannot be read.
pub(super) fn namespaces() -> Result<Vec<Namespace>> {
    let own = own_namespace()?;
    let own_inode = own.inode;
    let mut found = vec![own];
    for (inode, process) in other_namespaces(own_inode) {
        // The process may have ended meanwhile, or be somebody else's.
        let Ok(table) = fs::read(process.join("net/unix")) else {
            continue;
        };
        found.push(Namespace {
            inode,
            entrance: Some(process.join("ns/net")),
            names: names(&table),
        });
    }
    found.retain(|namespace| !namespace.names.is_empty());
    Ok(found)
}

/// The network namespaces of all processes that we may look at, but our own, each with the folder of one process.
fn other_namespaces(own: u64) -> BTreeMap<u64, PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter_map(|entry| Some((inode_of(&entry.path())?, entry.path())))
        .filter(|(inode, _)| *inode != own)
        .collect()
}

fn inode_of(process: &Path) -> Option<u64> {
    fs::metadata(process.join("ns/net"))
        .ok()
        .map(|file| file.ino())
}

/// The names of ours in a table like /proc/net/unix, each once.
pub(super) fn names(table: &[u8]) -> Vec<SocketName> {
    let table = String::from_utf8_lossy(table);
    let mut names: Vec<SocketName> = table.lines().filter_map(name_in).collect();
    names.sort();
    names.dedup();
    names
}

/// `Num: RefCount Protocol Flags Type St Inode @name`
fn name_in(line: &str) -> Option<SocketName> {
    let mut fields = line.split_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let name = fields.nth(3)?.strip_prefix('@')?;
    (flags & LISTENING != 0).then(|| name.parse().ok())?
}
