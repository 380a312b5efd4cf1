//! Tests of the pipes that libibverbs reads.

use std::collections::HashSet;
use std::io::Read;
use std::thread;

use super::*;

fn reader_of<const N: usize>(pipe: &EventPipe<N>) -> File {
    let file = File::from(pipe.reader().try_clone_to_owned().expect("a duplicate"));
    nix::fcntl::fcntl(
        &file,
        nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
    )
    .expect("flags");
    file
}

/// What a program would read now, one record at a time, reporting each as libibverbs does.
fn drain(pipe: &EventPipe<8>, file: &mut File) -> Vec<u64> {
    let mut seen = Vec::new();
    let mut record = [0; 8];
    while let Ok(count) = file.read(&mut record) {
        assert_eq!(count, 8, "a record in pieces");
        seen.push(u64::from_ne_bytes(record));
        pipe.delivered();
    }
    seen
}

#[test]
fn thousands_of_unread_events_neither_block_nor_get_lost() {
    let pipe = EventPipe::<8>::new().expect("a pipe");
    for number in 0..5_000_u64 {
        pipe.send(number.to_ne_bytes());
    }
    assert_eq!(
        drain(&pipe, &mut reader_of(&pipe)),
        (0..5_000).collect::<Vec<_>>()
    );
}

#[test]
fn withdrawing_takes_exactly_the_records_of_one_object_and_keeps_the_order() {
    let pipe = EventPipe::<8>::new().expect("a pipe");
    for number in 0..3_000_u64 {
        pipe.send((number % 3).to_ne_bytes());
    }
    assert_eq!(
        pipe.withdraw(|record| u64::from_ne_bytes(*record) == 1),
        1_000
    );
    let seen = drain(&pipe, &mut reader_of(&pipe));
    assert_eq!(seen, (0..1_000).flat_map(|_| [0, 2]).collect::<Vec<u64>>());
}

#[test]
fn withdrawing_blocks_nobody_whose_descriptor_blocks() {
    let pipe = EventPipe::<8>::new().expect("a pipe");
    assert_eq!(
        pipe.withdraw(|_| true),
        0,
        "would hang here if it read an empty pipe"
    );
}

#[test]
fn a_blocked_reader_wakes_for_every_record_of_a_full_pipe() {
    let pipe = EventPipe::<8>::new().expect("a pipe");
    let mut file = File::from(pipe.reader().try_clone_to_owned().expect("a duplicate"));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0_u64;
            let mut record = [0; 8];
            while seen < 20_000 {
                assert_eq!(file.read(&mut record).expect("a record"), 8);
                assert_eq!(u64::from_ne_bytes(record), seen);
                pipe.delivered();
                seen += 1;
            }
        });
        for number in 0..20_000_u64 {
            pipe.send(number.to_ne_bytes());
        }
        reader.join().expect("all records in order");
    });
}

#[test]
fn a_channel_is_known_by_number_and_file() {
    let mut file = File::from(create_owned().expect("a channel"));
    let descriptor = file.as_raw_fd();
    let channel = find(descriptor).expect("known");
    channel.send(17);
    let mut record = [0; 8];
    assert_eq!(file.read(&mut record).expect("a record"), 8);
    assert_eq!(u64::from_ne_bytes(record), 17);

    // As libibverbs does: closed without a word, and the number belongs to another file now.
    drop(file);
    let (other, _end) = UnixDatagram::pair().expect("a pair");
    if other.as_raw_fd() == descriptor {
        assert!(
            find(descriptor).is_none(),
            "an old channel found under a number that is used again"
        );
    }
}

#[test]
fn closed_channels_are_swept_out() {
    let mut inodes = HashSet::new();
    for _ in 0..200 {
        let descriptor = create_owned().expect("a channel");
        inodes.insert(find(descriptor.as_raw_fd()).expect("known").identity.inode);
    }
    // Another test may have one open, or have closed one just now.
    let known = channels()
        .expect("a free lock")
        .iter()
        .filter(|known| inodes.contains(&known.channel.identity.inode))
        .count();
    assert!(known <= 2, "{known} of 200 closed channels are still held");
}

#[test]
fn numbers_that_are_no_channels_are_not_found() {
    assert!(find(-1).is_none());
    assert!(find(0).is_none());
    assert!(find(i32::MAX).is_none());
}

/// A child has the same sockets: what it does to its copies must neither put an event into them nor take one out, or the
/// parent acknowledges more, or fewer, than it was sent, and waits for the difference when it destroys the object.
#[test]
fn a_pipe_that_was_inherited_by_a_fork_is_left_alone() {
    let mut pipe = EventPipe::<8>::new().expect("a pipe");
    let mut file = reader_of(&pipe);
    pipe.send(1u64.to_ne_bytes());
    pipe.generation = pipe.generation.wrapping_sub(1);
    pipe.send(2u64.to_ne_bytes());
    assert_eq!(pipe.withdraw(|_| true), 0);
    pipe.delivered();
    pipe.generation = pipe.generation.wrapping_add(1);
    assert_eq!(drain(&pipe, &mut file), [1]);
}
