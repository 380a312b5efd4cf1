//! LD_PRELOAD stand-in for sysfs and /dev/infiniband below libibverbs
