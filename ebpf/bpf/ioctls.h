/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Attachments and copies by modules that tell nothing of theirs: XPMEM's and KNEM's own. What they are called with is
 * their interface, which all of them have. So kprobes watch their calls where they answer ioctls, and read the
 * structures of these calls. Whose a segment, a permit or a region is follows from the call that made it.
 */
#ifndef OC_IOCTLS_H
#define OC_IOCTLS_H

#include "module.h"

/* The calls, as kmod/include/uapi has them. */
#define XPMEM(number) (u32)('x' << 8 | (number))
#define KNEM_CALL(direction, number, type) ((u32)(direction) << 30 | (u32)sizeof(type) << 16 | 'K' << 8 | (number))
#define KNEM_OUT 1u
#define KNEM_IN 2u
#define KNEM_FAILED 2

struct xpmem_make {
	u64 address;
	u64 size;
	u64 permit[2];
	u64 segment;
};
struct xpmem_get {
	u64 segment;
	u64 permit[2];
	u64 id;
};
struct xpmem_attach {
	u64 id;
	u64 offset;
	u64 size;
	u64 address;
	u64 unused;
};
struct knem_region {
	u64 pieces_at;
	u32 pieces;
	u32 flags;
	u64 protection;
	u64 cookie;
};
struct knem_copy {
	u64 source;
	u64 source_offset;
	u64 sink;
	u64 sink_offset;
	u32 flags;
	u32 status;
	u64 unused;
};
struct knem_bounded {
	u64 source;
	u64 source_offset;
	u64 sink;
	u64 sink_offset;
	u64 length;
	u32 flags;
	u32 status;
	u64 unused;
};
struct knem_inline {
	u64 pieces_at;
	u32 pieces;
	u32 write;
	u64 cookie;
	u64 offset;
	u32 flags;
	u32 status;
	u64 unused;
};
struct knem_inline_bounded {
	u64 pieces_at;
	u32 pieces;
	u32 write;
	u64 cookie;
	u64 offset;
	u64 length;
	u32 flags;
	u32 status;
	u64 unused;
};

/* What a number of the interface stands for. Numbers of one kind may be those of another. */
enum { SEGMENT, PERMIT, REGION };
struct thing {
	u64 number;
	u64 kind;
};
struct owner {
	u32 tgid;
	u32 reserved;
	u64 length;
};
/* Processes end without giving numbers back: the oldest go. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct thing);
	__type(value, struct owner);
} owners SEC(".maps");

ALWAYS void keep(u64 kind, u64 number, u32 tgid, u64 length)
{
	struct thing thing = { .number = number, .kind = kind };
	struct owner owner = { .tgid = tgid, .length = length };

	if (bpf_map_update_elem(&owners, &thing, &owner, BPF_ANY))
		lose(owner_now());
}

/* Null if it was made before anybody observed. */
ALWAYS struct owner *owner_of_thing(u64 kind, u64 number)
{
	struct thing thing = { .number = number, .kind = kind };

	return bpf_map_lookup_elem(&owners, &thing);
}

#define WHOLE_PAGES(bytes) (((bytes) + page_size - 1) & ~(page_size - 1))

static __attribute__((noinline)) void xpmem_done(struct ioctl *ioctl, s64 result, u32 tgid)
{
	struct owner *owner;

	if (!ioctl)
		return;
	if (ioctl->command == XPMEM(1)) {
		struct xpmem_make make;

		if (result == 0 && !bpf_probe_read_user(&make, sizeof(make), (void *)ioctl->at))
			keep(SEGMENT, make.segment, tgid, make.size);
	} else if (ioctl->command == XPMEM(3)) {
		struct xpmem_get get;

		if (result != 0 || bpf_probe_read_user(&get, sizeof(get), (void *)ioctl->at))
			return;
		owner = owner_of_thing(SEGMENT, get.segment);
		if (owner)
			keep(PERMIT, get.id, owner->tgid, owner->length);
	} else if (ioctl->command == XPMEM(5)) {
		struct xpmem_attach attach;
		struct deed deed = {};
		u64 bytes;

		if (bpf_probe_read_user(&attach, sizeof(attach), (void *)ioctl->at))
			return;
		owner = owner_of_thing(PERMIT, attach.id);
		/* What is attached begins and ends at pages, wherever the segment begins. */
		bytes = WHOLE_PAGES(WHOLE_PAGES(attach.size) + (result ? 0 : attach.address & (page_size - 1)));
		deed.mechanism = XPMEM_ATTACH;
		deed.peer = owner ? owner->tgid : 0;
		deed.asked = bytes;
		deed.result = result < 0 ? result : (s64)bytes;
		deed.start_ns = ioctl->start_ns;
		happened(&deed);
	}
}

/* What of a region lies behind an offset. */
ALWAYS u64 left_of(struct owner *owner, u64 offset)
{
	if (!owner)
		return UNREADABLE;
	return owner->length > offset ? owner->length - offset : 0;
}

ALWAYS u64 least(u64 a, u64 b)
{
	return a < b ? a : b;
}

#define EFAULT 14

ALWAYS void copied(struct ioctl *ioctl, struct owner *peer, u32 writes, u64 bytes, u32 status, s64 result)
{
	struct deed deed = {
		.mechanism = KNEM,
		.peer = peer ? peer->tgid : 0,
		.writes = writes,
		.start_ns = ioctl->start_ns,
	};

	if (result >= 0 && status == KNEM_FAILED)
		result = -EFAULT;
	/* Both regions are from before anybody observed, and the call has no bound. */
	if (bytes == UNREADABLE)
		bytes = 0;
	deed.asked = bytes;
	deed.result = result < 0 ? result : (s64)bytes;
	happened(&deed);
}

ALWAYS void copied_regions(struct ioctl *ioctl, struct knem_copy *copy, u64 bound, u32 status, s64 result, u32 tgid)
{
	struct owner *source = owner_of_thing(REGION, copy->source);
	struct owner *sink = owner_of_thing(REGION, copy->sink);
	u64 bytes = least(left_of(source, copy->source_offset), left_of(sink, copy->sink_offset));
	/* Of two regions one is the caller's. Of the one that is not known, that is said if the other is not. */
	u32 writes = source ? source->tgid == tgid : sink && sink->tgid != tgid;

	copied(ioctl, writes ? sink : source, writes, least(bytes, bound), status, result);
}

ALWAYS void copied_inline(struct ioctl *ioctl, struct knem_inline *copy, u64 bound, u32 status, s64 result)
{
	struct owner *region = owner_of_thing(REGION, copy->cookie);
	u64 bytes = least(bytes_of(copy->pieces_at, copy->pieces), left_of(region, copy->offset));

	copied(ioctl, region, copy->write != 0, least(bytes, bound), status, result);
}

static __attribute__((noinline)) void knem_done(struct ioctl *ioctl, s64 result, u32 tgid)
{
	union {
		struct knem_region region;
		struct knem_copy copy;
		struct knem_bounded bounded;
		struct knem_inline in;
		struct knem_inline_bounded in_bounded;
	} call;
	void *at;

	if (!ioctl)
		return;
	at = (void *)ioctl->at;
	__builtin_memset(&call, 0, sizeof(call));
	if (ioctl->command == KNEM_CALL(KNEM_OUT | KNEM_IN, 0x21, call.region)) {
		if (result == 0 && !bpf_probe_read_user(&call.region, sizeof(call.region), at))
			keep(REGION, call.region.cookie, tgid, bytes_of(call.region.pieces_at, call.region.pieces));
	} else if (ioctl->command == KNEM_CALL(KNEM_IN, 0x32, call.copy)) {
		if (!bpf_probe_read_user(&call.copy, sizeof(call.copy), at))
			copied_regions(ioctl, &call.copy, UNREADABLE, call.copy.status, result, tgid);
	} else if (ioctl->command == KNEM_CALL(KNEM_IN, 0x34, call.bounded)) {
		if (!bpf_probe_read_user(&call.bounded, sizeof(call.bounded), at))
			copied_regions(ioctl, &call.copy, call.bounded.length, call.bounded.status, result, tgid);
	} else if (ioctl->command == KNEM_CALL(KNEM_IN, 0x33, call.in)) {
		if (!bpf_probe_read_user(&call.in, sizeof(call.in), at))
			copied_inline(ioctl, &call.in, UNREADABLE, call.in.status, result);
	} else if (ioctl->command == KNEM_CALL(KNEM_IN, 0x35, call.in_bounded)) {
		if (!bpf_probe_read_user(&call.in_bounded, sizeof(call.in_bounded), at))
			copied_inline(ioctl, &call.in, call.in_bounded.length, call.in_bounded.status, result);
	}
}

/* file, command, argument */
SEC("kprobe")
int ioctl_enter(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), command = 0;
	struct ioctl ioctl = { .start_ns = bpf_ktime_get_ns() }, *left;

	bpf_probe_read_kernel(&command, sizeof(command), ctx + register_offsets[1]);
	bpf_probe_read_kernel(&ioctl.at, sizeof(ioctl.at), ctx + register_offsets[2]);
	ioctl.command = command;
	/* One whose end the kernel missed has its place. */
	left = bpf_map_lookup_elem(&ioctls, &id);
	ioctl.owner = left ? left->owner : owner_now();
	if (!left && !take(ioctl.owner, IOCTLS))
		lose(ioctl.owner);
	else if (bpf_map_update_elem(&ioctls, &id, &ioctl, BPF_ANY)) {
		if (!left)
			give(ioctl.owner, IOCTLS);
		lose(ioctl.owner);
	}
	return 0;
}

volatile const u32 result_offset = 80;

SEC("kretprobe")
int ioctl_exit(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	struct ioctl *found = bpf_map_lookup_elem(&ioctls, &id), ioctl;
	s64 result = 0;

	if (!found)
		return 0;
	ioctl = *found;
	bpf_map_delete_elem(&ioctls, &id);
	give(ioctl.owner, IOCTLS);
	bpf_probe_read_kernel(&result, sizeof(result), ctx + result_offset);
	if ((ioctl.command >> 8 & 0xff) == 'x')
		xpmem_done(&ioctl, result, id >> 32);
	else
		knem_done(&ioctl, result, id >> 32);
	return 0;
}

#endif
