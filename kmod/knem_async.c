// SPDX-License-Identifier: GPL-2.0
/*
 * What a file of /dev/knem has once its status array is mapped: the notifications that
 * oc_async_read() gives. From the first copy for it on, also the worker (a kernel thread) with its
 * CPUs, and the copies that it does. Both sides of such a copy are pinned, so it never faults and
 * never waits for another task.
 */
#include <linux/cgroup.h>
#include <linux/kthread.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "inject.h"
#include "knem.h"

static void oc_work_free(struct oc_work *w)
{
	oc_region_put(w->dst);
	oc_region_put(w->src);
	kfree(w);
}

static struct oc_work *oc_work_next(struct oc_knem *k)
{
	struct oc_work *w;

	spin_lock(&k->queue_lock);
	w = list_first_entry_or_null(&k->queue, struct oc_work, link);
	if (w)
		list_del(&w->link);
	spin_unlock(&k->queue_lock);
	return w;
}

/*
 * Where a task may run. Others change that at any time, under this lock, which sched_getaffinity()
 * takes too. Not cpus_ptr: while a task may not be moved that can be the one CPU it is on.
 */
static void oc_affinity(struct task_struct *task, struct cpumask *mask)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&task->pi_lock, flags);
	cpumask_copy(mask, &task->cpus_mask);
	raw_spin_unlock_irqrestore(&task->pi_lock, flags);
}

/* A worker that is being made, for the task that waits for that. */
struct oc_worker_birth {
	struct oc_knem *k;
	struct task_struct *caller;
	struct completion placed;
	int err;
};

/*
 * The worker runs for a caller, so it runs in the caller's cgroups and on CPUs of the caller's
 * cpuset. The caller may have asked for some of these. It waits for this in an ioctl. There it
 * holds no mmap lock, for which those who move tasks between cpusets wait. And it lives, so its
 * cgroups do.
 */
static int oc_worker_place(struct oc_knem *k, struct task_struct *caller)
{
	cpumask_var_t mask, allowed;
	bool moved;
	int err;

	err = cgroup_attach_task_all(caller, current);
	if (err)
		return err;
	if (!alloc_cpumask_var(&mask, GFP_KERNEL))
		return -ENOMEM;
	if (!alloc_cpumask_var(&allowed, GFP_KERNEL)) {
		free_cpumask_var(mask);
		return -ENOMEM;
	}
	rcu_read_lock();
	moved = task_dfl_cgroup(current) == task_dfl_cgroup(caller);
	rcu_read_unlock();
	/* The cpuset has set this; where there is none, it is all CPUs. */
	oc_affinity(current, mask);
	oc_affinity(caller, allowed);
	cpumask_and(mask, mask, cpumask_empty(k->cpus) ? allowed : k->cpus);
	/*
	 * Old kernels move nobody in version 2 of cgroups: of a cpuset there only the affinity is
	 * known.
	 */
	if (!moved)
		cpumask_and(mask, mask, allowed);
	/* What was asked for is not the caller's to have: where the caller may run. */
	if (!cpumask_intersects(mask, cpu_online_mask))
		cpumask_copy(mask, allowed);
	err = set_cpus_allowed_ptr(current, mask);
	free_cpumask_var(allowed);
	free_cpumask_var(mask);
	return err;
}

static int oc_worker(void *data)
{
	struct oc_worker_birth *birth = data;
	struct oc_knem *k = birth->k;
	struct oc_work *w;
	int err;

	birth->err = oc_worker_place(k, birth->caller);
	complete(&birth->placed); /* `birth` may be gone */
	while (!kthread_should_stop()) {
		w = oc_work_next(k);
		if (!w) {
			wait_event_idle(k->worker_wait,
					!list_empty(&k->queue) || kthread_should_stop());
			continue;
		}
		err = oc_region_copy(w->dst, w->dst_off, w->src, w->src_off, w->len, &k->stop);
		/* A program that sees the status may ask for the next copy at once. */
		oc_async_leave_queue(k);
		oc_async_complete(k, w->index, w->notify,
				  err ? KNEM_STATUS_FAILED : KNEM_STATUS_SUCCESS);
		oc_work_free(w);
	}
	/*
	 * Its end is waited for, but not that it leaves its cgroups, which may be about to be
	 * removed.
	 */
	cgroup_attach_task_all(&init_task, current);
	return 0;
}

/**
 * oc_async_start() - make a file's status array, and map it
 * @k: the file
 * @vma: the new VMA
 *
 * Context: under @k->lock, with the caller's mmap lock held for writing.
 * Return: 0, or -EBUSY: there is one, -EDQUOT or -ENOMEM.
 */
int oc_async_start(struct oc_knem *k, struct vm_area_struct *vma)
{
	u32 statuses = vma->vm_end - vma->vm_start, at;
	struct oc_user *user;
	int err = -ENOMEM;
	u8 *status;

	if (k->status)
		return -EBUSY;
	user = oc_charge(OC_WORKERS);
	if (IS_ERR(user))
		return PTR_ERR(user);
	/* Not vmalloc_user(): that is charged to nobody, and fills the log when it fails. */
	status = oc_may_fail(__vmalloc(statuses, OC_GFP_SHOWN | __GFP_ZERO | __GFP_NOWARN));
	k->ring = kvmalloc_array(statuses, sizeof(*k->ring), OC_GFP_ASKED);
	if (!status || !k->ring)
		goto fail;
	for (at = 0; at < statuses; at += PAGE_SIZE) {
		err = vm_insert_page(vma, vma->vm_start + at, vmalloc_to_page(status + at));
		if (err)
			goto fail;
	}
	k->statuses = statuses;
	k->user = user;
	/* A task that sees the status array sees all that was set before. */
	smp_store_release(&k->status, status);
	return 0;
fail:
	vfree(status);
	kvfree(k->ring);
	k->ring = NULL;
	oc_uncharge(user, OC_WORKERS);
	return err;
}

/**
 * oc_async_worker() - make a file's worker, if there is none
 * @k: the file, whose status array is there
 *
 * The worker is made in the task that asks for its first copy, which waits until it is placed. That
 * waits for the kernel's locks of cgroups, and no kill ends it.
 *
 * Context: the caller holds no mmap lock. Takes @k->worker_lock.
 * Return: 0, or -EINTR: killed, or why there is no worker.
 */
int oc_async_worker(struct oc_knem *k)
{
	struct oc_worker_birth birth = { .k = k, .caller = current };
	struct task_struct *worker;

	/* pairs with that below */
	if (smp_load_acquire(&k->worker))
		return 0;
	if (mutex_lock_killable(&k->worker_lock))
		return -EINTR;
	if (k->worker)
		goto unlock;
	init_completion(&birth.placed);
	worker = kthread_create(oc_worker, &birth, "onecopy-knem");
	if (IS_ERR(worker)) {
		birth.err = PTR_ERR(worker);
		goto unlock;
	}
	wake_up_process(worker);
	wait_for_completion(&birth.placed);
	if (birth.err)
		kthread_stop(worker);
	else
		/* pairs with that above */
		smp_store_release(&k->worker, worker);
unlock:
	mutex_unlock(&k->worker_lock);
	return birth.err;
}

/**
 * oc_async_stop() - the file is going: a copy that runs ends soon, those that wait are dropped
 * @k: the file
 */
void oc_async_stop(struct oc_knem *k)
{
	struct oc_work *w;

	if (!k->status)
		return;
	WRITE_ONCE(k->stop, true);
	if (k->worker)
		kthread_stop(k->worker);
	while ((w = oc_work_next(k)))
		oc_work_free(w);
	vfree(k->status);
	kvfree(k->ring);
	oc_uncharge(k->user, OC_WORKERS);
}

/**
 * oc_async_check() - reserve what the end of a copy needs
 * @k: the file
 * @index: of the copy's status
 * @thread: reserve a place in the queue, which oc_async_leave_queue() gives back
 * @notify: reserve a completion. oc_async_complete() uses it, or oc_async_leave_ring() gives it
 *   back
 *
 * Return: 0, or -EINVAL: no such status, -EBUSY: no room.
 */
int oc_async_check(struct oc_knem *k, u32 index, bool thread, bool notify)
{
	int err = 0;

	/* pairs with that in oc_async_start() */
	if (!smp_load_acquire(&k->status) || index >= k->statuses)
		return -EINVAL;
	spin_lock(&k->queue_lock);
	if ((notify && k->ring_taken == k->statuses) || (thread && k->queued == k->statuses)) {
		err = -EBUSY;
	} else {
		k->ring_taken += notify;
		k->queued += thread;
	}
	spin_unlock(&k->queue_lock);
	return err;
}

/**
 * oc_async_leave_queue() - give a place in the queue back
 * @k: the file
 */
void oc_async_leave_queue(struct oc_knem *k)
{
	spin_lock(&k->queue_lock);
	k->queued--;
	spin_unlock(&k->queue_lock);
}

/**
 * oc_async_leave_ring() - give a completion back that is not reported
 * @k: the file
 */
void oc_async_leave_ring(struct oc_knem *k)
{
	spin_lock(&k->queue_lock);
	k->ring_taken--;
	spin_unlock(&k->queue_lock);
	/* A reader that waits for all that are outstanding has fewer to wait for. */
	wake_up(&k->reader_wait);
}

/**
 * oc_async_submit() - queue a copy for the worker
 * @k: the file
 * @work: the copy, with its references; consumed
 */
void oc_async_submit(struct oc_knem *k, struct oc_work *work)
{
	WRITE_ONCE(k->status[work->index], KNEM_STATUS_PENDING);
	spin_lock(&k->queue_lock);
	list_add_tail(&work->link, &k->queue);
	spin_unlock(&k->queue_lock);
	wake_up(&k->worker_wait);
}

/**
 * oc_async_complete() - report that a copy is over
 * @k: the file
 * @index: of its status
 * @notify: a reader is to be notified, too
 * @status: KNEM_STATUS_*
 */
void oc_async_complete(struct oc_knem *k, u32 index, bool notify, u8 status)
{
	/* A program that sees the status sees the bytes. */
	smp_store_release(&k->status[index], status);
	if (!notify)
		return;
	spin_lock(&k->queue_lock);
	k->ring[(k->ring_head + k->ring_ready) % k->statuses] = index;
	WRITE_ONCE(k->ring_ready, k->ring_ready + 1);
	spin_unlock(&k->queue_lock);
	wake_up(&k->reader_wait);
}

/**
 * oc_async_readable() - whether there are completions to read
 * @k: the file
 *
 * Context: without a lock. It is a hint for poll(), which a wake-up follows where it is about to
 * change.
 * Return: true if there are.
 */
bool oc_async_readable(struct oc_knem *k)
{
	return READ_ONCE(k->ring_ready);
}

/* As many as asked for are there, or no more are to come. */
static bool oc_enough(struct oc_knem *k, u32 want)
{
	bool enough;

	spin_lock(&k->queue_lock);
	enough = k->ring_ready >= want || (k->ring_ready && k->ring_ready == k->ring_taken);
	spin_unlock(&k->queue_lock);
	return enough;
}

/**
 * oc_async_read() - read whole indices of completed copies, oldest first
 * @k: the file
 * @buf: the caller's
 * @count: bytes
 * @nonblock: do not wait
 *
 * Context: may sleep. Takes @k->read_lock.
 * Return: bytes, or -EINVAL: no room for one, -EAGAIN: none, or another task reads, -ERESTARTSYS: a
 * signal, or -EFAULT.
 */
ssize_t oc_async_read(struct oc_knem *k, char __user *buf, size_t count, bool nonblock)
{
	u32 want = min_t(size_t, count / sizeof(u32), k->statuses), got = 0, index;

	if (!want)
		return -EINVAL;
again:
	if (!nonblock && wait_event_interruptible(k->reader_wait, oc_enough(k, want)) &&
	    !oc_async_readable(k))
		return -ERESTARTSYS;
	/* Another reader may wait for its own memory. */
	if (nonblock) {
		if (!mutex_trylock(&k->read_lock))
			return -EAGAIN;
	} else if (mutex_lock_interruptible(&k->read_lock)) {
		return -ERESTARTSYS;
	}
	while (got < want) {
		spin_lock(&k->queue_lock);
		if (!k->ring_ready) {
			spin_unlock(&k->queue_lock);
			break;
		}
		index = k->ring[k->ring_head];
		spin_unlock(&k->queue_lock);
		if (copy_to_user(buf + got * sizeof(index), &index, sizeof(index))) {
			mutex_unlock(&k->read_lock);
			return got ? got * sizeof(index) : -EFAULT;
		}
		spin_lock(&k->queue_lock);
		k->ring_head = (k->ring_head + 1) % k->statuses;
		WRITE_ONCE(k->ring_ready, k->ring_ready - 1);
		k->ring_taken--;
		spin_unlock(&k->queue_lock);
		got++;
	}
	mutex_unlock(&k->read_lock);
	if (got)
		return got * sizeof(index);
	if (nonblock)
		return -EAGAIN;
	goto again; /* another reader was faster */
}

/**
 * oc_async_bind() - say on which CPUs a file's worker may run
 * @k: the file, before it has a status array
 * @b: the caller's command
 *
 * Context: takes @k->lock.
 * Return: 0, or -EBUSY: too late, -EINVAL: no such CPUs or flags, -EFAULT or -ENOMEM.
 */
int oc_async_bind(struct oc_knem *k, const struct knem_cmd_bind_offload *b)
{
	cpumask_var_t mask;
	int err = 0;

	/* pairs with that in oc_async_start() */
	if (smp_load_acquire(&k->status))
		return -EBUSY;
	if (!zalloc_cpumask_var(&mask, GFP_KERNEL))
		return -ENOMEM;
	switch (b->flags) {
	case KNEM_BIND_FLAG_CUSTOM:
		if (!b->mask_len)
			err = -EINVAL;
		else if (copy_from_user(cpumask_bits(mask), u64_to_user_ptr(b->mask_ptr),
					min_t(size_t, b->mask_len, cpumask_size())))
			err = -EFAULT;
		break;
	case KNEM_BIND_FLAG_CURRENT:
		oc_affinity(current, mask);
		break;
	case KNEM_BIND_FLAG_CURRENT_REVERSED:
		oc_affinity(current, mask);
		cpumask_andnot(mask, cpu_online_mask, mask);
		break;
	default:
		err = -EINVAL;
	}
	/*
	 * A process that may run anywhere leaves nothing on the other side: then the worker may run
	 * anywhere too.
	 */
	if (!err && !cpumask_intersects(mask, cpu_online_mask)) {
		if (b->flags == KNEM_BIND_FLAG_CURRENT_REVERSED)
			cpumask_clear(mask);
		else
			err = -EINVAL;
	}
	mutex_lock(&k->lock);
	if (!err && k->status)
		err = -EBUSY;
	if (!err)
		cpumask_copy(k->cpus, mask);
	mutex_unlock(&k->lock);
	free_cpumask_var(mask);
	return err;
}
