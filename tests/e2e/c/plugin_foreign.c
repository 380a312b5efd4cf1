/* plugin_foreign LIBRARY FOREIGN...: the foreign libraries, which a provider must let alone, are loaded before a real copy
 * of libibverbs; that one must work, and the foreign ones must go when they are unloaded.
 *
 * Prints "OK" at the end and returns 0 if all was well. */
#include "plugin_copy.h"
#include <unistd.h>

enum { MAX_FOREIGN = 8, TURNS = 3 };

static int is_mapped(const char *path)
{
	char line[4096];
	int found = 0;
	FILE *file = fopen("/proc/self/maps", "r");

	while (file && fgets(line, sizeof line, file))
		found |= strstr(line, path) != NULL;
	if (file)
		fclose(file);
	return found;
}

int main(int argc, char **argv)
{
	static struct copy copy;
	void *foreign[MAX_FOREIGN] = { NULL };
	int failed = 0;

	setvbuf(stdout, NULL, _IONBF, 0);
	alarm(50);
	if (argc < 3 || argc > 2 + MAX_FOREIGN) {
		fprintf(stderr, "usage: %s LIBRARY FOREIGN...\n", argv[0]);
		return 2;
	}
	for (int i = 2; i < argc; i++) {
		foreign[i - 2] = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
		if (!foreign[i - 2]) {
			printf("  dlopen: %s\n", dlerror());
			return 1;
		}
	}
	failed |= copy_load(&copy, argv[1]);
	for (int turn = 0; turn < TURNS && !failed; turn++)
		failed = copy_open(&copy) || copy_message(&copy) || copy_close(&copy);
	for (int i = 2; i < argc; i++) {
		dlclose(foreign[i - 2]);
		if (is_mapped(argv[i])) {
			printf("  %s is still there after dlclose\n", argv[i]);
			failed = 1;
		}
	}
	puts(failed ? "BAD" : "OK");
	return failed != 0;
}
