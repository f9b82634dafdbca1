// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run says to a person.

use std::path::Path;

use onecopy_vm::console::{Outcome, Test};
use onecopy_vm::qemu::Accelerator;

use super::Verdict;
use crate::{Failure, say};

/// Lines of a failed test's output that are shown.
const SHOWN: usize = 40;
/// Lines that are told once more at the end of a long task.
const TOLD: usize = 12;

/// Columns, aligned.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        say::line(line.trim_end());
    }
}

/// Each test, what the kernel complained of, and one line with the verdict.
pub(super) fn verdict(verdict: &Verdict, verbose: bool) {
    let report = &verdict.report;
    let mut rows = Vec::new();
    for test in report.console.tests() {
        let word = match test.code {
            Some(0) => "ok".to_owned(),
            Some(code) => format!("FAILED ({code})"),
            None => "DID NOT END".to_owned(),
        };
        rows.push([
            format!("  {}", test.name),
            word,
            format!("{} s", test.seconds),
        ]);
    }
    table(&rows);
    for reason in &verdict.left_out {
        say::line(&format!("  left out: {reason}"));
    }
    for test in report.console.tests() {
        if verbose {
            output(test, usize::MAX);
        } else if test.code != Some(0) {
            output(test, SHOWN);
        }
    }
    for splat in report.console.splats() {
        say::line(&format!("  the kernel: {splat}"));
    }
    let races = report.console.foreign_races();
    if races > 0 {
        say::line(&format!(
            "  {races} reports of races in which the module takes no part"
        ));
    }
    let accelerator = match report.accelerator {
        Accelerator::Kvm => "KVM",
        Accelerator::Tcg => "translated",
    };
    let again = match report.tries {
        1 => String::new(),
        tries => format!(", {tries} tries"),
    };
    say::line(&format!(
        "vm {} ({}, {accelerator}), {}: {}; {:.0} s{again}",
        verdict.kernel,
        verdict.release,
        verdict.suite,
        report.outcome,
        report.wall.as_secs_f64()
    ));
    if report.outcome != Outcome::Passed || verbose {
        say::line(&format!("  console: {}", report.log.display()));
    }
    for file in &report.files {
        say::line(&format!("  file: {}", file.display()));
    }
}

/// The last lines of what a test said.
fn output(test: &Test, shown: usize) {
    say::line(&format!("--- {} said:", test.name));
    let lines: Vec<&str> = test.output.lines().collect();
    for line in &lines[lines.len().saturating_sub(shown)..] {
        say::line(&format!("    {line}"));
    }
}

/// What failed, for the end of a long task: each failed test with the lines that say why, and the kernel's complaints.
pub(super) fn failures(verdict: &Verdict) -> Vec<String> {
    let console = &verdict.report.console;
    let mut shown = Vec::new();
    for test in console.tests().iter().filter(|test| test.code != Some(0)) {
        shown.push(match test.code {
            Some(code) => format!("{}: {}: failed ({code})", verdict.kernel, test.name),
            None => format!("{}: {}: did not end", verdict.kernel, test.name),
        });
        let lines: Vec<&str> = test.output.lines().collect();
        let end = lines.len().saturating_sub(TOLD);
        let is_shown = |(number, line): &(usize, &&str)| *number >= end || line.starts_with("FAIL");
        let named = lines.iter().enumerate().filter(is_shown);
        shown.extend(named.map(|(_, line)| format!("    {line}")));
    }
    let splats = console.splats();
    let complaints = splats.iter().take(TOLD);
    shown.extend(complaints.map(|splat| format!("{}: the kernel: {splat}", verdict.kernel)));
    shown
}

/// Copies what the guest sent.
pub(super) fn copy(verdict: &Verdict, into: &Path) -> Result<(), Failure> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    std::fs::create_dir_all(into).map_err(failed(into))?;
    for file in &verdict.report.files {
        let place = into.join(file.file_name().unwrap_or_default());
        std::fs::copy(file, &place).map_err(failed(&place))?;
    }
    Ok(())
}
