/* plugin_copies LIBRARY...: every copy of libibverbs is loaded in turn, enumerated and opened; a message goes from one
 * queue pair to another through a completion channel; then everything is closed and the copy is unloaded. Then all of that
 * once more (a copy that comes again must find the provider, though its constructor does not run again), then in a forked
 * child, and after the fork in the parent.
 *
 * Prints a line for each step, "COPIES OK" at the end and returns 0 if all was well. */
#include "plugin_copy.h"
#include <sys/wait.h>
#include <unistd.h>

static int use(const char *path, int keep)
{
	static struct copy copy;

	if (copy_load(&copy, path) || copy_open(&copy) || copy_message(&copy) || copy_close(&copy))
		return -1;
	printf("  %s: message ok\n", path);
	if (!keep)
		dlclose(copy.handle);
	return 0;
}

int main(int argc, char **argv)
{
	int failed = 0, status = 0;

	if (argc < 2) {
		fprintf(stderr, "usage: %s LIBRARY...\n", argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	alarm(50); /* a hang is a failure, too */
	puts("each copy:");
	for (int i = 1; i < argc; i++)
		failed |= use(argv[i], 0);
	puts("again, after dlclose:");
	for (int i = 1; i < argc; i++)
		failed |= use(argv[i], 1);
	puts("in a forked child:");
	pid_t child = fork();
	if (child == 0) {
		alarm(20);
		_exit(use(argv[1], 1) != 0);
	}
	waitpid(child, &status, 0);
	puts("in the parent, after the fork:");
	failed |= (status != 0) | use(argv[1], 1);
	puts(failed ? "COPIES BAD" : "COPIES OK");
	return failed != 0;
}
