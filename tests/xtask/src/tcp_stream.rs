//! A TCP stream of 1 MiB writes: what a good socket program gets, as a yardstick for RDMA writes.
//!
//! iperf3's defaults write 128 KiB at a time; this writes as much as an RDMA message has. The demo starts
//! both ends of it from this very program.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Subcommand;

/// Bytes of a write, and of a read at most.
const WRITE_BYTES: usize = 1 << 20;

/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// The two ends.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Receive from one client, then end; prints Gb/s.
    Server {
        /// Port to listen on.
        #[arg(long)]
        port: u16,
    },
    /// Send to a server for some seconds.
    Client {
        /// Address and port of the server.
        server: SocketAddr,
        /// How long, in seconds.
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
    },
}

/// Runs one end.
pub fn run(command: &Command) -> Result<()> {
    match *command {
        Command::Server { port } => {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
                .with_context(|| format!("cannot listen on TCP port {port}"))?;
            let gigabits_per_second = receive(&listener.accept()?.0)?;
            println!("{gigabits_per_second:.2}");
        }
        Command::Client { server, seconds } => {
            let stream = TcpStream::connect_timeout(&server, PATIENCE)
                .with_context(|| format!("cannot connect to {server}"))?;
            send(&stream, duration_of(seconds)?)?;
        }
    }
    Ok(())
}

fn duration_of(seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .with_context(|| format!("{seconds} is no number of seconds"))
}

/// Reads until the sender closes; the rate in Gb/s from the first byte on.
fn receive(mut stream: &TcpStream) -> Result<f64> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = vec![0; WRITE_BYTES];
    let (mut started, mut bytes) = (Instant::now(), 0_u64);
    loop {
        let read = stream.read(&mut buffer).context("the sender went silent")?;
        if read == 0 {
            break;
        }
        if bytes == 0 {
            started = Instant::now();
        }
        bytes += read as u64;
    }
    // Precision beyond 52 bits does not matter here.
    Ok(bytes as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e9)
}

fn send(mut stream: &TcpStream, duration: Duration) -> Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let buffer = vec![0x5a; WRITE_BYTES];
    let started = Instant::now();
    while started.elapsed() < duration {
        stream
            .write_all(&buffer)
            .context("the receiver went silent")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_counted() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let sender = std::thread::spawn(move || {
            send(
                &TcpStream::connect(address).unwrap(),
                Duration::from_millis(100),
            )
            .unwrap();
        });
        let rate = receive(&listener.accept().unwrap().0).unwrap();
        sender.join().unwrap();
        assert!(rate > 0.0);
    }
}
