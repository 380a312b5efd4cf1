/* What the verbs test programs share: connection set-up over one TCP socket, clocks, checked calls. */
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
	exit(1);
}

#define CHECK(condition, ...) do { if (!(condition)) die(__VA_ARGS__); } while (0)

static inline double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
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

struct qp_options {
	int timeout, retry_cnt, rnr_retry, min_rnr_timer, rd_atomic, mtu;
};

static inline void qp_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	int e = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	CHECK(!e, "QP to INIT: %s", strerror(e));
}

static inline void qp_connect(struct ibv_qp *qp, const struct qp_address *mine, const struct qp_address *peer,
			      const struct qp_options *o)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = o->mtu ? o->mtu : IBV_MTU_4096, .dest_qp_num = peer->qpn,
		.rq_psn = peer->psn, .max_dest_rd_atomic = o->rd_atomic, .min_rnr_timer = o->min_rnr_timer,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer->gid, .hop_limit = 64 } } };
	int e = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

	CHECK(!e, "QP to RTR: %s", strerror(e));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = o->timeout, .retry_cnt = o->retry_cnt,
		.rnr_retry = o->rnr_retry, .sq_psn = mine->psn, .max_rd_atomic = o->rd_atomic };
	e = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			  IBV_QP_MAX_QP_RD_ATOMIC);
	CHECK(!e, "QP to RTS: %s", strerror(e));
}
#endif
