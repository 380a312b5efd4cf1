//! `metaroce doctor`: what this host lacks, why it matters and how to mend it.
//!
//! Each check is a function that returns findings; nothing is changed, and nothing needs root.

use crate::{artefacts, libibverbs, print, select};
use metaroce::device::{Device, tree};
use std::fmt;
use std::fs;
use std::process::ExitCode;

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    grade: Grade,
    /// What is the case.
    text: String,
    /// What to do about it; empty where nothing is to be done.
    cure: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    /// As it should be.
    Good,
    /// Works, but not as well as it could.
    Warning,
    /// Does not work.
    Bad,
}

impl Finding {
    fn good(text: impl Into<String>) -> Self {
        Self {
            grade: Grade::Good,
            text: text.into(),
            cure: String::new(),
        }
    }

    fn warning(text: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            grade: Grade::Warning,
            text: text.into(),
            cure: cure.into(),
        }
    }

    fn bad(text: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            grade: Grade::Bad,
            text: text.into(),
            cure: cure.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.grade {
            Grade::Good => "ok",
            Grade::Warning => "warning",
            Grade::Bad => "PROBLEM",
        };
        writeln!(f, "{mark:8} {}", self.text)?;
        if !self.cure.is_empty() {
            writeln!(f, "{:8} -> {}", "", self.cure)?;
        }
        Ok(())
    }
}

/// What no check can mend.
const OUT_OF_REACH: &str = "Out of reach whatever the host has: statically linked and setuid programs (the dynamic \
    linker does not preload into them), and programs started on other hosts without the launcher (start \"metaroce run \
    -- COMMAND\" there).";

/// Receive buffer that a burst of a few trains from many senders needs.
const RECEIVE_BUFFER_BYTES: u64 = 4 << 20;
/// MTU from which large packets carry most of the load.
const LARGE_MTU_BYTES: u32 = 4096;

/// Runs every check and prints what it found. Fails if something does not work.
pub(crate) fn examine() -> ExitCode {
    let devices = select(None);
    let mut findings = vec![
        check_libibverbs(),
        check_artefacts(),
        check_directory(),
        check_settings(),
    ];
    match &devices {
        Ok(devices) => findings.extend(devices.iter().map(check_device)),
        Err(error) => findings.push(Finding::bad(format!("{error:#}"), "")),
    }
    findings.push(check_receive_buffer(
        fs::read_to_string("/proc/sys/net/core/rmem_max")
            .ok()
            .as_deref(),
    ));
    findings.push(check_ports(&port_tables(), metaroce::port_range()));
    let report: String = findings.iter().map(Finding::to_string).collect();
    print(&format!("{report}\n{OUT_OF_REACH}\n"));
    let bad = findings.iter().any(|finding| finding.grade == Grade::Bad);
    if bad {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn check_libibverbs() -> Finding {
    let Some(found) = libibverbs::find() else {
        return Finding::bad(
            format!(
                "no {} on this system; only programs that bring their own copy will work",
                libibverbs::FILE
            ),
            "apt install libibverbs1 ibverbs-utils (Debian, Ubuntu); dnf install libibverbs libibverbs-utils (Fedora)",
        );
    };
    let about = format!(
        "{} (private ABI {}, IBVERBS_1.{}",
        found.path.display(),
        found.private_abi,
        found.public_minor
    );
    match metaroce::supported_release(found.private_abi, found.public_minor) {
        Some(release) => Finding::good(format!("libibverbs: {about}: rdma-core {release})")),
        None => Finding::bad(
            format!(
                "libibverbs: {about}) has a layout that this metaroce does not know, and will not be served"
            ),
            format!("use {}, or a newer metaroce", metaroce::served_releases()),
        ),
    }
}

fn check_artefacts() -> Finding {
    match artefacts::find() {
        Ok(found) => Finding::good(format!(
            "plugin {}, shim {}",
            found.plugin.display(),
            found.shim.display()
        )),
        Err(error) => Finding::bad(format!("{error:#}"), ""),
    }
}

fn check_directory() -> Finding {
    match tree::runtime_directory() {
        Ok(path) => Finding::good(format!("device trees go to {}", path.display())),
        Err(error) => Finding::bad(format!("no place for the device tree: {error}"), ""),
    }
}

fn check_settings() -> Finding {
    match metaroce::check_settings() {
        Ok(()) => Finding::good("the METAROCE_* variables of the environment are valid"),
        Err(message) => Finding::bad(message, "correct the variable or unset it"),
    }
}

fn check_device(device: &Device) -> Finding {
    let gid = device
        .addresses
        .first()
        .map_or_else(|| "no address".into(), ToString::to_string);
    let about = format!(
        "device {} on {} ({gid}, MTU {})",
        device.name, device.interface, device.mtu_bytes
    );
    if !device.active {
        return Finding::warning(
            format!("{about} has no carrier"),
            "connect the link, or choose others in METAROCE_DEVICES",
        );
    }
    if device.mtu_bytes < LARGE_MTU_BYTES {
        return Finding::warning(
            format!("{about} works, but small packets cost more CPU"),
            format!(
                "if all switches on the way allow it: ip link set {} mtu 9000 (on both hosts)",
                device.interface
            ),
        );
    }
    Finding::good(about)
}

fn check_receive_buffer(rmem_max: Option<&str>) -> Finding {
    let Some(bytes) = rmem_max.and_then(|text| text.trim().parse::<u64>().ok()) else {
        return Finding::good(
            "net.core.rmem_max is not visible here (a container); the host's value applies",
        );
    };
    if bytes < RECEIVE_BUFFER_BYTES {
        return Finding::warning(
            format!(
                "net.core.rmem_max is {bytes}: bursts overflow the receive buffers, which costs throughput"
            ),
            format!(
                "sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES} (as root; in /etc/sysctl.d to keep it)"
            ),
        );
    }
    Finding::good(format!("net.core.rmem_max is {bytes}"))
}

/// What is to be said before a program starts that could not get a port; `None` in the ordinary case.
pub(crate) fn ports_exhausted() -> Option<String> {
    let finding = check_ports(&port_tables(), metaroce::port_range());
    (finding.grade == Grade::Bad).then(|| format!("{}. Cure: {}", finding.text, finding.cure))
}

/// The kernel's tables of UDP sockets in this network namespace.
fn port_tables() -> String {
    ["/proc/net/udp", "/proc/net/udp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect()
}

fn check_ports(tables: &str, (first, count): (u16, u16)) -> Finding {
    let last = first.saturating_add(count.saturating_sub(1));
    let local_port = |line: &str| {
        u16::from_str_radix(line.split_whitespace().nth(1)?.rsplit_once(':')?.1, 16).ok()
    };
    let mut taken: Vec<u16> = tables
        .lines()
        .filter_map(local_port)
        .filter(|port| (first..=last).contains(port))
        .collect();
    taken.sort_unstable();
    taken.dedup();
    let free = usize::from(count) - taken.len();
    let range = format!("UDP ports {first} to {last}: {free} of {count} free");
    if free == 0 {
        return Finding::bad(
            format!("{range}; each process that uses a device needs one"),
            "end processes that hold them (ss -lunp), or set METAROCE_PORT_BASE to another range on all hosts",
        );
    }
    Finding::good(format!("{range} (let firewalls pass them)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_receive_buffer_is_told_with_the_cure() {
        assert_eq!(check_receive_buffer(Some("212992\n")).grade, Grade::Warning);
        assert!(
            check_receive_buffer(Some("212992\n"))
                .cure
                .contains("sysctl -w net.core.rmem_max=4194304")
        );
        assert_eq!(check_receive_buffer(Some("4194304\n")).grade, Grade::Good);
        assert_eq!(check_receive_buffer(None).grade, Grade::Good);
    }

    #[test]
    fn taken_ports_are_counted() {
        let table = "  sl  local_address rem_address   st\n\
                     1: 0100007F:60D7 00000000:0000 07\n\
                     2: 0200007F:60D7 00000000:0000 07\n\
                     3: 00000000:0044 00000000:0000 07\n";
        assert_eq!(check_ports(table, (24791, 2)).grade, Grade::Good);
        assert!(check_ports(table, (24791, 2)).text.contains("1 of 2 free"));
        assert_eq!(check_ports(table, (24791, 1)).grade, Grade::Bad);
        assert_eq!(check_ports("", (24791, 1024)).grade, Grade::Good);
    }
}
