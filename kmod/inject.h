/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Points at which a kernel with fault injection can make us fail: /sys/kernel/debug/onecopy/fail_*.
 */
#ifndef OC_INJECT_H
#define OC_INJECT_H

#include <linux/kconfig.h>
#include <linux/types.h>

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

/* The allocation, or NULL if injected (then not evaluated). */
#define oc_may_fail(allocation) (oc_inject(OC_INJECT_ALLOC) ? NULL : (allocation))

#endif
