/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Probe points of the runtime. Each place of each probe has a number, its cookie, and what its note says of where its
 * arguments are. The notes are read outside.
 */
#ifndef OC_RUNTIME_H
#define OC_RUNTIME_H

#include "tasks.h"

enum where { CONSTANT, REGISTER, MEMORY };
struct argument {
	/* A constant, or what is added to an address. */
	s64 value;
	u8 where;
	/* By how much a value is shifted up and down again, so that only its bits remain; how an index is shifted. */
	u8 shift;
	u8 is_signed;
	u8 index_shift;
	/* Where a register lies in what the kernel saved; no index, if it is negative. */
	s16 base;
	s16 index;
};
struct site {
	u32 count;
	u32 reserved;
	struct argument args[ARGS];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct site);
} sites SEC(".maps");

ALWAYS s64 value_of(void *ctx, struct argument *arg)
{
	u64 value = arg->value, base = 0, index = 0;

	if (arg->where != CONSTANT) {
		bpf_probe_read_kernel(&base, sizeof(base), ctx + arg->base);
		if (arg->where == REGISTER) {
			value = base;
		} else {
			if (arg->index >= 0)
				bpf_probe_read_kernel(&index, sizeof(index), ctx + arg->index);
			value = base + (index << (arg->index_shift & 7)) + arg->value;
			if (bpf_probe_read_user(&value, sizeof(value), (void *)value))
				value = 0;
		}
	}
	value <<= arg->shift & 63;
	return arg->is_signed ? (s64)value >> (arg->shift & 63) : (s64)(value >> (arg->shift & 63));
}

SEC("uprobe")
int runtime_probe(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 key = bpf_get_attach_cookie(ctx);
	struct runtime_record *record;
	struct site *site;

	if (!is_followed(id >> 32) || !(wanted() & WANT_EVENTS))
		return 0;
	site = bpf_map_lookup_elem(&sites, &key);
	if (!site)
		return 0;
	record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	if (!record) {
		count(DROPPED);
		return 0;
	}
	record->kind = RECORD_RUNTIME;
	record->tgid = id >> 32;
	record->tid = id;
	record->site = key;
	record->start_ns = bpf_ktime_get_ns();
	for (u32 i = 0; i < ARGS; i++)
		record->args[i] = i < site->count ? value_of(ctx, &site->args[i]) : 0;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

#endif
