//! Contexts: `ibv_open_device` and `ibv_close_device` as a provider sees them.
//!
//! libibverbs allocates `verbs_context`, at whose end `ibv_context` lies, at an offset that depends on the release. So the
//! allocation is laid out from `ibv_context`: [`FRONT_BYTES`] before it are enough for any `verbs_context`, and our own
//! part follows behind it, at the same place in every release.

use super::boundary::{guarded, os_error, pointer};
use super::hooks;
use super::libraries::Library;
use crate::abi::{SMALLEST_CONTEXT_OFFSET_BYTES, ibv_context, ibv_device, verbs_device};
use crate::device::Device;
use crate::engine::config::Settings;
use crate::verbs;
use metaroce_udp::explain;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Room before `ibv_context`: `verbs_context` grows there, by 8 bytes an op, and is 368 bytes long at most today.
const FRONT_BYTES: usize = 2048;
/// Distance of our own part from `ibv_context`, which is 328 bytes long.
const OWN_OFFSET_BYTES: usize = 512;
/// Size of the whole allocation.
const ALLOCATION_BYTES: usize = FRONT_BYTES + OWN_OFFSET_BYTES + size_of::<Own>();
/// Size of the allocation by which the offset is probed.
const PROBE_BYTES: usize = 2 * FRONT_BYTES;

/// Our part of a context. `None` before it is open and after it is closed.
type Own = Option<Arc<verbs::Context>>;

const _: () = assert!(
    size_of::<ibv_context>() <= OWN_OFFSET_BYTES
        && OWN_OFFSET_BYTES.is_multiple_of(align_of::<Own>())
);

fn own_part(context: *mut ibv_context) -> *mut Own {
    context.cast::<u8>().wrapping_add(OWN_OFFSET_BYTES).cast()
}

/// The open device behind an `ibv_context`.
///
/// # Errors
/// `EINVAL` if the context is closed.
///
/// # Safety
/// `context` is one that `alloc_context` returned and that is not closed during `'a`, as the rules of verbs demand of the
/// program.
pub(crate) unsafe fn context_of<'a>(
    context: *mut ibv_context,
) -> io::Result<&'a Arc<verbs::Context>> {
    // SAFETY: our part lies behind every context that we made.
    let own = unsafe { &*own_part(context) };
    own.as_ref().ok_or_else(|| os_error(libc::EINVAL))
}

/// `verbs_device_ops.alloc_context`: returns the `verbs_context`. `cmd_fd` passes to the context, also in failure.
pub(super) unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut c_void {
    pointer(|| {
        // SAFETY: libibverbs passes one of our devices, and hands over the descriptor.
        unsafe { open(device, OwnedFd::from_raw_fd(cmd_fd)) }
    })
}

/// # Safety
/// `device` is one of our devices.
unsafe fn open(device: *mut ibv_device, cmd_fd: OwnedFd) -> io::Result<*mut c_void> {
    // SAFETY: by the contract; the device's strings end with NUL.
    let (library, opened) = unsafe {
        let library = Library::of_device(device);
        let name = CStr::from_ptr((*device).name.as_ptr());
        let directory = CStr::from_ptr((*device).ibdev_path.as_ptr());
        (
            library,
            open_device(name, directory)
                .inspect_err(|error| log::error!("cannot open {name:?}: {error}"))?,
        )
    };
    // SAFETY: a device of this copy.
    let offset_bytes = unsafe { context_offset(library, device, &cmd_fd)? };
    let async_fd = duplicate(opened.async_fd())?;
    let port = opened.port;
    let command_fd = cmd_fd.as_raw_fd();
    // SAFETY: a device of this copy; the sizes leave room for `verbs_context` in front and our part behind.
    let base = unsafe {
        library.new_context(
            device,
            command_fd,
            ALLOCATION_BYTES,
            FRONT_BYTES - offset_bytes,
        )
    };
    if base.is_null() {
        return Err(io::Error::last_os_error());
    }
    // From here on the descriptor is the context's: `verbs_uninit_context` closes it.
    let command_fd = std::os::fd::IntoRawFd::into_raw_fd(cmd_fd);
    // SAFETY: the allocation is ours alone until it is returned, zeroed, and large enough for both parts.
    unsafe {
        let context = base.add(FRONT_BYTES).cast::<ibv_context>();
        let verbs_context = base.add(FRONT_BYTES - offset_bytes).cast::<c_void>();
        library.set_ops(verbs_context);
        own_part(context).write(Some(opened));
        // Set here, so that libibverbs does not ask the kernel for one.
        (*context).async_fd = std::os::fd::IntoRawFd::into_raw_fd(async_fd);
        (*context).num_comp_vectors = verbs::limits::COMPLETION_VECTORS as c_int;
        if !hooks::own(command_fd, port) {
            free_context(context);
            return Err(os_error(libc::EMFILE));
        }
        Ok(verbs_context)
    }
}

fn open_device(name: &CStr, directory: &CStr) -> io::Result<Arc<verbs::Context>> {
    let text = name.to_str().map_err(|_| os_error(libc::EINVAL))?;
    // A wrong value fails the open, where its message is seen, and not the first queue pair.
    Settings::from_environment()?;
    let path = Path::new(OsStr::from_bytes(directory.to_bytes()));
    let device = match Device::from_sysfs(text, path) {
        Ok(device) => device,
        Err(sysfs) => {
            Device::by_name(text).map_err(|error| {
                let text = format!("{sysfs}; {error}");
                match sysfs.kind() {
                    // ENODEV, and not that of a file.
                    io::ErrorKind::NotFound => io::Error::new(io::ErrorKind::NotFound, text),
                    _ => explain(&sysfs, text),
                }
            })?
        }
    };
    verbs::Context::open(Arc::new(device))
}

fn duplicate(fd: c_int) -> io::Result<OwnedFd> {
    // SAFETY: duplicates a descriptor that the caller holds; the result is new and ours.
    unsafe {
        let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
        if copy < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(OwnedFd::from_raw_fd(copy))
        }
    }
}

/// Where `ibv_context` lies in the `verbs_context` of this copy: probed once, by letting it make a context and looking for
/// the device's address, which is the first member of `ibv_context`.
///
/// # Safety
/// `device` is a device of this copy.
unsafe fn context_offset(
    library: &Library,
    device: *mut ibv_device,
    cmd_fd: &OwnedFd,
) -> io::Result<usize> {
    let known = library.context_offset_bytes.load(Ordering::Acquire);
    if known != 0 {
        return Ok(known);
    }
    let spare_fd = duplicate(cmd_fd.as_raw_fd())?;
    // SAFETY: a device of this copy; the allocation is read within its size, and given back as it came.
    let found = unsafe {
        let probe = library.new_context(device, spare_fd.as_raw_fd(), PROBE_BYTES, 0);
        if probe.is_null() {
            return Err(io::Error::last_os_error());
        }
        let _closed_by_uninit = std::os::fd::IntoRawFd::into_raw_fd(spare_fd);
        let is_device =
            |offset: &usize| probe.add(*offset).cast::<*mut ibv_device>().read() == device;
        let found = (SMALLEST_CONTEXT_OFFSET_BYTES..FRONT_BYTES)
            .step_by(8)
            .find(is_device);
        library.uninit_context(probe.cast());
        libc::free(probe.cast());
        found
    };
    let Some(offset_bytes) = found else {
        log::error!(
            "{}: ibv_context not found in verbs_context",
            library.file.to_string_lossy()
        );
        return Err(os_error(libc::ENOSYS));
    };
    if offset_bytes != library.release.context_offset_bytes {
        log::info!(
            "{}: ibv_context at offset {offset_bytes}, {} expected",
            library.file.to_string_lossy(),
            library.release.context_offset_bytes
        );
    }
    library
        .context_offset_bytes
        .store(offset_bytes, Ordering::Release);
    Ok(offset_bytes)
}

/// The op `free_context`: closes a context.
pub(super) unsafe extern "C" fn free_context(context: *mut ibv_context) {
    // SAFETY: libibverbs passes a context of ours, for the last time; its device is held until `uninit_context`.
    unsafe {
        let library = Library::of_device((*context).device);
        hooks::disown((*context).cmd_fd);
        let own = std::ptr::replace(own_part(context), None);
        guarded((), || drop(own));
        let offset_bytes = library.context_offset_bytes.load(Ordering::Acquire);
        library.uninit_context(context.cast::<u8>().sub(offset_bytes).cast());
        libc::free(context.cast::<u8>().sub(FRONT_BYTES).cast());
    }
}

/// A context without any libibverbs: only `ibv_context`, zeroed, and our own part behind it.
#[cfg(feature = "entry-points")]
pub(super) fn new_bare(opened: Arc<verbs::Context>) -> *mut ibv_context {
    // SAFETY: the layout is not empty; the fresh allocation has room for both parts.
    unsafe {
        let context = std::alloc::alloc_zeroed(BARE_LAYOUT).cast::<ibv_context>();
        assert!(!context.is_null(), "out of memory");
        own_part(context).write(Some(opened));
        context
    }
}

/// Closes what [`new_bare`] made.
///
/// # Safety
/// `context` is one that [`new_bare`] returned and that nobody uses any more.
#[cfg(feature = "entry-points")]
pub(super) unsafe fn free_bare(context: *mut ibv_context) {
    // SAFETY: the caller's promise.
    unsafe {
        drop(std::ptr::replace(own_part(context), None));
        std::alloc::dealloc(context.cast(), BARE_LAYOUT);
    }
}

#[cfg(feature = "entry-points")]
const BARE_LAYOUT: std::alloc::Layout =
    std::alloc::Layout::new::<[u64; (OWN_OFFSET_BYTES + size_of::<Own>()).div_ceil(8)]>();

const _: () = assert!(std::mem::offset_of!(verbs_device, device) == 0);
