//! Which paths are redirected, and to where.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU8, Ordering};

/// Environment variable with the absolute path of the tree.
const TREE_VARIABLE: *const c_char = c"METAROCE_TREE".as_ptr();

/// Longest path that the kernel takes, with its NUL.
const PATH_BYTES: usize = libc::PATH_MAX as usize;
/// Room that the tree's own path leaves for what is looked up in it.
const LOOKUP_BYTES: usize = 512;

/// The redirected directories. A path is redirected if it is one of these or lies below it.
const DIRECTORIES: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/dev/infiniband",
    b"/etc/libibverbs.d",
];

/// The path of the tree, without NUL, and its length.
struct Tree {
    path: UnsafeCell<[u8; PATH_BYTES]>,
    length: UnsafeCell<usize>,
}

// SAFETY: written once, by whoever moves STATE from UNKNOWN to STARTING; read only when STATE is ACTIVE.
unsafe impl Sync for Tree {}

static TREE: Tree = Tree {
    path: UnsafeCell::new([0; PATH_BYTES]),
    length: UnsafeCell::new(0),
};

const UNKNOWN: u8 = 0;
const STARTING: u8 = 1;
const INACTIVE: u8 = 2;
const ACTIVE: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Reads the environment, once.
pub(crate) fn initialise() {
    if STATE
        .compare_exchange(UNKNOWN, STARTING, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    // SAFETY: the name ends with NUL; the environment is not being changed while libraries are loaded, nor do we keep
    // the pointer. The tree is ours by the state STARTING.
    let found = unsafe {
        let value = libc::getenv(TREE_VARIABLE);
        !value.is_null() && *value == b'/' as c_char && {
            let length = libc::strlen(value);
            let fits = length < PATH_BYTES - LOOKUP_BYTES;
            if fits {
                std::ptr::copy_nonoverlapping(
                    value.cast::<u8>(),
                    TREE.path.get().cast::<u8>(),
                    length,
                );
                *TREE.length.get() = length;
            }
            fits
        }
    };
    // Release: publishes the tree's path to those who see ACTIVE.
    STATE.store(if found { ACTIVE } else { INACTIVE }, Ordering::Release);
}

/// Whether there is a tree.
pub(crate) fn is_active() -> bool {
    if STATE.load(Ordering::Acquire) == UNKNOWN {
        initialise();
    }
    STATE.load(Ordering::Acquire) == ACTIVE
}

/// Whether `path` is `directory` or lies below it. Reads no byte behind the first that differs.
///
/// # Safety
/// `path` ends with NUL.
unsafe fn is_within(path: *const c_char, directory: &[u8]) -> bool {
    let mut at = path.cast::<u8>();
    for byte in directory {
        // SAFETY: every byte before this one was equal to one of `directory`, so not NUL.
        unsafe {
            if *at != *byte {
                return false;
            }
            at = at.add(1);
        }
    }
    // SAFETY: as above.
    matches!(unsafe { *at }, 0 | b'/')
}

/// Whether `path` is to be redirected. The first two bytes decide for nearly all paths.
///
/// # Safety
/// `path` is NULL or ends with NUL.
#[inline(always)]
unsafe fn is_hit(path: *const c_char) -> bool {
    // SAFETY: by the contract; the second byte exists if the first is not NUL. Rust's own standard library passes NULL
    // to statx, to find out whether the kernel has it, and the C library's headers allow no such thing: compare here.
    unsafe {
        if path.is_null() || *path != b'/' as c_char {
            return false;
        }
        match *path.add(1) as u8 {
            b's' | b'd' | b'e' => is_redirected(path),
            _ => false,
        }
    }
}

/// # Safety
/// `path` ends with NUL.
unsafe fn is_redirected(path: *const c_char) -> bool {
    // SAFETY: by the contract.
    DIRECTORIES
        .iter()
        .any(|directory| unsafe { is_within(path, directory) })
        && is_active()
}

/// Calls `call` with `path`, or with what stands for it in the tree.
///
/// # Safety
/// `path` is NULL or ends with NUL.
#[inline(always)]
pub(crate) unsafe fn with<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: by the contract.
    unsafe {
        if is_hit(path) {
            with_redirected(path, call)
        } else {
            call(path)
        }
    }
}

/// The only place that needs a large stack: thread stacks and signal stacks may be small.
///
/// # Safety
/// `path` ends with NUL, and there is a tree.
#[cold]
#[inline(never)]
unsafe fn with_redirected<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    let mut buffer = std::mem::MaybeUninit::<[u8; PATH_BYTES]>::uninit();
    // SAFETY: the tree is not written any more once it is active; both parts fit into the buffer, or the path goes
    // through unchanged and the kernel says that it is too long.
    unsafe {
        let start = buffer.as_mut_ptr().cast::<u8>();
        let tree_length = *TREE.length.get();
        let path_length = libc::strlen(path);
        if path_length >= PATH_BYTES - tree_length {
            return call(path);
        }
        std::ptr::copy_nonoverlapping(TREE.path.get().cast::<u8>(), start, tree_length);
        std::ptr::copy_nonoverlapping(path.cast::<u8>(), start.add(tree_length), path_length + 1);
        call(start.cast())
    }
}

/// Sets errno of this thread.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the address of the calling thread's errno is valid for the life of the thread.
    unsafe { *libc::__errno_location() = value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{CStr, CString};

    fn hit(path: &str) -> bool {
        let path = CString::new(path).expect("no NUL");
        // SAFETY: ends with NUL.
        DIRECTORIES
            .iter()
            .any(|directory| unsafe { is_within(path.as_ptr(), directory) })
    }

    #[test]
    fn only_the_four_directories_and_what_is_below() {
        for path in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband/metaroce0/ports/1/gids/0",
            "/sys/class/infiniband_verbs",
            "/sys/class/infiniband_verbs/uverbs0",
            "/dev/infiniband",
            "/dev/infiniband/uverbs0",
            "/etc/libibverbs.d/x",
        ] {
            assert!(hit(path), "{path}");
        }
        for path in [
            "",
            "/",
            "/sys",
            "/sys/class",
            "/sys/class/infinibandx",
            "/sys/class/infiniband_mad/abi_version",
            "/sys/class/infiniband_verbsx",
            "/dev/infiniband0",
            "/dev/inf",
            "/dev/null",
            "/etc/libibverbs",
            "/etc/libibverbs.d.bak",
            "sys/class/infiniband",
        ] {
            assert!(!hit(path), "{path}");
        }
    }

    /// One test, because the state is the process's.
    #[test]
    fn a_redirected_path_lies_below_the_tree_and_a_null_path_goes_through() {
        let name = |path: *const c_char| {
            // SAFETY: `with` passes a path that ends with NUL.
            unsafe {
                with(path, |path| {
                    CStr::from_ptr(path).to_str().expect("UTF-8").to_owned()
                })
            }
        };
        // SAFETY: the tests of this file are the only users of this variable, and no other test reads the environment.
        unsafe { std::env::set_var("METAROCE_TREE", "/tmp/tree") };
        assert_eq!(
            name(c"/dev/infiniband/uverbs0".as_ptr()),
            "/tmp/tree/dev/infiniband/uverbs0"
        );
        assert_eq!(name(c"/dev/null".as_ptr()), "/dev/null");
        assert_eq!(name(c"".as_ptr()), "");
        // SAFETY: NULL is allowed.
        assert!(unsafe { with(std::ptr::null(), |path| path.is_null()) });

        let long =
            CString::new(format!("/dev/infiniband/{}", "x".repeat(PATH_BYTES))).expect("no NUL");
        assert_eq!(
            name(long.as_ptr()).len(),
            long.as_bytes().len(),
            "too long for the kernel anyway"
        );
    }
}
