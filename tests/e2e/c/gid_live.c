/* GIDs and the state of the port while addresses and the link come and go, over stock libibverbs; alone on a host, as root.
 *
 *   gid_live INTERFACE
 *
 * Before the first queue pair, new addresses appear in the table; at all times the entry of an address that goes is empty, the
 * others keep their indexes, and one that comes back is where it was. A queue pair on an address that came after the device was
 * opened carries data. With queue pairs there are asynchronous events of it. A program that is started then sees the same. Last
 * line OK. */
#include "verbs_util.h"

/* An event comes within milliseconds; what waits longer is not late but lost. */
enum { SOON_S = 20, PORT_NUMBER = 1 };

static const char *interface;
static struct ibv_context *context;

/* Runs `ip COMMAND dev INTERFACE`. */
static void ip(const char *command)
{
	char line[256];

	snprintf(line, sizeof line, "ip %s dev %s", command, interface);
	CHECK(!system(line), "%s failed", line);
}

static union ibv_gid mapped(const char *ipv4)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	CHECK(inet_pton(AF_INET, ipv4, gid.raw + 12) == 1, "'%s'", ipv4);
	return gid;
}

static struct ibv_port_attr port(void)
{
	struct ibv_port_attr p;

	CHECK(!ibv_query_port(context, PORT_NUMBER, &p), "ibv_query_port");
	return p;
}

/* The index of an IPv4 address by ibv_query_gid, or -1; the other two ways to ask must say the same. */
static int index_of(const char *ipv4)
{
	union ibv_gid gid, wanted = mapped(ipv4), none = { 0 };
	struct ibv_gid_entry all[128], one;
	int length = port().gid_tbl_len, found = -1, present = 0;
	ssize_t n = ibv_query_gid_table(context, all, 128, 0);

	CHECK(n >= 0, "ibv_query_gid_table: %s", strerror(-n));
	for (int i = 0; i < length; i++) {
		CHECK(!ibv_query_gid(context, PORT_NUMBER, i, &gid), "ibv_query_gid %d: %m", i);
		int e = ibv_query_gid_ex(context, PORT_NUMBER, i, &one, 0);

		if (!memcmp(&gid, &none, sizeof gid)) {
			CHECK(e == ENODATA, "entry %d is empty, and ibv_query_gid_ex says %d", i, e);
			continue;
		}
		CHECK(!e && !memcmp(&one.gid, &gid, sizeof gid) && one.gid_index == (uint32_t)i && one.port_num == PORT_NUMBER &&
		      one.gid_type == IBV_GID_TYPE_ROCE_V2 && one.ndev_ifindex, "entry %d: ibv_query_gid_ex %d", i, e);
		CHECK(present < n && !memcmp(&all[present], &one, sizeof one), "entry %d is not in ibv_query_gid_table", i);
		present++;
		if (!memcmp(&gid, &wanted, sizeof gid))
			found = i;
	}
	CHECK(present == n, "ibv_query_gid_table has %zd entries, ibv_query_gid %d", n, present);
	errno = 0;
	CHECK(ibv_query_gid_ex(context, PORT_NUMBER, length, &one, 0) == EINVAL, "an entry behind the table");
	return found;
}

static void expect(const char *ipv4, int index)
{
	int found = index_of(ipv4);

	CHECK(found == index, "%s has index %d, not %d", ipv4, found, index);
}

/* Waits for an event of the port, of which others may come before; it is that of port 1. */
static void await(enum ibv_event_type type)
{
	struct ibv_async_event event;
	double end = now_s() + SOON_S;

	do {
		CHECK(take_async_event(context, end - now_s(), &event), "no %s within %d s", ibv_event_type_str(type), SOON_S);
		CHECK(event.event_type == IBV_EVENT_GID_CHANGE || event.event_type == IBV_EVENT_PORT_ERR ||
		      event.event_type == IBV_EVENT_PORT_ACTIVE, "an event %s", ibv_event_type_str(event.event_type));
		CHECK(event.element.port_num == PORT_NUMBER, "an event of port %d", event.element.port_num);
	} while (event.event_type != type);
}

/* Two queue pairs of this process that use GID `index`, connected. */
struct pair { struct ibv_qp *a, *b; struct ibv_cq *cq; struct ibv_mr *mr; uint64_t *words; };

static struct pair connect_on(int index)
{
	const struct qp_options o = { .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 1 };
	struct ibv_qp_cap cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct pair p = { .cq = ibv_create_cq(context, 16, NULL, NULL, 0), .words = memory(4096) };

	CHECK(pd && p.cq, "ibv_alloc_pd, ibv_create_cq: %m");
	p.mr = ibv_reg_mr(pd, p.words, 4096, IBV_ACCESS_LOCAL_WRITE | REMOTE_RIGHTS);
	CHECK(p.mr, "ibv_reg_mr: %m");
	p.a = qp_create(pd, p.cq, cap, true);
	p.b = qp_create(pd, p.cq, cap, true);
	struct ibv_qp *qp[2] = { p.a, p.b };

	for (int i = 0; i < 2; i++) {
		struct qp_address mine = { .qpn = qp[i]->qp_num, .psn = 1 }, peer = { .qpn = qp[!i]->qp_num, .psn = 1 };
		CHECK(!ibv_query_gid(context, PORT_NUMBER, index, &peer.gid), "ibv_query_gid: %m");
		struct ibv_qp_attr rtr = rtr_attributes(&peer, &o);

		rtr.ah_attr.grh.sgid_index = index;
		qp_init(qp[i]);
		modify(qp[i], rtr, RTR_MASK, "RTR");
		modify(qp[i], rts_attributes(&mine, &o), RTS_MASK, "RTS");
	}
	return p;
}

static void transfer(struct pair *p, uint64_t value)
{
	struct ibv_wc wc;
	struct request r = { .opcode = IBV_WR_RDMA_WRITE, .id = value, .remote = (uintptr_t)(p->words + 8), .rkey = p->mr->rkey,
		.local = { .addr = (uintptr_t)p->words, .length = 8, .lkey = p->mr->lkey } };

	p->words[0] = value;
	CHECK(!post_request(p->a, &r), "ibv_post_send");
	CHECK(poll_for(p->cq, &wc, 1, SOON_S) == 1 && wc.status == IBV_WC_SUCCESS && p->words[8] == value, "a transfer failed");
}

/* What a program says that is started now. */
static void others_see(const char *ipv4, bool there)
{
	char wanted[64], text[65536] = "";
	FILE *f = popen("ibv_devinfo -v -d metaroce0", "r");

	CHECK(f, "popen: %m");
	text[fread(text, 1, sizeof text - 1, f)] = 0;
	CHECK(!pclose(f), "ibv_devinfo failed:\n%s", text);
	snprintf(wanted, sizeof wanted, "::ffff:%s,", ipv4);
	CHECK(!!strstr(text, wanted) == there, "ibv_devinfo is to show %s: %d\n%s", ipv4, there, text);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: gid_live INTERFACE");
	interface = argv[1];
	context = open_named("metaroce0");
	int length = port().gid_tbl_len;

	expect("10.77.0.1", 0);
	expect("10.78.0.1", -1);
	/* before there is a queue pair */
	ip("address add 10.78.0.1/24");
	expect("10.78.0.1", length);
	ip("address delete 10.77.0.1/24");
	expect("10.77.0.1", -1);
	expect("10.78.0.1", length);
	others_see("10.77.0.1", false);
	others_see("10.78.0.1", true);
	ip("address add 10.77.0.1/24");
	expect("10.77.0.1", 0);
	expect("10.78.0.1", length);

	/* with queue pairs, one on the new address */
	struct pair old = connect_on(0), new = connect_on(length);

	transfer(&old, 1);
	transfer(&new, 2);
	ip("address delete 10.78.0.1/24");
	await(IBV_EVENT_GID_CHANGE);
	expect("10.78.0.1", -1);
	expect("10.77.0.1", 0);
	transfer(&old, 3);
	ip("address add 10.78.0.1/24");
	await(IBV_EVENT_GID_CHANGE);
	expect("10.78.0.1", length);
	transfer(&new, 4);
	/* for this one there are no sockets, so it is not offered */
	ip("address add 10.79.0.1/24");
	expect("10.79.0.1", -1);
	CHECK(port().gid_tbl_len == length + 1, "the table has %d entries", port().gid_tbl_len);

	CHECK(port().state == IBV_PORT_ACTIVE, "the port is in state %d", port().state);
	ip("link set down");
	await(IBV_EVENT_PORT_ERR);
	CHECK(port().state == IBV_PORT_DOWN, "the port of a link that is down is in state %d", port().state);
	ip("link set up");
	await(IBV_EVENT_PORT_ACTIVE);
	CHECK(port().state == IBV_PORT_ACTIVE, "the port is in state %d", port().state);
	expect("10.77.0.1", 0);
	transfer(&old, 5);
	puts("OK");
	return 0;
}
