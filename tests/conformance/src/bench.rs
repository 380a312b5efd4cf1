//! What a script works with: a target of its own, a peer of it, and the words that most scripts need.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use metaroce_proto::wire::{BaseFlags, DataHeader, StreamBlock};

use crate::peer::{ConnectOptions, Got, Peer, SOON, Stream};
use crate::target::{Completion, Start, Target, gid_text};

/// How long the peer looks for packets between two looks for completions.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// A path that no script uses otherwise.
const SETTLING_PATH: u8 = 63;

/// Where things are.
#[derive(Clone, Debug)]
pub struct Place {
    /// Address of the peer.
    pub peer: IpAddr,
    /// An address that is none of the peer's, for forgeries.
    pub stranger: IpAddr,
    /// First UDP port of the endpoints' range.
    pub port_base: u16,
}

/// Second bytes of the loopback addresses: of peers, and of strangers.
const PEERS: u8 = 80;
const STRANGERS: u8 = 160;

impl Default for Place {
    /// On the loopback interface, whose addresses are many: each process has its own, and several may run at once.
    fn default() -> Self {
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let address = |second: u8| IpAddr::from([127, second + (high & 0x3f), middle, low]);
        Self {
            peer: address(PEERS),
            stranger: address(STRANGERS),
            port_base: 24_791,
        }
    }
}

/// A target, and its peer.
pub struct Bench {
    /// The endpoint under test.
    pub target: Target,
    /// The other end.
    pub peer: Peer,
    /// Where they are.
    pub place: Place,
    start: Start,
    seed: u64,
    /// No packet of the target can have been lost: its PSNs have no holes.
    pub whole: bool,
}

impl Bench {
    /// Starts a target and makes a peer with the endpoint index `index`.
    ///
    /// # Errors
    /// The target does not start, or the peer's address is taken.
    pub fn new(start: &Start, place: &Place, index: u16) -> Result<Self> {
        let target = Target::start(start)?;
        let seed = u64::from(index);
        let peer = Peer::new(place.peer, place.port_base, index, target.gid, seed)?;
        Ok(Self {
            target,
            peer,
            place: place.clone(),
            start: start.clone(),
            seed,
            whole: true,
        })
    }

    /// A further peer, with the endpoint index `further` above the first one's.
    ///
    /// # Errors
    /// The port is taken.
    pub fn another_peer(&self, further: u16) -> Result<Peer> {
        let index = self.peer.index + further;
        let seed = self.seed + (u64::from(further) << 32);
        let (ip, base) = (self.place.peer, self.place.port_base);
        Peer::new(ip, base, index, self.target.gid, seed)
    }

    /// Kills the target and starts another.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart_target(&mut self) -> Result<()> {
        self.target.kill()?;
        self.target = Target::start(&self.start)?;
        Ok(())
    }

    /// Makes a queue pair and begins its life, up to RTS; nothing was received yet. Its place in the peer's streams.
    ///
    /// # Errors
    /// The target refuses.
    pub fn begin(&mut self, options: &ConnectOptions) -> Result<usize> {
        begin(&mut self.target, &mut self.peer, options)
    }

    /// A queue pair that is connected both ways.
    ///
    /// # Errors
    /// It does not open in time.
    pub fn connect(&mut self, options: &ConnectOptions) -> Result<usize> {
        let at = self.begin(options)?;
        self.peer.open_up(at)?;
        Ok(at)
    }

    /// The peer's end of a stream.
    pub fn stream(&mut self, at: usize) -> &mut Stream {
        &mut self.peer.streams[at]
    }

    /// Sends a message of one packet on `path`; returns the packet.
    ///
    /// # Errors
    /// It cannot be sent.
    pub fn send(&mut self, path: u8, header: &DataHeader, payload: &[u8]) -> Result<Vec<u8>> {
        let packet = self.peer.data(path, BaseFlags::NONE, header, payload);
        self.peer.send(&packet)?;
        Ok(packet)
    }

    /// Waits for an ACK whose block of `path` has `cumulative`, and returns it.
    ///
    /// # Errors
    /// None came in time.
    pub fn acknowledged(&mut self, path: u8, cumulative: u32) -> Result<Got> {
        let what = format!("ACK of path {path} up to {cumulative}");
        self.peer.expect(&what, |_, got| {
            let block = got.block(path)?;
            (block.cumulative.0 == cumulative).then(|| got.clone())
        })
    }

    /// Waits for a stream block that says that `msn` is executed; it may have come already.
    ///
    /// # Errors
    /// None came in time.
    pub fn executed(&mut self, at: usize, msn: u32) -> Result<()> {
        let is_executed = |peer: &Peer| {
            let told = peer.streams[at].told;
            told.is_some_and(|block| block.msn_executed.0 == msn)
        };
        if is_executed(&self.peer) {
            return Ok(());
        }
        let what = format!("stream block with MSN {msn} executed");
        self.peer
            .expect(&what, |peer, _| is_executed(peer).then_some(()))
    }

    /// Waits for a stream block of which `wanted` is true; the newest may be it already.
    ///
    /// # Errors
    /// None came in time; `what` says what it was.
    pub fn told(
        &mut self,
        at: usize,
        what: &str,
        wanted: impl Fn(&StreamBlock) -> bool,
    ) -> Result<StreamBlock> {
        if let Some(block) = self.peer.streams[at].told.filter(&wanted) {
            return Ok(block);
        }
        self.peer
            .expect(what, |peer, _| peer.streams[at].told.filter(&wanted))
    }

    /// Everything that was sent so far has been read by the target: it answers a NOP that was sent after it.
    ///
    /// # Errors
    /// It does not answer.
    pub fn settle(&mut self) -> Result<()> {
        // Not a probe: that would be answered twice, and the second answer come later.
        let nop = self.peer.nop(SETTLING_PATH, BaseFlags::ACK_REQUESTED);
        self.peer.send(&nop)?;
        self.peer.expect("answer to a NOP", |_, got| {
            let block = got.block(SETTLING_PATH)?;
            (block.echoed_stamp.0.to_be_bytes() == nop[12..16]).then_some(())
        })
    }

    /// The target's next completion; the peer answers packets meanwhile.
    ///
    /// # Errors
    /// None came in time.
    pub fn completion(&mut self) -> Result<Completion> {
        self.completion_within(SOON)
    }

    /// As [`Bench::completion`], within a time.
    ///
    /// # Errors
    /// None came in time.
    pub fn completion_within(&mut self, within: Duration) -> Result<Completion> {
        let deadline = Instant::now() + within;
        loop {
            self.target.poll()?;
            if let Some(completion) = self.target.next_completion() {
                return Ok(completion);
            }
            ensure!(
                Instant::now() < deadline,
                "no completion at the target within {within:?}"
            );
            self.peer.never_for(POLL_EVERY, "", |_| false)?;
        }
    }

    /// The next completion must be that of `id`, with `status`.
    ///
    /// # Errors
    /// It is another, or none came in time.
    pub fn completes(&mut self, id: u64, status: u64) -> Result<Completion> {
        let completion = self.completion()?;
        ensure!(
            (completion.id, completion.status) == (id, status),
            "completion of request {} with status {}, where request {id} and status {status} were due",
            completion.id,
            completion.status
        );
        Ok(completion)
    }

    /// No completion comes for `time`; the peer answers packets meanwhile.
    ///
    /// # Errors
    /// One came.
    pub fn no_completion(&mut self, time: Duration) -> Result<()> {
        self.peer.never_for(time, "", |_| false)?;
        self.target.poll()?;
        match self.target.next_completion() {
            None => Ok(()),
            Some(completion) => bail!("a completion that is not due: {completion:?}"),
        }
    }

    /// Counter `name` of the target (all that begin so) has risen by `by` since `before`, where it tells counters.
    ///
    /// # Errors
    /// It has not.
    pub fn counted(&self, name: &str, before: Option<u64>, by: u64) -> Result<()> {
        let now = self.target.counter(name)?;
        if let (Some(before), Some(now)) = (before, now) {
            let risen = now - before;
            ensure!(
                risen == by,
                "counter {name} has risen by {risen}, not by {by}"
            );
        }
        Ok(())
    }

    /// The target works: a WRITE of the peer is executed, and no byte but its own has changed.
    ///
    /// # Errors
    /// It does not.
    pub fn works(&mut self, at: usize, path: u8) -> Result<()> {
        let region = self.target.region(64, 0, "")?;
        let header = self.peer.streams[at].write(&region, 8, 4);
        self.send(path, &header, b"work")?;
        self.executed(at, header.msn.0)?;
        let bytes = self.target.read(&region, 0, 64)?;
        ensure!(
            &bytes[8..12] == b"work" && self.target.other_than(&region, 0)? == 4,
            "a WRITE was executed and is not in memory"
        );
        Ok(())
    }
}

/// As [`Bench::begin`], with any peer.
///
/// # Errors
/// The target refuses.
pub fn begin(target: &mut Target, peer: &mut Peer, options: &ConnectOptions) -> Result<usize> {
    let (qp, qpn) = target.create(options.create)?;
    let at = peer.begin(qp, qpn, options);
    go_to_rts(target, peer, at, options)?;
    Ok(at)
}

/// Brings a queue pair in INIT to RTR and RTS with the life `at` of the peer.
///
/// # Errors
/// The target refuses.
pub fn go_to_rts(
    target: &mut Target,
    peer: &Peer,
    at: usize,
    options: &ConnectOptions,
) -> Result<()> {
    let stream = &peer.streams[at];
    target.tell(&format!(
        "connect qp={} gid={} qpn={} sq_psn={} rq_psn={} rnr_timer={} {}",
        stream.qp,
        gid_text(peer.hello.source_gid),
        stream.my_qpn.get(),
        options.psns.0,
        options.psns.1,
        options.rnr_timer,
        options.connect
    ))?;
    Ok(())
}
