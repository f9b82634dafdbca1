// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate lays out structures as the C header does, and its constants have the same values. Where there is no
//! header, the library itself is asked when it is opened.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::PathBuf;

#[path = "../../c_program.rs"]
mod c_program;

use pmix_sys::abi::*;

/// An expression of C, and what it is here.
fn facts() -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |expression: String, value: i64| facts.push((expression, value.to_string()));
    let long = |value: usize| i64::try_from(value).expect("small");
    macro_rules! structures {
        ($($name:ident { $($member:ident = $c:literal),* })*) => {$(
            add(format!("sizeof({})", stringify!($name)), long(size_of::<$name>()));
            add(format!("_Alignof({})", stringify!($name)), long(align_of::<$name>()));
            $(
                add(
                    format!("offsetof({}, {})", stringify!($name), $c),
                    long(offset_of!($name, $member)),
                );
            )*
        )*};
    }
    structures! {
        pmix_status_t {}
        pmix_rank_t {}
        pmix_data_type_t {}
        pmix_scope_t {}
        pmix_info_directives_t {}
        pmix_nspace_t {}
        pmix_key_t {}
        pmix_proc_t { nspace = "nspace", rank = "rank" }
        pmix_value_t { type_ = "type", data = "data" }
        pmix_info_t { key = "key", flags = "flags", value = "value" }
    }
    macro_rules! numbers {
        ($($name:ident),*) => {$(add(stringify!($name).to_owned(), $name as i64);)*};
    }
    numbers!(
        PMIX_MAX_NSLEN,
        PMIX_MAX_KEYLEN,
        PMIX_SUCCESS,
        PMIX_ERR_TIMEOUT,
        PMIX_ERR_UNREACH,
        PMIX_ERR_NOT_FOUND,
        PMIX_RANK_WILDCARD,
        PMIX_UNDEF,
        PMIX_BOOL,
        PMIX_STRING,
        PMIX_INT,
        PMIX_UINT32,
        PMIX_GLOBAL
    );
    facts
}

/// Where the header is: with a package of a distribution, or where PMIX_INCLUDE says.
fn folder() -> Option<PathBuf> {
    let configured = std::env::var_os("PMIX_INCLUDE").map(PathBuf::from);
    let arch = std::env::consts::ARCH;
    let debian = PathBuf::from(format!("/usr/lib/{arch}-linux-gnu/pmix2/include"));
    let usual = [debian, "/usr/include".into(), "/usr/local/include".into()];
    let mut folders = configured.into_iter().chain(usual);
    folders.find(|folder| folder.join("pmix.h").exists())
}

#[test]
fn the_crate_is_the_header() {
    let facts = facts();
    let Some(folder) = folder() else {
        say("skipped: no pmix.h (Debian: libpmix-dev; or name its folder in PMIX_INCLUDE)");
        return;
    };
    let mut program = "#include <stdbool.h>\n#include <stddef.h>\n#include <stdio.h>\n#include <pmix.h>\nint main(void)\n{\n".to_owned();
    for (expression, _) in &facts {
        writeln!(program, "\tprintf(\"%lld\\n\", (long long)({expression}));").expect("text");
    }
    for (name, text) in [
        ("PMIX_JOB_SIZE", PMIX_JOB_SIZE),
        ("PMIX_COLLECT_DATA", PMIX_COLLECT_DATA),
        ("PMIX_TIMEOUT", PMIX_TIMEOUT),
    ] {
        writeln!(
            program,
            "\tif (__builtin_strcmp({name}, \"{text}\")) {{ printf(\"{name} is another key\\n\"); return 1; }}"
        )
        .expect("text");
    }
    // Each function is what the crate calls it by.
    program.push_str(FUNCTIONS);
    program.push_str("\treturn 0;\n}\n");
    let flags = ["-std=gnu11", "-Werror=incompatible-pointer-types", "-I"].map(OsStr::new);
    let flags: Vec<&OsStr> = flags.into_iter().chain([folder.as_os_str()]).collect();
    let printed = c_program::output_of("pmix", &program, &flags);
    let theirs: Vec<&str> = printed.lines().collect();
    assert_eq!(theirs.len(), facts.len());
    let mut differences = String::new();
    for ((expression, ours), theirs) in facts.iter().zip(theirs) {
        if ours != theirs {
            writeln!(differences, "{expression}: {theirs} in C, {ours} in Rust").expect("text");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// `sizeof` names the functions without calling or linking them.
const FUNCTIONS: &str = r"
    {
        typedef pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t);
        typedef pmix_status_t (*finalize)(const pmix_info_t *, size_t);
        typedef pmix_status_t (*abort_)(int, const char *, pmix_proc_t *, size_t);
        typedef pmix_status_t (*put)(pmix_scope_t, const char *, pmix_value_t *);
        typedef pmix_status_t (*commit)(void);
        typedef pmix_status_t (*fence)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t);
        typedef pmix_status_t (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **);
        typedef const char *(*version)(void);
        typedef const char *(*words)(pmix_status_t);
#define SAME(type, function) _Static_assert(__builtin_types_compatible_p(type, __typeof__(&function)), #function)
        SAME(init, PMIx_Init);
        SAME(finalize, PMIx_Finalize);
        SAME(abort_, PMIx_Abort);
        SAME(put, PMIx_Put);
        SAME(commit, PMIx_Commit);
        SAME(fence, PMIx_Fence);
        SAME(get, PMIx_Get);
        SAME(version, PMIx_Get_version);
        SAME(words, PMIx_Error_string);
    }
";

#[allow(clippy::print_stderr, reason = "a test says what it left out")]
fn say(text: &str) {
    eprintln!("{text}");
}
