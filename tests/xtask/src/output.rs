//! What commands print: what they were asked for in one piece, and lines about what they do.

use std::fmt::Display;
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

/// A line about what goes on. Unlike with `println!` it does not matter whether anybody reads on (`| head`): what the command
/// does, and how it ends, matters more.
pub fn line(text: impl Display) {
    let _ = writeln!(io::stdout(), "{text}");
}
