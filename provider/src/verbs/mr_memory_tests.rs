//! Tests of the table of regions and of placing.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use rstest::rstest;

use super::*;

const PD: PdId = PdId(3);
const OTHER_PD: PdId = PdId(4);
const ALL: Access = Access(0xf);

fn table_with(buffer: &mut [u8], iova: u64, access: Access) -> (MrTable, u32) {
    let table = MrTable::default();
    let region = Region {
        pd: PD,
        iova,
        length: buffer.len() as u64,
        host_addr: buffer.as_mut_ptr() as u64,
        access,
    };
    let key = table.register(region).expect("room");
    (table, key)
}

// WIRE 9.1
#[test]
fn keys_are_not_zero_and_differ() {
    let mut buffer = [0; 8];
    let (table, first) = table_with(&mut buffer, 0, ALL);
    let second = table
        .register(table.get(first).expect("there"))
        .expect("room");
    assert!(first != 0 && second != 0 && first != second);
    assert_eq!(table.get(0), None);
    assert_eq!(table.get(u32::MAX), None);
}

#[test]
fn a_stale_key_fails_however_often_its_slot_is_used_again() {
    let mut buffer = [0; 64];
    let (table, stale) = table_with(&mut buffer, 0x1000, ALL);
    let region = table.deregister(stale).expect("there");
    assert_eq!(table.deregister(stale), None, "deregistered twice");
    let mut reused = 0;
    for _ in 0..2_000 {
        let key = table.register(region).expect("room");
        reused += u32::from(index_of(key) == index_of(stale));
        // The tag may come back by chance after many owners, but never with the next ones.
        if reused < 2 {
            assert_ne!(key, stale);
            assert_eq!(table.place(PD, stale, 0x1000, &[1]), Err(AccessDenied));
            assert_eq!(table.resolve(stale, 0x1000, 1), None);
            assert!(!table.replace(stale, region));
        }
        table.deregister(key).expect("there");
    }
    assert!(
        reused > 0,
        "the slot was never used again: the table only grows"
    );
}

#[test]
fn a_guessed_tag_fails() {
    let mut buffer = [0; 8];
    let (table, key) = table_with(&mut buffer, 0, ALL);
    let valid = (0..=TAG_MASK).map(|tag| index_of(key) as u32 | tag << MR_INDEX_BITS);
    assert_eq!(
        valid
            .filter(|guess| table.get(*guess).is_some())
            .collect::<Vec<_>>(),
        [key]
    );
}

#[test]
fn the_first_tags_are_not_the_same_in_every_process() {
    let tags: Vec<_> = (0..16)
        .map(|_| tag_of(table_with(&mut [0; 8], 0, ALL).1))
        .collect();
    assert!(
        tags.iter().any(|tag| *tag != tags[0]),
        "16 tables began with {tags:?}"
    );
}

#[rstest]
#[case(0x1000, 64, Ok(()))]
#[case(0x1000, 0, Ok(()))]
#[case(0x1040, 0, Ok(()))]
#[case(0x103f, 1, Ok(()))]
#[case(0x1000, 65, Err(AccessDenied))]
#[case(0x1040, 1, Err(AccessDenied))]
#[case(0x1041, 0, Err(AccessDenied))]
#[case(0xfff, 1, Err(AccessDenied))]
#[case(0xfff, 0, Err(AccessDenied))]
#[case(0x1001, u64::MAX, Err(AccessDenied))]
#[case(0x1000, u64::MAX, Err(AccessDenied))]
#[case(u64::MAX, 1, Err(AccessDenied))]
#[case(0, 0, Err(AccessDenied))]
fn bounds(#[case] addr: u64, #[case] length: u64, #[case] expected: Result<(), AccessDenied>) {
    let mut buffer = [0; 64];
    let (table, key) = table_with(&mut buffer, 0x1000, ALL);
    assert_eq!(
        table
            .check_remote(PD, key, addr, length, Access::REMOTE_WRITE)
            .map(drop),
        expected
    );
    assert_eq!(table.resolve(key, addr, length).is_some(), expected.is_ok());
}

#[test]
fn bounds_hold_for_a_region_that_ends_with_the_address_space() {
    let mut buffer = [0; 64];
    let iova = u64::MAX - 63;
    let (table, key) = table_with(&mut buffer, iova, ALL);
    assert!(
        table
            .check_remote(PD, key, u64::MAX, 1, Access::REMOTE_READ)
            .is_ok()
    );
    assert!(
        table
            .check_remote(PD, key, u64::MAX, 2, Access::REMOTE_READ)
            .is_err()
    );
    assert!(
        table
            .check_remote(PD, key, iova, 64, Access::REMOTE_READ)
            .is_ok()
    );
    assert!(
        table
            .check_remote(PD, key, 0, 1, Access::REMOTE_READ)
            .is_err()
    );
    table.place(PD, key, u64::MAX, &[9]).expect("inside");
    assert_eq!(buffer[63], 9);
}

#[test]
fn domain_and_rights_are_checked() {
    let mut buffer = [0; 64];
    let (table, key) = table_with(&mut buffer, 0, Access(1 | 4 | 1 << 20));
    assert_eq!(
        table.check_remote(PD, key, 0, 8, Access::REMOTE_READ),
        Ok(Visibility::Relaxed)
    );
    assert_eq!(
        table.check_remote(PD, key, 0, 8, Access::REMOTE_WRITE),
        Err(AccessDenied)
    );
    assert_eq!(
        table.check_remote(OTHER_PD, key, 0, 8, Access::REMOTE_READ),
        Err(AccessDenied)
    );
    assert_eq!(table.place(OTHER_PD, key, 0, &[1]), Err(AccessDenied));
    assert_eq!(
        table.atomic(PD, key, 0, AtomicOperation::FetchAdd { add: 1 }),
        Err(AccessDenied)
    );
    let (read_only, key) = table_with(&mut buffer, 0, Access(4));
    assert_eq!(read_only.place(PD, key, 0, &[1]), Err(AccessDenied));
    assert_eq!(
        read_only.check_remote(PD, key, 0, 8, Access::REMOTE_READ),
        Ok(Visibility::Strict)
    );
}

#[test]
fn lists_are_checked_entry_by_entry() {
    let mut buffer = [0; 64];
    let (table, key) = table_with(&mut buffer, 0, Access(0));
    let sge = |addr, length, lkey| Sge { addr, length, lkey };
    assert_eq!(table.check_list(PD, &[], Access::LOCAL_WRITE), Ok(()));
    assert_eq!(
        table.check_list(PD, &[sge(0, 64, key), sge(60, 4, key)], Access::default()),
        Ok(())
    );
    assert_eq!(
        table.check_list(PD, &[sge(0, 64, key), sge(60, 5, key)], Access::default()),
        Err(AccessDenied)
    );
    assert_eq!(
        table.check_list(PD, &[sge(0, 1, key ^ 1 << 31)], Access::default()),
        Err(AccessDenied)
    );
    assert_eq!(
        table.check_list(PD, &[sge(0, 1, key)], Access::LOCAL_WRITE),
        Err(AccessDenied)
    );
}

#[test]
fn places_every_length_at_every_alignment_and_nothing_beside() {
    let mut buffer = vec![0xee_u8; 9_000];
    let (table, key) = table_with(&mut buffer, 0x7000, ALL);
    let lengths = (0..80).chain([255, 1_023, 1_024, 1_025, 1_026, 1_090, 4_095, 4_096, 8_191]);
    for length in lengths {
        let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        for offset in 0..17 {
            buffer.fill(0xee);
            table
                .place(PD, key, 0x7000 + offset as u64, &bytes)
                .expect("inside");
            assert_eq!(
                &buffer[offset..offset + length],
                &bytes[..],
                "{length} B at {offset}"
            );
            assert!(
                buffer[..offset].iter().all(|b| *b == 0xee),
                "{length} B at {offset}: before"
            );
            assert!(
                buffer[offset + length..].iter().all(|b| *b == 0xee),
                "{length} B at {offset}: behind"
            );
        }
    }
}

/// A thread polls the last word of each placement, as NCCL does, and then finds everything before it.
#[rstest]
#[case::slot(64)]
#[case::ascending(1_024)]
#[case::copied(4_096)]
#[case::copied_unaligned_head(4_089)]
fn who_sees_the_last_word_sees_all(#[case] length: usize) {
    const ROUNDS: u64 = 3_000;
    let mut words = vec![0_u64; 512];
    let start = words.as_mut_ptr() as u64;
    // The end is aligned, as a flag is; the start need not be.
    let offset = 4_096 - length;
    let table = MrTable::default();
    let region = Region {
        pd: PD,
        iova: 0,
        length: 4_096,
        host_addr: start,
        access: ALL,
    };
    let key = table.register(region).expect("room");
    let acknowledged = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // SAFETY: aligned words that live as long as the scope; the other thread writes them by atomic stores, or
            // by a copy that happens before the store which is acquired here.
            let last = unsafe { AtomicU64::from_ptr((start + 4_088) as *mut u64) };
            for round in 1..=ROUNDS {
                while last.load(Ordering::Acquire) != round {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::yield_now();
                }
                for place in offset..4_088 {
                    // SAFETY: as above.
                    let byte =
                        unsafe { std::ptr::read_volatile((start as usize + place) as *const u8) };
                    assert_eq!(
                        byte, round as u8,
                        "round {round}, byte {place} behind the last word"
                    );
                }
                acknowledged.store(round, Ordering::Release);
            }
        });
        let deadline = Instant::now() + Duration::from_secs(3);
        let mut rounds = 0;
        for round in 1..=ROUNDS {
            let mut bytes = vec![round as u8; length];
            bytes[length - 8..].copy_from_slice(&round.to_ne_bytes());
            table.place(PD, key, offset as u64, &bytes).expect("inside");
            while acknowledged.load(Ordering::Acquire) != round {
                if reader.is_finished() || Instant::now() > deadline {
                    break;
                }
                thread::yield_now();
            }
            if reader.is_finished() || Instant::now() > deadline {
                break;
            }
            rounds = round;
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().expect("the reader saw a late byte");
        assert!(rounds > 20, "only {rounds} rounds in 3 s");
    });
}

// WIRE 7.1
/// While one thread places ascending counters, another never sees a later word that is newer than an earlier one.
#[test]
fn words_become_visible_in_ascending_order() {
    const WORDS: usize = 32;
    let mut words = [0_u64; WORDS];
    let start = words.as_mut_ptr() as u64;
    let table = MrTable::default();
    let region = Region {
        pd: PD,
        iova: 0,
        length: (WORDS * 8) as u64,
        host_addr: start,
        access: ALL,
    };
    let key = table.register(region).expect("room");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1..30_000_u64 {
                let bytes: Vec<u8> = std::iter::repeat_n(value.to_ne_bytes(), WORDS)
                    .flatten()
                    .collect();
                table.place(PD, key, 0, &bytes).expect("inside");
            }
            stop.store(true, Ordering::Release);
        });
        // SAFETY: aligned words that outlive the scope, written by atomic stores only.
        let word =
            |index: usize| unsafe { AtomicU64::from_ptr((start as usize + index * 8) as *mut u64) };
        while !stop.load(Ordering::Acquire) {
            // From the last to the first: each must be at least as new as the one behind it.
            let mut newest = 0;
            for index in (0..WORDS).rev() {
                let value = word(index).load(Ordering::Acquire);
                assert!(
                    value >= newest,
                    "word {index} is {value}, a later one is {newest} already"
                );
                newest = value;
            }
        }
    });
}

#[test]
fn atomics_return_the_value_before() {
    let mut words = [5_u64, 7];
    let host_addr = words.as_mut_ptr() as u64;
    let table = MrTable::default();
    let key = table
        .register(Region {
            pd: PD,
            iova: 0x100,
            length: 16,
            host_addr,
            access: ALL,
        })
        .expect("room");
    let run = |addr, operation| table.atomic(PD, key, addr, operation);
    assert_eq!(
        run(0x100, AtomicOperation::FetchAdd { add: u64::MAX }),
        Ok(5)
    );
    assert_eq!(
        run(
            0x100,
            AtomicOperation::CompareSwap {
                compare: 4,
                swap: 9
            }
        ),
        Ok(4)
    );
    assert_eq!(
        run(
            0x100,
            AtomicOperation::CompareSwap {
                compare: 4,
                swap: 11
            }
        ),
        Ok(9)
    );
    assert_eq!(run(0x108, AtomicOperation::FetchAdd { add: 1 }), Ok(7));
    assert_eq!(
        run(0x104, AtomicOperation::FetchAdd { add: 1 }),
        Err(AccessDenied)
    );
    assert_eq!(
        run(0x110, AtomicOperation::FetchAdd { add: 1 }),
        Err(AccessDenied)
    );
    assert_eq!(words, [9, 8]);
}

#[test]
fn atomics_need_alignment_in_memory_too() {
    let mut words = [0_u64; 4];
    let host_addr = words.as_mut_ptr() as u64 + 4;
    let table = MrTable::default();
    let key = table
        .register(Region {
            pd: PD,
            iova: 0,
            length: 24,
            host_addr,
            access: ALL,
        })
        .expect("room");
    assert_eq!(
        table.atomic(PD, key, 0, AtomicOperation::FetchAdd { add: 1 }),
        Err(AccessDenied)
    );
    assert_eq!(words, [0; 4]);
}

#[test]
fn deregistering_waits_for_a_place_in_progress() {
    let mut buffer = vec![0_u8; 1 << 20];
    let (table, key) = table_with(&mut buffer, 0, ALL);
    let bytes = vec![7_u8; 1 << 20];
    thread::scope(|scope| {
        let placer = scope.spawn(|| {
            let mut placed = 0;
            while table.place(PD, key, 0, &bytes).is_ok() {
                placed += 1;
            }
            placed
        });
        thread::sleep(Duration::from_millis(20));
        table.deregister(key).expect("there");
        // Were a copy still running, it would overwrite some of this.
        // SAFETY: the region is gone, the buffer is ours alone again.
        unsafe { std::ptr::write_bytes(buffer.as_ptr().cast_mut(), 1, 1 << 20) };
        assert!(placer.join().expect("no panic") > 0);
    });
    assert!(buffer.iter().all(|byte| *byte == 1));
}

#[test]
fn probing_tells_mapped_from_unmapped_and_writable_from_read_only() {
    const PAGE: usize = 4_096;
    // SAFETY: a fresh anonymous mapping, unmapped in part below; nothing else refers to it.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(
            std::ptr::null_mut(),
            8 * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(
            libc::mprotect(start.add(2 * PAGE), PAGE, libc::PROT_READ),
            0
        );
        assert_eq!(
            libc::mprotect(start.add(3 * PAGE), PAGE, libc::PROT_NONE),
            0
        );
        assert_eq!(libc::munmap(start.add(5 * PAGE), PAGE), 0);
        start as u64
    };
    let page = |index: u64| start + index * PAGE as u64;
    let page_bytes = PAGE as u64;
    assert!(probe(start, 2 * page_bytes, true));
    assert!(
        probe(start, 3 * page_bytes, false),
        "read-only end, to be read"
    );
    assert!(
        !probe(start, 3 * page_bytes, true),
        "read-only end, to be written"
    );
    assert!(!probe(page(3), 1, false), "no access");
    assert!(!probe(page(4), 3 * page_bytes, true), "hole in the middle");
    assert!(
        !probe(page(4), page_bytes + 1, false),
        "one byte in the hole"
    );
    assert!(probe(page(4) + 4_095, 1, true), "last byte before the hole");
    assert!(probe(page(5), 0, true), "nothing at all");
    // SAFETY: the mapping of above.
    unsafe { libc::munmap(start as *mut libc::c_void, 8 * PAGE) };
}

#[test]
fn probing_leaves_the_bytes_as_they_are() {
    let buffer: Vec<u8> = (0..=255).collect();
    assert!(probe(buffer.as_ptr() as u64, 256, true));
    assert!(
        buffer
            .iter()
            .enumerate()
            .all(|(place, byte)| usize::from(*byte) == place)
    );
}

#[test]
fn bytes_of_the_program_are_copied_whole() {
    let source: Vec<u8> = (0..1_000).map(|i| (i % 253) as u8).collect();
    for length in [0, 1, 255, 256, 257, 1_000] {
        let mut copied = Vec::new();
        // SAFETY: within `source`.
        unsafe {
            copy_from_program(source.as_ptr() as u64, length, |piece| {
                copied.extend_from_slice(piece)
            })
        };
        assert_eq!(copied, source[..length]);
    }
}
