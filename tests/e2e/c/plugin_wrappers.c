/* Prints what every function that the shim wraps does with ordinary, missing, relative and NULL paths; modes of files
 * that are made; calls in a signal handler on a small stack and between fork and exec. The output with and without the
 * shim must be the same. The functions are looked up by name, so that the compiler knows nothing of their contracts. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef long (*any)(long, long, long, long, long);

static const char *const PATHS[] = { NULL, "", "/", "/dev/null", "/dev/infinibandx", "/sys/class/net/lo/mtu",
				     "/sys/class/infiniband_mad", "relative", "/nonexistent/x" };

static char big[8192];
static void *pointer;

/* The name, where the path stands among the arguments, and what the others are. */
#define NUMBER(name, place, ...) { name, place, { __VA_ARGS__ }, 0 }
#define POINTER(name, place, ...) { name, place, { __VA_ARGS__ }, 1 }

static const struct { const char *name; int place; long arguments[5]; int result_is_pointer; } CALLS[] = {
	NUMBER("open", 0, 0, O_RDONLY), NUMBER("open64", 0, 0, O_RDONLY),
	NUMBER("openat", 1, AT_FDCWD, 0, O_RDONLY), NUMBER("openat64", 1, AT_FDCWD, 0, O_RDONLY),
	NUMBER("__open_2", 0, 0, O_RDONLY), NUMBER("__open64_2", 0, 0, O_RDONLY),
	NUMBER("__openat_2", 1, AT_FDCWD, 0, O_RDONLY), NUMBER("__openat64_2", 1, AT_FDCWD, 0, O_RDONLY),
	POINTER("fopen", 0, 0, (long)"r"), POINTER("fopen64", 0, 0, (long)"r"), NUMBER("stat", 0, 0, (long)big),
	NUMBER("stat64", 0, 0, (long)big), NUMBER("lstat", 0, 0, (long)big), NUMBER("lstat64", 0, 0, (long)big),
	NUMBER("__xstat", 1, 1, 0, (long)big), NUMBER("__xstat64", 1, 1, 0, (long)big),
	NUMBER("__lxstat", 1, 1, 0, (long)big), NUMBER("__lxstat64", 1, 1, 0, (long)big),
	NUMBER("fstatat", 1, AT_FDCWD, 0, (long)big, 0), NUMBER("fstatat64", 1, AT_FDCWD, 0, (long)big, 0),
	NUMBER("__fxstatat", 2, 1, AT_FDCWD, 0, (long)big, 0),
	NUMBER("__fxstatat64", 2, 1, AT_FDCWD, 0, (long)big, 0),
	NUMBER("statx", 1, AT_FDCWD, 0, 0, 4095, (long)big), NUMBER("access", 0, 0, R_OK),
	NUMBER("eaccess", 0, 0, R_OK), NUMBER("euidaccess", 0, 0, R_OK),
	NUMBER("faccessat", 1, AT_FDCWD, 0, R_OK, 0), NUMBER("readlink", 0, 0, (long)big, sizeof big),
	NUMBER("readlinkat", 1, AT_FDCWD, 0, (long)big, sizeof big),
	NUMBER("__readlink_chk", 0, 0, (long)big, 100, sizeof big),
	NUMBER("__readlinkat_chk", 1, AT_FDCWD, 0, (long)big, 100, sizeof big),
	POINTER("realpath", 0, 0, (long)big), POINTER("__realpath_chk", 0, 0, (long)big, sizeof big),
	POINTER("canonicalize_file_name", 0, 0), NUMBER("getxattr", 0, 0, (long)"user.x", (long)big, sizeof big),
	NUMBER("lgetxattr", 0, 0, (long)"user.x", (long)big, sizeof big),
	NUMBER("listxattr", 0, 0, (long)big, sizeof big), NUMBER("llistxattr", 0, 0, (long)big, sizeof big),
};

static void call_each(void)
{
	for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
		any function = (any)dlsym(RTLD_DEFAULT, CALLS[i].name);

		if (!function) {
			printf("%s: not in this C library\n", CALLS[i].name);
			continue;
		}
		for (size_t k = 0; k < sizeof PATHS / sizeof *PATHS; k++) {
			long a[5], result;

			memcpy(a, CALLS[i].arguments, sizeof a);
			a[CALLS[i].place] = (long)PATHS[k];
			/* the C library's own fopen and canonicalize_file_name do not take NULL */
			if (!PATHS[k] && (!strncmp(CALLS[i].name, "fopen", 5)))
				continue;
			errno = 0;
			result = function(a[0], a[1], a[2], a[3], a[4]);
			if (CALLS[i].result_is_pointer)
				result = result ? 1 : -1;
			else
				result = (int)result;
			printf("%s(%s) = %s, errno %d\n", CALLS[i].name, PATHS[k] ? PATHS[k] : "NULL",
			       result >= 0 ? "good" : "bad", result < 0 ? errno : 0);
			if (strstr(CALLS[i].name, "open") && !CALLS[i].result_is_pointer && result >= 0)
				close(result);
		}
	}
}

static void modes(void)
{
	char name[] = "/tmp/metaroce-wrappers-XXXXXX", path[64];
	struct stat status;

	umask(0);
	if (!mkdtemp(name))
		return;
	snprintf(path, sizeof path, "%s/f", name);
	int fd = open(path, O_CREAT | O_EXCL | O_RDWR, 0615);
	fstat(fd, &status);
	printf("O_CREAT: mode %o\n", status.st_mode & 07777);
	close(fd);
	unlink(path);
	fd = openat(AT_FDCWD, path, O_CREAT | O_EXCL | O_RDWR, 0451);
	fstat(fd, &status);
	printf("openat O_CREAT: mode %o\n", status.st_mode & 07777);
	close(fd);
	unlink(path);
	fd = open(name, O_TMPFILE | O_RDWR, 0640);
	if (fd >= 0 && !fstat(fd, &status))
		printf("O_TMPFILE: mode %o\n", status.st_mode & 07777);
	close(fd);
	rmdir(name);
}

static void handler(int signal)
{
	int fd = open("/dev/null", O_RDONLY);

	(void)signal;
	pointer = access("/dev/null", R_OK) == 0 && fd >= 0 ? (void *)1 : NULL;
	close(fd);
}

static void in_a_handler(void)
{
	static char stack[8192];
	stack_t small = { .ss_sp = stack, .ss_size = sizeof stack };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };

	sigaltstack(&small, NULL);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	printf("in a signal handler on a small stack: %s\n", pointer ? "good" : "bad");
}

int main(void)
{
	int status = 0;

	setvbuf(stdout, NULL, _IONBF, 0);
	call_each();
	modes();
	in_a_handler();
	pid_t child = vfork();
	if (child == 0)
		_exit(open("/dev/null", O_RDONLY) < 0 || access("/dev/infinibandx", F_OK) == 0);
	waitpid(child, &status, 0);
	printf("between vfork and exec: %s\n", status ? "bad" : "good");
	printf("other netlink sockets: %s\n", socket(AF_NETLINK, SOCK_RAW, 0) >= 0 ? "good" : "bad");
	DIR *directory = opendir("/sys/class/net");
	printf("opendir: %s\n", directory ? "good" : "bad");
	if (directory)
		closedir(directory);
	return 0;
}
