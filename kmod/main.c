// SPDX-License-Identifier: GPL-2.0
/* Registering the devices; load and unload. Parameters stand where they are used. */
#include <linux/miscdevice.h>
#include <linux/module.h>
#ifdef CONFIG_PAGE_TABLE_CHECK
#include <linux/page_table_check.h>
#endif

#include "core.h"
#include "inject.h"
#include "show.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

static struct miscdevice *const oc_devices[] = { &oc_xpmem_device, &oc_onecopy_device,
						 &oc_knem_device };

static int __init oc_init(void)
{
	int err, i;

#ifdef CONFIG_PAGE_TABLE_CHECK
	if (!static_branch_likely(&page_table_check_disabled)) {
		pr_err("onecopy: page table checks are enforced (page_table_check=on), which forbid to map a page of one process into another\n");
		return -EOPNOTSUPP;
	}
#endif
	oc_changes_init();
	err = oc_zap_init();
	if (err)
		return err;
	err = oc_fault_init();
	if (err)
		goto zap;
	err = oc_deferred_init();
	if (err)
		goto fault;
	oc_inject_init();
	for (i = 0; i < ARRAY_SIZE(oc_devices); i++) {
		err = misc_register(oc_devices[i]);
		if (err == -EBUSY && oc_devices[i]->minor != MISC_DYNAMIC_MINOR) {
			oc_devices[i]->minor = MISC_DYNAMIC_MINOR;
			err = misc_register(oc_devices[i]);
		}
		if (err) {
			pr_err("onecopy: /dev/%s cannot be registered (error %d): is another module that offers it loaded?\n",
			       oc_devices[i]->name, -err);
			goto devices;
		}
	}
	oc_show_init();
	oc_set_ready();
	return 0;
devices:
	while (i--)
		misc_deregister(oc_devices[i]);
	oc_inject_exit();
	oc_knem_exit();
	oc_deferred_exit();
fault:
	oc_fault_exit();
zap:
	oc_zap_exit();
	return err;
}

static void __exit oc_exit(void)
{
	int i;

	oc_show_exit();
	for (i = 0; i < ARRAY_SIZE(oc_devices); i++)
		misc_deregister(oc_devices[i]);
	oc_inject_exit();
	oc_zap_exit();
	/* Until then the end of an address space may have the last reference of a region. */
	oc_changes_exit();
	oc_deferred_exit();
	oc_knem_exit();
	oc_fault_exit();
}

module_init(oc_init);
module_exit(oc_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Memory of one process, attached by another: XPMEM and KNEM interfaces, and grants as file descriptors");
MODULE_VERSION(OC_VERSION);
MODULE_ALIAS_MISCDEV(OC_MINOR);
MODULE_ALIAS("devname:onecopy");
