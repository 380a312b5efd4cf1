//! The suite's own peer: one connection's other end, which does what a script says and no more.
//!
//! It keeps what a peer must: ids, lives, the PSNs and stamps of its paths, what arrived on the target's (`paths.rs`),
//! and builds packets with right checksums by the codec, or wrong ones by bytes. What arrives is shown to the script
//! first ([`Peer::expect`]); what the script does not want is answered as [`Answers`] says, so that HELLOs, OPENs and
//! probes do not distract. All packets, both ways, are kept to be shown when a script fails.

mod got;
mod opening;
mod paths;
mod standing;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use metaroce_proto::wire::{
    AckNumber, Allowance, Base, ConnectionId, ControlBuilder, GRANT_UNLIMITED, Gid, Hello,
    HelloIdentity, Incarnation, dissect,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub use got::{Body, Got, Item};
pub use opening::{ConnectOptions, Stream, cut};
pub use paths::{Received, Sending};
pub use standing::CITES as STANDING_CITES;

use crate::sockets::{CE, Sockets};
use standing::Standing;

/// Packets that are kept to be shown: the first ones, and the last.
const FIRST_KEPT: usize = 16;
const LAST_KEPT: usize = 48;

/// Something that must come has come by then, on a machine that is busy with something else.
pub const SOON: Duration = Duration::from_secs(3);

/// Something that must not come has not come for so long.
pub const QUIET: Duration = Duration::from_millis(60);

/// Paths that the peer sends on at most, and accepts.
pub const PATHS: usize = 256;

/// Packets of one script at most: a target that floods ends the script.
const PACKETS_MAX: u64 = 2_000_000;

/// What the peer does by itself with packets that the script does not take.
#[derive(Clone, Copy, Debug)]
pub struct Answers {
    /// Answers HELLOs, OPENs and SHUTs.
    pub control: bool,
    /// Takes DATA for received and acknowledges it.
    pub data: bool,
    /// Says in the ACKs that whatever arrived whole was executed.
    pub execute: bool,
}

/// The other end of the target's connection.
pub struct Peer {
    sockets: Sockets,
    /// Its address.
    pub ip: IpAddr,
    /// Its endpoint's port, and index in the range.
    pub port: u16,
    /// Index of that port.
    pub index: u16,
    /// Where the target receives.
    pub target: SocketAddr,
    /// The id that the target puts into packets to this peer.
    pub my_id: ConnectionId,
    /// The id that the target wants in packets to it.
    pub id: ConnectionId,
    /// This peer's incarnation.
    pub incarnation: Incarnation,
    /// The target's last HELLO.
    pub hello_of_target: Option<Hello>,
    /// What this peer's HELLOs say besides ids.
    pub hello: Hello,
    /// What it allows in its ACKs.
    pub allowance: Allowance,
    ack_number: AckNumber,
    /// What it does by itself.
    pub answers: Answers,
    /// Which DATA is lost on its way here, where [`Answers::data`] is set.
    pub lose: Box<dyn FnMut(&Got) -> bool>,
    /// DATA that came while [`Answers::data`] was set, lost ones included.
    pub record: Vec<Got>,
    /// Source socket that packets leave by, unless a script names another.
    pub source: usize,
    sending: Vec<Sending>,
    received: Vec<Received>,
    /// The lives that were opened.
    pub streams: Vec<Stream>,
    waiting: VecDeque<Got>,
    standing: Standing,
    started: Instant,
    kept: VecDeque<String>,
    left_out: u64,
    count: u64,
    /// For ids, tokens and whatever else.
    pub random: SmallRng,
}

impl Peer {
    /// A peer of the endpoint with `target_gid`, at `ip`, with the port of `index`.
    ///
    /// # Errors
    /// Its sockets cannot be made.
    pub fn new(ip: IpAddr, port_base: u16, index: u16, target_gid: Gid, seed: u64) -> Result<Self> {
        let port = port_base
            .checked_add(index)
            .context("the port range ends beyond 65535")?;
        let mut random = SmallRng::seed_from_u64(seed);
        let my_id = ConnectionId(random.random_range(1..=u32::MAX));
        let incarnation = Incarnation(random.random());
        let standing = Standing::new(my_id.0);
        let hello = Hello {
            source_gid: Gid::from_ip(ip),
            dest_gid: target_gid,
            endpoint_port: port,
            payload_bytes: 4096,
            paths: 64,
            window_bytes: 1 << 20,
            w0_packets: 16,
            message_span: 1024,
            packet_span: 4096,
            ..Hello::default()
        };
        Ok(Self {
            sockets: Sockets::bind(ip, port)?,
            ip,
            port,
            index,
            target: SocketAddr::new(target_gid.to_ip(), port_base),
            my_id,
            id: ConnectionId(0),
            incarnation,
            hello_of_target: None,
            hello,
            allowance: Allowance {
                grant_kib_per_s: GRANT_UNLIMITED,
                window_bytes: 1 << 20,
                w0_packets: 16,
            },
            ack_number: AckNumber(0),
            answers: Answers {
                control: true,
                data: false,
                execute: false,
            },
            lose: Box::new(|_| false),
            record: Vec::new(),
            source: 0,
            sending: vec![Sending::default(); PATHS],
            received: vec![Received::default(); PATHS],
            streams: Vec::new(),
            waiting: VecDeque::new(),
            standing,
            started: Instant::now(),
            kept: VecDeque::new(),
            left_out: 0,
            count: 0,
            random,
        })
    }

    fn note(&mut self, direction: &str, port: u16, bytes: &[u8]) {
        if self.kept.len() == FIRST_KEPT + LAST_KEPT {
            self.kept.remove(FIRST_KEPT);
            self.left_out += 1;
        }
        let ms = self.started.elapsed().as_secs_f64() * 1e3;
        self.kept.push_back(format!(
            "{ms:10.3} ms {direction} {port:5} {}",
            dissect(bytes)
        ));
    }

    /// The last packets, for people.
    pub fn history(&self) -> String {
        let mut text = String::new();
        for (number, line) in self.kept.iter().enumerate() {
            if number == FIRST_KEPT && self.left_out > 0 {
                text.push_str(&format!("  … {} packets …\n", self.left_out));
            }
            text.push_str(&format!("  {line}\n"));
        }
        text
    }

    // ---- Sending ----

    /// Sends a packet from the present source port.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.send_from(self.source, bytes)
    }

    /// Sends a packet from a source port.
    ///
    /// # Errors
    /// As [`Peer::send`].
    pub fn send_from(&mut self, source: usize, bytes: &[u8]) -> Result<()> {
        self.note("->", self.sockets.source_port(source)?, bytes);
        self.sockets.send(source, self.target, bytes)
    }

    /// Sends a packet as if a switch had marked it.
    ///
    /// # Errors
    /// As [`Peer::send`].
    pub fn send_marked(&mut self, bytes: &[u8]) -> Result<()> {
        self.note("->CE", self.sockets.source_port(self.source)?, bytes);
        self.sockets
            .send_marked(self.source, self.target, bytes, CE)
    }

    /// Sends a packet from an address that is none of this peer's.
    ///
    /// # Errors
    /// The address is not of this host.
    pub fn send_as_stranger(&mut self, ip: IpAddr, bytes: &[u8]) -> Result<()> {
        let socket = UdpSocket::bind((ip, 0))
            .with_context(|| format!("no address {ip} to be a stranger at (--stranger)"))?;
        self.note("stranger ->", socket.local_addr()?.port(), bytes);
        socket.send_to(bytes, self.target)?;
        Ok(())
    }

    /// A CONTROL packet of what `push` puts into it, with the connection id that the target wants.
    ///
    /// # Errors
    /// It does not fit.
    pub fn control(&self, push: impl FnOnce(&mut ControlBuilder<'_>) -> bool) -> Result<Vec<u8>> {
        self.control_to(self.id, push)
    }

    /// As [`Peer::control`], with another connection id.
    ///
    /// # Errors
    /// It does not fit.
    pub fn control_to(
        &self,
        connection: ConnectionId,
        push: impl FnOnce(&mut ControlBuilder<'_>) -> bool,
    ) -> Result<Vec<u8>> {
        let mut packet = vec![0; 1400];
        let mut builder = ControlBuilder::new(&mut packet);
        if !push(&mut builder) {
            bail!("a CONTROL packet of the suite is too small for its items");
        }
        let base = Base {
            connection,
            ..Base::default()
        };
        let length = builder.finish(&base);
        packet.truncate(length);
        Ok(packet)
    }

    /// This peer's HELLO with `echo`.
    pub fn my_hello(&self, echo: ConnectionId) -> Hello {
        Hello {
            identity: HelloIdentity {
                my_id: self.my_id,
                incarnation: self.incarnation,
                echo,
            },
            ..self.hello.clone()
        }
    }

    // ---- Receiving ----

    /// The next packet by `deadline`. Standing checks are done; malformed ones are taken down and left out.
    ///
    /// # Errors
    /// The kernel refuses, or the target floods.
    pub fn next_by(&mut self, deadline: Instant) -> Result<Option<Got>> {
        if let Some(got) = self.waiting.pop_front() {
            return Ok(Some(got));
        }
        loop {
            let Some(datagram) = self.sockets.receive(deadline)? else {
                return Ok(None);
            };
            self.count += 1;
            if self.count > PACKETS_MAX {
                bail!("the target sent more than {PACKETS_MAX} packets");
            }
            if datagram.from.ip() != self.target.ip() {
                continue;
            }
            self.note("<-", datagram.from.port(), &datagram.bytes);
            match Got::of(datagram) {
                Ok(got) => {
                    self.standing.check(&got);
                    self.note_executed(&got);
                    return Ok(Some(got));
                }
                Err(error) => self.standing.violations.push(format!(
                    "W-2.5: a packet of the target is malformed: {error:?}"
                )),
            }
        }
    }

    /// Waits for a packet of which `wanted` makes something; the others are answered as [`Peer::answers`] says.
    ///
    /// # Errors
    /// None came within the time; `what` says what it was.
    pub fn expect_within<T>(
        &mut self,
        within: Duration,
        what: &str,
        mut wanted: impl FnMut(&mut Self, &Got) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + within;
        while let Some(got) = self.next_by(deadline)? {
            if let Some(found) = wanted(self, &got) {
                return Ok(found);
            }
            self.answer(&got)?;
        }
        bail!("no {what} within {within:?}")
    }

    /// As [`Peer::expect_within`], within [`SOON`].
    ///
    /// # Errors
    /// As there.
    pub fn expect<T>(
        &mut self,
        what: &str,
        wanted: impl FnMut(&mut Self, &Got) -> Option<T>,
    ) -> Result<T> {
        self.expect_within(SOON, what, wanted)
    }

    /// Answers packets as usual for `time`; fails if one comes that `unwanted` is true of.
    ///
    /// # Errors
    /// One came; `what` says what it was.
    pub fn never_for(
        &mut self,
        time: Duration,
        what: &str,
        mut unwanted: impl FnMut(&Got) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + time;
        while let Some(got) = self.next_by(deadline)? {
            if unwanted(&got) {
                bail!("{what}: {}", dissect(&got.bytes));
            }
            self.answer(&got)?;
        }
        Ok(())
    }

    /// As [`Peer::never_for`], for [`QUIET`].
    ///
    /// # Errors
    /// As there.
    pub fn never(&mut self, what: &str, unwanted: impl FnMut(&Got) -> bool) -> Result<()> {
        self.never_for(QUIET, what, unwanted)
    }

    /// Packets that come within `time`, none of them answered but HELLOs, OPENs and SHUTs.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn collect_for(&mut self, time: Duration) -> Result<Vec<Got>> {
        let answers = self.answers;
        self.answers.data = false;
        let deadline = Instant::now() + time;
        let mut all = Vec::new();
        while let Some(got) = self.next_by(deadline)? {
            self.answer(&got)?;
            all.push(got);
        }
        self.answers = answers;
        Ok(all)
    }

    /// Puts a packet back: it is the next one to come.
    pub fn put_back(&mut self, got: Got) {
        self.waiting.push_front(got);
    }

    /// Does with a packet what [`Peer::answers`] says.
    ///
    /// # Errors
    /// An answer cannot be sent.
    pub fn answer(&mut self, got: &Got) -> Result<()> {
        if self.answers.control && !got.items().is_empty() {
            self.answer_control(got)?;
        }
        if self.answers.data && got.data().is_some() {
            self.record.push(got.clone());
            if (self.lose)(got) {
                return Ok(());
            }
            if self.take(got) && self.answers.execute {
                self.execute(got);
            }
            self.acknowledge()?;
        }
        Ok(())
    }

    /// What was wrong with the target's packets, whatever the script thinks of them. `whole`: no packet of the target
    /// can have been lost.
    pub fn violations(&mut self, whole: bool) -> Vec<String> {
        let mut all = std::mem::take(&mut self.standing.violations);
        if whole {
            all.extend(self.standing.holes());
        }
        if let Some((port, length)) = self.sockets.strayed() {
            all.push(format!(
                "W-1.16: {length} bytes came to the source port {port}, which receives nothing"
            ));
        }
        all
    }

    /// The endpoint's port closes: the kernel answers for it with ICMP errors.
    pub fn hang_up(self) {}
}
