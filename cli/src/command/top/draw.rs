// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws the state of `top`.

use onecopy_trace::observed::Mechanism;
use onecopy_trace::plain;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::state::{Line, State, View};
use crate::command::text;
use crate::command::trace::table::{errors, name, number, rate};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let header = header(state);
    let lines = u16::try_from(header.len()).unwrap_or(u16::MAX);
    let rows = Layout::vertical([
        Constraint::Length(lines),
        Constraint::Min(3),
        Constraint::Length(1),
    ]);
    let [head, body, foot] = rows.areas(frame.area());
    frame.render_widget(Paragraph::new(header), head);
    match &state.view {
        View::Matrix => matrix(frame, body, state),
        View::Pair(_) => match state.detailed() {
            Some(line) => details(frame, body, line, state),
            None => frame.render_widget(Paragraph::new("the pair is gone"), body),
        },
        View::Help => frame.render_widget(Paragraph::new(help()), body),
    }
    frame.render_widget(Paragraph::new(footer(state)), foot);
}

fn header(state: &State) -> Vec<Text<'static>> {
    let lines = state.lines();
    // Not a sum of the library, which is -0 of nothing.
    let sum = |figure: fn(&Line) -> f64| lines.iter().fold(0.0, |sum, line| sum + figure(line));
    let (bytes, calls) = (sum(|line| line.bytes_per_s), sum(|line| line.calls_per_s));
    let paused = if state.paused { ", paused" } else { "" };
    let cost = &state.report.overhead;
    let second = format!(
        "observing costs {:.0} ns a call, {:.0} ns every other system call",
        cost.ns_per_event, cost.ns_per_other_call
    );
    let notes = &state.report.limits;
    let note = notes.first().map(|note| {
        let note = plain::text(note);
        match notes.len() {
            1 => format!("note: {note}"),
            count => format!("note (1 of {count}): {note}"),
        }
    });
    let mut lines = vec![
        Text::from(Span::styled(
            format!(
                "onecopy top: {:.0} s, {} pairs, {}/s in {:.0} calls/s, by {}{paused}",
                state.report.seconds,
                lines.len(),
                size(bytes),
                calls,
                state.sort.name()
            ),
            BOLD,
        )),
        Text::from(second),
    ];
    lines.extend(note.map(Text::from));
    lines
}

fn footer(state: &State) -> Text<'static> {
    if state.types {
        Text::from(format!("filter: {}_", state.filter))
    } else if state.filter.is_empty() {
        Text::from("q quit  ? keys  s sort  / filter  p pause  Enter details")
    } else {
        Text::from(format!("filter: {}  (Esc clears it)", state.filter))
    }
}

const HELP: &str = "\
Up, Down, k, j   choose a pair; Home and End, the first and the last
Enter            its details; Esc goes back, and clears the filter
s                sort by bytes per second, bytes, calls, p99, errors, source
/                show only pairs whose names, mechanism or errors contain a text
p, space         pause
?, h             this page
q                quit

A process is shown as RANK:COMMAND[ID]. 'ns:NAMESPACE:ID' is an id in a pid namespace that could not be translated.
Mechanisms: cma-read and cma-write are calls of the kernel that any program makes. xpmem-attach, xpmem-fault and
knem-copy are those of kernel modules. What onecopy's ranks count themselves: ";

fn help() -> String {
    let own: Vec<&str> = Mechanism::OF_RANKS.iter().map(|own| own.name()).collect();
    format!("{HELP}{}.", own.join(", "))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate for people"
)]
fn size(bytes: f64) -> String {
    text::size(bytes.round() as u64)
}

fn matrix(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let head = Row::new([
        "source",
        "sink",
        "mechanism",
        "bytes/s",
        "calls/s",
        "bytes",
        "p50 us",
        "p99 us",
        "GB/s",
        "errors",
    ])
    .style(BOLD);
    let lines = state.lines();
    let rows = lines.iter().map(|line| {
        let pair = &line.pair;
        let latency = pair.latency_us;
        Row::new([
            Cell::from(name(&pair.source)),
            Cell::from(name(&pair.sink)),
            Cell::from(pair.mechanism.name()),
            Cell::from(size(line.bytes_per_s)),
            Cell::from(format!("{:.0}", line.calls_per_s)),
            Cell::from(text::size(pair.bytes)),
            Cell::from(latency.map_or_else(String::new, |latency| text::micros(latency.p50))),
            Cell::from(latency.map_or_else(String::new, |latency| text::micros(latency.p99))),
            Cell::from(rate(pair.gb_per_s)),
            Cell::from(errors(pair)),
        ])
    });
    let widths = [
        Constraint::Fill(3),
        Constraint::Fill(3),
        Constraint::Length(12),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Fill(2),
    ];
    let table = Table::new(rows, widths)
        .header(head)
        .row_highlight_style(CHOSEN);
    let mut chosen = TableState::default();
    chosen.select((!lines.is_empty()).then(|| state.selected()));
    frame.render_stateful_widget(table, area, &mut chosen);
}

fn details(frame: &mut Frame<'_>, area: Rect, line: &Line, state: &State) {
    let pair = &line.pair;
    let mut texts = vec![format!(
        "{} calls, {}, {} page faults, {} us of waits, {} flushes",
        number(pair.calls),
        text::size(pair.bytes),
        number(pair.faults),
        text::micros(pair.wait_us),
        number(pair.flushes)
    )];
    if let Some(latency) = pair.latency_us {
        texts.push(format!(
            "a call: p50 {} us, p99 {} us, p99.9 {} us",
            text::micros(latency.p50),
            text::micros(latency.p99),
            text::micros(latency.p999)
        ));
    }
    if !pair.errors.is_empty() {
        texts.push(format!("errors: {}", errors(pair)));
    }
    let mut lines: Vec<Text<'_>> = texts.into_iter().map(Text::from).collect();
    lines.push(Text::from(""));
    lines.push(Text::from(Span::styled("sizes", BOLD)));
    let most = pair.sizes.iter().map(|bin| bin.calls).max().unwrap_or(1);
    for bin in &pair.sizes {
        let width = usize::try_from(bin.calls * 40 / most.max(1))
            .unwrap_or(0)
            .max(1);
        lines.push(Text::from(format!(
            "{:>10} {:>12} {}",
            text::size(bin.from),
            number(bin.calls),
            "█".repeat(width)
        )));
    }
    let about = state.report.missed.iter().filter(|missed| {
        let mut who = missed.who.iter();
        who.all(|who| [&pair.source, &pair.sink].contains(&who))
    });
    for missed in about {
        lines.push(Text::from(""));
        let words = format!("{}: {}. {}", missed.what, missed.why, missed.remedy);
        lines.push(Text::from(plain::text(&words)));
    }
    let title = format!(
        " {} → {} by {} ",
        name(&pair.source),
        name(&pair.sink),
        pair.mechanism.name()
    );
    let block = Block::bordered().title(title);
    let paragraph = Paragraph::new(lines)
        .wrap(Wrap { trim: false })
        .block(block);
    frame.render_widget(paragraph, area);
}

#[cfg(test)]
mod tests {
    use super::super::state::{Key, tests::report};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, state)).expect("drawn");
        terminal.backend().to_string()
    }

    fn state() -> State {
        let mut state = State::default();
        state.show(report(1.0, [1 << 20, 5000]));
        state.show(report(2.0, [3 << 20, 5000]));
        state
    }

    #[test]
    fn the_matrix_shows_names_rates_and_errors() {
        let text = screen(&state(), 140, 12);
        for part in [
            "0:alpha[100]",
            "1:beta[101]",
            "cma-read",
            "2 MiB",
            "EPERM 2",
            "10.0",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn details_show_the_sizes() {
        let mut state = state();
        state.press(Key::Enter);
        let text = screen(&state, 100, 20);
        for part in [
            "0:alpha[100] → 1:beta[101] by cma-read",
            "4 KiB",
            "█",
            "p99.9",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn the_smallest_terminal_is_no_panic() {
        let mut state = state();
        for key in ['?', '?', 's'] {
            state.press(Key::Char(key));
            for (width, height) in [(1, 1), (10, 3), (20, 5)] {
                screen(&state, width, height);
            }
        }
        state.press(Key::Enter);
        screen(&state, 3, 4);
        let none = screen(&State::default(), 80, 24);
        assert!(none.contains(" 0 calls/s"), "{none}");
    }
}
