//! What an endpoint counts: plain numbers, cheap to bump, read by `metaroce stat`, the statistics file and the
//! simulator. Every dropped packet is in exactly one of the `dropped_*` counters. Nothing decides by a counter.

pub mod json;
pub mod log;
mod snapshot;

pub use snapshot::{
    ConnectionInfo, ConnectionState, EndedCounters, EndpointInfo, GrantsInfo, LaneInfo, PathInfo,
    PathState, ReceivingPathInfo,
};

/// Defines a set of counters and the iterator over their names from one list.
macro_rules! counters {
    ($(#[$about:meta])* $kind:ident: $($(#[$meta:meta])* $name:ident,)+) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $kind {
            $($(#[$meta])* pub $name: u64,)+
        }

        impl $kind {
            /// Names and values, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }

            /// Adds the counters of another one.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)+
            }
        }
    };
}

counters! {
    /// Counters of an endpoint since its start, all connections together.
    Counters:
    /// DATA packets sent, retransmissions and bare ones included.
    data_packets_sent,
    /// Payload bytes of DATA packets sent for the first time.
    data_bytes_sent,
    /// Trains handed out.
    trains_sent,
    /// DATA packets sent again under their PSN.
    retransmissions,
    /// Retransmissions whose first copy had arrived after all (told by the duplicates count).
    spurious_retransmissions,
    /// FILL packets sent in the place of a lost one.
    fills_sent,
    /// Probes sent.
    probes_sent,
    /// Packets with the marker flag sent.
    markers_sent,
    /// Announcements sent.
    announces_sent,
    /// Moves of a path to another route.
    moves,
    /// Retransmission timeouts (the last resort).
    rtos,
    /// Packets found lost.
    packets_lost,
    /// ACK packets sent.
    acks_sent,
    /// ACK packets received and believed.
    acks_received,
    /// Control packets sent.
    control_sent,
    /// Control packets received and believed.
    control_received,
    /// DATA packets received and believed.
    data_packets_received,
    /// Payload bytes of DATA packets received for the first time.
    data_bytes_received,
    /// DATA packets received that had been received before.
    duplicates_received,
    /// Packets received with a congestion mark.
    ce_received,
    /// Packets that peers received with a congestion mark, as they told.
    ce_echoed,
    /// Datagrams that the kernel dropped at our socket.
    receive_overflows,
    /// Refusals for want of a receive (RNR) that peers told us.
    rnr_received,
    /// Messages refused for want of a receive (RNR) here.
    rnr_sent,
    /// Packets held back for strict visibility.
    packets_held,
    /// Packets for which there was no hold memory: their messages were refused.
    hold_refusals,
    /// Connections that opened.
    connections_opened,
    /// Connections that ended because the peer was found dead or gone.
    connections_lost,
    /// RESETs sent.
    resets_sent,
    /// RESETs received and believed.
    resets_received,
    /// Datagrams that are no packet of ours, or damaged.
    dropped_malformed,
    /// Packets with a connection id that is nobody's.
    dropped_unknown_connection,
    /// Packets that come from an address that is not the peer's.
    dropped_wrong_source,
    /// Packets for a queue pair that does not exist, of another peer, or in another state.
    dropped_unknown_qp,
    /// Packets with a token that is not that of the stream's life.
    dropped_bad_token,
    /// Packets whose PSN or path is out of the window.
    dropped_out_of_window,
    /// Packets that the stream layer refused (not placed).
    dropped_refused,
    /// Control packets that do not fit the state, or over a limit.
    dropped_control,
    /// Times that the kernel or a router said that a packet was too large.
    too_large,
    /// Times that a path was found to carry small packets and to swallow large ones.
    holes_found,
    /// Packets sent to find out whether larger ones pass.
    searches_sent,
    /// Queue pairs that went to the error state by themselves.
    qp_failures,
}

counters! {
    /// What a path counts as a sender since its connection began. Each name is that of the endpoint's counter, which is
    /// the sum over all paths, with those that are gone ([`EndedCounters`]).
    SendingCounters:
    /// DATA packets sent, retransmissions and bare ones included.
    data_packets_sent,
    /// Payload bytes of DATA packets sent for the first time.
    data_bytes_sent,
    /// DATA packets sent again under their PSN.
    retransmissions,
    /// Retransmissions whose first copy had arrived after all.
    spurious_retransmissions,
    /// Probes sent.
    probes_sent,
    /// Packets with the marker flag sent on their own.
    markers_sent,
    /// Announcements sent.
    announces_sent,
    /// Moves to another route.
    moves,
    /// Retransmission timeouts.
    rtos,
    /// Packets found lost.
    packets_lost,
    /// Packets that the peer received with a congestion mark, as it told.
    ce_echoed,
}

counters! {
    /// What a path of the peer counts here; the names are as those of [`SendingCounters`].
    ReceivingCounters:
    /// DATA packets received and believed.
    data_packets_received,
    /// Payload bytes of DATA packets received for the first time.
    data_bytes_received,
    /// DATA packets received that had been received before.
    duplicates_received,
    /// Packets received with a congestion mark.
    ce_received,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_iterator_names_every_counter() {
        let counters = Counters {
            acks_sent: 3,
            qp_failures: 7,
            ..Counters::default()
        };
        let mut sum = Counters::default();
        sum.add(&counters);
        sum.add(&counters);
        let find = |name| sum.iter().find(|(n, _)| *n == name).map(|(_, value)| value);
        assert_eq!(find("acks_sent"), Some(6));
        assert_eq!(find("qp_failures"), Some(14));
        assert_eq!(find("moves"), Some(0));
    }
}
