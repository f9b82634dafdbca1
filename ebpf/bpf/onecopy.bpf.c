// SPDX-License-Identifier: GPL-2.0
/* The programs that observe copies in the kernel. They count; names, percentiles and advice are made outside. */
#include "causes.h"
#include "copies.h"
#include "ioctls.h"
#include "module.h"
#include "runtime.h"
#include "tasks.h"

char LICENSE[] SEC("license") = "GPL";
