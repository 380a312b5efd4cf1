//! The copies of libibverbs in this process.
//!
//! There may be several: the distribution's, and copies that wheels and tools bring along under other names and load
//! with `dlopen`. A copy is any object that *defines* a version `IBVERBS_PRIVATE_n`, whatever it is called. Each has its
//! own state (drivers, devices), so each gets a [`Library`] of its own, with its own `verbs_device_ops`: by the pointer
//! to that table, which libibverbs keeps in every device, we know later through which copy a call came.

use super::elf::{self, Object};
use super::op_tables::{self, Release};
use super::{ops, register};
use crate::abi::{
    VerbsInitAndAllocContext, VerbsRegisterDriver, VerbsSetOps, VerbsUninitContext, ibv_device,
    verbs_device, verbs_device_ops,
};
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The version definitions of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Versions {
    /// n of `IBVERBS_PRIVATE_n`.
    pub(super) private_abi: u32,
    /// Highest n of `IBVERBS_1.n`.
    pub(super) public_minor: u32,
}

impl Versions {
    /// Reads them off the names of an object's version definitions; `None` if this is no libibverbs.
    pub(super) fn from_names<'a>(names: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut versions = Self::default();
        for name in names {
            if let Some(minor) = name.strip_prefix("IBVERBS_1.").and_then(|n| n.parse().ok()) {
                versions.public_minor = versions.public_minor.max(minor);
            } else if let Some(abi) = name
                .strip_prefix("IBVERBS_PRIVATE_")
                .and_then(|n| n.parse().ok())
            {
                versions.private_abi = abi;
            }
        }
        (versions.private_abi != 0).then_some(versions)
    }
}

/// A copy of libibverbs as the walk over the loaded objects finds it.
pub(super) struct Found {
    pub(super) file: CString,
    pub(super) object: Object,
    pub(super) versions: Versions,
}

/// Every copy of libibverbs that is loaded now.
pub(super) fn find_all() -> Vec<Found> {
    let mut found = Vec::new();
    elf::with_loaded_objects(&mut |file, object| {
        // SAFETY: inside the walk the object is loaded.
        let names = unsafe { object.defined_versions() };
        if let Some(versions) = Versions::from_names(names.iter().map(String::as_str)) {
            found.push(Found {
                file: file.to_owned(),
                object: object.clone(),
                versions,
            });
        }
    });
    found
}

/// A copy of libibverbs with which we are registered. Lives for the rest of the process: the copy keeps pointers to it.
#[repr(C)]
pub(super) struct Library {
    /// What the copy was given; first, so that a pointer to it is a pointer to the whole.
    device_ops: verbs_device_ops,
    /// The loaded object.
    pub(super) object: Object,
    /// File name, for messages.
    pub(super) file: CString,
    /// The layout.
    pub(super) release: &'static Release,
    /// Our ops in that layout.
    ops: Vec<*const c_void>,
    /// Where `ibv_context` lies in `verbs_context`, once probed; 0 before.
    pub(super) context_offset_bytes: AtomicUsize,
    /// Set when the copy knows us.
    pub(super) registered: AtomicBool,
    init_and_alloc_context: VerbsInitAndAllocContext,
    set_ops: VerbsSetOps,
    uninit_context: VerbsUninitContext,
    register_driver: VerbsRegisterDriver,
    /// A copy that knows us stays loaded for ever. Otherwise dlclose by the program would unload it under our pointers, and
    /// the copy that is loaded next would not find us, because our constructor runs only once. A copy that is refused is
    /// let go.
    _pin: Pin,
}

// SAFETY: the pointers are to functions and to tables of an object that stays loaded, and a handle that any thread may use;
// they are only read.
unsafe impl Sync for Library {}
// SAFETY: as above.
unsafe impl Send for Library {}

/// Why a copy is not served.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Another thread unloaded it since it was found.
    Gone,
    /// For the log.
    Unfit(String),
}

/// Keeps a loaded object loaded, until it is dropped.
struct Pin(*mut c_void);

impl Pin {
    /// `None` if no object of this name is loaded.
    fn loaded(file: &CStr) -> Option<Self> {
        // SAFETY: RTLD_NOLOAD runs no constructors; the name ends with NUL.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// The symbol `name` if it lies in the object loaded at `base`: `dlsym` also looks into what the object needs.
    fn own_symbol(&self, name: &CStr, base: usize) -> Result<*mut c_void, Refusal> {
        // SAFETY: a live handle and a name that ends with NUL.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if !symbol.is_null() && object_base_of(symbol) == Some(base) {
            return Ok(symbol);
        }
        Err(Refusal::Unfit(format!(
            "it has the versions of a libibverbs but not its function {}",
            name.to_string_lossy()
        )))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used any more.
        unsafe { libc::dlclose(self.0) };
    }
}

impl Library {
    /// Looks up what we need of a copy, and pins it in memory for as long as the result lives.
    ///
    /// # Errors
    /// It is not (any more) the object that was found, lacks one of the four functions, or has a layout that is not known:
    /// then it is left alone.
    pub(super) fn open(found: &Found) -> Result<Box<Self>, Refusal> {
        let Versions {
            private_abi,
            public_minor,
        } = found.versions;
        let release = Release::find(private_abi, public_minor).ok_or_else(|| {
            Refusal::Unfit(format!(
                "its layout (IBVERBS_PRIVATE_{private_abi}, IBVERBS_1.{public_minor}) is not known to this metaroce; use \
                 {}, or a newer metaroce",
                op_tables::SERVED
            ))
        })?;
        let pin = Pin::loaded(&found.file).ok_or(Refusal::Gone)?;
        let base = found.object.base();
        let symbol = |name: &CStr| pin.own_symbol(name, base);
        let register_name = CString::new(format!("verbs_register_driver_{private_abi}"))
            .map_err(|_| Refusal::Gone)?;
        let init = symbol(c"_verbs_init_and_alloc_context")?;
        let set_ops = symbol(c"verbs_set_ops")?;
        let uninit = symbol(c"verbs_uninit_context")?;
        let register = symbol(&register_name)?;
        // SAFETY: the symbols are those of libibverbs, by name and by the object that they lie in, whose types in every
        // known release are these.
        unsafe {
            Ok(Box::new(Self {
                device_ops: register::device_ops(),
                object: found.object.clone(),
                file: found.file.clone(),
                release,
                ops: ops::laid_out(&release.op_table()),
                context_offset_bytes: AtomicUsize::new(0),
                registered: AtomicBool::new(false),
                init_and_alloc_context: std::mem::transmute::<*mut c_void, VerbsInitAndAllocContext>(
                    init,
                ),
                set_ops: std::mem::transmute::<*mut c_void, VerbsSetOps>(set_ops),
                uninit_context: std::mem::transmute::<*mut c_void, VerbsUninitContext>(uninit),
                register_driver: std::mem::transmute::<*mut c_void, VerbsRegisterDriver>(register),
                _pin: pin,
            }))
        }
    }

    /// The copy through which `device` was made.
    ///
    /// # Safety
    /// `device` is one that our `alloc_device` returned and libibverbs has not dropped.
    pub(super) unsafe fn of_device(device: *mut ibv_device) -> &'static Self {
        // SAFETY: libibverbs sets `ops` to the very table that we registered, which is the first member of a `Library`
        // that is never freed.
        unsafe { &*(*device.cast::<verbs_device>()).ops.cast::<Self>() }
    }

    /// Makes us known to the copy.
    pub(super) fn register(&'static self) {
        // SAFETY: the table lives for ever.
        unsafe { (self.register_driver)(&raw const self.device_ops) }
        self.registered.store(true, Ordering::Release);
    }

    /// Calls `_verbs_init_and_alloc_context`: a zeroed allocation of `size_bytes` with `verbs_context` at
    /// `offset_bytes`, or NULL with errno set.
    ///
    /// # Safety
    /// `device` is a device of this copy. `cmd_fd` passes to the context.
    pub(super) unsafe fn new_context(
        &self,
        device: *mut ibv_device,
        cmd_fd: i32,
        size_bytes: usize,
        offset_bytes: usize,
    ) -> *mut u8 {
        const DRIVER_UNKNOWN: u32 = 0;
        // SAFETY: the function of this copy with a device of this copy; the offset is passed as a pointer by its type.
        unsafe {
            (self.init_and_alloc_context)(
                device,
                cmd_fd,
                size_bytes,
                offset_bytes as *mut c_void,
                DRIVER_UNKNOWN,
            )
            .cast()
        }
    }

    /// Calls `verbs_set_ops` with our table.
    ///
    /// # Safety
    /// `verbs_context` was initialised by this copy.
    pub(super) unsafe fn set_ops(&self, verbs_context: *mut c_void) {
        // SAFETY: the table has the layout of this copy.
        unsafe { (self.set_ops)(verbs_context, self.ops.as_ptr()) }
    }

    /// Calls `verbs_uninit_context`: closes the descriptors and drops the device.
    ///
    /// # Safety
    /// `verbs_context` was initialised by this copy and is not used afterwards.
    pub(super) unsafe fn uninit_context(&self, verbs_context: *mut c_void) {
        // SAFETY: by the contract.
        unsafe { (self.uninit_context)(verbs_context) }
    }
}

/// Load address of the object in which `address` lies.
pub(super) fn object_base_of(address: *const c_void) -> Option<usize> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address and fills the structure if it returns non-zero.
    unsafe {
        (libc::dladdr(address, info.as_mut_ptr()) != 0)
            .then(|| info.assume_init().dli_fbase as usize)
    }
}
