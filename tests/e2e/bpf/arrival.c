/* What happens to packets and trains that came in at a port: a black hole drops them all, silently. Only the
 * search for neighbours (ARP, ICMPv6 133 to 137) gets through: else the sender's own kernel would soon tell it
 * that the host is unreachable, and a hole that is told of is none. IPv6 extension headers are not followed.
 * Compiled and attached by fabric::arrival at the ingress of the port (tc). A train is one call here, and is
 * counted as the packets in it. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum setting { BLACK_HOLE, SETTINGS };
enum count { SWALLOWED, COUNTS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SETTINGS);
	__type(key, __u32);
	__type(value, __u64);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline __u64 setting(__u32 key)
{
	__u64 *value = bpf_map_lookup_elem(&settings, &key);

	return value ? *value : 0;
}

static __always_inline void count(__u32 key, __u64 packets)
{
	__u64 *value = bpf_map_lookup_elem(&counts, &key);

	if (value)
		__sync_fetch_and_add(value, packets);
}

static __always_inline int seeks_neighbours(struct __sk_buff *packet)
{
	struct {
		struct ipv6hdr ip;
		__u8 icmp_type;
	} __attribute__((packed)) headers;

	if (packet->protocol == bpf_htons(ETH_P_ARP))
		return 1;
	if (packet->protocol != bpf_htons(ETH_P_IPV6) ||
	    bpf_skb_load_bytes(packet, ETH_HLEN, &headers, sizeof(headers)))
		return 0;
	return headers.ip.nexthdr == IPPROTO_ICMPV6 && headers.icmp_type >= 133 && headers.icmp_type <= 137;
}

SEC("tc/arrive")
int arrive(struct __sk_buff *packet)
{
	if (setting(BLACK_HOLE) && !seeks_neighbours(packet)) {
		count(SWALLOWED, packet->gso_segs ? packet->gso_segs : 1);
		return TC_ACT_SHOT;
	}
	return TC_ACT_OK;
}

char arrival_license[] SEC("license") = "GPL";
