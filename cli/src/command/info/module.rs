// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy info module`: what our kernel module shows and counts.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use onecopy_btl::Refusal;
use onecopy_btl::module::{self, Stats};
use onecopy_trace::{plain, proc};
use serde::{Serialize, Serializer};
use tabled::builder::Builder;
use tabled::settings::Style;

use super::super::{CliError, print, text};
use super::shown::{Attachment, Export, FOLDER, ModuleLists, Pin, User};

/// The module's parameters.
const PARAMETERS: &str = "/sys/module/onecopy/parameters";

/// A segment from address 0 on of at least so many bytes is a whole address space. How long that is depends on the
/// processor. Chosen by magnitude: a terabyte, more than a segment of a part has, and less than any space of 64 bits.
const WHOLE: u64 = 1 << 40;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// What the module's parameters are, limits among them, as they read.
fn parameters(folder: &Path) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .filter_map(|file| {
            let text = std::fs::read_to_string(file.path()).ok()?;
            Some((file.file_name().into_string().ok()?, text.trim().to_owned()))
        })
        .collect()
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
    shown: &'a ModuleLists,
    parameters: BTreeMap<String, String>,
    /// None where the device may not be opened.
    #[serde(serialize_with = "by_name")]
    counters: Option<[Counter; 16]>,
    /// Why there are none.
    uncounted: Option<String>,
}

/// A process's name as a terminal may have it. It is the name of now: another process may have the number since.
fn name_of(pid: u32) -> Option<String> {
    let name = proc::text(Path::new(&format!("/proc/{pid}/comm")))?;
    Some(plain::text(name.trim_end()))
}

fn by_name<S: Serializer>(counters: &Option<[Counter; 16]>, to: S) -> Result<S::Ok, S::Error> {
    let pairs = |all: [Counter; 16]| BTreeMap::from(all.map(|one| (one.name, one.value)));
    counters.map(pairs).serialize(to)
}

pub(super) fn run(args: &Args, json: bool) -> Result<ExitCode, CliError> {
    let folder = Path::new(FOLDER);
    if !folder.is_dir() {
        let refusal = Refusal::new(format!("{FOLDER} is not there"), module::LOAD);
        return Err(CliError::Failed(refusal.to_string().into()));
    }
    let mut shown = ModuleLists::read(folder).map_err(|error| CliError::Failed(error.into()))?;
    shown.name(&mut name_of);
    let (counters, uncounted) = match module::counters() {
        Ok(stats) => (Some(counters(&stats)), None),
        Err(refusal) => (None, Some(refusal.to_string())),
    };
    let listing = Listing {
        shown: &shown,
        parameters: parameters(Path::new(PARAMETERS)),
        counters,
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

/// A process by its number, and by its name where that is known.
fn process(pid: u32, name: Option<&String>) -> String {
    match (pid, name) {
        (0, _) => "not in this pid namespace".to_owned(),
        (pid, Some(name)) => format!("{pid} {name}"),
        (pid, None) => pid.to_string(),
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
        let users = users(&self.shown.users, &self.parameters);
        table(out, "Users, and what each may have", "none", users)?;
        writeln!(out)?;
        let mut rows = Builder::default();
        rows.push_record(["parameter", "value"]);
        for (name, value) in &self.parameters {
            rows.push_record([name, value]);
        }
        table(out, "Parameters", "not to be read", rows)?;
        writeln!(out)?;
        if let Some(why) = &self.uncounted {
            return writeln!(out, "Counters: not to be read ({why})");
        }
        let mut rows = Builder::default();
        rows.push_record(["counter", "value", ""]);
        for counter in self.counters.iter().flatten() {
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
        "owner", "uid", "address", "size", "mode", "state", "importer", "attached", "from",
    ]);
    for export in exports {
        let size = match (export.address, export.bytes) {
            (0, bytes) if bytes >= WHOLE => "all memory".to_owned(),
            (_, bytes) => text::size(bytes),
        };
        let mut first = vec![
            process(export.owner, export.owner_name.as_ref()),
            export.uid.to_string(),
            format!("{:#x}", export.address),
            size,
            format!("{:04o}", export.mode),
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
        process(attachment.importer, attachment.importer_name.as_ref()),
        text::size(attachment.bytes),
        from,
    ]
}

fn pins(pins: &[Pin]) -> Builder {
    let mut rows = Builder::default();
    rows.push_record(["owner", "uid", "pages", "size", "pieces", "rights"]);
    for pin in pins {
        rows.push_record([
            process(pin.owner, pin.owner_name.as_ref()),
            pin.uid.to_string(),
            pin.pages.to_string(),
            text::size(pin.bytes),
            pin.pieces.to_string(),
            pin.rights.clone(),
        ]);
    }
    rows
}

fn users(users: &[User], parameters: &BTreeMap<String, String>) -> Builder {
    let mut rows = Builder::default();
    let names = ["segments", "permits", "regions", "workers", "attachments"];
    rows.push_record(["uid"].into_iter().chain(names));
    for user in users {
        let counts = [
            user.segments,
            user.permits,
            user.regions,
            user.workers,
            user.attachments,
        ];
        let count_and_limit =
            |(name, count): (&str, u64)| match parameters.get(&format!("max_{name}")) {
                Some(limit) => format!("{count} of {limit}"),
                None => count.to_string(),
            };
        let counts = names.into_iter().zip(counts).map(count_and_limit);
        rows.push_record([user.uid.to_string()].into_iter().chain(counts));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::shown::tests::lists;
    use super::*;

    #[test]
    fn tables_say_who_exports_what_to_whom() {
        let mut shown = ModuleLists::read(lists().path()).expect("lists");
        let mut asked = Vec::new();
        shown.name(&mut |pid| {
            asked.push(pid);
            let name = String::from_utf8_lossy(b"one\xff").into_owned();
            (pid == 12).then_some(name)
        });
        assert_eq!(asked, [12, 13]);
        let listing = Listing {
            shown: &shown,
            parameters: BTreeMap::from([("max_permits".to_owned(), "7".to_owned())]),
            counters: None,
            uncounted: Some("no".to_owned()),
        };
        let mut out = Vec::new();
        listing.write(&mut out).expect("text");
        let text = String::from_utf8(out).expect("UTF-8");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        let find = |text: &str| assert!(lines.iter().any(|line| line.contains(text)), "{lines:#?}");
        find(
            "12 one\u{fffd} | 1000 | 0x7f0000000000 | 8 KiB | 0600 | alive | 13 | 4 KiB | +0x1000",
        );
        find("| | | | | | not in this pid namespace | 8 KiB | +0x0");
        // Its number may be another's by now.
        find("14 | 1000 | 0x0 | all memory | 0000 | revoked | | |");
        find("| 1000 | 2 | 4097 B | 1 | r- once");
        find("1000 | 2 | 1 of 7 | 2 | 0 | 2");
        find("Counters: not to be read (no)");
        let counters = counters(&Stats {
            holes: 3,
            ..Default::default()
        });
        let listing = Listing {
            counters: Some(counters),
            ..listing
        };
        let json = serde_json::to_value(&listing).expect("JSON");
        assert_eq!(json["counters"]["holes"], 3);
        assert_eq!(json["exports"][0]["attachments"][1]["bytes"], 8192);
        assert_eq!(json["exports"][0]["owner_name"], "one\u{fffd}");
        assert_eq!(json["parameters"]["max_permits"], "7");
    }

    #[test]
    fn every_counter_of_the_module_has_its_name() {
        let mut stats = Stats::default();
        let fields = [
            &mut stats.segments,
            &mut stats.permits,
            &mut stats.regions,
            &mut stats.pinned_pages,
            &mut stats.attaches,
            &mut stats.faults,
            &mut stats.retries,
            &mut stats.mapped_small,
            &mut stats.mapped_huge,
            &mut stats.invalidations,
            &mut stats.holes,
            &mut stats.copies,
            &mut stats.copied_bytes,
            &mut stats.attachments,
            &mut stats.spaces,
            &mut stats.workers,
        ];
        // The size and a reserved number come before them.
        assert_eq!(fields.len(), size_of::<Stats>() / 8 - 1);
        for (place, field) in fields.into_iter().enumerate() {
            *field = 1 + place as u64;
        }
        // Their order in the module's header.
        let names = "segments permits regions pinned_pages attaches faults retries mapped_small mapped_huge \
                     invalidations holes copies copied_bytes attachments spaces workers";
        let counters = counters(&stats);
        for (place, name) in names.split_whitespace().enumerate() {
            let counter = counters.iter().find(|counter| counter.name == name);
            assert_eq!(
                counter.map(|counter| counter.value),
                Some(1 + place as u64),
                "{name}"
            );
        }
    }
}
