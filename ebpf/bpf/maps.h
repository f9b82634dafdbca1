/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The maps and what lies in them. ebpf/src/bpf/layout.rs has the same structures for the reader: words of 8 or 4 bytes,
 * without gaps.
 */
#ifndef OC_MAPS_H
#define OC_MAPS_H

#include "mini.h"

/* Values up to 2^44 have a bin of their own; larger ones are counted in the last. */
#define BINS 176

/* Set before loading. */
volatile const u32 has_btf = 0;
volatile const u32 follows = 0;
volatile const u32 nr_readv = 310;
volatile const u32 nr_writev = 311;
volatile const u32 register_offsets[6] = { 112, 104, 96, 56, 72, 64 };
volatile const u64 page_size = 4096;
volatile const u64 initial_dev = 0;
volatile const u64 initial_ino = 0;

enum mechanism { CMA_READ, CMA_WRITE, XPMEM_ATTACH, XPMEM_FAULT, KNEM };

/* What is on. The reader turns bits off while the programs run. */
enum { WANT_LATENCY = 1, WANT_EVENTS = 2 };
struct config {
	u32 wants;
	/* The process that observes, by its id in the outermost namespace; 0 if it lives in another one. */
	u32 tracer;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct config);
} config SEC(".maps");

/* An id in a pid namespace. The namespace is 0 for the outermost one, and 1 if it is not known which one it is. */
struct local_id {
	u32 namespace;
	s32 pid;
};

struct pair_key {
	u32 caller;
	/* Which of the processes that had this id, one after the other. */
	u32 generation;
	struct local_id peer;
	u32 mechanism;
	/* Whether the caller wrote into the other's memory, where the mechanism does not say it. */
	u32 writes;
};
/* Calls are the sum of the sizes. */
struct pair {
	u64 bytes;
	u64 missing_bytes;
	u64 time_ns;
	u64 faults;
	u64 vectored;
	u64 pieces;
	u64 wait_ns;
	u64 flushes;
	/* When the peer was there: the first time and the last, since the machine began. */
	u64 first_ns;
	u64 last_ns;
	u64 latency[BINS];
	u64 sizes[BINS];
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct pair_key);
	__type(value, struct pair);
} pairs SEC(".maps");
/* A pair of zeros: too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pair);
} zero SEC(".maps");

struct error_key {
	struct pair_key pair;
	s32 errno;
	u32 reserved;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct error_key);
	__type(value, u64);
} errors SEC(".maps");

/*
 * The last call of each thread that ever made one, and whether it is under way. It stays until the thread ends: to put
 * it in and take it out each time would cost more than all the counting.
 */
struct call {
	u64 start_ns;
	u64 asked;
	u64 wait_ns;
	struct local_id peer;
	u32 mechanism;
	u32 generation;
	u32 pieces;
	u32 faults;
	u32 flushes;
	u32 under_way;
	u32 writes;
	/* Whose share of the table it takes. */
	u32 owner;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, u64);
	__type(value, struct call);
} calls SEC(".maps");

/* A process. */
struct task {
	u64 start_ns;
	u64 end_ns;
	/* When it began by the clock of /proc, which tells it from others of its id; 0 if not known. */
	u64 boot_ns;
	u32 tgid;
	u32 generation;
	/* Its own namespace, and its id there. */
	struct local_id local;
	u32 level;
	/* Its user, and its user namespace; 0 if that is not known. Both are kept for when it has ended. */
	u32 user;
	u32 user_namespace;
	u32 reserved;
	char comm[16];
};
/* Processes that made a call. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, struct task);
} tasks SEC(".maps");
/* Those of them that ended before another one got their id. */
struct past_key {
	u32 tgid;
	u32 generation;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct past_key);
	__type(value, struct task);
} past SEC(".maps");
/* Ids that calls gave. The process is filled in when it ends. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct local_id);
	__type(value, struct task);
} peers SEC(".maps");
/*
 * The processes of the job that is followed, and whether what they start is of it. Not so what the tracer starts, which
 * is here only while it measures itself.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, u32);
} followed SEC(".maps");

/* The lock of an address space that a thread waits for. */
struct waiting {
	u64 start_ns;
	u64 lock;
	/* The process whose address space it guards. */
	u32 owner;
	/* The user whose share of the table it takes. */
	u32 user;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, u64);
	__type(value, struct waiting);
} waiting SEC(".maps");
struct wait_key {
	u32 waiter;
	u32 owner;
};
struct wait {
	u64 waits;
	u64 total_ns;
	u64 longest_ns;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct wait_key);
	__type(value, struct wait);
} waits SEC(".maps");

/* A call of a module that is under way. */
struct ioctl {
	u64 start_ns;
	u64 at;
	u32 command;
	/* Whose share of the table it takes. */
	u32 owner;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct ioctl);
} ioctls SEC(".maps");

/* Tables that those who are observed fill. The reader says how many entries each has, and keeps the names' order. */
enum table { PAIRS, ERRORS, TASKS, PAST, PEERS, CALLS, WAITING, WAITS, IOCTLS, TABLES };
struct room {
	u64 entries;
	/* How many of them are taken. */
	u64 taken;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TABLES);
	__type(key, u32);
	__type(value, struct room);
} rooms SEC(".maps");
/* How many of them an owner has. */
struct share {
	u32 owner;
	u32 table;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct share);
	__type(value, u64);
} taken SEC(".maps");
/* By owner: what found no place. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

/* What happened to the programs themselves. */
enum count {
	EVENTS,
	DROPPED,
	NOT_COUNTED,
	COUNTS,
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} ring SEC(".maps");

enum record_kind { RECORD_COPY, RECORD_RUNTIME };
struct record {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 mechanism;
	u64 start_ns;
	u64 duration_ns;
	struct local_id peer;
	u64 asked;
	s64 result;
	u32 faults;
	u32 generation;
};

#define ARGS 6
struct runtime_record {
	u32 kind;
	u32 tgid;
	u32 tid;
	u32 site;
	u64 start_ns;
	s64 args[ARGS];
};

ALWAYS void count(enum count which)
{
	u32 key = which;
	u64 *value = bpf_map_lookup_elem(&counts, &key);

	if (value)
		*value += 1;
}

ALWAYS u32 wanted(void)
{
	u32 key = 0;
	struct config *now = bpf_map_lookup_elem(&config, &key);

	return now ? now->wants : 0;
}

ALWAYS u32 log2_of(u64 value)
{
	u32 log = 0;

	if (value >> 32) {
		value >>= 32;
		log += 32;
	}
	if (value >> 16) {
		value >>= 16;
		log += 16;
	}
	if (value >> 8) {
		value >>= 8;
		log += 8;
	}
	if (value >> 4) {
		value >>= 4;
		log += 4;
	}
	if (value >> 2) {
		value >>= 2;
		log += 2;
	}
	if (value >> 1)
		log += 1;
	return log;
}

/* The bin of ebpf/src/histogram.rs. */
ALWAYS u32 bin_of(u64 value)
{
	u32 log = log2_of(value | 4);
	u32 bin = value < 4 ? value : log * 4 + ((value >> (log - 2)) & 3);

	/* Keeps the bound where the verifier sees it. */
	asm volatile("" : "+r"(bin));
	return bin < BINS ? bin : BINS - 1;
}

#endif
