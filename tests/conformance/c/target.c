/* The endpoint under test of the conformance suite, where it is a verbs device: a program that does what a line on its standard
 * input says and answers each by one JSON object on standard output. It decides nothing; README.md lists the lines.
 *
 *   target [-d DEVICE]
 *
 * It ends, in order, when its input does. Numbers are decimal or 0x…; a word that is left out has the value that is given here. */
#include "../../e2e/c/verbs_util.h"

enum { QPS = 16, REGIONS = 16, WORDS = 32, DEPTH = 512, ALL_RIGHTS = REMOTE_RIGHTS | IBV_ACCESS_LOCAL_WRITE };

static struct ibv_context *context;
static struct ibv_pd *pd, *other_pd;
static struct ibv_cq *cq;
static struct { struct ibv_qp *qp; struct qp_address mine; } queue_pairs[QPS];
static struct { struct ibv_mr *mr; uint8_t *memory; uint64_t bytes; } regions[REGIONS];
static char *words[WORDS];
static int word_count;

/* ---- the words of a line ---- */

static const char *text(const char *name)
{
	size_t n = strlen(name);

	for (int i = 1; i < word_count; i++)
		if (!strncmp(words[i], name, n) && words[i][n] == '=')
			return words[i] + n + 1;
	return NULL;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *value = text(name);

	return value ? strtoull(value, NULL, 0) : otherwise;
}

static __attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
	va_list ap;

	fputs("{\"error\":\"", stdout);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	puts("\"}");
}

static void done(int error)
{
	if (error)
		fail("%s", strerror(error));
	else
		puts("{}");
}

/* Index of what a line names; -1, and said, if there is none. */
static int named(const char *what, int count)
{
	uint64_t i = number(what, 0);

	if (i < (uint64_t)count && (what[0] == 'q' ? queue_pairs[i].qp != NULL : regions[i].memory != NULL))
		return i;
	fail("no %s %lu", what, i);
	return -1;
}

static bool within(int region, uint64_t offset, uint64_t bytes)
{
	if (offset <= regions[region].bytes && bytes <= regions[region].bytes - offset)
		return true;
	fail("beyond region %d", region);
	return false;
}

/* ---- queue pairs ---- */

static void create(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attributes = init_attributes();
	int i = 0;

	while (i < QPS && queue_pairs[i].qp)
		i++;
	if (i == QPS)
		return fail("too many queue pairs");
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		return done(errno);
	attributes.qp_access_flags = number("access", REMOTE_RIGHTS);
	modify(qp, attributes, INIT_MASK, "INIT");
	queue_pairs[i].qp = qp;
	printf("{\"qp\":%d,\"qpn\":%u}\n", i, qp->qp_num);
}

static bool gid_of(const char *hex, union ibv_gid *gid)
{
	for (int i = 0; i < 16; i++)
		if (!hex || sscanf(hex + 2 * i, "%2hhx", &gid->raw[i]) != 1)
			return false;
	return true;
}

/* To RTR, and to RTS unless "rtr=1"; "rts=1" goes on from there. */
static void connect_to_peer(void)
{
	int i = named("qp", QPS), error = 0;
	struct qp_options o = { .timeout = number("timeout", 14), .retry_cnt = number("retry", 7), .rnr_retry = number("rnr_retry", 7),
		.min_rnr_timer = number("rnr_timer", 1), .rd_atomic = number("rd_atomic", 16) };
	struct qp_address peer = { .qpn = number("qpn", 0), .psn = number("rq_psn", 0) };

	if (i < 0)
		return;
	if (!number("rts", 0)) {
		if (!gid_of(text("gid"), &peer.gid))
			return fail("gid must be 32 hexadecimal digits");
		struct ibv_qp_attr rtr = rtr_attributes(&peer, &o);
		error = ibv_modify_qp(queue_pairs[i].qp, &rtr, RTR_MASK);
	}
	queue_pairs[i].mine.psn = number("sq_psn", 0);
	struct ibv_qp_attr rts = rts_attributes(&queue_pairs[i].mine, &o);
	if (!error && !number("rtr", 0))
		error = ibv_modify_qp(queue_pairs[i].qp, &rts, RTS_MASK);
	done(error);
}

static void to_state(enum ibv_qp_state state)
{
	struct ibv_qp_attr attributes = { .qp_state = state };
	struct ibv_qp_attr init = init_attributes();
	int i = named("qp", QPS), error;

	if (i < 0)
		return;
	error = ibv_modify_qp(queue_pairs[i].qp, &attributes, IBV_QP_STATE);
	if (!error && state == IBV_QPS_RESET)
		error = ibv_modify_qp(queue_pairs[i].qp, &init, INIT_MASK);
	done(error);
}

static void destroy(void)
{
	int i = named("qp", QPS);

	if (i < 0)
		return;
	int error = ibv_destroy_qp(queue_pairs[i].qp);
	queue_pairs[i].qp = NULL;
	done(error);
}

static void state(void)
{
	static const char *const names[] = { "reset", "init", "rtr", "rts", "sqd", "sqe", "error" };
	int i = named("qp", QPS);

	if (i < 0)
		return;
	unsigned s = qp_state(queue_pairs[i].qp);
	printf("{\"state\":\"%s\"}\n", s < sizeof names / sizeof *names ? names[s] : "unknown");
}

/* ---- memory ---- */

static void region(void)
{
	int i = 0, access = number("access", ALL_RIGHTS);
	uint64_t bytes = number("bytes", 4096);

	while (i < REGIONS && regions[i].memory)
		i++;
	if (i == REGIONS || bytes > 1 << 30)
		return fail("too many regions, or too large a one");
	if (number("relaxed", 1))
		access |= IBV_ACCESS_RELAXED_ORDERING;
	uint8_t *p = memory(bytes);
	memset(p, number("fill", 0), bytes);
	struct ibv_mr *mr = ibv_reg_mr(number("domain", 0) ? other_pd : pd, p, bytes, access);
	if (!mr)
		return done(errno);
	regions[i].mr = mr;
	regions[i].memory = p;
	regions[i].bytes = bytes;
	printf("{\"region\":%d,\"addr\":%lu,\"rkey\":%u}\n", i, (uint64_t)(uintptr_t)p, mr->rkey);
}

static void deregister(void)
{
	int i = named("region", REGIONS);

	if (i < 0)
		return;
	if (!regions[i].mr)
		return fail("not registered any more");
	int error = ibv_dereg_mr(regions[i].mr);
	/* The memory stays, so that what must not be written can be looked at. */
	regions[i].mr = NULL;
	done(error);
}

static void read_memory(void)
{
	int i = named("region", REGIONS);
	uint64_t offset = number("offset", 0), bytes = number("bytes", 64);

	if (i < 0 || !within(i, offset, bytes))
		return;
	fputs("{\"hex\":\"", stdout);
	for (uint64_t at = offset; at < offset + bytes; at++)
		printf("%02x", regions[i].memory[at]);
	puts("\"}");
}

/* Bytes from "offset" on that are not "value". */
static void count_other(void)
{
	int i = named("region", REGIONS);
	uint64_t offset = number("offset", 0), count = 0;
	uint8_t value = number("value", 0);

	if (i < 0)
		return;
	uint64_t bytes = number("bytes", regions[i].bytes - offset);
	if (!within(i, offset, bytes))
		return;
	for (uint64_t at = offset; at < offset + bytes; at++)
		count += regions[i].memory[at] != value;
	printf("{\"other\":%lu}\n", count);
}

static void fill(void)
{
	int i = named("region", REGIONS);
	uint64_t offset = number("offset", 0), bytes = number("bytes", 64);

	if (i < 0 || !within(i, offset, bytes))
		return;
	memset(regions[i].memory + offset, number("value", 0), bytes);
	puts("{}");
}

/* ---- work ---- */

static bool piece(struct ibv_sge *sge)
{
	uint64_t offset = number("offset", 0), bytes = number("bytes", 0);

	*sge = (struct ibv_sge){ 0 };
	if (!bytes)
		return true;
	int r = named("region", REGIONS);
	if (r < 0 || !within(r, offset, bytes))
		return false;
	*sge = (struct ibv_sge){ .addr = (uintptr_t)regions[r].memory + offset, .length = bytes,
		.lkey = regions[r].mr ? regions[r].mr->lkey : 0 };
	return true;
}

static void receive(void)
{
	int i = named("qp", QPS);
	struct ibv_sge sge;

	if (i >= 0 && piece(&sge))
		done(post_receive(queue_pairs[i].qp, number("id", 0), sge));
}

static void post(void)
{
	static const struct { const char *name; enum ibv_wr_opcode opcode; } operations[] = {
		{ "write", IBV_WR_RDMA_WRITE }, { "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM }, { "send", IBV_WR_SEND },
		{ "send_imm", IBV_WR_SEND_WITH_IMM }, { "read", IBV_WR_RDMA_READ }, { "cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP },
		{ "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD } };
	int i = named("qp", QPS);
	const char *op = text("op");
	struct request r = { .id = number("id", 0), .imm = htonl(number("imm", 0)), .remote = number("remote", 0),
		.rkey = number("rkey", 0), .compare_add = number("compare", number("add", 0)), .swap = number("swap", 0) };

	if (i < 0 || !piece(&r.local))
		return;
	if (number("signaled", 1))
		r.flags |= IBV_SEND_SIGNALED;
	if (number("solicited", 0))
		r.flags |= IBV_SEND_SOLICITED;
	for (size_t o = 0; o < sizeof operations / sizeof *operations; o++) {
		if (!op || strcmp(op, operations[o].name))
			continue;
		r.opcode = operations[o].opcode;
		int error = 0;
		/* "count" requests, one after the other; the last has the identifier, the others none and no completion. */
		for (uint64_t left = number("count", 1); left && !error; left--) {
			struct request one = r;
			if (left > 1)
				one.flags &= ~IBV_SEND_SIGNALED;
			error = post_request(queue_pairs[i].qp, &one);
		}
		return done(error);
	}
	fail("no such operation");
}

/* What has completed, and what has happened; nothing is waited for. */
static void poll_all(void)
{
	struct ibv_async_event event;
	struct ibv_wc wc[32];
	const char *comma = "";
	int n;

	fputs("{\"completions\":[", stdout);
	do {
		n = ibv_poll_cq(cq, 32, wc);
		for (int k = 0; k < n; k++) {
			printf("%s{\"id\":%lu,\"status\":%d,\"opcode\":%d,\"bytes\":%u,\"flags\":%u,\"imm\":%u,\"qpn\":%u,\"src_qp\":%u}", comma,
			       wc[k].wr_id, wc[k].status, wc[k].status ? 0 : wc[k].opcode, wc[k].status ? 0 : wc[k].byte_len,
			       wc[k].status ? 0 : wc[k].wc_flags, wc[k].status ? 0 : ntohl(wc[k].imm_data), wc[k].qp_num,
			       wc[k].status ? 0 : wc[k].src_qp);
			comma = ",";
		}
	} while (n == 32);
	fputs("],\"events\":[", stdout);
	for (comma = ""; take_async_event(context, 0, &event); comma = ",")
		printf("%s%d", comma, event.event_type);
	puts("]}");
}

static const struct { const char *name; void (*run)(void); } commands[] = {
	{ "create", create }, { "connect", connect_to_peer }, { "destroy", destroy }, { "state", state }, { "region", region },
	{ "deregister", deregister }, { "read", read_memory }, { "other", count_other }, { "fill", fill }, { "receive", receive },
	{ "post", post }, { "poll", poll_all } };

static void obey(char *line)
{
	char *rest = NULL;

	word_count = 0;
	for (char *w = strtok_r(line, " \t\n", &rest); w && word_count < WORDS; w = strtok_r(NULL, " \t\n", &rest))
		words[word_count++] = w;
	if (!word_count)
		return;
	if (!strcmp(words[0], "reset"))
		return to_state(IBV_QPS_RESET);
	if (!strcmp(words[0], "error"))
		return to_state(IBV_QPS_ERR);
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		if (!strcmp(words[0], commands[i].name))
			return commands[i].run();
	fail("no such command: %s", words[0]);
}

int main(int argc, char **argv)
{
	const char *device = argc > 2 && !strcmp(argv[1], "-d") ? argv[2] : "metaroce0";
	char line[1024];
	union ibv_gid gid;

	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	context = open_named(device);
	pd = ibv_alloc_pd(context);
	other_pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	CHECK(pd && other_pd && cq && !ibv_query_gid(context, 1, 0, &gid), "cannot set up %s: %m", device);
	fputs("{\"gid\":\"", stdout);
	for (int i = 0; i < 16; i++)
		printf("%02x", gid.raw[i]);
	printf("\",\"pid\":%d}\n", getpid());
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		obey(line);
		fflush(stdout);
	}
	return 0;
}
