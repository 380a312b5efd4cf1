//! The program behind `cargo xtask dissect`. All it does is in the library.

use std::io::{self, BufWriter};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut output = BufWriter::new(io::stdout().lock());
    let arguments = std::env::args_os().skip(1);
    match metaroce_dissect::run(arguments, &mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(usage) = error.downcast_ref::<clap::Error>() {
                // `--help` is such an "error" too, and knows where it is to be written.
                let _ = usage.print();
                return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2));
            }
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
