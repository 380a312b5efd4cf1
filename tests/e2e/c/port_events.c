/* Events of one port are of that port only, over stock libibverbs; alone on a host with two devices, as root.
 *
 *   port_events INTERFACE_OF_THE_SECOND
 *
 * A queue pair on either device talks to itself. The link of the second goes down and comes up: the second device tells it, and the
 * first tells nothing and goes on. Last line OK. */
#include "verbs_util.h"

/* An event comes within milliseconds; what waits longer is not late but lost. */
enum { SOON_S = 20 };

static void link_of(const char *interface, const char *state)
{
	char line[128];

	snprintf(line, sizeof line, "ip link set dev %s %s", interface, state);
	CHECK(!system(line), "%s failed", line);
}

struct device { struct ibv_context *context; struct ibv_qp *qp; struct ibv_cq *cq; struct ibv_mr *mr; uint64_t *words; };

static struct device open_device(const char *name)
{
	const struct qp_options o = { .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 1 };
	struct ibv_qp_cap cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	struct device d = { .context = open_named(name), .words = memory(4096) };
	struct ibv_pd *pd = ibv_alloc_pd(d.context);

	d.cq = ibv_create_cq(d.context, 16, NULL, NULL, 0);
	CHECK(pd && d.cq, "ibv_alloc_pd, ibv_create_cq: %m");
	d.mr = ibv_reg_mr(pd, d.words, 4096, IBV_ACCESS_LOCAL_WRITE | REMOTE_RIGHTS);
	CHECK(d.mr, "ibv_reg_mr: %m");
	d.qp = qp_create(pd, d.cq, cap, true);
	struct qp_address self = qp_address_of(d.qp, 1);

	qp_init(d.qp);
	qp_connect(d.qp, &self, &self, &o);
	return d;
}

static void transfer(struct device *d, uint64_t value)
{
	struct ibv_wc wc;
	struct request r = { .opcode = IBV_WR_RDMA_WRITE, .id = value, .remote = (uintptr_t)(d->words + 8), .rkey = d->mr->rkey,
		.local = { .addr = (uintptr_t)d->words, .length = 8, .lkey = d->mr->lkey } };

	d->words[0] = value;
	CHECK(!post_request(d->qp, &r), "ibv_post_send");
	CHECK(poll_for(d->cq, &wc, 1, SOON_S) == 1 && wc.status == IBV_WC_SUCCESS && d->words[8] == value, "a transfer failed");
}

static void await(struct device *d, enum ibv_event_type type)
{
	struct ibv_async_event event;
	double end = now_s() + SOON_S;

	do
		CHECK(take_async_event(d->context, end - now_s(), &event), "no %s within %d s", ibv_event_type_str(type), SOON_S);
	while (event.event_type != type);
	CHECK(event.element.port_num == 1, "an event of port %d", event.element.port_num);
}

int main(int argc, char **argv)
{
	struct ibv_async_event event;

	CHECK(argc == 2, "usage: port_events INTERFACE");
	struct device first = open_device("metaroce0"), second = open_device("metaroce1");

	transfer(&first, 1);
	transfer(&second, 2);
	for (int round = 0; round < 3; round++) {
		link_of(argv[1], "down");
		await(&second, IBV_EVENT_PORT_ERR);
		transfer(&first, 10 + round);
		link_of(argv[1], "up");
		await(&second, IBV_EVENT_PORT_ACTIVE);
		transfer(&first, 20 + round);
		transfer(&second, 30 + round);
	}
	/* both devices heard of all of it at the same time */
	CHECK(!take_async_event(first.context, 0.3, &event), "the first device tells %s", ibv_event_type_str(event.event_type));
	puts("OK");
	return 0;
}
