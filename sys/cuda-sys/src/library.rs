// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library, opened when it is first used.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::sync::OnceLock;

use crate::loader::Handle;
use crate::*;

/// What is opened. The number is that of the interface, the same since 2007.
const NAME: &CStr = c"libcuda.so.1";

/// Why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The loader's or our word for it.
    reason: String,
}

impl Missing {
    /// What would help.
    pub const REMEDY: &str =
        "install the NVIDIA driver (Debian: libcuda1); in a container, pass the devices in";

    /// What was seen.
    #[must_use]
    pub fn seen(&self) -> String {
        format!("dlopen of {}: {}", NAME.to_string_lossy(), self.reason)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.seen(), Self::REMEDY)
    }
}

impl std::error::Error for Missing {}

/// A function, for the comparison with the C header.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its name without a version.
    pub name: &'static str,
    /// The exported symbol.
    pub symbol: &'static str,
    /// The version of CUDA in which it got this signature, times 1000.
    pub version: c_int,
    /// The types of its arguments, as Rust writes them.
    pub arguments: &'static [&'static str],
}

macro_rules! functions {
    (
        always { $($(#[$about:meta])* $name:ident $symbol:literal $version:literal ($($argument:ident: $type:ty),* $(,)?);)* }
        perhaps { $($(#[$about2:meta])* $name2:ident $symbol2:literal $version2:literal ($($argument2:ident: $type2:ty),* $(,)?);)* }
    ) => {
        /// The functions of the driver, by their names in C.
        #[derive(Clone, Copy)]
        pub struct Library {
            $($(#[$about])* pub $name: unsafe extern "C" fn($($argument: $type),*) -> CUresult,)*
            $($(#[$about2])* pub $name2: Option<unsafe extern "C" fn($($argument2: $type2),*) -> CUresult>,)*
        }

        impl Library {
            fn find(finder: &Finder) -> Result<Self, Missing> {
                Ok(Self {
                    $($name: {
                        let found = finder.find(concat!(stringify!($name), "\0"), concat!($symbol, "\0"), $version)?;
                        // SAFETY: name and version, or the symbol, are those of the function that is declared so.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument: $type),*) -> CUresult>(found)
                        }
                    },)*
                    $($name2: {
                        let found = finder.find(concat!(stringify!($name2), "\0"), concat!($symbol2, "\0"), $version2);
                        // SAFETY: as above.
                        found.ok().map(|found| unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument2: $type2),*) -> CUresult>(found)
                        })
                    },)*
                })
            }

            /// All functions.
            #[doc(hidden)]
            pub const FUNCTIONS: &[Function] = &[
                $(Function { name: stringify!($name), symbol: $symbol, version: $version, arguments: &[$(stringify!($type)),*] },)*
                $(Function { name: stringify!($name2), symbol: $symbol2, version: $version2, arguments: &[$(stringify!($type2)),*] },)*
            ];
        }
    };
}

functions! {
    always {
        /// Begins: no other function works before.
        cuInit "cuInit" 2000 (flags: c_uint);
        /// The version of CUDA that the driver has, times 1000.
        cuDriverGetVersion "cuDriverGetVersion" 2020 (version: *mut c_int);
        /// The name of an error.
        cuGetErrorName "cuGetErrorName" 6000 (error: CUresult, name: *mut *const c_char);
        /// Words for an error.
        cuGetErrorString "cuGetErrorString" 6000 (error: CUresult, text: *mut *const c_char);
        /// How many devices there are.
        cuDeviceGetCount "cuDeviceGetCount" 2000 (count: *mut c_int);
        /// A device.
        cuDeviceGet "cuDeviceGet" 2000 (device: *mut CUdevice, ordinal: c_int);
        /// Its name.
        cuDeviceGetName "cuDeviceGetName" 2000 (name: *mut c_char, length: c_int, device: CUdevice);
        /// What it can do.
        cuDeviceGetAttribute "cuDeviceGetAttribute" 2000 (value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
        /// Its address on the bus.
        cuDeviceGetPCIBusId "cuDeviceGetPCIBusId" 4010 (id: *mut c_char, length: c_int, device: CUdevice);
        /// Bytes of its memory.
        cuDeviceTotalMem "cuDeviceTotalMem_v2" 3020 (bytes: *mut usize, device: CUdevice);
        /// Whether one device can use another one's memory.
        cuDeviceCanAccessPeer "cuDeviceCanAccessPeer" 4000 (can: *mut c_int, device: CUdevice, peer: CUdevice);
        /// Keeps the context that all of the process share on a device.
        cuDevicePrimaryCtxRetain "cuDevicePrimaryCtxRetain" 7000 (context: *mut CUcontext, device: CUdevice);
        /// Gives it back.
        cuDevicePrimaryCtxRelease "cuDevicePrimaryCtxRelease_v2" 11000 (device: CUdevice);
        /// Whether it is there.
        cuDevicePrimaryCtxGetState "cuDevicePrimaryCtxGetState" 7000 (device: CUdevice, flags: *mut c_uint, active: *mut c_int);
        /// Exchanges how captures of streams restrict this thread.
        cuThreadExchangeStreamCaptureMode "cuThreadExchangeStreamCaptureMode" 10010 (mode: *mut CUstreamCaptureMode);
        /// The thread's context; null: none.
        cuCtxGetCurrent "cuCtxGetCurrent" 4000 (context: *mut CUcontext);
        /// Makes a context the thread's one.
        cuCtxPushCurrent "cuCtxPushCurrent_v2" 4000 (context: CUcontext);
        /// Ends that.
        cuCtxPopCurrent "cuCtxPopCurrent_v2" 4000 (context: *mut CUcontext);
        /// The device of the thread's context.
        cuCtxGetDevice "cuCtxGetDevice" 2000 (device: *mut CUdevice);
        /// Lets the thread's context use memory of another one.
        cuCtxEnablePeerAccess "cuCtxEnablePeerAccess" 4000 (peer: CUcontext, flags: c_uint);
        /// What is known of an address.
        cuPointerGetAttribute "cuPointerGetAttribute" 4000 (data: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
        /// Several at once. Of an address that the driver does not know, zeros.
        cuPointerGetAttributes "cuPointerGetAttributes" 7000 (count: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, address: CUdeviceptr);
        /// The allocation around an address.
        cuMemGetAddressRange "cuMemGetAddressRange_v2" 3020 (base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
        /// Memory of the device.
        cuMemAlloc "cuMemAlloc_v2" 3020 (address: *mut CUdeviceptr, bytes: usize);
        /// Gives it back. It may wait for the device.
        cuMemFree "cuMemFree_v2" 3020 (address: CUdeviceptr);
        /// Host memory that the device can reach.
        cuMemAllocHost "cuMemAllocHost_v2" 3020 (memory: *mut *mut c_void, bytes: usize);
        /// The same, with a choice.
        cuMemHostAlloc "cuMemHostAlloc" 2020 (memory: *mut *mut c_void, bytes: usize, flags: c_uint);
        /// Gives it back. It may wait for the device.
        cuMemFreeHost "cuMemFreeHost" 2000 (memory: *mut c_void);
        /// Makes host memory reachable to the device.
        cuMemHostRegister "cuMemHostRegister_v2" 6050 (memory: *mut c_void, bytes: usize, flags: c_uint);
        /// Ends that.
        cuMemHostUnregister "cuMemHostUnregister" 4000 (memory: *mut c_void);
        /// A copy between any two addresses.
        cuMemcpyAsync "cuMemcpyAsync" 4000 (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        /// A copy to a device.
        cuMemcpyHtoDAsync "cuMemcpyHtoDAsync_v2" 3020 (to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        /// A copy from a device.
        cuMemcpyDtoHAsync "cuMemcpyDtoHAsync_v2" 3020 (to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        /// A copy on a device.
        cuMemcpyDtoDAsync "cuMemcpyDtoDAsync_v2" 3020 (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        /// A copy between contexts.
        cuMemcpyPeerAsync "cuMemcpyPeerAsync" 4000 (to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream);
        /// A copy of rows.
        cuMemcpy2DAsync "cuMemcpy2DAsync_v2" 3020 (copy: *const CUDA_MEMCPY2D, stream: CUstream);
        /// A queue of work.
        cuStreamCreate "cuStreamCreate" 2000 (stream: *mut CUstream, flags: c_uint);
        /// Ends it, once its work is done; it does not wait for that.
        cuStreamDestroy "cuStreamDestroy_v2" 4000 (stream: CUstream);
        /// Whether its work is done.
        cuStreamQuery "cuStreamQuery" 2000 (stream: CUstream);
        /// Lets what follows in a queue wait for an event.
        cuStreamWaitEvent "cuStreamWaitEvent" 3020 (stream: CUstream, event: CUevent, flags: c_uint);
        /// An event.
        cuEventCreate "cuEventCreate" 2000 (event: *mut CUevent, flags: c_uint);
        /// Puts it into a queue.
        cuEventRecord "cuEventRecord" 2000 (event: CUevent, stream: CUstream);
        /// Whether what stood before it is done.
        cuEventQuery "cuEventQuery" 2000 (event: CUevent);
        /// Ends it.
        cuEventDestroy "cuEventDestroy_v2" 4000 (event: CUevent);
        /// Shows an event to other processes.
        cuIpcGetEventHandle "cuIpcGetEventHandle" 4010 (handle: *mut CUipcEventHandle, event: CUevent);
        /// Another process's event.
        cuIpcOpenEventHandle "cuIpcOpenEventHandle" 4010 (event: *mut CUevent, handle: CUipcEventHandle);
        /// Shows an allocation to other processes.
        cuIpcGetMemHandle "cuIpcGetMemHandle" 4010 (handle: *mut CUipcMemHandle, address: CUdeviceptr);
        /// Maps another process's allocation.
        cuIpcOpenMemHandle "cuIpcOpenMemHandle_v2" 11000 (address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
        /// Ends that.
        cuIpcCloseMemHandle "cuIpcCloseMemHandle" 4010 (address: CUdeviceptr);
    }
    perhaps {
        /// A context's number, which no other one of the process ever has.
        cuCtxGetId "cuCtxGetId" 12000 (context: CUcontext, id: *mut c_ulonglong);
        /// A device's number in the world; with MIG, that of the part.
        cuDeviceGetUuid "cuDeviceGetUuid_v2" 11040 (uuid: *mut CUuuid, device: CUdevice);
        /// Physical memory.
        cuMemCreate "cuMemCreate" 10020 (handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong);
        /// Gives it back.
        cuMemRelease "cuMemRelease" 10020 (handle: CUmemGenericAllocationHandle);
        /// Addresses without memory.
        cuMemAddressReserve "cuMemAddressReserve" 10020 (address: *mut CUdeviceptr, bytes: usize, alignment: usize, wanted: CUdeviceptr, flags: c_ulonglong);
        /// Gives them back.
        cuMemAddressFree "cuMemAddressFree" 10020 (address: CUdeviceptr, bytes: usize);
        /// Puts memory there.
        cuMemMap "cuMemMap" 10020 (address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
        /// Takes it away.
        cuMemUnmap "cuMemUnmap" 10020 (address: CUdeviceptr, bytes: usize);
        /// Says who may use it.
        cuMemSetAccess "cuMemSetAccess" 10020 (address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
        /// In which steps physical memory is made.
        cuMemGetAllocationGranularity "cuMemGetAllocationGranularity" 10020 (bytes: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags);
        /// Shows physical memory to other processes.
        cuMemExportToShareableHandle "cuMemExportToShareableHandle" 10020 (shared: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: c_ulonglong);
        /// Another process's physical memory.
        cuMemImportFromShareableHandle "cuMemImportFromShareableHandle" 10020 (handle: *mut CUmemGenericAllocationHandle, shared: *mut c_void, kind: CUmemAllocationHandleType);
        /// The physical memory at an address.
        cuMemRetainAllocationHandle "cuMemRetainAllocationHandle" 11000 (handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);
        /// What physical memory was made to be.
        cuMemGetAllocationPropertiesFromHandle "cuMemGetAllocationPropertiesFromHandle" 10020 (prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
        /// A pool of stream-ordered allocations.
        cuMemPoolCreate "cuMemPoolCreate" 11020 (pool: *mut CUmemoryPool, props: *const CUmemPoolProps);
        /// Ends it.
        cuMemPoolDestroy "cuMemPoolDestroy" 11020 (pool: CUmemoryPool);
        /// Says who may use its memory.
        cuMemPoolSetAccess "cuMemPoolSetAccess" 11020 (pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
        /// A device's pool.
        cuDeviceGetMemPool "cuDeviceGetMemPool" 11020 (pool: *mut CUmemoryPool, device: CUdevice);
        /// The pool that a device begins with.
        cuDeviceGetDefaultMemPool "cuDeviceGetDefaultMemPool" 11020 (pool: *mut CUmemoryPool, device: CUdevice);
        /// Memory in the order of a queue.
        cuMemAllocAsync "cuMemAllocAsync" 11020 (address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        /// The same, of a pool.
        cuMemAllocFromPoolAsync "cuMemAllocFromPoolAsync" 11020 (address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        /// Gives it back in the order of a queue.
        cuMemFreeAsync "cuMemFreeAsync" 11020 (address: CUdeviceptr, stream: CUstream);
        /// Shows a pool to other processes.
        cuMemPoolExportToShareableHandle "cuMemPoolExportToShareableHandle" 11020 (shared: *mut c_void, pool: CUmemoryPool, kind: CUmemAllocationHandleType, flags: c_ulonglong);
        /// Another process's pool.
        cuMemPoolImportFromShareableHandle "cuMemPoolImportFromShareableHandle" 11020 (pool: *mut CUmemoryPool, shared: *mut c_void, kind: CUmemAllocationHandleType, flags: c_ulonglong);
        /// Shows one of its allocations.
        cuMemPoolExportPointer "cuMemPoolExportPointer" 11020 (data: *mut CUmemPoolPtrExportData, address: CUdeviceptr);
        /// An allocation of another process's pool.
        cuMemPoolImportPointer "cuMemPoolImportPointer" 11020 (address: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData);
        /// A descriptor of device memory for other devices.
        cuMemGetHandleForAddressRange "cuMemGetHandleForAddressRange" 11070 (handle: *mut c_void, address: CUdeviceptr, bytes: usize, kind: CUmemRangeHandleType, flags: c_ulonglong);
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses say nothing.
        f.write_str("Library")
    }
}

type GetProcAddress = unsafe extern "C" fn(
    *const c_char,
    *mut *mut c_void,
    c_int,
    cuuint64_t,
    *mut CUdriverProcAddressQueryResult,
) -> CUresult;

/// Finds functions in an open library.
struct Finder {
    handle: Handle,
    get: Option<GetProcAddress>,
}

impl Finder {
    fn new(handle: Handle) -> Self {
        let found = handle.symbol("cuGetProcAddress_v2\0");
        let get = found.ok().map(|found| {
            // SAFETY: the symbol is the function that the C header declares so since CUDA 12.0.
            unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(found) }
        });
        Self { handle, get }
    }

    fn find(&self, name: &str, symbol: &str, version: c_int) -> Result<*mut c_void, Missing> {
        self.asked(name, version)
            .map_or_else(|| self.exported(symbol), Ok)
    }

    /// By the driver's own look-up.
    fn asked(&self, name: &str, version: c_int) -> Option<*mut c_void> {
        let name = CStr::from_bytes_until_nul(name.as_bytes()).ok()?;
        let mut found = std::ptr::null_mut();
        let mut status = CU_GET_PROC_ADDRESS_SUCCESS;
        let flags = cuuint64_t::from(CU_GET_PROC_ADDRESS_LEGACY_STREAM);
        // SAFETY: the name ends with a zero; the places for the answers are ours.
        let result = unsafe {
            (self.get?)(
                name.as_ptr(),
                &raw mut found,
                version,
                flags,
                &raw mut status,
            )
        };
        let good = result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS;
        (good && !found.is_null()).then_some(found)
    }

    /// By the loader.
    fn exported(&self, symbol: &str) -> Result<*mut c_void, Missing> {
        self.handle.symbol(symbol).map_err(|_| {
            let symbol = symbol.trim_end_matches('\0');
            let reason = format!("it has no {symbol}: it is older than CUDA 11.0");
            Missing { reason }
        })
    }
}

impl Library {
    /// The library. It is opened by the first call that can, and stays.
    ///
    /// # Errors
    ///
    /// What was missing the first time, and what would help. A later call may find it: the program may have opened it
    /// by its path meanwhile.
    pub fn load() -> Result<&'static Self, &'static Missing> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        static MISSING: OnceLock<Missing> = OnceLock::new();
        match LOADED.get() {
            Some(library) => Ok(library),
            None => match open(NAME) {
                Ok(library) => Ok(LOADED.get_or_init(|| library)),
                Err(missing) => Err(MISSING.get_or_init(|| missing)),
            },
        }
    }

    /// The library, if something of this process has opened it. It stays then.
    #[must_use]
    pub fn loaded() -> Option<Result<&'static Self, &'static Missing>> {
        is_there(NAME).then(Self::load)
    }
}

/// Whether this process has a library of that name.
fn is_there(name: &CStr) -> bool {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: the name ends with a zero. Nothing is loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: the handle was just given. The code that loaded the library has another one.
    unsafe { libc::dlclose(handle) };
    true
}

fn open(name: &CStr) -> Result<Library, Missing> {
    let handle = Handle::open(name, libc::RTLD_LOCAL).map_err(|reason| Missing { reason })?;
    Library::find(&Finder::new(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_remedy() {
        let missing = open(c"libcuda-is-not-here.so.1").expect_err("it is not there");
        let text = missing.to_string();
        assert!(text.contains("libcuda-is-not-here.so.1"), "{text}");
        assert!(text.contains("libcuda1"), "{text}");
    }

    #[test]
    fn a_library_without_a_function_is_too_old() {
        // The C library has none of them.
        let missing = open(c"libc.so.6").expect_err("another library");
        assert!(missing.to_string().contains("cuInit"), "{missing}");
    }

    #[test]
    fn asking_whether_it_is_there_loads_nothing() {
        assert!(is_there(c"libc.so.6"));
        assert!(!is_there(c"libanl.so.1"));
        assert!(!is_there(c"libanl.so.1"));
    }
}
