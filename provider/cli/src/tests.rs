//! Tests of the launcher's arguments, environment and messages.

use super::*;
use crate::artefacts::{check, find_beside};
use crate::run::{drivers, preload};
use metaroce::device::tree::Libraries;
use std::ffi::OsStr;
use std::path::Path;

fn parse(line: &[&str]) -> Result<Arguments, clap::Error> {
    Arguments::try_parse_from(line)
}

#[test]
fn the_commands_own_options_are_not_ours() {
    for line in [
        vec![
            "metaroce",
            "run",
            "--devices",
            "lo",
            "--",
            "ib_write_bw",
            "-d",
            "metaroce0",
            "--version",
        ],
        vec![
            "metaroce",
            "run",
            "--devices",
            "lo",
            "ib_write_bw",
            "-d",
            "metaroce0",
            "--version",
        ],
    ] {
        let Action::Run { devices, command } = parse(&line).expect("valid").action else {
            panic!("run")
        };
        assert_eq!(devices.as_deref(), Some("lo"));
        assert_eq!(command, ["ib_write_bw", "-d", "metaroce0", "--version"]);
    }
    assert!(parse(&["metaroce", "run"]).is_err(), "no command");
    assert!(parse(&["metaroce", "run", "--"]).is_err(), "no command");
}

#[test]
fn an_unknown_interface_names_the_option_it_was_given_in() {
    let text = select(Some("nosuchinterface")).unwrap_err().to_string();
    assert!(
        text.contains("--devices names the network interface \"nosuchinterface\""),
        "{text}"
    );
    assert!(text.contains("lo"), "{text}");
}

#[test]
fn the_help_of_run_shows_a_device_of_several_planes() {
    let help = parse(&["metaroce", "run", "--help"]).err().unwrap();
    let help = help.to_string();
    assert!(help.contains("mr0=eth0+eth1"), "{help}");
}

#[test]
fn the_shim_comes_first_and_only_once() {
    let root = Path::new("/t");
    let value = |shim: &str, inherited: Option<&str>| {
        preload(Path::new(shim), root, inherited.map(OsStr::new))
    };
    assert_eq!(
        value("/b/libmetaroce_shim.so", None),
        "/b/libmetaroce_shim.so"
    );
    assert_eq!(
        value(
            "/b/libmetaroce_shim.so",
            Some("libjemalloc.so: /a/libmetaroce_shim.so libx.so")
        ),
        "/b/libmetaroce_shim.so:libjemalloc.so:libx.so"
    );
    assert_eq!(
        value("/my builds/libmetaroce_shim.so", None),
        "/t/lib/libmetaroce_shim.so"
    );
}

#[test]
fn the_plugin_comes_before_the_users_drivers() {
    let value = |inherited: Option<&str>| drivers(Path::new("/t"), inherited.map(OsStr::new));
    assert_eq!(value(None), "/t/lib/libmetaroce");
    assert_eq!(
        value(Some("/o/lib/libmetaroce;/x/mlx5")),
        "/t/lib/libmetaroce:/x/mlx5"
    );
}

#[test]
fn missing_libraries_are_named_with_where_they_belong() {
    let text = find_beside(Path::new("/nonexistent/bin/metaroce"))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("libmetaroce.so is missing") && text.contains("cargo build --release"),
        "{text}"
    );
}

#[test]
fn a_library_that_was_not_written_to_its_end_is_refused_with_the_cure() {
    let whole = std::env::current_exe().unwrap();
    let folder = std::env::temp_dir().join(format!("metaroce-cut-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cut = folder.join("libmetaroce.so");
    let bytes = std::fs::read(&whole).unwrap();
    let told = |libraries: [&Path; 2]| {
        let [plugin, shim] = libraries.map(Path::to_owned);
        check(&Libraries { plugin, shim }).map_err(|error| error.to_string())
    };
    for (length, why) in [(0, "is empty"), (100, "is cut off"), (4096, "is cut off")] {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        for libraries in [[&*cut, &*whole], [&*whole, &*cut]] {
            let text = told(libraries).unwrap_err();
            assert!(
                text.starts_with(&format!("{} {why}", cut.display())),
                "{text}"
            );
            assert!(text.contains("cargo build --release"), "{text}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(told([&whole, &whole]), Ok(()));
}
