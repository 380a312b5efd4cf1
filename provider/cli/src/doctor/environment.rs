//! What a launcher or a user left in the environment: variables, the device tree and its namespace, the folder for it.

use super::Finding;
use metaroce::TREE_VARIABLE;
use metaroce::device::tree;
use std::ffi::OsStr;
use std::path::Path;

pub(super) fn check() -> Vec<Finding> {
    let mut findings = vec![
        check_directory(tree::runtime_directory()),
        check_settings(metaroce::check_settings()),
    ];
    findings.extend(metaroce::unknown_settings().iter().map(|name| {
        Finding::warning(
            "settings",
            format!("{name} is no variable of metaroce and has no effect"),
            "see the table in the README for the right name, or unset it",
        )
    }));
    let inherited = std::env::var_os(TREE_VARIABLE);
    findings.extend(check_tree(inherited.as_deref(), tree::network_namespace()));
    findings
}

pub(super) fn check_directory(directory: std::io::Result<std::path::PathBuf>) -> Finding {
    match directory {
        Ok(path) => Finding::good(
            "directory",
            format!("device trees go to {}", path.display()),
        ),
        Err(error) => Finding::bad(
            "directory",
            format!("no place for the device tree: {error}"),
            "",
        ),
    }
}

pub(super) fn check_settings(settings: Result<(), String>) -> Finding {
    match settings {
        Ok(()) => Finding::good(
            "settings",
            "the METAROCE_* variables of the environment are valid",
        ),
        Err(message) => Finding::bad("settings", message, "correct the variable or unset it"),
    }
}

/// A tree that this environment was given earlier: programs that are started from here without the launcher use it.
pub(super) fn check_tree(inherited: Option<&OsStr>, namespace: u64) -> Option<Finding> {
    let check = "tree";
    let root = Path::new(inherited?);
    let again = "start programs with `metaroce run -- COMMAND` here, which makes the right tree";
    if !root.join("sys/class/infiniband").is_dir() {
        let text = format!(
            "{TREE_VARIABLE} names {}, which is no device tree (any more)",
            root.display()
        );
        return Some(Finding::bad(check, text, again));
    }
    Some(match tree::namespace_of(root) {
        Some(other) if other != namespace => Finding::bad(
            check,
            format!(
                "{TREE_VARIABLE} names a tree of another network namespace ({other}, this one is {namespace}): its \
                 devices and addresses are not those of this place"
            ),
            again,
        ),
        _ => Finding::good(
            check,
            format!("{TREE_VARIABLE} names the tree {}", root.display()),
        ),
    })
}
