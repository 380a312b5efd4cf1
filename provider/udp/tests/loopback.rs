//! The sockets against the real kernel, over loopback. The last test makes a network namespace of its own for a small
//! MTU and says so and passes where it may not.

use metaroce_udp::{
    Config, Ecn, ErrorOrigin, IoVec, LocalIndex, Poller, PortChoice, RecvBatch, SendError, Sockets,
    SourceSlot, Waker,
};
use rstest::rstest;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const FIRST: LocalIndex = LocalIndex(0);
const SOURCE: SourceSlot = SourceSlot {
    local: FIRST,
    index: 0,
};
/// Where the tests look for ports: apart from the default range, so that a running engine does not disturb.
const BASE: u16 = 26800;

fn config(ip: IpAddr) -> Config {
    Config {
        locals: vec![ip],
        port: PortChoice::Range {
            base: BASE,
            count: 512,
        },
        source_ports: 4,
        ..Config::default()
    }
}

fn open(ip: IpAddr) -> Sockets {
    Sockets::open(&config(ip)).unwrap()
}

fn destination(sockets: &Sockets) -> SocketAddr {
    sockets.locals().next().unwrap().1
}

/// `len` bytes in which no two packets look alike.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect()
}

/// A message received, by value.
struct Message {
    source: SocketAddr,
    ecn: Ecn,
    packets: Vec<Vec<u8>>,
}

/// Receives until `packets` packets are here or a second is over.
fn receive(sockets: &Sockets, packets: usize) -> Vec<Message> {
    let mut batch = RecvBatch::new(4);
    let mut messages: Vec<Message> = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(1);
    while messages.iter().map(|m| m.packets.len()).sum::<usize>() < packets
        && Instant::now() < deadline
    {
        sockets.recv(FIRST, &mut batch).unwrap();
        messages.extend(batch.iter().map(|received| Message {
            source: received.source,
            ecn: received.ecn,
            packets: received.packets().map(<[u8]>::to_vec).collect(),
        }));
    }
    messages
}

fn all_packets(messages: &[Message]) -> Vec<Vec<u8>> {
    messages
        .iter()
        .flat_map(|message| message.packets.clone())
        .collect()
}

#[rstest]
fn a_train_arrives_exact(
    #[values(V4, V6)] ip: IpAddr,
    #[values(true, false)] segmentation: bool,
    #[values(true, false)] gro: bool,
    #[values((15, 4160, 4160), (44, 1464, 1464), (15, 4160, 77), (64, 64, 1), (1, 100, 100))] shape: (
        usize,
        usize,
        usize,
    ),
) {
    let (segments, segment_len, last_len) = shape;
    let sockets = Sockets::open(&Config {
        segmentation_offload: segmentation,
        receive_offload: gro,
        ..config(ip)
    })
    .unwrap();
    let bytes = pattern((segments - 1) * segment_len + last_len);
    // Header and payload as separate pieces, as the engine sends them.
    let iov: Vec<IoVec> = bytes
        .chunks(segment_len)
        .flat_map(|packet| {
            let (header, payload) = packet.split_at(packet.len().min(64));
            [IoVec::from_slice(header), IoVec::from_slice(payload)]
        })
        .collect();
    sockets
        .send_train(SOURCE, &destination(&sockets), &iov, segment_len as u16)
        .unwrap();
    let messages = receive(&sockets, segments);
    let packets = all_packets(&messages);
    assert_eq!(packets.len(), segments);
    assert_eq!(packets.concat(), bytes);
    assert!(
        packets[..segments - 1]
            .iter()
            .all(|packet| packet.len() == segment_len)
    );
    if segmentation && gro {
        assert_eq!(
            messages.len(),
            1,
            "GRO must hand over the train as one message"
        );
    }
    assert_eq!(
        messages[0].source.port(),
        sockets.source_port(SOURCE).unwrap()
    );
    assert!(messages.iter().all(|message| message.ecn == Ecn::Ect0));
    assert_eq!(sockets.segmentation_offload(FIRST), segmentation);
}

#[rstest]
#[case(V4, libc::IPPROTO_IP, libc::IP_TOS)]
#[case(V6, libc::IPPROTO_IPV6, libc::IPV6_TCLASS)]
fn a_congestion_mark_is_seen(#[case] ip: IpAddr, #[case] level: i32, #[case] name: i32) {
    let sockets = open(ip);
    let other = UdpSocket::bind((ip, 0)).unwrap();
    for (mark, expected) in [
        (3, Ecn::CongestionExperienced),
        (1, Ecn::Ect1),
        (0, Ecn::NotCapable),
    ] {
        let mark: i32 = mark;
        // SAFETY: four readable bytes.
        let rc = unsafe {
            libc::setsockopt(other.as_raw_fd(), level, name, (&raw const mark).cast(), 4)
        };
        assert_eq!(rc, 0);
        other.send_to(b"x", destination(&sockets)).unwrap();
        let messages = receive(&sockets, 1);
        assert_eq!(messages[0].ecn, expected);
        assert_eq!(messages[0].source, other.local_addr().unwrap());
    }
}

#[rstest]
fn unreadable_memory_is_bad_memory(#[values(true, false)] segmentation: bool) {
    let sockets = Sockets::open(&Config {
        segmentation_offload: segmentation,
        ..config(V4)
    })
    .unwrap();
    let header = pattern(64);
    // Page 0 is never mapped.
    let iov = [IoVec::from_slice(&header), IoVec::from_address(8, 64)];
    let failure = sockets
        .send_train(SOURCE, &destination(&sockets), &iov, 64)
        .unwrap_err();
    assert_eq!(failure.error, SendError::BadMemory);
    // One by one the first packet was fine.
    assert_eq!(failure.segments_sent, usize::from(!segmentation));
    // The socket is as good as before.
    sockets
        .send_train(SOURCE, &destination(&sockets), &iov[..1], 64)
        .unwrap();
    assert!(sockets.segmentation_offload(FIRST) == segmentation);
}

// WIRE 1.19
#[test]
fn a_packet_beyond_udp_is_too_large() {
    let sockets = open(V4);
    let bytes = pattern(65535);
    let failure = sockets
        .send_train(
            SOURCE,
            &destination(&sockets),
            &[IoVec::from_slice(&bytes)],
            65535,
        )
        .unwrap_err();
    assert_eq!(failure.error, SendError::MessageTooLarge);
    assert!(sockets.segmentation_offload(FIRST));
}

#[test]
fn a_train_beyond_one_datagram_leaves_packet_by_packet() {
    let sockets = open(V4);
    let bytes = pattern(20 * 4160);
    let iov: Vec<IoVec> = bytes.chunks(4160).map(IoVec::from_slice).collect();
    sockets
        .send_train(SOURCE, &destination(&sockets), &iov, 4160)
        .unwrap();
    assert_eq!(all_packets(&receive(&sockets, 20)).concat(), bytes);
    assert!(
        sockets.segmentation_offload(FIRST),
        "the size was ours, not the kernel's refusal"
    );
}

#[rstest]
#[case(&[], 64, SendError::Other(libc::EINVAL))]
#[case(&[10], 0, SendError::Other(libc::EINVAL))]
fn nonsense_is_refused(
    #[case] lens: &[usize],
    #[case] segment_len: u16,
    #[case] expected: SendError,
) {
    let sockets = open(V4);
    let bytes = pattern(64);
    let iov: Vec<IoVec> = lens
        .iter()
        .map(|&len| IoVec::from_slice(&bytes[..len]))
        .collect();
    let failure = sockets
        .send_train(SOURCE, &destination(&sockets), &iov, segment_len)
        .unwrap_err();
    assert_eq!(failure.error, expected);
}

#[test]
fn another_family_is_refused_and_a_mapped_address_is_not() {
    let sockets = open(V4);
    let bytes = pattern(10);
    let iov = [IoVec::from_slice(&bytes)];
    let failure = sockets
        .send_train(SOURCE, &"[::1]:9".parse().unwrap(), &iov, 10)
        .unwrap_err();
    assert_eq!(failure.error, SendError::Other(libc::EAFNOSUPPORT));
    let mapped = SocketAddr::new("::ffff:127.0.0.1".parse().unwrap(), sockets.port());
    sockets.send_train(SOURCE, &mapped, &iov, 10).unwrap();
    assert_eq!(all_packets(&receive(&sockets, 1)), vec![bytes]);
    let no_source = SourceSlot {
        local: LocalIndex(1),
        index: 0,
    };
    assert!(sockets.send_train(no_source, &mapped, &iov, 10).is_err());
}

#[rstest]
fn an_icmp_error_is_reported_and_does_not_lose_the_next_packet(#[values(V4, V6)] ip: IpAddr) {
    let sockets = open(ip);
    let closed = {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.local_addr().unwrap()
    };
    let bytes = pattern(100);
    let iov = [IoVec::from_slice(&bytes)];
    let waker = Waker::new().unwrap();
    let poller = Poller::new(&sockets, &waker).unwrap();
    sockets.send_train(SOURCE, &closed, &iov, 100).unwrap();
    // On loopback the answer is here already; this send must not fail for it.
    sockets
        .send_train(SOURCE, &destination(&sockets), &iov, 100)
        .unwrap();
    assert_eq!(all_packets(&receive(&sockets, 1)), vec![bytes]);
    let ready = poller.wait(&sockets, Some(Duration::from_secs(1))).unwrap();
    assert!(ready.errors);
    let mut errors = Vec::new();
    sockets.recv_errors(&mut errors);
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (errors[0].peer, errors[0].source, errors[0].errno),
        (closed, SOURCE, libc::ECONNREFUSED)
    );
    assert!(matches!(errors[0].origin, ErrorOrigin::Icmp { .. }));
    assert!(!sockets.has_errors());
    errors.clear();
    sockets.recv_errors(&mut errors);
    assert!(errors.is_empty());
}

#[test]
fn the_poller_tells_of_an_icmp_error_before_any_send() {
    let sockets = open(V4);
    let closed = UdpSocket::bind((V4, 0)).unwrap().local_addr().unwrap();
    let waker = Waker::new().unwrap();
    let poller = Poller::new(&sockets, &waker).unwrap();
    let bytes = pattern(10);
    sockets
        .send_train(SOURCE, &closed, &[IoVec::from_slice(&bytes)], 10)
        .unwrap();
    assert!(!sockets.has_errors());
    assert!(
        poller
            .wait(&sockets, Some(Duration::from_secs(1)))
            .unwrap()
            .errors
    );
    // Edge-triggered: the same error does not wake again.
    let start = Instant::now();
    poller
        .wait(&sockets, Some(Duration::from_millis(20)))
        .unwrap();
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn the_poller_wakes_for_packets_and_for_the_waker() {
    let sockets = Sockets::open(&Config {
        locals: vec![V4, V6],
        ..config(V4)
    })
    .unwrap();
    let waker = Waker::new().unwrap();
    let poller = Poller::new(&sockets, &waker).unwrap();
    let start = Instant::now();
    let ready = poller
        .wait(&sockets, Some(Duration::from_micros(300)))
        .unwrap();
    assert!(!ready.woken && !ready.errors && !ready.can_receive_any());
    assert!(
        start.elapsed() >= Duration::from_micros(300)
            && start.elapsed() < Duration::from_millis(500)
    );
    let second = sockets.locals().nth(1).unwrap();
    let bytes = pattern(10);
    let source = SourceSlot {
        local: second.0,
        index: 3,
    };
    sockets
        .send_train(source, &second.1, &[IoVec::from_slice(&bytes)], 10)
        .unwrap();
    let ready = poller.wait(&sockets, None).unwrap();
    assert!(ready.can_receive(second.0) && !ready.can_receive(FIRST) && !ready.woken);
    let other = waker.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        other.wake();
    });
    let mut batch = RecvBatch::new(1);
    assert_eq!(sockets.recv(second.0, &mut batch).unwrap(), 1);
    assert!(poller.wait(&sockets, None).unwrap().woken);
    thread.join().unwrap();
}

// WIRE 1.16
#[test]
fn source_sockets_take_no_data() {
    let sockets = open(V4);
    let to = SocketAddr::new(V4, sockets.source_port(SOURCE).unwrap());
    let waker = Waker::new().unwrap();
    let poller = Poller::new(&sockets, &waker).unwrap();
    let bytes = pattern(10);
    sockets
        .send_train(
            SourceSlot {
                local: FIRST,
                index: 1,
            },
            &to,
            &[IoVec::from_slice(&bytes)],
            10,
        )
        .unwrap();
    let ready = poller
        .wait(&sockets, Some(Duration::from_millis(20)))
        .unwrap();
    assert_eq!(ready, metaroce_udp::Ready::default());
}

#[test]
fn ports_of_a_range_run_out() {
    let small = Config {
        port: PortChoice::Range {
            base: 27900,
            count: 2,
        },
        ..config(V4)
    };
    let first = Sockets::open(&small).unwrap();
    let second = Sockets::open(&small).unwrap();
    assert_ne!(first.port_index(), second.port_index());
    assert_eq!(first.port(), 27900 + first.port_index());
    let error = Sockets::open(&small).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(
        error
            .to_string()
            .starts_with("all 2 UDP ports of 27900..27901 are taken on 127.0.0.1"),
        "{error}"
    );
    // Another address has its own ports: two devices may use one index.
    let third = Sockets::open(&Config {
        locals: vec!["127.0.0.2".parse().unwrap()],
        ..small
    })
    .unwrap();
    assert!(third.port_index() < 2);
    // A port must be free on all addresses.
    let held = UdpSocket::bind((V6, 27910)).unwrap();
    let both = Config {
        locals: vec![V4, V6],
        port: PortChoice::Fixed(27910),
        ..config(V4)
    };
    assert_eq!(
        Sockets::open(&both).unwrap_err().kind(),
        io::ErrorKind::AddrInUse
    );
    drop(held);
    assert_eq!(Sockets::open(&both).unwrap().port(), 27910);
}

#[rstest]
#[case(Config { locals: vec![], ..config(V4) }, "0 local addresses")]
#[case(Config { locals: vec![V4, V4], ..config(V4) }, "named twice")]
#[case(
    config(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
    "not the address of an interface"
)]
#[case(config("192.0.2.1".parse().unwrap()), "not on this host")]
#[case(Config { source_ports: 0, ..config(V4) }, "0 source ports")]
#[case(Config { port: PortChoice::Range { base: 65000, count: 1000 }, ..config(V4) }, "65000 + 1000")]
fn bad_configuration_is_explained(#[case] config: Config, #[case] expected: &str) {
    let error = Sockets::open(&config).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn drops_and_fill_are_seen() {
    let sockets = Sockets::open(&Config {
        receive_buffer_bytes: 64 << 10,
        receive_offload: false,
        ..config(V4)
    })
    .unwrap();
    assert_eq!(sockets.receive_buffer_bytes(), 64 << 10);
    let empty = sockets.receive_fill(FIRST).unwrap();
    assert_eq!(
        (empty.used_bytes, empty.drops, empty.limit_bytes),
        (0, 0, 128 << 10)
    );
    let bytes = pattern(4096);
    for _ in 0..100 {
        sockets
            .send_train(
                SOURCE,
                &destination(&sockets),
                &[IoVec::from_slice(&bytes)],
                4096,
            )
            .unwrap();
    }
    let full = sockets.receive_fill(FIRST).unwrap();
    assert!(
        full.drops > 0 && full.used_bytes > full.limit_bytes / 2,
        "{full:?}"
    );
    let taken = all_packets(&receive(&sockets, 100 - full.drops as usize)).len();
    assert_eq!(taken + full.drops as usize, 100);
    // The counter travels with packets that were queued after a drop.
    sockets
        .send_train(
            SOURCE,
            &destination(&sockets),
            &[IoVec::from_slice(&bytes)],
            4096,
        )
        .unwrap();
    receive(&sockets, 1);
    assert_eq!(sockets.drops(FIRST), full.drops);
    assert!(sockets.receive_fill(FIRST).unwrap().used_bytes < full.used_bytes);
}

/// Puts the calling thread into a network namespace of its own whose loopback carries `mtu` bytes.
fn enter_namespace(mtu: i32) -> io::Result<()> {
    let check = |rc: i32| {
        if rc < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    // SAFETY: affects this thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: ifreq is made of integers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_mtu = mtu;
    // SAFETY: the kernel reads the ifreq during the call.
    check(unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFMTU as _,
            &raw const request,
        )
    })?;
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: as above.
    check(unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    })
}

#[rstest]
fn packets_beyond_the_mtu_are_too_large(
    #[values(1, 3)] segments: usize,
    #[values(true, false)] segmentation: bool,
) {
    let body = move || {
        if let Err(error) = enter_namespace(1500) {
            println!("not tested: no network namespace of its own here ({error})");
            return;
        }
        let sockets = Sockets::open(&Config {
            segmentation_offload: segmentation,
            ..config(V4)
        })
        .unwrap();
        let bytes = pattern(1473 * segments);
        let iov = [IoVec::from_slice(&bytes)];
        let failure = sockets
            .send_train(SOURCE, &destination(&sockets), &iov, 1473)
            .unwrap_err();
        assert_eq!(
            (failure.error, failure.segments_sent),
            (SendError::MessageTooLarge, 0)
        );
        assert_eq!(
            sockets.segmentation_offload(FIRST),
            segmentation,
            "the size is at fault, not the offload"
        );
        let mut errors = Vec::new();
        sockets.recv_errors(&mut errors);
        assert!(
            errors
                .iter()
                .all(|error| error.origin == ErrorOrigin::Local && error.mtu == 1500),
            "{errors:?}"
        );
        let fits = [IoVec::from_slice(&bytes[..1472 * segments])];
        sockets
            .send_train(SOURCE, &destination(&sockets), &fits, 1472)
            .unwrap();
        assert_eq!(
            all_packets(&receive(&sockets, segments)).concat(),
            &bytes[..1472 * segments]
        );
    };
    std::thread::spawn(body).join().unwrap();
}
