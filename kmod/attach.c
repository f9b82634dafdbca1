// SPDX-License-Identifier: GPL-2.0
/* Views: open files of a segment, their commands, the VMAs that they make; DETACH and RELEASE. */
#include <linux/anon_inodes.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "core.h"
#include "inject.h"
#include "show.h"
#include "trace.h"

static int oc_view_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct oc_view *view = file->private_data;
	struct oc_seg *seg = view->seg;
	u64 off = (u64)vma->vm_pgoff << PAGE_SHIFT;
	int err;

	/*
	 * VM_MAYSHARE: VM_SHARED is dropped where the file may only be read. VM_MTE: the kernel
	 * refuses it, too, but some arm64 ones only afterwards, and then close no VMA.
	 */
	if (!(vma->vm_flags & VM_MAYSHARE) || (vma->vm_flags & VM_MTE))
		return -EINVAL;
	if (vma->vm_pgoff >= OC_GENERATION_PGOFF)
		return oc_generation_mmap(seg, vma);
	if (!oc_within(off, vma->vm_end - vma->vm_start, seg->size))
		return -EINVAL;
	err = oc_attachment_create(seg, vma);
	if (err)
		return err;
	vma->vm_pgoff += seg->start >> PAGE_SHIFT;
	vm_flags_clear(vma, VM_MAYEXEC | VM_EXEC);
	vm_flags_set(vma, OC_VM_FLAGS);
	vma->vm_ops = &oc_vm_ops;
	oc_count(OC_ATTACHES, 1);
	trace_onecopy_attach(seg, vma->vm_start, vma->vm_end - vma->vm_start, seg->start + off,
			     view->write, pid_nr(seg->owner));
	return 0;
}

/* Congruent with the owner's address modulo a window, so that huge mappings fit. */
static unsigned long oc_view_area(struct file *file, unsigned long addr, unsigned long len,
				  unsigned long pgoff, unsigned long flags)
{
	struct oc_view *view = file->private_data;
	unsigned long want, at, extra = OC_WINDOW_BYTES(PMD_SIZE);

	if (addr || (flags & MAP_FIXED) || len < extra || pgoff >= OC_GENERATION_PGOFF ||
	    len + extra < len)
		extra = 0;
	at = oc_get_unmapped_area(addr, len + extra, flags);
	if (IS_ERR_VALUE(at) && extra) {
		extra = 0;
		at = oc_get_unmapped_area(addr, len, flags);
	}
	if (IS_ERR_VALUE(at) || !extra)
		return at;
	want = view->seg->start + (pgoff << PAGE_SHIFT);
	return at + ((want - at) & (extra - 1));
}

static int oc_view_release(struct inode *inode, struct file *file)
{
	struct oc_view *view = file->private_data;

	oc_seg_put(view->seg);
	kfree(view);
	return 0;
}

static void oc_view_fdinfo(struct seq_file *m, struct file *file)
{
	struct oc_view *view = file->private_data;
	struct oc_seg *seg = view->seg;
	unsigned long attachments, bytes;

	mutex_lock(&seg->lock);
	attachments = seg->attached;
	bytes = seg->attached_bytes;
	mutex_unlock(&seg->lock);
	seq_printf(m, "onecopy-owner:\t%d\nonecopy-address:\t0x%lx\nonecopy-length:\t%lu\n",
		   oc_show_pid(seg->owner), seg->start, seg->size);
	seq_printf(m, "onecopy-rights:\t%s\nonecopy-state:\t%s\n", view->write ? "rw" : "r",
		   oc_seg_state(seg));
	seq_printf(m, "onecopy-attachments:\t%lu\nonecopy-attached:\t%lu\n", attachments, bytes);
}

static long oc_segment_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

static const struct file_operations oc_view_fops = {
	.owner = THIS_MODULE,
	.mmap = oc_view_mmap,
	.get_unmapped_area = oc_view_area,
	.release = oc_view_release,
	.unlocked_ioctl = oc_segment_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
	.show_fdinfo = oc_view_fdinfo,
};

/**
 * oc_view_open() - make a file of a segment
 * @seg: the segment, of which the file gets its own reference
 * @write: the file may be mapped to write
 * @nosignal: a hole is the hole page and a count, not SIGBUS
 *
 * Rights are those of the file, so what was opened to read can never be mapped to write.
 *
 * Return: the file, or ERR_PTR() of an error.
 */
struct file *oc_view_open(struct oc_seg *seg, bool write, bool nosignal)
{
	struct oc_view *view = oc_may_fail(kmalloc(sizeof(*view), GFP_KERNEL_ACCOUNT));
	struct file *file;

	if (!view)
		return ERR_PTR(-ENOMEM);
	view->seg = seg;
	view->write = write;
	view->nosignal = nosignal;
	view->one_taken = 0;
	file = anon_inode_getfile("[onecopy]", &oc_view_fops, view, write ? O_RDWR : O_RDONLY);
	if (IS_ERR(file)) {
		kfree(view);
		return file;
	}
	oc_seg_get(seg);
	/*
	 * Set before anybody else can see the file; the same inode for all, as of every anonymous
	 * file. Once: the kernel reads it at any time for the files that there are.
	 */
	mutex_lock(&seg->lock);
	if (!seg->mapping.host)
		seg->mapping.host = file_inode(file);
	mutex_unlock(&seg->lock);
	file->f_mapping = &seg->mapping;
	return file;
}

/**
 * oc_view_of() - the view of a file
 * @file: any file
 *
 * Return: the view, or NULL: it is no file of a segment.
 */
struct oc_view *oc_view_of(struct file *file)
{
	return file->f_op == &oc_view_fops ? file->private_data : NULL;
}

/* ---- commands ---- */
static long oc_segment_info(struct oc_view *view, void __user *arg)
{
	struct onecopy_segment_info i;
	u32 size;
	int err = oc_arg_read(&i, sizeof(i), arg, &size);

	if (err)
		return err;
	i = (struct onecopy_segment_info){
		.size = size,
		.flags = (view->write ? ONECOPY_SEGMENT_WRITE : 0) |
			 (oc_seg_error(view->seg) ? ONECOPY_SEGMENT_DEAD : 0) |
			 (view->seg->mm == current->mm ? ONECOPY_SEGMENT_MINE : 0),
		.address = view->seg->start,
		.length = view->seg->size,
	};
	return oc_arg_write(arg, &i, sizeof(i), size);
}

static long oc_segment_restrict(struct oc_view *view, void __user *arg)
{
	struct onecopy_restrict r;
	u32 size;
	int err = oc_arg_read(&r, sizeof(r), arg, &size);
	bool write;

	if (err)
		return err;
	write = r.flags & ONECOPY_EXPORT_WRITE;
	if ((r.flags & ~ONECOPY_EXPORT_WRITE) || r.reserved ||
	    size < offsetofend(struct onecopy_restrict, fd))
		return -EINVAL;
	if (write && !view->write)
		return -EACCES;
	return oc_give_fd(oc_view_open(view->seg, write, view->nosignal), arg, &r, sizeof(r), size,
			  &r.fd);
}

static long oc_segment_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct oc_view *view = file->private_data;
	void __user *user = (void __user *)arg;

	switch (cmd) {
	case ONECOPY_IOC_SEGMENT_INFO:
		return oc_segment_info(view, user);
	case ONECOPY_IOC_RESTRICT:
		return oc_segment_restrict(view, user);
	case ONECOPY_IOC_REVOKE:
		if (view->seg->mm != current->mm)
			return -EPERM;
		oc_revoke(view->seg);
		return 0;
	}
	return -ENOTTY;
}

/* ---- what was attached, given up ---- */

/**
 * oc_detach() - unmap an attachment of the caller
 * @addr: an address in it
 *
 * Pieces into which mprotect() or the like split it belong together, but not a neighbour of the
 * same file. Where nothing is mapped there is nothing to do, as in the original XPMEM module.
 *
 * Context: may sleep. The caller holds no mmap lock.
 * Return: 0, or -EINVAL: no attachment, -EINTR: killed, or the error of munmap().
 */
int oc_detach(unsigned long addr)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma, *near;
	unsigned long start, end;
	int err;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = find_vma(mm, addr);
	if (!vma || vma->vm_start > addr || !oc_vma_is_attachment(vma)) {
		err = vma && vma->vm_start <= addr ? -EINVAL : 0;
		mmap_read_unlock(mm);
		return err;
	}
	start = vma->vm_start;
	end = vma->vm_end;
	oc_attachment_clear(vma);
	while ((near = find_vma(mm, start - 1)) && near->vm_end == start &&
	       oc_vma_is_attachment(near) && near->vm_private_data == vma->vm_private_data) {
		start = near->vm_start;
		oc_attachment_clear(near);
	}
	while ((near = find_vma(mm, end)) && near->vm_start == end &&
	       oc_vma_is_attachment(near) && near->vm_private_data == vma->vm_private_data) {
		end = near->vm_end;
		oc_attachment_clear(near);
	}
	mmap_read_unlock(mm);
	/*
	 * Between the locks another thread may map something else here. As with munmap(), a program
	 * that unmaps what it maps at the same time gets what it asked for.
	 */
	err = vm_munmap(start, end - start);
	trace_onecopy_detach(start, end - start);
	return err;
}

/**
 * oc_detach_file() - unmap all attachments that the caller made through a file
 * @file: a file of a segment
 *
 * Context: may sleep. The caller holds no mmap lock.
 * Return: 0, or -EINTR: killed, or the error of munmap().
 */
int oc_detach_file(struct file *file)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	unsigned long addr = 0;
	int err = 0;

	while (!err) {
		unsigned long start = 0, end = 0;

		if (mmap_read_lock_killable(mm))
			return -EINTR;
		while ((vma = find_vma(mm, addr))) {
			addr = vma->vm_end;
			if (oc_vma_is_attachment(vma) && vma->vm_file == file) {
				start = vma->vm_start;
				end = vma->vm_end;
				oc_attachment_clear(vma);
				break;
			}
		}
		mmap_read_unlock(mm);
		if (!end)
			break;
		err = vm_munmap(start, end - start);
		trace_onecopy_detach(start, end - start);
	}
	return err;
}
