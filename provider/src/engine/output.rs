//! Files that the environment names (`METAROCE_STATS`, `METAROCE_EVENTS`). They may be anything: a pipe that nobody reads,
//! or whose reader has stopped or gone, a full disk. Whatever it is, the program goes on: nothing here waits for long, and
//! no signal of it reaches the program. Called by `statistics.rs` and `events.rs`.

use metaroce_udp::without_signals_of_writing;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// A reader of a pipe gets so long to make room.
const ROOM_WITHIN: Duration = Duration::from_millis(200);
/// Between two looks whether there is room.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Opens `file`, made if need be, to append to it or to write it anew.
///
/// # Errors
/// What the kernel says; ENXIO for a pipe without a reader.
pub(super) fn open(file: &str, append: bool) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .write(true)
        .append(append)
        .truncate(!append)
        // A pipe is not waited for, a terminal does not become the program's.
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(file)
}

/// Writes all of `bytes`; in one call, where there is room for them.
///
/// # Errors
/// What the kernel says; `WouldBlock` if a pipe was full for too long.
pub(super) fn write(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    let until = Instant::now() + ROOM_WITHIN;
    without_signals_of_writing(|| {
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until =>
                {
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::io::Read;

    #[test]
    fn a_pipe_without_a_reader_is_an_error_and_a_full_one_too() {
        let path = std::env::temp_dir().join(format!("metaroce-fifo-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let name = path.to_str().unwrap();
        for append in [false, true] {
            let error = open(name, append).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
        }
        let mut reader = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .unwrap();
        let mut file = open(name, true).unwrap();
        write(&mut file, b"line\n").unwrap();
        let mut found = [0; 5];
        reader.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"line\n");
        let error = write(&mut file, &vec![0; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(reader);
        let error = write(&mut file, b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        std::fs::remove_file(&path).unwrap();
    }
}
