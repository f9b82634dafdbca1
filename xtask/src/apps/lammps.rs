// SPDX-License-Identifier: MIT OR Apache-2.0
//! LAMMPS: molecular dynamics, the Lennard-Jones melt of its own benchmarks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{App, Bench, Launch, Outcome, fresh, make, read};
use crate::Failure;

pub(super) const APP: App = App {
    name: "lammps",
    title: "LAMMPS",
    package: "lammps",
    verifies: "its benchmark in.lj, 32000 atoms, 100 steps: no atom is lost; temperature and energy are those that its authors publish",
    build,
    run,
};

/// The styles that the benchmark uses; without the others it builds in a fraction of the time.
const STYLES: [&str; 22] = [
    "atom_vec_atomic",
    "pair_lj_cut",
    "fix_nve",
    "region_block",
    "run",
    "verlet",
    "create_box",
    "create_atoms",
    "velocity",
    "compute_temp",
    "compute_pe",
    "compute_pressure",
    "nbin_standard",
    "npair_half_bin_atomonly_newton",
    "npair_half_bin_newton",
    "npair_copy",
    "nstencil_half_bin_3d",
    "ntopo_angle_all",
    "ntopo_bond_all",
    "ntopo_dihedral_all",
    "ntopo_improper_all",
    "info",
];

/// The standard's binary interface has no Fortran in C; handles are integers by these names there.
const FORTRAN: &str =
    "-DMPI_Fint=int -DMPI_Comm_f2c=MPI_Comm_fromint -DMPI_Comm_c2f=MPI_Comm_toint";

fn build(bench: &Bench, source: &Path) -> Result<PathBuf, Failure> {
    let folder = source.join("src");
    prune(&folder)?;
    let compiler = bench
        .prefix
        .join("bin/onecopy-mpicxx")
        .display()
        .to_string();
    let words = [
        "mpi".to_owned(),
        format!("CC={compiler}"),
        format!("LINK={compiler}"),
        format!("CCFLAGS=-O1 -w -std=c++11 {FORTRAN}"),
        "LINKFLAGS=-O1".to_owned(),
        "LMP_INC=-DLAMMPS_SMALLBIG".to_owned(),
        "SIZE=true".to_owned(),
    ];
    make(&folder, &words)?;
    Ok(folder.join("lmp_mpi"))
}

/// Moves away what the styles do not need. A file stays if a style is in it, if it is no style's, or if one that stays
/// includes it.
fn prune(folder: &Path) -> Result<(), Failure> {
    let at = |error| format!("{}: {error}", folder.display());
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(at)? {
        let path = entry.map_err(at)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".cpp") || name.ends_with(".h") {
            let bytes = fs::read(&path).map_err(at)?;
            files.insert(
                name.into_owned(),
                String::from_utf8_lossy(&bytes).into_owned(),
            );
        }
    }
    let is_style = |name: &str| {
        files.get(name).is_some_and(|text| {
            text.lines()
                .any(|line| line.starts_with("#ifdef ") && line.ends_with("_CLASS"))
        })
    };
    // A file may know a style's class by the list of all styles alone.
    let classes: BTreeMap<&str, &String> = files
        .iter()
        .filter(|(name, _)| is_style(name))
        .flat_map(|(name, text)| {
            let classes = text.lines().filter_map(|line| line.strip_prefix("class "));
            let names = classes.filter_map(|line| line.split_once(" :"));
            names.map(move |(class, _)| (class, name))
        })
        .collect();
    let mut work: Vec<String> = STYLES.iter().map(|style| format!("{style}.h")).collect();
    for name in files.keys().filter(|name| name.ends_with(".cpp")) {
        if !is_style(&name.replace(".cpp", ".h")) {
            work.push(name.clone());
        }
    }
    let mut kept = BTreeSet::new();
    while let Some(name) = work.pop() {
        let Some(text) = files.get(&name) else {
            continue;
        };
        if !kept.insert(name.clone()) {
            continue;
        }
        work.push(name.replace(".h", ".cpp"));
        for line in text.lines() {
            if let Some(rest) = line.trim_start().strip_prefix("#include \"") {
                work.extend(rest.split('"').next().map(str::to_owned));
            }
            let words = line.split(|c: char| !c.is_ascii_alphanumeric());
            work.extend(words.filter_map(|word| classes.get(word).map(|&name| name.clone())));
        }
    }
    let away = folder.join("left-out");
    fresh(&away)?;
    for name in files.keys().filter(|name| !kept.contains(*name)) {
        fs::rename(folder.join(name), away.join(name)).map_err(at)?;
    }
    Ok(())
}

fn run(bench: &Bench, launch: &Launch<'_>) -> Result<Outcome, Failure> {
    let mut command = bench.launcher(launch);
    command
        .arg(launch.program)
        .arg("-in")
        .arg(launch.source.join("bench/in.lj"));
    bench.finish(&command)?;
    Ok(judged(&read(&launch.folder.join("log.lammps"))?))
}

/// What the authors' logs of this benchmark say, whatever the number of ranks.
const PUBLISHED: [(&str, [f64; 2]); 2] = [
    ("Temp", [1.44, 0.757_453_1]),
    ("TotEng", [-4.613_435_6, -4.622_361_3]),
];

/// The table of steps: what stands in it, and whether its first and last lines are those of the authors.
fn judged(log: &str) -> Outcome {
    let mut results = Vec::new();
    let mut columns: Vec<&str> = Vec::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first() == Some(&"Step") {
            columns = words;
            continue;
        }
        if line.starts_with("Loop time") {
            break;
        }
        let numbers: Vec<f64> = words.iter().map_while(|word| word.parse().ok()).collect();
        if columns.is_empty() || numbers.len() != columns.len() {
            continue;
        }
        for (column, &number) in columns.iter().zip(&numbers) {
            results.push(((*column).to_owned(), number));
        }
    }
    let off = PUBLISHED.iter().map(|&(name, published)| {
        let mut found = results
            .iter()
            .filter(|(column, _)| column == name)
            .map(|&(_, number)| number);
        let ends = [found.next(), found.next_back()];
        let pairs = ends.iter().zip(published);
        pairs.fold(0.0, |most: f64, (&found, published)| {
            let off = found.map_or(f64::INFINITY, |found| {
                ((found - published) / published).abs()
            });
            most.max(off)
        })
    });
    let off = off.fold(0.0, f64::max);
    let passed = off < 1e-6 && !log.contains("ERROR");
    Outcome {
        passed,
        verdict: format!(
            "{}: off by {off:.0e} of what is published",
            if passed { "success" } else { "**failure**" }
        ),
        results,
        ..Outcome::default()
    }
}
