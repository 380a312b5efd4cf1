//! Every layout of libibverbs that can be had: Debian's 44 (Debian 12), 56 (Debian 13) and the newest, each over its own
//! C library, and any that `METAROCE_E2E_LIBIBVERBS` names. First each alone, then two different ones at the ends of a
//! connection, then all of them in one process; and libraries that must be refused.
//!
//! The rows of the plugin's table that no archive has are covered by the layout tests of `provider/src/abi`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use metaroce_e2e::debian::{Suite, Unpacked};
use metaroce_e2e::libibverbs::Release;
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Host, Outcome, Pair, Program, c_program};

use super::contract::says_ok;
use super::plugin::Scratch;
use super::{Bench, Case, ON_DEVICE, next_port};

/// Seconds of the byte checker between two releases.
const CHECK_SECONDS: u32 = 3;

/// What the plugin says (at `debug`) when a copy was taken in, and (at `info`) when its layout is not the table's.
const TAKEN_IN: &str = "registered with ";
const SURPRISE: &str = "expected";

/// Copies that a process may have, as the plugin has it.
const MAX_COPIES: usize = 32;

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let releases = Release::all();
    let mut cases = Vec::new();
    for (place, release) in releases.iter().enumerate() {
        let mut add =
            |what: &str, others: &[&Release], run: fn(&Bench, &[Release]) -> Result<()>| {
                let mut all = vec![release.clone()];
                all.extend(others.iter().map(|&other| other.clone()));
                let needs: Vec<Need> = all.iter().filter_map(Release::needs).collect();
                let name = format!("abi::{}: {what}", release.name());
                let case = Case::new(name, ON_DEVICE, move |bench| run(bench, &all));
                let case = needs.into_iter().fold(case, Case::needing);
                cases.push(case.needing(Need::VerbsHeaders));
            };
        add("ibv_devinfo and ibv_rc_pingpong", &[], utilities);
        add("the verbs contract", &[], contract);
        // A ring, so that each release is once at either end.
        let next = &releases[(place + 1) % releases.len()];
        add(&format!("bytes to {}", next.name()), &[next], bytes);
    }
    let mut one_process = |name: &str, run: fn(&Bench) -> Result<()>| {
        let case = Case::new(format!("abi::{name}"), ON_DEVICE, run);
        cases.push(case.needing(Need::VerbsHeaders));
    };
    one_process(
        "all releases in one process, in turn and after a fork",
        in_turn,
    );
    one_process(
        "a copy that is loaded late, beside others at work",
        |bench| late(bench, "together"),
    );
    one_process("dlclose and dlopen again and again", |bench| {
        late(bench, "again")
    });
    one_process("a copy in a namespace of the dynamic linker", |bench| {
        late(bench, "private")
    });
    one_process("more copies than there is room for", too_many);
    one_process("foreign libraries are refused", foreign);
    cases.push(
        Case::new(
            "abi::a libibverbs that is too old is refused",
            ON_DEVICE,
            too_old,
        )
        .needing(Need::VerbsHeaders)
        .needing(Need::Debian(Suite::Bullseye))
        .needing(Need::Debian(Suite::Trixie)),
    );
    cases
}

/// All that are to be had, and that the plugin's table knows.
fn libraries() -> Result<Vec<PathBuf>> {
    let wanted = Release::all().into_iter().filter(|release| {
        let unmet = release.needs().and_then(Need::unmet);
        if let Some(reason) = &unmet {
            println!("without {}: {reason}", release.name());
        }
        unmet.is_none()
    });
    wanted.map(|release| release.library()).collect()
}

/// Runs a program, which must end well, with the plugin's log on.
fn logged(bench: &Bench, program: Program) -> Result<Outcome> {
    let fabric = bench.direct()?;
    let program = program.env("METAROCE_LOG", "metaroce::plugin=debug");
    let outcome = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    ensure!(
        !outcome.stderr.contains(SURPRISE),
        "a layout is not that of the table:\n{}",
        outcome.describe()
    );
    Ok(outcome)
}

fn utilities(bench: &Bench, releases: &[Release]) -> Result<()> {
    let release = &releases[0];
    let shown = logged(
        bench,
        release
            .utility("ibv_devinfo")?
            .args(["-v", "-d", "metaroce0"]),
    )?;
    for wanted in ["PORT_ACTIVE", "Ethernet", "::ffff:10.77.0.1", "RoCE v2"] {
        ensure!(
            shown.stdout.contains(wanted),
            "no {wanted}:\n{}",
            shown.stdout
        );
    }
    let taken_in = shown.stderr.lines().find(|line| line.contains(TAKEN_IN));
    println!("{}", taken_in.context("the plugin did not register")?);

    let port = next_port();
    let fabric = bench.direct()?;
    let server = release
        .utility("ibv_rc_pingpong")?
        .args([
            "-d",
            "metaroce0",
            "-g",
            "0",
            "-c",
            "-e",
            "-n",
            "500",
            "-s",
            "65536",
        ])
        .args(["-p".to_owned(), port.to_string()]);
    let client = server.clone().args([Host::A.ipv4().to_string()]);
    let outcome = bench.pair(&fabric, server, client, port)?.success()?;
    for side in [&outcome.server, &outcome.client] {
        let text = format!("{}{}", side.stdout, side.stderr);
        let good = text.contains("iters in") && !text.contains("invalid data");
        ensure!(good, "{}", side.describe());
    }
    Ok(())
}

fn contract(bench: &Bench, releases: &[Release]) -> Result<()> {
    for name in ["verbs_contract", "verbs_events"] {
        let program = c_program::compile(name)?;
        says_ok(&logged(bench, releases[0].program(&program)?)?)?;
    }
    Ok(())
}

/// The byte checker from one release to another.
fn bytes(bench: &Bench, releases: &[Release]) -> Result<()> {
    let program = c_program::compile("byte_check")?;
    let fabric = bench.planes(4)?;
    let port = next_port();
    let end = |release: &Release, host: Host| {
        let program = release
            .program(&program)?
            .args(["-p".to_owned(), port.to_string()])
            .args([
                "-t".to_owned(),
                CHECK_SECONDS.to_string(),
                "-q".into(),
                "4".into(),
            ]);
        bench.on_device(&fabric, host, program)
    };
    let server = end(&releases[1], Host::A)?;
    let client = end(&releases[0], Host::B)?.args(["-s".to_owned(), Host::A.ipv4().to_string()]);
    let outcome = Pair::new(server, client, port).run()?.success()?;
    says_ok(&outcome.server)?;
    says_ok(&outcome.client)?;
    println!("{}", outcome.client.stdout.trim_end());
    Ok(())
}

/// A program over the newest C library, with all libraries as its arguments.
fn with_all(program: &str, mode: Option<&str>) -> Result<(Program, usize)> {
    let program = c_program::compile(program)?;
    let libraries = libraries()?;
    ensure!(!libraries.is_empty(), "no libibverbs is to be had");
    let count = libraries.len();
    let program = Release::carrier()?.program(&program)?;
    Ok((program.args(mode).args(libraries), count))
}

/// How many copies the plugin took in.
fn taken_in(outcome: &Outcome) -> usize {
    let lines = outcome.stderr.lines();
    lines.filter(|line| line.contains(TAKEN_IN)).count()
}

fn in_turn(bench: &Bench) -> Result<()> {
    let (program, count) = with_all("plugin_copies", None)?;
    let outcome = logged(bench, program)?;
    ensure!(
        outcome.stdout.contains("COPIES OK"),
        "{}",
        outcome.describe()
    );
    // Each once, though they came twice: a copy that knows us stays.
    ensure!(
        taken_in(&outcome) == count,
        "{count} copies:\n{}",
        outcome.describe()
    );
    println!("{count} copies");
    Ok(())
}

fn late(bench: &Bench, mode: &str) -> Result<()> {
    let (program, count) = with_all("plugin_late", Some(mode))?;
    let outcome = logged(bench, program)?;
    says_ok(&outcome)?;
    println!("{count} copies\n{}", outcome.stdout.trim_end());
    Ok(())
}

fn too_many(bench: &Bench) -> Result<()> {
    const COPIES: usize = MAX_COPIES + 3;
    let scratch = Scratch::new("many")?;
    let carrier = Release::carrier()?;
    let library = carrier.library()?;
    let copies = (0..COPIES).map(|number| {
        let copy = scratch.path().join(format!("libibverbs-{number}.so"));
        fs::copy(&library, &copy).map(|_| copy)
    });
    let copies = copies
        .collect::<Result<Vec<_>, _>>()
        .context("cannot copy libibverbs")?;
    let program = carrier.program(&c_program::compile("plugin_late")?)?;
    let outcome = logged(bench, program.args(["many"]).args(copies))?;
    says_ok(&outcome)?;
    let expected = format!("{MAX_COPIES} of {COPIES} copies work");
    ensure!(outcome.stdout.contains(&expected), "{}", outcome.describe());
    let refused = outcome.stderr.matches("copies already").count();
    ensure!(
        refused == COPIES - MAX_COPIES,
        "said {refused} times:\n{}",
        outcome.describe()
    );
    Ok(())
}

/// Libraries with version definitions of a libibverbs that is none, or none that we know: let alone, said once if the log is
/// on and not at all otherwise, and the real one works.
fn foreign(bench: &Bench) -> Result<()> {
    let unknown = c_program::compile_library("foreign_verbs", "foreign_verbs", &[])?;
    let hollow = c_program::compile_library("foreign_hollow", "foreign_verbs", &["-DHOLLOW"])?;
    let carrier = Release::carrier()?;
    let program = carrier
        .program(&c_program::compile("plugin_foreign")?)?
        .args([carrier.library()?, unknown, hollow]);
    let outcome = logged(bench, program.clone())?;
    says_ok(&outcome)?;
    for reason in [
        "(IBVERBS_PRIVATE_77, IBVERBS_1.99) is not known",
        "not its function _verbs_init",
    ] {
        let times = outcome.stderr.matches(reason).count();
        ensure!(
            times == 1,
            "\"{reason}\" was said {times} times:\n{}",
            outcome.describe()
        );
    }
    let fabric = bench.direct()?;
    let silent = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    ensure!(
        silent.stderr.is_empty(),
        "noise without METAROCE_LOG:\n{}",
        silent.describe()
    );
    Ok(())
}

/// rdma-core 33 of Debian 11 looks for the plugin under a number that does not exist; beside a newer one it is refused.
fn too_old(bench: &Bench) -> Result<()> {
    let old = Unpacked::of(Suite::Bullseye)?.libibverbs()?;
    let newer = Release::Debian(Suite::Trixie);
    let program = newer.program(&c_program::compile("plugin_late")?)?;
    let program = program.args(["many"]).args([&old, &newer.library()?, &old]);
    let outcome = logged(bench, program)?;
    says_ok(&outcome)?;
    ensure!(
        outcome.stdout.contains("1 of 3 copies work"),
        "{}",
        outcome.describe()
    );
    let said = outcome
        .stderr
        .matches("(IBVERBS_PRIVATE_33, IBVERBS_1.11) is not known")
        .count();
    ensure!(said == 1, "said {said} times:\n{}", outcome.describe());

    let folder = old.parent().context("no folder")?;
    let doctor = Program::new(bench.artefacts()?.launcher())
        .args(["doctor"])
        .env("LD_LIBRARY_PATH", folder)
        .limit(bench.time_left());
    let text = doctor.run()?.stdout;
    let cure = "(private ABI 33, IBVERBS_1.11) has a layout that this metaroce does not know";
    ensure!(
        text.contains(cure) && text.contains("use rdma-core"),
        "doctor does not say it:\n{text}"
    );
    Ok(())
}
