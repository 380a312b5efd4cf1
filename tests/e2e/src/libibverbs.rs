//! The releases of libibverbs that the tests run: those of Debian's archive, and those that the user names.
//!
//! `METAROCE_E2E_LIBIBVERBS=FOLDER:FOLDER…` adds builds of rdma-core's other releases, as its cmake leaves them (targets
//! `ibverbs`, `ibv_devinfo`, `ibv_rc_pingpong`): `lib/libibverbs.so.1` and `bin/` in each. Used by `tests/cases/abi.rs`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::Program;
use crate::debian::{Suite, Unpacked};
use crate::needs::Need;

/// Names further folders.
pub const FOLDERS_VARIABLE: &str = "METAROCE_E2E_LIBIBVERBS";

/// The file in such a folder.
const FILE: &str = "lib/libibverbs.so.1";

/// A release of libibverbs, with the C library over which it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    /// That of a release of Debian, over that release's C library.
    Debian(Suite),
    /// The build in this folder, over the machine's C library.
    Folder(PathBuf),
}

impl Release {
    /// Debian's, from old to new, and the user's.
    pub fn all() -> Vec<Self> {
        let suites = [Suite::Bookworm, Suite::Trixie, Suite::Unstable];
        let mut all: Vec<Self> = suites.into_iter().map(Self::Debian).collect();
        let folders = std::env::var_os(FOLDERS_VARIABLE).unwrap_or_default();
        let folders = std::env::split_paths(&folders).filter(|path| path.is_absolute());
        all.extend(folders.map(Self::Folder));
        all
    }

    /// Its name in those of tests: no version, which is known only once it is there.
    pub fn name(&self) -> String {
        match self {
            Self::Debian(suite) => suite.codename().to_owned(),
            Self::Folder(folder) => folder.display().to_string(),
        }
    }

    /// What a case that uses it needs.
    pub fn needs(&self) -> Option<Need> {
        match self {
            Self::Debian(suite) => Some(Need::Debian(*suite)),
            Self::Folder(_) => None,
        }
    }

    /// The library.
    ///
    /// # Errors
    /// It is not there and not to be had.
    pub fn library(&self) -> Result<PathBuf> {
        match self {
            Self::Debian(suite) => Unpacked::of(*suite)?.libibverbs(),
            Self::Folder(folder) => {
                let library = folder.join(FILE);
                ensure!(
                    library.exists(),
                    "{FOLDERS_VARIABLE}: no {}",
                    library.display()
                );
                Ok(library)
            }
        }
    }

    /// `program` over this libibverbs.
    ///
    /// # Errors
    /// As [`Release::library`].
    pub fn program(&self, program: &Path) -> Result<Program> {
        match self {
            Self::Debian(suite) => Unpacked::of(*suite)?.program(program),
            Self::Folder(folder) => {
                Ok(Program::new(program).env("LD_LIBRARY_PATH", folder.join("lib")))
            }
        }
    }

    /// A utility of libibverbs, the release's own: they use private functions, and fit no other.
    ///
    /// # Errors
    /// As [`Release::library`].
    pub fn utility(&self, name: &str) -> Result<Program> {
        match self {
            Self::Debian(suite) => Unpacked::of(*suite)?.utility(name),
            Self::Folder(folder) => self.program(&folder.join("bin").join(name)),
        }
    }

    /// The one whose C library can carry all the others' libibverbs: the newest of Debian's that is to be had.
    ///
    /// # Errors
    /// There is none.
    pub fn carrier() -> Result<Self> {
        let suites = [Suite::Unstable, Suite::Trixie, Suite::Bookworm];
        let found = suites
            .into_iter()
            .find(|suite| Unpacked::of(*suite).is_ok());
        found
            .map(Self::Debian)
            .context("no release of Debian's libibverbs is to be had")
    }
}
