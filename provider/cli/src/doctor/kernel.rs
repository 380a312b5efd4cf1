//! The kernel: its version, the sizes and limits that it allows, and RDMA of its own.

use super::Finding;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::fs;

/// Receive and send buffers that a burst of a few trains from many senders needs.
const BUFFER_BYTES: u64 = 4 << 20;
/// What the cure sets: as the README says.
const BUFFER_CURE_BYTES: u64 = 8 << 20;
/// UDP segmentation offload came with it.
const OLDEST_KERNEL: (u32, u32) = (4, 18);
/// Descriptors of an engine with few addresses, and as many for the program.
const OPEN_FILES: u64 = 256;
/// With fewer no program gets a queue pair.
const FEWEST_OPEN_FILES: u64 = 16;
/// Pages of all UDP sockets together, from which on the kernel drops: less than 64 MiB is less than a few endpoints hold.
const UDP_PAGES: u64 = (64 << 20) / 4096;

pub(super) fn check() -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let mut findings = vec![
        check_version(read("/proc/sys/kernel/osrelease").as_deref()),
        check_buffer("rmem_max", read("/proc/sys/net/core/rmem_max").as_deref()),
        check_buffer("wmem_max", read("/proc/sys/net/core/wmem_max").as_deref()),
    ];
    findings.extend(check_udp_memory(
        read("/proc/sys/net/ipv4/udp_mem").as_deref(),
    ));
    findings.extend(check_ephemeral(
        read("/proc/sys/net/ipv4/ip_local_port_range").as_deref(),
        read("/proc/sys/net/ipv4/ip_local_reserved_ports").as_deref(),
        metaroce::port_range(),
    ));
    findings.push(check_open_files(open_files()));
    findings.push(check_rdma(&entries("/sys/class/infiniband")));
    findings
}

fn entries(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// `6.1.0-18-amd64`
pub(super) fn check_version(release: Option<&str>) -> Finding {
    let check = "kernel";
    let mut numbers = release
        .unwrap_or_default()
        .split(['.', '-'])
        .map_while(|part| part.trim().parse().ok());
    let (oldest_major, oldest_minor) = OLDEST_KERNEL;
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST_KERNEL => Finding::bad(
            check,
            format!("Linux {major}.{minor} lacks what sending many packets at once needs"),
            format!("Linux {oldest_major}.{oldest_minor} or newer"),
        ),
        (Some(major), Some(minor)) => Finding::good(check, format!("Linux {major}.{minor}")),
        _ => Finding::warning(check, "the kernel's version cannot be told", ""),
    }
}

pub(super) fn check_buffer(name: &str, value: Option<&str>) -> Finding {
    let check = if name == "rmem_max" {
        "receive_buffer"
    } else {
        "send_buffer"
    };
    let Some(bytes) = value.and_then(|text| text.trim().parse::<u64>().ok()) else {
        return Finding::good(
            check,
            format!("net.core.{name} is not visible here (a container); the host's value applies"),
        );
    };
    if bytes >= BUFFER_BYTES {
        return Finding::good(check, format!("net.core.{name} is {bytes}"));
    }
    let harm = match name {
        "rmem_max" => "bursts overflow the receive buffers, which costs throughput",
        _ => "sending waits more often than it must",
    };
    Finding::warning(
        check,
        format!("net.core.{name} is {bytes}: {harm}"),
        format!(
            "sysctl -w net.core.{name}={BUFFER_CURE_BYTES} (as root; in /etc/sysctl.d to keep it)"
        ),
    )
}

/// `min pressure max`, in pages.
pub(super) fn check_udp_memory(value: Option<&str>) -> Option<Finding> {
    let most: u64 = value?.split_whitespace().nth(2)?.parse().ok()?;
    let check = "udp_memory";
    Some(match most < UDP_PAGES {
        true => Finding::warning(
            check,
            format!(
                "net.ipv4.udp_mem allows all UDP sockets together {most} pages: packets are dropped beyond"
            ),
            format!(
                "sysctl -w net.ipv4.udp_mem=\"{0} {0} {0}\" (as root)",
                UDP_PAGES * 4
            ),
        ),
        false => Finding::good(check, format!("net.ipv4.udp_mem allows {most} pages")),
    })
}

/// Whether the kernel may give our ports to other programs, as ephemeral ones.
pub(super) fn check_ephemeral(
    range: Option<&str>,
    reserved: Option<&str>,
    (first, count): (u16, u16),
) -> Option<Finding> {
    let mut bounds = range?
        .split_whitespace()
        .map_while(|bound| bound.parse::<u32>().ok());
    let (low, high) = (bounds.next()?, bounds.next()?);
    let (first, last) = (
        u32::from(first),
        u32::from(first) + u32::from(count.max(1)) - 1,
    );
    let check = "ephemeral_ports";
    if last < low || first > high || is_reserved(reserved.unwrap_or_default(), first, last) {
        return Some(Finding::good(
            check,
            format!("ephemeral ports ({low} to {high}) stay off the endpoints' ports"),
        ));
    }
    Some(Finding::warning(
        check,
        format!(
            "ephemeral ports ({low} to {high}) include the endpoints' ports {first} to {last}: any program may hold one"
        ),
        format!(
            "sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last} (as root; keep what is in it)"
        ),
    ))
}

/// `8080,9148-9150`
fn is_reserved(list: &str, first: u32, last: u32) -> bool {
    list.trim().split(',').any(|part| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let bounds = (low.trim().parse::<u32>(), high.trim().parse::<u32>());
        matches!(bounds, (Ok(low), Ok(high)) if low <= first && last <= high)
    })
}

/// How many files this process, and what is started beside it, may open. Asked without opening one.
pub(super) fn open_files() -> u64 {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    limits.map_or(u64::MAX, |(soft, _)| soft)
}

pub(super) fn check_open_files(number: u64) -> Finding {
    let check = "open_files";
    let cure = "ulimit -n 4096 (before the program starts)";
    match number {
        0..FEWEST_OPEN_FILES => Finding::bad(
            check,
            format!(
                "a process may open {number} files, and a program with one device needs {FEWEST_OPEN_FILES} at the very \
                 least; the other checks need more, too, and were left out"
            ),
            cure,
        ),
        FEWEST_OPEN_FILES..OPEN_FILES => Finding::warning(
            check,
            format!("a process may open {number} files; each device takes up to some 70 of them"),
            cure,
        ),
        RLIM_INFINITY => Finding::good(check, "a process may open any number of files"),
        _ => Finding::good(check, format!("a process may open {number} files")),
    }
}

pub(super) fn check_rdma(devices: &[String]) -> Finding {
    let check = "kernel_rdma";
    if devices.is_empty() {
        return Finding::good(check, "no RDMA devices of the kernel; none are needed");
    }
    Finding::good(
        check,
        format!(
            "the kernel has RDMA devices of its own ({}): programs see them beside metaroce's; choose one by name (-d, \
             NCCL_IB_HCA, UCX_NET_DEVICES)",
            devices.join(", ")
        ),
    )
}
