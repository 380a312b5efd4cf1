//! Two engines in one process, over loopback, through the verbs objects: who does the work when, and that nobody waits
//! for ever. The protocol has its own tests.

mod asked;
mod measurements;
mod neighbours;
mod reader;

use super::*;
use crate::device::{Device, Gid};
use crate::verbs::context::Context;
use crate::verbs::cq::{Cq, Cqe};
use crate::verbs::mr_memory::{MrTable, Region};
use crate::verbs::pd::Pd;
use crate::verbs::qp::{Capabilities, QpParts};
use crate::verbs::qp_attributes::{AddressVector, Attributes};
use crate::verbs::qp_modify::{Modification, Transport, modify};
use crate::verbs::qp_state::{Mask, QpState};
use crate::verbs::receive_queue::ReceiveRequest;
use crate::verbs::send_queue::SendWork;
use metaroce_proto::types::{Operation, Payload, Sge, SgeList, Status};
use std::net::IpAddr;
use std::sync::atomic::AtomicU8 as TestCounter;

/// Longer than anything here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const SEND_WRS: u32 = 256;
const RECEIVE_WRS: u32 = 64;
const ACCESS: u32 = 0x0f;
const RDMA_READ: u32 = 2;

/// One side: a device of its own on a loopback address, with one queue pair and one region.
struct End {
    context: Arc<Context>,
    engine: Arc<Engine>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    key: u32,
    /// Its addresses are the keys' addresses.
    memory: Vec<u8>,
}

impl End {
    fn new(name: &str, ip: IpAddr, bytes: usize) -> End {
        let device = Device {
            name: name.to_owned(),
            interface: "lo".to_owned(),
            index: 1,
            mtu_bytes: 9000,
            speed_mbps: 10_000,
            active: true,
            addresses: vec![ip],
            gids: vec![Gid::from(ip)],
            node_guid: 1,
            ..Device::default()
        };
        let context = Context::open(Arc::new(device)).unwrap();
        let pd = Arc::new(Pd::new().unwrap());
        let cq = Arc::new(Cq::new(1024, None, &context.events).unwrap());
        let wanted = Capabilities {
            max_send_wr: SEND_WRS,
            max_recv_wr: RECEIVE_WRS,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let parts = QpParts {
            pd: pd.clone(),
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            receive_queue: Arc::new(ReceiveQueue::new(RECEIVE_WRS, 4)),
            memory: MrTable::of_process().clone(),
            events: Arc::downgrade(&context.events),
            capabilities: wanted.grant().unwrap(),
            signal_all: false,
        };
        let qp = context.create_qp(&parts).unwrap();
        let engine = Engine::for_device(&context.device).unwrap();
        let memory = vec![0; bytes];
        let address = memory.as_ptr().expose_provenance() as u64;
        let region = Region {
            pd: pd.id(),
            iova: address,
            length: bytes as u64,
            host_addr: address,
            access: Access(ACCESS),
        };
        let key = MrTable::of_process().register(region).unwrap();
        End {
            context,
            engine,
            pd,
            cq,
            qp,
            key,
            memory,
        }
    }

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    fn connect(&self, peer: &End) {
        let source = self.context.source_gid(0).unwrap();
        let dest_gid = peer.context.source_gid(0).unwrap();
        let address = AddressVector {
            dest_gid,
            is_global: true,
            port: 1,
            ..AddressVector::default()
        };
        let attributes = Attributes {
            path_mtu: 5,
            dest_qpn: peer.qp.qpn().get(),
            access: ACCESS,
            address,
            port: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            ..Attributes::default()
        };
        assert_ne!(source, dest_gid);
        let steps = [
            (QpState::Init, Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS),
            (
                QpState::ReadyToReceive,
                Mask::ADDRESS
                    | Mask::PATH_MTU
                    | Mask::DEST_QPN
                    | Mask::RQ_PSN
                    | Mask::MAX_DEST_RD_ATOMIC
                    | Mask::MIN_RNR_TIMER,
            ),
            (
                QpState::ReadyToSend,
                Mask::TIMEOUT
                    | Mask::RETRY_COUNT
                    | Mask::RNR_RETRY
                    | Mask::SQ_PSN
                    | Mask::MAX_RD_ATOMIC,
            ),
        ];
        for (state, mask) in steps {
            let change = Modification {
                mask: Mask::STATE | mask,
                state: state as u32,
                current_state: 0,
                attributes,
            };
            modify(&self.qp, &*self.context, &change).unwrap();
        }
    }

    fn post(&self, wr_id: u64, operation: Operation, sges: &[Sge]) {
        let work = SendWork {
            wr_id,
            operation,
            payload: Payload::Gather(SgeList::from_slice(sges)),
            signaled: true,
            fence: false,
            solicited: false,
        };
        self.qp.send_poster().post(work).unwrap();
        self.engine().doorbell(&self.qp);
    }

    fn post_receive(&self, wr_id: u64, sge: Sge) {
        let mut poster = self.qp.receive_poster().unwrap();
        poster
            .post(ReceiveRequest {
                wr_id,
                sges: SgeList::from_slice(&[sge]),
            })
            .unwrap();
        if poster.finish() {
            self.engine().receive_doorbell(&self.qp);
        }
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            addr: self.address() + offset as u64,
            length: length as u32,
            lkey: self.key,
        }
    }

    fn write_to(&self, peer: &End, wr_id: u64, length: usize) {
        let operation = Operation::Write {
            remote_addr: peer.address(),
            rkey: peer.key,
        };
        self.post(wr_id, operation, &[self.sge(0, length)]);
    }

    /// Completions that are there, without doing any of the engine's work.
    fn completions(&self) -> Vec<Cqe> {
        let mut found = Vec::new();
        self.cq.poll(64, |_, cqe| found.push(*cqe));
        found
    }

    /// Waits for `count` completions; `between` is called all the time.
    fn wait(&self, count: usize, mut between: impl FnMut()) -> Vec<Cqe> {
        let end = Instant::now() + PATIENCE;
        let mut found = Vec::new();
        while found.len() < count {
            between();
            found.extend(self.completions());
            assert!(
                Instant::now() < end,
                "{} of {count} completions",
                found.len()
            );
        }
        found
    }
}

/// Two connected ends, on addresses and with device names of their own.
fn pair(bytes: usize) -> (End, End) {
    static NEXT: TestCounter = TestCounter::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let end = |host: u8| {
        let ip = IpAddr::from([127, 9, number, host]);
        End::new(&format!("metaroce-test-{number}-{host}"), ip, bytes)
    };
    let (a, b) = (end(1), end(2));
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

fn fill(memory: &mut [u8], seed: usize) {
    for (index, byte) in memory.iter_mut().enumerate() {
        *byte = (index.wrapping_mul(31) >> 3 ^ index ^ seed) as u8;
    }
}

/// A pause in which the background threads may run, also on one processor.
fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

#[test]
fn polling_threads_do_all_the_work() {
    const LENGTH: usize = (1 << 20) + 13;
    let (mut a, mut b) = pair(LENGTH);
    fill(&mut a.memory, 1);
    fill(&mut b.memory, 2);
    b.post_receive(40, b.sge(0, 100));
    a.write_to(&b, 10, LENGTH);
    a.post(11, Operation::Send, &[a.sge(5, 60)]);
    let poll = || {
        a.engine().progress();
        b.engine().progress();
    };
    let received = b.wait(1, poll);
    let sent = a.wait(2, poll);
    assert_eq!(
        sent.iter()
            .map(|cqe| (cqe.wr_id, cqe.status))
            .collect::<Vec<_>>(),
        [(10, 0), (11, 0)]
    );
    assert_eq!(
        (
            received[0].wr_id,
            received[0].status,
            received[0].byte_length
        ),
        (40, 0, 60)
    );
    assert_eq!(received[0].source_qpn, a.qp.qpn().get());
    assert_eq!(b.memory[..60], a.memory[5..65]);
    assert_eq!(b.memory[60..], a.memory[60..]);
}

#[test]
fn a_target_that_never_calls_is_served() {
    const LENGTH: usize = 3 << 20;
    let (mut a, b) = pair(LENGTH);
    fill(&mut a.memory, 3);
    a.write_to(&b, 1, LENGTH);
    let sent = a.wait(1, || {
        a.engine().progress();
    });
    assert_eq!(sent[0].status, Status::Success as u32);
    assert_eq!(a.memory, b.memory);
}

#[test]
fn nobody_needs_to_poll() {
    const LENGTH: usize = 200_000;
    let (a, mut b) = pair(LENGTH);
    fill(&mut b.memory, 4);
    let operation = Operation::Read {
        remote_addr: b.address(),
        rkey: b.key,
    };
    a.post(1, operation, &[a.sge(0, LENGTH)]);
    let sent = a.wait(1, pause);
    assert_eq!(
        (sent[0].status, sent[0].opcode),
        (Status::Success as u32, RDMA_READ)
    );
    assert_eq!(a.memory, b.memory);
    // After a while of polling the background threads only watch; then they must take over again.
    fill(&mut b.memory, 5);
    let end = Instant::now() + Duration::from_millis(20);
    while Instant::now() < end {
        a.engine().progress();
        b.engine().progress();
    }
    a.post(2, operation, &[a.sge(0, LENGTH)]);
    a.engine().armed();
    assert_eq!(a.wait(1, pause)[0].wr_id, 2);
    assert_eq!(a.memory, b.memory);
}

#[test]
fn threads_that_post_at_once_lose_nothing() {
    const THREADS: usize = 3;
    const EACH: usize = 400;
    let (a, b) = pair(4096);
    let done = TestCounter::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, b, done) = (&a, &b, &done);
            scope.spawn(move || {
                for round in 0..EACH {
                    let operation = Operation::Write {
                        remote_addr: b.address(),
                        rkey: b.key,
                    };
                    let work = || SendWork {
                        wr_id: (thread * EACH + round) as u64,
                        operation,
                        payload: Payload::Gather(SgeList::from_slice(&[a.sge(0, 64)])),
                        signaled: true,
                        fence: false,
                        solicited: false,
                    };
                    let end = Instant::now() + PATIENCE;
                    while a.qp.send_poster().post(work()).is_err() {
                        assert!(Instant::now() < end, "the send queue stays full");
                        pause();
                    }
                    a.engine().doorbell(&a.qp);
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let found = a.wait(THREADS * EACH, || {
            if done.load(Ordering::Relaxed) == 0 {
                a.engine().progress();
            } else {
                pause();
            }
        });
        let mut ids: Vec<u64> = found.iter().map(|cqe| cqe.wr_id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..(THREADS * EACH) as u64).collect::<Vec<_>>());
        assert!(found.iter().all(|cqe| cqe.status == 0));
    });
}

#[test]
fn a_receive_can_be_posted_again_as_soon_as_its_completion_is_polled() {
    const MESSAGES: u64 = 5_000;
    let (a, b) = pair(4096);
    for wr_id in 0..u64::from(RECEIVE_WRS) {
        b.post_receive(wr_id, b.sge(0, 64));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut posted, mut done) = (0, 0);
            let end = Instant::now() + PATIENCE;
            while done < MESSAGES {
                while posted < MESSAGES && posted - done < u64::from(SEND_WRS) {
                    a.post(posted, Operation::Send, &[a.sge(0, 64)]);
                    posted += 1;
                }
                a.engine().progress();
                done += a.completions().len() as u64;
                assert!(Instant::now() < end, "{done} sends");
            }
        });
        // The queue is full all the time, and the background thread completes while this thread polls and posts.
        let end = Instant::now() + PATIENCE;
        let mut received = 0;
        while received < MESSAGES {
            for cqe in b.completions() {
                assert_eq!(cqe.status, 0);
                b.post_receive(cqe.wr_id, b.sge(0, 64));
                received += 1;
            }
            assert!(Instant::now() < end, "{received} messages");
        }
    });
}

// WIRE 9.6
#[test]
fn memory_that_is_gone_fails_its_own_work_request() {
    let (a, b) = pair(4096);
    // Registered, but nothing is mapped there.
    let region = Region {
        pd: a.pd.id(),
        iova: 0,
        length: 1 << 20,
        host_addr: 4096,
        access: Access(ACCESS),
    };
    let key = MrTable::of_process().register(region).unwrap();
    a.write_to(&b, 1, 4096);
    let operation = Operation::Write {
        remote_addr: b.address(),
        rkey: b.key,
    };
    a.post(
        2,
        operation,
        &[Sge {
            addr: 0,
            length: 4096,
            lkey: key,
        }],
    );
    a.write_to(&b, 3, 64);
    let found = a.wait(3, pause);
    let expected = [
        (1, Status::Success),
        (2, Status::LocalProtection),
        (3, Status::Flushed),
    ];
    let found: Vec<(u64, u32)> = found.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
    assert_eq!(found, expected.map(|(id, status)| (id, status as u32)));
}

#[test]
fn every_request_has_completed_when_destroy_returns() {
    let (a, b) = pair(4096);
    // No receive is posted there: these wait.
    for wr_id in 0..20 {
        a.post(wr_id, Operation::Send, &[a.sge(0, 64)]);
    }
    a.context.destroy_qp(&a.qp);
    let found = a.completions();
    assert_eq!(
        found.iter().map(|cqe| cqe.wr_id).collect::<Vec<_>>(),
        (0..20).collect::<Vec<_>>()
    );
    assert!(found.iter().all(|cqe| cqe.status == Status::Flushed as u32));
    drop(b);
}

#[test]
fn an_engine_is_shared_by_name_and_closes_quietly() {
    let (a, _b) = pair(64);
    let again = Engine::for_device(&a.context.device).unwrap();
    assert!(std::ptr::eq(&*again, a.engine()));
    again.quiesce();
    let start = Instant::now();
    again.close();
    again.close();
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn an_address_that_is_not_here_is_explained() {
    let device = Device {
        name: "metaroce-nowhere".to_owned(),
        interface: "eth7".to_owned(),
        index: 1,
        mtu_bytes: 1500,
        speed_mbps: 1000,
        active: true,
        addresses: vec!["192.0.2.77".parse().unwrap()],
        gids: vec![],
        node_guid: 1,
        ..Device::default()
    };
    let error = Engine::open(&Arc::new(device)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "interface eth7 has no usable address: see `ip address show dev eth7`"
    );
}

#[test]
fn statistics_are_json_and_a_second_engine_appends() {
    let (a, b) = pair(4096);
    a.write_to(&b, 1, 4096);
    a.wait(1, pause);
    let line = a.engine().inner.gate.enter().statistics(&a.engine().inner);
    let report: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(report["device"], a.engine().inner.device.name);
    assert_eq!(report["counters"]["data_bytes_sent"], 4096);
    assert!(report["counters"]["packets_sent"].as_u64().unwrap() > 0);
    assert_eq!(report["connections"][0]["paths"][0]["path"], 0);
    assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
    let file =
        std::env::temp_dir().join(format!("metaroce-statistics-{}.json", std::process::id()));
    let name = file.to_str().unwrap();
    std::fs::write(&file, "old").unwrap();
    statistics::write(name, "{}\n");
    statistics::write(name, "{}\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{}\n{}\n");
    std::fs::remove_file(&file).unwrap();
}
