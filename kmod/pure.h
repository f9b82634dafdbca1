/* SPDX-License-Identifier: GPL-2.0 */
/* Arithmetic without state: what KUnit tests. */
#ifndef OC_PURE_H
#define OC_PURE_H

#include <linux/bits.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sizes.h>
#include <linux/types.h>

struct oc_range {
	unsigned long start;
	unsigned long end;
};

#define OC_RANGES 8
struct oc_ranges {
	unsigned int n;
	struct oc_range range[OC_RANGES];
};

/*
 * One more. It and what it touches become one. So do, where there is no room left, it and what is
 * nearest, with all that lies between them.
 */
static inline void oc_ranges_add(struct oc_ranges *ranges, unsigned long start, unsigned long end)
{
	unsigned long growth, least = ULONG_MAX;
	struct oc_range *r, *best = NULL;

	for (r = ranges->range; r < ranges->range + ranges->n; r++) {
		growth = max(r->end, end) - min(r->start, start) - (r->end - r->start);
		if (growth < least) {
			least = growth;
			best = r;
		}
	}
	if (ranges->n < OC_RANGES && (!best || least > end - start)) {
		ranges->range[ranges->n++] = (struct oc_range){ start, end };
		return;
	}
	best->start = min(best->start, start);
	best->end = max(best->end, end);
}

/* Is [start, start + len) not empty, made of whole pages, and within [0, limit)? */
static inline int oc_check_pages(u64 start, u64 len, u64 limit)
{
	u64 end;

	if (!len || ((start | len) & ~PAGE_MASK))
		return -EINVAL;
	if (check_add_overflow(start, len, &end) || end > limit)
		return -EINVAL;
	return 0;
}

/* Does [off, off + len) lie within size bytes? An empty range does, at any place up to the end. */
static inline bool oc_within(u64 off, u64 len, u64 size)
{
	return off <= size && len <= size - off;
}

/* len rounded up to whole pages; 0 when that overflows. */
static inline u64 oc_round_pages(u64 len)
{
	u64 up = len + (PAGE_SIZE - 1);

	return up < len ? 0 : up & PAGE_MASK;
}

/*
 * What one step takes is bounded in bytes, since pages have 4, 16 or 64 KiB, and a PMD maps 2, 32
 * or 512 MiB. A window: 2 MiB, or what a PMD maps where that is less.
 */
#define OC_WINDOW_BYTES(pmd) ((pmd) < SZ_2M ? (pmd) : SZ_2M)
#define OC_PAGES_IN(bytes, page) ((bytes) > (page) ? (bytes) / (page) : 1)

/* What one fault maps: [lo, hi) of the importer, whose first byte is the owner's `at`. */
struct oc_window {
	unsigned long lo;
	unsigned long hi;
	unsigned long at;
};

/*
 * The window around the page `addr` of a VMA [vm_start, vm_end) that shows the owner's page
 * `owner`, of a segment [seg, seg_end). It is aligned to `bytes` (a power of two, PAGE_SIZE to
 * PMD_SIZE) in the importer, and clipped to VMA and segment. The owner's page lies in the segment.
 */
static inline void oc_window_around(struct oc_window *w, unsigned long addr, unsigned long owner,
				    unsigned long vm_start, unsigned long vm_end, unsigned long seg,
				    unsigned long seg_end, unsigned long bytes)
{
	unsigned long back, ahead;

	w->lo = max(addr & ~(bytes - 1), vm_start);
	back = min(addr - w->lo, owner - seg);
	ahead = min(bytes - (addr & (bytes - 1)), vm_end - addr);
	ahead = min(ahead, seg_end - owner);
	w->lo = addr - back;
	w->hi = addr + ahead;
	w->at = owner - back;
}

/* The permission bits of a mode, 4 read and 2 write, that apply to somebody. */
static inline unsigned int oc_mode_bits(umode_t mode, bool owner, bool group)
{
	return (owner ? mode >> 6 : group ? mode >> 3 : mode) & 7;
}

/* Ids are positive numbers of so many bits, in 14 hexadecimal digits. */
#define OC_ID_BITS 56

/* A permit: the place in its table and random bits that make the number unguessable. */
static inline s64 oc_permit_encode(u32 slot, u32 nonce)
{
	return (s64)(((u64)(nonce & GENMASK(OC_ID_BITS - 33, 0)) << 32) | slot);
}

static inline u32 oc_permit_slot(s64 id)
{
	return (u32)id;
}

/* One piece of memory in a vector, with the same members as the interface's. */
struct oc_iovec {
	u64 base;
	u64 len;
};

/* A place in a vector. */
struct oc_cursor {
	u32 index;
	u64 offset; /* in that piece */
};

/* Sum of a vector's lengths, or a negative errno: every piece and the sum must be addressable. */
static inline s64 oc_iovec_total(const struct oc_iovec *v, u32 n, u64 limit)
{
	u64 total = 0, end;
	u32 i;

	for (i = 0; i < n; i++) {
		if (check_add_overflow(v[i].base, v[i].len, &end) || (v[i].len && end > limit))
			return -EINVAL;
		if (check_add_overflow(total, v[i].len, &total) || total > S64_MAX)
			return -EINVAL;
	}
	return (s64)total;
}

/* The place `offset` bytes into a vector: the first byte of a piece that has one, or the end. */
static inline void oc_iovec_seek(struct oc_cursor *c, const struct oc_iovec *v, u32 n, u64 offset)
{
	c->index = 0;
	while (c->index < n && offset >= v[c->index].len)
		offset -= v[c->index++].len;
	c->offset = c->index < n ? offset : 0;
}

/* Bytes that follow the cursor in its piece: 0 only at the end. */
static inline u64 oc_iovec_left(const struct oc_cursor *c, const struct oc_iovec *v, u32 n)
{
	return c->index < n ? v[c->index].len - c->offset : 0;
}

/* bytes <= oc_iovec_left() */
static inline void oc_iovec_advance(struct oc_cursor *c, const struct oc_iovec *v, u32 n, u64 bytes)
{
	c->offset += bytes;
	while (c->index < n && c->offset >= v[c->index].len) {
		c->offset -= v[c->index].len;
		c->index++;
	}
}

/* Pages that [base, base + len) touches. */
static inline unsigned long oc_pages_of(u64 base, u64 len)
{
	return len ? ((base + len - 1) >> PAGE_SHIFT) - (base >> PAGE_SHIFT) + 1 : 0;
}

#endif
