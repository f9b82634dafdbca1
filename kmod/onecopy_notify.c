// SPDX-License-Identifier: GPL-2.0
/*
 * For tests only: who opens /dev/onecopy-notify has a notifier in its address space until the file
 * is closed, as a process has that runs a virtual machine. To register one takes the locks of all
 * mappings of the address space at once.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

struct oc_notify {
	struct mmu_notifier notifier;
	struct mm_struct *mm;
	struct mutex lock;
	unsigned long changes;
};

static int oc_notify_start(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct oc_notify *n = container_of(notifier, struct oc_notify, notifier);

	if (!mmu_notifier_range_blockable(range))
		return 0;
	mutex_lock(&n->lock);
	n->changes++;
	mutex_unlock(&n->lock);
	return 0;
}

static const struct mmu_notifier_ops oc_notify_ops = { .invalidate_range_start = oc_notify_start };

static int oc_notify_open(struct inode *inode, struct file *file)
{
	struct oc_notify *n = kzalloc(sizeof(*n), GFP_KERNEL);
	int err;

	if (!n)
		return -ENOMEM;
	mutex_init(&n->lock);
	n->notifier.ops = &oc_notify_ops;
	n->mm = current->mm;
	err = mmu_notifier_register(&n->notifier, n->mm);
	if (err) {
		kfree(n);
		return err;
	}
	mmgrab(n->mm);
	file->private_data = n;
	return 0;
}

static int oc_notify_release(struct inode *inode, struct file *file)
{
	struct oc_notify *n = file->private_data;

	mmu_notifier_unregister(&n->notifier, n->mm);
	mmdrop(n->mm);
	kfree(n);
	return 0;
}

static const struct file_operations oc_notify_fops = {
	.owner = THIS_MODULE,
	.open = oc_notify_open,
	.release = oc_notify_release,
};

static struct miscdevice oc_notify_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "onecopy-notify",
	.fops = &oc_notify_fops,
	.mode = 0600,
};

module_misc_device(oc_notify_device);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Notifiers of address spaces, for tests of the onecopy module");
