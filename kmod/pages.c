// SPDX-License-Identifier: GPL-2.0
/* Bytes between pages that are held, and between them and the current address space. */
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "core.h"

/*
 * How many bytes, up to len, lie behind one another in memory from byte `off` of the pages on.
 * Within a compound page the kernel's own mapping is contiguous, and one copy of it passes the
 * checks for copies to users.
 */
static u64 oc_run(struct page *const *pages, u64 off, u64 len)
{
	unsigned long i = off >> PAGE_SHIFT;
	u64 run = PAGE_SIZE - (off & ~PAGE_MASK);

	if (!IS_ENABLED(CONFIG_HIGHMEM))
		while (run < len && pages[i + 1] == pages[i] + 1 &&
		       compound_head(pages[i + 1]) == compound_head(pages[i])) {
			run += PAGE_SIZE;
			i++;
		}
	return min(run, len);
}

static void oc_unmap_copied(struct page *page, void *map, u64 off, u64 n, bool to_user)
{
	if (to_user)
		oc_unmap_page(page, map);
	else
		oc_unmap_stored(page, map, off & ~PAGE_MASK, n);
}

/*
 * With faults disabled. False: something is missing. True: all is done, or somebody wants this CPU.
 */
bool oc_copy_present(struct page *const *pages, u64 off, u64 len, u64 user, bool to_user, u64 *done)
{
	do {
		struct page *page = pages[(off + *done) >> PAGE_SHIFT];
		u64 n = min_t(u64, oc_run(pages, off + *done, len - *done), SZ_1M);
		void __user *u = u64_to_user_ptr(user + *done);
		void *map = oc_map_page(page), *k = map + ((off + *done) & ~PAGE_MASK);
		unsigned long left;

		/*
		 * Not copy_from_user(): after a bad address that clears the rest of the page, which
		 * is somebody's memory here.
		 */
		if (to_user)
			left = __copy_to_user_inatomic(u, k, n);
		else
			left = __copy_from_user_inatomic(k, u, n);
		oc_unmap_copied(page, map, off + *done, n - left, to_user);
		*done += n - left;
		if (left)
			return false;
	} while (*done < len && !need_resched());
	return true;
}

/*
 * Between byte `off` of the pages and the current address space. Returns how many bytes were
 * copied: all but after a bad address or a kill.
 */
u64 oc_copy_user(struct page *const *pages, u64 off, u64 len, u64 user, bool to_user)
{
	u64 done = 0;

	while (done < len && !fatal_signal_pending(current)) {
		struct page *page = pages[(off + done) >> PAGE_SHIFT];
		u64 n = min_t(u64, oc_run(pages, off + done, len - done), SZ_1M);
		void __user *u = u64_to_user_ptr(user + done);
		unsigned long left;
		void *map = oc_map_page(page), *k = map + ((off + done) & ~PAGE_MASK);

		/*
		 * Not copy_from_user(): after a bad address that clears the rest of the page, which
		 * is somebody's memory here.
		 */
		if (to_user)
			left = copy_to_user(u, k, n);
		else
			left = access_ok(u, n) ? __copy_from_user(k, u, n) : n;
		oc_unmap_copied(page, map, off + done, n - left, to_user);
		done += n - left;
		if (left)
			break;
		cond_resched();
	}
	return done;
}

void oc_copy_pages(struct page *const *dst, u64 dst_off, struct page *const *src, u64 src_off,
		   u64 len)
{
	while (len) {
		struct page *d = dst[dst_off >> PAGE_SHIFT], *s = src[src_off >> PAGE_SHIFT];
		u64 n = min3(len, (u64)(PAGE_SIZE - (dst_off & ~PAGE_MASK)),
			     (u64)(PAGE_SIZE - (src_off & ~PAGE_MASK)));
		void *from = oc_map_page(s), *to = oc_map_page(d);

		memmove(to + (dst_off & ~PAGE_MASK), from + (src_off & ~PAGE_MASK), n);
		oc_unmap_stored(d, to, dst_off & ~PAGE_MASK, n);
		oc_unmap_page(s, from);
		dst_off += n;
		src_off += n;
		len -= n;
		cond_resched();
	}
}
