// SPDX-License-Identifier: GPL-2.0
/*
 * For tests only. A process that opens /dev/onecopy-notify has a notifier in its address space
 * until the file is closed. A process that runs a virtual machine has one, too. To register one
 * takes the locks of all mappings of the address space at once. To map it gives a page that counts
 * as a shadow stack. To write three words is a command: which one, an address of the writer, and
 * how many bytes from there on it is about.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "compat.h"

enum oc_notify_command {
	OC_NOTIFY_HOLD, /* a change of these bytes begins no sooner than they are let go */
	OC_NOTIFY_LET_GO,
	OC_NOTIFY_INTERVAL, /* an interval notifier of the page, as drivers of devices have them */
	OC_NOTIFY_READ, /* what such a driver does before it looks at the page */
	OC_NOTIFY_LOCK, /* the page's lock is taken until the file is closed */
	/*
	 * The entries of these bytes are counted when the address space ends. A device that walks
	 * its page tables until then would find them. read() reports how many there were.
	 */
	OC_NOTIFY_WALK,
};

struct oc_notify {
	struct mmu_notifier notifier;
	struct mmu_interval_notifier interval;
	struct mm_struct *mm;
	unsigned long held; /* where changes wait; 0: nowhere */
	unsigned long held_end;
	unsigned long walked; /* by the end; 0: nothing */
	unsigned long walked_end;
	long entries; /* that were there; -1: the end has not come */
	wait_queue_head_t let_go;
	struct mutex lock; /* of what follows */
	unsigned long changes;
	struct page *page;
	struct page *locked;
};

static int oc_notify_start(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct oc_notify *n = container_of(notifier, struct oc_notify, notifier);

	unsigned long held;

	if (!mmu_notifier_range_blockable(range))
		return 0;
	mutex_lock(&n->lock);
	n->changes++;
	mutex_unlock(&n->lock);
	held = READ_ONCE(n->held);
	if (held && range->start < READ_ONCE(n->held_end) && held < range->end)
		wait_event(n->let_go, !READ_ONCE(n->held));
	return 0;
}

static int oc_notify_entry(pte_t *ptep, unsigned long addr, void *entries)
{
	*(long *)entries += !!pte_present(ptep_get(ptep));
	return 0;
}

static void oc_notify_release(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	struct oc_notify *n = container_of(notifier, struct oc_notify, notifier);
	long entries = 0;

	if (!n->walked)
		return;
	if (apply_to_page_range(mm, n->walked, n->walked_end - n->walked, oc_notify_entry,
				&entries))
		return;
	WRITE_ONCE(n->entries, entries);
}

static const struct mmu_notifier_ops oc_notify_ops = {
	.invalidate_range_start = oc_notify_start,
	.release = oc_notify_release,
};

static bool oc_notify_interval(struct mmu_interval_notifier *interval,
			       const struct mmu_notifier_range *range, unsigned long seq)
{
	mmu_interval_set_seq(interval, seq);
	return true;
}

static const struct mmu_interval_notifier_ops oc_notify_interval_ops = {
	.invalidate = oc_notify_interval,
};

static int oc_notify_lock(struct oc_notify *n, unsigned long addr)
{
	struct page *page;
	int got = get_user_pages_fast(addr, 1, FOLL_WRITE, &page);

	if (got != 1)
		return got ?: -EFAULT;
	mutex_lock(&n->lock);
	if (n->locked) {
		mutex_unlock(&n->lock);
		put_page(page);
		return -EBUSY;
	}
	lock_page(page);
	n->locked = page;
	mutex_unlock(&n->lock);
	return 0;
}

static ssize_t oc_notify_write(struct file *file, const char __user *buf, size_t count,
			       loff_t *pos)
{
	struct oc_notify *n = file->private_data;
	u64 words[3];
	int err = 0;

	if (count != sizeof(words))
		return -EINVAL;
	if (copy_from_user(words, buf, sizeof(words)))
		return -EFAULT;
	switch (words[0]) {
	case OC_NOTIFY_HOLD:
		WRITE_ONCE(n->held_end, words[1] + words[2]);
		WRITE_ONCE(n->held, words[1]);
		break;
	case OC_NOTIFY_LET_GO:
		WRITE_ONCE(n->held, 0);
		wake_up_all(&n->let_go);
		break;
	case OC_NOTIFY_INTERVAL:
		if (n->interval.mm || current->mm != n->mm)
			return -EINVAL;
		err = mmu_interval_notifier_insert(&n->interval, n->mm, words[1] & PAGE_MASK,
						   PAGE_SIZE, &oc_notify_interval_ops);
		if (err)
			n->interval.mm = NULL;
		break;
	case OC_NOTIFY_READ:
		if (!n->interval.mm)
			return -EINVAL;
		mmu_interval_read_begin(&n->interval);
		break;
	case OC_NOTIFY_WALK:
		n->walked_end = words[1] + words[2];
		n->walked = words[1];
		break;
	case OC_NOTIFY_LOCK:
		err = oc_notify_lock(n, words[1]);
		break;
	default:
		return -EINVAL;
	}
	return err ?: count;
}

static ssize_t oc_notify_read(struct file *file, char __user *buf, size_t count, loff_t *pos)
{
	struct oc_notify *n = file->private_data;
	s64 entries = READ_ONCE(n->entries);

	if (count != sizeof(entries))
		return -EINVAL;
	return copy_to_user(buf, &entries, sizeof(entries)) ? -EFAULT : count;
}

static int oc_notify_open(struct inode *inode, struct file *file)
{
	struct oc_notify *n = kzalloc(sizeof(*n), GFP_KERNEL);
	int err;

	if (!n)
		return -ENOMEM;
	mutex_init(&n->lock);
	init_waitqueue_head(&n->let_go);
	n->notifier.ops = &oc_notify_ops;
	n->mm = current->mm;
	n->entries = -1;
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

static int oc_notify_close(struct inode *inode, struct file *file)
{
	struct oc_notify *n = file->private_data;

	WRITE_ONCE(n->held, 0);
	wake_up_all(&n->let_go);
	if (n->locked) {
		unlock_page(n->locked);
		put_page(n->locked);
	}
	if (n->interval.mm)
		mmu_interval_notifier_remove(&n->interval);
	mmu_notifier_unregister(&n->notifier, n->mm);
	mmdrop(n->mm);
	__free_page(n->page);
	kfree(n);
	return 0;
}

/*
 * What an emulated CPU has no shadow stacks for: a mapping that says it is one. Its page is
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

static const struct file_operations oc_notify_fops = {
	.owner = THIS_MODULE,
	.open = oc_notify_open,
	.read = oc_notify_read,
	.write = oc_notify_write,
	.mmap = oc_notify_mmap,
	.release = oc_notify_close,
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
