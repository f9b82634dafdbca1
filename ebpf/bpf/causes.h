/* SPDX-License-Identifier: GPL-2.0 */
/* Why a copy was slow: page faults of the caller, flushes of translations, waits for address spaces. */
#ifndef OC_CAUSES_H
#define OC_CAUSES_H

#include "tasks.h"

ALWAYS struct call *call_under_way(void)
{
	u64 id = bpf_get_current_pid_tgid();
	struct call *call = bpf_map_lookup_elem(&calls, &id);

	return call && call->under_way ? call : 0;
}

/* A thread that is in a call runs in the kernel, and faults there. */
SEC("raw_tp/page_fault_kernel")
int fault(struct raw_args *ctx)
{
	struct call *call = call_under_way();

	if (call)
		call->faults++;
	return 0;
}

SEC("raw_tp/tlb_flush")
int flush(struct raw_args *ctx)
{
	struct call *call = call_under_way();

	if (call)
		call->flushes++;
	return 0;
}

/* How the kernel says what kind of lock somebody waits for. */
enum { LOCK_SPIN = 1, LOCK_READ = 2, LOCK_WRITE = 4, LOCK_PERCPU = 16, LOCK_MUTEX = 32 };

/*
 * The process whose address space a lock guards; 0 if it guards something else. What lies around the lock is taken for
 * an address space and believed only if the process that it names has it.
 */
ALWAYS u32 owner_of(void *lock)
{
	struct task_struct *current = bpf_get_current_task(), *owner;
	struct mm_struct *mm = lock;

	mm = lock - __builtin_preserve_field_info(mm->mmap_lock, 0);
	if (READ(current, mm) == mm)
		return READ(current, tgid);
	if (!HAS(mm, owner))
		return 0;
	owner = READ(mm, owner);
	return owner && READ(owner, mm) == mm ? READ(owner, tgid) : 0;
}

/* Of locks that are had at once the kernel tells nothing, so these cost nothing. */
SEC("raw_tp/contention_begin")
int wait_begin(struct raw_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 kind = ctx->args[1];
	struct waiting now = { .lock = ctx->args[0] }, *outer;

	if ((kind & (LOCK_SPIN | LOCK_PERCPU | LOCK_MUTEX)) || !(kind & (LOCK_READ | LOCK_WRITE)))
		return 0;
	if (!has_btf || !is_followed(id >> 32))
		return 0;
	now.owner = owner_of((void *)now.lock);
	if (!now.owner)
		return 0;
	/* It gives its place to a wait inside of it. */
	outer = bpf_map_lookup_elem(&waiting, &id);
	now.user = outer ? outer->user : owner_now();
	if (!outer && !take(now.user, WAITING)) {
		lose(now.user);
		return 0;
	}
	now.start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&waiting, &id, &now, BPF_ANY)) {
		if (!outer)
			give(now.user, WAITING);
		lose(now.user);
	}
	return 0;
}

SEC("raw_tp/contention_end")
int wait_end(struct raw_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), took;
	struct waiting *from = bpf_map_lookup_elem(&waiting, &id);
	struct wait_key key = { .waiter = id >> 32 };
	struct wait none = {}, *wait;
	struct call *call;
	u32 user;

	/* A wait for another lock inside of this one. */
	if (!from || from->lock != ctx->args[0])
		return 0;
	took = bpf_ktime_get_ns() - from->start_ns;
	key.owner = from->owner;
	user = from->user;
	bpf_map_delete_elem(&waiting, &id);
	give(user, WAITING);
	call = call_under_way();
	if (call)
		call->wait_ns += took;
	wait = bpf_map_lookup_elem(&waits, &key);
	if (!wait && take(user, WAITS)) {
		if (bpf_map_update_elem(&waits, &key, &none, BPF_NOEXIST))
			give(user, WAITS);
		wait = bpf_map_lookup_elem(&waits, &key);
	}
	if (!wait) {
		lose(user);
		return 0;
	}
	__sync_fetch_and_add(&wait->waits, 1);
	__sync_fetch_and_add(&wait->total_ns, took);
	/* Of two at the same moment the longer one may get lost. */
	if (took > wait->longest_ns)
		wait->longest_ns = took;
	return 0;
}

#endif
