/* SPDX-License-Identifier: GPL-2.0 */
/* Copies by system calls: process_vm_readv and process_vm_writev, from their entry to their exit. */
#ifndef OC_COPIES_H
#define OC_COPIES_H

#include "tasks.h"

#define PIECES 8
/* The most pieces that the kernel takes. */
#define MAX_PIECES 1024
/* The most bytes that it copies in one call. */
#define MAX_BYTES 0x7ffff000ull
/* Not read: the program's memory is not there. */
#define UNREADABLE (~0ull)

struct vector {
	const struct iovec *at;
	u64 pieces;
};

/* More than any program has, and small enough that a sum has no overflow. */
#define LENGTH_MASK 0x7fffffffffffull

/* Not static, so that it is verified once by itself. */
__attribute__((noinline)) u64 bytes_of(u64 at, u64 pieces)
{
	struct iovec some[PIECES];
	u64 sum = 0;

	if (pieces > MAX_PIECES)
		return UNREADABLE;
	for (u32 chunk = 0; chunk < MAX_PIECES / PIECES; chunk++) {
		u64 begin = chunk * PIECES, left = pieces - begin;

		if (begin >= pieces)
			break;
		__builtin_memset(some, 0, sizeof(some));
		if (left > PIECES)
			left = PIECES;
		/* Verifiers up to 6.1 forget the bound: said so that the compiler cannot leave it out. */
		asm volatile("%0 &= 15" : "+r"(left));
		if (bpf_probe_read_user(some, left * sizeof(some[0]), (void *)(at + begin * sizeof(some[0]))))
			return UNREADABLE;
#pragma unroll
		for (u32 i = 0; i < PIECES; i++)
			sum += some[i].len & LENGTH_MASK;
	}
	return sum < MAX_BYTES ? sum : MAX_BYTES;
}

/* Most calls have one piece. */
ALWAYS u64 bytes_in(struct vector *vector)
{
	struct iovec one;

	if (vector->pieces != 1)
		return bytes_of((u64)vector->at, vector->pieces);
	if (bpf_probe_read_user(&one, sizeof(one), vector->at))
		return UNREADABLE;
	return one.len < MAX_BYTES ? one.len : MAX_BYTES;
}

static __attribute__((noinline)) struct pair *new_pair(struct pair_key *key)
{
	struct task nobody = {};
	struct local_id peer;
	struct pair *zeros;
	u32 first = 0, owner;

	if (!key)
		return 0;
	owner = owner_now();
	zeros = bpf_map_lookup_elem(&zero, &first);
	if (!zeros || !take(owner, PAIRS))
		return 0;
	/* Another thread made it at the same time, or there is no room. */
	if (bpf_map_update_elem(&pairs, key, zeros, BPF_NOEXIST))
		give(owner, PAIRS);
	/* An id that nobody has looked up yet. */
	peer = key->peer;
	if (!bpf_map_lookup_elem(&peers, &peer)) {
		if (!take(owner, PEERS))
			lose(owner);
		else if (bpf_map_update_elem(&peers, &peer, &nobody, BPF_NOEXIST))
			give(owner, PEERS);
	}
	return bpf_map_lookup_elem(&pairs, key);
}

static __attribute__((noinline)) void count_error(struct pair_key *key, s32 errno)
{
	struct error_key error = {};
	u64 *value, one = 1;
	u32 owner;

	if (!key)
		return;
	error.pair = *key;
	error.errno = errno;
	value = bpf_map_lookup_elem(&errors, &error);
	if (value) {
		__sync_fetch_and_add(value, 1);
		return;
	}
	owner = owner_now();
	if (!take(owner, ERRORS)) {
		lose(owner);
		return;
	}
	if (!bpf_map_update_elem(&errors, &error, &one, BPF_NOEXIST))
		return;
	give(owner, ERRORS);
	/* Another thread made it at the same time, or there is no room. */
	value = bpf_map_lookup_elem(&errors, &error);
	if (value)
		__sync_fetch_and_add(value, 1);
	else
		lose(owner);
}

/* The first call of a thread finds out whose it is. Null if it is not looked at. */
static __attribute__((noinline)) struct call *first_call(u64 id)
{
	u32 tgid = id >> 32;
	struct call call = {};
	struct task *task;

	if (!is_followed(tgid))
		return 0;
	call.owner = owner_now();
	task = current_process(tgid);
	if (task && take(call.owner, CALLS)) {
		call.peer.namespace = task->local.namespace;
		call.generation = task->generation;
		if (!bpf_map_update_elem(&calls, &id, &call, BPF_ANY))
			return bpf_map_lookup_elem(&calls, &id);
		give(call.owner, CALLS);
	}
	lose(call.owner);
	return 0;
}

ALWAYS void enter(enum mechanism mechanism, s32 peer, struct vector local, struct vector remote)
{
	u64 id = bpf_get_current_pid_tgid(), here, there;
	struct call *call = bpf_map_lookup_elem(&calls, &id);

	if (!call)
		call = first_call(id);
	if (!call)
		return;
	call->mechanism = mechanism;
	call->peer.pid = peer;
	call->pieces = remote.pieces;
	call->wait_ns = 0;
	call->faults = 0;
	call->flushes = 0;
	here = bytes_in(&local);
	there = bytes_in(&remote);
	if (here == UNREADABLE || there == UNREADABLE)
		call->asked = UNREADABLE;
	else
		call->asked = there < here ? there : here;
	call->under_way = 1;
	call->start_ns = wanted() & (WANT_LATENCY | WANT_EVENTS) ? bpf_ktime_get_ns() : 0;
}

#define ESRCH 3

ALWAYS void tell(struct call *call, u64 id, s64 result, u64 now)
{
	struct record *record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);

	if (!record) {
		u32 key = 0;
		struct config *now = bpf_map_lookup_elem(&config, &key);

		/* Nobody misses the calls by which the tracer measures itself. */
		if (!now || now->tracer != id >> 32)
			count(DROPPED);
		return;
	}
	record->kind = RECORD_COPY;
	record->tgid = id >> 32;
	record->tid = id;
	record->mechanism = call->mechanism;
	record->start_ns = call->start_ns;
	record->duration_ns = now - call->start_ns;
	record->peer = call->peer;
	record->asked = call->asked;
	record->result = result;
	record->faults = call->faults;
	record->generation = call->generation;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* Counts a copy that is over. */
ALWAYS void add(struct call *call, u64 id, s64 result)
{
	u32 wants = wanted();
	struct pair_key key = {
		.caller = id >> 32,
		.generation = call->generation,
		.peer = call->peer,
		.mechanism = call->mechanism,
		.writes = call->writes,
	};
	struct pair *pair = bpf_map_lookup_elem(&pairs, &key);
	u64 now = bpf_ktime_get_ns(), took = now - call->start_ns;
	u64 done = result > 0 ? result : 0;

	if (!pair)
		pair = new_pair(&key);
	if (!pair) {
		lose(owner_now());
		return;
	}
	count(EVENTS);
	if (call->asked == UNREADABLE)
		call->asked = done;
	__sync_fetch_and_add(&pair->sizes[bin_of(call->asked)], 1);
	if (done)
		__sync_fetch_and_add(&pair->bytes, done);
	if (call->asked > done)
		__sync_fetch_and_add(&pair->missing_bytes, call->asked - done);
	if (call->start_ns) {
		__sync_fetch_and_add(&pair->time_ns, took);
		__sync_fetch_and_add(&pair->latency[bin_of(took)], 1);
	}
	if (call->pieces > 1) {
		__sync_fetch_and_add(&pair->vectored, 1);
		__sync_fetch_and_add(&pair->pieces, call->pieces);
	}
	if (call->faults)
		__sync_fetch_and_add(&pair->faults, call->faults);
	if (call->wait_ns)
		__sync_fetch_and_add(&pair->wait_ns, call->wait_ns);
	if (call->flushes)
		__sync_fetch_and_add(&pair->flushes, call->flushes);
	if (result != -ESRCH) {
		if (!pair->first_ns)
			pair->first_ns = call->start_ns ? call->start_ns : now;
		pair->last_ns = now;
	}
	if (result < 0)
		count_error(&key, -result);
	if ((wants & WANT_EVENTS) && call->start_ns)
		tell(call, id, result, now);
}

ALWAYS void leave(s64 result)
{
	u64 id = bpf_get_current_pid_tgid();
	struct call *call = bpf_map_lookup_elem(&calls, &id);

	if (!call || !call->under_way)
		return;
	call->under_way = 0;
	add(call, id, result);
}

/* What tracepoints of system calls hand over. It has been so since there are any. */
struct enter_args {
	u64 common;
	u64 number;
	u64 args[6];
};
struct exit_args {
	u64 common;
	u64 number;
	s64 result;
};

ALWAYS void enter_by(struct enter_args *ctx, enum mechanism mechanism)
{
	struct vector local = { (void *)ctx->args[1], ctx->args[2] };
	struct vector remote = { (void *)ctx->args[3], ctx->args[4] };

	enter(mechanism, ctx->args[0], local, remote);
}

SEC("tracepoint/syscalls/sys_enter_process_vm_readv")
int readv_enter(struct enter_args *ctx)
{
	enter_by(ctx, CMA_READ);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_process_vm_writev")
int writev_enter(struct enter_args *ctx)
{
	enter_by(ctx, CMA_WRITE);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_process_vm_readv")
int readv_exit(struct exit_args *ctx)
{
	leave(ctx->result);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_process_vm_writev")
int writev_exit(struct exit_args *ctx)
{
	leave(ctx->result);
	return 0;
}

/* The same without tracefs. These run at every system call of the node. */

ALWAYS u64 argument(void *registers, u32 number)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), registers + register_offsets[number]);
	return value;
}

/* Numbers of system calls of 32-bit programs mean others. */
ALWAYS int is_narrow(void)
{
	struct task_struct *current = bpf_get_current_task();

	if (!has_btf || !HAS(current, thread_info.status))
		return 0;
	return READ(current, thread_info.status) & 2;
}

SEC("raw_tp/sys_enter")
int raw_enter(struct raw_args *ctx)
{
	void *registers = (void *)ctx->args[0];
	struct vector local, remote;
	u64 number = ctx->args[1];

	if ((number != nr_readv && number != nr_writev) || is_narrow())
		return 0;
	local.at = (void *)argument(registers, 1);
	local.pieces = argument(registers, 2);
	remote.at = (void *)argument(registers, 3);
	remote.pieces = argument(registers, 4);
	enter(number == nr_readv ? CMA_READ : CMA_WRITE, argument(registers, 0), local, remote);
	return 0;
}

volatile const u32 number_offset = 120;

SEC("raw_tp/sys_exit")
int raw_exit(struct raw_args *ctx)
{
	u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), (void *)ctx->args[0] + number_offset);
	if (number != nr_readv && number != nr_writev)
		return 0;
	leave(ctx->args[1]);
	return 0;
}

#endif
