//! System errors with a word about cause and cure, which still know their number: verbs hand the number to the program.
//! Made wherever opening may fail; read by the caller's boundary to C.

use std::fmt;
use std::io;

/// A system error and what it means here.
#[derive(Debug)]
struct Explained {
    errno: i32,
    text: String,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Explained {}

/// `error` with the message `text`; [`errno_of`] finds its number again.
pub fn explain(error: &io::Error, text: String) -> io::Error {
    match errno_of(error) {
        Some(errno) => io::Error::new(error.kind(), Explained { errno, text }),
        None => io::Error::new(error.kind(), text),
    }
}

/// The system's number of `error`, also of an explained one; `None` for an error that no system call made.
pub fn errno_of(error: &io::Error) -> Option<i32> {
    let explained = || Some(error.get_ref()?.downcast_ref::<Explained>()?.errno);
    error.raw_os_error().or_else(explained)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explained_error_keeps_its_number_and_says_what_it_means() {
        let plain = io::Error::from_raw_os_error(libc::EMFILE);
        assert_eq!(errno_of(&plain), Some(libc::EMFILE));
        let once = explain(&plain, "raise `ulimit -n`".into());
        let twice = explain(&once, format!("eth0: {once}"));
        assert_eq!(errno_of(&twice), Some(libc::EMFILE));
        assert_eq!(twice.to_string(), "eth0: raise `ulimit -n`");
        let other = explain(&io::Error::other("no number"), "text".into());
        assert_eq!((errno_of(&other), other.to_string()), (None, "text".into()));
    }
}
