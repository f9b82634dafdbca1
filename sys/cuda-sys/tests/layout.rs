// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures have the sizes, members the places, constants the values and functions the types of the C header. It is
//! looked for in the folder that `CUDA_INCLUDE` names, and where packages put it (Debian: nvidia-cuda-dev).

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::PathBuf;

#[path = "../../c_program.rs"]
mod c_program;

use cuda_sys::*;

/// What is compared: an expression of C, and its value here.
fn facts() -> Vec<(String, u64)> {
    let mut facts: Vec<(String, u64)> = NUMBERS
        .iter()
        .map(|&(name, value)| (name.to_owned(), u64::from(value)))
        .collect();
    macro_rules! structures {
        ($($name:ident { $($member:ident $(= $other:literal)?),* $(,)? })*) => {$(
            facts.push((format!("sizeof({})", stringify!($name)), size_of::<$name>() as u64));
            facts.push((format!("_Alignof({})", stringify!($name)), align_of::<$name>() as u64));
            $(facts.push((
                format!("offsetof({}, {})", stringify!($name), structures!(@ $member $($other)?)),
                offset_of!($name, $member) as u64,
            ));)*
            // Names every member, so that one which the list above lacks does not compile.
            let _ = |it: &$name| {
                let $name { $($member: _),* } = it;
            };
        )*};
        (@ $member:ident) => { stringify!($member) };
        (@ $member:ident $other:literal) => { $other };
    }
    structures! {
        CUuuid { bytes }
        CUipcMemHandle { reserved }
        CUipcEventHandle { reserved }
        CUmemLocation { type_ = "type", id }
        CUmemAllocationProp { type_ = "type", requestedHandleTypes, location, win32HandleMetaData, allocFlags }
        CUmemAccessDesc { location, flags }
        CUmemPoolProps { allocType, handleTypes, location, win32SecurityAttributes, maxSize, usage, reserved }
        CUmemPoolPtrExportData { reserved }
        CUDA_MEMCPY2D {
            srcXInBytes, srcY, srcMemoryType, srcHost, srcDevice, srcArray, srcPitch, dstXInBytes, dstY,
            dstMemoryType, dstHost, dstDevice, dstArray, dstPitch, WidthInBytes, Height,
        }
    }
    let flags = offset_of!(CUmemAllocationProp, allocFlags);
    for (member, place) in [
        (
            "compressionType",
            offset_of!(CUmemAllocationProp_flags, compressionType),
        ),
        (
            "gpuDirectRDMACapable",
            offset_of!(CUmemAllocationProp_flags, gpuDirectRDMACapable),
        ),
        ("usage", offset_of!(CUmemAllocationProp_flags, usage)),
        ("reserved", offset_of!(CUmemAllocationProp_flags, reserved)),
    ] {
        let expression = format!("offsetof(CUmemAllocationProp, allocFlags.{member})");
        facts.push((expression, (flags + place) as u64));
    }
    for handle in [
        "CUcontext",
        "CUstream",
        "CUevent",
        "CUmemoryPool",
        "CUdeviceptr",
    ] {
        facts.push((format!("sizeof({handle})"), 8));
    }
    facts
}

/// A type in C.
fn in_c(rust: &str) -> String {
    let rust: String = rust.split_whitespace().collect();
    if let Some(rest) = rust.strip_prefix("*mut") {
        return format!("{} *", in_c(rest));
    }
    if let Some(rest) = rust.strip_prefix("*const") {
        return format!("const {} *", in_c(rest));
    }
    match rust.as_str() {
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_ulonglong" => "unsigned long long",
        "c_void" => "void",
        "usize" => "size_t",
        name => name,
    }
    .to_owned()
}

/// A program that prints the value of each fact, and does not compile if a function is another one.
fn program(facts: &[(String, u64)]) -> String {
    let mut program =
        "#include <stddef.h>\n#include <stdio.h>\n#include <cuda.h>\n#include <cudaTypedefs.h>\n"
            .to_owned();
    for function in Library::FUNCTIONS {
        let Function {
            name,
            symbol,
            version,
            arguments,
        } = function;
        let arguments: Vec<String> = arguments.iter().map(|rust| in_c(rust)).collect();
        let arguments = arguments.join(", ");
        writeln!(
            program,
            "CUresult (*ours_{name})({arguments}) = (PFN_{name}_v{version})0;"
        )
        .expect("text");
        writeln!(
            program,
            "CUresult (*exported_{name})({arguments}) = (__typeof__(&{symbol}))0;"
        )
        .expect("text");
    }
    program.push_str("int main(void)\n{\n");
    for (expression, _) in facts {
        writeln!(
            program,
            "\tprintf(\"%llu\\n\", (unsigned long long)({expression}));"
        )
        .expect("text");
    }
    program.push_str("\treturn 0;\n}\n");
    program
}

fn header() -> Option<PathBuf> {
    let named = std::env::var_os("CUDA_INCLUDE").map(PathBuf::from);
    let usual = [
        "/usr/local/cuda/include",
        "/opt/cuda/include",
        "/usr/include",
    ];
    named
        .into_iter()
        .chain(usual.iter().map(PathBuf::from))
        .find(|folder| folder.join("cudaTypedefs.h").exists())
}

#[test]
fn the_crate_is_the_header() {
    let facts = facts();
    assert!(facts.len() > 120, "only {} facts", facts.len());
    let Some(folder) = header() else {
        let mut error = std::io::stderr();
        let _ = std::io::Write::write_all(&mut error, b"skipped: no CUDA headers\n");
        return;
    };
    let flags = ["-std=gnu11", "-Werror=incompatible-pointer-types", "-I"].map(OsStr::new);
    let flags: Vec<&OsStr> = flags.into_iter().chain([folder.as_os_str()]).collect();
    let printed = c_program::output_of("cuda", &program(&facts), &flags);
    let values: Vec<u64> = printed
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    assert_eq!(values.len(), facts.len());
    let mut differences = String::new();
    for ((expression, ours), theirs) in facts.iter().zip(values) {
        // What is zero here may have got a meaning in a later version.
        let grows = expression == "offsetof(CUmemPoolProps, reserved)" && theirs > *ours;
        if *ours != theirs && !grows {
            writeln!(differences, "{expression}: {theirs} in C, {ours} in Rust").expect("text");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn every_function_is_in_the_library() {
    if let Err(missing) = Library::load() {
        let text = missing.to_string();
        assert!(
            text.contains("libcuda.so.1") && text.contains("install"),
            "{text}"
        );
    }
    assert!(Library::FUNCTIONS.len() >= 70);
}
