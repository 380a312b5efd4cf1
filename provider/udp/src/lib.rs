//! UDP sockets for metaroce: GSO trains, GRO, ECN; knows bytes and addresses, nothing of the protocol
