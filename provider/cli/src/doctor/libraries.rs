//! The files: libibverbs of the system, the plugin and the shim, and whether the dynamic linker takes them.

use super::{Finding, output_of};
use crate::artefacts;
use crate::libibverbs::{self, Found};
use metaroce::device::tree::Libraries;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A program that does nothing takes milliseconds.
const LOAD_WITHIN: Duration = Duration::from_secs(5);

pub(super) fn check() -> Vec<Finding> {
    let mut findings = vec![check_libibverbs(libibverbs::find().as_ref())];
    match artefacts::find() {
        Ok(found) => {
            let text = format!(
                "plugin {}, shim {}",
                found.plugin.display(),
                found.shim.display()
            );
            let broken = [&found.plugin, &found.shim].map(|file| check_file(file));
            let broken: Vec<Finding> = broken.into_iter().flatten().collect();
            if !broken.is_empty() {
                findings.extend(broken);
                return findings;
            }
            findings.push(Finding::good("libraries", text));
            findings.push(check_preload(&found, load(&found).as_deref()));
        }
        Err(error) => findings.push(Finding::bad("libraries", format!("{error:#}"), "")),
    }
    findings
}

pub(super) fn check_libibverbs(found: Option<&Found>) -> Finding {
    let check = "libibverbs";
    let Some(found) = found else {
        return Finding::bad(
            check,
            format!(
                "no {} on this system; only programs that bring their own copy will work",
                libibverbs::FILE
            ),
            "apt install libibverbs1 ibverbs-utils (Debian, Ubuntu); dnf install libibverbs libibverbs-utils (Fedora)",
        );
    };
    let about = format!(
        "{} (private ABI {}, IBVERBS_1.{}",
        found.path.display(),
        found.private_abi,
        found.public_minor
    );
    match metaroce::supported_release(found.private_abi, found.public_minor) {
        Some(release) => Finding::good(check, format!("libibverbs: {about}: rdma-core {release})")),
        None => Finding::bad(
            check,
            format!(
                "libibverbs: {about}) has a layout that this metaroce does not know, and will not be served"
            ),
            format!("use {}, or a newer metaroce", metaroce::served_releases()),
        ),
    }
}

/// A library that was not written to its end.
pub(super) fn check_file(file: &Path) -> Option<Finding> {
    let wrong = artefacts::broken(file)?;
    let text = format!("{} {wrong}", file.display());
    Some(Finding::bad("libraries", text, artefacts::CURE))
}

/// What the dynamic linker says when it preloads both into a program that does nothing (this one).
fn load(libraries: &Libraries) -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let mut command = Command::new(program);
    command
        .arg("--version")
        .env(
            "LD_PRELOAD",
            format!(
                "{}:{}",
                libraries.shim.display(),
                libraries.plugin.display()
            ),
        )
        // All symbols now, not when they are called.
        .env("LD_BIND_NOW", "1")
        .env_remove("METAROCE_TREE")
        .env_remove("METAROCE_LOG");
    output_of(&mut command, LOAD_WITHIN)
}

pub(super) fn check_preload(libraries: &Libraries, output: Option<&str>) -> Finding {
    let check = "preload";
    let Some(output) = output else {
        return Finding::bad(
            check,
            format!(
                "a program with {} in LD_PRELOAD does not start, or hangs",
                libraries.shim.display()
            ),
            "build metaroce on this system: cargo build --release -p metaroce -p metaroce-shim -p metaroce-cli",
        );
    };
    // "ERROR: ld.so: object '…' from LD_PRELOAD cannot be preloaded (why): ignored.", "symbol lookup error", …
    let complaint = output
        .lines()
        .find(|line| line.contains("ld.so") || line.contains("symbol lookup error"));
    match complaint {
        None => Finding::good(check, "the dynamic linker preloads both"),
        Some(line) => Finding::bad(
            check,
            format!("the dynamic linker refuses: {}", line.trim()),
            "put the files where programs may be executed from (no `noexec` mount), and build them on this system",
        ),
    }
}
