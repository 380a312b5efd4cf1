/* What the verbs test programs share: checked calls, clocks, a TCP socket to the other side,
 * queue pairs and their connection, work requests of one piece, waiting for completions and events. */
#ifndef VERBS_UTIL_H
#define VERBS_UTIL_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline __attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...)
{
	va_list ap;

	fflush(stdout);
	fputs("FAILED: ", stderr);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
	/* not exit(): its destructors would make the requests of other threads fail, which would then be reported too */
	_exit(1);
}

#define CHECK(condition, ...) do { if (!(condition)) die(__VA_ARGS__); } while (0)

static inline double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Memory of whole pages, all zero. */
static inline void *memory(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED, "%lu bytes of memory: %m", bytes);
	return p;
}

static inline int tcp_listen(const char *port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	CHECK(!bind(fd, (void *)&a, sizeof a) && !listen(fd, 16), "listen on TCP port %s: %m", port);
	return fd;
}

static inline int tcp_nodelay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

static inline int tcp_accept(int listener)
{
	struct pollfd p = { .fd = listener, .events = POLLIN };

	CHECK(poll(&p, 1, 30000) == 1, "no client within 30 s");
	int fd = accept(listener, NULL, NULL);
	CHECK(fd >= 0, "accept: %m");
	return tcp_nodelay(fd);
}

static inline int tcp_connect(const char *host, const char *port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	double end = now_s() + 30;

	CHECK(inet_pton(AF_INET, host, &a.sin_addr) == 1, "'%s' is not an IPv4 address", host);
	for (;;) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		if (!connect(fd, (void *)&a, sizeof a))
			return tcp_nodelay(fd);
		close(fd);
		CHECK(now_s() < end, "connect to %s:%s: %m", host, port);
		usleep(20000);
	}
}

static inline void tcp_write(int fd, const void *p, size_t n)
{
	const char *c = p;

	while (n) {
		ssize_t r = send(fd, c, n, MSG_NOSIGNAL);

		if (r < 0 && (errno == EAGAIN || errno == EINTR)) {
			struct pollfd w = { .fd = fd, .events = POLLOUT };
			poll(&w, 1, 1000);
			continue;
		}
		CHECK(r > 0, "the other side closed the TCP connection");
		c += r;
		n -= r;
	}
}

static inline void tcp_read(int fd, void *p, size_t n)
{
	char *c = p;

	while (n) {
		struct pollfd w = { .fd = fd, .events = POLLIN };
		CHECK(poll(&w, 1, 60000) == 1, "nothing from the other side for 60 s");
		ssize_t r = recv(fd, c, n, 0);

		if (r < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		CHECK(r > 0, "the other side closed the TCP connection");
		c += r;
		n -= r;
	}
}

/* What two queue pairs must know of each other. */
struct qp_address {
	union ibv_gid gid;
	uint32_t qpn, psn;
};

static inline struct ibv_context *open_named(const char *name)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *context = NULL;

	CHECK(list && n, "no RDMA device: run this under `metaroce run --`");
	for (int i = 0; i < n && !context; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	CHECK(context, "cannot open device %s: %m", name);
	return context;
}

static inline struct qp_address qp_address_of(struct ibv_qp *qp, uint32_t psn)
{
	struct qp_address a = { .qpn = qp->qp_num, .psn = psn };

	CHECK(!ibv_query_gid(qp->context, 1, 0, &a.gid), "ibv_query_gid: %m");
	return a;
}

/* What the programs choose of a queue pair's attributes; an `mtu` of 0 stands for 4096. */
struct qp_options {
	int timeout, retry_cnt, rnr_retry, min_rnr_timer, rd_atomic, mtu;
};

enum {
	REMOTE_RIGHTS = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		IBV_QP_MIN_RNR_TIMER,
	RTS_MASK = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
};

static inline struct ibv_qp_attr init_attributes(void)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE_RIGHTS };
}

static inline struct ibv_qp_attr rtr_attributes(const struct qp_address *peer, const struct qp_options *o)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = o->mtu ? o->mtu : IBV_MTU_4096, .dest_qp_num = peer->qpn,
		.rq_psn = peer->psn, .max_dest_rd_atomic = o->rd_atomic, .min_rnr_timer = o->min_rnr_timer,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer->gid, .hop_limit = 64 } } };
}

static inline struct ibv_qp_attr rts_attributes(const struct qp_address *mine, const struct qp_options *o)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = o->timeout, .retry_cnt = o->retry_cnt,
		.rnr_retry = o->rnr_retry, .sq_psn = mine->psn, .max_rd_atomic = o->rd_atomic };
}

static inline void modify(struct ibv_qp *qp, struct ibv_qp_attr attributes, int mask, const char *to)
{
	int e = ibv_modify_qp(qp, &attributes, mask);

	CHECK(!e, "QP to %s: %s", to, strerror(e));
}

static inline void qp_init(struct ibv_qp *qp)
{
	modify(qp, init_attributes(), INIT_MASK, "INIT");
}

static inline void qp_connect(struct ibv_qp *qp, const struct qp_address *mine, const struct qp_address *peer,
			      const struct qp_options *o)
{
	modify(qp, rtr_attributes(peer, o), RTR_MASK, "RTR");
	modify(qp, rts_attributes(mine, o), RTS_MASK, "RTS");
}

/* Connects two queue pairs of this process, which are in RESET. */
static inline void qp_connect_both(struct ibv_qp *a, struct ibv_qp *b, const struct qp_options *o)
{
	struct qp_address at_a = qp_address_of(a, 0x111111), at_b = qp_address_of(b, 0xfffffe);

	qp_init(a);
	qp_init(b);
	qp_connect(a, &at_a, &at_b, o);
	qp_connect(b, &at_b, &at_a, o);
}

/* A reliable connected queue pair in RESET that has at least what was asked for. */
static inline struct ibv_qp *qp_create(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_qp_cap cap, bool all_signaled)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = all_signaled, .cap = cap };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);

	CHECK(qp, "ibv_create_qp: %m");
	CHECK(a.cap.max_send_wr >= cap.max_send_wr && a.cap.max_recv_wr >= cap.max_recv_wr && a.cap.max_send_sge >= cap.max_send_sge &&
	      a.cap.max_recv_sge >= cap.max_recv_sge && a.cap.max_inline_data >= cap.max_inline_data, "granted less than asked for");
	return qp;
}

static inline enum ibv_qp_state qp_state(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	int e = ibv_query_qp(qp, &a, IBV_QP_STATE, &ia);

	CHECK(!e, "ibv_query_qp: %s", strerror(e));
	return a.qp_state;
}

/* A send work request with one piece of local memory, or none if its length is 0. */
struct request {
	enum ibv_wr_opcode opcode;
	uint64_t id;
	unsigned flags;
	struct ibv_sge local;
	__be32 imm;
	uint64_t remote, compare_add, swap;
	uint32_t rkey;
};

/* As libibverbs wants it; `sge` is the caller's, and lives until it is posted. */
static inline struct ibv_send_wr work_request(const struct request *r, struct ibv_sge *sge)
{
	struct ibv_send_wr wr = { .wr_id = r->id, .sg_list = sge, .num_sge = r->local.length > 0, .opcode = r->opcode,
		.send_flags = r->flags, .imm_data = r->imm };

	*sge = r->local;
	if (r->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = r->remote;
		wr.wr.atomic.rkey = r->rkey;
		wr.wr.atomic.compare_add = r->compare_add;
		wr.wr.atomic.swap = r->swap;
	} else {
		wr.wr.rdma.remote_addr = r->remote;
		wr.wr.rdma.rkey = r->rkey;
	}
	return wr;
}

static inline int post_request(struct ibv_qp *qp, const struct request *r)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = work_request(r, &sge), *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static inline int post_receive(struct ibv_qp *qp, uint64_t id, struct ibv_sge into)
{
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &into, .num_sge = into.length > 0 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

/* Polls until `n` completions are there or the time is over; returns how many came. */
static inline int poll_for(struct ibv_cq *cq, struct ibv_wc *wc, int n, double seconds)
{
	double end = now_s() + seconds;
	int got = 0;

	do {
		int r = ibv_poll_cq(cq, n - got, wc + got);

		CHECK(r >= 0, "ibv_poll_cq: %d", r);
		got += r;
	} while (got < n && now_s() < end);
	return got;
}

/* Takes the next asynchronous event, if there is one in time, and acknowledges it. */
static inline bool take_async_event(struct ibv_context *context, double seconds, struct ibv_async_event *event)
{
	struct pollfd p = { .fd = context->async_fd, .events = POLLIN };

	if (seconds < 0 || poll(&p, 1, (int)(seconds * 1e3) + 1) != 1)
		return false;
	CHECK(!ibv_get_async_event(context, event), "ibv_get_async_event: %m");
	ibv_ack_async_event(event);
	return true;
}
#endif
