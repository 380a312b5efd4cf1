//! Compiling the C test programs in `tests/e2e/c` against the distribution's libibverbs.
//!
//! They are C because they stand for the programs of others: nothing of the workspace is linked into them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{artefacts, tool};

/// The program of `c/NAME.c`, compiled unless it is newer than its source and the headers, linked with libibverbs.
///
/// # Errors
/// The compiler or a header is missing, or the source does not compile.
pub fn compile(name: &str) -> Result<PathBuf> {
    compile_with(name, &["-libverbs", "-lpthread", "-ldl"])
}

/// Like [`compile`], with `libraries` of the caller's choice.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(name: &str, libraries: &[&str]) -> Result<PathBuf> {
    compile_as(name, name, libraries)
}

/// Like [`compile`], of a source that lies elsewhere and may include the headers here.
///
/// # Errors
/// As [`compile`].
pub fn compile_source(source: &Path) -> Result<PathBuf> {
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    compile_path(&name, source, &["-libverbs", "-lpthread"])
}

/// The shared library `c/SOURCE.c` with the version script `c/NAME.map`, under the name NAME.
///
/// # Errors
/// As [`compile`].
pub fn compile_library(name: &str, source: &str, options: &[&str]) -> Result<PathBuf> {
    let script = sources().join(format!("{name}.map"));
    let script = format!("-Wl,--version-script={}", script.display());
    let mut arguments = vec!["-shared", "-fPIC", &script];
    arguments.extend(options);
    compile_as(name, source, &arguments)
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}

fn compile_as(name: &str, source: &str, options: &[&str]) -> Result<PathBuf> {
    compile_path(name, &sources().join(format!("{source}.c")), options)
}

fn compile_path(name: &str, source: &Path, options: &[&str]) -> Result<PathBuf> {
    let sources = sources();
    let folder = artefacts::target_folder()?.join("e2e-c");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let program = folder.join(name);
    let mut inputs = headers(&sources)?;
    inputs.push(source.to_owned());
    if inputs.iter().all(|input| is_newer(&program, input)) {
        return Ok(program);
    }
    // Compiled beside and renamed: another case may be running the old one or compile the same.
    let fresh = folder.join(format!(
        "{name}.{}.{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let (fresh_name, source_name) = (fresh.to_string_lossy(), source.to_string_lossy());
    let mut arguments = vec![
        "-std=gnu11",
        "-O2",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        &fresh_name,
        &source_name,
    ];
    arguments.extend(options);
    tool::run("cc", &arguments).with_context(|| {
        format!("{source_name} does not compile; its headers are in: apt-get install libibverbs-dev libc6-dev")
    })?;
    fs::rename(&fresh, &program).with_context(|| format!("cannot make {}", program.display()))?;
    Ok(program)
}

/// The headers that the programs share, and the version scripts; whichever changes, all are compiled again.
fn headers(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "h" || extension == "map")
        })
        .collect())
}

fn is_newer(program: &Path, source: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    matches!((changed(program), changed(source)), (Ok(program), Ok(source)) if program > source)
}
