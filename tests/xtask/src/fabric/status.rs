//! `cargo xtask fabric status`: what is up, what is in force there and what was counted, for people and programs.

use anyhow::Result;
use clap::Args;
use metaroce_e2e::Fabric;
use metaroce_e2e::fabric::{self, State, Way};
use serde_json::{Value, json};

use crate::output;

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only this fabric.
    #[arg(long)]
    name: Option<String>,
    /// One JSON document instead of text.
    #[arg(long)]
    json: bool,
}

/// Shows one fabric, or all.
pub fn run(arguments: &Arguments) -> Result<()> {
    output::write(&text(arguments)?)
}

fn text(arguments: &Arguments) -> Result<String> {
    fabric::require_root()?;
    let fabrics = match &arguments.name {
        Some(name) => vec![Fabric::open(name)?],
        None => State::all()
            .iter()
            .filter_map(|state| Fabric::open(&state.name).ok())
            .collect(),
    };
    if arguments.json {
        let all: Vec<Value> = fabrics.iter().map(as_json).collect();
        let document = serde_json::to_string_pretty(&json!({ "fabrics": all }))?;
        return Ok(document + "\n");
    }
    if fabrics.is_empty() {
        return Ok("no fabric is up\n".to_owned());
    }
    let mut text = String::new();
    for fabric in &fabrics {
        text += &headline(fabric.state());
        match fabric.ways() {
            Ok(ways) => text += &as_table(&ways),
            // It may be half made, or on its way down, and must not hide the others.
            Err(error) => text += &format!("  cannot be read: {error:#}\n"),
        }
    }
    Ok(text)
}

fn headline(state: &State) -> String {
    let owner = match &state.owner {
        Some(owner) if owner.is_alive() => format!(", belongs to process {}", owner.pid),
        Some(_) => ", left behind by a process that died".to_owned(),
        None => String::new(),
    };
    format!(
        "{}: {}, MTU {}{owner}; namespaces: {}\n",
        state.name,
        state.shape(),
        state.mtu_bytes,
        state.namespaces.join(" ")
    )
}

fn as_table(ways: &[Way]) -> String {
    let mut text = format!(
        "  {:<5} {:<6} {:>13} {:>15} {:>9} {:>9} {:>8}  in force\n",
        "plane", "way", "packets", "bytes", "dropped", "marked", "late"
    );
    for way in ways {
        let in_force = match (way.up, way.impairment.to_string()) {
            (true, impairment) => impairment,
            (false, impairment) if impairment.is_empty() => "down".to_owned(),
            (false, impairment) => format!("down, {impairment}"),
        };
        let line = format!(
            "  {:<5} {:<6} {:>13} {:>15} {:>9} {:>9} {:>8}  {in_force}",
            way.plane,
            way.way,
            way.traffic.packets,
            way.traffic.bytes,
            way.dropped,
            way.traffic.marked,
            way.traffic.late,
        );
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// What is wrong on purpose in a fabric, where anything is.
pub fn in_force(fabric: &Fabric) -> Result<String> {
    let mut text = String::new();
    for way in fabric.ways()? {
        let impairment = way.impairment.to_string();
        if !impairment.is_empty() {
            text += &format!("plane {} {}: {impairment}\n", way.plane, way.way);
        }
    }
    if text.is_empty() {
        text.push_str("no impairment\n");
    }
    Ok(text)
}

fn as_json(fabric: &Fabric) -> Value {
    let state = fabric.state();
    let mut document = json!({
        "name": state.name,
        "topology": state.topology,
        "hosts": fabric.hosts().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "mtu_bytes": state.mtu_bytes,
        "ipv6": state.ipv6,
        "namespaces": state.namespaces,
        "owner": state.owner.as_ref().map(|owner| owner.pid),
    });
    match fabric.ways() {
        Ok(ways) => document["ways"] = json!(ways),
        Err(error) => document["error"] = json!(format!("{error:#}")),
    }
    document
}
