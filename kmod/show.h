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

/**
 * oc_show_pid() - the number of a process as lists show it
 * @pid: the process, or NULL
 *
 * Return: its number in the reader's pid namespace; 0: it has none there.
 */
static inline pid_t oc_show_pid(struct pid *pid)
{
	return pid ? pid_nr_ns(pid, task_active_pid_ns(current)) : 0;
}

struct oc_seg *oc_seg_next(struct oc_seg *seg, u64 serial);
struct oc_region *oc_region_next(struct oc_region *region, u64 serial);
/* Shows what a user has, by enum oc_quota; called under a spinlock. */
typedef void oc_user_show_t(struct seq_file *m, kuid_t uid, const unsigned long *count);
void oc_users_each(struct seq_file *m, oc_user_show_t *show);

#endif
