//! Reading a loaded object's dynamic section: its version definitions and its slots for imported functions.
//!
//! [`with_loaded_objects`] walks all objects under the dynamic linker's lock. What it lends is valid inside the walk; an
//! [`Object`] that is kept is good for as long as somebody keeps the object loaded (`libraries.rs` does, by a handle).
//! Nothing here knows what libibverbs is.

use std::ffi::{CStr, c_char, c_int, c_void};

/// `Elf64_Dyn`.
#[repr(C)]
struct DynamicEntry {
    tag: i64,
    value: u64,
}

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// `Elf64_Verdef`.
#[repr(C)]
struct VersionDefinition {
    version: u16,
    flags: u16,
    index: u16,
    aux_count: u16,
    hash: u32,
    aux: u32,
    next: u32,
}

/// `Elf64_Verdaux`.
#[repr(C)]
struct VersionName {
    name: u32,
    next: u32,
}

const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;

const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_VERDEF: i64 = 0x6fff_fffc;
const DT_VERDEFNUM: i64 = 0x6fff_fffd;

/// Relocation types of slots that hold the address of an imported function: GLOB_DAT and JUMP_SLOT.
#[cfg(target_arch = "x86_64")]
const SLOT_TYPES: [u32; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const SLOT_TYPES: [u32; 2] = [1025, 1026];

/// Version definitions that an object has at most; libibverbs has about 20. Bounds the walk of a damaged table.
const MAX_VERSION_DEFINITIONS: u64 = 4096;

/// A loaded object: where it lies, and the parts of its dynamic section that we read.
#[derive(Clone, Debug)]
pub(super) struct Object {
    base: usize,
    /// End of the part that is read-only after relocation, begin of it.
    relro: Option<(usize, usize)>,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    relocations: [(*const Relocation, usize); 2],
    version_definitions: *const u8,
    version_definition_count: u64,
}

/// A slot of an object's global offset table that holds the address of an imported function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Address of the slot.
    pub(super) address: usize,
    /// Whether the slot's page is read-only after relocation.
    pub(super) read_only: bool,
}

/// Calls `visit` with the file name and the description of every loaded object that has a dynamic section.
pub(super) fn with_loaded_objects(visit: &mut dyn FnMut(&CStr, &Object)) {
    unsafe extern "C" fn each(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        super::boundary::guarded(0, || {
            // SAFETY: the dynamic linker passes a valid description, with the object loaded while its lock is held;
            // `data` is the closure that `with_loaded_objects` passed, which outlives the walk.
            unsafe {
                let info = &*info;
                let visit = &mut *data.cast::<&mut dyn FnMut(&CStr, &Object)>();
                if let (false, Some(object)) = (info.dlpi_name.is_null(), Object::read(info)) {
                    visit(CStr::from_ptr(info.dlpi_name), &object);
                }
            }
            0
        })
    }
    let mut visit = visit;
    // SAFETY: the callback casts the pointer back to exactly this type, and is not called after the function returns.
    unsafe {
        libc::dl_iterate_phdr(Some(each), (&raw mut visit).cast());
    }
}

impl Object {
    /// # Safety
    /// `info` describes an object that stays loaded during the call.
    unsafe fn read(info: &libc::dl_phdr_info) -> Option<Self> {
        // SAFETY: the program headers of a loaded object are mapped, and so are the dynamic section that they name and
        // the tables that the dynamic section names.
        unsafe {
            let base = usize::try_from(info.dlpi_addr).ok()?;
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
            let start = |header: &libc::Elf64_Phdr| base.wrapping_add(header.p_vaddr as usize);
            let dynamic = headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
            let relro = headers.iter().find(|header| header.p_type == PT_GNU_RELRO);
            let mut object = Self {
                base,
                relro: relro.map(|header| (start(header), start(header) + header.p_memsz as usize)),
                symbols: std::ptr::null(),
                strings: std::ptr::null(),
                relocations: [(std::ptr::null(), 0); 2],
                version_definitions: std::ptr::null(),
                version_definition_count: 0,
            };
            let mut entry = start(dynamic) as *const DynamicEntry;
            while (*entry).tag != 0 {
                object.note(&*entry);
                entry = entry.add(1);
            }
            (!object.symbols.is_null() && !object.strings.is_null()).then_some(object)
        }
    }

    fn note(&mut self, entry: &DynamicEntry) {
        // glibc relocates most addresses of the dynamic section in memory, but not DT_VERDEF; other libraries none.
        let value = entry.value as usize;
        let address = if value < self.base {
            value.wrapping_add(self.base)
        } else {
            value
        };
        let count = value / size_of::<Relocation>();
        match entry.tag {
            DT_SYMTAB => self.symbols = address as *const _,
            DT_STRTAB => self.strings = address as *const _,
            DT_JMPREL => self.relocations[0].0 = address as *const _,
            DT_RELA => self.relocations[1].0 = address as *const _,
            DT_PLTRELSZ => self.relocations[0].1 = count,
            DT_RELASZ => self.relocations[1].1 = count,
            DT_VERDEF => self.version_definitions = address as *const _,
            DT_VERDEFNUM => {
                self.version_definition_count = entry.value.min(MAX_VERSION_DEFINITIONS)
            }
            _ => {}
        }
    }

    /// Address at which the object is loaded.
    pub(super) fn base(&self) -> usize {
        self.base
    }

    /// # Safety
    /// The object is loaded, and `offset` is one of its string table's.
    unsafe fn string(&self, offset: u32) -> &CStr {
        // SAFETY: by the contract, the string lies in the mapped string table, whose entries end with NUL.
        unsafe { CStr::from_ptr(self.strings.add(offset as usize)) }
    }

    /// The names of the versions that the object *defines* (not those that it needs).
    ///
    /// # Safety
    /// The object is loaded.
    pub(super) unsafe fn defined_versions(&self) -> Vec<String> {
        let mut names = Vec::new();
        if self.version_definitions.is_null() {
            return names;
        }
        let mut place = self.version_definitions;
        for _ in 0..self.version_definition_count {
            // SAFETY: `place` runs over the definitions by their own `next` offsets, at most as many as the object says
            // that it has; all of the table is mapped with the object.
            unsafe {
                let definition = &*place.cast::<VersionDefinition>();
                let name = &*place.add(definition.aux as usize).cast::<VersionName>();
                names.push(self.string(name.name).to_string_lossy().into_owned());
                if definition.next == 0 {
                    break;
                }
                place = place.add(definition.next as usize);
            }
        }
        names
    }

    /// The slots that hold the address of the imported function `name`.
    ///
    /// # Safety
    /// The object is loaded.
    pub(super) unsafe fn slots_of(&self, name: &CStr) -> Vec<Slot> {
        let mut slots = Vec::new();
        for (table, count) in self.relocations {
            if table.is_null() {
                continue;
            }
            // SAFETY: the dynamic section gives the table's address and size; symbol indices of its entries are valid.
            unsafe {
                for relocation in std::slice::from_raw_parts(table, count) {
                    let kind = relocation.info as u32;
                    let symbol = &*self.symbols.add((relocation.info >> 32) as usize);
                    if SLOT_TYPES.contains(&kind) && self.string(symbol.st_name) == name {
                        let address = self.base.wrapping_add(relocation.offset as usize);
                        slots.push(Slot {
                            address,
                            read_only: self.is_read_only(address),
                        });
                    }
                }
            }
        }
        slots
    }

    /// Whether `address` lies in a page that was made read-only after relocation: a lazily bound table is not.
    fn is_read_only(&self, address: usize) -> bool {
        let page = page_bytes();
        self.relro
            .is_some_and(|(start, end)| address >= start && address < end / page * page)
    }
}

/// Size of a page.
pub(super) fn page_bytes() -> usize {
    // SAFETY: no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
