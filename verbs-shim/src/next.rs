//! The functions behind the wrappers: the next definition of the same name.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a function.
pub(crate) struct Next {
    name: &'static CStr,
    function: AtomicPtr<c_void>,
}

impl Next {
    /// The next definition of `name`, not yet looked up.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            function: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Looks it up. Done at load: `dlsym` takes locks, and wrappers are called in signal handlers and between fork and
    /// exec. NULL if no library defines the name (older C libraries lack some).
    #[cold]
    pub(crate) fn resolve(&self) -> *mut c_void {
        // SAFETY: the name ends with NUL. RTLD_NEXT goes by the object that calls, which is this one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.function.store(found, Ordering::Release);
        found
    }

    /// The function; looked up now for callers that run before our constructor.
    #[inline(always)]
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.function.load(Ordering::Acquire);
        if known.is_null() {
            self.resolve()
        } else {
            known
        }
    }
}

/// What a function returns, with errno set, when it is not there.
pub(crate) trait Missing {
    /// Sets errno to ENOSYS.
    fn missing() -> Self;
}

impl Missing for i32 {
    fn missing() -> Self {
        crate::redirect::set_errno(libc::ENOSYS);
        -1
    }
}

impl Missing for isize {
    fn missing() -> Self {
        crate::redirect::set_errno(libc::ENOSYS);
        -1
    }
}

impl<T> Missing for *mut T {
    fn missing() -> Self {
        crate::redirect::set_errno(libc::ENOSYS);
        std::ptr::null_mut()
    }
}

/// Defines wrappers of functions that take a path, and `resolve`, which looks all of them up. `fn NAME(BEFORE) path(AFTER)`
/// has the arguments before and after the `const char *` that is the path. Pointers to structures that only pass through
/// are `*mut c_void`.
macro_rules! wrap {
    ($( fn $name:ident( $($before:ident : $before_type:ty),* ) path( $($after:ident : $after_type:ty),* ) -> $result:ty; )*) => {
        #[expect(non_upper_case_globals, reason = "named after the functions")]
        mod functions {
            $( pub(super) static $name: $crate::next::Next = {
                const NAME: &[u8] = concat!(stringify!($name), "\0").as_bytes();
                match std::ffi::CStr::from_bytes_with_nul(NAME) {
                    Ok(name) => $crate::next::Next::new(name),
                    Err(_) => unreachable!(),
                }
            }; )*
        }

        /// Looks up the functions behind the wrappers of this file.
        pub(crate) fn resolve() {
            $( functions::$name.resolve(); )*
        }

        $(
            #[doc = concat!("Wraps `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As the C library's function of this name; a NULL path is passed on.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(
                $($before: $before_type,)* path: *const std::ffi::c_char $(, $after: $after_type)*
            ) -> $result {
                type Function = unsafe extern "C" fn(
                    $($before_type,)* *const std::ffi::c_char $(, $after_type)*
                ) -> $result;
                let next = functions::$name.get();
                if next.is_null() {
                    return <$result as $crate::next::Missing>::missing();
                }
                // SAFETY: the caller keeps the contract of the C library's function, which `next` is, or that of another
                // wrapper of it, with this type.
                unsafe {
                    $crate::redirect::with(path, |path| {
                        std::mem::transmute::<*mut std::ffi::c_void, Function>(next)($($before,)* path $(, $after)*)
                    })
                }
            }
        )*
    };
}
pub(crate) use wrap;
