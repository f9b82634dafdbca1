// SPDX-License-Identifier: GPL-2.0
/*
 * For tests only. A process that opens /dev/onecopy-notify has a notifier in its address space
 * until the file is closed. A process that runs a virtual machine has one, too. To register one
 * takes the locks of all mappings of the address space at once. To map it gives a page that counts
 * as a shadow stack. To read it registers an interval notifier for a moment, as drivers of devices
 * do that use a program's memory, and waits until nobody changes what that watches.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "compat.h"

struct oc_notify {
	struct mmu_notifier notifier;
	struct mm_struct *mm;
	struct mutex lock; /* of what follows */
	unsigned long changes;
	struct page *page;
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
	n->page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!n->page) {
		kfree(n);
		return -ENOMEM;
	}
	memset(page_address(n->page), 0x5a, PAGE_SIZE);
	err = mmu_notifier_register(&n->notifier, n->mm);
	if (err) {
		__free_page(n->page);
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
	__free_page(n->page);
	kfree(n);
	return 0;
}

/*
 * What an emulated processor has no shadow stacks for: a mapping that says it is one. Its page is
 * given to any reader by get_user_pages(), and shown by its entries, as that of a real one.
 */
static int oc_notify_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct oc_notify *n = file->private_data;

	if (!VM_SHADOW_STACK)
		return -EOPNOTSUPP;
	if (vma->vm_end - vma->vm_start != PAGE_SIZE || (vma->vm_flags & VM_WRITE))
		return -EINVAL;
	vm_flags_clear(vma, VM_MAYWRITE);
	vm_flags_set(vma, VM_SHADOW_STACK);
	return vm_insert_page(vma, vma->vm_start, n->page);
}

static bool oc_interval_changes(struct mmu_interval_notifier *notifier,
				const struct mmu_notifier_range *range, unsigned long seq)
{
	mmu_interval_set_seq(notifier, seq);
	return true;
}

static const struct mmu_interval_notifier_ops oc_interval_ops = {
	.invalidate = oc_interval_changes,
};

/* Of the page at the buffer's address. The wait ends with the changes, and for nothing else. */
static ssize_t oc_notify_read(struct file *file, char __user *to, size_t size, loff_t *pos)
{
	struct mmu_interval_notifier notifier = {};
	unsigned long page = (unsigned long)to & PAGE_MASK;
	int err;

	err = mmu_interval_notifier_insert(&notifier, current->mm, page, PAGE_SIZE,
					   &oc_interval_ops);
	if (err)
		return err;
	mmu_interval_read_begin(&notifier);
	mmu_interval_notifier_remove(&notifier);
	return 0;
}

static const struct file_operations oc_notify_fops = {
	.owner = THIS_MODULE,
	.open = oc_notify_open,
	.read = oc_notify_read,
	.mmap = oc_notify_mmap,
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
