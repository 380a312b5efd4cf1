//! Black holes and detours: a program at the ingress of a port (`bpf/arrival.c`, tc) that drops all that comes
//! in, or sends late packets on their detour (`late`).
//!
//! Attached when a port first needs it, and left there: turning a black hole on and off is then one write to a
//! map, and its count goes on. Called by `fabric::Fabric` and `late`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::bpf::{self, Program};
use super::counters::{Retired, Traffic};
use super::state::State;
use super::topology::Port;
use crate::tool;

/// The BPF programs, compiled on the machine where they run.
const SOURCE: &str = include_str!("../../bpf/arrival.c");

/// ELF section of the program at ports.
const ARRIVE: &str = "tc/arrive";

/// ELF section of the program where detours end.
const RETURN: &str = "tc/return";

/// Number of our filter among those of the port.
const PREFERENCE: &str = "77";

/// Keys of the map of settings.
const BLACK_HOLE: u32 = 0;
const LATE_DEVICE: u32 = 1;
const LATE_CLASSES: u32 = 2;

/// Makes the port a black hole, or ends that.
pub(super) fn set_blackhole(state: &State, port: &Port, on: bool) -> Result<()> {
    let program = match open(port)? {
        Some(program) => program,
        None if !on => return Ok(()),
        None => attach_to_port(state, port)?,
    };
    program.write("settings", &[(BLACK_HOLE, u64::from(on))])
}

/// Sends packets named late through the device of that index, in one of `classes` classes of its queue.
pub(super) fn set_detour(state: &State, port: &Port, device: u64, classes: u64) -> Result<()> {
    let program = match open(port)? {
        Some(program) => program,
        None => attach_to_port(state, port)?,
    };
    program.write(
        "settings",
        &[(LATE_DEVICE, device), (LATE_CLASSES, classes)],
    )
}

/// Has packets that leave a detour at `port` go back to where they came in.
pub(super) fn end_detours_at(state: &State, port: &Port) -> Result<()> {
    attach(state, port, RETURN)
}

/// Whether a program makes its port a black hole.
pub(super) fn is_blackhole(program: &Program) -> Result<bool> {
    let [black_hole, _, _] = program.read("settings")?;
    Ok(black_hole != 0)
}

/// What a program has swallowed.
pub(super) fn counts_of(program: &Program) -> Result<Traffic> {
    let [swallowed] = program.read("counts")?;
    Ok(Traffic {
        swallowed,
        ..Traffic::default()
    })
}

/// Takes the program off; what it counted is kept. Nothing to do where it is not.
pub(super) fn clear(state: &State, port: &Port) -> Result<()> {
    let Some(program) = open(port)? else {
        return Ok(());
    };
    let counts = counts_of(&program)?;
    let place = [
        "filter",
        "del",
        "dev",
        &port.device,
        "ingress",
        "pref",
        PREFERENCE,
    ];
    tool::run("tc", &[&["-n", &port.namespace][..], &place].concat())?;
    Retired::add_filter(state, port, counts)
}

/// The program at `port`, if it is attached.
pub(super) fn open(port: &Port) -> Result<Option<Program>> {
    let place = [
        "filter",
        "show",
        "dev",
        &port.device,
        "ingress",
        "pref",
        PREFERENCE,
    ];
    let filters = tool::run_json("tc", &[&["-n", &port.namespace, "-j"][..], &place].concat())?;
    let number = filters
        .as_array()
        .and_then(|filters| {
            filters
                .iter()
                .find_map(|filter| filter.pointer("/options/prog/id"))
        })
        .and_then(Value::as_u64);
    number.map(Program::open).transpose()
}

fn attach_to_port(state: &State, port: &Port) -> Result<Program> {
    attach(state, port, ARRIVE)?;
    open(port)?.context("the BPF program vanished right after it was attached")
}

fn attach(state: &State, port: &Port, section: &str) -> Result<()> {
    let object: PathBuf = bpf::compile(&state.files(), "arrival", SOURCE)?;
    let object = object.to_string_lossy();
    let (namespace, device) = (port.namespace.as_str(), port.device.as_str());
    // `replace`: the queue for ingress may be there already.
    tool::run(
        "tc",
        &["-n", namespace, "qdisc", "replace", "dev", device, "clsact"],
    )?;
    let filter = [
        "filter", "add", "dev", device, "ingress", "pref", PREFERENCE,
    ];
    let program = [
        "bpf",
        "direct-action",
        "object-file",
        &object,
        "section",
        section,
    ];
    tool::run("tc", &[&["-n", namespace][..], &filter, &program].concat())
        .map(drop)
        .context(
            "the kernel did not take the BPF program; it needs CONFIG_NET_CLS_BPF, and in a container CAP_BPF \
             and CAP_NET_ADMIN",
        )
}
