/* Loss of single packets at a NIC's ingress: drops UDP and TCP packets with a probability each, and counts.
 * Compiled and attached by fabric::impair; the probabilities are set, the counts read, with bpftool.
 * A veth whose receiving side has an XDP program cuts trains into packets by itself, so every packet of a
 * train is judged alone; the kernel's GRO merges the survivors again. xdp.frags: else no MTU above a page. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PARTS 1000000u

enum protocol { UDP, TCP, PROTOCOLS };
enum verdict { PASSED, DROPPED, VERDICTS };

/* By protocol: how many of a million packets to drop. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PROTOCOLS);
	__type(key, __u32);
	__type(value, __u64);
} loss_ppm SEC(".maps");

/* At protocol * VERDICTS + verdict: packets so far. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PROTOCOLS * VERDICTS);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

/* The protocol number of the packet's transport header, or -1. Extension headers of IPv6 are not followed. */
static __always_inline int transport(struct xdp_md *context)
{
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = (void *)(long)context->data;

	if ((void *)(ethernet + 1) > end)
		return -1;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(ethernet + 1);

		return (void *)(ip + 1) > end ? -1 : ip->protocol;
	}
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(ethernet + 1);

		return (void *)(ip + 1) > end ? -1 : ip->nexthdr;
	}
	return -1;
}

SEC("xdp.frags")
int impair(struct xdp_md *context)
{
	int number = transport(context);
	__u32 protocol, slot;
	__u64 *rate, *count;
	int drop;

	if (number == IPPROTO_UDP)
		protocol = UDP;
	else if (number == IPPROTO_TCP)
		protocol = TCP;
	else
		return XDP_PASS;
	rate = bpf_map_lookup_elem(&loss_ppm, &protocol);
	drop = rate && *rate && bpf_get_prandom_u32() % PARTS < *rate;
	slot = protocol * VERDICTS + (drop ? DROPPED : PASSED);
	count = bpf_map_lookup_elem(&packets, &slot);
	if (count)
		__sync_fetch_and_add(count, 1);
	return drop ? XDP_DROP : XDP_PASS;
}

char impair_license[] SEC("license") = "GPL";
