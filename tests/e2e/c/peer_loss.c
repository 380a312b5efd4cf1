/* What a survivor sees when its peer dies, leaves or never was there; over stock libibverbs.
 *
 *   peer_loss -d DEVICE -p TCP_PORT                          the peer: serves until it is killed or told to leave
 *   peer_loss -d DEVICE -p TCP_PORT -s IP -m killed|left|absent   the survivor
 *
 * The survivor has a queue pair that streams WRITEs and SENDs, and a second one with posted receives only. It must see:
 * the oldest request fail with RETRY_EXC_ERR and the others flushed, in order, IBV_EVENT_QP_FATAL, the state ERR, and the
 * next request flushed, all within 1.25 x the bound that the queue pair's own attributes give + 0.2 s; the second queue
 * pair keeps its receives. "absent" connects to a queue pair number behind which no process is. */
#include "verbs_util.h"
#include <getopt.h>
#include <signal.h>

enum { DEPTH = 64, BYTES = 256 << 10, TIMEOUT = 14, RETRIES = 7, ENDPOINT_SHIFT = 14 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *busy, *quiet;
static uint8_t *buffer;
static const struct qp_options options = { .timeout = TIMEOUT, .retry_cnt = RETRIES, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 4 };

struct hello { struct qp_address busy, quiet; uint64_t addr; uint32_t rkey; int32_t pid; };

static struct ibv_qp *create(void)
{
	struct ibv_qp *qp = qp_create(pd, cq, (struct ibv_qp_cap){ .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
		.max_recv_sge = 1 }, true);

	qp_init(qp);
	return qp;
}

static void close_all(void)
{
	CHECK(!ibv_destroy_qp(busy) && !ibv_destroy_qp(quiet), "ibv_destroy_qp");
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "clean-up");
}

static struct ibv_sge whole_buffer(void)
{
	return (struct ibv_sge){ .addr = (uintptr_t)buffer, .length = BYTES, .lkey = mr->lkey };
}

static int post_write(const struct hello *peer, uint64_t id)
{
	return post_request(busy, &(struct request){ .id = id, .opcode = IBV_WR_RDMA_WRITE, .local = whole_buffer(),
		.remote = peer->addr, .rkey = peer->rkey });
}

static void post_quiet_receives(void)
{
	for (int i = 0; i < 4; i++)
		CHECK(!post_receive(quiet, 1000 + i, whole_buffer()), "ibv_post_recv");
}

static struct hello set_up(int tcp)
{
	struct hello mine = { .busy = qp_address_of(busy, 7), .quiet = qp_address_of(quiet, 8), .addr = (uintptr_t)buffer,
		.rkey = mr->rkey, .pid = getpid() }, peer;

	tcp_write(tcp, &mine, sizeof mine);
	tcp_read(tcp, &peer, sizeof peer);
	post_quiet_receives();
	qp_connect(busy, &mine.busy, &peer.busy, &options);
	qp_connect(quiet, &mine.quiet, &peer.quiet, &options);
	return peer;
}

static void serve(const char *port)
{
	int tcp = tcp_accept(tcp_listen(port));
	char c;

	set_up(tcp);
	tcp_write(tcp, "r", 1);
	/* also the answer "no process there": told to leave before anything was sent */
	tcp_read(tcp, &c, 1);
	close_all();
	tcp_write(tcp, "l", 1);
}

/* Streams until `until`, keeping `depth` requests posted; returns the number of the next completion. */
static uint64_t stream(const struct hello *peer, double until, uint64_t *posted)
{
	uint64_t done = 0;
	struct ibv_wc wc;

	while (now_s() < until) {
		while (*posted - done < DEPTH - 1)
			CHECK(!post_write(peer, (*posted)++), "ibv_post_send");
		int n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0, "ibv_poll_cq");
		if (n) {
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == done, "before the loss: %s, wr_id %lu instead of %lu", ibv_wc_status_str(wc.status), wc.wr_id, done);
			done++;
		}
	}
	CHECK(done > 0, "nothing was transferred before the loss");
	return done;
}

/* All posted requests must end; returns when the first error was seen, in seconds from `from`. */
static double expect_failure(uint64_t done, uint64_t posted, double from, double bound)
{
	double first = 0;
	struct ibv_wc wc;

	while (done < posted) {
		CHECK(now_s() - from < bound, "%lu requests still pending %.3f s after the loss (bound %.3f s)", posted - done, now_s() - from, bound);
		if (!ibv_poll_cq(cq, 1, &wc))
			continue;
		CHECK(wc.wr_id == done && wc.qp_num == busy->qp_num, "completion of wr_id %lu qp %u instead of %lu", wc.wr_id, wc.qp_num, done);
		done++;
		if (wc.status == IBV_WC_SUCCESS) {
			CHECK(!first, "success after an error");
			continue;
		}
		CHECK(wc.status == (first ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR), "status %s of request %lu", ibv_wc_status_str(wc.status), wc.wr_id);
		if (!first)
			first = now_s() - from;
	}
	CHECK(first > 0, "every request succeeded although the peer is gone");
	return first;
}

static void expect_event(double from, double bound)
{
	struct ibv_async_event e;

	CHECK(take_async_event(context, bound - (now_s() - from), &e), "no asynchronous event within %.3f s", bound);
	CHECK(e.event_type == IBV_EVENT_QP_FATAL && e.element.qp == busy, "asynchronous event %s", ibv_event_type_str(e.event_type));
}

static void expect_aftermath(const struct hello *peer)
{
	struct ibv_wc wc;

	CHECK(qp_state(busy) == IBV_QPS_ERR, "state %d after the loss", qp_state(busy));
	CHECK(!post_write(peer, 77), "posting to a queue pair in ERR");
	CHECK(poll_for(cq, &wc, 1, 0.2) == 1, "a request posted in ERR is not flushed");
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 77, "status %s of a request posted in ERR", ibv_wc_status_str(wc.status));
	CHECK(qp_state(quiet) == IBV_QPS_RTS, "state %d of the queue pair without sends", qp_state(quiet));
	CHECK(!ibv_poll_cq(cq, 1, &wc), "completion %s of the queue pair without sends", ibv_wc_status_str(wc.status));
	close_all();
}

/* The peer says that it has left, or its end of the connection closes with its process. */
static void wait_until_gone(int tcp)
{
	struct pollfd p = { .fd = tcp, .events = POLLIN };
	char c;

	CHECK(poll(&p, 1, 5000) == 1, "the peer is not gone after 5 s");
	CHECK(recv(tcp, &c, 1, 0) >= 0 || errno == ECONNRESET, "recv: %m");
}

static void survive(const char *server, const char *port, const char *mode)
{
	int tcp = tcp_connect(server, port);
	double own = (RETRIES + 1) * 4.096e-6 * (1 << TIMEOUT), bound = 1.25 * own + 0.2, lost, first;
	uint64_t posted = 0, done = 0;
	char c;

	if (!strcmp(mode, "absent")) {
		struct hello mine = { .busy = qp_address_of(busy, 7), .quiet = qp_address_of(quiet, 8), .pid = getpid() }, peer;

		tcp_read(tcp, &peer, sizeof peer);
		tcp_write(tcp, &mine, sizeof mine);
		/* another endpoint index of the same host: nobody listens there */
		peer.busy.qpn = (peer.busy.qpn + (77 << ENDPOINT_SHIFT)) & 0xffffff;
		post_quiet_receives();
		qp_connect(busy, &mine.busy, &peer.busy, &options);
		qp_connect(quiet, &mine.quiet, &peer.busy, &options);
		lost = now_s();
		for (; posted < 8; posted++)
			CHECK(!post_write(&peer, posted), "ibv_post_send");
		first = expect_failure(0, posted, lost, bound);
		expect_event(lost, bound);
		expect_aftermath(&peer);
		tcp_write(tcp, "x", 1);
		/* its "r" and "l": closing with unread bytes would reset the connection, and it might never see the "x" */
		tcp_read(tcp, &c, 1);
		tcp_read(tcp, &c, 1);
	} else {
		struct hello peer = set_up(tcp);

		tcp_read(tcp, &c, 1);
		done = stream(&peer, now_s() + 0.5, &posted);
		lost = now_s();
		if (!strcmp(mode, "killed"))
			CHECK(!kill(peer.pid, SIGKILL), "kill the peer: %m");
		else
			tcp_write(tcp, "x", 1);
		/* all that was pending may have been served before: this one is posted when the peer is gone for sure */
		wait_until_gone(tcp);
		CHECK(!post_write(&peer, posted++), "ibv_post_send after the loss");
		first = expect_failure(done, posted, lost, bound);
		expect_event(lost, bound);
		expect_aftermath(&peer);
	}
	printf("mode %s: first error after %.3f s, all done after %.3f s, bound of the queue pair %.3f s\nOK\n", mode, first, now_s() - lost, own);
}

int main(int argc, char **argv)
{
	const char *device = "metaroce0", *server = NULL, *port = "18610", *mode = "killed";
	int c;

	while ((c = getopt(argc, argv, "d:s:p:m:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 's': server = optarg; break;
		case 'p': port = optarg; break;
		case 'm': mode = optarg; break;
		default: return 2;
		}
	setvbuf(stdout, NULL, _IOLBF, 0);
	context = open_named(device);
	CHECK((pd = ibv_alloc_pd(context)), "ibv_alloc_pd: %m");
	CHECK((cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)), "ibv_create_cq: %m");
	buffer = memory(BYTES);
	memset(buffer, 0x5a, BYTES);
	mr = ibv_reg_mr(pd, buffer, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr, "ibv_reg_mr: %m");
	busy = create();
	quiet = create();
	if (server)
		survive(server, port, mode);
	else
		serve(port);
	return 0;
}
