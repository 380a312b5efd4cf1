//! `metaroce run`: starts a command that sees the metaroce devices.
//!
//! The command inherits three variables: `METAROCE_TREE`, where the shim finds the tree; `LD_PRELOAD`, by which the shim
//! is loaded; `IBV_DRIVERS`, by which a libibverbs with another configuration directory finds the plugin.

use crate::{artefacts, doctor, fail, libibverbs, select};
use anyhow::{Context, Result};
use metaroce::device::{DEVICES_VARIABLE, tree};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Exit status for a command that cannot be executed, and for one that does not exist, as shells have it.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Replaces this process by the command; returns only in failure.
pub(crate) fn run(devices: Option<&str>, command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        return ExitCode::from(NOT_FOUND);
    };
    let mut process = Command::new(program);
    process.args(arguments);
    if let Err(error) = prepare(&mut process, devices) {
        return fail(&error);
    }
    if libibverbs::find().is_none() {
        eprintln!(
            "metaroce: warning: this system has no {}. Only programs that bring their own will work; for others, \
             install it (Debian: apt install libibverbs1 ibverbs-utils)",
            libibverbs::FILE
        );
    }
    for name in metaroce::unknown_settings() {
        eprintln!("metaroce: warning: {name} is no variable of metaroce and has no effect");
    }
    if let Some(text) = doctor::ports_exhausted() {
        eprintln!("metaroce: warning: {text}");
    }
    let error = process.exec();
    let name = program.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => {
            eprintln!("metaroce: {}", not_found(&name));
            ExitCode::from(NOT_FOUND)
        }
        _ => {
            eprintln!("metaroce: cannot run {name}: {error}");
            ExitCode::from(NOT_EXECUTABLE)
        }
    }
}

/// That there is no such program.
pub(crate) fn not_found(program: &str) -> String {
    match program {
        "" => "the name of the program is empty".to_owned(),
        name => format!("{name}: command not found{}", hint(name)),
    }
}

/// Which package a well-known program comes in.
fn hint(program: &str) -> &'static str {
    match program {
        name if name.starts_with("ibv_") => " (Debian: apt install ibverbs-utils)",
        name if name.starts_with("ib_") || name == "raw_ethernet_bw" => {
            " (Debian: apt install perftest)"
        }
        _ => "",
    }
}

fn prepare(process: &mut Command, option: Option<&str>) -> Result<()> {
    let devices = select(option)?;
    metaroce::check_settings().map_err(anyhow::Error::msg)?;
    let libraries = artefacts::find()?;
    artefacts::check(&libraries)?;
    let contents = tree::contents(&devices, &tree::HostDevices::find(), &libraries);
    let directory = tree::runtime_directory().context("no place for the device tree")?;
    let root = tree::publish(&contents, &directory, tree::network_namespace())?;

    process.env(metaroce::TREE_VARIABLE, &root);
    process.env(
        "LD_PRELOAD",
        preload(
            &libraries.shim,
            &root,
            std::env::var_os("LD_PRELOAD").as_deref(),
        ),
    );
    process.env(
        "IBV_DRIVERS",
        drivers(&root, std::env::var_os("IBV_DRIVERS").as_deref()),
    );
    if let Some(list) = option {
        process.env(DEVICES_VARIABLE, list);
    }
    Ok(())
}

/// The value of `LD_PRELOAD`: the shim, then what was there. The dynamic linker splits it at colons and white space, so a
/// path with one of these is replaced by the link in the tree.
pub(crate) fn preload(shim: &Path, root: &Path, inherited: Option<&OsStr>) -> OsString {
    let separators = |byte: &u8| byte.is_ascii_whitespace() || *byte == b':';
    let plain = !shim.as_os_str().as_bytes().iter().any(separators);
    let shim = if plain {
        shim.to_owned()
    } else {
        root.join(tree::SHIM_LINK)
    };
    let name = Path::new(tree::SHIM_LINK)
        .file_name()
        .unwrap_or_default()
        .as_bytes();
    let mut list = vec![shim.into_os_string().into_vec()];
    let inherited = inherited.map(OsStr::as_bytes).unwrap_or_default();
    // When launchers are nested, the inner one's shim replaces the outer one's: both would redirect.
    list.extend(
        inherited
            .split(separators)
            .filter(|p| !p.is_empty() && !p.ends_with(name))
            .map(<[u8]>::to_vec),
    );
    OsString::from_vec(list.join(&b':'))
}

/// The value of `IBV_DRIVERS`: our plugin, then what was there; libibverbs appends `-rdmavNN.so` to each.
pub(crate) fn drivers(root: &Path, inherited: Option<&OsStr>) -> OsString {
    let mut list = root.join(tree::PLUGIN_STEM).into_os_string();
    let stem = format!("/{}", tree::PLUGIN_STEM);
    let inherited = inherited.map(OsStr::as_bytes).unwrap_or_default();
    for driver in inherited.split(|byte| matches!(byte, b':' | b';')) {
        if !driver.is_empty() && !driver.ends_with(stem.as_bytes()) {
            list.push(":");
            list.push(OsStr::from_bytes(driver));
        }
    }
    list
}
