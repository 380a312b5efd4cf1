//! Wrappers of the functions that open files.
//!
//! In C, `open` and its kin take the mode as a variable argument, present only when a file may be created. Rust can call
//! such functions but not define them, so these are defined with the mode as a fixed third or fourth argument. In the
//! calling conventions of x86-64 (System V) and aarch64 (AAPCS64 on Linux) a variable integer argument travels in the same
//! register as a fixed one; where the caller gave none, the register holds anything, which is passed on and which the C
//! library does not look at.

use crate::next::wrap;
use std::ffi::{c_char, c_int, c_void};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "check how this architecture passes variable arguments before building the shim for it"
);

wrap! {
    fn open() path(flags: c_int, mode: libc::mode_t) -> c_int;
    fn open64() path(flags: c_int, mode: libc::mode_t) -> c_int;
    fn openat(directory: c_int) path(flags: c_int, mode: libc::mode_t) -> c_int;
    fn openat64(directory: c_int) path(flags: c_int, mode: libc::mode_t) -> c_int;
    fn __open_2() path(flags: c_int) -> c_int;
    fn __open64_2() path(flags: c_int) -> c_int;
    fn __openat_2(directory: c_int) path(flags: c_int) -> c_int;
    fn __openat64_2(directory: c_int) path(flags: c_int) -> c_int;
    fn fopen() path(mode: *const c_char) -> *mut c_void;
    fn fopen64() path(mode: *const c_char) -> *mut c_void;
}
