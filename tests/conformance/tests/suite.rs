//! The suite against our own endpoint: each script is a test.

use std::process::ExitCode;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use metaroce_conformance::bench::Place;
use metaroce_conformance::scripts;
use metaroce_conformance::target::Start;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One after the other: the machine has few cores, and what must come within a time would starve.
    arguments.test_threads.get_or_insert(1);
    let scripts = scripts::all().into_iter().enumerate();
    let trials = scripts.map(|(number, script)| {
        Trial::ignorable_test(script.name, move || {
            if let Some(reason) = Start::unmet() {
                return Ok(Completion::ignored_with(reason));
            }
            let start = start()
                .as_ref()
                .map_err(|error| Failed::from(error.clone()))?;
            let verdict = script.run(start, &Place::default(), number);
            verdict
                .error
                .map_or(Ok(Completion::Completed), |error| Err(Failed::from(error)))
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// The target is compiled once.
fn start() -> &'static Result<Start, String> {
    static START: OnceLock<Result<Start, String>> = OnceLock::new();
    START.get_or_init(|| Start::ours().map_err(|error| format!("{error:#}")))
}
