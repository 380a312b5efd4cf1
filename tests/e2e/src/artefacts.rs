//! Where the built product lies: the launcher `metaroce`, the plugin and the shim.
//!
//! Release builds are looked for, because that is what users run; `METAROCE_ARTEFACTS` names another
//! folder. Called by the demo and by every case that runs a program on a metaroce device.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Overrides the folder.
pub const FOLDER_VARIABLE: &str = "METAROCE_ARTEFACTS";

/// The packages that make up the product.
pub const PACKAGES: [&str; 3] = ["metaroce", "metaroce-shim", "metaroce-cli"];

/// The files of the product.
const FILES: [&str; 3] = ["metaroce", "libmetaroce.so", "libmetaroce_shim.so"];

/// A folder with all parts of the product.
#[derive(Debug, Clone)]
pub struct Artefacts {
    folder: PathBuf,
}

impl Artefacts {
    /// Finds them in [`FOLDER_VARIABLE`]'s folder or among the release builds of this workspace.
    ///
    /// # Errors
    /// A part is missing; the message has the command that builds it.
    pub fn find() -> Result<Self> {
        match std::env::var_os(FOLDER_VARIABLE) {
            Some(folder) => Self::in_folder(Path::new(&folder)),
            None => Self::in_folder(&target_folder()?.join("release")),
        }
    }

    /// Takes them from `folder`.
    ///
    /// # Errors
    /// As [`Artefacts::find`].
    pub fn in_folder(folder: &Path) -> Result<Self> {
        if let Some(absent) = FILES.iter().find(|file| !folder.join(file).is_file()) {
            let packages = PACKAGES.map(|package| format!("-p {package}")).join(" ");
            bail!(
                "{} is not built: cargo build --release {packages}",
                folder.join(absent).display()
            );
        }
        let folder = folder
            .canonicalize()
            .with_context(|| format!("cannot resolve {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Copies them where every user can read them. The working copy often lies in a home folder that
    /// others cannot enter.
    ///
    /// # Errors
    /// The folder cannot be made or written.
    pub fn readable_copy(&self, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        for file in FILES {
            let copy = folder.join(file);
            fs::copy(self.folder.join(file), &copy)
                .with_context(|| format!("cannot copy {file}"))?;
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        }
        Self::in_folder(folder)
    }

    /// The launcher.
    pub fn launcher(&self) -> PathBuf {
        self.folder.join("metaroce")
    }

    /// The plugin.
    pub fn plugin(&self) -> PathBuf {
        self.folder.join("libmetaroce.so")
    }

    /// The shim.
    pub fn shim(&self) -> PathBuf {
        self.folder.join("libmetaroce_shim.so")
    }
}

/// cargo's target folder, found from where this program lies in it.
///
/// # Errors
/// This program was not built by cargo in the usual place.
pub fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let profile = program.ancestors().find(|folder| {
        folder
            .file_name()
            .is_some_and(|name| name == "debug" || name == "release")
    });
    match profile.and_then(Path::parent) {
        Some(target) => Ok(target.to_owned()),
        None => bail!(
            "{} does not lie in a target folder of cargo; name the folder of the builds in {FOLDER_VARIABLE}",
            program.display()
        ),
    }
}

/// The root folder of the workspace's sources.
pub fn workspace_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_part_tells_how_to_build_it() {
        let message = Artefacts::in_folder(Path::new("/nonexistent"))
            .unwrap_err()
            .to_string();
        assert!(message.contains("cargo build --release"), "{message}");
    }

    #[test]
    fn the_target_folder_holds_this_test() {
        assert!(
            std::env::current_exe()
                .unwrap()
                .starts_with(target_folder().unwrap())
        );
    }
}
