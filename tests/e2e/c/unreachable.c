/* Queue pairs whose GIDs cannot reach each other, over stock libibverbs.
 *
 *   unreachable [-d DEVICE] SOURCE DESTINATION EXPECTED [SOURCE DESTINATION EXPECTED …]
 *
 * SOURCE is an address of the device, or `link-local` for its first one of that kind; DESTINATION an address of somebody else, IPv4
 * or IPv6. EXPECTED is what going to RTR must say: EINVAL, ENETUNREACH …; the queue pair must then be in INIT as before and go to RTR
 * with a destination that is there. `silent` means that RTR must succeed, and that what is sent then must fail with
 * RETRY_EXC within the queue pair's own patience. RTR never waits for the network. Last line OK. */
#include "verbs_util.h"
#include <getopt.h>

/* A device that asked for the neighbour and waited for the answer would take its time; and programs stall at times. */
#define RTR_WITHIN_S 3.0

enum { TIMEOUT = 17, RETRIES = 7, ANY_QPN = 0x4001 };

/* (RETRIES + 1) times 4.096 µs times 2^TIMEOUT. */
static const double PATIENCE_S = (RETRIES + 1) * 4.096e-6 * (1 << TIMEOUT);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct qp_options options = { .timeout = TIMEOUT, .retry_cnt = RETRIES, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 1 };

static union ibv_gid gid_of(const char *text)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	if (inet_pton(AF_INET, text, gid.raw + 12) != 1)
		CHECK(inet_pton(AF_INET6, text, gid.raw) == 1, "'%s' is no address", text);
	return gid;
}

static int index_of(const char *source)
{
	struct ibv_port_attr port;
	union ibv_gid gid, wanted = { .raw = { 0xfe, 0x80 } };
	bool link_local = !strcmp(source, "link-local");

	if (!link_local)
		wanted = gid_of(source);
	CHECK(!ibv_query_port(context, 1, &port), "ibv_query_port");
	for (int i = 0; i < port.gid_tbl_len; i++)
		if (!ibv_query_gid(context, 1, i, &gid) && !memcmp(&gid, &wanted, link_local ? 2 : sizeof gid))
			return i;
	die("the device has no GID %s", source);
}

static int number_of(const char *name)
{
	static const struct { const char *name; int number; } known[] = {
		{ "EINVAL", EINVAL }, { "ENETUNREACH", ENETUNREACH }, { "EHOSTUNREACH", EHOSTUNREACH }, { "EACCES", EACCES }, { "silent", 0 },
	};

	for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(known[i].name, name))
			return known[i].number;
	die("what is %s?", name);
}

static int to_rtr(struct ibv_qp *qp, int sgid_index, union ibv_gid dest)
{
	struct qp_address peer = { .gid = dest, .qpn = ANY_QPN, .psn = 1 };
	struct ibv_qp_attr attributes = rtr_attributes(&peer, &options);
	double start = now_s();

	attributes.ah_attr.grh.sgid_index = sgid_index;
	int e = ibv_modify_qp(qp, &attributes, RTR_MASK);
	double took = now_s() - start;

	CHECK(took < RTR_WITHIN_S, "RTR took %.3f s", took);
	return e;
}

static void send_and_fail(struct ibv_qp *qp, const char *dest)
{
	struct qp_address mine = { .psn = 1 };
	struct request r = { .opcode = IBV_WR_SEND, .id = 7, .local = { .addr = (uintptr_t)mr->addr, .length = 8, .lkey = mr->lkey } };
	struct ibv_wc wc;

	modify(qp, rts_attributes(&mine, &options), RTS_MASK, "RTS");
	double start = now_s();
	CHECK(!post_request(qp, &r), "ibv_post_send");
	CHECK(poll_for(cq, &wc, 1, PATIENCE_S + 20) == 1, "to %s: no completion %.0f s after its patience was over", dest, 20.0);
	double took = now_s() - start;

	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR && wc.wr_id == 7 && wc.qp_num == qp->qp_num, "to %s: %s", dest, ibv_wc_status_str(wc.status));
	CHECK(took > PATIENCE_S * 0.5, "to %s: given up after %.2f s, before its patience of %.2f s was over", dest, took, PATIENCE_S);
	printf("nobody at %s: RETRY_EXC after %.2f s\n", dest, took);
}

static void one(const char *source, const char *dest, const char *expected)
{
	struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_qp *qp = qp_create(pd, cq, cap, true);
	int from = index_of(source), wanted = number_of(expected);
	union ibv_gid own;

	qp_init(qp);
	int e = to_rtr(qp, from, gid_of(dest));

	CHECK(e == wanted, "RTR from %s to %s says %d (%s), not %s", source, dest, e, strerror(e), expected);
	if (wanted) {
		CHECK(qp_state(qp) == IBV_QPS_INIT, "a refused RTR changed the state to %d", qp_state(qp));
		CHECK(!ibv_query_gid(context, 1, from, &own), "ibv_query_gid");
		e = to_rtr(qp, from, own);
		CHECK(!e && qp_state(qp) == IBV_QPS_RTR, "RTR to itself after a refused one: %s", strerror(e));
	} else {
		send_and_fail(qp, dest);
	}
	CHECK(!ibv_destroy_qp(qp), "ibv_destroy_qp");
}

int main(int argc, char **argv)
{
	const char *device = "metaroce0";
	int c;

	while ((c = getopt(argc, argv, "d:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		default: return 2;
		}
	CHECK(argc > optind && (argc - optind) % 3 == 0, "bad arguments");
	context = open_named(device);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	CHECK(pd && cq, "ibv_alloc_pd, ibv_create_cq: %m");
	mr = ibv_reg_mr(pd, memory(4096), 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr, "ibv_reg_mr: %m");
	for (int i = optind; i < argc; i += 3)
		one(argv[i], argv[i + 1], argv[i + 2]);
	puts("OK");
	return 0;
}
