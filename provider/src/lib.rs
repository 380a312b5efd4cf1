//! rdma-core provider that carries RDMA over UDP with multipath spraying and selective retransmission
