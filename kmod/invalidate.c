// SPDX-License-Identifier: GPL-2.0
/* The owner's memory changes: no importer may keep a view of what it was. */

#include "core.h"
#include "trace.h"

static bool oc_invalidate(struct oc_watch *watch, const struct mmu_notifier_range *range)
{
	struct oc_seg *seg = container_of(watch, struct oc_seg, watch);
	unsigned long start = max(range->start, seg->start), end = min(range->end, oc_seg_end(seg));
	bool blockable = mmu_notifier_range_blockable(range), shown;
	u64 until;

	if (blockable)
		mutex_lock(&seg->lock);
	else if (!mutex_trylock(&seg->lock))
		return false; /* the OOM reaper comes again */
	if (!blockable && seg->reap_done) {
		/* Already reaped; nothing of the owner is mapped. */
		mutex_unlock(&seg->lock);
		return true;
	}
	/* Pairs with smp_rmb() in oc_snap_begin(): a snapshot that counts it sees it begun. */
	smp_wmb();
	seg->ring[seg->seq % OC_RING] = (struct oc_range){ start, end };
	WRITE_ONCE(seg->seq, seg->seq + 1);
	until = seg->stretch_serial;
	shown = oc_is_shown(seg, start, end);
	/*
	 * A caller that cannot wait reaps memory that no task will ever use again. The kernel
	 * reports no end of that, so nothing may be shown from here on.
	 */
	if ((range->event == MMU_NOTIFY_RELEASE || !blockable) &&
	    seg->state == ONECOPY_STATE_ALIVE) {
		/* oc_seg_error() reads it without the lock */
		WRITE_ONCE(seg->state, ONECOPY_STATE_OWNER_GONE);
		oc_gate_close(&seg->gate);
		oc_generation_state(seg);
	}
	oc_generation_invalidated(seg);
	if (shown && !blockable)
		oc_zap_later(seg);
	mutex_unlock(&seg->lock);

	oc_count(OC_INVALIDATIONS, 1);
	trace_onecopy_invalidate(seg, start, end, range->event);
	if (!shown)
		return true;
	if (!blockable)
		return false;
	if (range->event == MMU_NOTIFY_RELEASE)
		/* not within a notification: the end of it all is notified by itself */
		oc_zap(seg, start, end);
	else
		oc_zap_notified(seg, start, end, until);
	return true;
}

const struct oc_watch_ops oc_owner_ops = { .invalidate = oc_invalidate };
