// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/xpmem: the XPMEM interface. State belongs to the open file and is used by the address space
 * that opened it.
 */
#include <linux/idr.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "core.h"
#include "include/uapi/xpmem.h"
#include "inject.h"
#include "show.h"
#include "trace.h"

struct oc_made {
	struct list_head link;
	struct oc_seg *seg;
};

struct oc_permit {
	s64 id;
	struct file *file; /* the view through which this permit attaches */
	struct oc_user *user;
};

struct oc_xpmem {
	struct mm_struct *mm; /* who opened it: only compared, it may have no memory any more */
	struct pid *opener;
	struct mutex lock; /* of the two that follow */
	struct list_head made;
	struct idr permits;
};

static void oc_permit_free(struct oc_permit *permit)
{
	fput(permit->file);
	oc_uncharge(permit->user, OC_PERMITS);
	kfree(permit);
}

static void oc_made_free(struct oc_made *made)
{
	oc_revoke(made->seg);
	oc_seg_put(made->seg);
	kfree(made);
}

static long oc_xpmem_make(struct oc_xpmem *x, struct xpmem_cmd_make __user *arg)
{
	struct xpmem_cmd_make m;
	struct oc_made *made;
	long err;

	if (copy_from_user(&m, arg, sizeof(m)))
		return -EFAULT;
	if (m.permit_type != XPMEM_PERMIT_MODE || (m.permit_value & ~0777ULL) ||
	    m.vaddr >= TASK_SIZE)
		return -EINVAL;
	if (m.size == XPMEM_MAXADDR_SIZE)
		m.size = TASK_SIZE - m.vaddr;
	err = oc_check_pages(m.vaddr, m.size, TASK_SIZE);
	if (err)
		return err;

	made = kmalloc(sizeof(*made), GFP_KERNEL_ACCOUNT);
	if (!made)
		return -ENOMEM;
	made->seg = oc_export(m.vaddr, m.size, m.permit_value);
	if (IS_ERR(made->seg)) {
		err = PTR_ERR(made->seg);
		kfree(made);
		return err;
	}
	trace_onecopy_make(made->seg);
	oc_seg_publish(made->seg);
	m.segid = made->seg->id;
	if (copy_to_user(arg, &m, sizeof(m))) {
		oc_made_free(made);
		return -EFAULT;
	}
	mutex_lock(&x->lock);
	list_add(&made->link, &x->made);
	mutex_unlock(&x->lock);
	return 0;
}

/* As the original XPMEM module answers: EINVAL for what is not a valid id (zero or negative). */
static int oc_unknown_id(s64 id)
{
	return id <= 0 ? -EINVAL : -ENOENT;
}

static long oc_xpmem_remove(struct oc_xpmem *x, struct xpmem_cmd_remove __user *arg)
{
	struct xpmem_cmd_remove r;
	struct oc_made *made, *found = NULL;
	struct oc_seg *seg;

	if (copy_from_user(&r, arg, sizeof(r)))
		return -EFAULT;
	mutex_lock(&x->lock);
	list_for_each_entry(made, &x->made, link) {
		if (made->seg->id == r.segid) {
			list_del(&made->link);
			found = made;
			break;
		}
	}
	mutex_unlock(&x->lock);
	if (found) {
		oc_made_free(found);
		return 0;
	}
	seg = oc_seg_find(r.segid);
	if (!seg)
		return oc_unknown_id(r.segid);
	oc_seg_put(seg);
	return -EACCES;
}

/* A permit that no id names yet. */
static struct oc_permit *oc_permit_make(struct oc_seg *seg, bool write)
{
	struct oc_permit *permit;
	struct oc_user *user;
	int err;

	user = oc_charge(OC_PERMITS);
	if (IS_ERR(user))
		return ERR_CAST(user);
	permit = oc_may_fail(kmalloc(sizeof(*permit), GFP_KERNEL_ACCOUNT));
	if (!permit) {
		err = -ENOMEM;
		goto uncharge;
	}
	permit->user = user;
	permit->file = oc_view_open(seg, write, false);
	if (!IS_ERR(permit->file))
		return permit;
	err = PTR_ERR(permit->file);
	kfree(permit);
uncharge:
	oc_uncharge(user, OC_PERMITS);
	return ERR_PTR(err);
}

/* Under an id, which the caller gets first: until then nothing finds the permit by it. */
static long oc_permit_publish(struct oc_xpmem *x, struct oc_permit *permit,
			      struct xpmem_cmd_get *g, struct xpmem_cmd_get __user *arg)
{
	int slot;
	long err;

	mutex_lock(&x->lock);
	slot = idr_alloc(&x->permits, NULL, 1, 0, GFP_KERNEL_ACCOUNT);
	if (slot > 0)
		permit->id = oc_permit_encode(slot, get_random_u32());
	mutex_unlock(&x->lock);
	if (slot < 0)
		return slot;
	g->apid = permit->id;
	err = copy_to_user(arg, g, sizeof(*g)) ? -EFAULT : 0;
	mutex_lock(&x->lock);
	if (err)
		idr_remove(&x->permits, slot);
	else
		idr_replace(&x->permits, permit, slot);
	mutex_unlock(&x->lock);
	return err;
}

static long oc_xpmem_get(struct oc_xpmem *x, struct xpmem_cmd_get __user *arg)
{
	struct oc_permit *permit;
	struct xpmem_cmd_get g;
	struct oc_seg *seg;
	bool write;
	long err;

	if (copy_from_user(&g, arg, sizeof(g)))
		return -EFAULT;
	if ((g.flags != XPMEM_RDONLY && g.flags != XPMEM_RDWR) ||
	    g.permit_type != XPMEM_PERMIT_MODE || g.permit_value)
		return -EINVAL;
	write = g.flags == XPMEM_RDWR;
	seg = oc_seg_find(g.segid);
	if (!seg)
		return oc_unknown_id(g.segid);
	err = oc_seg_allows(seg, write) ? 0 : -EACCES;
	trace_onecopy_get(seg, write, err);
	if (err)
		goto put;
	permit = oc_permit_make(seg, write);
	if (IS_ERR(permit)) {
		err = PTR_ERR(permit);
		goto put;
	}
	err = oc_permit_publish(x, permit, &g, arg);
	if (err)
		oc_permit_free(permit);
put:
	oc_seg_put(seg);
	return err;
}

static struct oc_permit *oc_permit_find(struct oc_xpmem *x, s64 id)
{
	struct oc_permit *permit = idr_find(&x->permits, oc_permit_slot(id));

	return permit && permit->id == id ? permit : NULL;
}

static long oc_xpmem_release_permit(struct oc_xpmem *x, struct xpmem_cmd_release __user *arg)
{
	struct xpmem_cmd_release r;
	struct oc_permit *permit;
	int err;

	if (copy_from_user(&r, arg, sizeof(r)))
		return -EFAULT;
	mutex_lock(&x->lock);
	permit = oc_permit_find(x, r.apid);
	if (permit)
		idr_remove(&x->permits, oc_permit_slot(r.apid));
	mutex_unlock(&x->lock);
	if (!permit)
		return oc_unknown_id(r.apid);
	/* The permit ends, and what it attached with it. */
	err = oc_detach_file(permit->file);
	oc_permit_free(permit);
	return err;
}

/* MAP_FIXED replaces anything but an attachment or the source. */
static int oc_place_check(const struct oc_seg *seg, unsigned long offset, unsigned long start,
			  unsigned long len)
{
	unsigned long source = seg->start + offset;
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	unsigned long end = start + len;
	int err;

	err = oc_check_pages(start, len, TASK_SIZE);
	if (err)
		return err;
	if (seg->mm == mm && start < source + len && source < end)
		return -EINVAL;
	if (mmap_read_lock_killable(mm))
		return -EINTR;
	while (!err && start < end && (vma = find_vma(mm, start)) && vma->vm_start < end) {
		err = oc_vma_is_attachment(vma) ? -EINVAL : 0;
		start = vma->vm_end;
	}
	mmap_read_unlock(mm);
	return err;
}

static long oc_xpmem_attach(struct oc_xpmem *x, struct xpmem_cmd_attach __user *arg)
{
	struct xpmem_cmd_attach a;
	struct oc_permit *permit;
	struct file *file = NULL;
	struct oc_view *view;
	unsigned long at;
	u64 len;
	long err;

	if (copy_from_user(&a, arg, sizeof(a)))
		return -EFAULT;
	len = oc_round_pages(a.size);
	if (!len || a.offset < 0 || (a.offset & ~PAGE_MASK) || (a.vaddr & ~PAGE_MASK))
		return -EINVAL;
	mutex_lock(&x->lock);
	permit = oc_permit_find(x, a.apid);
	if (permit)
		file = get_file(permit->file);
	mutex_unlock(&x->lock);
	if (!file)
		return oc_unknown_id(a.apid);
	view = file->private_data;
	err = -EINVAL;
	if (!oc_within(a.offset, len, view->seg->size))
		goto out;
	err = oc_seg_error(view->seg) ? -ENOENT : 0;
	if (err)
		goto out;
	err = a.vaddr ? oc_place_check(view->seg, a.offset, a.vaddr, len) : 0;
	if (err)
		goto out;
	at = vm_mmap(file, a.vaddr, len, PROT_READ | (view->write ? PROT_WRITE : 0),
		     MAP_SHARED | (a.vaddr ? MAP_FIXED : 0), a.offset);
	err = IS_ERR_VALUE(at) ? (long)at : 0;
	if (err)
		goto out;
	a.vaddr = at;
	if (copy_to_user(arg, &a, sizeof(a))) {
		vm_munmap(at, len);
		err = -EFAULT;
	}
out:
	fput(file);
	return err;
}

static long oc_xpmem_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct oc_xpmem *x = file->private_data;
	void __user *user = (void __user *)arg;
	struct xpmem_cmd_detach d;

	if (cmd == XPMEM_CMD_VERSION)
		return XPMEM_CURRENT_VERSION;
	if (_IOC_TYPE(cmd) != XPMEM_IOC_MAGIC || _IOC_NR(cmd) > _IOC_NR(XPMEM_CMD_FORK_END))
		return -ENOTTY;
	/* A child that inherited the file must open its own. */
	if (x->mm != current->mm)
		return -XPMEM_ERRNO_NOPROC;
	switch (cmd) {
	case XPMEM_CMD_MAKE:
		return oc_xpmem_make(x, user);
	case XPMEM_CMD_REMOVE:
		return oc_xpmem_remove(x, user);
	case XPMEM_CMD_GET:
		return oc_xpmem_get(x, user);
	case XPMEM_CMD_RELEASE:
		return oc_xpmem_release_permit(x, user);
	case XPMEM_CMD_ATTACH:
		return oc_xpmem_attach(x, user);
	case XPMEM_CMD_DETACH:
		if (copy_from_user(&d, user, sizeof(d)))
			return -EFAULT;
		return oc_detach(d.vaddr);
	case XPMEM_CMD_FORK_BEGIN:
	case XPMEM_CMD_FORK_END:
		return 0; /* nothing is pinned, so fork() needs no help */
	}
	return -ENOTTY;
}

static int oc_xpmem_open(struct inode *inode, struct file *file)
{
	struct oc_xpmem *x;

	if (!oc_is_ready())
		return -ENODEV;
	x = oc_may_fail(kzalloc(sizeof(*x), GFP_KERNEL_ACCOUNT));
	if (!x)
		return -ENOMEM;
	mutex_init(&x->lock);
	INIT_LIST_HEAD(&x->made);
	idr_init(&x->permits);
	x->opener = get_pid(task_tgid(current));
	x->mm = current->mm;
	if (x->mm)
		mmgrab(x->mm);
	file->private_data = x;
	return 0;
}

static int oc_xpmem_release(struct inode *inode, struct file *file)
{
	struct oc_xpmem *x = file->private_data;
	struct oc_made *made, *next;
	struct oc_permit *permit;
	int slot;

	list_for_each_entry_safe(made, next, &x->made, link)
		oc_made_free(made);
	idr_for_each_entry(&x->permits, permit, slot)
		oc_permit_free(permit);
	idr_destroy(&x->permits);
	if (x->mm)
		mmdrop(x->mm);
	put_pid(x->opener);
	kfree(x);
	return 0;
}

static void oc_xpmem_fdinfo(struct seq_file *m, struct file *file)
{
	struct oc_xpmem *x = file->private_data;
	unsigned long segments = 0, bytes = 0, permits = 0;
	struct oc_permit *permit;
	struct oc_made *made;
	int slot;

	mutex_lock(&x->lock);
	list_for_each_entry(made, &x->made, link) {
		segments++;
		bytes += made->seg->size;
	}
	idr_for_each_entry(&x->permits, permit, slot)
		permits++;
	mutex_unlock(&x->lock);
	seq_printf(m, "xpmem-opener:\t%d\n", oc_show_pid(x->opener));
	seq_printf(m, "xpmem-segments:\t%lu\n", segments);
	seq_printf(m, "xpmem-bytes:\t%lu\nxpmem-permits:\t%lu\n", bytes, permits);
}

/*
 * No compat_ioctl: a 32-bit libxpmem has size_t and off_t of other widths in its structs, and no
 * command carries its size in its number.
 */
static const struct file_operations oc_xpmem_fops = {
	.owner = THIS_MODULE,
	.open = oc_xpmem_open,
	.release = oc_xpmem_release,
	.unlocked_ioctl = oc_xpmem_ioctl,
	.llseek = noop_llseek,
	.show_fdinfo = oc_xpmem_fdinfo,
};

struct miscdevice oc_xpmem_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "xpmem",
	.fops = &oc_xpmem_fops,
	.mode = 0600,
};
