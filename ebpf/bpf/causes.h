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

SEC("raw_tp/mmap_lock_start_locking")
int lock_start(struct raw_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	struct waiting *from = bpf_map_lookup_elem(&waiting, &id);
	struct waiting now = { .mm = ctx->args[0] };

	/* It stays until the thread ends, like a call. */
	if (from) {
		from->mm = now.mm;
		from->start_ns = bpf_ktime_get_ns();
		return 0;
	}
	if (!is_followed(id >> 32))
		return 0;
	now.start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&waiting, &id, &now, BPF_ANY))
		count(NOT_COUNTED);
	return 0;
}

ALWAYS u32 owner_of(struct mm_struct *mm)
{
	struct task_struct *owner;

	if (!has_btf || !HAS(mm, owner))
		return 0;
	owner = READ(mm, owner);
	return owner ? READ(owner, tgid) : 0;
}

SEC("raw_tp/mmap_lock_acquire_returned")
int lock_had(struct raw_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), took;
	struct waiting *from = bpf_map_lookup_elem(&waiting, &id);
	struct wait_key key = { .waiter = id >> 32 };
	struct wait none = {}, *wait;
	struct call *call;

	if (!from)
		return 0;
	took = bpf_ktime_get_ns() - from->start_ns;
	if (from->mm != ctx->args[0] || took < wait_floor_ns)
		goto over;
	call = call_under_way();
	if (call)
		call->wait_ns += took;
	key.owner = owner_of((void *)from->mm);
	wait = bpf_map_lookup_elem(&waits, &key);
	if (!wait) {
		bpf_map_update_elem(&waits, &key, &none, BPF_NOEXIST);
		wait = bpf_map_lookup_elem(&waits, &key);
	}
	if (wait) {
		__sync_fetch_and_add(&wait->waits, 1);
		__sync_fetch_and_add(&wait->total_ns, took);
		/* Of two at the same moment the longer one may get lost. */
		if (took > wait->longest_ns)
			wait->longest_ns = took;
	} else {
		count(NOT_COUNTED);
	}
over:
	/* A lock that is had without waiting has no start. */
	from->mm = 0;
	return 0;
}

#endif
