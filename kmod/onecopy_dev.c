// SPDX-License-Identifier: GPL-2.0
/* /dev/onecopy, and the commands of a segment's descriptor. */
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#include "core.h"
#include "trace.h"

/* A struct that begins with its size as the caller knows it. *size: that. */
static int oc_read(void *to, size_t known, const void __user *from, u32 *size)
{
	int err;

	if (get_user(*size, (const u32 __user *)from))
		return -EFAULT;
	if (*size < sizeof(u64))
		return -EINVAL;
	if (*size > PAGE_SIZE)
		return -E2BIG;
	err = copy_struct_from_user(to, known, from, *size);
	return err;
}

static int oc_write(void __user *to, const void *from, size_t known, u32 size)
{
	return copy_to_user(to, from, min_t(size_t, known, size)) ? -EFAULT : 0;
}

/*
 * A descriptor for the file, told to the caller by `tell`, which may still fail. Consumes the file.
 */
static int oc_give_fd(struct file *file, void __user *to, void *arg, size_t known, u32 size,
		      s32 *slot)
{
	int fd, err;

	if (IS_ERR(file))
		return PTR_ERR(file);
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0) {
		fput(file);
		return fd;
	}
	*slot = fd;
	err = oc_write(to, arg, known, size);
	if (err) {
		put_unused_fd(fd);
		fput(file);
		return err;
	}
	fd_install(fd, file);
	return 0;
}

static long oc_dev_info(void __user *arg)
{
	struct onecopy_info i;
	u32 size;
	int err = oc_read(&i, sizeof(i), arg, &size);

	if (err)
		return err;
	i = (struct onecopy_info){
		.size = size,
		.abi = ONECOPY_ABI_VERSION,
		.features = ONECOPY_FEATURE_GENERATION | ONECOPY_FEATURE_COPY |
			    ONECOPY_FEATURE_PREFAULT,
		.window = oc_window_bytes(),
		.release = OC_VERSION,
	};
#ifdef OC_HMM
	i.features |= ONECOPY_FEATURE_SNAPSHOT;
#ifdef OC_HUGE
	if (READ_ONCE(oc_huge) && i.window == PMD_SIZE)
		i.features |= ONECOPY_FEATURE_HUGE;
#endif
#endif
	return oc_write(arg, &i, sizeof(i), size);
}

static long oc_dev_export(void __user *arg)
{
	struct onecopy_export e;
	struct oc_seg *seg;
	struct file *file;
	u32 size;
	int err = oc_read(&e, sizeof(e), arg, &size);

	if (err)
		return err;
	if ((e.flags & ~ONECOPY_EXPORT_WRITE) || e.reserved ||
	    size < offsetofend(struct onecopy_export, fd))
		return -EINVAL;
	if (e.length == ONECOPY_WHOLE) {
		if (e.address)
			return -EINVAL;
		e.length = TASK_SIZE & PAGE_MASK;
	}
	err = oc_check_pages(e.address, e.length, TASK_SIZE);
	if (!err)
		err = oc_may_export(e.address, e.length);
	if (err)
		return err;
	seg = oc_seg_create(e.address, e.length, 0);
	if (IS_ERR(seg))
		return PTR_ERR(seg);
	trace_onecopy_make(seg);
	file = oc_view_open(seg, e.flags & ONECOPY_EXPORT_WRITE, true);
	oc_seg_put(seg);
	return oc_give_fd(file, arg, &e, sizeof(e), size, &e.fd);
}

static long oc_dev_prefault(void __user *arg)
{
	struct onecopy_prefault p;
	u32 size;
	long err = oc_read(&p, sizeof(p), arg, &size);

	if (err)
		return err;
	if ((p.flags & ~ONECOPY_PREFAULT_WRITE) || size < sizeof(p))
		return -EINVAL;
	err = oc_prefault(p.address, p.length, p.flags & ONECOPY_PREFAULT_WRITE, &p.done);
	return oc_write(arg, &p, sizeof(p), size) ?: err;
}

/* fd -1: the caller's own memory. *file is the caller's to put. */
static int oc_side_of(struct oc_side *side, struct file **file, s32 fd, u64 at, u64 length,
		      bool write)
{
	struct oc_view *view;

	*file = NULL;
	side->seg = NULL;
	side->addr = at;
	if (fd == -1)
		return oc_within(at, length, TASK_SIZE) ? 0 : -EFAULT;
	*file = fget(fd);
	if (!*file)
		return -EBADF;
	view = oc_view_of(*file);
	if (!view || !oc_within(at, length, view->seg->size))
		return -EINVAL;
	if (write && !view->write)
		return -EACCES;
	side->seg = view->seg;
	side->addr = view->seg->start + at;
	return oc_seg_error(view->seg);
}

static long oc_dev_copy(void __user *arg)
{
	struct file *src_file, *dst_file = NULL;
	struct oc_side src, dst;
	struct onecopy_copy c;
	u32 size;
	long err = oc_read(&c, sizeof(c), arg, &size);

	if (err)
		return err;
	if (c.flags || size < sizeof(c))
		return -EINVAL;
	c.done = 0;
	err = oc_side_of(&src, &src_file, c.src_fd, c.src, c.length, false);
	if (!err)
		err = oc_side_of(&dst, &dst_file, c.dst_fd, c.dst, c.length, true);
	if (!err)
		err = oc_copy(&dst, &src, c.length, &c.done);
	if (src_file)
		fput(src_file);
	if (dst_file)
		fput(dst_file);
	return oc_write(arg, &c, sizeof(c), size) ?: err;
}

static long oc_dev_stats(void __user *arg)
{
	struct onecopy_stats s;
	u32 size;
	int err = oc_read(&s, sizeof(s), arg, &size);

	if (err)
		return err;
	if (s.reserved)
		return -EINVAL;
	s = (struct onecopy_stats){
		.size = size,
		.segments = atomic_long_read(&oc_gauge[OC_SEGMENTS]),
		.permits = atomic_long_read(&oc_gauge[OC_PERMITS]),
		.regions = atomic_long_read(&oc_gauge[OC_REGIONS]),
		.pinned_pages = atomic_long_read(&oc_pinned_pages),
		.attaches = oc_stat_sum(OC_ATTACHES),
		.faults = oc_stat_sum(OC_FAULTS),
		.retries = oc_stat_sum(OC_RETRIES),
		.mapped_small = oc_stat_sum(OC_SMALL),
		.mapped_huge = oc_stat_sum(OC_LARGE),
		.invalidations = oc_stat_sum(OC_INVALIDATIONS),
		.holes = oc_stat_sum(OC_HOLES),
		.copies = oc_stat_sum(OC_COPIES),
		.copied_bytes = oc_stat_sum(OC_COPIED_BYTES),
		.attachments = atomic_long_read(&oc_attachments),
		.spaces = atomic_long_read(&oc_spaces_held),
		.workers = atomic_long_read(&oc_gauge[OC_WORKERS]),
	};
	return oc_write(arg, &s, sizeof(s), size);
}

static long oc_dev_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;

	switch (cmd) {
	case ONECOPY_IOC_INFO:
		return oc_dev_info(user);
	case ONECOPY_IOC_EXPORT:
		return oc_dev_export(user);
	case ONECOPY_IOC_PREFAULT:
		return oc_dev_prefault(user);
	case ONECOPY_IOC_COPY:
		return oc_dev_copy(user);
	case ONECOPY_IOC_STATS:
		return oc_dev_stats(user);
	}
	return -ENOTTY;
}

/* ---- a segment's descriptor ---- */
static long oc_segment_info(struct oc_view *view, void __user *arg)
{
	struct onecopy_segment_info i;
	u32 size;
	int err = oc_read(&i, sizeof(i), arg, &size);

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
	return oc_write(arg, &i, sizeof(i), size);
}

static long oc_segment_restrict(struct oc_view *view, void __user *arg)
{
	struct onecopy_restrict r;
	u32 size;
	int err = oc_read(&r, sizeof(r), arg, &size);
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

long oc_segment_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
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
		oc_seg_kill(view->seg, ONECOPY_STATE_REVOKED);
		return 0;
	}
	return -ENOTTY;
}

/* No state belongs to this descriptor: segments have their own. */
static void oc_dev_fdinfo(struct seq_file *m, struct file *file)
{
	seq_printf(m, "onecopy-abi:\t%d\nonecopy-release:\t%s\n", ONECOPY_ABI_VERSION, OC_VERSION);
}

static const struct file_operations oc_dev_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = oc_dev_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
	.show_fdinfo = oc_dev_fdinfo,
};

struct miscdevice oc_onecopy_device = {
	.minor = OC_MINOR,
	.name = "onecopy",
	.fops = &oc_dev_fops,
	.mode = 0600,
};
