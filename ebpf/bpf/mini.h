/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the programs need of the kernel's types and of BPF's library: slices of structures, and the numbers of helpers.
 * The fields of these structures are found when the programs are loaded. No header of the system is included.
 */
#ifndef OC_MINI_H
#define OC_MINI_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS static inline __attribute__((always_inline))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Definitions of maps are types: each value of a field is the length of an array. */
#define __uint(name, value) int (*name)[value]
#define __type(name, value) value *name

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_RB_NO_WAKEUP = 1 };

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static u64 (*bpf_get_current_uid_gid)(void) = (void *)15;
static long (*bpf_get_current_comm)(void *buf, u32 size) = (void *)16;
static struct task_struct *(*bpf_get_current_task)(void) = (void *)35;
static long (*bpf_probe_read_user)(void *dst, u32 size, const void *from) = (void *)112;
static long (*bpf_probe_read_kernel)(void *dst, u32 size, const void *from) = (void *)113;
static long (*bpf_get_ns_current_pid_tgid)(u64 dev, u64 ino, void *info, u32 size) = (void *)120;
static void *(*bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static u64 (*bpf_get_attach_cookie)(void *ctx) = (void *)174;

/* Slices. The order and the places of fields are those of the running kernel. */
#define CORE __attribute__((preserve_access_index))

struct ns_common {
	u32 inum;
} CORE;

struct pid_namespace {
	struct ns_common ns;
} CORE;

struct upid {
	s32 nr;
	struct pid_namespace *ns;
} CORE;

struct pid {
	u32 level;
	struct upid numbers[1];
} CORE;

typedef struct {
	s32 counter;
} CORE atomic_t;

struct signal_struct {
	atomic_t live;
} CORE;

struct thread_info {
	u32 status;
} CORE;

struct mm_struct;

typedef struct {
	u32 val;
} CORE kuid_t;

struct user_namespace {
	struct user_namespace *parent;
	s32 level;
	kuid_t owner;
	struct ns_common ns;
} CORE;

struct cred {
	kuid_t uid;
	struct user_namespace *user_ns;
} CORE;

struct task_struct {
	struct thread_info thread_info;
	s32 pid;
	s32 tgid;
	u64 start_time;
	u64 start_boottime;
	struct pid *thread_pid;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	struct cred *real_cred;
	struct mm_struct *mm;
	char comm[16];
} CORE;

struct rw_semaphore {
	u64 count;
} CORE;

struct mm_struct {
	struct task_struct *owner;
	struct rw_semaphore mmap_lock;
} CORE;

struct iovec {
	u64 base;
	u64 len;
};

struct raw_args {
	u64 args[8];
};

/* Reads a field of a slice: 0 if it cannot be read. */
#define READ(from, field)                                                                          \
	({                                                                                         \
		typeof((from)->field) value__;                                                     \
		if (bpf_probe_read_kernel(&value__, sizeof(value__), &(from)->field))              \
			__builtin_memset(&value__, 0, sizeof(value__));                            \
		value__;                                                                           \
	})
/* Whether the running kernel has the field. */
#define HAS(from, field) __builtin_preserve_field_info((from)->field, 2)

#endif
