//! How programs come to see the device: the plugin in several copies of libibverbs, the shim's side effects (none), and
//! what the launcher says when something is wrong.
//!
//! The traps of being loaded by libibverbs, each with the test that falls into it if the plugin does:
//! * a match table that is NULL crashes libibverbs as soon as the kernel tells it of a device by netlink (which the shim
//!   keeps from it, so this needs a kernel with RDMA): `the_match_table_is_there_and_empty` in the plugin;
//! * state is per copy of libibverbs, and so is the table by which they are told apart: "several copies", and
//!   "abi::a copy that is loaded late, beside others at work";
//! * dlclose unloads a copy that nobody holds, and the one that comes next finds no driver: "several copies", and
//!   "abi::dlclose and dlopen again and again";
//! * two plugin files hook the same slots: "a second plugin file in the same process";
//! * libibverbs closes a channel's descriptor without telling: `completion_channels` of `verbs_events.c`, and
//!   `a_channel_is_known_by_number_and_file` in the plugin;
//! * sends that wait for a receiver need progress without polling: "a send waits for its receive and nobody polls";
//! * a forked child must forget its parent's queue pairs: "a child is forked while a queue pair is at work".

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use metaroce_e2e::needs::Need;
use metaroce_e2e::{Host, Outcome, Program, c_program};

use super::contract::says_ok;
use super::{Bench, Case, ON_DEVICE};

/// The cases of this file.
pub fn cases() -> Vec<Case> {
    let copies = |name: &str, run: fn(&Bench) -> Result<()>| {
        Case::new(name, ON_DEVICE, run)
            .needing(Need::VerbsHeaders)
            .needing(Need::Program("ibv_devinfo"))
    };
    vec![
        copies(
            "plugin::several copies of libibverbs in one process",
            several_copies,
        ),
        copies(
            "plugin::a second plugin file in the same process",
            second_plugin,
        ),
        copies("plugin::threads enumerate two copies at once", threads),
        copies(
            "plugin::a child is forked while a queue pair is at work",
            |bench| one_copy(bench, "fork"),
        ),
        copies(
            "plugin::a send waits for its receive and nobody polls",
            |bench| one_copy(bench, "unready"),
        ),
        Case::new(
            "plugin::a device of the kernel beside ours",
            ON_DEVICE,
            beside_a_kernel_device,
        )
        .needing(Need::Program("ibv_devinfo")),
        Case::new(
            "plugin::the shim changes nothing else",
            &[Need::Product],
            harmless,
        )
        .needing(Need::VerbsHeaders),
        Case::new(
            "plugin::the launcher names cause and cure",
            &[Need::Product],
            messages,
        ),
        Case::new("plugin::launchers can be nested", ON_DEVICE, nested)
            .needing(Need::Program("ibv_devinfo")),
    ]
}

/// A folder that goes away with the case.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new, empty one.
    pub fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("metaroce-e2e-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The distribution's libibverbs, by a program that is linked to it.
fn system_libibverbs() -> Result<PathBuf> {
    let linked = metaroce_e2e::tool::require("ibv_devinfo")?;
    let listed = Program::new("ldd").args([linked]).run()?.success()?;
    let line = listed
        .stdout
        .lines()
        .find(|line| line.contains("libibverbs.so.1"));
    let path = line.and_then(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(PathBuf::from(
        path.context("ldd does not tell where libibverbs is")?,
    ))
}

/// The distribution's copy, and one as wheels bring it: another file with a hash in its name.
fn two_copies(scratch: &Scratch) -> Result<[PathBuf; 2]> {
    let system = system_libibverbs()?;
    let vendored = scratch.0.join("libibverbs-0a1b2c3d.so.1.14.44.0");
    fs::copy(&system, &vendored).with_context(|| format!("cannot copy {}", system.display()))?;
    Ok([system, vendored])
}

fn several_copies(bench: &Bench) -> Result<()> {
    let scratch = Scratch::new("copies")?;
    let program = c_program::compile("plugin_copies")?;
    let copies = two_copies(&scratch)?;
    let fabric = bench.direct()?;
    let outcome = bench
        .on_device(&fabric, Host::A, Program::new(&program).args(copies))?
        .run()?
        .success()?;
    ensure!(
        outcome.stdout.contains("COPIES OK"),
        "{}",
        outcome.describe()
    );
    Ok(())
}

fn second_plugin(bench: &Bench) -> Result<()> {
    let scratch = Scratch::new("second")?;
    let program = c_program::compile("plugin_copies")?;
    let copies = two_copies(&scratch)?;
    let other = scratch.0.join("libother.so");
    fs::copy(bench.artefacts()?.plugin(), &other).context("cannot copy the plugin")?;
    for abi in [34, 57, 59, 64, 65] {
        symlink(&other, scratch.0.join(format!("libother-rdmav{abi}.so")))?;
    }
    let fabric = bench.direct()?;
    let program = Program::new(&program)
        .args(copies)
        .env("IBV_DRIVERS", scratch.0.join("libother"));
    let outcome = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    ensure!(
        outcome.stdout.contains("COPIES OK"),
        "{}",
        outcome.describe()
    );
    Ok(())
}

fn threads(bench: &Bench) -> Result<()> {
    let scratch = Scratch::new("threads")?;
    let program = c_program::compile("plugin_enumerate")?;
    let copies = two_copies(&scratch)?;
    let fabric = bench.direct()?;
    let program = Program::new(&program).args(copies);
    bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    Ok(())
}

/// A mode of `plugin_late` that needs only the distribution's libibverbs.
fn one_copy(bench: &Bench, mode: &str) -> Result<()> {
    let program = Program::new(c_program::compile("plugin_late")?)
        .args([mode])
        .args([system_libibverbs()?]);
    let fabric = bench.direct()?;
    let outcome = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    says_ok(&outcome)?;
    println!("{}", outcome.stdout.trim_end());
    Ok(())
}

/// What users complain about: "one odd device hides the others". libibverbs asks every provider about every device that it
/// finds. Here it finds, beside ours, one as the kernel's driver of a real adapter shows it, for which there is no provider.
fn beside_a_kernel_device(bench: &Bench) -> Result<()> {
    let scratch = Scratch::new("kernel-device")?;
    let script = r#"
        set -e
        cp -a "$METAROCE_TREE" "$1/tree" && cd "$1/tree"
        mkdir -p sys/class/infiniband_verbs/uverbs77/device sys/class/infiniband/mlx5_77 dev/infiniband
        echo 1 > sys/class/infiniband_verbs/uverbs77/abi_version
        echo mlx5_77 > sys/class/infiniband_verbs/uverbs77/ibdev
        echo 1:3 > sys/class/infiniband_verbs/uverbs77/dev
        echo pci:v000015B3d00001017sv000015B3sd00000020bc02sc00i00 \
            > sys/class/infiniband_verbs/uverbs77/device/modalias
        echo "1: CA" > sys/class/infiniband/mlx5_77/node_type
        ln -s /dev/null dev/infiniband/uverbs77
        METAROCE_TREE=$PWD IBV_SHOW_WARNINGS=1 exec ibv_devinfo"#;
    let program = Program::new("sh").args(["-c", script, "sh"]);
    let program = program.args([scratch.path()]);
    let fabric = bench.direct()?;
    let outcome = bench
        .on_device(&fabric, Host::A, program)?
        .run()?
        .success()?;
    ensure!(
        outcome.stdout.contains("metaroce0") && outcome.stdout.contains("PORT_ACTIVE"),
        "{}",
        outcome.describe()
    );
    // Else it did not look, and this proves nothing.
    ensure!(
        outcome
            .stderr
            .contains("no userspace device-specific driver found for mlx5_77"),
        "libibverbs did not see the other device:\n{}",
        outcome.describe()
    );
    Ok(())
}

fn harmless(bench: &Bench) -> Result<()> {
    let artefacts = bench.artefacts()?;
    let wrappers = c_program::compile("plugin_wrappers")?;
    let wrappers = wrappers.to_string_lossy().into_owned();
    let walk = "import os\nfor d, _, f in os.walk('/sys/class'): print(d, sorted(f))";
    let shell = "cd /sys/class && echo net/* && cat net/lo/mtu && type ls && [ -e /dev/null ] && echo there";
    let commands: [&[&str]; 6] = [
        &[&wrappers],
        &["ls", "-l", "/sys/class", "/dev/null"],
        &["find", "/sys/class", "-maxdepth", "2"],
        &["bash", "-c", shell],
        &["python3", "-c", walk],
        &["cp", "/etc/hostname", "/dev/null"],
    ];
    for command in commands {
        if metaroce_e2e::tool::find(command[0]).is_none() && !command[0].contains('/') {
            continue;
        }
        let plain = Program::new(command[0])
            .args(&command[1..])
            .limit(bench.time_left());
        let wrapped = plain
            .clone()
            .under_metaroce(&artefacts)
            .env("METAROCE_DEVICES", "lo")
            .run()?;
        let plain = plain.run()?;
        ensure!(
            plain.stdout == wrapped.stdout && plain.stderr == wrapped.stderr,
            "{} behaves otherwise under the shim:\n{}\n{}",
            command[0],
            plain.describe(),
            wrapped.describe()
        );
        ensure!(
            status_of(&plain) == status_of(&wrapped),
            "{} has another status",
            command[0]
        );
    }
    let seen =
        Program::new("cat").args(["/sys/class/infiniband/metaroce0/ports/1/gid_attrs/types/0"]);
    let seen = seen
        .under_metaroce(&artefacts)
        .env("METAROCE_DEVICES", "lo")
        .run()?
        .success()?;
    ensure!(seen.stdout == "RoCE v2\n", "{}", seen.describe());
    Ok(())
}

fn status_of(outcome: &Outcome) -> Option<i32> {
    outcome.status.and_then(|status| status.code())
}

/// What users complain about: "provider file in the wrong directory, device invisible, nothing says why".
fn messages(bench: &Bench) -> Result<()> {
    let artefacts = bench.artefacts()?;
    /// Variable, value, program, exit status, text on stderr.
    type Expected = (&'static str, &'static str, &'static str, i32, &'static str);
    let expected: [Expected; 8] = [
        (
            "METAROCE_DEVICES",
            "nosuch0",
            "true",
            125,
            "\"nosuch0\", which does not exist. Interfaces here: ",
        ),
        ("METAROCE_DEVICES", "lo,lo", "true", 125, "listed twice"),
        (
            "METAROCE_DEVICES",
            "mlx5_0=lo",
            "true",
            125,
            "a device name begins with \"metaroce\"",
        ),
        (
            "METAROCE_PORT_BASE",
            "80",
            "true",
            125,
            "METAROCE_PORT_BASE=80 is not possible: it must be a number from",
        ),
        (
            "METAROCE_PATHS",
            "many",
            "true",
            125,
            "METAROCE_PATHS=many is not possible",
        ),
        (
            "METAROCE_DEVICES",
            "lo",
            "ib_no_such_program",
            127,
            "command not found (Debian: apt install perftest)",
        ),
        (
            "METAROCE_DEVICES",
            "lo",
            "",
            127,
            "the name of the program is empty",
        ),
        (
            "METAROCE_DEVICES",
            "lo",
            "/etc/passwd",
            126,
            "cannot run /etc/passwd: Permission denied",
        ),
    ];
    for (variable, value, program, status, text) in expected {
        let outcome = Program::new(program)
            .under_metaroce(&artefacts)
            .env(variable, value)
            .run()?;
        ensure!(
            status_of(&outcome) == Some(status) && outcome.stderr.contains(text),
            "{variable}={value} {program}: wanted status {status} and \"{text}\":\n{}",
            outcome.describe()
        );
        ensure!(
            outcome.stderr.lines().count() == 1,
            "more than a line:\n{}",
            outcome.describe()
        );
    }
    // A program may still bring no queue pair into being; so this is said, and the program runs.
    let taken = UdpSocket::bind(("0.0.0.0", 0)).context("cannot bind a UDP port")?;
    let outcome = Program::new("true")
        .under_metaroce(&artefacts)
        .env("METAROCE_DEVICES", "lo")
        .env("METAROCE_PORT_BASE", taken.local_addr()?.port().to_string())
        .env("METAROCE_PORTS", "1")
        .run()?
        .success()?;
    ensure!(
        outcome.stderr.contains("0 of 1 free") && outcome.stderr.contains("METAROCE_PORT_BASE"),
        "taken ports go without a word:\n{}",
        outcome.describe()
    );
    Ok(())
}

fn nested(bench: &Bench) -> Result<()> {
    let fabric = bench.direct()?;
    let launcher = bench.artefacts()?.launcher();
    let inner = Program::new(launcher).args([
        "run",
        "--devices",
        "metaroce5=lo",
        "--",
        "ibv_devinfo",
        "-v",
    ]);
    let outcome = bench.on_device(&fabric, Host::A, inner)?.run()?.success()?;
    let text = &outcome.stdout;
    ensure!(
        text.contains("metaroce5")
            && text.contains("::ffff:127.0.0.1")
            && !text.contains("metaroce0"),
        "the inner launcher's device is not the only one:\n{text}"
    );
    Ok(())
}
