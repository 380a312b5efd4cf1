//! Where the plugin and the shim lie: beside this program (a build folder), or in `../lib/metaroce` (an installation).

use anyhow::{Context, Result, bail};
use metaroce::device::tree::Libraries;
use std::fs::File;
use std::path::{Path, PathBuf};

const PLUGIN: &str = "libmetaroce.so";
const SHIM: &str = "libmetaroce_shim.so";

/// Finds both.
///
/// # Errors
/// One is missing or not readable; the message says where it was looked for.
pub(crate) fn find() -> Result<Libraries> {
    let program = std::env::current_exe()
        .context("cannot tell where this program lies (is /proc mounted?)")?;
    find_beside(&program)
}

/// As [`find`], for a program that lies there.
pub(crate) fn find_beside(program: &Path) -> Result<Libraries> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [
        folder.to_owned(),
        folder.join("../lib/metaroce"),
        folder.join("../lib"),
    ];
    Ok(Libraries {
        plugin: find_file(PLUGIN, &places)?,
        shim: find_file(SHIM, &places)?,
    })
}

fn find_file(name: &str, places: &[PathBuf]) -> Result<PathBuf> {
    let Some(path) = places
        .iter()
        .map(|place| place.join(name))
        .find(|path| path.exists())
    else {
        let places: Vec<String> = places
            .iter()
            .map(|place| place.display().to_string())
            .collect();
        bail!(
            "{name} is missing; it belongs beside this program or in ../lib/metaroce (looked in {}). Build it: cargo \
             build --release -p metaroce -p metaroce-shim -p metaroce-cli",
            places.join(", ")
        );
    };
    let path = path
        .canonicalize()
        .with_context(|| format!("cannot resolve {}", path.display()))?;
    // A build folder below somebody's home cannot be entered by other users.
    File::open(&path).with_context(|| {
        format!(
            "{} is not readable for this user; copy the build to a folder that is",
            path.display()
        )
    })?;
    Ok(path)
}
