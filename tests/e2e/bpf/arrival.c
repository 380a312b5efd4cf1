/* What happens to packets and trains that came in at a port (tc ingress), after impair.c.
 *
 * A black hole drops them all, silently. Only the search for neighbours (ARP, ICMPv6 133 to 137) gets through:
 * else the sender's own kernel would soon tell it that the host is unreachable, and a hole that is told of is
 * none. IPv6 extension headers are not followed.
 *
 * A packet that impair.c named late takes a detour: out of the device late0, whose queue holds it for a while,
 * in at late1 and from there into the port again. Packets behind it pass it meanwhile.
 *
 * Compiled and attached by fabric::arrival. A train is one call here, and is counted as the packets in it. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* LATE_DEVICE: index of late0, or 0. LATE_CLASSES: how many classes its queue has, numbered from 1. */
enum setting { BLACK_HOLE, LATE_DEVICE, LATE_CLASSES, SETTINGS };
enum count { SWALLOWED, COUNTS };

/* Marks of packets on the detour; inside one namespace they survive. OUTWARD is added to the index of the port
 * that the packet came in at. */
#define OUTWARD 0x4c000000u
#define OUTWARD_MASK 0xff000000u
#define RETURNED 0x4d000000u
#define PLACEHOLDER 0x4e000000u

/* Handle of the queue at late0. */
#define QUEUE_MAJOR (1u << 16)

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

static __always_inline int is_named_late(struct __sk_buff *packet)
{
	void *data = (void *)(long)packet->data;
	__u32 *name = (void *)(long)packet->data_meta;

	return (void *)(name + 1) <= data && *name != 0;
}

SEC("tc/arrive")
int arrive(struct __sk_buff *packet)
{
	__u64 device = setting(LATE_DEVICE), classes = setting(LATE_CLASSES);

	if (setting(BLACK_HOLE) && !seeks_neighbours(packet)) {
		count(SWALLOWED, packet->gso_segs ? packet->gso_segs : 1);
		return TC_ACT_SHOT;
	}
	if (packet->mark == RETURNED) {
		packet->mark = 0;
		return TC_ACT_OK;
	}
	if (!device || !classes || !is_named_late(packet))
		return TC_ACT_OK;
	/* A class that was idle lets one packet through at once and the next one after its interval: so a copy
	 * that nobody gets goes first. */
	packet->priority = QUEUE_MAJOR + 1 + bpf_get_prandom_u32() % (__u32)classes;
	packet->mark = PLACEHOLDER;
	bpf_clone_redirect(packet, device, 0);
	packet->mark = OUTWARD + packet->ifindex;
	return bpf_redirect(device, 0);
}

/* At late1. */
SEC("tc/return")
int come_back(struct __sk_buff *packet)
{
	__u32 mark = packet->mark;

	if ((mark & OUTWARD_MASK) != OUTWARD)
		return TC_ACT_SHOT;
	packet->mark = RETURNED;
	return bpf_redirect(mark & ~OUTWARD_MASK, BPF_F_INGRESS);
}

char arrival_license[] SEC("license") = "GPL";
