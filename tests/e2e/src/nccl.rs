//! An unmodified NCCL library from PyPI, for driving its IB transport without a GPU.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::{artefacts, tool};

/// The library of `package` (`nvidia-nccl-cu12` …) in `version`; downloaded once, then kept in the target folder.
///
/// # Errors
/// Neither there nor to be had: the message says what to install.
pub fn library(package: &str, version: &str) -> Result<PathBuf> {
    let folder = artefacts::target_folder()?.join("e2e-nccl").join(version);
    let library = folder.join("nvidia/nccl/lib/libnccl.so.2");
    if library.exists() {
        return Ok(library);
    }
    let wheels = folder.join("wheel");
    fs::create_dir_all(&wheels).with_context(|| format!("cannot make {}", wheels.display()))?;
    let (to, wanted) = (wheels.to_string_lossy(), format!("{package}=={version}"));
    let download = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        &to,
        &wanted,
    ];
    tool::run("python3", &download).with_context(|| {
        format!("cannot download {wanted}; it needs pip: apt-get install python3-pip")
    })?;
    let wheel = fs::read_dir(&wheels)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip downloaded no wheel")?;
    tool::run(
        "python3",
        &[
            "-m",
            "zipfile",
            "-e",
            &wheel.to_string_lossy(),
            &folder.to_string_lossy(),
        ],
    )?;
    fs::remove_dir_all(&wheels)?;
    ensure!(
        library.exists(),
        "the wheel of {wanted} has no {}",
        library.display()
    );
    Ok(library)
}
