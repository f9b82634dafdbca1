// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver in software as a test program uses it. Included by tests, beside `build`.
//!
//! # Safety
//! Functions of the driver beside this file, called as its header says.
#![allow(unsafe_code, reason = "calls of the driver")]
#![allow(dead_code, reason = "each test program uses a part")]

use crate::build;
use cuda_sys::{CUcontext, Library};
use onecopy_cuda::copies::{ToDevice, to_host};
use onecopy_cuda::{Error, is_possible};
use onecopy_shm::sync::AtomicU32;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What a program uses of the driver, beside what the library does.
macro_rules! functions {
    ($($name:ident: fn($($type:ty),*) -> $result:ty = $symbol:literal;)*) => {
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl Functions {
            fn find(handle: *mut c_void) -> Self {
                Self {
                    $($name: {
                        let found = symbol(handle, $symbol);
                        // SAFETY: the symbol is the function that the header declares so.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(found) }
                    },)*
                }
            }
        }
    };
}

pub(crate) type Handle = *mut c_void;

functions! {
    create: fn(*mut CUcontext, c_uint, c_int) -> c_int = c"cuCtxCreate_v2";
    destroy: fn(CUcontext) -> c_int = c"cuCtxDestroy_v2";
    reset: fn(c_int) -> c_int = c"cuDevicePrimaryCtxReset_v2";
    set_current: fn(CUcontext) -> c_int = c"cuCtxSetCurrent";
    managed: fn(*mut u64, usize, c_uint) -> c_int = c"cuMemAllocManaged";
    blocking_copy: fn(*mut c_void, u64, usize) -> c_int = c"cuMemcpyDtoH_v2";
    module: fn(*mut Handle, *const c_char) -> c_int = c"cuModuleLoadData";
    function: fn(*mut Handle, Handle, *const c_char) -> c_int = c"cuModuleGetFunction";
    launch: fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut c_void) -> c_int = c"cuLaunchKernel";
    fault: fn(c_int, c_int) -> () = c"cuModelFault";
    blocking_calls: fn() -> u64 = c"cuModelBlockingCalls";
    capture: fn(c_int) -> () = c"cuModelCapture";
    capture_is_broken: fn() -> c_int = c"cuModelCaptureIsBroken";
    objects: fn() -> u64 = c"cuModelObjects";
    registered: fn() -> u64 = c"cuModelRegistered";
    hold: fn(c_int, c_int) -> () = c"cuModelHold";
    between: fn() -> u64 = c"cuModelBetween";
    entries: fn() -> u64 = c"cuModelEntries";
    mappings: fn() -> u64 = c"cuModelMappings";
    openings: fn() -> u64 = c"cuModelOpenings";
    showings: fn() -> u64 = c"cuModelShowings";
    misuses: fn() -> u64 = c"cuModelMisuses";
}

pub(crate) const NO_FAULT: c_int = 0;
pub(crate) const ILLEGAL: c_int = 2;
pub(crate) const LOST: c_int = 3;
pub(crate) const NO_EVENT: c_int = 5;
pub(crate) const NO_FREE: c_int = 6;

pub(crate) fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: an open handle, a name that ends with a zero.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// The driver, with a context that is the thread's one. Tests take turns: faults are the whole driver's.
pub(crate) struct Driver {
    pub(crate) library: &'static Library,
    pub(crate) functions: &'static Functions,
    pub(crate) context: CUcontext,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) fn driver() -> Driver {
    static TURN: Mutex<()> = Mutex::new(());
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let functions = FUNCTIONS.get_or_init(|| {
        let path = build::build(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("software"));
        let name = CString::new(path.as_os_str().as_bytes()).expect("a name");
        // SAFETY: the driver beside this file.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", path.display());
        Functions::find(handle)
    });
    assert!(is_possible());
    let library = Library::loaded().expect("loaded").expect("complete");
    // SAFETY: the driver reads it in the call below, and other tests wait for their turn.
    unsafe { std::env::set_var("MODEL_CUDA_DEVICES", "2") };
    // SAFETY: as a program begins.
    unsafe { (library.cuInit)(0) };
    stage(library);
    let mut context = null_mut();
    // SAFETY: the place for the answer is ours.
    let code = unsafe { (functions.create)(&raw mut context, 0, 0) };
    assert_eq!(code, 0);
    Driver {
        library,
        functions,
        context,
        _turn: turn,
    }
}

/// Lets the staging pool be registered in a context that stays, as a program's context stays.
pub(crate) fn stage(library: &'static Library) {
    static STAGED: OnceLock<()> = OnceLock::new();
    STAGED.get_or_init(|| {
        let mut context = null_mut();
        // SAFETY: the place for the answer is ours.
        unsafe { (library.cuDevicePrimaryCtxRetain)(&raw mut context, 0) };
        // SAFETY: a context that stays.
        unsafe { (library.cuCtxPushCurrent)(context) };
        let mut address = 0;
        // SAFETY: the place for the answer is ours.
        unsafe { (library.cuMemAlloc)(&raw mut address, 1) };
        put(whole(address), &[1]).expect("a copy");
        // SAFETY: the place for the answer is ours.
        unsafe { (library.cuCtxPopCurrent)(&raw mut context) };
    });
}

impl Drop for Driver {
    fn drop(&mut self) {
        // No fault is left to others, and nothing is held back.
        self.fault(NO_FAULT, 0);
        self.let_go();
        // SAFETY: the context is ours.
        unsafe { (self.functions.destroy)(self.context) };
    }
}

impl Driver {
    pub(crate) fn alloc(&self, len: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the place for the answer is ours.
        let code = unsafe { (self.library.cuMemAlloc)(&raw mut address, len) };
        assert_eq!(code, 0);
        address
    }

    pub(crate) fn managed(&self, len: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the place for the answer is ours.
        let code = unsafe { (self.functions.managed)(&raw mut address, len, 1) };
        assert_eq!(code, 0);
        address
    }

    pub(crate) fn free(&self, address: u64) {
        // SAFETY: an allocation of this test.
        assert_eq!(unsafe { (self.library.cuMemFree)(address) }, 0);
    }

    pub(crate) fn blocking_calls(&self) -> u64 {
        // SAFETY: a look.
        unsafe { (self.functions.blocking_calls)() }
    }

    /// Copies between devices so far.
    pub(crate) fn between(&self) -> u64 {
        // SAFETY: a look.
        unsafe { (self.functions.between)() }
    }

    /// Mappings of other processes' memory that are open.
    pub(crate) fn mappings(&self) -> u64 {
        // SAFETY: a look.
        unsafe { (self.functions.mappings)() }
    }

    /// How many were opened so far.
    pub(crate) fn openings(&self) -> u64 {
        // SAFETY: a look.
        unsafe { (self.functions.openings)() }
    }

    /// How often it was asked so far to show memory to other processes.
    pub(crate) fn showings(&self) -> u64 {
        // SAFETY: a look.
        unsafe { (self.functions.showings)() }
    }

    /// Calls so far that no program may make.
    pub(crate) fn misuses(&self) -> u64 {
        // SAFETY: a look.
        unsafe { (self.functions.misuses)() }
    }

    /// How often this thread has entered a context.
    pub(crate) fn entries(&self) -> u64 {
        // SAFETY: a look.
        unsafe { (self.functions.entries)() }
    }

    /// Makes it fail so, after so many more operations of that kind.
    pub(crate) fn fault(&self, fault: c_int, after: c_int) {
        // SAFETY: a fault that a test asks for.
        unsafe { (self.functions.fault)(fault, after) };
    }

    /// Lets go what was held back.
    pub(crate) fn let_go(&self) {
        // SAFETY: copies that are held back alone are concerned.
        unsafe { (self.functions.hold)(0, 0) };
    }

    /// A kernel that occupies the device until the word has the value.
    pub(crate) fn spin(&self, word: &AtomicU32, value: u32, stream: usize) {
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: the driver in software looks at the name alone.
        unsafe { (self.functions.module)(&raw mut module, c"".as_ptr()) };
        // SAFETY: as above.
        unsafe { (self.functions.function)(&raw mut function, module, c"spin".as_ptr()) };
        let mut address = std::ptr::from_ref(word).expose_provenance() as u64;
        let mut value = value;
        let mut parameters = [(&raw mut address).cast(), (&raw mut value).cast()];
        let stream = std::ptr::without_provenance_mut(stream);
        // SAFETY: two parameters, as the kernel has; the word lives until the kernel is over.
        let code = unsafe {
            (self.functions.launch)(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                null_mut(),
            )
        };
        assert_eq!(code, 0);
    }
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|index| (index as u8).wrapping_mul(31) ^ (index >> 9) as u8 ^ seed)
        .collect()
}

/// Runs of `width` bytes, one each `pitch` bytes.
pub(crate) fn rows(
    base: u64,
    width: u64,
    pitch: u64,
) -> impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize)) {
    move |range, each| {
        let mut at = range.start;
        while at < range.end {
            let (row, column) = (at / width, at % width);
            let len = (width - column).min(range.end - at);
            each(base + row * pitch + column, len as usize);
            at += len;
        }
    }
}

pub(crate) fn put(
    mut runs: impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize)),
    bytes: &[u8],
) -> Result<(), Error> {
    let mut job = ToDevice::new();
    // SAFETY: memory of the test, which waits.
    while !unsafe { job.advance(&mut runs, bytes) }? {
        std::thread::yield_now();
    }
    Ok(())
}

pub(crate) fn get(
    mut runs: impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize)),
    len: usize,
) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; len];
    // SAFETY: memory of the test, which waits.
    unsafe { to_host(&mut runs, &mut out, &mut std::thread::yield_now) }?;
    Ok(out)
}

pub(crate) fn whole(
    base: u64,
) -> impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize)) + Send + 'static {
    rows(base, u64::MAX / 2, 0)
}

pub(crate) const CHUNK: usize = 512 << 10;
