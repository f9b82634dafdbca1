/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Names of processes. One is kept when it is first seen to call, and its name follows exec. The peer of a call is an
 * id. The process that had it is kept when it ends, so that the reader need not look it up in time.
 */
#ifndef OC_TASKS_H
#define OC_TASKS_H

#include "shares.h"

#define MAX_LEVELS 8

/* The id of a thread at one level of namespaces; its namespace is 0 at the outermost level. */
ALWAYS struct local_id id_at(struct pid *pid, u32 level)
{
	struct local_id id = {};
	struct upid *numbers = pid->numbers;
	struct pid_namespace *ns;

	/* The size of an element is the kernel's own. */
	numbers = (void *)numbers + level * __builtin_preserve_field_info(pid->numbers[0], 1);
	id.pid = READ(numbers, nr);
	if (level) {
		ns = READ(numbers, ns);
		id.namespace = READ(ns, ns.inum);
	}
	return id;
}

ALWAYS void describe(struct task *task, struct task_struct *of)
{
	struct task_struct *leader = READ(of, group_leader);
	struct pid *pid = READ(leader, thread_pid);
	struct cred *cred = READ(leader, real_cred);
	struct user_namespace *user_ns = READ(cred, user_ns);

	task->tgid = READ(leader, tgid);
	task->start_ns = READ(leader, start_time);
	if (HAS(leader, start_boottime))
		task->boot_ns = READ(leader, start_boottime);
	bpf_probe_read_kernel(task->comm, sizeof(task->comm), leader->comm);
	task->user = READ(cred, uid.val);
	task->user_namespace = READ(user_ns, ns.inum);
	/* Gone with the last reference; then the namespace is not known. */
	if (!pid) {
		task->local.namespace = 1;
		return;
	}
	task->level = READ(pid, level);
	task->local = id_at(pid, task->level & (MAX_LEVELS * 4 - 1));
}

/* Without types of the kernel, only the outermost namespace is known. */
ALWAYS void describe_simply(struct task *task, u32 tgid)
{
	struct {
		u32 pid;
		u32 tgid;
	} outer;

	task->tgid = tgid;
	task->user = bpf_get_current_uid_gid();
	bpf_get_current_comm(task->comm, sizeof(task->comm));
	if (bpf_get_ns_current_pid_tgid(initial_dev, initial_ino, &outer, sizeof(outer)) == 0)
		task->local.pid = tgid;
	else
		task->local.namespace = 1;
}

/* The current process, which is kept at first sight. Null if there is no room. */
static __attribute__((noinline)) struct task *first_sight(u32 tgid, struct task *before)
{
	u32 owner = owner_now();
	struct task task = {};

	if (before) {
		struct past_key key = { .tgid = tgid, .generation = before->generation };

		task = *before;
		if (!take(owner, PAST)) {
			lose(owner);
		} else if (bpf_map_update_elem(&past, &key, &task, BPF_ANY)) {
			give(owner, PAST);
			lose(owner);
		}
		__builtin_memset(&task, 0, sizeof(task));
		task.generation = key.generation + 1;
	} else if (!take(owner, TASKS)) {
		return 0;
	}
	if (has_btf)
		describe(&task, bpf_get_current_task());
	else
		describe_simply(&task, tgid);
	if (bpf_map_update_elem(&tasks, &tgid, &task, BPF_ANY)) {
		if (!before)
			give(owner, TASKS);
		return 0;
	}
	return bpf_map_lookup_elem(&tasks, &tgid);
}

ALWAYS struct task *current_process(u32 tgid)
{
	struct task *task = bpf_map_lookup_elem(&tasks, &tgid);

	if (task && !task->end_ns)
		return task;
	return first_sight(tgid, task);
}

/* Whether what this process does is looked at. */
ALWAYS int is_followed(u32 tgid)
{
	return !follows || bpf_map_lookup_elem(&followed, &tgid);
}

SEC("raw_tp/sched_process_exec")
int task_exec(struct raw_args *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct task *task = bpf_map_lookup_elem(&tasks, &tgid);

	/* A process with the id of one that has ended is another one. */
	if (task && !task->end_ns)
		bpf_get_current_comm(task->comm, sizeof(task->comm));
	return 0;
}

SEC("raw_tp/sched_process_fork")
int task_fork(struct raw_args *ctx)
{
	struct task_struct *parent = (void *)ctx->args[0], *child = (void *)ctx->args[1];
	u32 old, new, one = 1, *with_children;

	if (!follows || !has_btf)
		return 0;
	old = READ(parent, tgid);
	new = READ(child, tgid);
	if (old == new)
		return 0;
	with_children = bpf_map_lookup_elem(&followed, &old);
	if (!with_children || !*with_children)
		return 0;
	if (bpf_map_update_elem(&followed, &new, &one, BPF_ANY))
		lose(owner_now());
	return 0;
}

/* A thread ends; its process as well, if it is the last one. */
SEC("raw_tp/sched_process_exit")
int task_exit(struct raw_args *ctx)
{
	u64 now = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32, level;
	struct task_struct *current;
	struct signal_struct *signal;
	struct task *task;
	struct call *call;
	struct ioctl *ioctl;
	struct pid *pid;
	int whole;

	call = bpf_map_lookup_elem(&calls, &id);
	if (call) {
		give(call->owner, CALLS);
		bpf_map_delete_elem(&calls, &id);
	}
	/* The kernel may have missed its end. */
	ioctl = bpf_map_lookup_elem(&ioctls, &id);
	if (ioctl) {
		give(ioctl->owner, IOCTLS);
		bpf_map_delete_elem(&ioctls, &id);
	}
	task = bpf_map_lookup_elem(&tasks, &tgid);
	if (!has_btf) {
		if (task && (u32)id == tgid)
			task->end_ns = now;
		return 0;
	}
	current = bpf_get_current_task();
	signal = READ(current, signal);
	whole = READ(signal, live.counter) == 0;
	if (whole && task)
		task->end_ns = now;
	if (whole && follows)
		bpf_map_delete_elem(&followed, &tgid);
	pid = READ(current, thread_pid);
	level = READ(pid, level);
	for (u32 at = 0; at < MAX_LEVELS && at <= level; at++) {
		struct local_id local = id_at(pid, at);
		struct task *peer = bpf_map_lookup_elem(&peers, &local);
		struct task ended = {};

		/* The first one that had the id is kept; what came later is told by the times. */
		if (!peer || peer->end_ns)
			continue;
		describe(&ended, current);
		ended.end_ns = now;
		bpf_map_update_elem(&peers, &local, &ended, BPF_ANY);
	}
	return 0;
}

#endif
