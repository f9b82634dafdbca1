// SPDX-License-Identifier: MIT OR Apache-2.0
//! The header says what the standard's header says: compared with the one that another implementation ships on PyPI,
//! name by name.

#[path = "../../tests/harness/limit.rs"]
mod limit;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const WHEEL: &str = "mpich==5.0.2";

/// The other header, from a cache or from PyPI. None if there is no network: then nothing can be compared.
fn reference() -> Option<String> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reference");
    let header = cache.join("include/mpi_abi.h");
    if !header.exists() {
        let mut command = Command::new("python3");
        let prepared = limit::try_output(command.args(["-m", "venv", "--clear"]).arg(&cache))
            .is_ok_and(|ran| ran.status.success());
        assert!(
            prepared,
            "python3 -m venv is needed to fetch the reference header"
        );
        let mut command = Command::new(cache.join("bin/pip"));
        let fetched = limit::output(command.args(["install", "--quiet", "--no-deps", WHEEL]));
        if !fetched.status.success() {
            let text = String::from_utf8_lossy(&fetched.stderr).to_lowercase();
            let offline = [
                "connection",
                "resolve",
                "timed out",
                "unreachable",
                "network",
            ];
            if offline.iter().any(|word| text.contains(word)) {
                return None;
            }
            panic!("pip install {WHEEL}: {text}");
        }
    }
    Some(std::fs::read_to_string(header).expect("the reference header"))
}

/// Types without names of parameters, spaces made equal.
fn normal(parameter: &str) -> String {
    let (front, suffix) = parameter
        .find('[')
        .map_or((parameter, ""), |at| parameter.split_at(at));
    let words: Vec<&str> = front.split_whitespace().collect();
    let joined = words.join(" ");
    let end = joined.rfind(|c: char| !c.is_alphanumeric() && c != '_');
    let kind = match end {
        Some(at) if joined[at + 1..].chars().next().is_some() && joined != "..." => &joined[..=at],
        _ => joined.as_str(),
    };
    // An array of parameters is a pointer; only the inner dimension counts.
    let inner = suffix.strip_prefix("[]").unwrap_or(suffix);
    let star = if suffix.is_empty() { "" } else { "*" };
    format!("{}{star}{inner}", kind.replace(' ', ""))
}

/// Every function and callback type with its types.
fn prototypes(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let line = line.split("/*").next().unwrap_or_default().trim();
        let Some(line) = line.strip_suffix(';') else {
            continue;
        };
        let line = line.strip_prefix("typedef ").unwrap_or(line);
        let Some((head, inside)) = line
            .strip_suffix(')')
            .and_then(|line| line.split_once('(').map(|(head, rest)| (head.trim(), rest)))
        else {
            continue;
        };
        // `void (MPI_User_function)(void *a, ...)` or `int MPI_Send(...)`.
        let (returns, name, inside) = match inside.split_once(')') {
            Some((name, rest)) if !head.contains(' ') => {
                (head, name, rest.trim().trim_start_matches('('))
            }
            _ => match head.rsplit_once(' ') {
                Some((returns, name)) => (returns, name, inside),
                None => continue,
            },
        };
        let name = name.trim_start_matches('*');
        if !name.starts_with("MPI_") && !name.starts_with("PMPI_") {
            continue;
        }
        let parameters: Vec<String> = inside.split(',').map(|part| normal(part.trim())).collect();
        found.insert(
            name.to_owned(),
            format!("{returns}({})", parameters.join(",")),
        );
    }
    found
}

/// Names of constants.
fn names(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        let name = match line.strip_prefix("#define MPI_") {
            Some(rest) => rest
                .split_whitespace()
                .next()
                .filter(|_| rest.contains(char::is_whitespace)),
            None => line
                .strip_prefix("MPI_")
                .and_then(|rest| rest.split_once('='))
                .map(|(name, _)| name.trim()),
        };
        if let Some(name) = name {
            found.push(format!("MPI_{name}"));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Values and sizes as a C compiler sees them.
fn values(directory: &Path, label: &str, header: &str, names: &[String]) -> String {
    let folder = directory.join(label);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("subject.h"), header).expect("the header");
    let mut program = String::from(
        "#include \"subject.h\"\n#include <stdio.h>\n#include <stddef.h>\nint main(void) {\n",
    );
    for name in names {
        program.push_str(&format!(
            "    printf(\"{name} %lld %zu\\n\", (long long)(intptr_t){name}, sizeof({name}));\n"
        ));
    }
    for kind in [
        "MPI_Aint",
        "MPI_Offset",
        "MPI_Count",
        "MPI_Status",
        "MPI_Comm",
        "MPI_Datatype",
        "MPI_Request",
    ] {
        program.push_str(&format!("    printf(\"{kind} %zu\\n\", sizeof({kind}));\n"));
    }
    for field in ["MPI_SOURCE", "MPI_TAG", "MPI_ERROR", "MPI_internal"] {
        program.push_str(&format!(
            "    printf(\"{field} %zu\\n\", offsetof(MPI_Status, {field}));\n"
        ));
    }
    program.push_str("    return 0;\n}\n");
    let source = folder.join("values.c");
    std::fs::write(&source, program).expect("the program");
    let binary = folder.join("values");
    let mut command = Command::new("cc");
    let compiled = limit::output(command.arg("-o").arg(&binary).arg(&source));
    assert!(
        compiled.status.success(),
        "{label}: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let output = limit::output(&mut Command::new(&binary));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_constant_size_and_prototype_is_the_standards() {
    let Some(theirs) = reference() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "no network to fetch {WHEEL}: in CI this must not happen"
        );
        return;
    };
    let ours = onecopy_mpi_abi::header::header();
    let (a, b) = (prototypes(&ours), prototypes(&theirs));
    assert!(a.len() > 1324, "{} prototypes", a.len());
    for (name, types) in &b {
        assert_eq!(a.get(name), Some(types), "{name}");
    }
    for name in a.keys() {
        assert!(
            b.contains_key(name),
            "{name} is no function of the standard"
        );
    }
    let wanted: Vec<String> = names(&theirs)
        .into_iter()
        .filter(|name| {
            !matches!(
                name.as_str(),
                "MPI_H_ABI" | "MPI_ABI_Aint" | "MPI_ABI_Offset" | "MPI_ABI_Count"
            )
        })
        .collect();
    assert!(wanted.len() > 350, "{} constants", wanted.len());
    let directory: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("header");
    assert_eq!(
        values(&directory, "ours", &ours, &wanted),
        values(&directory, "theirs", &theirs, &wanted)
    );
    assert_eq!(
        names(&ours),
        wanted,
        "constants that the standard does not have"
    );
}

#[test]
fn the_committed_header_is_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/mpi.h");
    let committed = std::fs::read_to_string(path).expect("include/mpi.h");
    assert_eq!(
        committed,
        onecopy_mpi_abi::header::header(),
        "run `cargo xtask docs`"
    );
}
