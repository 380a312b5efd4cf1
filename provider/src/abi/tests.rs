//! Compares the structures with every release that is served, and the public ones and the constants with the installed
//! `<infiniband/verbs.h>`.

use super::{attributes, constants, objects, provider, releases, work};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rust name of a field → name or path in C, where they differ.
const RENAMED: &[(&str, &str, &str)] = &[
    ("ibv_mw", "mw_type", "type"),
    ("ibv_send_wr", "xrc_remote_srqn", "qp_type"),
    ("ibv_send_wr", "extension", "bind_mw"),
    ("ibv_async_event", "element", "element"),
    ("verbs_sysfs_dev", "match_entry", "match"),
    ("verbs_match_ent", "key", "u"),
];

/// Members of unnamed unions, at whose place the table has no name.
const UNNAMED: &[&str] = &[
    "ibv_send_wr.imm_data",
    "ibv_send_wr.bind_mw",
    "ibv_wc.imm_data",
];

/// Structures that the provider does not allocate and that later releases have made longer: ours is the oldest form.
const GREW: &[&str] = &["ibv_port_attr"];

/// Structures that C has no name for, or that live in a header that is not installed.
const WITHOUT_C_NAME: &[&str] = &[
    "ibv_send_wr_rdma",
    "ibv_send_wr_atomic",
    "ibv_send_wr_ud",
    "ibv_send_wr_bind_mw",
    "ibv_send_wr_tso",
];

fn layout_program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/abi/layout.c")
}

/// Compiles and runs the C program; `Err` gives the reason for skipping.
fn run_layout_program() -> Result<String, String> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let directory = std::env::temp_dir().join(format!("metaroce-abi-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let binary = directory.join("layout");
    let compiled = Command::new(&compiler)
        .args(["-std=gnu11", "-o"])
        .arg(&binary)
        .arg(layout_program())
        .output()
        .map_err(|e| format!("no C compiler ({compiler}: {e})"))?;
    let errors = String::from_utf8_lossy(&compiled.stderr).into_owned();
    if errors.contains("infiniband/verbs.h: No such file") {
        return Err("no <infiniband/verbs.h> (Debian: libibverbs-dev)".into());
    }
    assert!(
        compiled.status.success(),
        "tests/abi/layout.c does not compile:\n{errors}"
    );
    let output = Command::new(&binary).output().map_err(|e| e.to_string())?;
    assert!(output.status.success());
    std::fs::remove_dir_all(&directory).map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn c_field<'a>(structure: &str, field: &'a str) -> &'a str {
    let renamed = RENAMED
        .iter()
        .find(|(s, f, _)| *s == structure && *f == field);
    renamed.map_or(field, |(_, _, c)| c)
}

#[test]
fn public_layout_and_constants_equal_those_of_the_installed_header() {
    let text = match run_layout_program() {
        Ok(text) => text,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let mut of_c = BTreeMap::new();
    for line in text.lines() {
        let (name, value) = line.rsplit_once(' ').expect("NAME VALUE");
        of_c.insert(name.to_owned(), value.parse::<u64>().expect("a number"));
    }

    let mut compared = 0;
    let tables = [objects::LAYOUT, work::LAYOUT, attributes::LAYOUT];
    for (structure, field, value) in tables.into_iter().flatten() {
        if WITHOUT_C_NAME.contains(structure) {
            continue;
        }
        let name = match *field {
            "" => format!("sizeof {structure}"),
            field => format!("{structure}.{}", c_field(structure, field)),
        };
        let c = of_c
            .remove(&name)
            .unwrap_or_else(|| panic!("tests/abi/layout.c does not print {name}"));
        assert_eq!(c, *value as u64, "{name}: C says {c}, Rust says {value}");
        compared += 1;
    }
    for (name, value) in constants::CONSTANTS {
        let c = of_c
            .remove(*name)
            .unwrap_or_else(|| panic!("tests/abi/layout.c does not print {name}"));
        assert_eq!(c, u64::from(*value), "{name}");
        compared += 1;
    }
    assert!(
        of_c.is_empty(),
        "printed by C, unknown to Rust: {:?}",
        of_c.keys()
    );
    assert!(compared > 300, "only {compared} values compared");
}

/// One hand-typed offset once hid every port. Most of these releases cannot be installed, so this is their only test.
#[test]
fn structures_are_those_of_every_release_that_is_served() {
    let tables = [
        objects::LAYOUT,
        work::LAYOUT,
        attributes::LAYOUT,
        provider::LAYOUT,
    ];
    for release in releases::all() {
        let title = format!("{}-1.{}", release.private_abi, release.public_minor);
        let mut compared = 0;
        for (structure, field, value) in tables.into_iter().flatten() {
            let size_name = format!("sizeof {structure}");
            if !release.bytes.contains_key(&size_name) {
                continue;
            }
            let name = match *field {
                "" => size_name,
                field => format!("{structure}.{}", c_field(structure, field)),
            };
            if UNNAMED.contains(&name.as_str()) {
                continue;
            }
            let theirs = release.bytes.get(&name);
            let theirs = *theirs.unwrap_or_else(|| panic!("{title} has no {name}"));
            if field.is_empty() && GREW.contains(structure) {
                assert!(
                    theirs >= *value,
                    "{title}: {name} is {theirs}, ours {value}"
                );
            } else {
                assert_eq!(theirs, *value, "{title}: {name}");
            }
            compared += 1;
        }
        assert!(compared > 250, "{title}: only {compared} values compared");
    }
}
