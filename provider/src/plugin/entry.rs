//! The ops, called as a program of C would call them, behind a safe face: for the fuzz target `verbs` (`tests/fuzz`), which
//! is safe code and chooses what is called with which arguments. Only built with the feature `entry-points`.
//!
//! A [`Program`] owns one context, as `ibv_open_device` would have made it but without any libibverbs, one piece of memory
//! and all objects that it makes, which are named by their index; an index beyond the last names NULL. It is as odd as a
//! program may be without breaking C's own rules: lists are as long as they say (or longer than any limit), memory is
//! there while it is registered, an object is not used after it was destroyed.

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use super::boundary::errno;
use super::{context, ops_cq, ops_data, ops_device, ops_memory, ops_qp};
use crate::abi::*;
use crate::device::Device;
use crate::verbs;

/// Entries of every scatter/gather list: more than any limit, so that a count that passes the checks is never too long.
pub const LIST_ENTRIES: usize = 64;

/// A scatter/gather entry; `addr` and `key` are whatever the caller likes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// lkey.
    pub key: u32,
}

/// A work request, for `post_send` or (number and list only) `post_recv`.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `wr_id`.
    pub number: u64,
    /// `opcode`.
    pub opcode: u32,
    /// `send_flags`. With IBV_SEND_INLINE the list is made to name the program's memory.
    pub flags: u32,
    /// `num_sge`.
    pub count: i32,
    /// The list; zeroes follow.
    pub list: Vec<Entry>,
    /// `sg_list` is NULL.
    pub no_list: bool,
    /// `imm_data`.
    pub immediate: u32,
    /// Remote address and rkey.
    pub remote: (u64, u32),
    /// Operands of an atomic.
    pub operands: [u64; 2],
}

/// What `modify_qp` is to change; see `struct ibv_qp_attr`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// `attr_mask`.
    pub mask: u32,
    /// `qp_state`.
    pub state: u32,
    /// `cur_qp_state`.
    pub current_state: u32,
    /// `dest_qp_num`.
    pub dest_qpn: u32,
    /// `path_mtu`.
    pub path_mtu: u32,
    /// `qp_access_flags`.
    pub access: u32,
    /// `dgid`.
    pub dest_gid: [u8; 16],
    /// `sgid_index`, `port_num`, `is_global`.
    pub address: [u8; 3],
    /// `max_rd_atomic`, `max_dest_rd_atomic`, `min_rnr_timer`, `timeout`, `retry_cnt`, `rnr_retry`.
    pub numbers: [u8; 6],
    /// `sq_psn`, `rq_psn`.
    pub psns: [u32; 2],
}

/// Depths of a queue pair; see `struct ibv_qp_init_attr`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// `max_send_wr`, `max_recv_wr`, `max_send_sge`, `max_recv_sge`, `max_inline_data`.
    pub depths: [u32; 5],
    /// `qp_type`.
    pub kind: u32,
    /// `sq_sig_all`.
    pub signal_all: bool,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// `wr_id`.
    pub number: u64,
    /// `status`.
    pub status: u32,
    /// `qp_num`.
    pub qpn: u32,
}

/// See the file's head.
pub struct Program {
    context: *mut ibv_context,
    memory: Box<[u8]>,
    pds: Vec<*mut ibv_pd>,
    mrs: Vec<*mut ibv_mr>,
    ahs: Vec<*mut ibv_ah>,
    cqs: Vec<*mut ibv_cq>,
    qps: Vec<*mut ibv_qp>,
}

fn at<T>(objects: &[*mut T], index: usize) -> *mut T {
    objects.get(index).copied().unwrap_or(null_mut())
}

/// Keeps what an op made, or says why it made nothing.
fn keep<T>(objects: &mut Vec<*mut T>, object: *mut T) -> Result<usize, c_int> {
    if object.is_null() {
        return Err(errno());
    }
    objects.push(object);
    Ok(objects.len() - 1)
}

/// Forgets what an op destroyed.
fn drop_at<T>(objects: &mut Vec<*mut T>, index: usize, result: c_int) -> c_int {
    if result == 0 {
        objects.swap_remove(index);
    }
    result
}

impl Program {
    /// Opens `device`, with `memory_bytes` of memory.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn open(device: Device, memory_bytes: usize) -> io::Result<Self> {
        let opened = verbs::Context::open(Arc::new(device))?;
        Ok(Self {
            context: context::new_bare(opened),
            memory: vec![0; memory_bytes].into(),
            pds: Vec::new(),
            mrs: Vec::new(),
            ahs: Vec::new(),
            cqs: Vec::new(),
            qps: Vec::new(),
        })
    }

    /// Where the program's memory begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// Numbers of PDs, MRs, AHs, CQs and QPs.
    #[must_use]
    pub fn counts(&self) -> [usize; 5] {
        [
            self.pds.len(),
            self.mrs.len(),
            self.ahs.len(),
            self.cqs.len(),
            self.qps.len(),
        ]
    }

    // ---- Objects ----

    /// `alloc_pd`.
    pub fn alloc_pd(&mut self) -> Result<usize, c_int> {
        // SAFETY: a live context.
        keep(&mut self.pds, unsafe { ops_memory::alloc_pd(self.context) })
    }

    /// `dealloc_pd`.
    pub fn dealloc_pd(&mut self, pd: usize) -> c_int {
        // SAFETY: a live domain of ours or NULL.
        let result = unsafe { ops_memory::dealloc_pd(at(&self.pds, pd)) };
        drop_at(&mut self.pds, pd, result)
    }

    /// `reg_mr` of a part of the program's memory, cut to fit.
    pub fn register(
        &mut self,
        pd: usize,
        (offset, length): (usize, usize),
        iova: u64,
        access: u32,
    ) -> Result<usize, c_int> {
        let offset = offset % self.memory.len();
        let length = length.min(self.memory.len() - offset);
        let start = self.memory[offset..].as_mut_ptr().cast::<c_void>();
        // SAFETY: a live domain or NULL; the memory lives as long as the program, which deregisters it first.
        let mr =
            unsafe { ops_memory::reg_mr(at(&self.pds, pd), start, length, iova, access as c_int) };
        keep(&mut self.mrs, mr)
    }

    /// `reg_mr` of memory that is not there, which must be refused; an accepted one is given back at once.
    pub fn register_nothing(&mut self, pd: usize, addr: u64, length: u64) -> c_int {
        let start = std::ptr::with_exposed_provenance_mut(addr as usize);
        // SAFETY: a live domain or NULL; nobody learns the key, so the memory is not touched.
        unsafe {
            let mr = ops_memory::reg_mr(at(&self.pds, pd), start, length as usize, addr, 1);
            if mr.is_null() {
                errno()
            } else {
                ops_memory::dereg_mr(mr.cast())
            }
        }
    }

    /// `rereg_mr` to another part of the program's memory.
    pub fn reregister(
        &mut self,
        mr: usize,
        flags: u32,
        pd: usize,
        (offset, length): (usize, usize),
        access: u32,
    ) -> c_int {
        let offset = offset % self.memory.len();
        let length = length.min(self.memory.len() - offset);
        let start = self.memory[offset..].as_mut_ptr().cast::<c_void>();
        let mr = at(&self.mrs, mr).cast::<verbs_mr>();
        // SAFETY: live objects or NULL, and memory that lives as long as the program.
        unsafe {
            ops_memory::rereg_mr(
                mr,
                flags as c_int,
                at(&self.pds, pd),
                start,
                length,
                access as c_int,
            )
        }
    }

    /// `dereg_mr`.
    pub fn deregister(&mut self, mr: usize) -> c_int {
        // SAFETY: a live region of ours or NULL.
        let result = unsafe { ops_memory::dereg_mr(at(&self.mrs, mr).cast()) };
        drop_at(&mut self.mrs, mr, result)
    }

    /// The key of a region, 0 where there is none.
    #[must_use]
    pub fn key(&self, mr: usize) -> u32 {
        // SAFETY: a live region of ours or NULL.
        unsafe { at(&self.mrs, mr).as_ref() }.map_or(0, |mr| mr.lkey)
    }

    /// `create_ah`.
    pub fn create_ah(
        &mut self,
        pd: usize,
        gid: [u8; 16],
        address: [u8; 3],
    ) -> Result<usize, c_int> {
        let mut attributes = address_vector(gid, address);
        // SAFETY: a live domain or NULL; attributes that live for the call.
        let ah = unsafe { ops_memory::create_ah(at(&self.pds, pd), &raw mut attributes) };
        keep(&mut self.ahs, ah)
    }

    /// `destroy_ah`.
    pub fn destroy_ah(&mut self, ah: usize) -> c_int {
        // SAFETY: a live handle of ours or NULL.
        let result = unsafe { ops_memory::destroy_ah(at(&self.ahs, ah)) };
        drop_at(&mut self.ahs, ah, result)
    }

    /// `create_cq`, without a channel.
    pub fn create_cq(&mut self, entries: i32, vector: i32) -> Result<usize, c_int> {
        // SAFETY: a live context.
        let cq = unsafe { ops_cq::create_cq(self.context, entries, null_mut(), vector) };
        keep(&mut self.cqs, cq)
    }

    /// `resize_cq`.
    pub fn resize_cq(&mut self, cq: usize, entries: i32) -> c_int {
        // SAFETY: a live queue of ours or NULL.
        unsafe { ops_cq::resize_cq(at(&self.cqs, cq), entries) }
    }

    /// `destroy_cq`.
    pub fn destroy_cq(&mut self, cq: usize) -> c_int {
        // SAFETY: a live queue of ours or NULL.
        let result = unsafe { ops_cq::destroy_cq(at(&self.cqs, cq)) };
        drop_at(&mut self.cqs, cq, result)
    }

    /// `req_notify_cq`.
    pub fn arm(&mut self, cq: usize, solicited_only: i32) -> c_int {
        // SAFETY: a live queue of ours or NULL.
        unsafe { ops_data::req_notify_cq(at(&self.cqs, cq), solicited_only) }
    }

    /// `poll_cq`: what came, or a negative error. There is room for what `count` says, up to 64.
    pub fn poll(&mut self, cq: usize, count: i32, found: &mut Vec<Completion>) -> c_int {
        let mut out = [ibv_wc::default(); 64];
        let count = count.min(out.len() as i32);
        // SAFETY: a live queue of ours or NULL; room for as many.
        let result = unsafe { ops_data::poll_cq(at(&self.cqs, cq), count, out.as_mut_ptr()) };
        let some = out.iter().take(usize::try_from(result).unwrap_or(0));
        found.extend(some.map(|wc| Completion {
            number: wc.wr_id,
            status: wc.status,
            qpn: wc.qp_num,
        }));
        result
    }

    // ---- Queue pairs ----

    /// `create_qp`.
    pub fn create_qp(
        &mut self,
        pd: usize,
        cqs: [usize; 2],
        wanted: &Wanted,
    ) -> Result<usize, c_int> {
        let [send, receive, send_sge, receive_sge, inline] = wanted.depths;
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: at(&self.cqs, cqs[0]),
            recv_cq: at(&self.cqs, cqs[1]),
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: send,
                max_recv_wr: receive,
                max_send_sge: send_sge,
                max_recv_sge: receive_sge,
                max_inline_data: inline,
            },
            qp_type: wanted.kind,
            sq_sig_all: c_int::from(wanted.signal_all),
        };
        // SAFETY: live objects of ours or NULL; attributes that live for the call.
        let qp = unsafe { ops_qp::create_qp(at(&self.pds, pd), &raw mut init) };
        keep(&mut self.qps, qp)
    }

    /// The number of a queue pair, 0 where there is none.
    #[must_use]
    pub fn qpn(&self, qp: usize) -> u32 {
        // SAFETY: a live queue pair of ours or NULL.
        unsafe { at(&self.qps, qp).as_ref() }.map_or(0, |qp| qp.qp_num)
    }

    /// `modify_qp`.
    pub fn modify(&mut self, qp: usize, change: &Change) -> c_int {
        let [
            rd_atomic,
            dest_rd_atomic,
            rnr_timer,
            timeout,
            retry,
            rnr_retry,
        ] = change.numbers;
        let mut attributes = ibv_qp_attr {
            qp_state: change.state,
            cur_qp_state: change.current_state,
            path_mtu: change.path_mtu,
            rq_psn: change.psns[1],
            sq_psn: change.psns[0],
            dest_qp_num: change.dest_qpn,
            qp_access_flags: change.access,
            ah_attr: address_vector(change.dest_gid, change.address),
            max_rd_atomic: rd_atomic,
            max_dest_rd_atomic: dest_rd_atomic,
            min_rnr_timer: rnr_timer,
            port_num: change.address[1],
            timeout,
            retry_cnt: retry,
            rnr_retry,
            ..ibv_qp_attr::default()
        };
        // SAFETY: a live queue pair of ours or NULL; attributes that live for the call.
        unsafe { ops_qp::modify_qp(at(&self.qps, qp), &raw mut attributes, change.mask as c_int) }
    }

    /// `query_qp`: the state, or an error.
    pub fn state(&mut self, qp: usize) -> Result<u32, c_int> {
        let mut attributes = ibv_qp_attr::default();
        // SAFETY: zero is a valid structure.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let qp = at(&self.qps, qp);
        if qp.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: a live queue pair of ours; structures that live for the call.
        match unsafe { ops_qp::query_qp(qp, &raw mut attributes, -1, &raw mut init) } {
            0 => Ok(attributes.qp_state),
            error => Err(error),
        }
    }

    /// `destroy_qp`.
    pub fn destroy_qp(&mut self, qp: usize) -> c_int {
        // SAFETY: a live queue pair of ours or NULL.
        let result = unsafe { ops_qp::destroy_qp(at(&self.qps, qp)) };
        drop_at(&mut self.qps, qp, result)
    }

    /// `post_send` of a list: the result, and how many requests were posted, as `bad_wr` tells.
    pub fn post_send(&mut self, qp: usize, requests: &[Request]) -> (c_int, usize) {
        let mut lists: Vec<_> = requests
            .iter()
            .map(|request| self.entries(request))
            .collect();
        let mut list: Vec<ibv_send_wr> = requests
            .iter()
            .zip(&mut lists)
            .map(|(request, entries)| send_to_c(request, entries))
            .collect();
        for index in 1..list.len() {
            list[index - 1].next = &raw mut list[index];
        }
        let mut bad = null_mut();
        let first = list.first_mut().map_or(null_mut(), |first| &raw mut *first);
        // SAFETY: a live queue pair of ours or NULL; lists that live for the call.
        let result = unsafe { ops_data::post_send(at(&self.qps, qp), first, &raw mut bad) };
        let posted = list.iter().position(|wr| std::ptr::eq(wr, bad));
        (result, posted.unwrap_or(list.len()))
    }

    /// `post_recv` of a list, in the same way.
    pub fn post_receive(&mut self, qp: usize, requests: &[Request]) -> (c_int, usize) {
        let mut lists: Vec<_> = requests
            .iter()
            .map(|request| self.entries(request))
            .collect();
        let mut list: Vec<ibv_recv_wr> = requests
            .iter()
            .zip(&mut lists)
            .map(|(request, entries)| ibv_recv_wr {
                wr_id: request.number,
                next: null_mut(),
                sg_list: list_to_c(request, entries),
                num_sge: request.count,
            })
            .collect();
        for index in 1..list.len() {
            list[index - 1].next = &raw mut list[index];
        }
        let mut bad = null_mut();
        let first = list.first_mut().map_or(null_mut(), |first| &raw mut *first);
        // SAFETY: a live queue pair of ours or NULL; lists that live for the call.
        let result = unsafe { ops_data::post_recv(at(&self.qps, qp), first, &raw mut bad) };
        let posted = list.iter().position(|wr| std::ptr::eq(wr, bad));
        (result, posted.unwrap_or(list.len()))
    }

    /// The list of a request, as long as any count that passes the checks.
    fn entries(&self, request: &Request) -> [ibv_sge; LIST_ENTRIES] {
        let inline = request.flags & IBV_SEND_INLINE != 0;
        std::array::from_fn(|index| {
            let entry = request.list.get(index).copied().unwrap_or_default();
            let length = match inline {
                // Inline data is read without a key: it must be there.
                true => entry.length.min(self.memory.len() as u32),
                false => entry.length,
            };
            ibv_sge {
                addr: if inline { self.address() } else { entry.addr },
                length,
                lkey: entry.key,
            }
        })
    }

    // ---- The device ----

    /// `query_device_ex` into a structure of `size_bytes`, at most its real size.
    pub fn query_device(&mut self, size_bytes: usize, comp_mask: u32) -> c_int {
        // SAFETY: zero is a valid structure.
        let mut attributes: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        let input = ibv_query_device_ex_input { comp_mask };
        let input = if comp_mask == 1 {
            null()
        } else {
            &raw const input
        };
        let size_bytes = size_bytes.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: a live context; a structure that is at least as long as it says.
        unsafe { ops_device::query_device_ex(self.context, input, &raw mut attributes, size_bytes) }
    }

    /// `query_port`.
    pub fn query_port(&mut self, port: u8) -> c_int {
        let mut attributes = ibv_port_attr::default();
        // SAFETY: a live context and a structure that lives for the call.
        unsafe { ops_device::query_port(self.context, port, &raw mut attributes) }
    }

    /// Destroys everything that is left, in the order that verbs ask for.
    ///
    /// # Errors
    /// What could not be destroyed, and the errno.
    pub fn end(&mut self) -> Result<(), (&'static str, c_int)> {
        type Step = (
            &'static str,
            fn(&Program) -> usize,
            fn(&mut Program, usize) -> c_int,
        );
        let steps: [Step; 5] = [
            ("destroy_qp", |p| p.qps.len(), Program::destroy_qp),
            ("destroy_cq", |p| p.cqs.len(), Program::destroy_cq),
            ("dereg_mr", |p| p.mrs.len(), Program::deregister),
            ("destroy_ah", |p| p.ahs.len(), Program::destroy_ah),
            ("dealloc_pd", |p| p.pds.len(), Program::dealloc_pd),
        ];
        for (name, count, destroy) in steps {
            while count(self) > 0 {
                match destroy(self, count(self) - 1) {
                    0 => {}
                    error => return Err((name, error)),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Err((name, error)) = self.end() {
            log::error!("{name} of what a program left failed: {error}");
        }
        // SAFETY: made by `open`, used by nobody any more.
        unsafe { context::free_bare(self.context) };
    }
}

fn address_vector(gid: [u8; 16], [sgid_index, port, is_global]: [u8; 3]) -> ibv_ah_attr {
    let mut address = ibv_ah_attr::default();
    address.grh.dgid.raw = gid;
    address.grh.sgid_index = sgid_index;
    address.grh.hop_limit = 64;
    (address.port_num, address.is_global) = (port, is_global);
    address
}

fn list_to_c(request: &Request, entries: &mut [ibv_sge; LIST_ENTRIES]) -> *mut ibv_sge {
    match request.no_list {
        true => null_mut(),
        false => entries.as_mut_ptr(),
    }
}

fn send_to_c(request: &Request, entries: &mut [ibv_sge; LIST_ENTRIES]) -> ibv_send_wr {
    // SAFETY: zero is a valid work request.
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    wr.wr_id = request.number;
    wr.sg_list = list_to_c(request, entries);
    wr.num_sge = request.count;
    wr.opcode = request.opcode as c_uint;
    wr.send_flags = request.flags as c_uint;
    wr.imm_data = request.immediate;
    let (remote_addr, rkey) = request.remote;
    wr.wr = match request.opcode {
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_send_wr_remote {
            atomic: ibv_send_wr_atomic {
                remote_addr,
                compare_add: request.operands[0],
                swap: request.operands[1],
                rkey,
            },
        },
        _ => ibv_send_wr_remote {
            rdma: ibv_send_wr_rdma { remote_addr, rkey },
        },
    };
    wr
}
