/* SPDX-License-Identifier: GPL-2.0 */
/* What kernel modules tell of attachments and copies: onecopy's by its tracepoints. Ids are those of the node. */
#ifndef OC_MODULE_H
#define OC_MODULE_H

#include "copies.h"

/* What one of them did for the current process. */
struct deed {
	enum mechanism mechanism;
	s32 peer;
	/* Whether it wrote into the peer's memory. */
	u32 writes;
	u64 asked;
	s64 result;
	/* 0 if it took no time that is known. */
	u64 start_ns;
};

ALWAYS void happened(struct deed *deed)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32;
	struct call call = { .mechanism = deed->mechanism, .writes = deed->writes, .asked = deed->asked };
	int timed = wanted() & (WANT_LATENCY | WANT_EVENTS);
	struct task *task;

	if (!is_followed(tgid))
		return;
	task = current_process(tgid);
	if (!task) {
		lose(owner_now());
		return;
	}
	call.peer.pid = deed->peer;
	call.generation = task->generation;
	call.start_ns = timed ? deed->start_ns : 0;
	add(&call, id, deed->result);
}

/* seg, addr, len, owner_addr, write, owner_tgid */
SEC("raw_tp/onecopy_attach")
int module_attach(struct raw_args *ctx)
{
	struct deed deed = {
		.mechanism = XPMEM_ATTACH,
		.peer = ctx->args[5],
		.asked = ctx->args[2],
		.result = ctx->args[2],
	};

	happened(&deed);
	return 0;
}

/* seg, addr, owner_addr, write, pages, err, owner_tgid */
SEC("raw_tp/onecopy_fault")
int module_fault(struct raw_args *ctx)
{
	/* Pages of the kernel's size, also where one entry shows many of them. */
	u64 bytes = (u32)ctx->args[4] * page_size;
	s64 err = (s32)ctx->args[5];

	struct deed deed = {
		.mechanism = XPMEM_FAULT,
		.peer = ctx->args[6],
		.asked = bytes,
		.result = err < 0 ? err : (s64)bytes,
	};

	happened(&deed);
	return 0;
}

ALWAYS void module_copied(struct raw_args *ctx, u32 writes)
{
	s64 err = (s32)ctx->args[4];
	struct deed deed = {
		.mechanism = KNEM,
		.peer = ctx->args[5],
		.writes = writes,
		.asked = ctx->args[2],
		.result = err < 0 ? err : (s64)ctx->args[3],
	};

	happened(&deed);
}

/* dst, src, len, done, err, peer, to_peer */
SEC("raw_tp/onecopy_copy")
int module_copy(struct raw_args *ctx)
{
	module_copied(ctx, (u8)ctx->args[6]);
	return 0;
}

/* A module that does not tell the way yet. */
SEC("raw_tp/onecopy_copy")
int module_copy_older(struct raw_args *ctx)
{
	module_copied(ctx, 0);
	return 0;
}

#endif
