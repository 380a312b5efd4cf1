//! The end of `metaroce stat --help`: what each word and column means, and how trouble looks.

/// At the end of `-h`.
pub(super) const SHORT: &str = "`metaroce stat --help` explains every word and column.";

/// At the end of `--help`.
pub(super) const LONG: &str = "\
The first sample (and --once) shows totals since each process began, later ones rates per second
since the sample before; columns that stay totals are then headed TOTALS.

A process:
  sent, received  payload, and data packets; acknowledgements are not counted
  retransmitted   data packets sent again
  lost            data packets found lost
  spurious        retransmissions in vain: the first copy had arrived after all (late, not lost)
  dropped         packets received and thrown away: damaged, unknown, stale (--json tells which)
  overflows       datagrams that the kernel dropped because our socket was full (net.core.rmem_max)
  held A of B     bytes held back now until earlier ones are there, and how many may be; only where
                  memory was registered without relaxed ordering, or METAROCE_VISIBILITY=strict
  held back       packets that were held back so far
  refused         packets for which there was no room: their messages were sent again

A connection (to one peer process, for all queue pairs to it):
  payload           bytes of payload in a full packet, on every plane; A of B: the way carries less
                    than both ends take (path MTU), and larger ones are tried again
  in flight A of B  bytes not acknowledged yet, and how many may be (the connection's window)
  grant             the rate that the peer allows; it limits where several send to it
  silent            time since anything was heard from the peer

Planes, where there are several:
  STATE    works                           silent: none of its paths is answered
           down: interface or address, here  off: switched off by the program
           untried: only one end has it, and nothing was answered over it
  LOCAL, PEER, Gb/s  addresses of both ends, and the speeds of their links
  PATHS, RESTING     paths that are there now, and those of them that rest
  SENT, RECEIVED     payload by this plane

Paths to the peer, those that were used:
  STATE    idle: nothing outstanding       busy: packets outstanding, answered in time
           probing: a probe is unanswered  resting: no new packets until a probe is answered
  SOURCE   address and UDP source port; the port decides the way through the network
  RTT      smoothed round trip, microseconds; - is none measured yet
  MIN      least round trip since the path last moved, so it can be above the smoothed one
  WINDOW   packets that may be in flight on the path
  FLIGHT   packets in flight
  PACKETS, BYTES (PKT/s, bit/s)  data packets and payload sent
  RETX     data packets sent again
  LOST     data packets found lost
  PROBES   probes sent: packets that ask whether the path still works
  MOVES    changes of port or plane: after probes without an answer, or back to a mended plane
  CE       packets that arrived with a congestion mark (ECN), as the peer told

FROM PATH: the same of the peer's paths, as received; DUPLICATES had arrived before.

A dead plane: its paths are probing, then resting, and MOVES grows as they go to other planes, where
PKT/s goes on; now and then a path tries the dead plane again, rests meanwhile, and moves back.
A dead peer: all paths rest, and silent grows.";
