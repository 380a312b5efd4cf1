//! What the core sees of this process: registered memory and posted receives, and the queue pairs that its events are for.
//! The tables live under the engine's lock; the objects in them have their own locks, taken after it.

use super::config::PORT_BASE_VARIABLE;
use super::reach::Troubles;
use crate::verbs::mr_memory::MrTable;
use crate::verbs::{Qp, ReceiveQueue};
use metaroce_proto::event::Event;
use metaroce_proto::host::{AccessDenied, AtomicOperation, Host, Visibility};
use metaroce_proto::types::{Access, PdId, QpId, Receive, RqId, Time};
use metaroce_proto::wire::Qpn;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Headers of IP and UDP, which are ICMP's of an echo request, too.
const IPV4_UDP_BYTES: u32 = 28;
const IPV6_UDP_BYTES: u32 = 48;

/// IP packets that a way must carry, rounded up: the least full packet has 576 bytes of UDP payload (WIRE 4.25).
const IP_BYTES_NEEDED: u32 = 640;

/// A receive queue and the number of queue pairs that use it.
struct SharedQueue {
    queue: Arc<ReceiveQueue>,
    users: usize,
}

/// The verbs objects that the core knows by number.
pub(super) struct Objects {
    /// By slot of the id.
    qps: Vec<Option<Arc<Qp>>>,
    count: usize,
    receive_queues: HashMap<RqId, SharedQueue>,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            // As the core's table: numbers rotate through all slots, and what was never used is never touched.
            qps: Vec::with_capacity(1 << Qpn::LOCAL_BITS),
            count: 0,
            receive_queues: HashMap::new(),
        }
    }
}

impl Objects {
    /// How many queue pairs there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Enters a new queue pair.
    pub(super) fn insert(&mut self, qp: &Arc<Qp>) {
        let slot = qp.id().slot();
        if self.qps.len() <= slot {
            self.qps.resize(slot + 1, None);
        }
        debug_assert!(self.qps[slot].is_none(), "the core gave a slot away twice");
        self.qps[slot] = Some(qp.clone());
        self.count += 1;
        let queue = qp.receive_queue();
        let entry = self.receive_queues.entry(queue.id());
        entry
            .or_insert_with(|| SharedQueue {
                queue: queue.clone(),
                users: 0,
            })
            .users += 1;
    }

    /// Forgets a queue pair, and its receive queue with the last one that uses it.
    pub(super) fn remove(&mut self, qp: &Arc<Qp>) {
        if self.get(qp.id()).is_none() {
            return;
        }
        self.qps[qp.id().slot()] = None;
        self.count -= 1;
        let id = qp.receive_queue().id();
        if let Some(shared) = self.receive_queues.get_mut(&id) {
            shared.users -= 1;
            if shared.users == 0 {
                self.receive_queues.remove(&id);
            }
        }
    }

    /// The queue pair of that handle, if it is not destroyed yet.
    pub(super) fn get(&self, id: QpId) -> Option<&Arc<Qp>> {
        self.qps.get(id.slot())?.as_ref().filter(|qp| qp.id() == id)
    }

    /// Tells an event to the queue pair that it is for.
    pub(super) fn dispatch(&self, event: &Event, troubles: &Troubles, now: Time) {
        let id = match event {
            Event::SendDone(done) => done.qp,
            Event::ReceiveDone(done) => done.qp,
            Event::QpFailed { qp, .. }
            | Event::Established { qp }
            | Event::PeerSilent { qp, .. } => *qp,
            Event::PeerUnreachable {
                peer,
                own,
                queue_pairs,
            } => {
                warn_of_dead_peer(*own, *peer, *queue_pairs);
                return;
            }
        };
        let Some(qp) = self.get(id) else {
            log::debug!("event for {id:?}, which is gone: {event:?}");
            return;
        };
        match event {
            Event::SendDone(done) => qp.on_send_done(done),
            Event::ReceiveDone(done) => qp.on_receive_done(done),
            Event::QpFailed { failure, .. } => qp.on_failed(*failure),
            Event::PeerUnreachable { .. } => {}
            Event::Established { .. } => qp.on_established(),
            Event::PeerSilent {
                peer,
                own,
                swallowed_bytes: Some(bytes),
                ..
            } => warn_of_narrow_way(qp.qpn(), (*own, *peer), *bytes),
            Event::PeerSilent {
                peer,
                own,
                answered,
                ..
            } => warn_of_silence(
                qp.qpn(),
                (*own, *peer),
                *answered,
                troubles.of(now, peer.ip()),
            ),
        }
    }
}

/// The program sees an error number (12, RETRY_EXC) at most; somebody will ask why.
fn warn_of_silence(
    qpn: Qpn,
    (own, peer): (IpAddr, SocketAddr),
    answered: bool,
    trouble: Option<String>,
) {
    let said = trouble.map_or(String::new(), |trouble| {
        format!(" The last that was said of the way there: {trouble}.")
    });
    if answered {
        log::warn!(
            "queue pair {qpn} on {own} fails: {peer} went silent; its process or the network is down.{said}"
        );
    } else {
        log::warn!(
            "queue pair {qpn} on {own} fails: {peer} never answered.{said} Is that queue pair still there, are the UDP ports \
             open in the firewalls of both hosts, and is {PORT_BASE_VARIABLE} the same on both?"
        );
    }
}

/// The same, of all queue pairs that have the same peer.
fn warn_of_dead_peer(own: IpAddr, peer: SocketAddr, queue_pairs: u32) {
    log::warn!(
        "the connection from {own} to {peer} ends, and {queue_pairs} queue pairs lose their peer: that host answers that nobody \
         listens there (ICMP port unreachable). Its process has crashed or was killed: look there; or else a firewall rejects \
         these packets, which has to let the UDP ports through"
    );
}

/// The same, of a peer that answers, but not to what has data in it: `bytes` of UDP payload are too many for the way.
fn warn_of_narrow_way(qpn: Qpn, (own, peer): (IpAddr, SocketAddr), bytes: u32) {
    let headers = match own {
        IpAddr::V4(_) => IPV4_UDP_BYTES,
        IpAddr::V6(_) => IPV6_UDP_BYTES,
    };
    let ip_bytes = bytes + headers;
    log::warn!(
        "queue pair {qpn} on {own} fails: the way to {peer} carries no IP packet of {ip_bytes} bytes, only smaller ones, and \
         packets with data are no smaller; raise the MTU of what lies between (switches, tunnels) to {IP_BYTES_NEEDED} at \
         least: `ping -M do -s {} {}` shows where it ends",
        ip_bytes - headers,
        peer.ip()
    );
}

/// The core's [`Host`]: borrowed for one call.
pub(super) struct EngineHost<'a> {
    pub(super) memory: &'a MrTable,
    pub(super) objects: &'a Objects,
}

impl EngineHost<'_> {
    fn queue(&self, id: RqId) -> Option<&Arc<ReceiveQueue>> {
        self.objects
            .receive_queues
            .get(&id)
            .map(|shared| &shared.queue)
    }
}

impl Host for EngineHost<'_> {
    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<Visibility, AccessDenied> {
        self.memory.check_remote(pd, rkey, addr, length, access)
    }

    fn place(&mut self, pd: PdId, key: u32, addr: u64, bytes: &[u8]) -> Result<(), AccessDenied> {
        self.memory.place(pd, key, addr, bytes)
    }

    fn atomic(
        &mut self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AccessDenied> {
        self.memory.atomic(pd, rkey, addr, operation)
    }

    fn take_receive(&mut self, queue: RqId) -> Option<Receive> {
        self.queue(queue)?.take()
    }

    fn receives_available(&mut self, queue: RqId) -> u32 {
        self.queue(queue).map_or(0, |queue| queue.available())
    }

    fn want_receive_notice(&mut self, queue: RqId) {
        if let Some(queue) = self.queue(queue) {
            queue.want();
        }
    }
}
