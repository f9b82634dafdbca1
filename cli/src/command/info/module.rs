// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy info module`: what our kernel module shows and counts.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use onecopy_btl::module::{self, Stats};
use serde::{Serialize, Serializer};
use tabled::builder::Builder;
use tabled::settings::Style;

use super::super::{CliError, print, text};
use super::shown::{Attachment, Export, FOLDER, Pin, Shown, ShownError, User};

/// The module's limits.
const PARAMETERS: &str = "/sys/module/onecopy/parameters";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// What a user may have at most. None: the module does not say.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Limits {
    segments: Option<u64>,
    permits: Option<u64>,
    regions: Option<u64>,
    workers: Option<u64>,
    attachments: Option<u64>,
}

impl Limits {
    fn read(folder: &Path) -> Self {
        let limit = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse().ok()
        };
        Self {
            segments: limit("max_segments"),
            permits: limit("max_permits"),
            regions: limit("max_regions"),
            workers: limit("max_workers"),
            attachments: limit("max_attachments"),
        }
    }
}

/// A number that the module counts.
#[derive(Debug, Clone, Copy)]
struct Counter {
    name: &'static str,
    value: u64,
    /// Of now; otherwise since the module was loaded.
    gauge: bool,
}

/// All of them, of all users and devices. Their names and what they mean are the module's header's.
fn counters(stats: &Stats) -> [Counter; 16] {
    let gauge = |name, value| Counter {
        name,
        value,
        gauge: true,
    };
    let sum = |name, value| Counter {
        name,
        value,
        gauge: false,
    };
    [
        gauge("segments", stats.segments),
        gauge("permits", stats.permits),
        gauge("regions", stats.regions),
        gauge("pinned_pages", stats.pinned_pages),
        gauge("attachments", stats.attachments),
        gauge("spaces", stats.spaces),
        gauge("workers", stats.workers),
        sum("attaches", stats.attaches),
        sum("faults", stats.faults),
        sum("retries", stats.retries),
        sum("mapped_small", stats.mapped_small),
        sum("mapped_huge", stats.mapped_huge),
        sum("invalidations", stats.invalidations),
        sum("holes", stats.holes),
        sum("copies", stats.copies),
        sum("copied_bytes", stats.copied_bytes),
    ]
}

#[derive(Serialize)]
struct Listing<'a> {
    #[serde(flatten)]
    shown: &'a Shown,
    /// Of each user.
    limits: Limits,
    /// None where the device may not be opened.
    #[serde(serialize_with = "by_name")]
    counters: Option<&'a [Counter]>,
    /// Why there are none.
    uncounted: Option<String>,
}

fn by_name<S: Serializer>(counters: &Option<&[Counter]>, to: S) -> Result<S::Ok, S::Error> {
    let pairs = |all: &[Counter]| -> BTreeMap<&str, u64> {
        all.iter()
            .map(|counter| (counter.name, counter.value))
            .collect()
    };
    counters.map(pairs).serialize(to)
}

pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, CliError> {
    let shown = Shown::read(Path::new(FOLDER)).map_err(|error| match &error {
        ShownError::Read { source, .. } if source.kind() == ErrorKind::NotFound => {
            CliError::Failed(format!("{error}: the module onecopy is not loaded here; 'modprobe onecopy' as root does that").into())
        }
        _ => CliError::Failed(error.into()),
    })?;
    let (counters, uncounted) = match module::counters() {
        Ok(stats) => (Some(counters(&stats)), None),
        Err(refusal) => (None, Some(refusal.to_string())),
    };
    let listing = Listing {
        shown: &shown,
        limits: Limits::read(Path::new(PARAMETERS)),
        counters: counters.as_ref().map(<[Counter; 16]>::as_slice),
        uncounted,
    };
    if args.json || json {
        let text = text::json(&listing)?;
        print(|out| writeln!(out, "{text}"))?;
    } else {
        print(|out| listing.write(out))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A process, by its number and, while it lives, its name.
fn process(pid: u32) -> String {
    if pid == 0 {
        return "not in this pid namespace".to_owned();
    }
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        // A name may have line ends.
        Ok(name) => format!("{pid} {}", name.trim_end().replace('\n', " ")),
        Err(_) => pid.to_string(),
    }
}

fn table(out: &mut dyn Write, title: &str, none: &str, rows: Builder) -> std::io::Result<()> {
    // The first row has the names.
    if rows.count_records() == 1 {
        writeln!(out, "{title}: {none}")
    } else {
        writeln!(out, "{title}\n\n{}", rows.build().with(Style::psql()))
    }
}

impl Listing<'_> {
    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        table(out, "Exports", "none", exports(&self.shown.exports))?;
        writeln!(out)?;
        table(out, "Pins", "none", pins(&self.shown.pins))?;
        writeln!(out)?;
        let users = users(&self.shown.users, &self.limits);
        table(out, "Users, and what each may have", "none", users)?;
        writeln!(out)?;
        if let Some(why) = &self.uncounted {
            return writeln!(out, "Counters: not to be read ({why})");
        }
        let mut rows = Builder::default();
        rows.push_record(["counter", "value", ""]);
        for counter in self.counters.unwrap_or_default() {
            rows.push_record([
                counter.name,
                &counter.value.to_string(),
                if counter.gauge { "now" } else { "since load" },
            ]);
        }
        table(out, "Counters of all users", "none", rows)
    }
}

fn exports(exports: &[Export]) -> Builder {
    let mut rows = Builder::default();
    rows.push_record([
        "owner", "uid", "address", "size", "granted", "state", "importer", "attached", "from",
    ]);
    for export in exports {
        let granted = match export.mode {
            0 => "by descriptor".to_owned(),
            mode => format!("mode {mode:04o}"),
        };
        let mut first = vec![
            process(export.owner),
            export.uid.to_string(),
            format!("{:#x}", export.address),
            text::size(export.bytes),
            granted,
            export.state.clone(),
        ];
        if export.attachments.is_empty() {
            first.extend([const { String::new() }; 3]);
            rows.push_record(first);
            continue;
        }
        for attachment in &export.attachments {
            let mut row = std::mem::replace(&mut first, vec![String::new(); 6]);
            row.extend(attached(export, attachment));
            rows.push_record(row);
        }
    }
    rows
}

fn attached(export: &Export, attachment: &Attachment) -> [String; 3] {
    let from = match attachment.address.checked_sub(export.address) {
        Some(offset) => format!("+{offset:#x}"),
        None => format!("{:#x}", attachment.address),
    };
    [
        process(attachment.importer),
        text::size(attachment.bytes),
        from,
    ]
}

fn pins(pins: &[Pin]) -> Builder {
    let mut rows = Builder::default();
    rows.push_record(["owner", "uid", "pages", "size", "pieces", "rights"]);
    for pin in pins {
        rows.push_record([
            process(pin.owner),
            pin.uid.to_string(),
            pin.pages.to_string(),
            text::size(pin.bytes),
            pin.pieces.to_string(),
            pin.rights.clone(),
        ]);
    }
    rows
}

fn users(users: &[User], limits: &Limits) -> Builder {
    let mut rows = Builder::default();
    rows.push_record([
        "uid",
        "segments",
        "permits",
        "regions",
        "workers",
        "attachments",
    ]);
    let of = |count: u64, limit: Option<u64>| match limit {
        Some(limit) => format!("{count} of {limit}"),
        None => count.to_string(),
    };
    for user in users {
        rows.push_record([
            user.uid.to_string(),
            of(user.segments, limits.segments),
            of(user.permits, limits.permits),
            of(user.regions, limits.regions),
            of(user.workers, limits.workers),
            of(user.attachments, limits.attachments),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::shown::tests::lists;
    use super::*;

    #[test]
    fn tables_say_who_exports_what_to_whom() {
        let shown = Shown::read(lists().path()).expect("lists");
        let listing = Listing {
            shown: &shown,
            limits: Limits {
                permits: Some(7),
                ..Limits::default()
            },
            counters: None,
            uncounted: Some("no".to_owned()),
        };
        let mut out = Vec::new();
        listing.write(&mut out).expect("text");
        let text = String::from_utf8(out).expect("UTF-8");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        let find = |text: &str| assert!(lines.iter().any(|line| line.contains(text)), "{lines:#?}");
        find("| 1000 | 0x7f0000000000 | 8 KiB | mode 0600 | alive | 13");
        find("| 4 KiB | +0x1000");
        find("| | | | | | not in this pid namespace | 8 KiB | +0x0");
        find("| by descriptor | revoked | | |");
        find("| 1000 | 2 | 4097 B | 1 | r- once");
        find("1000 | 2 | 1 of 7 | 2 | 0 | 2");
        find("Counters: not to be read (no)");
        let counters = counters(&Stats {
            holes: 3,
            ..Default::default()
        });
        let listing = Listing {
            counters: Some(&counters),
            ..listing
        };
        let json = serde_json::to_value(&listing).expect("JSON");
        assert_eq!(json["counters"]["holes"], 3);
        assert_eq!(json["exports"][0]["attachments"][1]["bytes"], 8192);
        assert_eq!(json["limits"]["permits"], 7);
    }

    #[test]
    fn every_counter_of_the_module_has_a_name() {
        // Each is another number; two words are no counters.
        let words = size_of::<Stats>() / 8 - 1;
        let counters = counters(&Stats::default());
        assert_eq!(counters.len(), words);
        let names: std::collections::BTreeSet<_> = counters.map(|counter| counter.name).into();
        assert_eq!(names.len(), words);
    }
}
