//! Wrappers of the `stat` family. The C library exports the plain names since version 2.33, and keeps the older
//! `__xstat` forms for programs that were built before; both occur in one process.

use crate::next::wrap;
use std::ffi::{c_int, c_uint, c_void};

wrap! {
    fn stat() path(result: *mut c_void) -> c_int;
    fn stat64() path(result: *mut c_void) -> c_int;
    fn lstat() path(result: *mut c_void) -> c_int;
    fn lstat64() path(result: *mut c_void) -> c_int;
    fn __xstat(version: c_int) path(result: *mut c_void) -> c_int;
    fn __xstat64(version: c_int) path(result: *mut c_void) -> c_int;
    fn __lxstat(version: c_int) path(result: *mut c_void) -> c_int;
    fn __lxstat64(version: c_int) path(result: *mut c_void) -> c_int;
    fn fstatat(directory: c_int) path(result: *mut c_void, flags: c_int) -> c_int;
    fn fstatat64(directory: c_int) path(result: *mut c_void, flags: c_int) -> c_int;
    fn __fxstatat(version: c_int, directory: c_int) path(result: *mut c_void, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, directory: c_int) path(result: *mut c_void, flags: c_int) -> c_int;
    fn statx(directory: c_int) path(flags: c_int, mask: c_uint, result: *mut c_void) -> c_int;
}
