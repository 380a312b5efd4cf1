//! One program: will the dynamic linker preload the shim into it?

use super::Finding;
use crate::run;
use nix::unistd::{AccessFlags, Gid, Uid, access};
use object::Endianness;
use object::elf::{ET_DYN, ET_EXEC, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Interpreters of scripts that are scripts themselves, one behind the other: the kernel's limit.
const MAX_SCRIPTS: usize = 4;
/// Bytes of a script's first line that the kernel reads.
const FIRST_LINE_BYTES: usize = 256;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// Looks at the program that `command` names, as a shell would find it.
pub(super) fn check(command: &OsStr) -> Finding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match find(command, &path) {
        Ok(found) => examine(&found, 0),
        Err(finding) => finding,
    }
}

pub(super) fn find(command: &OsStr, path: &OsStr) -> Result<PathBuf, Finding> {
    let name = command.to_string_lossy();
    if command.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(command));
    }
    let places = std::env::split_paths(path).map(|folder| folder.join(command));
    let mut executable =
        places.filter(|place| place.is_file() && access(place, AccessFlags::X_OK).is_ok());
    executable.next().ok_or_else(|| {
        Finding::bad(
            "program",
            run::not_found(&name),
            "install it, or name its path",
        )
    })
}

pub(super) fn examine(path: &Path, depth: usize) -> Finding {
    let check = "program";
    let name = path.display();
    let (bytes, metadata) = match (fs::read(path), fs::metadata(path)) {
        (Ok(bytes), Ok(metadata)) => (bytes, metadata),
        (Err(error), _) | (_, Err(error)) => {
            let cure = match error.kind() {
                io::ErrorKind::PermissionDenied => "change its mode, or name another program",
                _ => "name another program",
            };
            return Finding::bad(check, format!("{name} cannot be read: {error}"), cure);
        }
    };
    if let Some(interpreter) = interpreter_of_script(&bytes) {
        if depth >= MAX_SCRIPTS {
            return Finding::bad(
                check,
                format!("{name}: scripts call scripts, {MAX_SCRIPTS} deep"),
                "name the program itself",
            );
        }
        let mut finding = examine(&interpreter, depth + 1);
        finding.text = format!("{name} is a script; {}", finding.text);
        return finding;
    }
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(why) = changes_user(metadata.mode(), metadata.uid(), metadata.gid()) {
        return Finding::bad(
            check,
            format!("{name} is {why}: the dynamic linker does not preload into it"),
            format!(
                "run a copy of your own, which has not: cp {name} . && metaroce run -- ./{file}"
            ),
        );
    }
    match Kind::of(&bytes) {
        Kind::Loads { ibverbs: true } => Finding::good(
            check,
            format!("{name} uses libibverbs and can be preloaded"),
        ),
        Kind::Loads { ibverbs: false } => Finding::good(
            check,
            format!(
                "{name} can be preloaded (it does not name libibverbs; what it loads or starts may)"
            ),
        ),
        Kind::Static => Finding::bad(
            check,
            format!(
                "{name} is statically linked: there is no dynamic linker that could preload the shim"
            ),
            "use a dynamically linked build of it",
        ),
        Kind::OtherLibc(interpreter) => Finding::bad(
            check,
            format!("{name} runs on another C library ({interpreter}) than metaroce was built for"),
            "use a build for the GNU C library, or build metaroce for that one",
        ),
        Kind::Foreign => Finding::bad(
            check,
            format!("{name} is no program for this kind of processor, or none at all"),
            "name a program that runs here",
        ),
    }
}

/// `#!/usr/bin/env python3` → the path of python3.
pub(super) fn interpreter_of_script(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes.strip_prefix(b"#!")?;
    let line = &line[..line.len().min(FIRST_LINE_BYTES)];
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let interpreter = Path::new(OsStr::from_bytes(words.next()?)).to_owned();
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return Some(interpreter);
    }
    let wanted = words.find(|word| !word.starts_with(b"-"))?;
    let path: OsString = std::env::var_os("PATH").unwrap_or_default();
    Some(find(OsStr::from_bytes(wanted), &path).unwrap_or(interpreter))
}

/// The kernel asks the dynamic linker to be careful when a program gets other rights than its caller has.
pub(super) fn changes_user(mode: u32, owner: u32, group: u32) -> Option<&'static str> {
    if mode & SETUID != 0 && owner != Uid::current().as_raw() {
        return Some("setuid");
    }
    (mode & SETGID != 0 && group != Gid::current().as_raw()).then_some("setgid")
}

/// What a file is to the dynamic linker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A program that ours can be preloaded into.
    Loads {
        /// It names libibverbs itself: links it, or will load it.
        ibverbs: bool,
    },
    /// No dynamic linker.
    Static,
    /// A dynamic linker of another C library.
    OtherLibc(String),
    /// Not for this machine, or not a program.
    Foreign,
}

impl Kind {
    pub(super) fn of(bytes: &[u8]) -> Kind {
        Self::read(bytes).unwrap_or(Kind::Foreign)
    }

    fn read(bytes: &[u8]) -> object::Result<Kind> {
        let header = FileHeader64::<Endianness>::parse(bytes)?;
        let endian = header.endian()?;
        if header.e_machine(endian) != own_machine().unwrap_or_else(|| header.e_machine(endian)) {
            return Ok(Kind::Foreign);
        }
        let segments = header.program_headers(endian, bytes)?;
        let mut interpreters = segments
            .iter()
            .filter(|segment| segment.p_type(endian) == PT_INTERP);
        let Some(interpreter) = interpreters.next() else {
            // A shared library has none either, but nobody starts one.
            let program = matches!(header.e_type(endian), ET_EXEC | ET_DYN);
            return Ok(if program { Kind::Static } else { Kind::Foreign });
        };
        let name = interpreter.data(endian, bytes).unwrap_or_default();
        let name = String::from_utf8_lossy(name)
            .trim_end_matches('\0')
            .to_owned();
        if name.contains("ld-musl") {
            return Ok(Kind::OtherLibc(name));
        }
        let needed = b"libibverbs.so";
        let ibverbs = bytes.windows(needed.len()).any(|window| window == needed);
        Ok(Kind::Loads { ibverbs })
    }
}

/// The machine that this program is built for.
fn own_machine() -> Option<u16> {
    let bytes = fs::read("/proc/self/exe").ok()?;
    let header = FileHeader64::<Endianness>::parse(&*bytes).ok()?;
    Some(header.e_machine(header.endian().ok()?))
}
