//! The functions that libibverbs calls, in any order and with odd arguments: one program on a device of the loopback
//! interface, whose queue pairs are connected to each other, with the real engine and real sockets.
//!
//! What must hold: no op panics (the boundary would turn that into EFAULT), hangs or says something that errno has not;
//! an op that refused a list names the request that it refused; every request completes at most once, and only one that
//! was posted, with a status that verbs have; what fails the queue pair leaves nothing of it uncompleted; and at the end
//! everything can be destroyed in order. What threads do meanwhile is not decided by the input, so a failure may need a
//! few tries to be seen again.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};

use arbitrary::{Result, Unstructured};
use metaroce::device::{Device, Gid};
use metaroce::entry::{Change, Completion, Entry, Program, Request, Wanted};

/// Steps of one input at most.
const STEPS_MAX: u32 = 200;
/// Objects of each kind at most.
const OBJECTS_MAX: usize = 6;
/// Requests in one list at most.
const LIST_MAX: usize = 4;
/// Memory of the program.
const MEMORY_BYTES: usize = 64 << 10;
/// Polls after the end of an input: what is under way gets a chance, what waits for a peer is flushed.
const LAST_POLLS: u32 = 20;
/// Of loopback; not that of other tests.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 77, 0, 1));

const EFAULT: i32 = 14;
const EBUSY: i32 = 16;
/// Largest errno of Linux.
const ERRNO_MAX: i32 = 133;
/// IBV_WC_GENERAL_ERR, the last status of RC.
const STATUS_MAX: u32 = 21;

const QPT_RC: u32 = 2;
const STATE_ERROR: u32 = 6;

/// `attr_mask` and numbers for each step to RTS: RESET → INIT → RTR → RTS.
const STEPS: [(u32, u32); 3] = [
    (1, 1 | 1 << 3 | 1 << 4 | 1 << 5),
    (
        2,
        1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20,
    ),
    (3, 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16),
];

/// Holds the engine of the device open, so that not every input opens its sockets and starts its thread.
fn keep_engine_open() {
    thread_local! {
        static KEEPER: OnceCell<Program> = const { OnceCell::new() };
    }
    KEEPER.with(|keeper| {
        keeper.get_or_init(|| {
            let mut program = open();
            let pd = program.alloc_pd().expect("a domain");
            let cq = program.create_cq(1, 0).expect("a queue");
            let wanted = wanted_usual();
            program.create_qp(pd, [cq, cq], &wanted).expect("a pair");
            program
        });
    });
}

fn open() -> Program {
    let device = Device {
        name: "metaroce-fuzz".into(),
        interface: "lo".into(),
        index: 1,
        mtu_bytes: 9000,
        speed_mbps: 10_000,
        active: true,
        addresses: vec![ADDRESS],
        gids: vec![Gid::from(ADDRESS)],
        node_guid: 1,
        ..Device::default()
    };
    Program::open(device, MEMORY_BYTES).unwrap_or_else(|error| panic!("no device: {error}"))
}

/// Runs one input.
pub fn run(input: &[u8]) {
    // One program at a time: the counts of the process are shared.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    keep_engine_open();
    let mut bench = Bench {
        program: open(),
        requests: HashMap::new(),
        next_number: 1,
        completions: Vec::new(),
        may_overflow: false,
    };
    let mut bytes = Unstructured::new(input);
    for _ in 0..STEPS_MAX {
        // Reading never fails: it fills up with zeroes.
        if bytes.is_empty() || bench.step(&mut bytes).is_err() {
            break;
        }
    }
    bench.finish();
}

/// A request that was posted and has not completed.
#[derive(Clone, Copy, Debug)]
struct Posted {
    qpn: u32,
    /// It completes whatever happens: signaled, or a receive.
    speaks: bool,
}

/// See the file's head.
struct Bench {
    program: Program,
    requests: HashMap<u64, Posted>,
    next_number: u64,
    completions: Vec<Completion>,
    /// A completion queue is smaller than what completes to it.
    may_overflow: bool,
}

fn wanted_usual() -> Wanted {
    Wanted {
        depths: [16, 16, 4, 4, 64],
        kind: QPT_RC,
        signal_all: false,
    }
}

/// An errno, or nothing.
fn assert_errno(what: &str, result: i32) {
    assert_ne!(result, EFAULT, "{what} panicked");
    assert!(
        (0..=ERRNO_MAX).contains(&result),
        "{what} returned {result}"
    );
}

impl Bench {
    fn step(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        match bytes.int_in_range(0..=23)? {
            0 | 1 => self.set_up(bytes),
            2..=5 => self.post_send(bytes),
            6 | 7 => self.post_receive(bytes),
            8..=10 => self.poll(bytes),
            11 => self.connect(bytes),
            12 => self.modify(bytes),
            13 => self.memory(bytes),
            14 => self.create_qp(bytes),
            15 => self.create_cq(bytes),
            16 => self.fail(bytes),
            17 => self.destroy(bytes),
            18 => self.devices(bytes),
            19 => self.handles(bytes),
            20 => {
                let (cq, only) = (self.cq(bytes)?, bytes.int_in_range(-1..=1)?);
                assert_errno("req_notify_cq", self.program.arm(cq, only));
                Ok(())
            }
            21 => {
                let (cq, entries) = (self.cq(bytes)?, odd(bytes)?);
                self.may_overflow = true;
                assert_errno("resize_cq", self.program.resize_cq(cq, entries as i32));
                Ok(())
            }
            _ => self.write(bytes),
        }
    }

    // ---- Choosing ----

    /// An index of `count` objects, now and then of none.
    fn index(bytes: &mut Unstructured<'_>, count: usize) -> Result<usize> {
        if count == 0 || bytes.ratio(1, 32)? {
            return Ok(usize::MAX);
        }
        bytes.choose_index(count)
    }

    fn pd(&self, bytes: &mut Unstructured<'_>) -> Result<usize> {
        Self::index(bytes, self.program.counts()[0])
    }

    fn mr(&self, bytes: &mut Unstructured<'_>) -> Result<usize> {
        Self::index(bytes, self.program.counts()[1])
    }

    fn cq(&self, bytes: &mut Unstructured<'_>) -> Result<usize> {
        Self::index(bytes, self.program.counts()[3])
    }

    fn qp(&self, bytes: &mut Unstructured<'_>) -> Result<usize> {
        Self::index(bytes, self.program.counts()[4])
    }

    /// A key that is some region's, or nobody's.
    fn key(&self, bytes: &mut Unstructured<'_>) -> Result<u32> {
        let key = self.program.key(self.mr(bytes)?);
        Ok(match bytes.ratio(1, 8)? {
            true => key ^ bytes.arbitrary::<u32>()?,
            false => key,
        })
    }

    /// An address in the program's memory, or anywhere.
    fn address(&self, bytes: &mut Unstructured<'_>) -> Result<u64> {
        if bytes.ratio(1, 8)? {
            return bytes.arbitrary();
        }
        Ok(self.program.address() + u64::from(bytes.arbitrary::<u16>()?))
    }

    // ---- Objects ----

    /// What a program needs for work: a domain, a region, a completion queue and two connected queue pairs.
    fn set_up(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        if self
            .program
            .counts()
            .iter()
            .any(|count| *count + 2 > OBJECTS_MAX)
        {
            return Ok(());
        }
        let pd = self.program.alloc_pd().expect("a domain");
        let access = *bytes.choose(&[0x10_000f, 0xf])?;
        let all = (0, MEMORY_BYTES);
        let address = self.program.address();
        self.program
            .register(pd, all, address, access)
            .expect("a region");
        let cq = self.program.create_cq(255, 0).expect("a queue");
        let mut qps = [0; 2];
        for qp in &mut qps {
            let wanted = Wanted {
                signal_all: bytes.arbitrary()?,
                ..wanted_usual()
            };
            *qp = self
                .program
                .create_qp(pd, [cq, cq], &wanted)
                .expect("a pair");
        }
        let [a, b] = qps;
        for (qp, peer) in [(a, b), (b, a)] {
            for (state, mask) in STEPS {
                let change = self.change_to(state, mask, self.program.qpn(peer));
                assert_eq!(self.program.modify(qp, &change), 0, "to state {state}");
            }
        }
        Ok(())
    }

    fn change_to(&self, state: u32, mask: u32, dest_qpn: u32) -> Change {
        Change {
            mask,
            state,
            dest_qpn,
            path_mtu: 5,
            access: 0xf,
            dest_gid: *Gid::from(ADDRESS).as_bytes(),
            address: [0, 1, 1],
            // 67 ms of patience: what hangs for a lost peer is over before the next input.
            numbers: [4, 4, 1, 12, 3, 3],
            ..Change::default()
        }
    }

    fn create_qp(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        if self.program.counts()[4] >= OBJECTS_MAX {
            return Ok(());
        }
        let mut wanted = wanted_usual();
        for depth in &mut wanted.depths {
            if bytes.ratio(1, 4)? {
                *depth = odd(bytes)?;
            }
        }
        wanted.kind = *bytes.choose(&[QPT_RC, QPT_RC, QPT_RC, 3, 4, 9, 77])?;
        let (pd, cqs) = (self.pd(bytes)?, [self.cq(bytes)?, self.cq(bytes)?]);
        self.may_overflow = true;
        if let Err(error) = self.program.create_qp(pd, cqs, &wanted) {
            assert_errno("create_qp", error);
            assert_ne!(error, 0, "create_qp says nothing");
        }
        Ok(())
    }

    fn create_cq(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        if self.program.counts()[3] < OBJECTS_MAX {
            let (entries, vector) = (odd(bytes)? as i32, bytes.int_in_range(-1..=1)?);
            self.may_overflow = true;
            if let Err(error) = self.program.create_cq(entries, vector) {
                assert_errno("create_cq", error);
            }
        }
        Ok(())
    }

    fn memory(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let part = (
            usize::from(bytes.arbitrary::<u16>()?),
            usize::from(bytes.arbitrary::<u16>()?),
        );
        let access = match bytes.ratio(1, 4)? {
            true => bytes.arbitrary()?,
            false => *bytes.choose(&[0xf, 1, 0, 7, 0x2f, 0x10_000f])?,
        };
        let (pd, mr) = (self.pd(bytes)?, self.mr(bytes)?);
        let result = match bytes.int_in_range(0..=3)? {
            0 if self.program.counts()[1] < OBJECTS_MAX => {
                let iova = self.address(bytes)?;
                match self.program.register(pd, part, iova, access) {
                    Ok(_) => 0,
                    Err(error) => error,
                }
            }
            1 => {
                let flags = bytes.int_in_range(0..=7)?;
                self.program.reregister(mr, flags, pd, part, access)
            }
            2 => {
                let (addr, length) = (bytes.arbitrary::<u64>()?, bytes.arbitrary::<u64>()?);
                // EFAULT is right for memory that is not there.
                match self.program.register_nothing(pd, addr, length) {
                    EFAULT => 0,
                    error => error,
                }
            }
            _ => self.program.deregister(mr),
        };
        assert_errno("a region's op", result);
        Ok(())
    }

    fn handles(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let gid = match bytes.arbitrary()? {
            true => *Gid::from(ADDRESS).as_bytes(),
            false => bytes.arbitrary()?,
        };
        let pd = self.pd(bytes)?;
        let count = self.program.counts()[2];
        if count < OBJECTS_MAX && bytes.arbitrary()? {
            if let Err(error) = self.program.create_ah(pd, gid, bytes.arbitrary()?) {
                assert_errno("create_ah", error);
            }
        } else {
            let index = Self::index(bytes, count)?;
            assert_errno("destroy_ah", self.program.destroy_ah(index));
        }
        Ok(())
    }

    fn devices(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (size, mask) = (
            usize::from(bytes.arbitrary::<u16>()?),
            bytes.int_in_range(0..=2)?,
        );
        assert_errno("query_device_ex", self.program.query_device(size, mask));
        assert_errno(
            "query_port",
            self.program.query_port(bytes.int_in_range(0..=2)?),
        );
        Ok(())
    }

    /// Destroys something, whether or not it is in use.
    fn destroy(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let result = match bytes.int_in_range(0..=3)? {
            0 => self.program.dealloc_pd(self.pd(bytes)?),
            1 => self.program.destroy_cq(self.cq(bytes)?),
            _ => {
                let qp = self.qp(bytes)?;
                let qpn = self.program.qpn(qp);
                let result = self.program.destroy_qp(qp);
                assert_ne!(result, EBUSY, "nobody read an event");
                // Its completions may be polled later, or went with their queue; none is owed any more.
                self.mute(qpn, result);
                result
            }
        };
        assert_errno("a destroying op", result);
        Ok(())
    }

    fn mute(&mut self, qpn: u32, result: i32) {
        for posted in self.requests.values_mut() {
            if posted.qpn == qpn && result == 0 {
                posted.speaks = false;
            }
        }
    }

    // ---- Queue pairs ----

    fn connect(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (qp, peer) = (self.qp(bytes)?, self.qp(bytes)?);
        let (state, mask) = *bytes.choose(&STEPS)?;
        let change = self.change_to(state, mask, self.program.qpn(peer));
        assert_errno("modify_qp", self.program.modify(qp, &change));
        Ok(())
    }

    fn modify(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let qp = self.qp(bytes)?;
        let qpn = self.program.qpn(qp);
        let (state, mask) = *bytes.choose(&STEPS)?;
        let mut change = self.change_to(state, mask, self.program.qpn(self.qp(bytes)?));
        change.state = bytes.int_in_range(0..=8)?;
        change.current_state = bytes.int_in_range(0..=8)?;
        match bytes.int_in_range(0..=3)? {
            // The state alone: RESET, ERR, SQD and back.
            0 | 1 => change.mask = 1,
            2 => change.mask ^= 1 << bytes.int_in_range(0..=26)?,
            _ => {
                change.mask = bytes.arbitrary()?;
                change.dest_qpn = bytes.arbitrary()?;
                change.path_mtu = bytes.arbitrary::<u8>()?.into();
                change.access = bytes.arbitrary()?;
                change.address = bytes.arbitrary()?;
                change.psns = bytes.arbitrary()?;
                change.numbers = bytes.arbitrary()?;
                // Unlimited patience would keep an input's requests for ever; 0 stands for that.
                change.numbers[3] = change.numbers[3] % 12 + 1;
                if bytes.arbitrary()? {
                    change.dest_gid = bytes.arbitrary()?;
                }
            }
        }
        let result = self.program.modify(qp, &change);
        assert_errno("modify_qp", result);
        if result == 0 && change.mask & 1 != 0 && change.state == 0 {
            // RESET: what was posted vanishes.
            self.mute(qpn, 0);
        }
        Ok(())
    }

    /// To ERR: every request that speaks has its completion now, if there is room for it.
    fn fail(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let qp = self.qp(bytes)?;
        let qpn = self.program.qpn(qp);
        let change = self.change_to(STATE_ERROR, 1, 0);
        let result = self.program.modify(qp, &change);
        assert_errno("modify_qp", result);
        if result != 0 {
            return Ok(());
        }
        assert_eq!(self.program.state(qp), Ok(STATE_ERROR));
        self.poll_all();
        let owed = self
            .requests
            .iter()
            .filter(|(_, posted)| posted.qpn == qpn && posted.speaks)
            .count();
        assert!(
            owed == 0 || self.may_overflow,
            "{owed} requests of a failed queue pair did not complete"
        );
        Ok(())
    }

    // ---- Posting ----

    fn request(&mut self, bytes: &mut Unstructured<'_>) -> Result<Request> {
        let mut list = Vec::new();
        for _ in 0..bytes.int_in_range(0..=3)? {
            list.push(Entry {
                addr: self.address(bytes)?,
                length: match bytes.ratio(1, 16)? {
                    true => bytes.arbitrary()?,
                    false => u32::from(bytes.arbitrary::<u16>()?) >> bytes.int_in_range(0..=15)?,
                },
                key: self.key(bytes)?,
            });
        }
        let number = self.next_number;
        self.next_number += 1;
        let odd_opcode = bytes.ratio(1, 16)?;
        Ok(Request {
            number,
            opcode: match odd_opcode {
                true => bytes.arbitrary()?,
                false => bytes.int_in_range(0..=6)?,
            },
            flags: match bytes.ratio(1, 16)? {
                true => bytes.arbitrary()?,
                false => bytes.int_in_range(0..=15)?,
            },
            count: match bytes.ratio(1, 16)? {
                true => bytes.arbitrary()?,
                false => list.len() as i32,
            },
            no_list: bytes.ratio(1, 32)?,
            immediate: bytes.arbitrary()?,
            remote: (self.address(bytes)?, self.key(bytes)?),
            operands: [bytes.arbitrary::<u8>()?.into(), 7],
            list,
        })
    }

    fn requests(&mut self, bytes: &mut Unstructured<'_>) -> Result<Vec<Request>> {
        let count = bytes.int_in_range(0..=LIST_MAX)?;
        (0..count).map(|_| self.request(bytes)).collect()
    }

    fn post_send(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (qp, requests) = (self.qp(bytes)?, self.requests(bytes)?);
        let (result, posted) = self.program.post_send(qp, &requests);
        const SIGNALED: u32 = 1 << 1;
        self.note("post_send", qp, &requests, result, posted, |request| {
            request.flags & SIGNALED != 0
        });
        Ok(())
    }

    fn post_receive(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (qp, requests) = (self.qp(bytes)?, self.requests(bytes)?);
        let (result, posted) = self.program.post_receive(qp, &requests);
        self.note("post_recv", qp, &requests, result, posted, |_| true);
        Ok(())
    }

    /// A valid WRITE or SEND with its receive, so that something happens also to bytes without sense.
    fn write(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let (qp, peer) = (self.qp(bytes)?, self.qp(bytes)?);
        let (address, key) = (self.program.address(), self.program.key(0));
        let length = u32::from(bytes.arbitrary::<u16>()?) / 2;
        let mut request = Request {
            number: self.next_number,
            opcode: bytes.int_in_range(0..=6)?,
            flags: 2,
            count: 1,
            list: vec![Entry {
                addr: address,
                length: match bytes.arbitrary()? {
                    true => 8,
                    false => length,
                },
                key,
            }],
            remote: (address + 0x8000, key),
            ..Request::default()
        };
        self.next_number += 2;
        let (result, posted) = self.program.post_send(qp, std::slice::from_ref(&request));
        let sent = [request.clone()];
        self.note("post_send", qp, &sent, result, posted, |_| true);
        request.number += 1;
        let (result, posted) = self
            .program
            .post_receive(peer, std::slice::from_ref(&request));
        self.note("post_recv", peer, &[request], result, posted, |_| true);
        Ok(())
    }

    fn note(
        &mut self,
        op: &str,
        qp: usize,
        requests: &[Request],
        result: i32,
        posted: usize,
        speaks: impl Fn(&Request) -> bool,
    ) {
        assert_errno(op, result);
        if requests.is_empty() {
            return;
        }
        assert_eq!(
            result == 0,
            posted == requests.len(),
            "{op} returned {result} and posted {posted} of {}",
            requests.len()
        );
        let qpn = self.program.qpn(qp);
        for request in &requests[..posted] {
            let speaks = speaks(request);
            self.requests.insert(request.number, Posted { qpn, speaks });
        }
    }

    // ---- Completing ----

    fn poll(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        let cq = self.cq(bytes)?;
        let count = match bytes.ratio(1, 8)? {
            true => bytes.arbitrary()?,
            false => bytes.int_in_range(0..=64)?,
        };
        let result = self.program.poll(cq, count, &mut self.completions);
        assert_ne!(result, -EFAULT, "poll_cq panicked");
        assert!(
            result <= count.max(0),
            "poll_cq returned {result} of {count}"
        );
        self.check_completions();
        Ok(())
    }

    fn poll_all(&mut self) {
        for cq in 0..self.program.counts()[3] {
            while self.program.poll(cq, 64, &mut self.completions) > 0 {
                self.check_completions();
            }
        }
    }

    fn check_completions(&mut self) {
        for completion in std::mem::take(&mut self.completions) {
            assert!(completion.status <= STATUS_MAX, "{completion:?}");
            let posted = self
                .requests
                .remove(&completion.number)
                .unwrap_or_else(|| panic!("{completion:?} completes twice, or was never posted"));
            assert_eq!(
                posted.qpn, completion.qpn,
                "{completion:?} of another queue pair"
            );
        }
    }

    fn finish(&mut self) {
        for _ in 0..LAST_POLLS {
            self.poll_all();
        }
        if let Err((op, error)) = self.program.end() {
            panic!("{op} at the end: errno {error}");
        }
    }
}

/// A number that is usual, at an edge, or anything.
fn odd(bytes: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match bytes.int_in_range(0..=3)? {
        0 => bytes.int_in_range(0..=64)?,
        1 => *bytes.choose(&[0, 1, 30, 31, 256, 1_024, 1_025, 32_768, 32_769, 1 << 22])?,
        2 => u32::from(bytes.arbitrary::<u16>()?),
        _ => bytes.arbitrary()?,
    })
}
