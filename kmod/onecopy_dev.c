// SPDX-License-Identifier: GPL-2.0
/* /dev/onecopy. */
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#include "core.h"
#include "trace.h"

static long oc_dev_info(void __user *arg)
{
	struct onecopy_info i;
	u32 size;
	int err = oc_arg_read(&i, sizeof(i), arg, &size);

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
	return oc_arg_write(arg, &i, sizeof(i), size);
}

static long oc_dev_export(void __user *arg)
{
	struct onecopy_export e;
	struct oc_seg *seg;
	struct file *file;
	u32 size;
	int err = oc_arg_read(&e, sizeof(e), arg, &size);

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
	if (err)
		return err;
	seg = oc_export(e.address, e.length, 0);
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
	long err = oc_arg_read(&p, sizeof(p), arg, &size);

	if (err)
		return err;
	if ((p.flags & ~ONECOPY_PREFAULT_WRITE) || size < sizeof(p))
		return -EINVAL;
	err = oc_prefault(p.address, p.length, p.flags & ONECOPY_PREFAULT_WRITE, &p.done);
	return oc_arg_write(arg, &p, sizeof(p), size) ?: err;
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
	long err = oc_arg_read(&c, sizeof(c), arg, &size);

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
	return oc_arg_write(arg, &c, sizeof(c), size) ?: err;
}

static long oc_dev_stats(void __user *arg)
{
	struct onecopy_stats s;
	u32 size;
	int err = oc_arg_read(&s, sizeof(s), arg, &size);

	if (err)
		return err;
	if (s.reserved)
		return -EINVAL;
	s = (struct onecopy_stats){
		.size = size,
		.segments = READ_ONCE(oc_gauge[OC_SEGMENTS]),
		.permits = READ_ONCE(oc_gauge[OC_PERMITS]),
		.regions = READ_ONCE(oc_gauge[OC_REGIONS]),
		.pinned_pages = atomic_long_read(&oc_pinned_pages),
		.attaches = oc_stat_sum(OC_ATTACHES),
		.faults = oc_stat_sum(OC_FAULTS),
		.retries = oc_stat_sum(OC_RETRIES),
		.mapped_small = oc_stat_sum(OC_MAPPED_SMALL),
		.mapped_huge = oc_stat_sum(OC_MAPPED_HUGE),
		.invalidations = oc_stat_sum(OC_INVALIDATIONS),
		.holes = oc_stat_sum(OC_HOLES),
		.copies = oc_stat_sum(OC_COPIES),
		.copied_bytes = oc_stat_sum(OC_COPIED_BYTES),
		.attachments = atomic_long_read(&oc_attachments),
		.spaces = atomic_long_read(&oc_spaces_held),
		.workers = READ_ONCE(oc_gauge[OC_WORKERS]),
	};
	return oc_arg_write(arg, &s, sizeof(s), size);
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

/* No state belongs to this descriptor: segments have their own. */
static int oc_dev_open(struct inode *inode, struct file *file)
{
	return oc_is_ready() ? 0 : -ENODEV;
}

static void oc_dev_fdinfo(struct seq_file *m, struct file *file)
{
	seq_printf(m, "onecopy-abi:\t%d\nonecopy-release:\t%s\n", ONECOPY_ABI_VERSION, OC_VERSION);
}

static const struct file_operations oc_dev_fops = {
	.owner = THIS_MODULE,
	.open = oc_dev_open,
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
