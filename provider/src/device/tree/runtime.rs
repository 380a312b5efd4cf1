//! Where trees live, and how they come there: complete or not at all.

use super::{Contents, Node, name_of, with_root};
use nix::unistd::Uid;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Trees that are kept though no process uses them: every network namespace and every set of addresses makes one.
pub(super) const MAX_UNUSED_TREES: usize = 16;
/// Nothing younger than this is removed: a launcher may be about to use it.
const REMOVABLE_AFTER: Duration = Duration::from_secs(600);
/// Attempts to put a tree in place while others do the same, or remove a damaged one.
const MAX_ATTEMPTS: u32 = 8;
/// Others may read a tree, for a program that gives up its rights after it was started; only its owner may write.
const MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// Who can write to any of it decides what code runs in this user's programs.
const WRITTEN_BY_OTHERS: u32 = 0o022;
/// What the owner must be able to do with a directory, and with a file.
const OWNER: u32 = 0o700;
const OWNER_READS: u32 = 0o400;
/// Prefix of trees in the making, and of those that are complete.
const UNFINISHED: &str = ".new-";
pub(super) const FINISHED: &str = "tree-";

fn context<T>(what: &str, path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| {
        io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
    })
}

/// The directory of this user's trees: `$XDG_RUNTIME_DIR/metaroce`, or `/tmp/metaroce-<uid>` where there is no runtime
/// directory of the user's own. Made if need be.
///
/// # Errors
/// It cannot be made, or it is somebody else's, or others can write to it.
pub fn runtime_directory() -> io::Result<PathBuf> {
    let user = Uid::effective();
    let xdg = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // After su or sudo the variable may still name the directory of the former user.
    let own = xdg.filter(|path| {
        path.is_absolute() && fs::metadata(path).is_ok_and(|m| m.uid() == user.as_raw())
    });
    if let Some(path) = own.map(|path| path.join("metaroce"))
        && own_directory(&path, user).is_ok()
    {
        return Ok(path);
    }
    let path = PathBuf::from(format!("/tmp/metaroce-{user}"));
    own_directory(&path, user)?;
    Ok(path)
}

/// Makes `path`, or checks that it is a directory of `user` into which nobody else can write.
pub(super) fn own_directory(path: &Path, user: Uid) -> io::Result<()> {
    match make_directory(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return context("cannot make the directory", path, Err(error)),
    }
    let found = context("cannot examine", path, fs::symlink_metadata(path))?;
    let refuse = |why: String| {
        let text = format!(
            "{} {why}; remove it, or set XDG_RUNTIME_DIR to a directory of your own",
            path.display()
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    };
    if !found.is_dir() {
        return refuse("is not a directory".into());
    }
    if found.uid() != user.as_raw() {
        return refuse(format!(
            "belongs to user {}, not to user {user}",
            found.uid()
        ));
    }
    if found.mode() & WRITTEN_BY_OTHERS != 0 {
        return refuse(format!(
            "can be written by other users (mode {:03o})",
            found.mode() & 0o777
        ));
    }
    Ok(())
}

/// Makes a directory into which this user can write and nobody else, whatever the umask says. One into which nobody can
/// write would stay, and be in the way when the umask is another.
fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(MODE).create(path)?;
    let mode = fs::symlink_metadata(path)?.mode();
    match mode & OWNER {
        OWNER => Ok(()),
        _ => fs::set_permissions(path, Permissions::from_mode(mode & MODE | OWNER)),
    }
}

/// Makes a file that this user can read and nobody else can write, whatever the umask says.
fn make_file(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    let mode = file.metadata()?.mode();
    match mode & OWNER_READS {
        OWNER_READS => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(mode & FILE_MODE | OWNER_READS)),
    }
}

/// Identity of the network namespace that this process is in; 0 where `/proc` does not say.
pub fn network_namespace() -> u64 {
    fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// The network namespace that a tree was made for, by its name; `None` for a folder that is named otherwise.
pub fn namespace_of(root: &Path) -> Option<u64> {
    let name = root.file_name()?.to_str()?.strip_prefix(FINISHED)?;
    name.split_once('-')?.0.parse().ok()
}

/// Puts a tree below `directory`, unless the same one is there already, and returns its path.
///
/// # Errors
/// It cannot be written.
pub fn publish(contents: &Contents, directory: &Path, namespace: u64) -> io::Result<PathBuf> {
    remove_stale(directory);
    let root = directory.join(name_of(contents, namespace));
    let mut last = None;
    for _ in 0..MAX_ATTEMPTS {
        if is_intact(contents, &root) {
            // Best effort: the time says that the tree is in use.
            let _ = File::open(&root).and_then(|file| file.set_modified(SystemTime::now()));
            return Ok(root);
        }
        let unfinished = unfinished_name(directory);
        let result =
            write(contents, &unfinished, &root).and_then(|()| fs::rename(&unfinished, &root));
        if let Err(error) = result {
            let _ = fs::remove_dir_all(&unfinished);
            // Something is in the place: another launcher's tree, which the next turn accepts, or a damaged one (a cleaner
            // of /tmp was at it), which is moved away in one step and then removed.
            if is_intact(contents, &root) {
                continue;
            }
            let damaged = unfinished_name(directory);
            if fs::rename(&root, &damaged).is_ok() {
                let _ = fs::remove_dir_all(&damaged);
            }
            last = Some(error);
        }
    }
    let error = last.unwrap_or_else(|| io::Error::other("it keeps changing"));
    let what = "no device tree (XDG_RUNTIME_DIR may name another place): cannot write";
    context(what, &root, Err(error))
}

fn unfinished_name(directory: &Path) -> PathBuf {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    directory.join(format!("{UNFINISHED}{}-{count}", std::process::id()))
}

/// Writes the tree at `place`; `root` is where it will be.
fn write(contents: &Contents, place: &Path, root: &Path) -> io::Result<()> {
    make_directory(place)?;
    for (path, node) in contents {
        for parent in parents(path) {
            match make_directory(&place.join(parent)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let path = place.join(path);
        match node {
            Node::File(text) => make_file(&path, &with_root(text, root))?,
            Node::Link(target) => symlink(target, &path)?,
        }
    }
    Ok(())
}

/// The directories above `path`, the outermost first.
fn parents(path: &Path) -> impl Iterator<Item = &Path> {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    above
        .into_iter()
        .rev()
        .filter(|one| !one.as_os_str().is_empty())
}

fn is_intact(contents: &Contents, root: &Path) -> bool {
    let is_ours = |path: &Path| {
        fs::symlink_metadata(root.join(path))
            .is_ok_and(|found| found.is_symlink() || found.mode() & WRITTEN_BY_OTHERS == 0)
    };
    contents
        .keys()
        .flat_map(|path| path.ancestors())
        .all(is_ours)
        && is_written(contents, root)
}

fn is_written(contents: &Contents, root: &Path) -> bool {
    contents.iter().all(|(path, node)| {
        let path = root.join(path);
        match node {
            Node::File(text) => {
                fs::read_to_string(path).is_ok_and(|found| found == with_root(text, root))
            }
            Node::Link(target) => fs::read_link(path).is_ok_and(|found| found == *target),
        }
    })
}

/// Removes unfinished trees of launchers that died, and the trees that were not used for longest if there are too many.
/// Failures leave that to the next launcher.
fn remove_stale(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let mut trees = Vec::new();
    for entry in entries.flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let Ok(modified) = modified else { continue };
        let removable = modified.elapsed().is_ok_and(|age| age > REMOVABLE_AFTER);
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(UNFINISHED) && removable {
            let _ = fs::remove_dir_all(entry.path());
        } else if name.to_string_lossy().starts_with(FINISHED) {
            trees.push((modified, removable, entry.path()));
        }
    }
    if trees.len() <= MAX_UNUSED_TREES {
        return;
    }
    let used = environments();
    trees.sort();
    let surplus = trees.len() - MAX_UNUSED_TREES;
    for (_, removable, path) in trees.into_iter().take(surplus) {
        if removable && !contains(&used, path.as_os_str().as_bytes()) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// The environments of all processes that this user may look at, by which they name their trees.
fn environments() -> Vec<u8> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| fs::read(process.path().join("environ")).ok())
        .flatten()
        .collect()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
