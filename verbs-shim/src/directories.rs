//! Wrappers of the functions that read directories. The C library's `scandir` and `nftw` call its own `opendir` and
//! `stat`, not the wrapped ones.

use crate::next::wrap;
use std::ffi::{c_int, c_void};

wrap! {
    fn opendir() path() -> *mut c_void;
    fn scandir() path(list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int;
    fn scandir64() path(list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int;
    fn nftw() path(visit: *mut c_void, descriptors: c_int, flags: c_int) -> c_int;
    fn nftw64() path(visit: *mut c_void, descriptors: c_int, flags: c_int) -> c_int;
}
