/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What this library offers beyond the standard. */
#ifndef ONECOPY_MPI_EXT_H
#define ONECOPY_MPI_EXT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of CUDA devices may be passed as a buffer, where MPIX_Query_cuda_support() says so. */
#define MPIX_CUDA_AWARE_SUPPORT 1

/* 1: the driver of CUDA can be loaded, and its memory may be passed as a buffer. Else 0. */
int MPIX_Query_cuda_support(void);

#ifdef __cplusplus
}
#endif

#endif
