/* What happens to a process and its threads around verbs, over stock libibverbs: threads that are cancelled, forked
 * children, an exit while threads post, few file descriptors, small stacks. Two queue pairs of one process talk to each other.
 *
 *   verbs_process [-d DEVICE] [TOPIC]
 *
 * Each trial runs in a child of its own, which opens the device itself and has LIMIT_S. The last line is OK if all ended well. */
#include "verbs_trial.h"
#include <limits.h>
#include <pthread.h>
#include <sys/resource.h>

enum { THREADS = 3, LARGE = 30000 };

static struct pair busy;

static int read_large(struct ibv_qp *qp, uint64_t id)
{
	return post_request(qp, &(struct request){ .id = id, .opcode = IBV_WR_RDMA_READ, .flags = IBV_SEND_SIGNALED,
		.local = part(&source, 0, LARGE), .remote = target.base, .rkey = target.key });
}

/* Posts and polls for ever; can be cancelled between two calls, and only there. */
static void *post_and_poll(void *unused)
{
	struct ibv_wc wc[8];

	for (;;) {
		write_8(busy.a.qp, 1, IBV_SEND_SIGNALED);
		read_large(busy.a.qp, 2);
		for (int i = 0; i < 10; i++)
			ibv_poll_cq(busy.a.cq, 8, wc);
		pthread_testcancel();
	}
	return unused;
}

static void start_threads(pthread_t *threads)
{
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, post_and_poll, NULL), "pthread_create");
}

/* A request to cancel may arrive inside any call; neither may it end the process nor leave a lock behind. */
static void cancelled(void)
{
	struct ibv_wc wc[8];
	pthread_t threads[THREADS];
	void *result;

	open_all();
	for (int round = 0; round < 50; round++) {
		busy = pair_create(&OPTIONS);
		start_threads(threads);
		usleep(2000 + round * 37);
		for (int i = 0; i < THREADS; i++)
			CHECK(!pthread_cancel(threads[i]), "pthread_cancel");
		for (int i = 0; i < THREADS; i++)
			CHECK(!pthread_join(threads[i], &result) && result == PTHREAD_CANCELED, "a thread was not cancelled");
		while (poll_for(busy.a.cq, wc, COUNT(wc), QUIET_S))
			;
		expect_works("after threads were cancelled", &busy);
		pair_destroy(busy);
	}
	close_all();
}

static void cancelled_threads(void)
{
	trial("cancelled threads", cancelled, WORKS);
}

/* exit() with its destructors, while other threads are inside the library. */
static void exits(void)
{
	pthread_t threads[THREADS];

	open_all();
	busy = pair_create(&OPTIONS);
	start_threads(threads);
	usleep(20000);
	exit(WORKS);
}

static void exit_while_posting(void)
{
	for (int i = 0; i < 10; i++)
		trial("exit while threads post", exits, WORKS);
}

/* In the child: nothing of the parent's can be posted or polled, and it says so instead of waiting for ever. */
static void use_parents(void)
{
	struct ibv_qp_init_attr init = { .send_cq = busy.a.cq, .recv_cq = busy.a.cq, .qp_type = IBV_QPT_RC, .cap = CAPABILITIES };
	struct ibv_wc wc;

	expect_errno("ibv_create_qp in a forked child", ERRNO_OF(ibv_create_qp(pd, &init)), EIO);
	expect_errno("ibv_post_send in a forked child", write_8(busy.a.qp, 1, IBV_SEND_SIGNALED), EIO);
	expect_errno("ibv_post_recv in a forked child", receive_8(busy.a.qp, 1), EIO);
	expect_errno("ibv_poll_cq in a forked child", -ibv_poll_cq(busy.a.cq, 1, &wc), EIO);
	expect_errno("ibv_destroy_qp in a forked child", ibv_destroy_qp(busy.a.qp), 0);
	/* a device of its own it may have */
	open_all();
	busy = pair_create(&OPTIONS);
	expect_works("the child's own device", &busy);
	pair_destroy(busy);
	close_all();
}

/* The context is older than the fork, the queue pairs are not: as in a program that becomes a daemon after it looked. */
static void use_inherited_context(void)
{
	busy = pair_create(&OPTIONS);
	expect_works("queue pairs of a child on its parent's context", &busy);
	pair_destroy(busy);
}

static void parent(void)
{
	open_all();
	trial("a context that is inherited", use_inherited_context, WORKS);
	busy = pair_create(&OPTIONS);
	expect_works("before fork", &busy);
	trial("a queue pair that is inherited", use_parents, WORKS);
	expect_works("after fork", &busy);
	pair_destroy(busy);
	close_all();
}

static void forked_children(void)
{
	trial("fork", parent, WORKS);
}

static void limit_descriptors(rlim_t count)
{
	struct rlimit limit;

	CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "RLIMIT_NOFILE: %m");
	limit.rlim_cur = count;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "RLIMIT_NOFILE: %m");
}

/* Enough to work, with fewer source ports. */
static void few(void)
{
	limit_descriptors(24);
	open_all();
	busy = pair_create(&OPTIONS);
	expect_works("with few descriptors", &busy);
	pair_destroy(busy);
	close_all();
}

/* The reason must reach the program. */
static void too_few(void)
{
	open_all();
	int next = dup(0);
	close(next);
	limit_descriptors(next + 2);

	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = CAPABILITIES };
	CHECK(cq, "ibv_create_cq: %m");
	expect_errno("ibv_create_qp without descriptors", ERRNO_OF(ibv_create_qp(pd, &init)), EMFILE);
	limit_descriptors(next + 100);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	EXPECT(qp && !ibv_destroy_qp(qp), "ibv_create_qp with descriptors again: %m");
	expect_errno("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
}

static void descriptors(void)
{
	trial("few descriptors", few, WORKS);
	trial("too few descriptors", too_few, WORKS);
}

static void *use_verbs(void *unused)
{
	struct pair p = pair_create(&OPTIONS);

	for (int i = 0; i < 100; i++) {
		expect_works("on a small stack", &p);
		expect_errno("a READ", read_large(p.a.qp, 5), 0);
		expect_completion("a READ", &p.a, (struct ibv_wc){ .wr_id = 5, .opcode = IBV_WC_RDMA_READ, .byte_len = LARGE });
	}
	pair_destroy(p);
	return unused;
}

/* No function of ours may need much of it: programs give threads as little as the system allows. */
static void small_stack(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	open_all();
	pthread_attr_init(&attributes);
	CHECK(!pthread_attr_setstacksize(&attributes, 2 * PTHREAD_STACK_MIN), "a stack of %ld bytes", 2 * (long)PTHREAD_STACK_MIN);
	CHECK(!pthread_create(&thread, &attributes, use_verbs, NULL), "pthread_create");
	CHECK(!pthread_join(thread, NULL), "pthread_join");
	close_all();
}

static void small_stacks(void)
{
	trial("a small stack", small_stack, WORKS);
}

static const struct topic topics[] = {
	{ "cancelled_threads", cancelled_threads }, { "exit_while_posting", exit_while_posting }, { "forked_children", forked_children },
	{ "descriptors", descriptors }, { "small_stacks", small_stacks },
};

int main(int argc, char **argv)
{
	return run_trials(argc, argv, topics, COUNT(topics));
}
