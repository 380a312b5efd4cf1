//! End-to-end tests: real clients over stock libibverbs in network namespaces
