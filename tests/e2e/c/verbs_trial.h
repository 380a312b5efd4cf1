/* For programs whose trials may end or hang the process: each runs in a child of its own, which opens the device itself and has
 * LIMIT_S. Used by verbs_process.c and verbs_waiting.c. */
#ifndef VERBS_TRIAL_H
#define VERBS_TRIAL_H
#include "verbs_expect.h"
#include <signal.h>
#include <sys/wait.h>

enum { LIMIT_S = 20, WORKS = 0, FAILED_EXPECTATION = 3 };

/* Runs `body` in a child; it must end by itself with this status. */
static inline void trial(const char *what, void (*body)(void), int wanted)
{
	int status = 0;
	double end = now_s() + LIMIT_S;

	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0, "fork: %m");
	if (!child) {
		failures = 0;
		body();
		fflush(stdout);
		_exit(failures ? FAILED_EXPECTATION : WORKS);
	}
	while (!waitpid(child, &status, WNOHANG)) {
		if (now_s() > end) {
			kill(child, SIGKILL);
			waitpid(child, &status, 0);
			return fail("%s: still running after %d s", what, LIMIT_S);
		}
		usleep(5000);
	}
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == wanted, "%s: expected exit status %d, got wait status %#x", what, wanted, status);
}

/* main() of such a program: `[-d DEVICE] [TOPIC]`. */
static inline int run_trials(int argc, char **argv, const struct topic *topics, int count)
{
	int c, ran = 0;

	while ((c = getopt(argc, argv, "d:")) > 0) {
		if (c != 'd')
			return 2;
		device = optarg;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < count; i++) {
		double start = now_s();
		int before = failures;

		if (optind < argc && strcmp(argv[optind], topics[i].name))
			continue;
		topic = topics[i].name;
		topics[i].run();
		printf("%-20s %s, %.0f ms\n", topic, failures == before ? "ok" : "FAILED", (now_s() - start) * 1e3);
		ran++;
	}
	CHECK(ran, "there is no topic '%s'", argv[optind]);
	CHECK(!failures, "%d expectations", failures);
	puts("OK");
	return 0;
}
#endif
