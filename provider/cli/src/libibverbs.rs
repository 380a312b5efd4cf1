//! The libibverbs that the dynamic linker would load, and which release it is.
//!
//! Looked for in the directories that the dynamic linker looks in, without running `ldconfig`, which is often out of the
//! path of ordinary users. Programs that bring a copy of their own do not need the system's.

use std::fs;
use std::path::{Path, PathBuf};

/// File name that programs are linked to.
pub(crate) const FILE: &str = "libibverbs.so.1";

/// Directories in which the dynamic linker looks without being told.
const DEFAULT_DIRECTORIES: [&str; 6] = [
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
];

/// Depth of `include` lines in the configuration of the dynamic linker that are followed.
const MAX_INCLUDE_DEPTH: u32 = 4;

/// A libibverbs on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its path.
    pub(crate) path: PathBuf,
    /// n of the version definition `IBVERBS_PRIVATE_n`.
    pub(crate) private_abi: u32,
    /// Highest n of the version definitions `IBVERBS_1.n`.
    pub(crate) public_minor: u32,
}

/// The first one that the dynamic linker would find.
pub(crate) fn find() -> Option<Found> {
    search_path()
        .iter()
        .find_map(|directory| examine(&directory.join(FILE)))
}

fn examine(path: &Path) -> Option<Found> {
    let bytes = fs::read(path).ok()?;
    Some(Found {
        path: path.canonicalize().unwrap_or_else(|_| path.to_owned()),
        private_abi: numbers_after(&bytes, b"IBVERBS_PRIVATE_")
            .max()
            .unwrap_or(0),
        public_minor: numbers_after(&bytes, b"IBVERBS_1.").max().unwrap_or(0),
    })
}

/// The numbers that follow `prefix` wherever it occurs: version names lie in the file's string table as they are.
fn numbers_after<'a>(bytes: &'a [u8], prefix: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
    let starts = bytes
        .windows(prefix.len())
        .enumerate()
        .filter(move |(_, window)| *window == prefix);
    starts.filter_map(move |(start, _)| {
        let rest = &bytes[start + prefix.len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
    })
}

fn search_path() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = Vec::new();
    if let Some(list) = std::env::var_os("LD_LIBRARY_PATH") {
        directories.extend(std::env::split_paths(&list).filter(|path| path.is_absolute()));
    }
    configured(
        Path::new("/etc/ld.so.conf"),
        MAX_INCLUDE_DEPTH,
        &mut directories,
    );
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    directories.extend(["/lib", "/usr/lib"].map(|directory| Path::new(directory).join(&triplet)));
    directories.extend(DEFAULT_DIRECTORIES.map(PathBuf::from));
    directories
}

/// Adds the directories of a configuration file of the dynamic linker.
fn configured(file: &Path, depth: u32, directories: &mut Vec<PathBuf>) {
    let Ok(text) = fs::read_to_string(file) else {
        return;
    };
    for line in text.lines().map(str::trim) {
        if line.starts_with('/') {
            directories.push(line.into());
        } else if let (Some(pattern), 1..) = (line.strip_prefix("include "), depth) {
            // The only pattern in use: all files of a directory with one suffix.
            let pattern = Path::new(pattern.trim());
            let Some(directory) = pattern.parent() else {
                continue;
            };
            let suffix = pattern.extension();
            let Ok(entries) = fs::read_dir(directory) else {
                continue;
            };
            let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            files.retain(|path| path.extension() == suffix);
            files.sort();
            files
                .iter()
                .for_each(|path| configured(path, depth - 1, directories));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_off_the_file() {
        let bytes =
            b"\0IBVERBS_1.0\0IBVERBS_1.14\0IBVERBS_1.9\0IBVERBS_PRIVATE_34\0IBVERBS_PRIVATE_\0";
        assert_eq!(numbers_after(bytes, b"IBVERBS_PRIVATE_").max(), Some(34));
        assert_eq!(numbers_after(bytes, b"IBVERBS_1.").max(), Some(14));
        assert_eq!(numbers_after(bytes, b"RDMACM_").max(), None);
    }
}
