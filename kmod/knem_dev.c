// SPDX-License-Identifier: GPL-2.0
/* /dev/knem: the KNEM interface. */
#include <linux/miscdevice.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "inject.h"
#include "knem.h"
#include "show.h"

/* A copy, whatever command asked for it. */
struct oc_transfer {
	u64 src_cookie; /* or dst_cookie, for a local vector */
	u64 dst_cookie;
	u64 src_off;
	u64 dst_off;
	struct oc_iovec *local;
	u32 locals;
	bool inlined;
	bool to_local;
	u64 length; /* at most */
	u32 flags;
	u32 index;
	/* the result is wanted in the array even when the copy was done at once */
	bool status_always;
	u32 status; /* out */
	/* Set by oc_transfer_prepare(); oc_transfer_end() drops them, also after errors. */
	struct oc_region *dst;
	struct oc_region *src;
	struct oc_work *work; /* the worker is to copy */
};

/*
 * Programs set flags of other commands, and flags that later versions know, on every command: of a
 * copy those in KNEM_FLAG_ANY_COPY_MASK count. Any of the asynchronous ones asks for the status in
 * the array. Only KNEM_FLAG_MEMCPYTHREAD lets the worker copy: the others are about an engine,
 * which there is none of.
 */
static bool oc_transfer_is_threaded(const struct oc_transfer *t)
{
	return t->flags & KNEM_FLAG_MEMCPYTHREAD;
}

static bool oc_transfer_notifies(const struct oc_transfer *t)
{
	return t->flags & KNEM_FLAG_NOTIFY_FD;
}

static bool oc_transfer_tells_status(const struct oc_transfer *t)
{
	return (t->flags & KNEM_FLAG_ANY_ASYNC_MASK) || oc_transfer_notifies(t) || t->status_always;
}

/* What lies beyond the end of a region is no error, but no bytes. */
static void oc_transfer_bound(struct oc_transfer *t, u64 *off, u64 total)
{
	*off = min(*off, total);
	t->length = min(t->length, total - *off);
}

static int oc_transfer_regions(struct oc_transfer *t)
{
	if (!t->inlined || t->to_local) {
		t->src = oc_region_use(t->src_cookie, false);
		if (IS_ERR(t->src))
			return PTR_ERR(t->src);
		oc_transfer_bound(t, &t->src_off, t->src->total);
	}
	if (!t->inlined || !t->to_local) {
		t->dst = oc_region_use(t->dst_cookie, true);
		if (IS_ERR(t->dst))
			return PTR_ERR(t->dst);
		oc_transfer_bound(t, &t->dst_off, t->dst->total);
	}
	if (t->inlined)
		t->length = min_t(u64, t->length, oc_iovec_total(t->local, t->locals, TASK_SIZE));
	return 0;
}

/* The local vector becomes a region of its own, for the worker. */
static int oc_transfer_pin_local(struct oc_knem *k, struct oc_transfer *t)
{
	struct oc_region *local;

	local = oc_region_create(&k->pinner, t->local, t->locals, !t->to_local, t->to_local, 0);
	t->local = NULL;
	if (IS_ERR(local))
		return PTR_ERR(local);
	if (t->to_local)
		t->dst = local;
	else
		t->src = local;
	return 0;
}

/* The regions are this copy's, and the worker can have it. */
static int oc_transfer_claim(struct oc_knem *k, struct oc_transfer *t)
{
	int err = 0;

	if (oc_transfer_is_threaded(t)) {
		err = oc_async_worker(k);
		if (err)
			return err;
		t->work = oc_may_fail(kmalloc(sizeof(*t->work), GFP_KERNEL_ACCOUNT));
		if (!t->work)
			return -ENOMEM;
		if (t->inlined)
			err = oc_transfer_pin_local(k, t);
	}
	return err ?: oc_region_claim(t->dst, t->src);
}

/* All that can fail before a byte is copied. */
static int oc_transfer_prepare(struct oc_knem *k, struct oc_transfer *t)
{
	bool thread = oc_transfer_is_threaded(t), notify = oc_transfer_notifies(t);
	bool tells = oc_transfer_tells_status(t);
	int err;

	if (t->flags & KNEM_FLAG_DMA)
		return -EINVAL;
	err = oc_transfer_regions(t);
	if (!err && tells)
		err = oc_async_check(k, t->index, thread, notify);
	if (err)
		return err;
	err = oc_transfer_claim(k, t);
	if (err && thread)
		oc_async_leave_queue(k);
	if (err && notify)
		oc_async_leave_ring(k);
	return err;
}

/* The worker gets the regions with the work. */
static void oc_transfer_submit(struct oc_knem *k, struct oc_transfer *t)
{
	*t->work = (struct oc_work){
		.dst = t->dst,
		.src = t->src,
		.dst_off = t->inlined && t->to_local ? 0 : t->dst_off,
		.src_off = t->inlined && !t->to_local ? 0 : t->src_off,
		.len = t->length,
		.index = t->index,
		.notify = oc_transfer_notifies(t),
	};
	t->status = KNEM_STATUS_PENDING;
	oc_async_submit(k, t->work);
}

static void oc_transfer_now(struct oc_knem *k, struct oc_transfer *t)
{
	int err;

	if (!t->inlined)
		err = oc_region_copy(t->dst, t->dst_off, t->src, t->src_off, t->length, NULL);
	else if (t->to_local)
		err = oc_region_copy_user(t->src, t->src_off, t->local, t->locals, t->length, true);
	else
		err = oc_region_copy_user(t->dst, t->dst_off, t->local, t->locals, t->length,
					  false);
	t->status = err ? KNEM_STATUS_FAILED : KNEM_STATUS_SUCCESS;
	if (oc_transfer_tells_status(t))
		oc_async_complete(k, t->index, oc_transfer_notifies(t), t->status);
}

static void oc_transfer_end(struct oc_transfer *t)
{
	kfree(t->work);
	if (!IS_ERR_OR_NULL(t->dst))
		oc_region_put(t->dst);
	if (!IS_ERR_OR_NULL(t->src))
		oc_region_put(t->src);
}

/* An error means that nothing was done; afterwards the status reports failures. */
static int oc_transfer(struct oc_knem *k, struct oc_transfer *t)
{
	int err = oc_transfer_prepare(k, t);

	if (!err && t->work) {
		oc_transfer_submit(k, t);
		return 0;
	}
	if (!err)
		oc_transfer_now(k, t);
	oc_transfer_end(t);
	return err;
}

/* The same with a local vector at `array`. */
static int oc_transfer_inline(struct oc_knem *k, struct oc_transfer *t, u64 array, u32 n)
{
	int err;

	t->inlined = true;
	t->local = oc_iovec_read(array, &n);
	t->locals = n;
	if (IS_ERR(t->local))
		return PTR_ERR(t->local);
	err = oc_transfer(k, t);
	kvfree(t->local);
	return err;
}

/* ---- commands ---- */
static int oc_knem_create(struct oc_knem *k, u64 array, u32 n, u32 flags, u32 protection,
			  u64 *cookie)
{
	struct oc_region *r;
	struct oc_iovec *iov;

	if (!(protection & (PROT_READ | PROT_WRITE)))
		return -EINVAL;
	iov = oc_iovec_read(array, &n);
	if (IS_ERR(iov))
		return PTR_ERR(iov);
	r = oc_region_create(&k->pinner, iov, n, protection & PROT_READ, protection & PROT_WRITE,
			     flags);
	if (IS_ERR(r))
		return PTR_ERR(r);
	oc_region_publish(r, &k->regions);
	*cookie = r->cookie;
	return 0;
}

union oc_knem_arg {
	struct knem_cmd_info info;
	struct knem_cmd_bind_offload bind;
	struct knem_cmd_create_region create;
	knem_cookie_t cookie;
	struct knem_cmd_copy copy;
	struct knem_cmd_copy_bounded copy_bounded;
	struct knem_cmd_inline_copy inline_copy;
	struct knem_cmd_inline_copy_bounded inline_bounded;
	struct knem_cmd_init_send_param send;
	struct knem_cmd_init_async_recv_param async_recv;
	struct knem_cmd_sync_recv_param sync_recv;
};

static int oc_knem_copy(struct oc_knem *k, struct knem_cmd_copy *c)
{
	struct oc_transfer t = {
		.src_cookie = c->src_cookie,
		.src_off = c->src_offset,
		.dst_cookie = c->dst_cookie,
		.dst_off = c->dst_offset,
		.length = U64_MAX,
		.flags = c->flags,
		.index = c->async_status_index,
	};
	int err = oc_transfer(k, &t);

	c->current_status = t.status;
	return err;
}

static int oc_knem_copy_bounded(struct oc_knem *k, struct knem_cmd_copy_bounded *c)
{
	struct oc_transfer t = {
		.src_cookie = c->src_cookie,
		.src_off = c->src_offset,
		.dst_cookie = c->dst_cookie,
		.dst_off = c->dst_offset,
		.length = c->length,
		.flags = c->flags,
		.index = c->async_status_index,
	};
	int err = oc_transfer(k, &t);

	c->current_status = t.status;
	return err;
}

static int oc_knem_inline(struct oc_knem *k, struct knem_cmd_inline_copy *c)
{
	struct oc_transfer t = {
		.src_cookie = c->remote_cookie,
		.dst_cookie = c->remote_cookie,
		.src_off = c->remote_offset,
		.dst_off = c->remote_offset,
		.to_local = !c->write,
		.length = U64_MAX,
		.flags = c->flags,
		.index = c->async_status_index,
	};
	int err = oc_transfer_inline(k, &t, c->local_iovec_array, c->local_iovec_nr);

	c->current_status = t.status;
	return err;
}

static int oc_knem_inline_bounded(struct oc_knem *k, struct knem_cmd_inline_copy_bounded *c)
{
	struct oc_transfer t = {
		.src_cookie = c->remote_cookie,
		.dst_cookie = c->remote_cookie,
		.src_off = c->remote_offset,
		.dst_off = c->remote_offset,
		.to_local = !c->write,
		.length = c->length,
		.flags = c->flags,
		.index = c->async_status_index,
	};
	int err = oc_transfer_inline(k, &t, c->local_iovec_array, c->local_iovec_nr);

	c->current_status = t.status;
	return err;
}

static int oc_knem_async_recv(struct oc_knem *k, struct knem_cmd_init_async_recv_param *c)
{
	struct oc_transfer t = {
		.src_cookie = c->send_cookie,
		.to_local = true,
		.length = U64_MAX,
		.flags = c->flags,
		.index = c->status_index,
		.status_always = true,
	};

	return oc_transfer_inline(k, &t, c->recv_iovec_array, c->recv_iovec_nr);
}

static int oc_knem_sync_recv(struct oc_knem *k, struct knem_cmd_sync_recv_param *c)
{
	struct oc_transfer t = {
		.src_cookie = c->send_cookie,
		.to_local = true,
		.length = U64_MAX,
		/* There is no place for the status of a later copy: it is done now. */
		.flags = c->flags & ~KNEM_FLAG_ANY_ASYNC_MASK,
	};
	int err;

	if (c->flags & KNEM_FLAG_NOTIFY_FD)
		return -EINVAL;
	err = oc_transfer_inline(k, &t, c->recv_iovec_array, c->recv_iovec_nr);
	c->status = t.status;
	return err;
}

static long oc_knem_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct oc_knem *k = file->private_data;
	void __user *user = (void __user *)arg;
	union oc_knem_arg a = {};
	bool back = true; /* the direction in the number does not tell */
	u64 cookie = 0;
	int err;

	if (_IOC_TYPE(cmd) != KNEM_IOC_MAGIC || _IOC_SIZE(cmd) > sizeof(a))
		return -ENOTTY;
	if (copy_from_user(&a, user, _IOC_SIZE(cmd)))
		return -EFAULT;
	switch (cmd) {
	case KNEM_CMD_GET_INFO:
		a.info = (struct knem_cmd_info){ .abi = KNEM_ABI_VERSION };
		err = 0;
		break;
	case KNEM_CMD_BIND_OFFLOAD:
		back = false;
		err = oc_async_bind(k, &a.bind);
		break;
	case KNEM_CMD_CREATE_REGION:
		err = oc_knem_create(k, a.create.iovec_array, a.create.iovec_nr, a.create.flags,
				     a.create.protection, &cookie);
		a.create.cookie = cookie;
		break;
	case KNEM_CMD_DESTROY_REGION:
		back = false;
		err = oc_region_destroy(&k->regions, a.cookie);
		break;
	case KNEM_CMD_COPY:
		err = oc_knem_copy(k, &a.copy);
		break;
	case KNEM_CMD_COPY_BOUNDED:
		err = oc_knem_copy_bounded(k, &a.copy_bounded);
		break;
	case KNEM_CMD_INLINE_COPY:
		err = oc_knem_inline(k, &a.inline_copy);
		break;
	case KNEM_CMD_INLINE_COPY_BOUNDED:
		err = oc_knem_inline_bounded(k, &a.inline_bounded);
		break;
	case KNEM_CMD_INIT_SEND:
		/*
		 * The flags of this command are those of the copy, of which none matters to the
		 * sender.
		 */
		err = oc_knem_create(k, a.send.send_iovec_array, a.send.send_iovec_nr,
				     KNEM_FLAG_SINGLEUSE, PROT_READ, &cookie);
		a.send.send_cookie = cookie;
		break;
	case KNEM_CMD_INIT_ASYNC_RECV:
		back = false;
		err = oc_knem_async_recv(k, &a.async_recv);
		break;
	case KNEM_CMD_SYNC_RECV:
		err = oc_knem_sync_recv(k, &a.sync_recv);
		break;
	default:
		return -ENOTTY;
	}
	if (err || !back)
		return err;
	if (copy_to_user(user, &a, _IOC_SIZE(cmd))) {
		if (cookie)
			oc_region_destroy(&k->regions, cookie);
		return -EFAULT;
	}
	return 0;
}

static int oc_knem_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct oc_knem *k = file->private_data;
	unsigned long len = vma->vm_end - vma->vm_start;
	int err;

	if (vma->vm_pgoff || !(vma->vm_flags & VM_SHARED) || len > OC_KNEM_MAX_STATUS)
		return -EINVAL;
	vm_flags_clear(vma, VM_MAYEXEC | VM_EXEC);
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	/* The entries are made before the kernel computes this anew. */
	vma->vm_page_prot = vm_get_page_prot(vma->vm_flags);
	mutex_lock(&k->lock);
	err = oc_async_start(k, vma);
	mutex_unlock(&k->lock);
	return err;
}

/* Counters as text until there is a status array; then completions (KNEM_FLAG_NOTIFY_FD). */
static ssize_t oc_knem_read(struct file *file, char __user *buf, size_t count, loff_t *pos)
{
	struct oc_knem *k = file->private_data;
	char text[256];
	int n;

	/* pairs with that in oc_async_start() */
	if (smp_load_acquire(&k->status))
		return oc_async_read(k, buf, count, file->f_flags & O_NONBLOCK);
	n = scnprintf(text, sizeof(text),
		      "onecopy %s\nabi 0x%x\nregions %lu\npinned_pages %ld\ncopies %llu\n",
		      OC_VERSION, KNEM_ABI_VERSION, READ_ONCE(oc_gauge[OC_REGIONS]),
		      atomic_long_read(&oc_pinned_pages), oc_stat_sum(OC_COPIES));
	n += scnprintf(text + n, sizeof(text) - n, "copied_bytes %llu\n",
		       oc_stat_sum(OC_COPIED_BYTES));
	return simple_read_from_buffer(buf, count, pos, text, n);
}

static __poll_t oc_knem_poll(struct file *file, poll_table *wait)
{
	struct oc_knem *k = file->private_data;

	/* First: epoll asks for this once, perhaps before there is a status array. */
	poll_wait(file, &k->reader_wait, wait);
	/* pairs with that in oc_async_start() */
	if (!smp_load_acquire(&k->status))
		return EPOLLIN | EPOLLRDNORM;
	return oc_async_readable(k) ? EPOLLIN | EPOLLRDNORM : 0;
}

static int oc_knem_open(struct inode *inode, struct file *file)
{
	struct oc_knem *k;

	if (!oc_is_ready())
		return -ENODEV;
	k = oc_may_fail(kzalloc(sizeof(*k), GFP_KERNEL_ACCOUNT));
	if (!k)
		return -ENOMEM;
	if (!zalloc_cpumask_var(&k->cpus, GFP_KERNEL_ACCOUNT)) {
		kfree(k);
		return -ENOMEM;
	}
	mutex_init(&k->lock);
	mutex_init(&k->worker_lock);
	mutex_init(&k->read_lock);
	spin_lock_init(&k->queue_lock);
	INIT_LIST_HEAD(&k->regions.list);
	INIT_LIST_HEAD(&k->queue);
	init_waitqueue_head(&k->worker_wait);
	init_waitqueue_head(&k->reader_wait);
	file->private_data = k;
	return 0;
}

static int oc_knem_release(struct inode *inode, struct file *file)
{
	struct oc_knem *k = file->private_data;

	oc_region_destroy_all(&k->regions);
	oc_async_stop(k);
	oc_pinner_forget(&k->pinner);
	free_cpumask_var(k->cpus);
	kfree(k);
	return 0;
}

static void oc_knem_fdinfo(struct seq_file *m, struct file *file)
{
	struct oc_knem *k = file->private_data;
	unsigned long regions, pinned;
	u32 statuses = 0, queued = 0, ready = 0;

	oc_region_sum(&k->regions, &regions, &pinned);
	/* pairs with that in oc_async_start() */
	if (smp_load_acquire(&k->status)) {
		statuses = k->statuses;
		spin_lock(&k->queue_lock);
		queued = k->queued;
		ready = k->ring_ready;
		spin_unlock(&k->queue_lock);
	}
	seq_printf(m, "knem-regions:\t%lu\nknem-pinned-pages:\t%lu\n", regions, pinned);
	seq_printf(m, "knem-statuses:\t%u\nknem-queued:\t%u\nknem-unread:\t%u\n",
		   statuses, queued, ready);
}

static const struct file_operations oc_knem_fops = {
	.owner = THIS_MODULE,
	.open = oc_knem_open,
	.release = oc_knem_release,
	.unlocked_ioctl = oc_knem_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = oc_knem_mmap,
	.read = oc_knem_read,
	.poll = oc_knem_poll,
	.llseek = noop_llseek,
	.show_fdinfo = oc_knem_fdinfo,
};

struct miscdevice oc_knem_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "knem",
	.fops = &oc_knem_fops,
	.mode = 0600,
};
