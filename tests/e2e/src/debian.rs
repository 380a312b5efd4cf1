//! Small pieces of other releases of Debian: their libibverbs, the utilities over it and the C library below, unpacked
//! side by side in the target folder. Nothing is installed.
//!
//! The archive is the one that this machine's own apt is set up for; apt gets folders of its own, so that neither the
//! machine's sources nor its package lists change. Downloaded once, some 10 MB of lists and 3 MB of packages a release,
//! and kept. Called by [`crate::libibverbs`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::{Program, artefacts, tool};

/// A release of Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// Debian 11: its libibverbs is older than any that metaroce serves.
    Bullseye,
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
    /// The newest that there is, whatever its version.
    Unstable,
}

impl Suite {
    /// Its name in the archive.
    pub fn codename(self) -> &'static str {
        match self {
            Self::Bullseye => "bullseye",
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Unstable => "sid",
        }
    }
}

/// What is unpacked of each: the first one is what this is about.
const PACKAGES: [&str; 5] = [
    "libibverbs1",
    "ibverbs-utils",
    "libnl-3-200",
    "libnl-route-3-200",
    "libc6",
];

/// Limit of one apt-get: a slow mirror must not hold up the tests.
const APT_LIMIT: Duration = Duration::from_secs(90);

/// Keys of the archive, as the package debian-archive-keyring has them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The unpacked packages of a release.
#[derive(Debug, Clone)]
pub struct Unpacked {
    root: PathBuf,
    /// Upstream version of rdma-core, as `56.1`.
    pub rdma_core: String,
}

impl Unpacked {
    /// Those of `suite`; downloaded unless they are there. What fails once is not tried again by this process.
    ///
    /// # Errors
    /// The archive does not have them, or there is no archive: the message is fit for the reason of a skipped test.
    pub fn of(suite: Suite) -> Result<Self> {
        type Known = BTreeMap<Suite, Result<Unpacked, String>>;
        static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
        let known = KNOWN.get_or_init(Mutex::default).lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        let result = known.entry(suite).or_insert_with(|| {
            unpack(suite).map_err(|error| {
                format!("no libibverbs of Debian's {}: {error:#}", suite.codename())
            })
        });
        result.clone().map_err(|message| anyhow!(message))
    }

    /// Folders with its libraries.
    fn library_folders(&self) -> [PathBuf; 2] {
        let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
        ["usr/lib", "lib"].map(|folder| self.root.join(folder).join(&triplet))
    }

    fn library(&self, matches: impl Fn(&str) -> bool) -> Result<PathBuf> {
        let folders = self.library_folders();
        let files = folders.iter().flat_map(fs::read_dir).flatten().flatten();
        let found = files.map(|file| file.path()).find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            matches(&name)
        });
        found.with_context(|| format!("a library is missing below {}", self.root.display()))
    }

    /// Its libibverbs, by the name that programs are linked to.
    ///
    /// # Errors
    /// The package has no such file.
    pub fn libibverbs(&self) -> Result<PathBuf> {
        self.library(|name| name == "libibverbs.so.1")
    }

    /// `program`, run by this release's dynamic linker over its libraries; what it does not have comes from the machine.
    ///
    /// # Errors
    /// The package of the C library has no dynamic linker.
    pub fn program(&self, program: &Path) -> Result<Program> {
        let linker = self.library(|name| name.starts_with("ld-linux-"))?;
        let folders = std::env::join_paths(self.library_folders())?;
        Ok(Program::new(linker)
            .args(["--library-path".into(), folders])
            .args([program]))
    }

    /// A program of its own.
    ///
    /// # Errors
    /// As [`Unpacked::program`].
    pub fn utility(&self, name: &str) -> Result<Program> {
        self.program(&self.root.join("usr/bin").join(name))
    }
}

fn unpack(suite: Suite) -> Result<Unpacked> {
    let folder = artefacts::target_folder()?
        .join("e2e-debian")
        .join(suite.codename());
    let done = folder.join("rdma-core");
    let root = folder.join("root");
    if let Ok(rdma_core) = fs::read_to_string(&done) {
        return Ok(Unpacked { root, rdma_core });
    }
    let _ = fs::remove_dir_all(&folder);
    let apt = Apt::new(&folder.join("apt"), suite)?;
    let packages = apt.download()?;
    for package in &packages {
        let (package, root) = (package.to_string_lossy(), root.to_string_lossy());
        tool::run("dpkg-deb", &["-x", &package, &root])?;
    }
    let rdma_core = packages.iter().find_map(|path| upstream_version(path));
    let rdma_core = rdma_core.context("the archive has no libibverbs1")?;
    fs::remove_dir_all(&apt.folder)?;
    // Written last: it says that the rest is complete.
    fs::write(&done, &rdma_core)?;
    Ok(Unpacked { root, rdma_core })
}

/// `56.1` from `…/libibverbs1_56.1-1_amd64.deb`.
fn upstream_version(package: &Path) -> Option<String> {
    let name = package.file_name()?.to_str()?;
    let version = name.strip_prefix("libibverbs1_")?.split('_').next()?;
    let upstream = version
        .split_once('-')
        .map_or(version, |(upstream, _)| upstream);
    Some(upstream.to_owned())
}

/// apt with folders of its own.
struct Apt {
    folder: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(folder: &Path, suite: Suite) -> Result<Self> {
        let archive = archive()?;
        let sub = |name: &str| folder.join(name).to_string_lossy().into_owned();
        for name in [
            "sources",
            "lists/partial",
            "cache/archives/partial",
            "packages",
        ] {
            fs::create_dir_all(folder.join(name))
                .with_context(|| format!("cannot make {}", sub(name)))?;
        }
        let mut sources = format!(
            "Types: deb\nURIs: {archive}\nSuites: {}\nComponents: main\n",
            suite.codename()
        );
        if Path::new(KEYRING).exists() {
            sources.push_str(&format!("Signed-By: {KEYRING}\n"));
        }
        fs::write(folder.join("sources/suite.sources"), sources)?;
        fs::write(folder.join("status"), "")?;
        let settings = [
            ("Dir::Etc::sourcelist", "/dev/null".to_owned()),
            ("Dir::Etc::sourceparts", sub("sources")),
            ("Dir::State::lists", sub("lists")),
            ("Dir::State::status", sub("status")),
            ("Dir::Cache", sub("cache")),
            ("Acquire::Languages", "none".to_owned()),
            (
                "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled",
                "false".to_owned(),
            ),
            ("Acquire::http::Timeout", "15".to_owned()),
            ("Acquire::https::Timeout", "15".to_owned()),
            ("Acquire::Retries", "1".to_owned()),
            // A list that could not be had is an error here, and not a warning.
            ("APT::Update::Error-Mode", "any".to_owned()),
            // Our folders may lie where the user _apt cannot go.
            ("APT::Sandbox::User", "root".to_owned()),
        ];
        let options = settings
            .into_iter()
            .flat_map(|(name, value)| ["-o".to_owned(), format!("{name}={value}")]);
        Ok(Self {
            folder: folder.to_owned(),
            options: options.collect(),
        })
    }

    /// The files of the packages.
    fn download(&self) -> Result<Vec<PathBuf>> {
        self.run(&["update"])?;
        let packages = self.folder.join("packages");
        let words: Vec<&str> = ["download"].into_iter().chain(PACKAGES).collect();
        self.run(&words)?;
        let files = fs::read_dir(&packages)?.flatten().map(|file| file.path());
        let files: Vec<PathBuf> = files.collect();
        ensure!(
            files.len() == PACKAGES.len(),
            "{} packages instead of {}",
            files.len(),
            PACKAGES.len()
        );
        Ok(files)
    }

    fn run(&self, arguments: &[&str]) -> Result<()> {
        // apt-get download writes to the current folder, and `Program` has none to set.
        let script = "cd \"$1\" && shift && exec apt-get --quiet \"$@\"";
        let outcome = Program::new("sh")
            .args(["-c", script, "sh"])
            .args([self.folder.join("packages")])
            .args(&self.options)
            .args(arguments)
            .limit(APT_LIMIT)
            .run()?;
        if outcome.succeeded() {
            return Ok(());
        }
        let said = outcome.stderr.lines().find(|line| line.starts_with("E:"));
        bail!(
            "apt-get {} failed: {}",
            arguments[0],
            said.unwrap_or("it took too long")
        )
    }
}

/// Where this machine gets Debian's packages from.
fn archive() -> Result<String> {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    ensure!(
        system.lines().any(|line| line == "ID=debian"),
        "this is no Debian, so its package sources have none"
    );
    tool::require("dpkg-deb")?;
    let format = "$(REPO_URI) $(RELEASE)";
    let targets = tool::run(
        "apt-get",
        &[
            "indextargets",
            "--no-release-info",
            "--format",
            format,
            "Created-By: Packages",
        ],
    )?;
    let archive = targets.lines().find_map(|line| {
        let (uri, release) = line.split_once(' ')?;
        (!release.contains("security")).then(|| uri.to_owned())
    });
    archive.context("apt has no source of Debian's packages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_off_file_names() {
        let version = |name: &str| upstream_version(Path::new(name));
        assert_eq!(
            version("/x/libibverbs1_65.0-1.1_amd64.deb").as_deref(),
            Some("65.0")
        );
        assert_eq!(
            version("/x/libibverbs1_44.0_arm64.deb").as_deref(),
            Some("44.0")
        );
        assert_eq!(version("/x/ibverbs-utils_44.0-2_amd64.deb"), None);
    }
}
