//! Runs one input of a fuzz target without any fuzzer, or writes the first inputs of its corpus.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use metaroce_fuzz::{TARGETS, connections, find, seeds};

const HELP: &str = "\
Runs inputs of the fuzz targets, as a fuzzer found them.

usage: fuzz-replay TARGET FILE…       runs each file; a failure is a panic
       fuzz-replay --show FILE        prints every packet of an input of 'connections'
       fuzz-replay --seeds TARGET DIR writes the target's first inputs to a folder
       fuzz-replay --list             the targets";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match *arguments.as_slice() {
        ["--list"] => {
            for target in TARGETS {
                print(format_args!(
                    "{} {} {}",
                    target.name, target.max_bytes, target.about
                ));
            }
            Ok(())
        }
        ["--show", file] => show(file),
        ["--seeds", target, folder] => write_seeds(target, Path::new(folder)),
        [target, ref files @ ..] if !files.is_empty() && find(target).is_some() => {
            replay(target, files)
        }
        _ => Err(HELP.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a line. Where nobody reads on (`| head`) this is the end.
fn print(line: impl Display) {
    let written = writeln!(stdout(), "{line}");
    if written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
}

fn read(file: &str) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{file}: {error}"))
}

fn replay(target: &str, files: &[&str]) -> Result<(), String> {
    let target = find(target).ok_or(HELP)?;
    for file in files {
        (target.run)(&read(file)?);
        print(format_args!("{file}: right"));
    }
    Ok(())
}

fn show(file: &str) -> Result<(), String> {
    print(connections::outcome_of(&read(file)?, true));
    Ok(())
}

fn write_seeds(target: &str, folder: &Path) -> Result<(), String> {
    let target = find(target).ok_or(HELP)?;
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    for (name, bytes) in seeds::of(target.name) {
        std::fs::write(folder.join(name), bytes).map_err(failed)?;
    }
    Ok(())
}
