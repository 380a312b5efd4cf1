/* metaroce.h: planes and paths of queue pairs on metaroce devices, an extension of verbs.
 *
 * All queue pairs between the same two endpoints share one connection, and with it its planes and paths: what is switched for
 * one holds for all of them, for what this end sends, until the connection ends. It needs no privilege.
 *
 * Nothing has to be linked: metaroce_open() finds the functions in the provider that serves a context. So a program that uses
 * them also runs where there is no metaroce. (It needs _GNU_SOURCE, and -ldl with a C library older than 2.34.)
 *
 * Every function returns 0 or one of the errors that are named with it, and changes nothing then:
 *   EINVAL    a pointer is NULL, the queue pair is none of metaroce's, or `size` is less than the structure had at first
 *   ENOTCONN  the queue pair has no open connection: it is before RTR, the peer has not answered, or it is gone
 *   EIO       the queue pair belongs to the parent of this process
 */
#ifndef METAROCE_H
#define METAROCE_H

#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum metaroce_plane_flags {
	METAROCE_PLANE_UP = 1 << 0,      /* its interface is up and its address is there, at this host */
	METAROCE_PLANE_ENABLED = 1 << 1, /* not switched off by metaroce_set_plane() */
	METAROCE_PLANE_JOINED = 1 << 2,  /* the peer has a plane of this number, too */
	METAROCE_PLANE_PROVED = 1 << 3,  /* joined, or something was answered over it */
};

/* A plane of the connection. `plane` is the place of the interface in METAROCE_DEVICES, from 0; of planes that only one end has,
 * that end's. */
struct metaroce_plane {
	uint32_t plane;
	uint32_t flags;           /* enum metaroce_plane_flags */
	uint32_t speed_mbps;      /* of the own link, 0 if not known */
	uint32_t peer_speed_mbps; /* of the peer's */
	uint32_t paths;           /* that are on it now */
	uint32_t resting_paths;   /* of these, those that get no new packets until they are answered */
	uint64_t bytes_sent;      /* payload, sent for the first time */
	char interface_name[16];  /* of this host */
	union ibv_gid gid;        /* of this host */
	union ibv_gid peer_gid;
};

enum metaroce_path_state {
	METAROCE_PATH_IDLE = 0,    /* nothing is outstanding */
	METAROCE_PATH_BUSY = 1,    /* packets are outstanding and answered in time */
	METAROCE_PATH_PROBING = 2, /* a probe is not answered yet */
	METAROCE_PATH_RESTING = 3, /* gets no new packets until it is answered */
};

/* A path of the connection, as a sender. Counters are of the time since the connection began. */
struct metaroce_path {
	uint32_t path;
	uint32_t plane;
	uint32_t state; /* enum metaroce_path_state */
	uint32_t source_port;
	uint32_t window_packets;
	uint32_t in_flight_packets;
	uint64_t round_trip_ns; /* smoothed; 0 if there is none yet */
	uint64_t least_round_trip_ns;
	uint64_t bytes_sent;
	uint64_t packets_sent;
	uint64_t packets_lost;
	uint64_t retransmissions;
	uint64_t moves;
};

/* Fills `planes` with the planes of the connection of `qp`, by their numbers; one may occur twice, if the GIDs of the queue pair
 * are of different planes. `count`: room in, number of planes out; with 0 in and `planes` NULL that is all. `size`: sizeof(struct metaroce_plane); what a later version
 * of the structure has more is 0 from an older provider.
 *   ENOSPC  there is less room than planes; `count` is their number */
int metaroce_query_planes(struct ibv_qp *qp, struct metaroce_plane *planes, uint32_t *count, size_t size);

/* The same of paths. */
int metaroce_query_paths(struct ibv_qp *qp, struct metaroce_path *paths, uint32_t *count, size_t size);

/* Switches a plane off (0) or on (1): paths leave a plane that is off, and come back when it is on. What is outstanding there is
 * sent again elsewhere. Acknowledgements go by the plane that data came by, whatever is switched.
 *   ENOENT  the connection has no plane of that number
 *   EBUSY   no other plane is switched on
 *   EINVAL  `enabled` is neither 0 nor 1, too */
int metaroce_set_plane(struct ibv_qp *qp, uint32_t plane, int enabled);

/* The functions, for who does not link them. */
struct metaroce_functions {
	int (*query_planes)(struct ibv_qp *qp, struct metaroce_plane *planes, uint32_t *count, size_t size);
	int (*query_paths)(struct ibv_qp *qp, struct metaroce_path *paths, uint32_t *count, size_t size);
	int (*set_plane)(struct ibv_qp *qp, uint32_t plane, int enabled);
};

#ifdef _GNU_SOURCE
/* Finds them in the provider of `context`.
 *   EINVAL      a pointer is NULL
 *   EOPNOTSUPP  the context is not metaroce's, or of a version that has no such functions */
static inline int metaroce_open(struct ibv_context *context, struct metaroce_functions *functions)
{
	void *provider, *planes, *paths, *set;
	Dl_info about;

	if (!context || !functions)
		return EINVAL;
	if (!dladdr((void *)context->ops.post_send, &about) || !about.dli_fname)
		return EOPNOTSUPP;
	/* Loaded already: a second copy in a process would be of no use. */
	provider = dlopen(about.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!provider)
		return EOPNOTSUPP;
	planes = dlsym(provider, "metaroce_query_planes");
	paths = dlsym(provider, "metaroce_query_paths");
	set = dlsym(provider, "metaroce_set_plane");
	/* It stays, as long as its devices are open. */
	dlclose(provider);
	if (!planes || !paths || !set)
		return EOPNOTSUPP;
	*(void **)&functions->query_planes = planes;
	*(void **)&functions->query_paths = paths;
	*(void **)&functions->set_plane = set;
	return 0;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
