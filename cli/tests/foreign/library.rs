// SPDX-License-Identifier: MIT OR Apache-2.0
//! A libpmix that this program makes: of a version that nobody knows, of other structures, or one that answers what no
//! library should. A rank tells it in words; it neither crashes nor waits for ever.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ends::{end, rank};
use crate::launchers::peers;
use crate::processes::{limit, say};

/// `FAKE` in the environment says in which way it is wrong.
const SOURCE: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct value { uint16_t type; union { char *string; uint32_t number; uint64_t all[3]; } data; };

static int is(const char *what) { const char *fake = getenv("FAKE"); return fake && !strcmp(fake, what); }
const char *PMIx_Get_version(void) { return is("old") ? "2.2.5" : is("mute") ? NULL : "OpenPMIx 5.9.9"; }
const char *PMIx_Error_string(int status) { return is("wordless") ? NULL : status ? "FAKE-ERROR" : "FAKE-SUCCESS"; }
void PMIx_Info_construct(char *info) { memset(info, 0, is("layout") ? 600 : 552); }
int PMIx_Init(char *proc, void *info, size_t count)
{
    memset(proc, is("endless-name") ? 'x' : 0, 256);
    uint32_t rank = is("rank") ? 7 : 0;
    memcpy(proc + 256, &rank, 4);
    if (is("init-hangs"))
        for (;;)
            pause();
    return is("init") || is("wordless") ? -1 : 0;
}
int PMIx_Finalize(const void *info, size_t count) { return is("finalize") ? -1 : 0; }
int PMIx_Abort(int status, const char *words, void *procs, size_t count) { return 0; }
int PMIx_Put(uint8_t scope, const char *key, void *value) { return is("put") ? -1 : 0; }
int PMIx_Commit(void) { return 0; }
int PMIx_Fence(const void *procs, size_t count, const void *info, size_t infos)
{
    if (is("fence-hangs"))
        for (;;)
            pause();
    return 0;
}
int PMIx_Get(const void *proc, const char *key, const void *info, size_t count, struct value **value)
{
    *value = calloc(1, sizeof **value);
    if (!strcmp(key, "pmix.job.size")) {
        (*value)->type = is("size-type") ? 6 : is("size-text") ? 3 : 14;
        (*value)->data.number = 2;
        if (is("size-null"))
            *value = NULL;
        if (is("size-text"))
            (*value)->data.string = strdup("two");
        return 0;
    }
    (*value)->type = 3;
    if (is("text-null"))
        return 0;
    size_t length = is("text-long") ? 1 << 20 : 3;
    (*value)->data.string = calloc(1, length + 1);
    memset((*value)->data.string, '?', length);
    return 0;
}
"#;

/// The folder of the library; none, after saying why, if it cannot be built here.
fn built() -> Option<PathBuf> {
    let folder = peers().join(format!("fake-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("folder");
    let source = folder.join("fake.c");
    std::fs::write(&source, SOURCE).expect("write");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-Wl,-soname,libpmix.so.2", "-o"]);
    command.arg(folder.join("libpmix.so.2")).arg(&source);
    match limit::try_output(&mut command) {
        Ok(output) if output.status.success() => Some(folder),
        failed => {
            say(&format!("skipped: cc: {failed:?}"));
            std::fs::remove_dir_all(&folder).expect("remove");
            None
        }
    }
}

fn run(folder: &Path, fake: &str) -> crate::meeting::RunOutput {
    let folder = folder.to_str().expect("a path in UTF-8");
    let env = [
        ("PMIX_NAMESPACE", "fake"),
        ("PMIX_RANK", "0"),
        ("LD_LIBRARY_PATH", folder),
        ("ONECOPY_JOIN_TIMEOUT", "1"),
        ("FAKE", fake),
    ];
    end(limit::start(&mut rank(&env, &[], "ring")))
}

#[test]
fn whatever_the_library_says_is_checked() {
    let Some(folder) = built() else { return };
    for (fake, message) in [
        // What cannot be used is told beside what the environment lacks.
        ("old", "its version is \"2.2.5\""),
        ("mute", "which says nothing"),
        (
            "layout",
            "PMIx_Info_construct writes 600 bytes where the structure has 552",
        ),
        ("init", "PMIx_Init: FAKE-ERROR"),
        ("wordless", "PMIx_Init: status -1"),
        ("init-hangs", "PMIx_Init: no answer within 1 s"),
        ("endless-name", "the job's name has no end"),
        ("rank", "rank 7 is not below pmix.job.size, 2"),
        ("size-type", "a value of type 6 came with it"),
        ("size-null", "no value came with it"),
        ("size-text", "pmix.job.size is no number"),
        ("put", "PMIx_Put: FAKE-ERROR"),
        ("fence-hangs", "PMIx_Fence: no answer within 1 s"),
        ("text-null", "a text came that is null"),
        ("text-long", "a text of more than 65536 bytes came"),
        ("", "???"),
    ] {
        let ran = run(&folder, fake);
        assert_eq!(ran.code, Some(3), "{fake}: {}", ran.text);
        assert!(ran.text.contains(message), "{fake}: {}", ran.text);
    }
    // Several nodes are more than the environment can bring together.
    let folder_name = folder.to_str().expect("a path in UTF-8");
    let env = [
        ("PMIX_NAMESPACE", "fake"),
        ("PMIX_RANK", "0"),
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ("LD_LIBRARY_PATH", folder_name),
        ("FAKE", "old"),
    ];
    let ran = end(limit::start(&mut rank(&env, &[], "ring")));
    assert_eq!(ran.code, Some(3), "{}", ran.text);
    for part in ["several nodes", "PMIx would", "its version is \"2.2.5\""] {
        assert!(ran.text.contains(part), "{part}: {}", ran.text);
    }
    std::fs::remove_dir_all(&folder).expect("remove");
}
