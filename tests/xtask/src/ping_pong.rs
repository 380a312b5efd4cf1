//! A ping-pong of small messages over a plain socket: what TCP and UDP programs get, as a yardstick for
//! `ib_send_lat` (busy-polled) and `ib_send_lat -e` (blocking).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};

/// Bytes of a message.
const MESSAGE_BYTES: usize = 8;

/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Exchanges that are not counted: caches and the processor's clock warm up.
const WARM_UP: usize = 200;

/// The two ends.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one client, then end.
    Server {
        /// Port to listen on.
        #[arg(long)]
        port: u16,
        #[command(flatten)]
        way: Way,
    },
    /// Ask a server; prints half the round trip: median and 99th percentile in microseconds.
    Client {
        /// Address and port of the server.
        server: SocketAddr,
        /// How many exchanges.
        #[arg(long, default_value_t = 50_000)]
        count: usize,
        #[command(flatten)]
        way: Way,
    },
}

/// How the two ends talk; the same at both.
#[derive(Debug, Clone, Copy, Args)]
pub struct Way {
    /// The transport.
    #[arg(long, value_enum, default_value_t = Over::Tcp)]
    over: Over,
    /// Sleep in the kernel for each message instead of polling the socket.
    #[arg(long)]
    block: bool,
}

/// The transport of a ping-pong.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Over {
    Tcp,
    Udp,
}

/// Runs one end.
pub fn run(command: &Command) -> Result<()> {
    match *command {
        Command::Server { port, way } => {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            answer(&mut Listener::bind(address, way)?.accept(way)?)
        }
        Command::Client { server, count, way } => {
            ensure!(count > 0, "--count must be at least 1");
            let halves = ask(&mut Line::connect(server, way)?, count)?;
            println!(
                "{:.2} {:.2}",
                quantile(&halves, 0.5),
                quantile(&halves, 0.99)
            );
            Ok(())
        }
    }
}

/// A socket of either kind that waits for a client.
enum Listener {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Listener {
    fn bind(address: SocketAddr, way: Way) -> Result<Self> {
        let bound = match way.over {
            Over::Tcp => TcpListener::bind(address).map(Self::Tcp),
            Over::Udp => UdpSocket::bind(address).map(Self::Udp),
        };
        bound.with_context(|| format!("cannot listen on {address}"))
    }

    /// Waits for the client. Over UDP its first message is taken as its greeting and stays unanswered.
    fn accept(self, way: Way) -> Result<Line> {
        let line = match self {
            Self::Tcp(listener) => Line::Tcp(listener.accept()?.0),
            Self::Udp(socket) => {
                socket.set_read_timeout(Some(PATIENCE))?;
                let (_, client) = socket
                    .recv_from(&mut [0; MESSAGE_BYTES])
                    .context("no client came")?;
                socket.connect(client)?;
                Line::Udp(socket)
            }
        };
        line.configured(way)
    }
}

/// A connected socket of either kind.
enum Line {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Line {
    fn connect(server: SocketAddr, way: Way) -> Result<Self> {
        let line = match way.over {
            Over::Tcp => Self::Tcp(
                TcpStream::connect_timeout(&server, PATIENCE)
                    .with_context(|| format!("cannot connect to {server}"))?,
            ),
            Over::Udp => {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect(server)?;
                Self::Udp(socket)
            }
        };
        line.configured(way)
    }

    fn configured(self, way: Way) -> Result<Self> {
        match &self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_nonblocking(!way.block)?;
            }
            Self::Udp(socket) => {
                socket.set_read_timeout(Some(PATIENCE))?;
                socket.set_nonblocking(!way.block)?;
            }
        }
        Ok(self)
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(message),
            Self::Udp(socket) => socket.send(message).map(drop),
        }
    }

    /// Takes the next message; false when the peer has ended.
    fn receive(&mut self, message: &mut [u8; MESSAGE_BYTES]) -> Result<bool> {
        let (mut filled, mut spins, started) = (0, 0_u64, Instant::now());
        while filled < MESSAGE_BYTES {
            let read = match self {
                Self::Tcp(stream) => stream.read(&mut message[filled..]),
                Self::Udp(socket) => socket.recv(message),
            };
            match read {
                // TCP: closed. UDP: the short message by which a client says that it has done.
                Ok(0) => return Ok(false),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    spins += 1;
                    if spins.is_multiple_of(1 << 16) && started.elapsed() > PATIENCE {
                        bail!("the peer went silent");
                    }
                }
                Err(error) => return Err(error).context("the peer went silent"),
            }
        }
        Ok(true)
    }
}

fn answer(line: &mut Line) -> Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    while line.receive(&mut message)? {
        line.send(&message)?;
    }
    Ok(())
}

/// Half of each round trip, in microseconds, sorted.
fn ask(line: &mut Line, count: usize) -> Result<Vec<f64>> {
    if matches!(line, Line::Udp(_)) {
        line.send(&[0; MESSAGE_BYTES])?;
    }
    let mut halves = Vec::with_capacity(count);
    for number in 0..WARM_UP + count {
        let sent = (number as u64).to_le_bytes();
        let started = Instant::now();
        line.send(&sent)?;
        let mut received = [0; MESSAGE_BYTES];
        ensure!(line.receive(&mut received)?, "the server ended");
        let half = started.elapsed().as_secs_f64() * 1e6 / 2.0;
        ensure!(received == sent, "the answer is not the question");
        if number >= WARM_UP {
            halves.push(half);
        }
    }
    if matches!(line, Line::Udp(_)) {
        line.send(&[])?;
    }
    halves.sort_by(f64::total_cmp);
    Ok(halves)
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    // The product is within the slice: `part` is at most 1.
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(Over::Tcp, false)]
    #[case(Over::Tcp, true)]
    #[case(Over::Udp, false)]
    #[case(Over::Udp, true)]
    fn every_message_comes_back(#[case] over: Over, #[case] block: bool) {
        let way = Way { over, block };
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), way).unwrap();
        let address = match &listener {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Udp(socket) => socket.local_addr(),
        };
        let server = std::thread::spawn(move || answer(&mut listener.accept(way)?));
        let mut line = Line::connect(address.unwrap(), way).unwrap();
        let halves = ask(&mut line, 50).unwrap();
        drop(line);
        server.join().unwrap().unwrap();
        assert_eq!(halves.len(), 50);
        assert!(halves[0] > 0.0 && quantile(&halves, 0.5) <= quantile(&halves, 1.0));
    }
}
