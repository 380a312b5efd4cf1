//! What a command prints for others to read, in one piece.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Writes to standard output. That nobody reads on (`| head`) is no failure.
///
/// # Errors
/// Any other, such as a full disk.
pub fn write(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}
