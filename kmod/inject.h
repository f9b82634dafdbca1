/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Points at which a kernel with fault injection can make us fail: /sys/kernel/debug/onecopy/fail_*.
 */
#ifndef OC_INJECT_H
#define OC_INJECT_H

#include <linux/kconfig.h>
#include <linux/types.h>

/**
 * enum oc_inject_point - where a kernel with fault injection can make the module fail
 * @OC_INJECT_ALLOC: an allocation fails
 * @OC_INJECT_OWNER_LOCK: the owner's mmap lock seems taken
 * @OC_INJECT_RETRY: a snapshot seems stale
 * @OC_INJECT_PIN: a pin fails
 * @OC_INJECT_POINTS: how many points there are
 */
enum oc_inject_point {
	OC_INJECT_ALLOC,
	OC_INJECT_OWNER_LOCK,
	OC_INJECT_RETRY,
	OC_INJECT_PIN,
	OC_INJECT_POINTS
};

#if IS_ENABLED(CONFIG_FAULT_INJECTION)
bool oc_inject(enum oc_inject_point point);
void oc_inject_init(void);
void oc_inject_exit(void);
#else
static inline bool oc_inject(enum oc_inject_point point)
{
	return false;
}

static inline void oc_inject_init(void)
{
}

static inline void oc_inject_exit(void)
{
}
#endif

/**
 * oc_may_fail() - an allocation that fault injection can make fail
 * @allocation: an expression, which is not evaluated if it is to fail
 *
 * Return: what it allocated, or NULL.
 */
#define oc_may_fail(allocation) (oc_inject(OC_INJECT_ALLOC) ? NULL : (allocation))

#endif
