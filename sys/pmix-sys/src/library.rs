// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library, opened when it is first asked for.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::abi::*;
use crate::loader::Handle;
use crate::places;

/// What is opened. The number is that of the interface since PMIx 2.
pub const NAME: &str = "libpmix.so.2";

/// The versions whose headers were compared with [`abi`](crate::abi): from the first, to before the second.
const COMPARED: ((u32, u32), (u32, u32)) = ((3, 1), (7, 0));

/// Why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Of each file that was tried, what is wrong with it.
    tried: Vec<String>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{NAME} cannot be used ({}); install PMIx 4 or 5 (Debian: libpmix2), or name the folder of the launcher's own copy in LD_LIBRARY_PATH",
            self.tried.join("; ")
        )
    }
}

impl std::error::Error for Missing {}

macro_rules! functions {
    ($($(#[$about:meta])* $name:ident = $symbol:ident: fn($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        /// The functions that the library exports.
        #[allow(missing_debug_implementations, reason = "addresses say nothing")]
        pub struct Library {
            $($(#[$about])* pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            version: String,
            path: String,
        }

        impl Library {
            fn find(handle: Handle) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let found = needed(handle, concat!(stringify!($symbol), "\0"))?;
                        // SAFETY: the symbol is the function that the standard declares so. `of_version` calls only the
                        // one for the version, which has been the same ever since, before it knows that.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(found)
                        }
                    },)*
                    version: String::new(),
                    path: path_of(handle, concat!($(stringify!($symbol), "\0"),*)),
                })
            }
        }
    };
}

functions! {
    /// Joins the job, or counts one more user of the library in this process.
    init = PMIx_Init: fn(*mut pmix_proc_t, *mut pmix_info_t, usize) -> pmix_status_t;
    /// Leaves the job, if this was the last user of the library in this process.
    finalize = PMIx_Finalize: fn(*const pmix_info_t, usize) -> pmix_status_t;
    /// Has the launcher end processes: of none, all of the job.
    abort = PMIx_Abort: fn(c_int, *const c_char, *mut pmix_proc_t, usize) -> pmix_status_t;
    /// Keeps a value for the next commit.
    put = PMIx_Put: fn(pmix_scope_t, *const c_char, *mut pmix_value_t) -> pmix_status_t;
    /// Gives what was put to the server.
    commit = PMIx_Commit: fn() -> pmix_status_t;
    /// Waits until all of these processes have come here.
    fence = PMIx_Fence: fn(*const pmix_proc_t, usize, *const pmix_info_t, usize) -> pmix_status_t;
    /// A value that a process put, or that the launcher keeps for it.
    get = PMIx_Get: fn(*const pmix_proc_t, *const c_char, *const pmix_info_t, usize, *mut *mut pmix_value_t) -> pmix_status_t;
    /// The version, in words.
    get_version = PMIx_Get_version: fn() -> *const c_char;
    /// A status, in words.
    error_string = PMIx_Error_string: fn(pmix_status_t) -> *const c_char;
}

/// The address of a function that there has to be; `name` ends with a zero.
fn needed(handle: Handle, name: &str) -> Result<*mut c_void, String> {
    let missing = |_| format!("it has no {}", name.trim_end_matches('\0'));
    handle.symbol(name).map_err(missing)
}

/// The file that a function came from, in words.
fn path_of(handle: Handle, name: &str) -> String {
    let unknown = || NAME.to_owned();
    let Ok(symbol) = handle.symbol(name) else {
        return unknown();
    };
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked for, and the structure is the caller's.
    if unsafe { libc::dladdr(symbol, &raw mut info) } == 0 {
        return unknown();
    }
    // SAFETY: a name that the loader gives is a string, as long as the library stays loaded, which is for ever.
    unsafe { text_of(info.dli_fname) }.unwrap_or_else(unknown)
}

/// A copy of a string of C; none of null.
///
/// # Safety
///
/// What is not null is a string that ends in zero and does not change meanwhile.
pub(crate) unsafe fn text_of(string: *const c_char) -> Option<String> {
    if string.is_null() {
        return None;
    }
    // SAFETY: by the caller's word.
    let string = unsafe { CStr::from_ptr(string) };
    Some(string.to_string_lossy().into_owned())
}

impl Library {
    /// The library: the one that the program has loaded, else the launcher's own, else the one that the loader finds.
    /// It is looked for once in the life of the process.
    ///
    /// # Errors
    ///
    /// Why none of them can be used.
    pub fn load() -> Result<&'static Self, Missing> {
        static FOUND: OnceLock<Result<Library, Missing>> = OnceLock::new();
        FOUND
            .get_or_init(Self::look)
            .as_ref()
            .map_err(Missing::clone)
    }

    /// Which version it is, in its own words.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The file that it is.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What a status means.
    #[must_use]
    pub fn words(&self, status: pmix_status_t) -> String {
        // SAFETY: any number may be asked for.
        let words = unsafe { (self.error_string)(status) };
        // SAFETY: it gives null or a string that stays.
        let words = unsafe { text_of(words) };
        words.unwrap_or_else(|| format!("status {status}"))
    }

    fn look() -> Result<Self, Missing> {
        let mut tried = Vec::new();
        let mut take = |what: String, opened: Result<Handle, String>| {
            let checked = opened.and_then(Self::of_version);
            checked
                .map_err(|reason| tried.push(named(&what, &reason)))
                .ok()
        };
        let name = CString::new(NAME).unwrap_or_default();
        // One process must not have two of them: each would be a client of its own under the same number.
        if let Ok(loaded) = Handle::open(&name, libc::RTLD_NOLOAD) {
            let found = take("loaded by the program".to_owned(), Ok(loaded));
            return found.ok_or(Missing { tried });
        }
        // The launcher's own before others: servers complain about clients of other versions, though they serve them.
        for path in of_the_launcher() {
            let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
                continue;
            };
            if path.exists()
                && let Some(found) = take(path.display().to_string(), Handle::open(&name, 0))
            {
                return Ok(found);
            }
        }
        let found = take("by the loader".to_owned(), Handle::open(&name, 0));
        found.ok_or(Missing { tried })
    }

    fn of_version(handle: Handle) -> Result<Self, String> {
        let mut found = Self::find(handle)?;
        // SAFETY: takes nothing and gives null or a string that stays; so it has been since the first version.
        let version = unsafe { (found.get_version)() };
        // SAFETY: as above.
        let version = unsafe { text_of(version) };
        found.version = version.unwrap_or_default();
        check_version(&found.version)?;
        check_layout(handle)?;
        Ok(found)
    }
}

fn named(what: &str, reason: &str) -> String {
    // The loader names the file itself.
    if reason.starts_with(what) {
        return reason.to_owned();
    }
    format!("{what}: {reason}")
}

/// Where the launcher's own may be. A program with more rights than its user asks nobody.
fn of_the_launcher() -> Vec<PathBuf> {
    // SAFETY: takes a number and gives one.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if privileged {
        return Vec::new();
    }
    let get = |name: &str| -> Option<OsString> { std::env::var_os(name) };
    let parent = std::os::unix::process::parent_id();
    // Of another user's launcher it cannot be read.
    let maps = std::fs::read(format!("/proc/{parent}/maps")).unwrap_or_default();
    places::candidates(&get, &maps, NAME)
}

/// Whether the headers of this version were compared with the types of this crate.
fn check_version(words: &str) -> Result<(), String> {
    let (from, to) = COMPARED;
    let start = words.find(|letter: char| letter.is_ascii_digit());
    let mut numbers = words[start.unwrap_or(words.len())..].split('.');
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let Some(version) = number().zip(number()) else {
        return Err(format!(
            "it calls its version {words:?}, which says nothing"
        ));
    };
    if version < from || version >= to {
        let (major, minor) = from;
        return Err(format!(
            "its version is {words:?}; known is the interface of versions {major}.{minor} to before {}",
            to.0
        ));
    }
    Ok(())
}

/// Whether the library lays out its structures as this crate does. From version 5 on it makes them empty on demand, so
/// how far it writes tells their sizes.
fn check_layout(handle: Handle) -> Result<(), String> {
    type Construct = unsafe extern "C" fn(*mut c_void);
    /// What no byte of an empty structure is.
    const UNTOUCHED: u8 = 0xa5;
    for (symbol, size) in [
        ("PMIx_Proc_construct\0", size_of::<pmix_proc_t>()),
        ("PMIx_Value_construct\0", size_of::<pmix_value_t>()),
        ("PMIx_Info_construct\0", size_of::<pmix_info_t>()),
    ] {
        let Ok(found) = handle.symbol(symbol) else {
            continue;
        };
        // SAFETY: by the standard it takes a pointer to one structure and gives nothing.
        let construct = unsafe { std::mem::transmute::<*mut c_void, Construct>(found) };
        let mut room = [u64::from_ne_bytes([UNTOUCHED; 8]); 1024];
        // SAFETY: there is room for the structure and many times more, aligned as any of them.
        unsafe { construct(room.as_mut_ptr().cast()) };
        let bytes = room.iter().flat_map(|word| word.to_ne_bytes());
        let last = bytes
            .enumerate()
            .filter(|&(_, byte)| byte != UNTOUCHED)
            .last();
        let written = last.map_or(0, |(place, _)| place + 1);
        if written != size {
            let symbol = symbol.trim_end_matches('\0');
            return Err(format!(
                "its {symbol} writes {written} bytes where the structure has {size}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_were_not_compared_are_refused() {
        for good in [
            "OpenPMIx 5.0.11rc1 (PMIx Standard: 5.1, Stable ABI: 5.0, Provisional ABI: 5.0)",
            "OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, Stable ABI: 0.0, Provisional ABI: 0.0)",
            "3.2.5a1, repo rev: gitabc",
            "3.1.6",
            "OpenPMIx 6.1.0",
        ] {
            assert_eq!(check_version(good), Ok(()), "{good}");
        }
        for bad in ["", "none", "2.2.5", "OpenPMIx 7.0.0", "3.0.1", "5"] {
            let reason = check_version(bad).expect_err(bad);
            assert!(reason.contains("version"), "{reason}");
        }
    }

    #[test]
    fn what_is_missing_is_said_with_its_remedy() {
        if let Err(missing) = Library::load() {
            let text = missing.to_string();
            assert!(text.contains(NAME) && text.contains("install"), "{text}");
            assert_eq!(Library::load().err(), Some(missing));
        }
    }
}
