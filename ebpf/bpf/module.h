/* SPDX-License-Identifier: GPL-2.0 */
/* What kernel modules tell of attachments and copies: onecopy's by its tracepoints. Ids are those of the node. */
#ifndef OC_MODULE_H
#define OC_MODULE_H

#include "copies.h"

/* It began at that time, or took none that is known. */
ALWAYS void happened_since(enum mechanism mechanism, s32 peer, u64 asked, s64 result, u64 start_ns)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32;
	struct call call = { .mechanism = mechanism, .asked = asked };
	int timed = wanted() & (WANT_LATENCY | WANT_EVENTS);
	struct task *task;

	if (!is_followed(tgid))
		return;
	task = current_process(tgid);
	if (!task) {
		count(NOT_COUNTED);
		return;
	}
	call.peer.pid = peer;
	call.generation = task->generation;
	call.start_ns = timed ? start_ns : 0;
	add(&call, id, result);
}

ALWAYS void happened(enum mechanism mechanism, s32 peer, u64 asked, s64 result)
{
	happened_since(mechanism, peer, asked, result, 0);
}

/* seg, addr, len, owner, write, tgid */
SEC("raw_tp/onecopy_attach")
int module_attach(struct raw_args *ctx)
{
	happened(XPMEM_ATTACH, ctx->args[5], ctx->args[2], ctx->args[2]);
	return 0;
}

/* seg, addr, owner, write, pages, err, tgid */
SEC("raw_tp/onecopy_fault")
int module_fault(struct raw_args *ctx)
{
	/* Pages of the kernel's size, also where one entry shows many of them. */
	u64 bytes = (u32)ctx->args[4] * page_size;
	s64 err = (s32)ctx->args[5];

	happened(XPMEM_FAULT, ctx->args[6], bytes, err < 0 ? err : (s64)bytes);
	return 0;
}

/* dst, src, len, done, err, peer */
SEC("raw_tp/onecopy_copy")
int module_copy(struct raw_args *ctx)
{
	s64 err = (s32)ctx->args[4];

	happened(KNEM, ctx->args[5], ctx->args[2], err < 0 ? err : (s64)ctx->args[3]);
	return 0;
}

#endif
