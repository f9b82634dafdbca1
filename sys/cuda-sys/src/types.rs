// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles, structures and numbers.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

macro_rules! handles {
    ($($(#[$about:meta])* $name:ident = $tag:ident;)*) => {$(
        /// What a handle points at: known to the driver alone.
        #[repr(C)]
        #[derive(Debug)]
        pub struct $tag {
            _private: [u8; 0],
        }
        $(#[$about])*
        pub type $name = *mut $tag;
    )*};
}

handles! {
    /// A context: what one process has on one device.
    CUcontext = CUctx_st;
    /// A queue of work.
    CUstream = CUstream_st;
    /// A mark in a queue, which is complete or not.
    CUevent = CUevent_st;
    /// A pool of stream-ordered allocations.
    CUmemoryPool = CUmemPoolHandle_st;
    /// An array of a texture.
    CUarray = CUarray_st;
}

/// An address of a device, or of the address space that devices and host share.
pub type CUdeviceptr = c_ulonglong;
/// A device's ordinal.
pub type CUdevice = c_int;
/// Physical memory that can be mapped.
pub type CUmemGenericAllocationHandle = c_ulonglong;
/// A number of 64 bits.
pub type cuuint64_t = u64;
/// What a call gives: `CUDA_SUCCESS` or `CUDA_ERROR_*`.
pub type CUresult = c_uint;
/// `CU_POINTER_ATTRIBUTE_*`.
pub type CUpointer_attribute = c_uint;
/// `CU_DEVICE_ATTRIBUTE_*`.
pub type CUdevice_attribute = c_uint;
/// `CU_MEMORYTYPE_*`.
pub type CUmemorytype = c_uint;
/// `CU_MEM_HANDLE_TYPE_*`.
pub type CUmemAllocationHandleType = c_uint;
/// `CU_MEM_ALLOCATION_TYPE_*`.
pub type CUmemAllocationType = c_uint;
/// `CU_MEM_LOCATION_TYPE_*`.
pub type CUmemLocationType = c_uint;
/// `CU_MEM_ACCESS_FLAGS_*`.
pub type CUmemAccess_flags = c_uint;
/// `CU_MEM_ALLOC_GRANULARITY_*`.
pub type CUmemAllocationGranularity_flags = c_uint;
/// `CU_MEM_RANGE_HANDLE_TYPE_*`.
pub type CUmemRangeHandleType = c_uint;
/// `CU_STREAM_CAPTURE_MODE_*`.
pub type CUstreamCaptureMode = c_uint;
/// `CU_GET_PROC_ADDRESS_*`, what was found.
pub type CUdriverProcAddressQueryResult = c_uint;

/// A device's number in the world.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUuuid {
    /// Its bytes.
    pub bytes: [c_char; 16],
}

/// Names an allocation to another process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcMemHandle {
    /// Known to the driver alone.
    pub reserved: [c_char; 64],
}

/// Names an event to another process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcEventHandle {
    /// Known to the driver alone.
    pub reserved: [c_char; 64],
}

/// Where memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmemLocation {
    /// `CU_MEM_LOCATION_TYPE_*`.
    pub type_: CUmemLocationType,
    /// The ordinal of a device.
    pub id: c_int,
}

/// Hints to an allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the manual of the driver explains each")]
pub struct CUmemAllocationProp_flags {
    pub compressionType: c_uchar,
    pub gpuDirectRDMACapable: c_uchar,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 4],
}

/// What physical memory is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`.
    pub type_: CUmemAllocationType,
    /// How it may be shown to other processes.
    pub requestedHandleTypes: CUmemAllocationHandleType,
    /// Where it is.
    pub location: CUmemLocation,
    /// Null.
    pub win32HandleMetaData: *mut c_void,
    /// Hints.
    pub allocFlags: CUmemAllocationProp_flags,
}

/// Who may use mapped memory, and how.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmemAccessDesc {
    /// Who.
    pub location: CUmemLocation,
    /// How.
    pub flags: CUmemAccess_flags,
}

/// What a pool is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`.
    pub allocType: CUmemAllocationType,
    /// How it may be shown to other processes.
    pub handleTypes: CUmemAllocationHandleType,
    /// Where it is.
    pub location: CUmemLocation,
    /// Null.
    pub win32SecurityAttributes: *mut c_void,
    /// Its bytes at most; zero: the driver's choice.
    pub maxSize: usize,
    /// Hints.
    pub usage: c_ushort,
    /// Zero.
    pub reserved: [c_uchar; 54],
}

/// Names an allocation of a pool to another process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolPtrExportData {
    /// Known to the driver alone.
    pub reserved: [c_uchar; 64],
}

/// A copy of rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the manual of the driver explains each")]
pub struct CUDA_MEMCPY2D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcPitch: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstPitch: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
}

macro_rules! numbers {
    ($($name:ident = $value:expr;)*) => {
        $(#[allow(missing_docs, reason = "the manual of the driver explains each")]
        pub const $name: c_uint = $value;)*
        /// All numbers with their names in C.
        #[doc(hidden)]
        pub const NUMBERS: &[(&str, c_uint)] = &[$((stringify!($name), $name)),*];
    };
}

numbers! {
    CUDA_SUCCESS = 0;
    CUDA_ERROR_INVALID_VALUE = 1;
    CUDA_ERROR_OUT_OF_MEMORY = 2;
    CUDA_ERROR_NOT_INITIALIZED = 3;
    CUDA_ERROR_DEINITIALIZED = 4;
    CUDA_ERROR_STUB_LIBRARY = 34;
    CUDA_ERROR_NO_DEVICE = 100;
    CUDA_ERROR_INVALID_DEVICE = 101;
    CUDA_ERROR_INVALID_CONTEXT = 201;
    CUDA_ERROR_MAP_FAILED = 205;
    CUDA_ERROR_ALREADY_MAPPED = 208;
    CUDA_ERROR_ECC_UNCORRECTABLE = 214;
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217;
    CUDA_ERROR_OPERATING_SYSTEM = 304;
    CUDA_ERROR_INVALID_HANDLE = 400;
    CUDA_ERROR_NOT_FOUND = 500;
    CUDA_ERROR_NOT_READY = 600;
    CUDA_ERROR_ILLEGAL_ADDRESS = 700;
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704;
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709;
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712;
    CUDA_ERROR_LAUNCH_FAILED = 719;
    CUDA_ERROR_NOT_PERMITTED = 800;
    CUDA_ERROR_NOT_SUPPORTED = 801;
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803;
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900;
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908;
    CUDA_ERROR_UNKNOWN = 999;
    CU_STREAM_NON_BLOCKING = 1;
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0;
    CU_STREAM_CAPTURE_MODE_RELAXED = 2;
    CU_EVENT_DISABLE_TIMING = 2;
    CU_EVENT_INTERPROCESS = 4;
    CU_MEMORYTYPE_HOST = 1;
    CU_MEMORYTYPE_DEVICE = 2;
    CU_MEMORYTYPE_ARRAY = 3;
    CU_MEMORYTYPE_UNIFIED = 4;
    CU_POINTER_ATTRIBUTE_CONTEXT = 1;
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;
    CU_POINTER_ATTRIBUTE_MAPPED = 13;
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14;
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17;
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18;
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20;
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40;
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41;
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83;
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89;
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102;
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103;
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115;
    CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES = 119;
    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124;
    CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125;
    CU_MEM_HANDLE_TYPE_NONE = 0;
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1;
    CU_MEM_ALLOCATION_TYPE_PINNED = 1;
    CU_MEM_LOCATION_TYPE_DEVICE = 1;
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1;
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0;
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1;
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1;
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;
    CU_MEMHOSTALLOC_PORTABLE = 1;
    CU_MEMHOSTALLOC_DEVICEMAP = 2;
    CU_MEMHOSTREGISTER_PORTABLE = 1;
    CU_MEMHOSTREGISTER_DEVICEMAP = 2;
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1;
    CU_GET_PROC_ADDRESS_SUCCESS = 0;
}
