/* SPDX-License-Identifier: GPL-2.0 */
/* What is shown of the module's state: /proc/onecopy and fdinfo. */
#ifndef OC_SHOW_H
#define OC_SHOW_H

#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/seq_file.h>

#include "core.h"
#include "knem.h"

void oc_show_init(void);
void oc_show_exit(void);

static inline pid_t oc_show_pid(struct pid *pid)
{
	return pid ? pid_nr_ns(pid, task_active_pid_ns(current)) : 0;
}

/*
 * The one after `seg`, whose reference is given up, or without it the first one of at least this
 * serial number; referenced. NULL: none. Of a region only the structure is held, not what it pins.
 */
struct oc_seg *oc_seg_next(struct oc_seg *seg, u64 serial);
struct oc_region *oc_region_next(struct oc_region *region, u64 serial);
typedef void oc_user_show_t(struct seq_file *m, kuid_t uid, const unsigned long *count);
void oc_users_each(struct seq_file *m, oc_user_show_t *show);

#endif
