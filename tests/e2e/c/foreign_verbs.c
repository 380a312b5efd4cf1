/* A library that looks like a libibverbs by its version definitions, and is none: foreign_verbs.map gives it a pair of
 * versions that no release has; foreign_hollow.map (with -DHOLLOW) one that is known, but then the functions are missing. Whoever
 * takes it for a libibverbs and calls it ends the process. */
#include <stdio.h>
#include <stdlib.h>

#define NEVER(name) \
	void name(void) \
	{ \
		fprintf(stderr, #name " of a foreign library was called\n"); \
		abort(); \
	}

NEVER(ibv_get_device_list)
#ifndef HOLLOW
NEVER(verbs_register_driver_77)
NEVER(_verbs_init_and_alloc_context)
NEVER(verbs_set_ops)
NEVER(verbs_uninit_context)
#endif
