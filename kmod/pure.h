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

/**
 * struct oc_range - a range of addresses
 * @start: the first one
 * @end: the one behind the last
 */
struct oc_range {
	unsigned long start;
	unsigned long end;
};

#define OC_RANGES 8
/**
 * struct oc_ranges - a few ranges that cover what was added
 * @n: how many
 * @range: the ranges, in no order
 */
struct oc_ranges {
	unsigned int n;
	struct oc_range range[OC_RANGES];
};

/**
 * oc_ranges_add() - add a range
 * @ranges: the ranges
 * @start: first address
 * @end: the address behind the last one
 *
 * It and what it touches become one range. So do, where there is no room left, it and what is
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

/**
 * oc_check_pages() - check a range of pages
 * @start: first address
 * @len: in bytes
 * @limit: the range must not go beyond this address
 *
 * Return: 0, or -EINVAL: it is empty, not made of whole pages, or beyond @limit.
 */
static inline int oc_check_pages(u64 start, u64 len, u64 limit)
{
	u64 end;

	if (!len || ((start | len) & ~PAGE_MASK))
		return -EINVAL;
	if (check_add_overflow(start, len, &end) || end > limit)
		return -EINVAL;
	return 0;
}

/**
 * oc_within() - whether a range lies within a size
 * @off: first byte
 * @len: bytes
 * @size: the size
 *
 * Return: true if it does. An empty range does, at any place up to the end.
 */
static inline bool oc_within(u64 off, u64 len, u64 size)
{
	return off <= size && len <= size - off;
}

/**
 * oc_round_pages() - round up to whole pages
 * @len: bytes
 *
 * Return: bytes; 0 when that overflows.
 */
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

/**
 * struct oc_window - what one fault maps
 * @lo: first address, of the importer
 * @hi: the address behind the last one
 * @at: the owner's address that @lo shows
 */
struct oc_window {
	unsigned long lo;
	unsigned long hi;
	unsigned long at;
};

/**
 * oc_window_around() - the window around a page
 * @w: gets the window
 * @addr: the page, of the importer
 * @owner: the owner's page that it shows, in the segment
 * @vm_start: first address of the VMA
 * @vm_end: the address behind the VMA
 * @seg: first address of the segment
 * @seg_end: the address behind the segment
 * @bytes: a power of two, PAGE_SIZE to PMD_SIZE
 *
 * It is aligned to @bytes in the importer, and clipped to VMA and segment.
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

/**
 * oc_mode_bits() - the permission bits of a mode that apply to a task
 * @mode: the mode
 * @owner: the task is of the owner's user
 * @group: it is of the owner's group
 *
 * Return: the bits, 4 to read and 2 to write.
 */
static inline unsigned int oc_mode_bits(umode_t mode, bool owner, bool group)
{
	return (owner ? mode >> 6 : group ? mode >> 3 : mode) & 7;
}

/* Ids are positive numbers of so many bits, in 14 hexadecimal digits. */
#define OC_ID_BITS 56

/**
 * oc_permit_encode() - the number of a permit
 * @slot: its place in the table of its file
 * @nonce: random bits, so that the number cannot be guessed
 *
 * Return: the number.
 */
static inline s64 oc_permit_encode(u32 slot, u32 nonce)
{
	return (s64)(((u64)(nonce & GENMASK(OC_ID_BITS - 33, 0)) << 32) | slot);
}

/**
 * oc_permit_slot() - the place of a permit in its table
 * @id: its number
 *
 * Return: the place.
 */
static inline u32 oc_permit_slot(s64 id)
{
	return (u32)id;
}

/**
 * struct oc_iovec - one piece of memory in a vector, with the same members as the interface's
 * @base: first address
 * @len: bytes
 */
struct oc_iovec {
	u64 base;
	u64 len;
};

/**
 * struct oc_cursor - a place in a vector
 * @index: a piece, or the number of pieces at the end
 * @offset: bytes into that piece
 */
struct oc_cursor {
	u32 index;
	u64 offset;
};

/**
 * oc_iovec_total() - check a vector, and add its lengths up
 * @v: the vector
 * @n: its pieces
 * @limit: no piece may go beyond this address
 *
 * Return: bytes, or -EINVAL: a piece or the sum is not addressable.
 */
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

/**
 * oc_iovec_seek() - find a place in a vector
 * @c: gets the place: the first byte of a piece that has one, or the end
 * @v: the vector
 * @n: its pieces
 * @offset: bytes into it
 */
static inline void oc_iovec_seek(struct oc_cursor *c, const struct oc_iovec *v, u32 n, u64 offset)
{
	c->index = 0;
	while (c->index < n && offset >= v[c->index].len)
		offset -= v[c->index++].len;
	c->offset = c->index < n ? offset : 0;
}

/**
 * oc_iovec_left() - how many bytes follow in the same piece
 * @c: the place
 * @v: the vector
 * @n: its pieces
 *
 * Return: bytes; 0 only at the end.
 */
static inline u64 oc_iovec_left(const struct oc_cursor *c, const struct oc_iovec *v, u32 n)
{
	return c->index < n ? v[c->index].len - c->offset : 0;
}

/**
 * oc_iovec_advance() - go on in a vector
 * @c: the place
 * @v: the vector
 * @n: its pieces
 * @bytes: at most oc_iovec_left()
 */
static inline void oc_iovec_advance(struct oc_cursor *c, const struct oc_iovec *v, u32 n, u64 bytes)
{
	c->offset += bytes;
	while (c->index < n && c->offset >= v[c->index].len) {
		c->offset -= v[c->index].len;
		c->index++;
	}
}

/**
 * oc_pages_of() - how many pages a range touches
 * @base: first address
 * @len: bytes
 *
 * Return: pages.
 */
static inline unsigned long oc_pages_of(u64 base, u64 len)
{
	return len ? ((base + len - 1) >> PAGE_SHIFT) - (base >> PAGE_SHIFT) + 1 : 0;
}

#endif
