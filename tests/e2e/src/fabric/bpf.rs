//! Compiling BPF programs and talking to their maps, with `clang` and `bpftool`.
//!
//! Programs are compiled on the machine where they run, once per fabric. Maps live as long as their program is
//! attached and are found through it, so nothing is pinned and nothing can be left behind.
//! Used by `arrival`, which attaches the programs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::tool;

/// An attached program and the maps that it uses.
#[derive(Debug)]
pub struct Program {
    /// Kernel number and name of each map.
    maps: Vec<(u64, String)>,
}

impl Program {
    /// The program with this kernel number.
    ///
    /// # Errors
    /// `bpftool` is missing or failed.
    pub fn open(number: u64) -> Result<Self> {
        let shown = tool::run_json(
            "bpftool",
            &["-j", "prog", "show", "id", &number.to_string()],
        )?;
        let wanted: Vec<u64> = shown
            .get("map_ids")
            .and_then(Value::as_array)
            .map(|numbers| numbers.iter().filter_map(Value::as_u64).collect())
            .unwrap_or_default();
        let mut maps = Vec::new();
        for number in wanted {
            let map = tool::run_json("bpftool", &["-j", "map", "show", "id", &number.to_string()])?;
            if let Some(name) = map.get("name").and_then(Value::as_str) {
                maps.push((number, name.to_owned()));
            }
        }
        Ok(Self { maps })
    }

    /// Kernel number of the map of this name.
    fn map(&self, name: &str) -> Result<u64> {
        self.maps
            .iter()
            .find(|(_, known)| known == name)
            .map(|&(number, _)| number)
            .ok_or_else(|| {
                anyhow!("another BPF program than ours is attached (it has no map `{name}`)")
            })
    }

    /// Sets elements of an array map, by key.
    ///
    /// # Errors
    /// There is no such map, or `bpftool` failed.
    pub fn write(&self, map: &str, values: &[(u32, u64)]) -> Result<()> {
        let number = self.map(map)?;
        let lines: String = values
            .iter()
            .map(|(key, value)| {
                let (key, value) = (words(&key.to_ne_bytes()), words(&value.to_ne_bytes()));
                format!("map update id {number} key {key} value {value}\n")
            })
            .collect();
        tool::run_with_input("bpftool", &["batch", "file", "-"], &lines).map(drop)
    }

    /// All values of an array map, in the order of their keys.
    ///
    /// # Errors
    /// There is no such map, it has not `N` elements, or `bpftool` failed.
    pub fn read<const N: usize>(&self, map: &str) -> Result<[u64; N]> {
        let number = self.map(map)?.to_string();
        let dump = tool::run_json("bpftool", &["-j", "map", "dump", "id", &number])?;
        let elements = dump.as_array().context("bpftool dumped no list")?;
        let values: Vec<u64> = elements
            .iter()
            .map(|element| element_value(element).context("a strange element in a BPF map"))
            .collect::<Result<_>>()?;
        match <[u64; N]>::try_from(values) {
            Ok(values) => Ok(values),
            Err(values) => bail!("the BPF map `{map}` has {} elements, not {N}", values.len()),
        }
    }
}

/// bpftool takes decimal bytes.
fn words(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes.iter().map(u8::to_string).collect();
    words.join(" ")
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

/// Compiles `source` into `folder` unless that was done, and returns the path of the object.
///
/// # Errors
/// `clang` or a header is missing.
pub fn compile(folder: &Path, name: &str, source: &str) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let object = folder.join(format!("{name}-{:016x}.o", hasher.finish()));
    if object.exists() {
        return Ok(object);
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let fresh = folder.join(format!("{name}-{}.new", std::process::id()));
    let output = fresh
        .to_str()
        .context("the folder of the fabric's records has a strange name")?;
    // Debian keeps the headers of the machine's architecture in a folder that -target bpf does not search.
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let arguments = [
        "-O2", "-g", "-Wall", "-target", "bpf", &headers, "-x", "c", "-c", "-", "-o", output,
    ];
    tool::run_with_input("clang", &arguments, source).context(
        "the BPF program does not compile; its headers are in: apt-get install libbpf-dev linux-libc-dev libc6-dev",
    )?;
    std::fs::rename(&fresh, &object)
        .with_context(|| format!("cannot write {}", object.display()))?;
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumped_elements_are_numbers() {
        let element = serde_json::json!({"value": ["0x01", "0x01", "0x00", "0x00", "0x00", "0x00", "0x00", "0x00"]});
        assert_eq!(
            element_value(&element),
            Some(u64::from_ne_bytes([1, 1, 0, 0, 0, 0, 0, 0]))
        );
        assert_eq!(element_value(&serde_json::json!({"value": ["0x01"]})), None);
        assert_eq!(words(&[1, 255]), "1 255");
    }
}
