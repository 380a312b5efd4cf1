//! Tests of what the data path makes of the structures of C. Posting itself is tested over a stock libibverbs
//! (`tests/e2e`), and the queues in `verbs/`.

use rstest::rstest;

use super::*;

const CAPABILITIES: Capabilities = Capabilities {
    max_send_wr: 8,
    max_recv_wr: 8,
    max_send_sge: 3,
    max_recv_sge: 3,
    max_inline_data: 64,
};

fn request(opcode: u32, flags: u32, sges: &mut [ibv_sge]) -> ibv_send_wr {
    // SAFETY: zero is a valid work request.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = 77;
    request.opcode = opcode;
    request.send_flags = flags;
    request.imm_data = u32::from_ne_bytes([1, 2, 3, 4]);
    request.sg_list = sges.as_mut_ptr();
    request.num_sge = sges.len() as c_int;
    request
}

fn sge(bytes: &[u8]) -> ibv_sge {
    ibv_sge {
        addr: bytes.as_ptr() as u64,
        length: bytes.len() as u32,
        lkey: 5,
    }
}

fn converted(request: &ibv_send_wr) -> Result<SendWork, i32> {
    // SAFETY: the requests of these tests point to live lists and bytes.
    unsafe { send_from_c(request, CAPABILITIES) }.map_err(|error| errno_of(&error))
}

#[rstest]
#[case(IBV_WR_RDMA_WRITE, Operation::Write { remote_addr: 11, rkey: 22 })]
#[case(IBV_WR_RDMA_WRITE_WITH_IMM, Operation::WriteImm { remote_addr: 11, rkey: 22, imm: [1, 2, 3, 4] })]
#[case(IBV_WR_RDMA_READ, Operation::Read { remote_addr: 11, rkey: 22 })]
#[case(IBV_WR_SEND, Operation::Send)]
#[case(IBV_WR_SEND_WITH_IMM, Operation::SendImm([1, 2, 3, 4]))]
fn operations(#[case] opcode: u32, #[case] expected: Operation) {
    let mut request = request(opcode, 0, &mut []);
    request.wr.rdma = ibv_send_wr_rdma {
        remote_addr: 11,
        rkey: 22,
    };
    assert_eq!(
        converted(&request).map(|work| (work.wr_id, work.operation)),
        Ok((77, expected))
    );
}

#[test]
fn atomic_operations() {
    let mut sges = [sge(&[0; 8])];
    let mut request = request(IBV_WR_ATOMIC_CMP_AND_SWP, 0, &mut sges);
    request.wr.atomic = ibv_send_wr_atomic {
        remote_addr: 8,
        compare_add: 3,
        swap: 4,
        rkey: 9,
    };
    let swap = Operation::CompareSwap {
        remote_addr: 8,
        rkey: 9,
        compare: 3,
        swap: 4,
    };
    assert_eq!(converted(&request).map(|work| work.operation), Ok(swap));
    request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    let add = Operation::FetchAdd {
        remote_addr: 8,
        rkey: 9,
        add: 3,
    };
    assert_eq!(converted(&request).map(|work| work.operation), Ok(add));
}

#[rstest]
#[case(IBV_WR_LOCAL_INV, libc::EOPNOTSUPP)]
#[case(IBV_WR_BIND_MW, libc::EOPNOTSUPP)]
#[case(IBV_WR_SEND_WITH_INV, libc::EOPNOTSUPP)]
#[case(IBV_WR_TSO, libc::EOPNOTSUPP)]
#[case(IBV_WR_ATOMIC_WRITE, libc::EOPNOTSUPP)]
#[case(11, libc::EINVAL)]
#[case(99, libc::EINVAL)]
#[case(u32::MAX, libc::EINVAL)]
fn operations_that_are_not_there(#[case] opcode: u32, #[case] errno: i32) {
    assert_eq!(
        converted(&request(opcode, 0, &mut [])).map(drop),
        Err(errno)
    );
}

#[rstest]
#[case(0, (false, false, false), Ok(()))]
#[case(IBV_SEND_FENCE, (false, true, false), Ok(()))]
#[case(SEND_SIGNALED, (true, false, false), Ok(()))]
#[case(IBV_SEND_SOLICITED, (false, false, true), Ok(()))]
#[case(7, (true, true, true), Ok(()))]
#[case(IBV_SEND_IP_CSUM, (false, false, false), Err(libc::EINVAL))]
#[case(1 << 31, (false, false, false), Err(libc::EINVAL))]
fn meaning_of_flags(
    #[case] flags: u32,
    #[case] meaning: (bool, bool, bool),
    #[case] expected: Result<(), i32>,
) {
    let work = converted(&request(IBV_WR_SEND, flags, &mut []));
    assert_eq!(
        work.map(|work| assert_eq!((work.signaled, work.fence, work.solicited), meaning)),
        expected
    );
}

#[test]
fn lists_are_taken_over_without_empty_entries() {
    let mut sges = [sge(b"abc"), sge(b""), sge(b"de")];
    let work = converted(&request(IBV_WR_SEND, 0, &mut sges)).expect("valid");
    let Payload::Gather(list) = work.payload else {
        panic!("not inline")
    };
    let expected = [&sges[0], &sges[2]].map(|sge| Sge {
        addr: sge.addr,
        length: sge.length,
        lkey: 5,
    });
    assert_eq!(list.as_slice(), expected);
}

#[test]
fn lists_that_are_too_long_missing_or_negative_are_refused() {
    let mut sges = [sge(b"a"), sge(b""), sge(b""), sge(b"")];
    let mut request = request(IBV_WR_SEND, 0, &mut sges);
    assert_eq!(
        converted(&request).map(drop),
        Err(libc::EINVAL),
        "the program's count, not ours"
    );
    request.num_sge = -1;
    assert_eq!(converted(&request).map(drop), Err(libc::EINVAL));
    request.num_sge = 1;
    request.sg_list = std::ptr::null_mut();
    assert_eq!(converted(&request).map(drop), Err(libc::EINVAL));
    request.num_sge = 0;
    assert!(converted(&request).is_ok());
}

#[test]
fn inline_data_is_copied_whole_when_posted() {
    let mut first = *b"hello ";
    let mut sges = [sge(&first), sge(b""), sge(b"world")];
    let work = converted(&request(IBV_WR_SEND, IBV_SEND_INLINE, &mut sges)).expect("valid");
    first.fill(0);
    assert_eq!(
        work.payload,
        Payload::Inline(SmallVec::from_slice(b"hello world"))
    );
}

#[test]
fn inline_data_beyond_the_grant_is_refused_unread() {
    let mut sges = [
        sge(&[1; 64]),
        ibv_sge {
            addr: 0,
            length: u32::MAX,
            lkey: 0,
        },
    ];
    assert_eq!(
        converted(&request(IBV_WR_SEND, IBV_SEND_INLINE, &mut sges)).map(drop),
        Err(libc::EINVAL)
    );
    let mut sges = [sge(&[1; 64])];
    assert!(converted(&request(IBV_WR_SEND, IBV_SEND_INLINE, &mut sges)).is_ok());
}

#[test]
fn every_field_of_a_completion_arrives() {
    let cqe = Cqe {
        wr_id: 1,
        status: 2,
        opcode: 3,
        vendor_error: 4,
        byte_length: 5,
        immediate: 6,
        qpn: 7,
        source_qpn: 8,
        flags: 9,
        solicited: true,
    };
    let expected = ibv_wc {
        wr_id: 1,
        status: 2,
        opcode: 3,
        vendor_err: 4,
        byte_len: 5,
        imm_data: 6,
        qp_num: 7,
        src_qp: 8,
        wc_flags: 9,
        ..ibv_wc::default()
    };
    assert_eq!(completion_to_c(&cqe), expected);
}

#[test]
fn null_objects_are_refused_and_the_request_is_named() {
    let mut request = request(IBV_WR_SEND, 0, &mut []);
    let mut bad = std::ptr::null_mut();
    // SAFETY: NULL is what is tested; the list and the place for the pointer are live.
    let result = unsafe { post_send(std::ptr::null_mut(), &raw mut request, &raw mut bad) };
    assert_eq!((result, bad), (libc::EINVAL, &raw mut request));
    // SAFETY: as above.
    let result = unsafe {
        post_srq_recv(
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    assert_eq!(result, libc::EOPNOTSUPP);
    // SAFETY: as above.
    assert!(unsafe { poll_cq(std::ptr::null_mut(), 1, std::ptr::null_mut()) } < 0);
    // SAFETY: as above.
    let result = unsafe { req_notify_cq(std::ptr::null_mut(), 0) };
    assert_eq!(result, libc::EINVAL);
}
