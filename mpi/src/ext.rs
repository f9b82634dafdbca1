// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is not of the standard: the functions of `include/mpi-ext.h`.
//!
//! # Safety
//! The names are this library's own, and the functions take no pointer.
#![allow(unsafe_code, reason = "exported symbols")]

/// Whether memory of CUDA devices may be passed as a buffer: 1 where the driver can be loaded and is not too old. It
/// may be called before `MPI_Init` and after `MPI_Finalize`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn MPIX_Query_cuda_support() -> i32 {
    i32::from(onecopy_cuda::is_supported())
}
