// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operation that is started gets a home at once. An error in between would leave it under way, with nobody to end
//! it, on memory that its owner takes back.
//!
//! The engine's own names of operations are numbers without a destructor. So from the call that gives one to the first
//! word about it there is no `?` and no `return`. In `mpi/src` only the files whose values end what they hold start
//! anything; others hand them a closure.

use super::source::code_lines;
use super::{File, Findings};

/// Calls that start something and give a name without a destructor.
const STARTERS: [&str; 12] = [
    ".begin_send(",
    ".begin_receive(",
    ".begin_collective(",
    ".adopt(",
    ".start_send(",
    ".start_receive(",
    ".start_collective(",
    ".send_rest(",
    "engine.send(",
    "engine.receive(",
    "enter().send(",
    "enter().receive(",
];
/// Files of the front whose values end what they hold.
const GUARDS: [&str; 2] = ["mpi/src/request/pending.rs", "mpi/src/coll.rs"];
const FRONT: &str = "mpi/src/";

pub(super) fn check(file: &File, findings: &mut Findings) {
    if !file.path.starts_with("src/") && !file.path.starts_with(FRONT) {
        return;
    }
    // A chain of calls is one line.
    let (mut code, mut begins) = (String::new(), Vec::new());
    for (number, line) in code_lines(&file.text) {
        begins.push((code.len(), number));
        match line.trim() {
            call if call.starts_with('.') => code.push_str(call),
            _ => code.extend(["\n", line]),
        }
    }
    for starter in STARTERS {
        for (position, _) in code.match_indices(starter) {
            let line = begins.iter().rfind(|(begin, _)| *begin <= position);
            let line = line.map_or(0, |(_, number)| *number);
            let place = format!("{}:{line}", file.path);
            let name = starter.trim_matches(['.', '(']);
            let front = file.path.starts_with(FRONT);
            if front && guarded(&code, position) {
                continue;
            }
            if let Some(what) = left_alone(&code, position, position + starter.len()) {
                findings.error(&place, format!("{what} between {name} and its home"));
            }
            if front && !GUARDS.contains(&&*file.path) {
                let guards = GUARDS.join(" and ");
                findings.error(&place, format!("{name} outside of {guards}"));
            }
        }
    }
}

/// Whether the call at `position` is the body of a closure, which a guard calls, or is handed to one where it stands.
fn guarded(code: &str, position: usize) -> bool {
    let begin = statement(code, position);
    let end = code[position..]
        .find(';')
        .map_or(code.len(), |end| position + end);
    let closure = |text: &str| text.trim_end().ends_with('|') || text.contains("|buf|");
    closure(&code[begin..position])
        || closure(code[..begin].trim_end().trim_end_matches('{'))
        || code[position..end].contains("Pending::adopted")
}

/// Where the statement begins that `position` stands in.
fn statement(code: &str, position: usize) -> usize {
    code[..position]
        .rfind([';', '{', '}'])
        .map_or(0, |end| end + 1)
}

/// What can leave the function between a start, whose arguments begin at `arguments`, and the first word about what was
/// started.
fn left_alone(code: &str, position: usize, arguments: usize) -> Option<&'static str> {
    let called = close(code, arguments);
    let rest = &code[called..];
    // An error of the call itself: nothing was started.
    let own = rest.trim_start();
    let own = own.strip_prefix('?').unwrap_or(own);
    let begin = code.len() - own.len();
    let (end, by) = end_of_statement(code, begin);
    if let Some(what) = leaves(&code[begin..end]) {
        return Some(what);
    }
    // Not bound to a name: what it is given to has it.
    let bound = code[statement(code, position)..].trim_start();
    let bound = bound.strip_prefix("let ")?.trim_start();
    let bound = bound.strip_prefix("mut ").unwrap_or(bound);
    let name: String = bound.chars().take_while(|&c| is_word(c)).collect();
    if by != Some(';') || name.is_empty() {
        return None;
    }
    let block = close(code, end);
    let until = words(code, end)
        .find(|&(_, word)| word == name)
        .map_or(block, |(position, _)| position.min(block));
    leaves(&code[end..until])
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The words from `from` on, each with its position.
fn words(code: &str, from: usize) -> impl Iterator<Item = (usize, &str)> {
    code[from..]
        .split(|c| !is_word(c))
        .map(move |word| (word.as_ptr().addr() - code.as_ptr().addr(), word))
        .filter(|(_, word)| !word.is_empty())
}

/// The position behind the bracket that closes what is open at `from`.
fn close(code: &str, from: usize) -> usize {
    let mut depth = 1;
    for (position, c) in code[from..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return from + position + 1;
        }
    }
    code.len()
}

/// Where the statement ends that `from` stands in, and by what: `;`, or the end of its block.
fn end_of_statement(code: &str, from: usize) -> (usize, Option<char>) {
    let mut depth = 0;
    for (position, c) in code[from..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return (from + position, Some('}')),
            '}' => depth -= 1,
            ';' if depth == 0 => return (from + position, Some(';')),
            _ => {}
        }
    }
    (code.len(), None)
}

fn leaves(text: &str) -> Option<&'static str> {
    if text.contains('?') {
        Some("`?`")
    } else if words(text, 0).any(|(_, word)| word == "return") {
        Some("`return`")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, body: &str) -> Vec<String> {
        let mut findings = Findings::default();
        let file = File {
            path: path.to_owned(),
            text: format!("fn f() {{\n{body}\n}}\n"),
        };
        check(&file, &mut findings);
        findings.errors
    }

    #[test]
    fn what_is_held_at_once_is_in_order() {
        for body in [
            "let id = engine.send(to, &f(x)?, tag)?;\nself.requests.push(id);\ng()?;",
            "let id = self.start_send(a, b)?;\nOk(Request { id })",
            "Ok(self.keep(self.comm.start_receive(a, b)?))",
            "let receive = self.start_receive(a)?;\nlet sent = self.send(b);\nif sent.is_err() { cancel(receive) }\nsent?;",
            "let _ = engine.send(a);\n}\nfn g() {\nh()?;",
            "let started = engine.start_collective(a);\nfinish(started);\ng()?;",
        ] {
            assert_eq!(errors("src/a.rs", body), [""; 0], "{body}");
        }
    }

    #[test]
    fn an_error_before_the_home_is_found() {
        let body = "let receive = link.begin_receive(a)?;\nlet send = begin_send(b)?;\nboth(send, receive)";
        assert_eq!(
            errors("src/a.rs", body),
            ["src/a.rs:2: `?` between begin_receive and its home"]
        );
        for (body, what) in [
            ("request.set(keep(comm.start_send(a)?)?)", "`?`"),
            (
                "let id = engine.send(a)?;\nif x {\n    return Err(y);\n}\nkeep(id)",
                "`return`",
            ),
            (
                "let mut id = engine\n    .receive(a)?;\nlet b = c()?; keep(id)",
                "`?`",
            ),
            (
                "let o = self.start_collective(a).map(Op)?.b()?;\nkeep(o)",
                "`?`",
            ),
        ] {
            let found = errors("src/a.rs", body);
            assert!(
                found.len() == 1 && found[0].contains(what),
                "{body}: {found:?}"
            );
        }
    }

    #[test]
    fn the_front_starts_by_its_guards_only() {
        let start = "Ok(link.begin_send(a, b)?)";
        assert_eq!(errors(GUARDS[0], start), [""; 0]);
        assert_eq!(
            errors("mpi/src/p2p.rs", start),
            [format!(
                "mpi/src/p2p.rs:2: begin_send outside of {}",
                GUARDS.join(" and ")
            )]
        );
        for body in [
            "self.receive(|buf| link.begin_receive(buf, a))",
            "Pending::receive_packed(4, |buf| {\n    own.begin_receive(buf, a)\n})?;",
            "engine()?.peek(|poll| poll.adopt(name).map(Pending::adopted))",
        ] {
            assert_eq!(errors("mpi/src/a.rs", body), [""; 0], "{body}");
        }
        assert_eq!(errors("xtask/src/a.rs", start), [""; 0]);
    }
}
