//! What a case needs of the machine. A need that is not met skips the case, with a reason that says what
//! to do about it.

use std::fs;
use std::path::Path;

use crate::artefacts::Artefacts;
use crate::debian::{Suite, Unpacked};
use crate::program::NOBODY;
use crate::tool;

/// Something without which a case cannot run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Root, for network namespaces.
    Root,
    /// The built product.
    Product,
    /// A program of the system.
    Program(&'static str),
    /// What is needed to lose, mark and swallow packets by BPF.
    Loss,
    /// A C compiler and the headers of libibverbs.
    VerbsHeaders,
    /// IPv6 in the kernel.
    Ipv6,
    /// A kind of network interface that is made upon others, by the name that `ip link` has for it.
    LinkKind(&'static str),
    /// So much memory that nobody uses.
    MemoryMib(u64),
    /// Namespaces that a user without rights makes for himself, as rootless containers do.
    UserNamespaces,
    /// The libibverbs of a release of Debian; looking for it downloads it.
    Debian(Suite),
}

impl Need {
    /// Why the case cannot run here; none if it can.
    pub fn unmet(self) -> Option<String> {
        let program = |name: &str| tool::require(name).err().map(|error| error.to_string());
        match self {
            Self::Root if !tool::is_root() => Some("needs root (network namespaces)".to_owned()),
            Self::Root => program("ip").or_else(|| program("tc")),
            Self::Product => Artefacts::find().err().map(|error| format!("{error:#}")),
            Self::Program(name) => program(name),
            Self::Loss => ["clang", "bpftool", "ethtool"]
                .into_iter()
                .find_map(program)
                .or_else(|| {
                    absent(
                        "/usr/include/bpf/bpf_helpers.h",
                        "apt-get install libbpf-dev",
                    )
                }),
            Self::VerbsHeaders => program("cc").or_else(|| {
                absent(
                    "/usr/include/infiniband/verbs.h",
                    "apt-get install libibverbs-dev",
                )
            }),
            Self::Debian(suite) => Unpacked::of(suite).err().map(|error| format!("{error:#}")),
            Self::LinkKind(kind) => no_link_kind(kind),
            Self::MemoryMib(wanted) => too_little_memory(wanted),
            Self::UserNamespaces => program("unshare")
                .or_else(|| program("setpriv"))
                .or_else(no_user_namespaces),
            Self::Ipv6 => absent("/proc/sys/net/ipv6", "boot a kernel with IPv6"),
        }
    }
}

/// What the kernel has, and what a container may have of it.
fn too_little_memory(wanted_mib: u64) -> Option<String> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let available_kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    // Of cgroup 2 and 1; no number means no limit.
    let limits = ["memory.max", "memory/memory.limit_in_bytes"].map(|file| {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    let limit_mib = limits.into_iter().flatten().min().unwrap_or(u64::MAX) >> 20;
    let available_mib = (available_kib.unwrap_or(0) >> 10).min(limit_mib);
    (available_mib < wanted_mib).then(|| {
        format!("needs {wanted_mib} MiB of free memory, and {available_mib} are available")
    })
}

/// Tries it in a network namespace that goes at once.
fn no_link_kind(kind: &str) -> Option<String> {
    let options = if kind == "vlan" { "id 1" } else { "" };
    let upon = if kind == "bridge" { "" } else { "link lower" };
    let module = if kind == "vlan" { "8021q" } else { kind };
    let script = format!(
        "ip link add lower type veth peer name far && ip link add {upon} name upper type {kind} {options}"
    );
    let made = tool::run("unshare", &["-n", "sh", "-c", &script]);
    made.err().map(|_| {
        format!("this kernel makes no interface of kind {kind}: modprobe {module}, or a kernel that has it")
    })
}

/// Tries it as user nobody.
fn no_user_namespaces() -> Option<String> {
    let user = format!("--reuid={NOBODY}");
    let group = format!("--regid={NOBODY}");
    let nobody = [&user, &group, "--clear-groups"];
    let unshare = ["unshare", "-U", "-r", "-n", "-m", "-p", "-f", "true"];
    let made = tool::run("setpriv", &[&nobody[..], &unshare[..]].concat());
    made.err().map(|_| {
        "users may not make namespaces: sysctl -w user.max_user_namespaces=1000 kernel.unprivileged_userns_clone=1, \
         or allow it to this container"
            .to_owned()
    })
}

fn absent(path: &str, cure: &str) -> Option<String> {
    (!Path::new(path).exists()).then(|| format!("{path} is missing: {cure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_there_is_is_a_reason() {
        assert_eq!(Need::MemoryMib(1).unmet(), None);
        let reason = Need::MemoryMib(1 << 40).unmet().unwrap();
        assert!(reason.contains("MiB of free memory"), "{reason}");
    }

    #[test]
    fn a_missing_program_is_a_reason() {
        assert_eq!(Need::Program("sh").unmet(), None);
        assert!(
            Need::Program("ib_no_such")
                .unmet()
                .unwrap()
                .contains("perftest")
        );
    }
}
