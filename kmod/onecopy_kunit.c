// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of pure.h. With KUnit they are a suite of it; elsewhere ktap.h runs the same functions and
 * prints the same lines.
 */
#include <linux/module.h>

#include "pure.h"

#if IS_ENABLED(CONFIG_KUNIT)
#include <kunit/test.h>
#else
#include "ktap.h"
#endif

#define LIMIT (0x800000000000ULL - PAGE_SIZE)

static void oc_test_check_pages(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, oc_check_pages(0, PAGE_SIZE, LIMIT), 0);
	KUNIT_EXPECT_EQ(test, oc_check_pages(PAGE_SIZE, LIMIT - PAGE_SIZE, LIMIT), 0);
	KUNIT_EXPECT_EQ(test, oc_check_pages(0, 0, LIMIT), -EINVAL);
	KUNIT_EXPECT_EQ(test, oc_check_pages(1, PAGE_SIZE, LIMIT), -EINVAL);
	KUNIT_EXPECT_EQ(test, oc_check_pages(0, PAGE_SIZE + 1, LIMIT), -EINVAL);
	KUNIT_EXPECT_EQ(test, oc_check_pages(PAGE_SIZE, LIMIT, LIMIT), -EINVAL);
	/* The sum wraps to something small. */
	KUNIT_EXPECT_EQ(test, oc_check_pages(PAGE_SIZE, 0 - (u64)PAGE_SIZE, LIMIT), -EINVAL);
	KUNIT_EXPECT_EQ(test, oc_check_pages(2 * PAGE_SIZE, 0 - (u64)PAGE_SIZE, LIMIT), -EINVAL);
}

static void oc_test_within(struct kunit *test)
{
	KUNIT_EXPECT_TRUE(test, oc_within(0, 10, 10));
	KUNIT_EXPECT_TRUE(test, oc_within(10, 0, 10));
	KUNIT_EXPECT_FALSE(test, oc_within(11, 0, 10));
	KUNIT_EXPECT_FALSE(test, oc_within(1, 10, 10));
	KUNIT_EXPECT_FALSE(test, oc_within(5, U64_MAX, 10));
	KUNIT_EXPECT_FALSE(test, oc_within(U64_MAX, 2, 10));
}

static void oc_test_round_pages(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, oc_round_pages(0), 0ULL);
	KUNIT_EXPECT_EQ(test, oc_round_pages(1), (u64)PAGE_SIZE);
	KUNIT_EXPECT_EQ(test, oc_round_pages(PAGE_SIZE), (u64)PAGE_SIZE);
	KUNIT_EXPECT_EQ(test, oc_round_pages(PAGE_SIZE + 1), (u64)(2 * PAGE_SIZE));
	KUNIT_EXPECT_EQ(test, oc_round_pages(U64_MAX), 0ULL);
	KUNIT_EXPECT_EQ(test, oc_round_pages(0 - (u64)PAGE_SIZE), 0 - (u64)PAGE_SIZE);
}

/*
 * Every window holds its page, stays within VMA and segment, and does not cross a boundary of its
 * size.
 */
static void oc_test_window(struct kunit *test)
{
	static const unsigned long sizes[] = { PAGE_SIZE, 16 * PAGE_SIZE, PMD_SIZE };
	unsigned long seg = 16 * PMD_SIZE + 3 * PAGE_SIZE,
		      seg_end = seg + 3 * PMD_SIZE + 5 * PAGE_SIZE;
	unsigned long vm = 32 * PMD_SIZE + 7 * PAGE_SIZE, page, i;
	struct oc_window w;

	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		for (page = 0; page < (seg_end - seg) >> PAGE_SHIFT; page++) {
			unsigned long addr = vm + page * PAGE_SIZE, owner = seg + page * PAGE_SIZE,
				      len;

			oc_window_around(&w, addr, owner, vm, vm + (seg_end - seg), seg, seg_end,
					 sizes[i]);
			len = w.hi - w.lo;
			KUNIT_ASSERT_TRUE(test, w.lo <= addr && addr < w.hi);
			KUNIT_ASSERT_TRUE(test, w.lo >= vm && w.hi <= vm + (seg_end - seg));
			KUNIT_ASSERT_TRUE(test, w.at >= seg && w.at + len <= seg_end);
			KUNIT_ASSERT_EQ(test, owner - w.at, addr - w.lo);
			KUNIT_ASSERT_EQ(test, w.lo & ~(sizes[i] - 1), (w.hi - 1) & ~(sizes[i] - 1));
		}
	}
	/* All of it, where nothing is in the way. */
	oc_window_around(&w, 8 * PMD_SIZE + PAGE_SIZE, 4 * PMD_SIZE + PAGE_SIZE, 0, 100 * PMD_SIZE,
			 0, 100 * PMD_SIZE, PMD_SIZE);
	KUNIT_EXPECT_EQ(test, w.lo, (unsigned long)(8 * PMD_SIZE));
	KUNIT_EXPECT_EQ(test, w.hi, (unsigned long)(9 * PMD_SIZE));
	KUNIT_EXPECT_EQ(test, w.at, (unsigned long)(4 * PMD_SIZE));
	/* The segment begins in the middle of it. */
	oc_window_around(&w, 8 * PMD_SIZE + 4 * PAGE_SIZE, PMD_SIZE, 0, 100 * PMD_SIZE, PMD_SIZE,
			 2 * PMD_SIZE, PMD_SIZE);
	KUNIT_EXPECT_EQ(test, w.lo, (unsigned long)(8 * PMD_SIZE + 4 * PAGE_SIZE));
	KUNIT_EXPECT_EQ(test, w.hi, (unsigned long)(9 * PMD_SIZE));
	KUNIT_EXPECT_EQ(test, w.at, (unsigned long)PMD_SIZE);
}

/* In pages of every size, with the PMD that goes with it. */
static void oc_test_bytes(struct kunit *test)
{
	static const struct {
		unsigned long page, pmd, window, batch;
	} kinds[] = {
		{ SZ_4K, SZ_2M, 512, 64 },
		{ SZ_16K, SZ_32M, 128, 16 },
		{ SZ_64K, SZ_512M, 32, 4 },
		/* Two levels of tables, as some have for 32 bits. */
		{ SZ_4K, SZ_1M, 256, 64 },
		{ SZ_256K, SZ_512M, 8, 1 },
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		unsigned long page = kinds[i].page, bytes = OC_WINDOW_BYTES(kinds[i].pmd);

		KUNIT_EXPECT_EQ(test, OC_PAGES_IN(bytes, page), kinds[i].window);
		KUNIT_EXPECT_EQ(test, OC_PAGES_IN(SZ_256K, page), kinds[i].batch);
	}
	KUNIT_EXPECT_EQ(test, OC_PAGES_IN(SZ_4K, SZ_64K), 1);
}

static void oc_test_mode(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, oc_mode_bits(0640, true, true), 6U);
	KUNIT_EXPECT_EQ(test, oc_mode_bits(0640, false, true), 4U);
	KUNIT_EXPECT_EQ(test, oc_mode_bits(0640, false, false), 0U);
	/* The owner's bits count for the owner, even where the group's say more. */
	KUNIT_EXPECT_EQ(test, oc_mode_bits(0060, true, true), 0U);
}

static void oc_test_permit(struct kunit *test)
{
	static const u32 slots[] = { 1, 2, 0x7fffffff },
			 nonces[] = { 0, 1, 0x80000000, 0xffffffff };
	int i, j;

	for (i = 0; i < ARRAY_SIZE(slots); i++) {
		for (j = 0; j < ARRAY_SIZE(nonces); j++) {
			s64 id = oc_permit_encode(slots[i], nonces[j]);

			KUNIT_EXPECT_TRUE(test, id > 0);
			KUNIT_EXPECT_EQ(test, oc_permit_slot(id), slots[i]);
			KUNIT_EXPECT_EQ(test, id >> OC_ID_BITS, 0LL);
		}
	}
	KUNIT_EXPECT_TRUE(test, oc_permit_encode(7, 1) != oc_permit_encode(7, 2));
}

static void oc_test_iovec_total(struct kunit *test)
{
	struct oc_iovec v[3] = { { 0x1000, 10 }, { U64_MAX, 0 }, { 0x3000, 5 } };

	KUNIT_EXPECT_EQ(test, oc_iovec_total(v, 3, LIMIT), 15LL);
	KUNIT_EXPECT_EQ(test, oc_iovec_total(v, 0, LIMIT), 0LL);
	v[1] = (struct oc_iovec){ U64_MAX, 1 };
	KUNIT_EXPECT_EQ(test, oc_iovec_total(v, 3, LIMIT), (s64)-EINVAL);
	v[1] = (struct oc_iovec){ 1, U64_MAX };
	KUNIT_EXPECT_EQ(test, oc_iovec_total(v, 3, LIMIT), (s64)-EINVAL);
	v[1] = (struct oc_iovec){ LIMIT, 1 };
	KUNIT_EXPECT_EQ(test, oc_iovec_total(v, 3, LIMIT), (s64)-EINVAL);
	/* Each is addressable, the sum is not. */
	v[0] = (struct oc_iovec){ 0, S64_MAX };
	v[1] = v[0];
	v[2] = v[0];
	KUNIT_EXPECT_EQ(test, oc_iovec_total(v, 3, U64_MAX), (s64)-EINVAL);
}

/* A walk in steps of every size visits each byte once and in order, however the vector is cut. */
static void oc_test_iovec_walk(struct kunit *test)
{
	static const struct oc_iovec v[] = { { 100, 0 }, { 200, 3 }, { 300, 0 },
					     { 400, 1 }, { 500, 7 }, { 600, 0 } };
	const u32 n = ARRAY_SIZE(v);
	u64 total = oc_iovec_total(v, n, LIMIT), start, step;

	for (start = 0; start <= total; start++) {
		for (step = 1; step <= total; step++) {
			u64 at = start, expect_piece = 0, before = 0;
			struct oc_cursor c;

			oc_iovec_seek(&c, v, n, start);
			while (oc_iovec_left(&c, v, n)) {
				u64 take = min(step, oc_iovec_left(&c, v, n));

				while (at >= before + v[expect_piece].len)
					before += v[expect_piece++].len;
				KUNIT_ASSERT_EQ(test, v[c.index].base + c.offset,
						v[expect_piece].base + (at - before));
				oc_iovec_advance(&c, v, n, take);
				at += take;
			}
			KUNIT_ASSERT_EQ(test, at, total);
			KUNIT_ASSERT_EQ(test, c.index, n);
		}
	}
}

static void oc_test_pages_of(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, oc_pages_of(0, 0), 0UL);
	KUNIT_EXPECT_EQ(test, oc_pages_of(PAGE_SIZE - 1, 1), 1UL);
	KUNIT_EXPECT_EQ(test, oc_pages_of(PAGE_SIZE - 1, 2), 2UL);
	KUNIT_EXPECT_EQ(test, oc_pages_of(0, PAGE_SIZE), 1UL);
	KUNIT_EXPECT_EQ(test, oc_pages_of(1, PAGE_SIZE), 2UL);
}

static void oc_test_ranges(struct kunit *test)
{
	struct oc_ranges r = {};
	unsigned long page, i;

	/* What touches becomes one, in front and behind. */
	oc_ranges_add(&r, 10, 20);
	oc_ranges_add(&r, 20, 30);
	oc_ranges_add(&r, 5, 12);
	KUNIT_EXPECT_EQ(test, r.n, 1U);
	KUNIT_EXPECT_EQ(test, r.range[0].start, 5UL);
	KUNIT_EXPECT_EQ(test, r.range[0].end, 30UL);
	/* What does not stays apart ... */
	for (i = 1; i < OC_RANGES; i++)
		oc_ranges_add(&r, 100 * i, 100 * i + 10);
	KUNIT_EXPECT_EQ(test, r.n, (unsigned int)OC_RANGES);
	/* ... as long as there is room: then with what is nearest. */
	oc_ranges_add(&r, 330, 340);
	KUNIT_EXPECT_EQ(test, r.n, (unsigned int)OC_RANGES);
	KUNIT_EXPECT_EQ(test, r.range[3].start, 300UL);
	KUNIT_EXPECT_EQ(test, r.range[3].end, 340UL);
	/* Whatever was added is in one of them. */
	for (page = 0; page < 1000; page++) {
		unsigned long at = page * 7919 % 1000, found = 0;

		oc_ranges_add(&r, at, at + 1);
		for (i = 0; i < r.n; i++)
			found += r.range[i].start <= at && at < r.range[i].end;
		KUNIT_ASSERT_TRUE(test, found > 0);
	}
	KUNIT_EXPECT_EQ(test, r.n, (unsigned int)OC_RANGES);
}

static struct kunit_case oc_cases[] = {
	KUNIT_CASE(oc_test_check_pages),
	KUNIT_CASE(oc_test_within),
	KUNIT_CASE(oc_test_round_pages),
	KUNIT_CASE(oc_test_window),
	KUNIT_CASE(oc_test_bytes),
	KUNIT_CASE(oc_test_mode),
	KUNIT_CASE(oc_test_permit),
	KUNIT_CASE(oc_test_iovec_total),
	KUNIT_CASE(oc_test_iovec_walk),
	KUNIT_CASE(oc_test_pages_of),
	KUNIT_CASE(oc_test_ranges),
	{},
};

static struct kunit_suite oc_suite = {
	.name = "onecopy",
	.test_cases = oc_cases,
};

kunit_test_suite(oc_suite);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Tests of the onecopy module's arithmetic");
