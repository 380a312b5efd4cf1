//! Asking engines: all at the same time, and none for longer than the others may be kept waiting. A process that is
//! stopped or hangs is connected to by the kernel all the same and then does not answer; one that ended is gone.

use super::find::Namespace;
use metaroce::telemetry::SocketName;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use nix::unistd::Uid;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long an engine may take: it answers within a millisecond, or some hundred where processors are scarce.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// The same for one that has not answered the last time.
pub(super) const SILENT_WITHIN: Duration = Duration::from_millis(100);
/// Nothing that is larger is an answer: the engine limits itself to less (64 paths of each of 1,024 connections).
const MAX_ANSWER_BYTES: usize = 128 << 20;
/// Bytes read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// An engine that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Engine {
    /// The name of its socket.
    pub(super) name: SocketName,
    /// Process, as we see it; as it sees itself where we do not see it.
    pub(super) pid: u32,
    /// Its network namespace.
    pub(super) namespace: u64,
}

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The text.
    Text(Vec<u8>),
    /// None, and why.
    Silence(String),
    /// It is another user's.
    Foreign,
    /// It ended.
    Gone,
}

/// What became of all questions.
#[derive(Debug)]
pub(super) struct Asked {
    /// Of those that were asked.
    pub(super) answers: Vec<(Engine, Answer)>,
    /// Those that could be asked and were not wanted.
    pub(super) passed_over: Vec<Engine>,
}

/// A question that is under way.
struct Question {
    engine: Engine,
    stream: Option<UnixStream>,
    text: Vec<u8>,
    answer: Option<Answer>,
    /// Nobody waits long for it.
    hopeless: bool,
}

/// Asks every engine of `namespaces` that `wanted` wants; those that `was_silent` knows are not waited for long.
pub(super) fn all(
    namespaces: &[Namespace],
    wanted: impl Fn(&Engine) -> bool,
    was_silent: impl Fn(&Engine) -> bool,
) -> Asked {
    let began = Instant::now();
    let (mut questions, others): (Vec<Question>, Vec<Question>) = namespaces
        .iter()
        .flat_map(knock)
        .partition(|question| wanted(&question.engine));
    let passed_over = others
        .into_iter()
        .filter(|question| !matches!(question.answer, Some(Answer::Gone | Answer::Foreign)))
        .map(|question| question.engine)
        .collect();
    for question in &mut questions {
        question.hopeless = was_silent(&question.engine);
    }
    listen(&mut questions, began);
    let answered = questions.into_iter().map(|question| {
        let answer = question
            .answer
            .unwrap_or_else(|| silence_of(&question.engine));
        (question.engine, answer)
    });
    Asked {
        answers: answered.collect(),
        passed_over,
    }
}

/// Connects to all sockets of a namespace.
fn knock(namespace: &Namespace) -> Vec<Question> {
    let Some(entrance) = &namespace.entrance else {
        return connect_all(namespace, None);
    };
    // Only the calling thread enters the namespace; connections remain when it ends.
    let enter = || -> Result<(), Errno> {
        let file = File::open(entrance)
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
        setns(file, CloneFlags::CLONE_NEWNET)
    };
    let connected = std::thread::scope(|scope| {
        scope
            .spawn(|| match enter() {
                Ok(()) => connect_all(namespace, None),
                Err(Errno::ENOENT | Errno::ESRCH) => Vec::new(),
                Err(Errno::EPERM | Errno::EACCES) => connect_all(
                    namespace,
                    Some("it is in another network namespace: ask as root, or in there".into()),
                ),
                Err(error) => connect_all(
                    namespace,
                    Some(format!("its network namespace cannot be entered: {error}")),
                ),
            })
            .join()
    });
    connected.unwrap_or_default()
}

fn connect_all(namespace: &Namespace, obstacle: Option<String>) -> Vec<Question> {
    let question = |name: &SocketName| {
        let mut question = Question {
            engine: Engine {
                name: name.clone(),
                pid: name.pid,
                namespace: namespace.inode,
            },
            stream: None,
            text: Vec::new(),
            answer: obstacle.clone().map(Answer::Silence),
            hopeless: false,
        };
        if question.answer.is_none() {
            match connect_to(name) {
                Ok(stream) => question.check(stream),
                // It ended since it was listed.
                Err(Errno::ECONNREFUSED | Errno::ENOENT) => question.answer = Some(Answer::Gone),
                // So many wait for an answer that it takes no more.
                Err(Errno::EAGAIN) => {}
                Err(error) => {
                    question.answer = Some(Answer::Silence(format!("cannot be asked: {error}")))
                }
            }
        }
        question
    };
    namespace.names.iter().map(question).collect()
}

/// Never waits.
fn connect_to(name: &SocketName) -> Result<UnixStream, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let address = UnixAddr::new_abstract(name.to_string().as_bytes())?;
    connect(socket.as_raw_fd(), &address)?;
    Ok(UnixStream::from(socket))
}

impl Question {
    /// Who is at the other end, by the kernel's word and not by the name.
    fn check(&mut self, stream: UnixStream) {
        let Ok(peer) = getsockopt(&stream, PeerCredentials) else {
            self.answer = Some(Answer::Gone);
            return;
        };
        let me = Uid::effective();
        if !me.is_root() && Uid::from_raw(peer.uid()) != me {
            self.answer = Some(Answer::Foreign);
            return;
        }
        // 0: it is in a PID namespace that we do not see.
        if let Ok(pid @ 1..) = u32::try_from(peer.pid()) {
            self.engine.pid = pid;
            // A child that it forked may still have the socket.
            if fs::metadata(format!("/proc/{pid}")).is_err() {
                self.answer = Some(Answer::Gone);
                return;
            }
        }
        self.stream = Some(stream);
    }

    fn is_open(&self) -> bool {
        self.answer.is_none() && self.stream.is_some()
    }

    /// Takes what is there.
    fn read(&mut self) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => {
                    let text = std::mem::take(&mut self.text);
                    // An engine that ends, or has too much to answer, closes without a word.
                    self.answer = Some(if text.is_empty() {
                        Answer::Gone
                    } else {
                        Answer::Text(text)
                    });
                    return;
                }
                Ok(count) => self.text.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.answer = Some(Answer::Gone);
                    return;
                }
            }
            if self.text.len() > MAX_ANSWER_BYTES {
                self.answer = Some(Answer::Silence("its answer does not end".into()));
                return;
            }
        }
    }
}

/// Reads all answers, until all are there or nobody who matters is left to wait for.
fn listen(questions: &mut [Question], began: Instant) {
    loop {
        let mut open: Vec<&mut Question> = questions
            .iter_mut()
            .filter(|question| question.is_open())
            .collect();
        let within = if open.iter().all(|question| question.hopeless) {
            SILENT_WITHIN
        } else {
            ANSWER_WITHIN
        };
        let left = within.saturating_sub(began.elapsed());
        if open.is_empty() || left.is_zero() {
            return;
        }
        let mut fds: Vec<PollFd<'_>> = open
            .iter()
            .filter_map(|question| {
                Some(PollFd::new(
                    question.stream.as_ref()?.as_fd(),
                    PollFlags::POLLIN,
                ))
            })
            .collect();
        let timeout =
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        if let Err(error) = poll(&mut fds, timeout)
            && error != Errno::EINTR
        {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        for (question, _) in open.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            question.read();
        }
    }
}

/// Why a process may not have answered.
fn silence_of(engine: &Engine) -> Answer {
    let status = fs::read_to_string(format!("/proc/{}/stat", engine.pid)).unwrap_or_default();
    // The name before it may have spaces and parentheses.
    let state = status
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    match state {
        Some('T') => Answer::Silence("it is stopped (SIGSTOP, Ctrl-Z)".into()),
        Some('t') => Answer::Silence("a debugger holds it".into()),
        Some('Z' | 'X') => Answer::Gone,
        _ => Answer::Silence(format!(
            "it does not answer within {} s",
            ANSWER_WITHIN.as_secs()
        )),
    }
}
