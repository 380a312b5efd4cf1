/* Impairs single packets that come in at a port: drops UDP and TCP packets with a probability each, and those that
 * are too large, marks packets as having met congestion (CE), names packets that shall come late, and counts.
 * Compiled and attached by fabric::impair; settings are written, counts read, with bpftool.
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

/* The two bits of IPv4's type of service and IPv6's traffic class. */
#define ECN_MASK 3
#define ECN_CE 3

/* Of a million packets. LARGEST: bytes with the IP header of the largest packet that passes, 0 is no limit. */
enum setting { UDP_LOSS, TCP_LOSS, CE, LATE, LARGEST, SETTINGS };
/* Packets so far. MARKABLE: those whose sender knows ECN, marked here or not. */
enum count { UDP_PASSED, UDP_DROPPED, TCP_PASSED, TCP_DROPPED, MARKABLE, MARKED, LATE_ONES, COUNTS };

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

static __always_inline int happens(__u32 key)
{
	__u64 *rate = bpf_map_lookup_elem(&settings, &key);

	return rate && *rate && bpf_get_prandom_u32() % PARTS < *rate;
}

static __always_inline int is_too_large(struct xdp_md *context)
{
	__u32 key = LARGEST;
	__u64 *largest = bpf_map_lookup_elem(&settings, &key);

	return largest && *largest && bpf_xdp_get_buff_len(context) > *largest + sizeof(struct ethhdr);
}

static __always_inline void count(__u32 key)
{
	__u64 *value = bpf_map_lookup_elem(&counts, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline int knows_ecn(__u8 bits)
{
	return (bits & ECN_MASK) != 0 && (bits & ECN_MASK) != ECN_CE;
}

/* Marks an IPv4 packet and mends its checksum (RFC 1624). */
static __always_inline void mark_ipv4(struct iphdr *ip)
{
	__u16 before = bpf_ntohs(*(__u16 *)ip), after;
	__u32 sum;

	ip->tos |= ECN_CE;
	after = bpf_ntohs(*(__u16 *)ip);
	sum = (__u16)~bpf_ntohs(ip->check) + (__u16)~before + after;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = bpf_htons((__u16)~sum);
}

/* Names the packet for arrival.c, in metadata before it. The number is any but 0, and different from packet
 * to packet: GRO merges packets with equal metadata only. */
static __always_inline void name_late(struct xdp_md *context)
{
	__u32 *name;

	if (bpf_xdp_adjust_meta(context, -(int)sizeof(*name)))
		return;
	name = (void *)(long)context->data_meta;
	if ((void *)(name + 1) > (void *)(long)context->data)
		return;
	*name = bpf_get_prandom_u32() | 1;
	count(LATE_ONES);
}

/* Extension headers of IPv6 are not followed. */
SEC("xdp.frags")
int impair(struct xdp_md *context)
{
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = (void *)(long)context->data;
	struct ipv6hdr *ipv6 = (void *)(ethernet + 1);
	struct iphdr *ipv4 = (void *)(ethernet + 1);
	__u8 protocol, ecn;
	int is_ipv4;

	if ((void *)(ipv4 + 1) > end)
		return XDP_PASS;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		is_ipv4 = 1;
		protocol = ipv4->protocol;
		ecn = ipv4->tos;
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ipv6 + 1) <= end) {
		is_ipv4 = 0;
		protocol = ipv6->nexthdr;
		/* The lower half of the class stands in the upper half of the second byte. */
		ecn = ipv6->flow_lbl[0] >> 4;
	} else {
		return XDP_PASS;
	}
	if (protocol != IPPROTO_UDP && protocol != IPPROTO_TCP)
		return XDP_PASS;
	if (is_too_large(context) || happens(protocol == IPPROTO_UDP ? UDP_LOSS : TCP_LOSS)) {
		count(protocol == IPPROTO_UDP ? UDP_DROPPED : TCP_DROPPED);
		return XDP_DROP;
	}
	count(protocol == IPPROTO_UDP ? UDP_PASSED : TCP_PASSED);
	if (knows_ecn(ecn)) {
		count(MARKABLE);
		if (happens(CE)) {
			count(MARKED);
			if (is_ipv4)
				mark_ipv4(ipv4);
			else
				ipv6->flow_lbl[0] |= ECN_CE << 4;
		}
	}
	if (happens(LATE))
		name_late(context);
	return XDP_PASS;
}

char impair_license[] SEC("license") = "GPL";
