//! Wrappers of the functions that check access, read links and extended attributes (`ls -l`), and resolve paths.

use crate::next::wrap;
use std::ffi::{c_char, c_int, c_void};

wrap! {
    fn access() path(mode: c_int) -> c_int;
    fn eaccess() path(mode: c_int) -> c_int;
    fn euidaccess() path(mode: c_int) -> c_int;
    fn faccessat(directory: c_int) path(mode: c_int, flags: c_int) -> c_int;
    fn readlink() path(buffer: *mut c_char, size: usize) -> isize;
    fn readlinkat(directory: c_int) path(buffer: *mut c_char, size: usize) -> isize;
    fn __readlink_chk() path(buffer: *mut c_char, size: usize, room: usize) -> isize;
    fn __readlinkat_chk(directory: c_int) path(buffer: *mut c_char, size: usize, room: usize) -> isize;
    fn realpath() path(buffer: *mut c_char) -> *mut c_char;
    fn __realpath_chk() path(buffer: *mut c_char, room: usize) -> *mut c_char;
    fn canonicalize_file_name() path() -> *mut c_char;
    fn getxattr() path(name: *const c_char, value: *mut c_void, size: usize) -> isize;
    fn lgetxattr() path(name: *const c_char, value: *mut c_void, size: usize) -> isize;
    fn listxattr() path(list: *mut c_char, size: usize) -> isize;
    fn llistxattr() path(list: *mut c_char, size: usize) -> isize;
}
