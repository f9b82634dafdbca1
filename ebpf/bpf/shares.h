/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Who may fill the tables. An owner gets no more of one than three times what is left. So one alone gets three quarters,
 * and however many there are, the next one finds some room. What finds none is counted, by its owner.
 */
#ifndef OC_SHARES_H
#define OC_SHARES_H

#include "maps.h"

#define MAX_USER_LEVELS 33

/*
 * The user of the current process. In a user namespace it may be any of those that were given to it. So there it is the
 * owner of the outermost one.
 */
static __attribute__((noinline)) u32 owner_now(void)
{
	struct task_struct *current;
	struct user_namespace *ns;
	struct cred *cred;

	if (!has_btf)
		return bpf_get_current_uid_gid();
	current = bpf_get_current_task();
	cred = READ(current, real_cred);
	ns = READ(cred, user_ns);
	if (READ(ns, level) == 0)
		return READ(cred, uid.val);
	for (u32 at = 0; at < MAX_USER_LEVELS && READ(ns, level) > 1; at++)
		ns = READ(ns, parent);
	return READ(ns, owner.val);
}

ALWAYS void lose(u32 owner)
{
	u64 *times, one = 1;

	count(NOT_COUNTED);
	times = bpf_map_lookup_elem(&lost, &owner);
	if (times)
		__sync_fetch_and_add(times, 1);
	else
		bpf_map_update_elem(&lost, &owner, &one, BPF_NOEXIST);
}

/* Takes room for an entry. False if the owner has no more. Where one job is followed there is nobody else. */
static __attribute__((noinline)) int take(u32 owner, u32 table)
{
	struct share share = { .owner = owner, .table = table };
	struct room *room = bpf_map_lookup_elem(&rooms, &table);
	u64 *own = bpf_map_lookup_elem(&taken, &share), none = 0;

	if (!own) {
		bpf_map_update_elem(&taken, &share, &none, BPF_NOEXIST);
		own = bpf_map_lookup_elem(&taken, &share);
	}
	if (!room || !own || room->taken >= room->entries)
		return 0;
	if (!follows && *own >= 3 * (room->entries - room->taken))
		return 0;
	__sync_fetch_and_add(&room->taken, 1);
	__sync_fetch_and_add(own, 1);
	return 1;
}

static __attribute__((noinline)) void give(u32 owner, u32 table)
{
	struct share share = { .owner = owner, .table = table };
	struct room *room = bpf_map_lookup_elem(&rooms, &table);
	u64 *own = bpf_map_lookup_elem(&taken, &share);

	if (!room || !own)
		return;
	__sync_fetch_and_add(&room->taken, -1);
	__sync_fetch_and_add(own, -1);
}

#endif
