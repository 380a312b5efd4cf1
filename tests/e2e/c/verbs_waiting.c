/* Threads that block in ibv_get_cq_event, over stock libibverbs: one that comes back soon may do the provider's work meanwhile,
 * and must notice nothing of it: no event is lost, signals end or do not end the call as they would end a read(2), cancellation
 * comes, other threads are served. Two queue pairs of one process talk to each other.
 *
 *   verbs_waiting [-d DEVICE] [TOPIC]
 *
 * The last line is OK if all ended well. */
#include "verbs_trial.h"
#include <pthread.h>
#include <setjmp.h>
#include <sys/time.h>

/* QUICK rounds in a row are more than it takes until a thread is believed to come back soon. */
enum { QUICK = 100, MANY = 5000, SLOT = 64 };

/* Two connected queue pairs whose completion queues raise their events in one channel, and memory that is theirs alone. */
struct talk { struct ibv_comp_channel *channel; struct pair p; uint64_t offset; unsigned events; };

static struct talk talk_create(int number)
{
	struct talk t = { .channel = ibv_create_comp_channel(context), .offset = (uint64_t)number * SLOT };

	CHECK(t.channel, "ibv_create_comp_channel: %m");
	t.p = (struct pair){ end_create(t.channel), end_create(t.channel) };
	qp_connect_both(t.p.a.qp, t.p.b.qp, &OPTIONS);
	CHECK(!ibv_req_notify_cq(t.p.a.cq, 0) && !ibv_req_notify_cq(t.p.b.cq, 0), "ibv_req_notify_cq");
	return t;
}

static void talk_destroy(struct talk *t)
{
	pair_destroy(t->p);
	expect_errno("ibv_destroy_comp_channel", ibv_destroy_comp_channel(t->channel), 0);
}

static void start_round(struct talk *t, uint64_t value)
{
	memcpy(source.bytes + t->offset, &value, sizeof value);
	CHECK(!post_receive(t->p.b.qp, 2, part(&target, t->offset, 8)), "ibv_post_recv");
	CHECK(!post_request(t->p.a.qp, &(struct request){ .id = 1, .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED,
		.local = part(&source, t->offset, 8) }), "ibv_post_send");
}

/* Takes one event and what it is about; how many completions there were, or -1 if ibv_get_cq_event failed, with its errno. */
static int take_event(struct talk *t)
{
	struct ibv_cq *cq;
	struct ibv_wc wc[4];
	void *unused;
	int n, all = 0;

	errno = 0;
	if (ibv_get_cq_event(t->channel, &cq, &unused))
		return -1;
	t->events++;
	ibv_ack_cq_events(cq, 1);
	CHECK(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	while ((n = ibv_poll_cq(cq, COUNT(wc), wc)) > 0) {
		for (int i = 0; i < n; i++)
			EXPECT(wc[i].status == IBV_WC_SUCCESS, "request %lu: %s", wc[i].wr_id, ibv_wc_status_str(wc[i].status));
		all += n;
	}
	CHECK(!n, "ibv_poll_cq: %d", n);
	return all;
}

/* A message goes over; both sides are told by events. */
static void round_trip(struct talk *t, uint64_t value)
{
	uint64_t got;

	start_round(t, value);
	for (int left = 2; left > 0;) {
		int n = take_event(t);

		CHECK(n >= 0, "ibv_get_cq_event: %m");
		left -= n;
	}
	memcpy(&got, target.bytes + t->offset, sizeof got);
	expect_number("a message", "content", got, value);
}

static void quick_rounds(struct talk *t, int count)
{
	for (int i = 0; i < count; i++)
		round_trip(t, i + 1);
}

static void talks(void)
{
	open_all();
	struct talk t = talk_create(0);

	quick_rounds(&t, MANY);
	/* now and then it stays away for long */
	for (int i = 0; i < 20; i++) {
		quick_rounds(&t, QUICK);
		usleep(2500);
	}
	talk_destroy(&t);
	close_all();
}

static void *talk_of_its_own(void *number)
{
	struct talk t = talk_create((int)(intptr_t)number);

	quick_rounds(&t, MANY);
	talk_destroy(&t);
	return NULL;
}

static void several(void)
{
	enum { THREADS = 3 };
	pthread_t threads[THREADS];

	open_all();
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, talk_of_its_own, (void *)(intptr_t)i), "pthread_create");
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL), "pthread_join");
	close_all();
}

/* It came back soon all the time, and then it stays away: what comes meanwhile arrives all the same. */
static void away(void)
{
	open_all();
	struct talk t = talk_create(0);

	for (uint64_t i = 1; i <= 20; i++) {
		volatile uint64_t *there = (void *)(target.bytes + 4096);
		double end = now_s() + SOON_S;

		quick_rounds(&t, QUICK);
		memcpy(source.bytes + 4096, &i, sizeof i);
		CHECK(!post_request(t.p.a.qp, &(struct request){ .id = 3, .opcode = IBV_WR_RDMA_WRITE, .local = part(&source, 4096, 8),
			.remote = target.base + 4096, .rkey = target.key }), "ibv_post_send");
		while (*there != i && now_s() < end)
			usleep(10);
		expect_number("a WRITE while nobody calls", "content", *there, i);
	}
	talk_destroy(&t);
	close_all();
}

static volatile sig_atomic_t handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

static void on_alarm(int flags)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = flags };

	CHECK(!sigaction(SIGALRM, &action, NULL), "sigaction: %m");
}

static void set_timer(int first_us, int every_us)
{
	struct itimerval timer = { .it_value.tv_usec = first_us, .it_interval.tv_usec = every_us };

	CHECK(!setitimer(ITIMER_REAL, &timer, NULL), "setitimer: %m");
}

/* In this thread, and in those that it makes. */
static void block_alarm(int how)
{
	sigset_t alarms;

	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	CHECK(!pthread_sigmask(how, &alarms, NULL), "pthread_sigmask");
}

/* Sooner than the thread stops doing the provider's work, and later. */
static const int DELAYS_US[] = { 200, 400, 600, 900, 1500, 3000 };

/* A handler without SA_RESTART ends the call, also while the thread does something else in it than reading. */
static void interrupted(void)
{
	open_all();
	struct talk t = talk_create(0);
	int by_the_first[COUNT(DELAYS_US)] = { 0 };

	on_alarm(0);
	for (int i = 0; i < 60; i++) {
		quick_rounds(&t, QUICK);
		handled = 0;
		/* again and again: the first one may come before the call begins */
		set_timer(DELAYS_US[i % COUNT(DELAYS_US)], 5000);
		int n = take_event(&t), error = errno;
		set_timer(0, 0);
		EXPECT(n == -1 && error == EINTR && handled > 0, "a call that is interrupted after %d us: expected EINTR, got %d (%s), %d signals",
		       DELAYS_US[i % COUNT(DELAYS_US)], n, strerror(error), (int)handled);
		by_the_first[i % COUNT(DELAYS_US)] += handled == 1;
	}
	for (unsigned i = 0; i < COUNT(DELAYS_US); i++)
		EXPECT(by_the_first[i], "no signal after %d us ended the call at once", DELAYS_US[i]);
	talk_destroy(&t);
	close_all();
}

static void *send_after_signals(void *of)
{
	double end = now_s() + SOON_S;

	while (handled < 20 && now_s() < end)
		usleep(100);
	start_round(of, 7);
	return NULL;
}

/* A handler with SA_RESTART does not, nor does a signal that is ignored. */
static void restarted(void)
{
	open_all();
	struct talk t = talk_create(0);
	pthread_t sender;

	on_alarm(SA_RESTART);
	for (int i = 0; i < 30; i++) {
		quick_rounds(&t, QUICK);
		handled = 0;
		block_alarm(SIG_BLOCK);
		CHECK(!pthread_create(&sender, NULL, send_after_signals, &t), "pthread_create");
		block_alarm(SIG_UNBLOCK);
		set_timer(150, 150);
		for (int left = 2; left > 0;) {
			int n = take_event(&t);

			CHECK(n >= 0, "ibv_get_cq_event was ended by a signal with SA_RESTART: %m");
			left -= n;
		}
		set_timer(0, 0);
		CHECK(!pthread_join(sender, NULL), "pthread_join");
		EXPECT(handled >= 20, "hardly a signal was handled while the thread waited: %d", (int)handled);
	}
	talk_destroy(&t);
	close_all();
}

/* A call that need not wait has its result, however many signals come: an event, or EAGAIN if it may not wait. */
static void need_not_wait(void)
{
	enum { STORM_US = 50, ROUNDS = 5000, LOOKS = 200000 };
	struct ibv_cq *cq;
	void *unused;

	open_all();
	struct talk t = talk_create(0);

	on_alarm(0);
	quick_rounds(&t, QUICK);
	handled = 0;
	set_timer(STORM_US, STORM_US);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		start_round(&t, i);
		for (int left = 2; left > 0;) {
			struct pollfd p = { .fd = t.channel->fd, .events = POLLIN };

			if (poll(&p, 1, 1000) != 1)
				continue;
			int n = take_event(&t);

			CHECK(n >= 0, "ibv_get_cq_event, though there is an event: %m");
			left -= n;
		}
	}
	CHECK(!fcntl(t.channel->fd, F_SETFL, O_NONBLOCK), "fcntl: %m");
	for (int i = 0; i < LOOKS; i++) {
		errno = 0;
		CHECK(ibv_get_cq_event(t.channel, &cq, &unused) && errno == EAGAIN, "ibv_get_cq_event that may not wait: %m");
	}
	set_timer(0, 0);
	EXPECT(handled > 100, "hardly a signal was handled: %d", (int)handled);
	talk_destroy(&t);
	close_all();
}

static sigjmp_buf before;

static void leap(int signal)
{
	(void)signal;
	siglongjmp(before, 1);
}

/* A handler may leave the call by a jump; the thread is then as it was before, and can be cancelled. */
static void left_by_a_jump(void)
{
	struct sigaction action = { .sa_handler = leap };
	volatile unsigned i = 0, jumps = 0;
	int state;

	open_all();
	struct talk t = talk_create(0);

	CHECK(!sigaction(SIGALRM, &action, NULL), "sigaction: %m");
	while (i < 60) {
		quick_rounds(&t, QUICK);
		if (!sigsetjmp(before, 1)) {
			set_timer(DELAYS_US[i++ % COUNT(DELAYS_US)], 0);
			take_event(&t);
			die("a call came back that nothing should end: %m");
		}
		jumps++;
		CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state), "pthread_setcancelstate");
		EXPECT(state == PTHREAD_CANCEL_ENABLE, "after a jump out of ibv_get_cq_event the thread cannot be cancelled any more");
	}
	expect_number("jumps", "count", jumps, 60);
	talk_destroy(&t);
	close_all();
}

static void signals(void)
{
	trial("signals while a call need not wait", need_not_wait, WORKS);
	trial("a handler that jumps", left_by_a_jump, WORKS);
	trial("signals that interrupt", interrupted, WORKS);
	trial("signals that do not", restarted, WORKS);
}

static struct talk shared;

static void *rounds_for_ever(void *unused)
{
	for (uint64_t i = 1;; i++)
		round_trip(&shared, i);
	return unused;
}

static void *rounds_and_wait(void *unused)
{
	quick_rounds(&shared, QUICK);
	take_event(&shared);
	return unused;
}

/* ibv_get_cq_event is a cancellation point; a thread that is cancelled there leaves no lock and no duty behind. */
static void cancelled(void)
{
	open_all();
	for (int i = 0; i < 40; i++) {
		pthread_t thread;
		void *result;

		/* never destroyed: a thread may be cancelled when it has taken an event, and not acknowledged it */
		shared = talk_create(i);
		CHECK(!pthread_create(&thread, NULL, i % 2 ? rounds_for_ever : rounds_and_wait, NULL), "pthread_create");
		usleep(3000 + i * 137);
		CHECK(!pthread_cancel(thread), "pthread_cancel");
		CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED, "the thread was not cancelled");
		struct pair fresh = pair_create(&OPTIONS);
		expect_works("after a thread was cancelled", &fresh);
		pair_destroy(fresh);
	}
	fflush(stdout);
	_exit(failures ? FAILED_EXPECTATION : WORKS);
}

static void one_thread(void) { trial("one thread", talks, WORKS); }
static void several_threads(void) { trial("several threads", several, WORKS); }
static void thread_is_away(void) { trial("a thread that is away", away, WORKS); }
static void cancellation(void) { trial("cancellation", cancelled, WORKS); }

static const struct topic topics[] = {
	{ "one_thread", one_thread }, { "several_threads", several_threads }, { "thread_is_away", thread_is_away }, { "signals", signals },
	{ "cancellation", cancellation },
};

int main(int argc, char **argv)
{
	return run_trials(argc, argv, topics, COUNT(topics));
}
