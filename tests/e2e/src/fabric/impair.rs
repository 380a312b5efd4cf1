//! Loss of single packets by an XDP program at a host's NIC (`bpf/impair.c`).
//!
//! The program is compiled when it is first attached, and attached with `ip`. Its rates and counts are BPF
//! maps, which live as long as the program is attached and are found through it, so nothing is pinned and
//! nothing can be left behind. Rates change without re-attaching: counts go on.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::state::State;
use super::topology::NIC;
use crate::tool;

/// The BPF program, compiled on the machine where it runs.
const SOURCE: &str = include_str!("../../bpf/impair.c");

/// Its ELF section; the loader derives "may see packets in several pieces" from this name.
const SECTION: &str = "xdp.frags";

/// Probabilities are counted in these.
const PARTS: u64 = 1_000_000;

/// How many of a million packets vanish, by protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossRates {
    /// Of the UDP packets.
    pub udp_ppm: u64,
    /// Of the TCP packets.
    pub tcp_ppm: u64,
}

impl LossRates {
    /// The same rate for both protocols.
    pub fn all(ppm: u64) -> Self {
        Self {
            udp_ppm: ppm,
            tcp_ppm: ppm,
        }
    }

    /// UDP only: set-up connections over TCP are spared.
    pub fn udp(ppm: u64) -> Self {
        Self {
            udp_ppm: ppm,
            tcp_ppm: 0,
        }
    }
}

/// Packets that the program has judged since it was attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// UDP packets let through.
    pub udp_passed: u64,
    /// UDP packets dropped.
    pub udp_dropped: u64,
    /// TCP packets let through.
    pub tcp_passed: u64,
    /// TCP packets dropped.
    pub tcp_dropped: u64,
}

/// Parses a probability such as `1%`, `0.1 %`, `250ppm` or `0`.
///
/// # Errors
/// It is none, or not between 0 and 100 %.
pub fn parts_per_million(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no loss rate: write it as 1%, 0.1%, 250ppm or 0");
    let (number, factor) = match (text.strip_suffix('%'), text.strip_suffix("ppm")) {
        (Some(number), _) => (number, 10_000.0),
        (None, Some(number)) => (number, 1.0),
        (None, None) if text.trim() == "0" => ("0", 1.0),
        (None, None) => return Err(wrong()),
    };
    let parts = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
    if !(0.0..=1_000_000.0).contains(&parts) {
        return Err(format!("`{text}` is no loss rate: 0 to 100 %"));
    }
    // In range, so the cast is exact after rounding.
    Ok(parts.round() as u64)
}

/// Attaches the program to the NIC in `namespace` unless it is there, and sets the rates.
pub(super) fn set(state: &State, namespace: &str, rates: LossRates) -> Result<()> {
    for rate in [rates.udp_ppm, rates.tcp_ppm] {
        if rate > PARTS {
            bail!("a loss rate of {rate} in a million is more than all");
        }
    }
    let program = match attached(namespace)? {
        Some(program) => program,
        None => {
            let object = super::bpf::compile(&state.files(), "impair", SOURCE)?;
            attach(namespace, &object)?;
            attached(namespace)?.context("the loss program vanished right after it was attached")?
        }
    };
    let map = map_of(program, "loss_ppm")?;
    for (key, rate) in [rates.udp_ppm, rates.tcp_ppm].into_iter().enumerate() {
        write_element(map, key, rate)?;
    }
    Ok(())
}

/// Takes the program off the NIC in `namespace`; nothing to do where it is not.
pub(super) fn clear(namespace: &str) -> Result<()> {
    if attached(namespace)?.is_some() {
        tool::run(
            "ip",
            &["-n", namespace, "link", "set", "dev", NIC, "xdp", "off"],
        )?;
    }
    Ok(())
}

/// What the program in `namespace` counted.
pub(super) fn counts(namespace: &str) -> Result<Option<LossCounts>> {
    let Some(program) = attached(namespace)? else {
        return Ok(None);
    };
    let values = read_elements(map_of(program, "packets")?)?;
    let [udp_passed, udp_dropped, tcp_passed, tcp_dropped] = values[..] else {
        bail!(
            "the packet counts of the loss program have {} elements, not 4",
            values.len()
        );
    };
    Ok(Some(LossCounts {
        udp_passed,
        udp_dropped,
        tcp_passed,
        tcp_dropped,
    }))
}

/// The rates of the program in `namespace`.
pub(super) fn rates(namespace: &str) -> Result<Option<LossRates>> {
    let Some(program) = attached(namespace)? else {
        return Ok(None);
    };
    let values = read_elements(map_of(program, "loss_ppm")?)?;
    let [udp_ppm, tcp_ppm] = values[..] else {
        bail!(
            "the rates of the loss program have {} elements, not 2",
            values.len()
        );
    };
    Ok(Some(LossRates { udp_ppm, tcp_ppm }))
}

fn attach(namespace: &str, object: &Path) -> Result<()> {
    let object = object.to_string_lossy();
    // xdpdrv: the generic mode would linearise packets, and would not have the veth cut trains.
    let arguments = [
        "-n", namespace, "link", "set", "dev", NIC, "xdpdrv", "obj", &object, "sec", SECTION,
    ];
    tool::run("ip", &arguments).map(drop).context(
        "the kernel did not take the loss program; it needs BPF (CONFIG_BPF_SYSCALL), and in a container \
         CAP_BPF and CAP_NET_ADMIN",
    )
}

/// Kernel number of the XDP program on the NIC in `namespace`.
fn attached(namespace: &str) -> Result<Option<u64>> {
    let links = tool::run_json("ip", &["-n", namespace, "-j", "link", "show", "dev", NIC])?;
    Ok(links.pointer("/0/xdp/prog/id").and_then(Value::as_u64))
}

/// Kernel number of the map `name` of a program.
fn map_of(program: u64, name: &str) -> Result<u64> {
    let shown = tool::run_json(
        "bpftool",
        &["-j", "prog", "show", "id", &program.to_string()],
    )?;
    let numbers = shown
        .get("map_ids")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for number in numbers.iter().filter_map(Value::as_u64) {
        let map = tool::run_json("bpftool", &["-j", "map", "show", "id", &number.to_string()])?;
        if map.get("name").and_then(Value::as_str) == Some(name) {
            return Ok(number);
        }
    }
    Err(anyhow!(
        "another XDP program than ours is attached (it has no map `{name}`)"
    ))
}

fn write_element(map: u64, key: usize, value: u64) -> Result<()> {
    let number = map.to_string();
    let key = bytes_in_words(&u32::try_from(key)?.to_ne_bytes());
    let value = bytes_in_words(&value.to_ne_bytes());
    let mut arguments = vec!["map", "update", "id", &number, "key"];
    arguments.extend(key.iter().map(String::as_str));
    arguments.push("value");
    arguments.extend(value.iter().map(String::as_str));
    tool::run("bpftool", &arguments).map(drop)
}

/// bpftool takes decimal bytes, one an argument.
fn bytes_in_words(bytes: &[u8]) -> Vec<String> {
    bytes.iter().map(u8::to_string).collect()
}

/// All values of an array map, in the order of their keys.
fn read_elements(map: u64) -> Result<Vec<u64>> {
    let dump = tool::run_json("bpftool", &["-j", "map", "dump", "id", &map.to_string()])?;
    let elements = dump.as_array().context("bpftool dumped no list")?;
    elements
        .iter()
        .map(|element| element_value(element).context("a strange element in a BPF map"))
        .collect()
}

/// The value of a dumped element, 8 bytes such as `"0x2a"` in the machine's order.
fn element_value(element: &Value) -> Option<u64> {
    let bytes: Option<Vec<u8>> = element
        .get("value")?
        .as_array()?
        .iter()
        .map(|byte| u8::from_str_radix(byte.as_str()?.trim_start_matches("0x"), 16).ok())
        .collect();
    Some(u64::from_ne_bytes(bytes?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, expected) in [
            ("1%", 10_000),
            ("0.1 %", 1_000),
            ("10%", 100_000),
            ("250ppm", 250),
            ("0", 0),
            ("100%", 1_000_000),
        ] {
            assert_eq!(parts_per_million(text), Ok(expected), "{text}");
        }
        for text in ["", "1", "x%", "101%", "-1%", "nan%"] {
            assert!(parts_per_million(text).is_err(), "{text}");
        }
    }

    #[test]
    fn dumped_elements_are_numbers() {
        let element = serde_json::json!({"value": ["0x01", "0x01", "0x00", "0x00", "0x00", "0x00", "0x00", "0x00"]});
        assert_eq!(
            element_value(&element),
            Some(u64::from_ne_bytes([1, 1, 0, 0, 0, 0, 0, 0]))
        );
        assert_eq!(element_value(&serde_json::json!({"value": ["0x01"]})), None);
    }
}
