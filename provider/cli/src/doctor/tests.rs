//! Each finding, from what a host would show that has it.

use super::environment::{check_directory, check_settings, check_tree};
use super::kernel::{
    check_buffer, check_ephemeral, check_open_files, check_rdma, check_udp_memory, check_version,
};
use super::libraries::{check_file, check_libibverbs, check_preload};
use super::network::{
    check_device, check_mtus, check_passes, check_reverse_path, free_ports, tried_addresses,
};
use super::program::{Kind, changes_user, examine, find, interpreter_of_script};
use super::*;
use crate::libibverbs::Found;
use metaroce::device::tree::Libraries;
use metaroce::device::{Device, Plane};
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const PORTS: (u16, u16) = (24791, 1024);

fn device(interface: &str, mtu_bytes: u32, active: bool) -> Device {
    Device {
        name: "metaroce0".into(),
        interface: interface.into(),
        index: 2,
        mtu_bytes,
        speed_mbps: 10_000,
        active,
        addresses: vec!["10.0.0.1".parse().unwrap()],
        gids: Vec::new(),
        node_guid: 1,
        ..Device::default()
    }
}

/// Grade and cure, and that the text names what it is about.
#[track_caller]
fn expect(finding: &Finding, grade: Grade, text: &str, cure: &str) {
    assert_eq!(finding.grade, grade, "{finding}");
    assert!(finding.text.contains(text), "{text:?} is not in {finding}");
    assert!(finding.cure.contains(cure), "{cure:?} is not in {finding}");
    assert!(
        grade == Grade::Good || !finding.cure.is_empty() || finding.text.len() > 40,
        "no cure: {finding}"
    );
}

/// What users complain about: "provider file in the wrong directory, device invisible, nothing says why".
#[test]
fn libibverbs_that_is_absent_or_foreign() {
    let found = |private_abi, public_minor| Found {
        path: PathBuf::from("/usr/lib/libibverbs.so.1"),
        private_abi,
        public_minor,
    };
    expect(
        &check_libibverbs(None),
        Grade::Bad,
        "no libibverbs.so.1",
        "apt install libibverbs1",
    );
    expect(
        &check_libibverbs(Some(&found(99, 99))),
        Grade::Bad,
        "private ABI 99, IBVERBS_1.99",
        "rdma-core",
    );
    expect(
        &check_libibverbs(Some(&found(34, 14))),
        Grade::Good,
        "rdma-core",
        "",
    );
}

#[test]
fn libraries_that_the_dynamic_linker_refuses() {
    let libraries = Libraries {
        plugin: PathBuf::from("/x/libmetaroce.so"),
        shim: PathBuf::from("/x/libmetaroce_shim.so"),
    };
    let says = |text: Option<&str>| check_preload(&libraries, text);
    expect(&says(Some("metaroce 0.1.0\n")), Grade::Good, "preloads", "");
    let refused = "ERROR: ld.so: object '/x/libmetaroce_shim.so' from LD_PRELOAD cannot be preloaded (failed to map \
        segment from shared object): ignored.\nmetaroce 0.1.0\n";
    expect(&says(Some(refused)), Grade::Bad, "failed to map", "noexec");
    expect(
        &says(Some(
            "metaroce: symbol lookup error: /x/l.so: undefined symbol: x",
        )),
        Grade::Bad,
        "undefined",
        "build",
    );
    expect(&says(None), Grade::Bad, "does not start", "cargo build");
}

#[test]
fn places_and_settings() {
    expect(
        &check_directory(Ok("/run/x".into())),
        Grade::Good,
        "/run/x",
        "",
    );
    let denied = io::Error::other("/tmp/metaroce-0 belongs to user 7; remove it");
    expect(
        &check_directory(Err(denied)),
        Grade::Bad,
        "belongs to user 7",
        "",
    );
    expect(
        &check_settings(Err("METAROCE_PATHS=0 is not possible".into())),
        Grade::Bad,
        "METAROCE_PATHS",
        "unset",
    );
}

/// What users complain about: "device invisible, nothing says why".
#[test]
fn a_tree_of_another_network_namespace_or_none() {
    assert_eq!(check_tree(None, 7), None);
    let folder = std::env::temp_dir().join(format!("metaroce-doctor-{}", std::process::id()));
    let tree = folder.join("tree-7-0123456789abcdef");
    std::fs::create_dir_all(tree.join("sys/class/infiniband")).unwrap();
    let found = |namespace| check_tree(Some(tree.as_os_str()), namespace).unwrap();
    expect(&found(7), Grade::Good, "tree-7", "");
    expect(
        &found(8),
        Grade::Bad,
        "another network namespace (7, this one is 8)",
        "metaroce run",
    );
    let gone = check_tree(Some(OsStr::new("/nonexistent/tree-7-0")), 7).unwrap();
    expect(&gone, Grade::Bad, "no device tree", "metaroce run");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn kernels() {
    expect(
        &check_version(Some("4.15.0-213-generic\n")),
        Grade::Bad,
        "4.15",
        "4.18",
    );
    expect(
        &check_version(Some("6.1.0-18-amd64\n")),
        Grade::Good,
        "6.1",
        "",
    );
    expect(&check_version(Some("4.18")), Grade::Good, "4.18", "");
    assert_eq!(check_version(None).grade, Grade::Warning);
}

#[test]
fn small_buffers() {
    expect(
        &check_buffer("rmem_max", Some("212992\n")),
        Grade::Warning,
        "bursts",
        "sysctl -w net.core.rmem_max=8388608",
    );
    expect(
        &check_buffer("wmem_max", Some("212992\n")),
        Grade::Warning,
        "sending",
        "sysctl -w net.core.wmem_max=8388608",
    );
    expect(
        &check_buffer("rmem_max", Some("4194304\n")),
        Grade::Good,
        "4194304",
        "",
    );
    expect(
        &check_buffer("rmem_max", None),
        Grade::Good,
        "container",
        "",
    );
    assert_eq!(check_udp_memory(None), None);
    expect(
        &check_udp_memory(Some("100\t200\t300\n")).unwrap(),
        Grade::Warning,
        "300 pages",
        "udp_mem",
    );
    expect(
        &check_udp_memory(Some("92871 123828 185742")).unwrap(),
        Grade::Good,
        "185742",
        "",
    );
}

#[test]
fn ephemeral_ports_over_ours() {
    let check = |range, reserved| check_ephemeral(Some(range), reserved, PORTS).unwrap();
    expect(&check("32768\t60999\n", None), Grade::Good, "stay off", "");
    expect(
        &check("1024 65535", Some("\n")),
        Grade::Warning,
        "24791 to 25814",
        "ip_local_reserved_ports=24791-25814",
    );
    expect(&check("25814 60999", None), Grade::Warning, "include", "");
    expect(
        &check("1024 65535", Some("80,24000-26000\n")),
        Grade::Good,
        "stay off",
        "",
    );
    expect(
        &check("1024 65535", Some("24791-25000")),
        Grade::Warning,
        "include",
        "",
    );
    assert_eq!(check_ephemeral(Some("x"), None, PORTS), None);
}

#[test]
fn limits_of_open_files() {
    let check = check_open_files;
    expect(&check(12), Grade::Bad, "12 files", "ulimit -n");
    expect(&check(64), Grade::Warning, "64 files", "ulimit -n");
    expect(&check(1024), Grade::Good, "1024", "");
    expect(&check(u64::MAX), Grade::Good, "any number", "");
}

#[test]
fn libraries_that_were_not_written_to_their_end() {
    let own = std::fs::read("/proc/self/exe").unwrap();
    let file = std::env::temp_dir().join(format!("metaroce-doctor-{}.so", std::process::id()));
    let check = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        check_file(&file)
    };
    assert_eq!(check(&own), None);
    let cure = "cargo build --release";
    expect(&check(&[]).unwrap(), Grade::Bad, ".so is empty", cure);
    for cut in [100, 3_000, own.len() / 2, own.len() - 1] {
        expect(&check(&own[..cut]).unwrap(), Grade::Bad, "cut off", cure);
    }
    std::fs::remove_file(&file).unwrap();
    expect(
        &check_file(&file).unwrap(),
        Grade::Bad,
        "cannot be read",
        cure,
    );
}

#[test]
fn rdma_of_the_kernel_is_no_problem() {
    expect(&check_rdma(&[]), Grade::Good, "none are needed", "");
    expect(
        &check_rdma(&["mlx5_0".into(), "rxe0".into()]),
        Grade::Good,
        "mlx5_0, rxe0",
        "",
    );
}

#[test]
fn devices_without_carrier_or_with_small_or_mixed_mtu() {
    expect(
        &check_device(&device("eth0", 9000, true)),
        Grade::Good,
        "eth0",
        "",
    );
    expect(
        &check_device(&device("eth0", 9000, false)),
        Grade::Warning,
        "no carrier",
        "METAROCE_DEVICES",
    );
    expect(
        &check_device(&device("eth0", 1500, true)),
        Grade::Warning,
        "MTU 1500",
        "ip link set eth0 mtu 9000",
    );
    expect(
        &check_device(&device("lo", 65536, true)),
        Grade::Warning,
        "this host only",
        "METAROCE_DEVICES",
    );
    let mixed = [
        device("eth0", 9000, true),
        device("eth1", 1500, true),
        device("eth2", 500, false),
    ];
    expect(
        &check_mtus(&mixed).unwrap(),
        Grade::Warning,
        "eth1 has 1500, eth0 has 9000",
        "one MTU",
    );
    assert_eq!(
        check_mtus(&[device("eth0", 9000, true), device("eth1", 9000, true)]),
        None
    );
    assert_eq!(check_mtus(&[]), None);
}

#[test]
fn strict_reverse_path_filters_matter_with_several_interfaces() {
    let two = [device("eth0", 9000, true), device("eth1", 9000, true)];
    let strict = |interface: &str| Some(u32::from(interface == "eth1"));
    expect(
        &check_reverse_path(&two, strict).unwrap(),
        Grade::Warning,
        "filters on eth1",
        "rp_filter=2",
    );
    assert_eq!(check_reverse_path(&two[..1], |_| Some(1)), None);
    assert_eq!(check_reverse_path(&two, |_| Some(0)), None);
    // The larger of the two values counts.
    assert_eq!(
        check_reverse_path(&two, |name| Some(if name == "all" { 2 } else { 1 })),
        None
    );
}

#[test]
fn udp_that_does_not_pass() {
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    let result = |kind: io::ErrorKind| Err(kind.into());
    expect(&check_passes(ip, &Ok(())), Grade::Good, "10.0.0.1", "");
    expect(
        &check_passes(ip, &result(io::ErrorKind::WouldBlock)),
        Grade::Bad,
        "does not arrive",
        "nft list ruleset",
    );
    expect(
        &check_passes(ip, &result(io::ErrorKind::PermissionDenied)),
        Grade::Bad,
        "may not be sent",
        "OUTPUT",
    );
    expect(
        &check_passes(ip, &result(io::ErrorKind::AddrInUse)),
        Grade::Good,
        "no port",
        "",
    );
    expect(
        &check_passes(ip, &result(io::ErrorKind::AddrNotAvailable)),
        Grade::Warning,
        "could not be tried",
        "ip address",
    );
}

#[test]
fn taken_ports_are_counted() {
    let table = "  sl  local_address rem_address   st\n\
                 1: 0100007F:60D7 00000000:0000 07\n\
                 2: 0200007F:60D7 00000000:0000 07\n\
                 3: 00000000:0044 00000000:0000 07\n";
    expect(
        &free_ports(table, (24791, 2)),
        Grade::Good,
        "1 of 2 free",
        "",
    );
    expect(
        &free_ports(table, (24791, 1)),
        Grade::Bad,
        "0 of 1 free",
        "METAROCE_PORT_BASE",
    );
    expect(&free_ports("", PORTS), Grade::Good, "1024 of 1024", "");
}

/// A device of planes `eth0`, `eth1` …, each with its MTU, whether it is up, and its address.
fn planes(of: &[(u32, bool, Option<&str>)]) -> Device {
    let numbered = || (0u8..).zip(of);
    let addressed = || numbered().filter_map(|(number, one)| Some((number, one.2?)));
    Device {
        name: "mr0".into(),
        interface: "eth0+eth1+eth2".into(),
        mtu_bytes: 9000,
        active: true,
        planes: numbered()
            .map(|(number, (mtu_bytes, active, _))| Plane {
                interface: format!("eth{number}"),
                index: u32::from(number) + 2,
                mtu_bytes: *mtu_bytes,
                speed_mbps: 10_000,
                active: *active,
            })
            .collect(),
        addresses: addressed().map(|(_, ip)| ip.parse().unwrap()).collect(),
        gid_planes: addressed().map(|(number, _)| number).collect(),
        ..Device::default()
    }
}

#[test]
fn every_plane_is_looked_at() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let whole = planes(&[
        (9000, true, Some("10.0.0.1")),
        (9000, true, Some("10.0.1.1")),
        (9000, true, Some("fe80::1")),
    ]);
    expect(&check_device(&whole), Grade::Good, "mr0", "");
    assert_eq!(
        tried_addresses(&[whole, device("eth7", 9000, false)]),
        [(ip("10.0.0.1"), 2), (ip("10.0.1.1"), 3), (ip("fe80::1"), 4)]
    );
    let parts = planes(&[
        (9000, true, Some("10.0.0.1")),
        (9000, true, None),
        (9000, false, Some("10.0.2.1")),
    ]);
    let finding = check_device(&parts);
    expect(
        &finding,
        Grade::Warning,
        "without 2 of its 3 planes: plane 1, eth1 has no IP address; plane 2, eth2 has no carrier",
        "ip address add ADDRESS/PREFIX dev eth1; connect the link of eth2",
    );
    assert_eq!(tried_addresses(&[parts]), [(ip("10.0.0.1"), 2)]);
    let mixed = planes(&[
        (9000, true, Some("10.0.0.1")),
        (1500, true, Some("10.0.1.1")),
        (600, false, None),
    ]);
    expect(
        &check_mtus(&[mixed]).unwrap(),
        Grade::Warning,
        "eth1 has 1500, eth0 has 9000",
        "one MTU",
    );
}

#[test]
fn programs_that_cannot_be_found_or_read() {
    let missing = find(OsStr::new("ib_write_bw"), OsStr::new("/nonexistent")).unwrap_err();
    expect(&missing, Grade::Bad, "apt install perftest", "install");
    assert_eq!(
        find(OsStr::new("./x"), OsStr::new("")),
        Ok(PathBuf::from("./x"))
    );
    expect(
        &examine(Path::new("/nonexistent"), 0),
        Grade::Bad,
        "cannot be read",
        "name another",
    );
}

#[test]
fn programs_are_told_by_their_files() {
    // This very test links the C library dynamically.
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert!(matches!(Kind::of(&own), Kind::Loads { .. }));
    expect(
        &examine(Path::new("/proc/self/exe"), 0),
        Grade::Good,
        "can be preloaded",
        "",
    );

    // PT_INTERP (3) of the program headers turned into PT_NULL (0): as a static program has it.
    let mut bytes = own.clone();
    let table = u64::from_le_bytes(own[32..40].try_into().unwrap()) as usize;
    let (size, count) = (
        u16::from_le_bytes([own[54], own[55]]),
        u16::from_le_bytes([own[56], own[57]]),
    );
    let interp = (0..usize::from(count))
        .map(|index| table + index * usize::from(size))
        .find(|at| own[*at] == 3)
        .unwrap();
    bytes[interp] = 0;
    assert_eq!(Kind::of(&bytes), Kind::Static);

    let place = u64::from_le_bytes(own[interp + 8..interp + 16].try_into().unwrap()) as usize;
    let mut bytes = own.clone();
    bytes[place..place + 16].copy_from_slice(b"/lib/ld-musl.so\0");
    assert!(matches!(Kind::of(&bytes), Kind::OtherLibc(name) if name.starts_with("/lib/ld-musl")));

    let mut bytes = own;
    bytes[18] ^= 0x55;
    assert_eq!(Kind::of(&bytes), Kind::Foreign, "another machine");
    for cut in [0, 10, 63, 64, 100] {
        assert_eq!(Kind::of(&bytes[..cut]), Kind::Foreign);
    }
    assert_eq!(Kind::of(b"hello"), Kind::Foreign);
}

#[test]
fn scripts_are_judged_by_their_interpreters() {
    assert_eq!(
        interpreter_of_script(b"#! /bin/sh -e\nexit"),
        Some("/bin/sh".into())
    );
    assert_eq!(interpreter_of_script(b"#!/bin/sh"), Some("/bin/sh".into()));
    let through_env = interpreter_of_script(b"#!/usr/bin/env -S sh -e\n").unwrap();
    assert!(
        through_env.is_absolute() && through_env.ends_with("sh"),
        "{through_env:?}"
    );
    assert_eq!(interpreter_of_script(b"\x7fELF"), None);
    assert_eq!(interpreter_of_script(b"#!\n"), None);

    let file = std::env::temp_dir().join(format!("metaroce-doctor-{}.sh", std::process::id()));
    std::fs::write(&file, format!("#!{}\n", file.display())).unwrap();
    expect(
        &examine(&file, 0),
        Grade::Bad,
        "scripts call scripts",
        "name the program",
    );
    std::fs::write(&file, "#!/bin/sh\n").unwrap();
    expect(
        &examine(&file, 0),
        Grade::Good,
        "is a script; /bin/sh can be preloaded",
        "",
    );
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn setuid_programs_of_others() {
    let me = nix::unistd::Uid::current().as_raw();
    let group = nix::unistd::Gid::current().as_raw();
    assert_eq!(changes_user(0o4755, me + 1, group), Some("setuid"));
    assert_eq!(changes_user(0o4755, me, group), None, "nothing changes");
    assert_eq!(changes_user(0o2755, me, group + 1), Some("setgid"));
    assert_eq!(changes_user(0o755, me + 1, group + 1), None);
    // A whole file, where this user may make one for somebody else.
    let file = std::env::temp_dir().join(format!("metaroce-doctor-setuid-{}", std::process::id()));
    std::fs::copy("/proc/self/exe", &file).unwrap();
    let handed_over = std::os::unix::fs::chown(&file, Some(me + 1), None).is_ok();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).unwrap();
    if handed_over {
        expect(&examine(&file, 0), Grade::Bad, "setuid", "copy");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_helper_that_hangs_is_not_waited_for() {
    let began = std::time::Instant::now();
    assert_eq!(
        output_of(Command::new("sleep").arg("60"), Duration::from_millis(50)),
        None
    );
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(
        output_of(&mut Command::new("/nonexistent"), Duration::from_secs(1)),
        None
    );
    let mut both = Command::new("sh");
    both.args(["-c", "echo out; echo err >&2"]);
    assert_eq!(
        output_of(&mut both, Duration::from_secs(20)).as_deref(),
        Some("out\nerr\n")
    );
}

#[test]
fn every_finding_of_this_host_has_a_name_and_json() {
    let findings = findings(&[OsString::from("sh")]);
    for check in [
        "libibverbs",
        "libraries",
        "directory",
        "settings",
        "ports",
        "firewall",
        "kernel",
        "program",
    ] {
        assert!(
            findings.iter().any(|finding| finding.check == check),
            "{check}"
        );
    }
    for finding in &findings {
        let json = finding.json();
        assert_eq!(json["check"], finding.check);
        assert!(["ok", "warning", "problem"].contains(&json["grade"].as_str().unwrap()));
    }
}
