//! What is to be started: a program, its arguments, and where it runs - on a host of a fabric, under
//! `metaroce run`, as another user, for how long at most. [`crate::process`] is it once it runs.
//!
//! Used by every case and by the demo.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::artefacts::Artefacts;
use crate::fabric::{Fabric, Host};
use crate::process::{Outcome, Proc};
use crate::tool;

/// A program that was given no limit of its own.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);

/// User and group `nobody` of Debian.
pub(crate) const NOBODY: &str = "65534";

/// A program that is about to be started.
#[derive(Debug, Clone)]
pub struct Program {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    namespace: Option<String>,
    launcher: Option<PathBuf>,
    nobody: bool,
    limit: Duration,
}

impl Program {
    /// `program`, by its name in `PATH` or its path.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            namespace: None,
            launcher: None,
            nobody: false,
            limit: DEFAULT_LIMIT,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(
            arguments
                .into_iter()
                .map(|argument| argument.as_ref().to_owned()),
        );
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs it on a host of `fabric`.
    #[must_use]
    pub fn on(mut self, fabric: &Fabric, host: Host) -> Self {
        self.namespace = Some(fabric.namespace(host));
        self
    }

    /// Runs it under `metaroce run --`.
    #[must_use]
    pub fn under_metaroce(mut self, artefacts: &Artefacts) -> Self {
        self.launcher = Some(artefacts.launcher());
        self
    }

    /// Runs it (and the launcher) as the user nobody.
    #[must_use]
    pub fn as_nobody(mut self) -> Self {
        self.nobody = true;
        self
    }

    /// Kills it after `limit`.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Its name for messages.
    pub fn name(&self) -> String {
        let path = PathBuf::from(&self.program);
        path.file_name()
            .unwrap_or(&self.program)
            .to_string_lossy()
            .into_owned()
    }

    /// The words of the command line, launcher and all.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(["ip", "netns", "exec", namespace].map(OsString::from));
        }
        if self.nobody {
            let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
            words.push("setpriv".into());
            words.extend(user.map(OsString::from));
            words.push("--clear-groups".into());
        }
        if let Some(launcher) = &self.launcher {
            words.extend([launcher.clone().into_os_string(), "run".into(), "--".into()]);
        }
        words.push(self.program.clone());
        words.extend(self.arguments.iter().cloned());
        words
    }

    /// The command line as a person would type it.
    pub fn command_line(&self) -> String {
        let words: Vec<String> = self
            .words()
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        words.join(" ")
    }

    /// Starts it.
    ///
    /// # Errors
    /// A program of the command line is missing, or no process could be made.
    pub fn spawn(&self) -> Result<Proc> {
        let words = self.words();
        let first = match words[0].to_str() {
            Some(name) if !name.contains('/') => tool::require(name)?.into_os_string(),
            _ => words[0].clone(),
        };
        let mut command = Command::new(first);
        command
            .args(&words[1..])
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        Proc::start(command, self.name(), self.command_line(), self.limit)
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// As [`Program::spawn`] and [`Proc::wait`]; what the program itself did is in the outcome.
    pub fn run(&self) -> Result<Outcome> {
        self.spawn()?.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_in_front_of_the_program_is_in_order() {
        let words = Program::new("true").as_nobody().command_line();
        assert_eq!(
            words,
            "setpriv --reuid=65534 --regid=65534 --clear-groups true"
        );
    }
}
