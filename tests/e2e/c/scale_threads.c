/* Threads and processes on one device, over stock libibverbs.
 *
 *   scale_threads [-d DEVICE] [-n ROUNDS] [TOPIC]
 *
 * churn: threads that make, use and destroy queue pairs of one context at once. devices: threads that open and close the device
 * all the time. shared: threads that post to their own queue pairs and poll one completion queue. fork: while a thread sends
 * without a pause, children are forked that exit, exec, touch what they inherited, open the device themselves, or make queue pairs on
 * a domain and a completion queue that the parent made for them. Every byte is
 * looked at; afterwards no descriptor and no thread is left. Last line OK. */
#include "scale_local.h"
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { THREADS = 8, FORKS = 5, SHARED_MESSAGES = 500 };

static const char *device = "metaroce0";
static char fds_at_start[24];
static int rounds = 30;
static struct ibv_context *context;

static void in_threads(void *(*body)(void *))
{
	pthread_t threads[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, body, (void *)i), "pthread_create");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void *churn_one(void *argument)
{
	(void)argument;
	for (int round = 0; round < rounds; round++) {
		struct local l = local_make(context);

		local_messages(&l, 4);
		local_end(&l);
	}
	return NULL;
}

static void churn(void) { in_threads(churn_one); }

static void *open_and_close(void *argument)
{
	(void)argument;
	for (int round = 0; round < rounds / 5 + 1; round++) {
		struct ibv_context *own = open_named(device);
		struct local l = local_make(own);

		local_messages(&l, 2);
		local_end(&l);
		CHECK(!ibv_close_device(own), "ibv_close_device");
	}
	return NULL;
}

static void devices(void) { in_threads(open_and_close); }

/* Each thread posts to its own pair of queue pairs; whoever polls takes what comes. */
static struct ibv_qp *sender[THREADS], *receiver[THREADS];
static struct ibv_cq *shared_cq;
static struct ibv_mr *shared_mr;
static atomic_int sent[THREADS], received[THREADS];

static struct ibv_sge word_of(int thread, int number, bool in)
{
	uint64_t at = (uint64_t)(thread * 2 + in) * SHARED_MESSAGES + number;

	return (struct ibv_sge){ (uintptr_t)shared_mr->addr + at * sizeof(uint32_t), sizeof(uint32_t), shared_mr->lkey };
}

static void take_shared(void)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(shared_cq, 8, wc);

	CHECK(n >= 0, "ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++) {
		int thread = wc[i].wr_id >> 32, number = (uint32_t)wc[i].wr_id;
		bool in = wc[i].opcode & IBV_WC_RECV;

		CHECK(wc[i].status == IBV_WC_SUCCESS, "request %d of thread %d: %s", number, thread, ibv_wc_status_str(wc[i].status));
		CHECK(wc[i].qp_num == (in ? receiver : sender)[thread]->qp_num, "request %d of thread %d: of %#x", number, thread, wc[i].qp_num);
		if (in) {
			uint32_t *word = (uint32_t *)(uintptr_t)word_of(thread, number, true).addr;

			CHECK(*word == (uint32_t)(thread << 16 | number) && ntohl(wc[i].imm_data) == *word, "message %d of thread %d: %#x", number,
			      thread, *word);
		}
		atomic_fetch_add(in ? &received[thread] : &sent[thread], 1);
	}
	if (!n)
		sched_yield();
}

static void *post_and_poll(void *argument)
{
	int thread = (uintptr_t)argument, e;
	double end = now_s() + 60;

	for (int i = 0; i < SHARED_MESSAGES; i++) {
		uint64_t id = (uint64_t)thread << 32 | i;
		struct request r = { .opcode = IBV_WR_SEND_WITH_IMM, .id = id, .imm = htonl(thread << 16 | i), .local = word_of(thread, i, false) };

		*(uint32_t *)(uintptr_t)r.local.addr = thread << 16 | i;
		while ((e = post_receive(receiver[thread], id, word_of(thread, i, true))) == ENOMEM && now_s() < end)
			take_shared();
		CHECK(!e, "ibv_post_recv: %s", strerror(e));
		while ((e = post_request(sender[thread], &r)) == ENOMEM && now_s() < end)
			take_shared();
		CHECK(!e, "ibv_post_send: %s", strerror(e));
	}
	while ((sent[thread] < SHARED_MESSAGES || received[thread] < SHARED_MESSAGES) && now_s() < end)
		take_shared();
	CHECK(sent[thread] == SHARED_MESSAGES && received[thread] == SHARED_MESSAGES, "thread %d: %d sent, %d received", thread, sent[thread],
	      received[thread]);
	return NULL;
}

static void shared(void)
{
	size_t bytes = 2 * sizeof(uint32_t) * THREADS * SHARED_MESSAGES;
	struct ibv_pd *pd = ibv_alloc_pd(context);
	void *words = memory(bytes);

	CHECK(pd && (shared_mr = ibv_reg_mr(pd, words, bytes, IBV_ACCESS_LOCAL_WRITE)), "ibv_reg_mr: %m");
	CHECK((shared_cq = ibv_create_cq(context, THREADS * 4 * LOCAL_DEPTH, NULL, NULL, 0)), "ibv_create_cq: %m");
	for (int i = 0; i < THREADS; i++) {
		sender[i] = qp_create(pd, shared_cq, LOCAL_CAP, true);
		receiver[i] = qp_create(pd, shared_cq, LOCAL_CAP, true);
		qp_connect_both(sender[i], receiver[i], &LOCAL_OPTIONS);
	}
	in_threads(post_and_poll);
	for (int i = 0; i < THREADS; i++)
		CHECK(!ibv_destroy_qp(sender[i]) && !ibv_destroy_qp(receiver[i]), "ibv_destroy_qp");
	CHECK(!ibv_destroy_cq(shared_cq) && !ibv_dereg_mr(shared_mr) && !ibv_dealloc_pd(pd), "clean-up");
	munmap(words, bytes);
}

static atomic_bool stop;
static atomic_int passed;

static void *traffic(void *argument)
{
	while (!stop) {
		local_messages(argument, 2);
		atomic_fetch_add(&passed, 2);
	}
	return NULL;
}

/* What a child may do with what it inherited: everything fails or does nothing, nothing crashes or hangs. */
static void touch(struct local *l)
{
	struct request r = { .opcode = IBV_WR_SEND, .local = { (uintptr_t)l->bytes, 8, l->mr->lkey } };
	struct ibv_qp *another;
	struct ibv_wc wc;

	post_request(l->qp[0], &r);
	ibv_poll_cq(l->cq, 1, &wc);
	struct ibv_qp_init_attr a = { .send_cq = l->cq, .recv_cq = l->cq, .qp_type = IBV_QPT_RC, .cap = LOCAL_CAP };
	another = ibv_create_qp(l->pd, &a);
	CHECK(!another, "the child got a queue pair of its parent's device");
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	ibv_modify_qp(l->qp[1], &err, IBV_QP_STATE);
	ibv_destroy_qp(l->qp[1]);
}

static void open_in_child(void)
{
	struct ibv_context *own = open_named(device);
	struct local l = local_make(own);

	local_messages(&l, 20);
	local_end(&l);
	CHECK(!ibv_close_device(own), "ibv_close_device in the child");
}

/* The parent's domain and completion queue, and memory of our own: after ibv_fork_init registered memory is not inherited. */
static void inherit(struct local *spare)
{
	spare->bytes = memory(2 * LOCAL_BYTES);
	CHECK((spare->mr = ibv_reg_mr(spare->pd, spare->bytes, 2 * LOCAL_BYTES, IBV_ACCESS_LOCAL_WRITE)), "ibv_reg_mr in the child: %m");
	local_connect(spare);
	local_messages(spare, 20);
	CHECK(!ibv_destroy_qp(spare->qp[0]) && !ibv_destroy_qp(spare->qp[1]) && !ibv_dereg_mr(spare->mr), "clean-up in the child");
}

static void child(int kind, struct local *l, struct local *spare)
{
	switch (kind) {
	case 0:
		exit(0);	/* with destructors, that of the provider too */
	case 1:
		execl("/proc/self/exe", "scale_threads", "-x", fds_at_start, NULL);
		die("exec: %m");
	case 2:
		touch(l);
		exit(0);
	case 3:
		open_in_child();
		exit(0);
	default:
		inherit(spare);
		exit(0);
	}
}

static void forks(void)
{
	struct local l = local_make(context);
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, traffic, &l), "pthread_create");
	struct local idle = local_make(context);
	struct ibv_context *for_children = open_named(device);
	struct local spare = local_without_qps(for_children);
	for (int i = 0; i < FORKS * rounds / 2; i++) {
		int before = passed, status, kind = i % FORKS;
		double end = now_s() + 30;

		fflush(stdout);
		pid_t pid = fork();
		CHECK(pid >= 0, "fork: %m");
		if (!pid)
			child(kind, &idle, &spare);
		while (!waitpid(pid, &status, WNOHANG)) {
			CHECK(now_s() < end, "the child that does %d does not end", kind);
			usleep(500);
		}
		CHECK(!status, "the child that does %d ended with status %#x", kind, status);
		while (passed < before + 4 && now_s() < end)
			usleep(500);
		CHECK(passed >= before + 4, "nothing passes in the parent after child %d", kind);
		local_messages(&idle, 2);
	}
	stop = true;
	pthread_join(thread, NULL);
	local_end(&spare);
	CHECK(!ibv_close_device(for_children), "ibv_close_device");
	local_end(&idle);
	local_end(&l);
	printf("%d messages beside the forks\n", passed);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } topics[] = { { "churn", churn }, { "devices", devices }, { "shared", shared },
		{ "fork", forks } };
	int c;

	snprintf(fds_at_start, sizeof fds_at_start, "%ld", entries("/proc/self/fd", "", NULL));
	while ((c = getopt(argc, argv, "d:n:x:")) > 0)
		switch (c) {
		case 'd': device = optarg; break;
		case 'n': rounds = atoi(optarg); break;
		case 'x':
			/* after exec: nothing of the device was inherited */
			return strcmp(optarg, fds_at_start) != 0;
		default: return 2;
		}
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(!ibv_fork_init(), "ibv_fork_init: %m");
	/* once, so that what is made once and for all is there */
	context = open_named(device);
	struct local first = local_make(context);
	local_messages(&first, 2);
	struct usage before = usage_now();
	for (unsigned i = 0; i < sizeof topics / sizeof *topics; i++) {
		double start = now_s();

		if (optind < argc && strcmp(argv[optind], topics[i].name))
			continue;
		topics[i].run();
		struct usage after = usage_now();
		printf("%-8s ok, %.0f ms\n", topics[i].name, (now_s() - start) * 1e3);
		CHECK(after.fds == before.fds && after.threads == before.threads, "%s: %ld descriptors and %ld threads before, %ld and %ld after",
		      topics[i].name, before.fds, before.threads, after.fds, after.threads);
	}
	local_messages(&first, 2);
	local_end(&first);
	CHECK(!ibv_close_device(context), "ibv_close_device");
	puts("OK");
	return 0;
}
