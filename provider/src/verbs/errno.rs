//! The error numbers that verbs return: one newtype, so that a status, a length and an errno are never mixed up.
//!
//! Verbs that return a pointer set `errno`, verbs that return an `int` return the positive number; which of the two is
//! the business of `plugin/`. Everything in `verbs/` just returns `Result<_, Errno>`.

use std::fmt;
use std::io;

use metaroce_udp::errno_of;

/// An error number of the C library, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// An argument is wrong; nothing was changed.
    pub const INVALID: Self = Self(libc::EINVAL);
    /// A queue or a table is full.
    pub const NO_MEMORY: Self = Self(libc::ENOMEM);
    /// Other objects still use this one, or its events are not acknowledged.
    pub const BUSY: Self = Self(libc::EBUSY);
    /// This device does not have that.
    pub const NOT_SUPPORTED: Self = Self(libc::EOPNOTSUPP);
    /// The address range is not (or not writably) mapped.
    pub const BAD_ADDRESS: Self = Self(libc::EFAULT);
    /// The device cannot be used at all.
    pub const INPUT_OUTPUT: Self = Self(libc::EIO);
    /// There is no connection.
    pub const NOT_CONNECTED: Self = Self(libc::ENOTCONN);
    /// There is nothing of that name or number.
    pub const NO_SUCH: Self = Self(libc::ENOENT);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Errno({}, {})",
            self.0,
            io::Error::from_raw_os_error(self.0)
        )
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

/// The number that says the same as `error`; errors made in Rust carry only a kind.
impl From<&io::Error> for Errno {
    fn from(error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        Self(errno_of(error).unwrap_or_else(|| match error.kind() {
            Kind::NotFound => libc::ENODEV,
            Kind::PermissionDenied => libc::EACCES,
            Kind::InvalidInput | Kind::InvalidData => libc::EINVAL,
            Kind::OutOfMemory => libc::ENOMEM,
            Kind::Unsupported => libc::EOPNOTSUPP,
            Kind::AddrInUse => libc::EADDRINUSE,
            Kind::AddrNotAvailable => libc::EADDRNOTAVAIL,
            Kind::WouldBlock => libc::EAGAIN,
            _ => libc::EIO,
        }))
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self::from(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metaroce_udp::explain;

    #[test]
    fn keeps_the_number_of_the_system_and_falls_back_to_eio() {
        assert_eq!(
            Errno::from(io::Error::from_raw_os_error(libc::EMFILE)),
            Errno(libc::EMFILE)
        );
        assert_eq!(
            Errno::from(io::Error::from(io::ErrorKind::AddrInUse)),
            Errno(libc::EADDRINUSE)
        );
        assert_eq!(
            Errno::from(io::Error::other("no number")),
            Errno::INPUT_OUTPUT
        );
        assert_eq!(
            Errno::from(io::Error::new(io::ErrorKind::AddrInUse, "all taken")),
            Errno(libc::EADDRINUSE)
        );
        assert_eq!(
            Errno::from(explain(
                &io::Error::from_raw_os_error(libc::EMFILE),
                "too many".into()
            )),
            Errno(libc::EMFILE)
        );
        assert!(format!("{:?}", Errno::INVALID).contains("Invalid argument"));
    }
}
