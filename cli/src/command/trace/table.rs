// SPDX-License-Identifier: MIT OR Apache-2.0
//! A report as text for people.

use std::fmt::{self, Write};

use onecopy_trace::observed::Overhead;
use onecopy_trace::plain;
use onecopy_trace::rdma::Port;
use onecopy_trace::report::{MissedCopy, NamedProcess, Pair, Report, Waits};
use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::{Alignment, Style};

use crate::command::text;

/// A process: rank, command, id; what is known of them.
pub(crate) fn name(who: &NamedProcess) -> String {
    let mut name = String::new();
    if let Some(rank) = who.rank {
        let _ = write!(name, "{rank}");
    }
    if let Some(comm) = &who.comm {
        if !name.is_empty() {
            name.push(':');
        }
        // A program may call itself anything.
        name.push_str(&plain::text(comm));
    }
    if let Some(pid) = who.pid {
        let _ = write!(name, "[{pid}]");
    } else if let Some(local) = &who.in_namespace {
        let _ = write!(name, "ns:{}", plain::text(local));
    } else if name.is_empty() {
        name.push('?');
    }
    name
}

/// A whole number in groups of three digits.
pub(crate) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// The errors of a pair, as `EPERM 3, EFAULT 1`.
pub(crate) fn errors(pair: &Pair) -> String {
    let each = pair.errors.iter();
    let each: Vec<String> = each
        .map(|(name, times)| format!("{} {times}", plain::text(name)))
        .collect();
    each.join(", ")
}

/// A rate in 10⁹ bytes per second.
pub(crate) fn rate(value: Option<f64>) -> String {
    value.map_or_else(String::new, |rate| format!("{rate:.2}"))
}

fn pairs(report: &Report) -> String {
    let mut table = Builder::default();
    table.push_record([
        "source",
        "sink",
        "mechanism",
        "calls",
        "bytes",
        "p50 us",
        "p99 us",
        "GB/s",
        "copying",
        "faults",
        "errors",
    ]);
    for pair in &report.pairs {
        let latency = |get: fn(&onecopy_trace::report::Latency) -> f64| {
            pair.latency_us
                .as_ref()
                .map_or_else(String::new, |latency| text::micros(get(latency)))
        };
        table.push_record([
            name(&pair.source),
            name(&pair.sink),
            pair.mechanism.name().to_owned(),
            number(pair.calls),
            text::size(pair.bytes),
            latency(|latency| latency.p50),
            latency(|latency| latency.p99),
            rate(pair.gb_per_s),
            rate(pair.copy_gb_per_s),
            if pair.faults > 0 {
                number(pair.faults)
            } else {
                String::new()
            },
            errors(pair),
        ]);
    }
    table
        .build()
        .with(Style::sharp())
        .modify(Columns::new(3..10), Alignment::right())
        .to_string()
}

/// What went over a port of a device for RDMA.
fn line(port: &Port) -> String {
    let amount = |bytes: Option<u64>, packets: Option<u64>| {
        let bytes = bytes.map(text::size);
        let packets = packets.map(|packets| format!("{} packets", number(packets)));
        let known: Vec<String> = bytes.into_iter().chain(packets).collect();
        if known.is_empty() {
            "?".to_owned()
        } else {
            known.join(" in ")
        }
    };
    format!(
        "{} port {}, all programs of the node: {} sent, {} received",
        plain::text(&port.device),
        port.port,
        amount(port.sent_bytes, port.sent_packets),
        amount(port.received_bytes, port.received_packets)
    )
}

/// An item of a list in so many words, which may come from anywhere.
fn item(words: &str) -> String {
    text::wrap(&plain::text(words), 110).replace('\n', "\n  ")
}

/// All of a report.
pub(crate) fn report(report: &Report) -> String {
    let mut out = String::new();
    // A string takes any text.
    let _ = write_report(&mut out, report);
    out
}

fn write_report(out: &mut String, report: &Report) -> fmt::Result {
    let what = if report.program.is_empty() {
        "the whole node".to_owned()
    } else {
        plain::text(&report.program.join(" "))
    };
    writeln!(out, "{what}: {:.1} s", report.seconds)?;
    if report.pairs.is_empty() {
        writeln!(out, "no copy between processes was seen")?;
    } else {
        writeln!(out, "{}", pairs(report))?;
        writeln!(
            out,
            "GB/s: bytes over the time of calls. copying: less page faults and waits, where they are known."
        )?;
    }
    write_waits(out, &report.waits)?;
    for port in &report.rdma {
        writeln!(out, "{}", line(port))?;
    }
    for counter in &report.modules {
        writeln!(
            out,
            "module for {}, all programs of the node: {}: {}",
            plain::text(&counter.module),
            plain::text(&counter.name),
            number(counter.added)
        )?;
    }
    write_missed(out, &report.missed)?;
    let cost = &report.overhead;
    if cost.events > 0 || cost.ns_per_event > 0.0 {
        write_overhead(out, cost)?;
    }
    for limit in &report.limits {
        writeln!(out, "{}", item(&format!("note: {limit}")))?;
    }
    Ok(())
}

fn write_waits(out: &mut String, waits: &[Waits]) -> fmt::Result {
    // A process waits for its own address space when its threads change it: that is its own matter.
    let of_others = |wait: &&Waits| wait.waits > 0 && wait.who != wait.owner;
    for wait in waits.iter().filter(of_others).take(10) {
        writeln!(
            out,
            "{} waited {} times for the address space of {}: {} us in all, {} at most",
            name(&wait.who),
            number(wait.waits),
            name(&wait.owner),
            text::micros(wait.total_us),
            text::micros(wait.longest_us)
        )?;
    }
    Ok(())
}

fn write_missed(out: &mut String, missed: &[MissedCopy]) -> fmt::Result {
    if !missed.is_empty() {
        writeln!(out, "\nsingle copies that were missed:")?;
    }
    for missed in missed {
        let bytes = if missed.bytes > 0 {
            format!(" ({})", text::size(missed.bytes))
        } else {
            String::new()
        };
        let words = format!(
            "- {}{bytes}: {}. {}",
            missed.what, missed.why, missed.remedy
        );
        writeln!(out, "{}", item(&words))?;
    }
    Ok(())
}

fn write_overhead(out: &mut String, cost: &Overhead) -> fmt::Result {
    writeln!(
        out,
        "\nobserving: {} events of {:.0} ns each; every other system call of the node takes {:.0} ns longer; {} \
         records of the timeline lost, {} calls not counted",
        number(cost.events),
        cost.ns_per_event,
        cost.ns_per_other_call,
        number(cost.dropped),
        number(cost.not_counted)
    )?;
    for (user, times) in &cost.not_counted_by_user {
        writeln!(
            out,
            "not counted of user {user}: {} calls and processes; the tables have no more room for this user",
            number(*times)
        )?;
    }
    for given_up in &cost.given_up {
        writeln!(out, "given up for --max-overhead: {given_up}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_says_what_it_counts() {
        let mut port = Port {
            device: "rxe\u{1b}0".to_owned(),
            port: 1,
            sent_packets: Some(1200),
            ..Port::default()
        };
        let begin = "rxe?0 port 1, all programs of the node: ";
        assert_eq!(
            line(&port),
            format!("{begin}1 200 packets sent, ? received")
        );
        (port.sent_bytes, port.received_bytes) = (Some(2048), Some(1024));
        assert_eq!(
            line(&port),
            format!("{begin}2 KiB in 1 200 packets sent, 1 KiB received")
        );
    }

    #[test]
    fn names_say_what_is_known() {
        let who = NamedProcess {
            pid: Some(10),
            rank: Some(3),
            comm: Some("a\u{1b}b".to_owned()),
            ..NamedProcess::default()
        };
        assert_eq!(name(&who), "3:a?b[10]");
        let local = NamedProcess {
            in_namespace: Some("77:42".to_owned()),
            ..NamedProcess::default()
        };
        assert_eq!(name(&local), "ns:77:42");
        assert_eq!(name(&NamedProcess::default()), "?");
    }

    #[test]
    fn numbers_are_grouped() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1 000"),
            (1_234_567, "1 234 567"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
