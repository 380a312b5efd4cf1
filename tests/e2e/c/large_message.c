/* Messages as large as the port allows (`max_msg_sz`), by WRITE and by SEND, over stock libibverbs.
 *
 *   large_message [-d DEVICE] [-s SERVER_IP] [-p TCP_PORT] [-b BYTES]
 *
 * The client sends, the server looks at every byte, and at those before and behind: a WRITE of BYTES (the limit of the port unless
 * given), then a SEND of one byte less into an odd address. A SEND of one byte more than the limit must be refused. Last line OK. */
#include "verbs_util.h"
#include <getopt.h>

enum {
	GUARD = 4096, GUARD_BYTE = 0xa5, PORT_NUMBER = 1,
	/* for one message, on a machine that does much else: 1 s is usual */
	PATIENCE_S = 150,
};

static int to_other;
static bool sends;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *buffer;
static uint64_t limit;

/* What the client tells of the server's memory. */
struct target { struct qp_address address; uint64_t buffer; uint32_t rkey, pad; };
static struct target mine, other;

/* The 8 bytes at a multiple of 8, of message number `seed`: no two are alike. */
static uint64_t word(uint64_t at, uint64_t seed)
{
	uint64_t v = (at + seed) * 0x9e3779b97f4a7c15ull;

	return v ^ v >> 29;
}

static void fill(uint8_t *to, uint64_t bytes, uint64_t seed)
{
	uint64_t at = 0, v;

	for (; at + 8 <= bytes; at += 8) {
		v = word(at, seed);
		memcpy(to + at, &v, 8);
	}
	v = word(at, seed);
	memcpy(to + at, &v, bytes - at);
}

static void check(const uint8_t *got, uint64_t bytes, uint64_t seed, const char *what)
{
	uint64_t at = 0, v;

	for (; at + 8 <= bytes; at += 8) {
		v = word(at, seed);
		CHECK(!memcmp(got + at, &v, 8), "%s: wrong bytes at %lu of %lu", what, at, bytes);
	}
	v = word(at, seed);
	CHECK(!memcmp(got + at, &v, bytes - at), "%s: wrong bytes at %lu of %lu", what, at, bytes);
	for (int i = 1; i < GUARD; i++)
		CHECK(got[-i] == GUARD_BYTE && got[bytes + i - 1] == GUARD_BYTE, "%s: a byte beside the message changed", what);
}

static void guard(uint64_t bytes, uint64_t offset)
{
	memset(buffer, GUARD_BYTE, GUARD + offset);
	memset(buffer + GUARD + offset + bytes, GUARD_BYTE, GUARD - offset);
}

static void barrier(char word)
{
	struct pollfd p = { .fd = to_other, .events = POLLIN };
	char got;

	tcp_write(to_other, &word, 1);
	CHECK(poll(&p, 1, PATIENCE_S * 1000) == 1, "nothing from the other side for %d s", PATIENCE_S);
	tcp_read(to_other, &got, 1);
	CHECK(got == word, "the sides are out of step: '%c' and '%c'", word, got);
}

/* One message of `bytes` to `offset` behind the guard. */
static void message(enum ibv_wr_opcode opcode, uint64_t bytes, uint64_t offset, uint64_t seed, const char *what)
{
	struct ibv_sge piece = { .addr = (uintptr_t)buffer + GUARD + (sends ? 0 : offset), .length = bytes, .lkey = mr->lkey };
	struct ibv_wc wc = { 0 };

	if (sends)
		fill(buffer + GUARD, bytes, seed);
	else
		/* what was there before is of another seed, so only the surroundings need be made */
		guard(bytes, offset);
	if (!sends && opcode == IBV_WR_SEND)
		CHECK(!post_receive(qp, seed, piece), "ibv_post_recv");
	barrier('1');
	double start = now_s();

	if (sends) {
		struct request r = { .opcode = opcode, .id = seed, .local = piece, .remote = other.buffer + offset, .rkey = other.rkey };
		CHECK(!post_request(qp, &r), "%s: ibv_post_send", what);
	}
	if (sends || opcode == IBV_WR_SEND) {
		CHECK(poll_for(cq, &wc, 1, PATIENCE_S) == 1, "%s: no completion within %d s", what, PATIENCE_S);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == seed && (sends || wc.byte_len == bytes), "%s: %s, %u bytes", what,
		      ibv_wc_status_str(wc.status), wc.byte_len);
	}
	double took = now_s() - start;

	barrier('2');
	if (!sends)
		check(buffer + GUARD + offset, bytes, seed, what);
	else
		printf("%s of %lu bytes: %.2f s, %.1f Gb/s\n", what, bytes, took, bytes * 8 / took / 1e9);
	barrier('3');
}

static void set_up(const char *device, uint64_t bytes)
{
	const struct qp_options options = { .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 1 };
	struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 2, .max_recv_sge = 1 };
	struct ibv_context *context = open_named(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_port_attr port;

	CHECK(!ibv_query_port(context, PORT_NUMBER, &port), "ibv_query_port");
	CHECK(port.max_msg_sz >= 1u << 31, "max_msg_sz is %u", port.max_msg_sz);
	limit = bytes ? bytes : port.max_msg_sz;
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	CHECK(pd && cq, "ibv_alloc_pd, ibv_create_cq: %m");
	buffer = memory(limit + 2 * GUARD);
	madvise(buffer, limit + 2 * GUARD, MADV_HUGEPAGE);
	mr = ibv_reg_mr(pd, buffer, limit + 2 * GUARD, IBV_ACCESS_LOCAL_WRITE | REMOTE_RIGHTS);
	CHECK(mr, "ibv_reg_mr: %m");
	qp = qp_create(pd, cq, cap, true);
	mine = (struct target){ .address = qp_address_of(qp, 1), .buffer = (uintptr_t)buffer + GUARD, .rkey = mr->rkey };
	tcp_write(to_other, &mine, sizeof mine);
	tcp_read(to_other, &other, sizeof other);
	qp_init(qp);
	qp_connect(qp, &mine.address, &other.address, &options);
}

/* One byte more than `max_msg_sz` is refused where it is posted, and the queue pair goes on. */
static void too_large(void)
{
	struct ibv_sge pieces[2] = { { .addr = (uintptr_t)buffer, .length = 1u << 31, .lkey = mr->lkey },
		{ .addr = (uintptr_t)buffer, .length = 1, .lkey = mr->lkey } };
	struct ibv_send_wr wr = { .sg_list = pieces, .num_sge = 2, .opcode = IBV_WR_SEND }, *bad = NULL;
	int e = ibv_post_send(qp, &wr, &bad);

	CHECK(e == EINVAL && bad == &wr, "a message beyond max_msg_sz: %d (%s)", e, strerror(e));
}

int main(int argc, char **argv)
{
	const char *device = "metaroce0", *server = NULL, *port = "18515";
	uint64_t bytes = 0;
	int c;

	while ((c = getopt(argc, argv, "d:s:p:b:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 's': server = optarg; break;
		case 'p': port = optarg; break;
		case 'b': bytes = strtoull(optarg, NULL, 0); break;
		default: return 2;
		}
	setvbuf(stdout, NULL, _IOLBF, 0);
	sends = server != NULL;
	to_other = server ? tcp_connect(server, port) : tcp_accept(tcp_listen(port));
	set_up(device, bytes);
	message(IBV_WR_RDMA_WRITE, limit, 0, 1, "WRITE");
	if (sends)
		too_large();
	message(IBV_WR_SEND, limit - 1, 1, 2, "SEND");
	puts("OK");
	return 0;
}
