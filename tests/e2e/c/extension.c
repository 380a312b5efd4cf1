/* metaroce.h, call by call, on a device of several planes in one process: what it tells of planes and paths, switching planes
 * under traffic, and the exact error of every bad argument.
 *
 *   extension [-d DEVICE] [TOPIC]
 */
#include "verbs_expect.h"
#include "../../../provider/include/metaroce.h"

enum { MOST = 64, ROUNDS = 2000, NOT_THERE = 77 };

static struct metaroce_functions mr;

static uint32_t planes_of(const struct pair *p, struct metaroce_plane *planes)
{
	uint32_t count = MOST;

	expect_errno("query_planes", mr.query_planes(p->a.qp, planes, &count, sizeof *planes), 0);
	return count;
}

static uint64_t sent(const struct pair *p, uint32_t plane)
{
	struct metaroce_plane planes[MOST];

	planes_of(p, planes);
	return planes[plane].bytes_sent;
}

static void write_much(const struct pair *p)
{
	for (int i = 0; i < ROUNDS; i++)
		expect_works("a write", p);
}

static struct pair connected(void)
{
	struct pair p = pair_create(&OPTIONS);

	expect_works("the first write", &p);
	return p;
}

static void opens(void)
{
	struct ibv_context fake = { .cmd_fd = -1 };

	expect_errno("no context", metaroce_open(NULL, &mr), EINVAL);
	expect_errno("no functions", metaroce_open(context, NULL), EINVAL);
	expect_errno("a context of nobody", metaroce_open(&fake, &mr), EOPNOTSUPP);
	/* a function of another object: the C library */
	fake.ops.post_send = (void *)strtol;
	expect_errno("a context of another provider", metaroce_open(&fake, &mr), EOPNOTSUPP);
	expect_errno("metaroce_open", metaroce_open(context, &mr), 0);
}

static void bad_arguments(void)
{
	struct pair p = connected();
	struct end alone = end_create(NULL);
	struct ibv_context nobody = { .cmd_fd = -1 };
	struct ibv_qp foreign_qp = { .context = &nobody }, bare = { .context = NULL };
	struct metaroce_plane planes[MOST];
	struct metaroce_path paths[MOST];
	uint32_t count = MOST, all = planes_of(&p, planes);

	expect_errno("planes of NULL", mr.query_planes(NULL, planes, &count, sizeof *planes), EINVAL);
	expect_errno("planes into NULL", mr.query_planes(p.a.qp, NULL, &count, sizeof *planes), EINVAL);
	expect_errno("planes, no count", mr.query_planes(p.a.qp, planes, NULL, sizeof *planes), EINVAL);
	expect_errno("planes, size 0", mr.query_planes(p.a.qp, planes, &count, 0), EINVAL);
	expect_errno("planes, too small", mr.query_planes(p.a.qp, planes, &count, sizeof *planes - 1), EINVAL);
	expect_errno("planes of a foreign QP", mr.query_planes(&foreign_qp, planes, &count, sizeof *planes), EINVAL);
	expect_errno("planes of a QP of nobody", mr.query_planes(&bare, planes, &count, sizeof *planes), EINVAL);
	expect_errno("planes before RTR", mr.query_planes(alone.qp, planes, &count, sizeof *planes), ENOTCONN);
	expect_number("count", "untouched by errors", count, MOST);
	count = all - 1;
	planes[0].plane = NOT_THERE;
	expect_errno("planes, no room", mr.query_planes(p.a.qp, planes, &count, sizeof *planes), ENOSPC);
	expect_number("count", "needed", count, all);
	expect_number("plane", "untouched", planes[0].plane, NOT_THERE);
	count = 0;
	expect_errno("number of planes", mr.query_planes(p.a.qp, NULL, &count, sizeof *planes), 0);
	expect_number("count", "told without room", count, all);
	count = 0;
	expect_errno("number of planes before RTR", mr.query_planes(alone.qp, NULL, &count, sizeof *planes), ENOTCONN);
	count = MOST;

	expect_errno("paths of NULL", mr.query_paths(NULL, paths, &count, sizeof *paths), EINVAL);
	expect_errno("paths into NULL", mr.query_paths(p.a.qp, NULL, &count, sizeof *paths), EINVAL);
	expect_errno("paths, no count", mr.query_paths(p.a.qp, paths, NULL, sizeof *paths), EINVAL);
	expect_errno("paths, too small", mr.query_paths(p.a.qp, paths, &count, sizeof *paths - 1), EINVAL);
	expect_errno("paths of a foreign QP", mr.query_paths(&foreign_qp, paths, &count, sizeof *paths), EINVAL);
	expect_errno("paths before RTR", mr.query_paths(alone.qp, paths, &count, sizeof *paths), ENOTCONN);
	count = 0;
	expect_errno("paths, no room", mr.query_paths(p.a.qp, paths, &count, sizeof *paths), ENOSPC);
	EXPECT(count >= all, "%u paths are fewer than %u planes", count, all);
	all = count;
	count = 0;
	expect_errno("number of paths", mr.query_paths(p.a.qp, NULL, &count, sizeof *paths), 0);
	expect_number("count", "told without room", count, all);

	expect_errno("set of NULL", mr.set_plane(NULL, 0, 1), EINVAL);
	expect_errno("set of a foreign QP", mr.set_plane(&foreign_qp, 0, 1), EINVAL);
	expect_errno("set to 2", mr.set_plane(p.a.qp, 0, 2), EINVAL);
	expect_errno("set to -1", mr.set_plane(p.a.qp, 0, -1), EINVAL);
	expect_errno("set before RTR", mr.set_plane(alone.qp, 0, 1), ENOTCONN);
	expect_errno("set of a huge plane before RTR", mr.set_plane(alone.qp, 1 << 20, 1), ENOTCONN);
	expect_errno("set of no plane", mr.set_plane(p.a.qp, NOT_THERE, 0), ENOENT);
	expect_errno("set of plane 256", mr.set_plane(p.a.qp, 256, 0), ENOENT);
	expect_errno("set of the largest plane", mr.set_plane(p.a.qp, UINT32_MAX, 1), ENOENT);
	end_destroy(alone);
	pair_destroy(p);
}

static void later_version(void)
{
	struct { struct metaroce_plane plane; uint64_t more; } longer[MOST];
	struct pair p = connected();
	uint32_t count = MOST;

	memset(longer, 0xa5, sizeof longer);
	expect_errno("longer structures", mr.query_planes(p.a.qp, &longer[0].plane, &count, sizeof *longer), 0);
	for (uint32_t i = 0; i < count; i++) {
		expect_number("plane", "longer", longer[i].plane.plane, i);
		expect_number("what is not known", "longer", longer[i].more, 0);
	}
	pair_destroy(p);
}

static void tells(void)
{
	struct pair p = connected();
	struct metaroce_plane planes[MOST];
	struct metaroce_path paths[MOST];
	uint32_t all = planes_of(&p, planes), count = MOST, on_planes = 0;
	uint64_t packets = 0;
	union ibv_gid gid;

	expect_errno("query_paths", mr.query_paths(p.a.qp, paths, &count, sizeof *paths), 0);
	EXPECT(all > 1, "%u planes: this wants several", all);
	for (uint32_t i = 0; i < all; i++) {
		uint32_t wanted = METAROCE_PLANE_UP | METAROCE_PLANE_ENABLED | METAROCE_PLANE_JOINED | METAROCE_PLANE_PROVED;

		expect_number("plane", "in order", planes[i].plane, i);
		expect_number("flags", planes[i].interface_name, planes[i].flags, wanted);
		CHECK(!ibv_query_gid(context, 1, i, &gid), "ibv_query_gid: %m");
		EXPECT(!memcmp(&gid, &planes[i].gid, sizeof gid), "plane %u has another GID", i);
		EXPECT(!memcmp(&gid, &planes[i].peer_gid, sizeof gid), "plane %u leads to another GID", i);
		EXPECT(planes[i].speed_mbps && planes[i].speed_mbps == planes[i].peer_speed_mbps, "speed %u, %u of the peer",
		       planes[i].speed_mbps, planes[i].peer_speed_mbps);
		on_planes += planes[i].paths;
	}
	expect_number("paths", "on planes", on_planes, count);
	for (uint32_t i = 0; i < count; i++) {
		EXPECT(paths[i].plane < all && paths[i].source_port && paths[i].state <= METAROCE_PATH_RESTING, "path %u: plane %u, port %u, state %u",
		       i, paths[i].plane, paths[i].source_port, paths[i].state);
		packets += paths[i].packets_sent;
	}
	EXPECT(packets, "nothing was sent");
	pair_destroy(p);
}

static void steers(void)
{
	struct pair p = connected();
	struct metaroce_plane planes[MOST];
	uint32_t all = planes_of(&p, planes);
	uint64_t before[MOST];

	for (uint32_t keep = 0; keep < all; keep++) {
		expect_errno("on", mr.set_plane(p.a.qp, keep, 1), 0);
		for (uint32_t i = 0; i < all; i++)
			if (i != keep)
				expect_errno("off", mr.set_plane(p.a.qp, i, 0), 0);
		expect_errno("the last one off", mr.set_plane(p.a.qp, keep, 0), EBUSY);
		for (uint32_t i = 0; i < all; i++)
			before[i] = sent(&p, i);
		write_much(&p);
		for (uint32_t i = 0; i < all; i++) {
			uint64_t now = sent(&p, i) - before[i];

			EXPECT(i == keep ? now > 0 : !now, "plane %u carried %lu bytes while only %u was on", i, now, keep);
		}
		planes_of(&p, planes);
		for (uint32_t i = 0; i < all; i++)
			expect_number("enabled", planes[i].interface_name, !!(planes[i].flags & METAROCE_PLANE_ENABLED), i == keep);
	}
	for (uint32_t i = 0; i < all; i++)
		expect_errno("on", mr.set_plane(p.a.qp, i, 1), 0);
	/* paths come back while there is something to send */
	for (double end = now_s() + SOON_S; now_s() < end;) {
		uint32_t used = 0;

		write_much(&p);
		planes_of(&p, planes);
		for (uint32_t i = 0; i < all; i++)
			used += planes[i].paths > planes[i].resting_paths;
		if (used == all)
			break;
	}
	for (uint32_t i = 0; i < all; i++)
		EXPECT(planes[i].paths > planes[i].resting_paths, "nothing came back to plane %u", i);
	pair_destroy(p);
}

int main(int argc, char **argv)
{
	static const struct topic topics[] = {
		{ "opens", opens }, { "bad arguments", bad_arguments }, { "later version", later_version }, { "tells", tells },
		{ "steers", steers },
	};

	return run_topics(argc, argv, topics, COUNT(topics));
}
