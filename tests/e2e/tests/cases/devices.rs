//! The device as the utilities of the distribution show it, also to a user without rights.

use std::path::Path;

use anyhow::{Result, ensure};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Host, Outcome, Program, c_program};

use super::contract::says_ok;
use super::{Bench, Case, ON_DEVICE};

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let utilities = |case: Case| case.needing(Need::Program("ibv_devinfo"));
    vec![
        utilities(Case::new(
            "devices::devinfo shows an active Ethernet port",
            ON_DEVICE,
            devinfo,
        )),
        utilities(Case::new(
            "devices::devices lists metaroce0",
            ON_DEVICE,
            devices,
        )),
        utilities(Case::new(
            "devices::nobody sees the device",
            ON_DEVICE,
            nobody,
        ))
        .needing(Need::Program("setpriv")),
        Case::new(
            "devices::nobody may lock no memory and needs none",
            ON_DEVICE,
            nothing_lockable,
        )
        .needing(Need::VerbsHeaders)
        .needing(Need::Program("setpriv")),
        utilities(Case::new(
            "devices::a direct GID for both address families",
            ON_DEVICE,
            ipv6_gid,
        ))
        .needing(Need::Ipv6),
    ]
}

fn on_host_a(bench: &Bench, program: Program) -> Result<Outcome> {
    let fabric = bench.direct()?;
    bench.on_device(&fabric, Host::A, program)?.run()?.success()
}

fn devinfo(bench: &Bench) -> Result<()> {
    let outcome = on_host_a(
        bench,
        Program::new("ibv_devinfo").args(["-v", "-d", "metaroce0"]),
    )?;
    let text = &outcome.stdout;
    for wanted in ["PORT_ACTIVE", "Ethernet", "10.0 Gbps"] {
        ensure!(
            text.contains(wanted),
            "ibv_devinfo does not say {wanted}:\n{text}"
        );
    }
    let first_gid = text
        .lines()
        .find(|line| line.contains("GID[") && line.contains(" 0]"));
    ensure!(
        first_gid.is_some_and(|line| line.contains("::ffff:10.77.0.1") && line.contains("RoCE v2")),
        "GID 0 is not the IPv4 address, RoCE v2:\n{text}"
    );
    for (limit, at_least) in [
        ("max_qp", 1024),
        ("max_cq", 1024),
        ("max_sge", 30),
        ("max_cqe", 1 << 20),
        ("max_qp_wr", 4096),
        ("max_qp_rd_atom", 16),
    ] {
        let value = limit_of(text, limit);
        ensure!(
            value.is_some_and(|value| value >= at_least),
            "{limit} is {value:?}, wanted at least {at_least}:\n{text}"
        );
    }
    Ok(())
}

/// The number behind `name:` in the output of ibv_devinfo.
fn limit_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.trim()
            .strip_prefix(name)?
            .strip_prefix(':')?
            .trim()
            .parse()
            .ok()
    })
}

fn devices(bench: &Bench) -> Result<()> {
    let outcome = on_host_a(bench, Program::new("ibv_devices"))?;
    ensure!(
        outcome.stdout.contains("metaroce0"),
        "no metaroce0:\n{}",
        outcome.describe()
    );
    Ok(())
}

/// What users complain about: "reg_mr fails on RLIMIT_MEMLOCK", "no root to load the module". A user without rights, who may
/// not lock a byte, goes through the whole contract.
fn nothing_lockable(bench: &Bench) -> Result<()> {
    let outcome = run_as_nobody(bench, "memlock", |folder| {
        let contract = folder.join("verbs_contract");
        std::fs::copy(c_program::compile("verbs_contract")?, &contract)?;
        Ok(Program::new("sh")
            .args(["-c", "ulimit -l 0 && exec \"$0\""])
            .args([contract]))
    })?;
    says_ok(&outcome)
}

/// Runs what `make` makes as user nobody, with a copy of the product in a folder that nobody can read, which `make` may
/// use too.
fn run_as_nobody(
    bench: &Bench,
    name: &str,
    make: impl FnOnce(&Path) -> Result<Program>,
) -> Result<Outcome> {
    let fabric = bench.direct()?;
    let folder = std::env::temp_dir().join(format!("metaroce-e2e-{name}-{}", std::process::id()));
    let result = bench.artefacts()?.readable_copy(&folder).and_then(|copy| {
        let program = make(&folder)?.on(&fabric, Host::A);
        program
            .under_metaroce(&copy)
            .as_nobody()
            .env("HOME", "/nonexistent")
            .limit(bench.time_left())
            .run()?
            .success()
    });
    let _ = std::fs::remove_dir_all(&folder);
    result
}

/// What users complain about: "no root to load the module", "needs device nodes and privileges".
fn nobody(bench: &Bench) -> Result<()> {
    let outcome = run_as_nobody(bench, "nobody", |_| Ok(Program::new("ibv_devices")))?;
    ensure!(
        outcome.stdout.contains("metaroce0"),
        "no metaroce0:\n{}",
        outcome.describe()
    );
    Ok(())
}

fn ipv6_gid(bench: &Bench) -> Result<()> {
    let outcome = on_host_a(
        bench,
        Program::new("ibv_devinfo").args(["-v", "-d", "metaroce0"]),
    )?;
    ensure!(
        outcome.stdout.contains("fd77::1"),
        "no GID of the IPv6 address:\n{}",
        outcome.stdout
    );
    Ok(())
}
