//! Where the plugin and the shim lie: beside this program (a build folder), or in `../lib/metaroce` (an installation).

use anyhow::{Context, Result, bail};
use metaroce::device::tree::Libraries;
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const PLUGIN: &str = "libmetaroce.so";
const SHIM: &str = "libmetaroce_shim.so";

/// What to do about a file that is broken.
pub(crate) const CURE: &str = "copy it again (if there was room on the disk), or build it: cargo build --release -p metaroce -p \
    metaroce-shim -p metaroce-cli";

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

/// Checks that both were written to their end.
///
/// # Errors
/// One was not; the message names it, and the cure.
pub(crate) fn check(libraries: &Libraries) -> Result<()> {
    for file in [&libraries.plugin, &libraries.shim] {
        if let Some(wrong) = broken(file) {
            bail!("{} {wrong}; {CURE}", file.display());
        }
    }
    Ok(())
}

/// What is wrong with a library that was not written to its end: the dynamic linker takes some of these, and the program
/// crashes.
pub(crate) fn broken(file: &Path) -> Option<String> {
    match fs::read(file) {
        Ok(bytes) if bytes.is_empty() => Some("is empty".to_owned()),
        Ok(bytes) if is_whole(&bytes).is_none() => {
            Some("is cut off, or no shared library".to_owned())
        }
        Ok(_) => None,
        Err(error) => Some(format!("cannot be read: {error}")),
    }
}

/// An ELF file of which no segment and no section header is missing.
fn is_whole(bytes: &[u8]) -> Option<()> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, bytes).ok()?;
    header.section_headers(endian, bytes).ok()?;
    let all_there = segments
        .iter()
        .all(|segment| segment.data(endian, bytes).is_ok());
    (all_there && !segments.is_empty()).then_some(())
}
