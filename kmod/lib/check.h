/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the two test programs share: a line per test, and the condition that did not hold. */
#ifndef ONECOPY_CHECK_H
#define ONECOPY_CHECK_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int failed;

/* Ends a test, which returns 1 if all is well. */
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("  %s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, \
			       strerror(errno)); \
			return 0; \
		} \
	} while (0)

static void run(const char *name, int (*test)(void))
{
	int ok = test();

	printf("%s %s\n", ok ? "ok" : "FAIL", name);
	failed += !ok;
}

#endif
