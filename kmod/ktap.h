/* SPDX-License-Identifier: GPL-2.0 */
/*
 * As much of KUnit as onecopy_kunit.c uses, for kernels that are built without it. A failed test
 * makes the module fail to load.
 */
#ifndef OC_KTAP_H
#define OC_KTAP_H

#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/printk.h>

struct kunit {
	bool failed;
};

struct kunit_case {
	void (*run)(struct kunit *test);
	const char *name;
};

struct kunit_suite {
	const char *name;
	struct kunit_case *test_cases;
};

#define KUNIT_CASE(function) { .run = function, .name = #function }

#define OC_KTAP_FAIL(test, what)                                            \
	do {                                                                \
		(test)->failed = true;                                      \
		pr_err("    # %s:%d: %s\n", __FILE__, __LINE__, what);      \
	} while (0)

#define KUNIT_EXPECT_TRUE(test, c)                       \
	do {                                             \
		if (!(c))                                \
			OC_KTAP_FAIL(test, #c);          \
	} while (0)
#define KUNIT_EXPECT_FALSE(test, c) KUNIT_EXPECT_TRUE(test, !(c))
#define KUNIT_EXPECT_EQ(test, a, b) KUNIT_EXPECT_TRUE(test, (a) == (b))
#define KUNIT_ASSERT_TRUE(test, c)                       \
	do {                                             \
		if (!(c)) {                              \
			OC_KTAP_FAIL(test, #c);          \
			return;                          \
		}                                        \
	} while (0)
#define KUNIT_ASSERT_EQ(test, a, b) KUNIT_ASSERT_TRUE(test, (a) == (b))

static inline int oc_ktap_run(struct kunit_suite *suite)
{
	struct kunit_case *c;
	int n = 0, failed = 0;

	for (c = suite->test_cases; c->run; c++)
		n++;
	pr_info("KTAP version 1\n1..1\n    KTAP version 1\n    # Subtest: %s\n    1..%d\n",
		suite->name, n);
	for (c = suite->test_cases, n = 1; c->run; c++, n++) {
		struct kunit test = {};

		c->run(&test);
		failed += test.failed;
		pr_info("    %s %d %s\n", test.failed ? "not ok" : "ok", n, c->name);
	}
	pr_info("%s 1 %s\n", failed ? "not ok" : "ok", suite->name);
	return failed ? -EIO : 0;
}

#define kunit_test_suite(suite)                           \
	static int __init oc_ktap_init(void)              \
	{                                                 \
		return oc_ktap_run(&(suite));             \
	}                                                 \
	module_init(oc_ktap_init);                        \
	static void __exit oc_ktap_exit(void)             \
	{                                                 \
	}                                                 \
	module_exit(oc_ktap_exit)

#endif
