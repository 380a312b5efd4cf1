//! Black holes: a program at the ingress of a port (`bpf/arrival.c`, tc) that drops all that comes in.
//!
//! Attached when a port is first given a black hole, and left there: turning it on and off is then one write
//! to a map, and its count goes on.

use anyhow::{Context, Result};
use serde_json::Value;

use super::bpf::{self, Program};
use super::state::State;
use super::topology::Port;
use crate::tool;

/// The BPF program, compiled on the machine where it runs.
const SOURCE: &str = include_str!("../../bpf/arrival.c");

/// Its ELF section.
const SECTION: &str = "tc/arrive";

/// Number of our filter among those of the port.
const PREFERENCE: &str = "77";

/// Keys of the map of settings.
const BLACK_HOLE: u32 = 0;

/// Makes the port a black hole, or ends that.
pub(super) fn set_blackhole(state: &State, port: &Port, on: bool) -> Result<()> {
    let program = match open(port)? {
        Some(program) => program,
        None if !on => return Ok(()),
        None => attach(state, port)?,
    };
    program.write("settings", &[(BLACK_HOLE, u64::from(on))])
}

/// Packets that the port swallowed as a black hole.
pub(super) fn swallowed(port: &Port) -> Result<u64> {
    match open(port)? {
        Some(program) => program.read::<1>("counts").map(|[swallowed]| swallowed),
        None => Ok(0),
    }
}

/// Takes the program off.
pub(super) fn clear(port: &Port) -> Result<()> {
    if open(port)?.is_some() {
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
    }
    Ok(())
}

fn open(port: &Port) -> Result<Option<Program>> {
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

fn attach(state: &State, port: &Port) -> Result<Program> {
    let object = bpf::compile(&state.files(), "arrival", SOURCE)?;
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
        SECTION,
    ];
    tool::run("tc", &[&["-n", namespace][..], &filter, &program].concat()).context(
        "the kernel did not take the BPF program; it needs CONFIG_NET_CLS_BPF, and in a container CAP_BPF \
         and CAP_NET_ADMIN",
    )?;
    open(port)?.context("the BPF program vanished right after it was attached")
}
