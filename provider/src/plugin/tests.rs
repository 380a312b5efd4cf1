//! Tests of the plugin against the running process and against the installed libibverbs.

use super::elf;
use super::libraries::{self, Versions};
use std::ffi::CStr;

#[test]
fn reads_the_version_definitions_of_libc() {
    let mut seen = 0;
    elf::with_loaded_objects(&mut |file, object| {
        if file.to_bytes().ends_with(b"/libc.so.6") {
            // SAFETY: inside the walk the object is loaded.
            let versions = unsafe { object.defined_versions() };
            assert!(versions.iter().any(|v| v == "GLIBC_2.17"), "{versions:?}");
            assert!(
                versions.iter().any(|v| v == "GLIBC_PRIVATE"),
                "{versions:?}"
            );
            seen += 1;
        }
    });
    assert_eq!(seen, 1, "one libc");
}

#[test]
fn finds_the_slots_of_an_imported_function() {
    let mut slots = 0;
    elf::with_loaded_objects(&mut |_, object| {
        for slot in unsafe_slots(object, c"write") {
            // SAFETY: a slot is a pointer in the object's data, which is mapped.
            let target = unsafe { *(slot.address as *const *const std::ffi::c_void) };
            assert!(
                libraries::object_base_of(target).is_some(),
                "a slot holds the address of a function"
            );
            slots += 1;
        }
        assert!(unsafe_slots(object, c"no such function").is_empty());
    });
    assert!(slots > 0, "somebody in this process calls write");
}

fn unsafe_slots(object: &elf::Object, name: &CStr) -> Vec<elf::Slot> {
    // SAFETY: called inside a walk only.
    unsafe { object.slots_of(name) }
}

#[test]
fn a_libibverbs_is_known_by_what_it_defines() {
    let of = |names: &[&str]| Versions::from_names(names.iter().copied());
    let debian = of(&[
        "libibverbs.so.1",
        "IBVERBS_1.0",
        "IBVERBS_1.14",
        "IBVERBS_1.9",
        "IBVERBS_PRIVATE_34",
    ]);
    assert_eq!(
        debian,
        Some(Versions {
            private_abi: 34,
            public_minor: 14
        })
    );
    assert_eq!(of(&["libmlx5.so.1", "MLX5_1.0"]), None);
    assert_eq!(of(&[]), None);
    assert_eq!(of(&["IBVERBS_1.14", "IBVERBS_PRIVATE_x"]), None);
}

#[test]
fn no_libibverbs_no_registration() {
    // This test program does not link libibverbs, so the constructor, which ran at start, found nothing.
    super::register::register_with_all();
    assert!(libraries::find_all().is_empty());
}

#[test]
fn every_op_has_a_place_and_only_one_function() {
    let names: Vec<_> = super::ops::all().map(|op| op.name).collect();
    for (place, name) in names.iter().enumerate() {
        assert!(!names[..place].contains(name), "{name} is given twice");
        for release in super::op_tables::RELEASES {
            assert!(
                release.op_table().names().contains(name),
                "{name} is no op of rdma-core {}",
                release.rdma_core
            );
        }
    }
}

/// What libibverbs calls unchecked must not keep its own function, which would be taken for a result.
#[test]
fn nothing_that_is_called_unchecked_is_left_out() {
    let table = super::op_tables::Release::find(34, 14)
        .expect("known")
        .op_table();
    let functions = super::ops::laid_out(&table);
    assert_eq!(functions.len(), table.names().len());
    for name in [
        "bind_mw",
        "dealloc_mw",
        "free_context",
        "poll_cq",
        "post_recv",
        "post_send",
        "post_srq_recv",
        "query_device_ex",
        "query_port",
        "reg_dmabuf_mr",
        "req_notify_cq",
        "set_ece",
        "query_ece",
    ] {
        let place = table.names().iter().position(|n| *n == name).expect(name);
        assert!(!functions[place].is_null(), "{name}");
    }
}

/// libibverbs walks the table for every device of the kernel, without a look at the pointer.
#[test]
fn the_match_table_is_there_and_empty() {
    let ops = super::register::device_ops();
    assert!(!ops.match_table.is_null());
    // SAFETY: the table is a static of at least one entry.
    assert_eq!(unsafe { (*ops.match_table).kind }, 0, "only the end");
    assert!(
        ops.alloc_context.is_some() && ops.alloc_device.is_some() && ops.uninit_device.is_some()
    );
    assert!(ops.match_device.is_some());
}
