//! The Debian packages that the demo and the tests use, and installing those that are missing.
//!
//! Called by `cargo xtask demo` and `cargo xtask test`, which say what they install before they do it.
//! What is there is found by looking for a file of the package, not in dpkg's database: a tool that was
//! installed by other means counts, and other distributions get the list as a hint.

use std::fmt::Display;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::tool;

/// How to see that a package is there.
#[derive(Debug, Clone, Copy)]
enum Probe {
    /// A program in `PATH` or an sbin folder.
    Program(&'static str),
    /// A file by its absolute path.
    File(&'static str),
    /// A shared library by its SONAME, in any of the usual library folders.
    Library(&'static str),
}

/// A Debian package that we use.
#[derive(Debug, Clone, Copy)]
pub struct Package {
    /// Its name for apt-get.
    pub name: &'static str,
    /// What we use it for, in a few words.
    pub purpose: &'static str,
    probe: Probe,
}

const fn package(name: &'static str, purpose: &'static str, probe: Probe) -> Package {
    Package {
        name,
        purpose,
        probe,
    }
}

const IPROUTE2: Package = package(
    "iproute2",
    "namespaces, links and routes",
    Probe::Program("ip"),
);
const ETHTOOL: Package = package(
    "ethtool",
    "offload settings of links",
    Probe::Program("ethtool"),
);
const CLANG: Package = package(
    "clang",
    "compiles the loss program to BPF",
    Probe::Program("clang"),
);
const LIBBPF_DEV: Package = package(
    "libbpf-dev",
    "BPF headers",
    Probe::File("/usr/include/bpf/bpf_helpers.h"),
);
const BPFTOOL: Package = package(
    "bpftool",
    "sets and reads BPF maps",
    Probe::Program("bpftool"),
);
const IPERF3: Package = package("iperf3", "TCP to compare with", Probe::Program("iperf3"));
const PERFTEST: Package = package(
    "perftest",
    "ib_write_bw and its kin",
    Probe::Program("ib_write_bw"),
);
const IBVERBS_UTILS: Package = package(
    "ibverbs-utils",
    "ibv_devinfo, pingpongs",
    Probe::Program("ibv_devinfo"),
);
const LIBIBVERBS1: Package = package(
    "libibverbs1",
    "the library under the programs",
    Probe::Library("libibverbs.so.1"),
);
const LIBIBVERBS_DEV: Package = package(
    "libibverbs-dev",
    "headers for our C test programs",
    Probe::File("/usr/include/infiniband/verbs.h"),
);
const GCC: Package = package("gcc", "C compiler, linker", Probe::Program("cc"));
const LIBC6_DEV: Package = package(
    "libc6-dev",
    "C headers",
    Probe::File("/usr/include/stdio.h"),
);
const PYTHON3: Package = package(
    "python3",
    "runs pip, and a test of our own",
    Probe::Program("python3"),
);
const PYTHON3_PIP: Package = package(
    "python3-pip",
    "downloads NCCL's wheels",
    Probe::Program("pip3"),
);
const TSHARK: Package = package(
    "tshark",
    "captures packets, and reads them with our dissector",
    Probe::Program("tshark"),
);
const NFTABLES: Package = package(
    "nftables",
    "a firewall for `metaroce doctor` to find",
    Probe::Program("nft"),
);
const UTIL_LINUX: Package = package("util-linux", "setpriv", Probe::Program("setpriv"));

/// What `cargo xtask fabric` needs.
pub const FABRIC: &[Package] = &[
    IPROUTE2, ETHTOOL, CLANG, LIBBPF_DEV, BPFTOOL, GCC, LIBC6_DEV,
];

/// What `cargo xtask demo` needs.
pub const DEMO: &[Package] = &[
    IPROUTE2,
    ETHTOOL,
    CLANG,
    LIBBPF_DEV,
    BPFTOOL,
    IPERF3,
    PERFTEST,
    IBVERBS_UTILS,
    LIBIBVERBS1,
    GCC,
    LIBC6_DEV,
];

/// What `cargo xtask test` needs.
pub const TEST: &[Package] = &[
    IPROUTE2,
    ETHTOOL,
    CLANG,
    LIBBPF_DEV,
    BPFTOOL,
    IPERF3,
    PERFTEST,
    IBVERBS_UTILS,
    LIBIBVERBS1,
    LIBIBVERBS_DEV,
    GCC,
    LIBC6_DEV,
    UTIL_LINUX,
    PYTHON3,
    PYTHON3_PIP,
    TSHARK,
    NFTABLES,
];

/// Programs that are not the probe of their package.
const MORE_PROGRAMS: &[(&str, &str)] = &[
    ("tc", "iproute2"),
    ("ss", "iproute2"),
    ("dumpcap", "tshark"),
];

impl Package {
    /// Whether it (or another source of the same files) is installed.
    pub fn is_installed(&self) -> bool {
        match self.probe {
            Probe::Program(name) => tool::find(name).is_some(),
            Probe::File(path) => Path::new(path).exists(),
            Probe::Library(soname) => library_exists(soname),
        }
    }
}

fn library_exists(soname: &str) -> bool {
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    [
        multiarch.as_str(),
        "/usr/lib64",
        "/usr/lib",
        "/lib64",
        "/lib",
    ]
    .iter()
    .any(|folder| Path::new(folder).join(soname).exists())
}

/// The Debian package that has `program`.
pub fn package_of(program: &str) -> Option<&'static str> {
    let by_probe = TEST
        .iter()
        .find(|package| matches!(package.probe, Probe::Program(name) if name == program))
        .map(|package| package.name);
    by_probe
        .or_else(|| {
            MORE_PROGRAMS
                .iter()
                .find(|(name, _)| *name == program)
                .map(|(_, package)| *package)
        })
        .or_else(|| program.starts_with("ib_").then_some("perftest"))
        .or_else(|| program.starts_with("ibv_").then_some("ibverbs-utils"))
}

/// Those of `wanted` that are not installed.
pub fn missing(wanted: &[Package]) -> Vec<Package> {
    wanted
        .iter()
        .copied()
        .filter(|package| !package.is_installed())
        .collect()
}

/// Prints a line; whether anybody reads on (`| head`) does not matter.
fn say(line: impl Display) {
    let _ = writeln!(stdout(), "{line}");
}

/// Says which of `wanted` are missing and installs them with apt-get; does nothing if none is.
///
/// # Errors
/// Something is missing and this is not root, there is no apt-get, or apt-get failed: the message
/// has the command that mends it.
pub fn install_missing(wanted: &[Package]) -> Result<()> {
    let missing = missing(wanted);
    if missing.is_empty() {
        say(format_args!(
            "Debian packages: all {} that are needed are installed.",
            wanted.len()
        ));
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    say("Debian packages to be installed now with apt-get:");
    for package in &missing {
        say(format_args!("  {:<15} {}", package.name, package.purpose));
    }
    let cure = format!(
        "apt-get install --no-install-recommends {}",
        names.join(" ")
    );
    if !tool::is_root() {
        bail!("installing packages needs root; as root: {cure}");
    }
    if tool::find("apt-get").is_none() {
        bail!(
            "there is no apt-get here; install what your distribution has for: {}",
            names.join(" ")
        );
    }
    // A machine that was just made has no package lists at all, and old lists name files that are gone.
    apt_get(&["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&names);
    apt_get(&arguments).with_context(|| format!("try by hand: {cure}"))
}

/// Runs apt-get quietly: its output is shown only if it fails.
fn apt_get(arguments: &[&str]) -> Result<()> {
    let path = tool::require("apt-get")?;
    let output = Command::new(path)
        .args([
            "--quiet",
            "-o",
            "DPkg::Lock::Timeout=120",
            "-o",
            "Acquire::Retries=3",
        ])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("cannot start apt-get")?;
    if output.status.success() {
        return Ok(());
    }
    bail!(
        "apt-get {} failed ({}):\n{}{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_their_packages() {
        for (program, expected) in [
            ("ip", "iproute2"),
            ("tc", "iproute2"),
            ("dumpcap", "tshark"),
            ("ib_send_lat", "perftest"),
            ("ibv_rc_pingpong", "ibverbs-utils"),
        ] {
            assert_eq!(package_of(program), Some(expected), "{program}");
        }
        assert_eq!(package_of("no-such-program"), None);
    }

    #[test]
    fn only_what_is_absent_is_missing() {
        let there = package("base-files", "", Probe::File("/"));
        let absent = package("absent", "", Probe::Program("no-such-program"));
        let names: Vec<_> = missing(&[there, absent])
            .iter()
            .map(|package| package.name)
            .collect();
        assert_eq!(names, ["absent"]);
    }
}
