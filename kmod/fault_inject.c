// SPDX-License-Identifier: GPL-2.0
/* Fault injection points; nothing of this is built without CONFIG_FAULT_INJECTION. */
#include <linux/debugfs.h>
#include <linux/fault-inject.h>

#include "inject.h"

static DECLARE_FAULT_ATTR(oc_fail_alloc);
static DECLARE_FAULT_ATTR(oc_fail_owner_lock);
static DECLARE_FAULT_ATTR(oc_fail_retry);
static DECLARE_FAULT_ATTR(oc_fail_pin);

static struct {
	const char *name;
	struct fault_attr *attr;
} const oc_points[OC_INJECT_POINTS] = {
	[OC_INJECT_ALLOC] = { "fail_alloc", &oc_fail_alloc },
	[OC_INJECT_OWNER_LOCK] = { "fail_owner_lock", &oc_fail_owner_lock },
	[OC_INJECT_RETRY] = { "fail_retry", &oc_fail_retry },
	[OC_INJECT_PIN] = { "fail_pin", &oc_fail_pin },
};

static struct dentry *oc_dir;

/**
 * oc_inject() - whether to fail here
 * @point: the point
 *
 * Return: true if fault injection says so.
 */
bool oc_inject(enum oc_inject_point point)
{
	return should_fail(oc_points[point].attr, 1);
}

/**
 * oc_inject_init() - make the files of the points, when the module is loaded
 */
void oc_inject_init(void)
{
#ifdef CONFIG_FAULT_INJECTION_DEBUG_FS
	int i;

	oc_dir = debugfs_create_dir("onecopy", NULL);
	for (i = 0; i < OC_INJECT_POINTS; i++)
		fault_create_debugfs_attr(oc_points[i].name, oc_dir, oc_points[i].attr);
#endif
}

/**
 * oc_inject_exit() - remove the files of the points, when the module is unloaded
 */
void oc_inject_exit(void)
{
	debugfs_remove_recursive(oc_dir);
}
