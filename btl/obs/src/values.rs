// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of value that a knob can have: how each is read, checked and shown.
//!
//! A [`Kind`] is a range together with a syntax. What a kind shows, it also reads:
//! `parse(show(v)) == v` for every value in range.

mod network;

use crate::stats::LAYERS;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use network::{Name, Names, NetAddress, NetAddresses};

/// A syntax and a range of values.
pub trait Kind {
    /// What a knob of this kind holds.
    type Value;

    /// The name of the syntax, for listings.
    fn type_name(&self) -> String;

    /// Reads a value. The error says what is wrong with the text and neither repeats it nor the range.
    fn parse(&self, text: &str) -> Result<Self::Value, String>;

    /// The text that [`parse`](Kind::parse) reads as this value.
    fn show(&self, value: &Self::Value) -> String;

    /// The values that are accepted, in words.
    fn range(&self) -> String;
}

/// One kibibyte.
pub const KIB: usize = 1 << 10;
/// One mebibyte.
pub const MIB: usize = 1 << 20;
/// One gibibyte.
pub const GIB: usize = 1 << 30;
/// One tebibyte.
pub const TIB: usize = 1 << 40;

const UNITS: [(&str, usize); 4] = [("T", TIB), ("G", GIB), ("M", MIB), ("K", KIB)];

/// Reads a number of bytes: `4096`, `64K`, `64k`, `64KB`, `64 KiB`, and the same with M, G and T.
/// All units are powers of 1024.
///
/// # Errors
/// What is wrong with the text, in words for its author.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("not a size".to_owned());
    }
    let unit = unit.trim_start().to_ascii_uppercase();
    let factor = match unit.as_str() {
        "" | "B" => 1,
        _ => UNITS
            .iter()
            .find(|(name, _)| {
                unit.strip_prefix(name)
                    .is_some_and(|rest| matches!(rest, "" | "B" | "IB"))
            })
            .map(|&(_, factor)| factor)
            .ok_or("not a unit of size; use K, M, G or T")?,
    };
    number
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| "larger than any address space".to_owned())
}

/// Shows a number of bytes in the largest unit that divides it: `64 KiB`, `1000`.
#[must_use]
pub fn show_size(bytes: usize) -> String {
    for (name, factor) in UNITS {
        if bytes != 0 && bytes.is_multiple_of(factor) {
            return format!("{} {name}iB", bytes / factor);
        }
    }
    bytes.to_string()
}

fn within(value: usize, min: usize, max: usize) -> Result<usize, String> {
    if value < min {
        Err("too small".to_owned())
    } else if value > max {
        Err("too large".to_owned())
    } else {
        Ok(value)
    }
}

fn parse_count(text: &str) -> Result<usize, String> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a whole number".to_owned());
    }
    text.parse().map_err(|_| "too large".to_owned())
}

/// A number of bytes, `min ..= max`.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The smallest value accepted.
    pub min: usize,
    /// The largest value accepted.
    pub max: usize,
}

impl Kind for Size {
    type Value = usize;
    fn type_name(&self) -> String {
        "size".to_owned()
    }
    fn parse(&self, text: &str) -> Result<usize, String> {
        within(parse_size(text)?, self.min, self.max)
    }
    fn show(&self, value: &usize) -> String {
        show_size(*value)
    }
    fn range(&self) -> String {
        format!("{} to {}", show_size(self.min), show_size(self.max))
    }
}

/// A whole number, `min ..= max`.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// The smallest value accepted.
    pub min: usize,
    /// The largest value accepted.
    pub max: usize,
}

impl Kind for Count {
    type Value = usize;
    fn type_name(&self) -> String {
        "count".to_owned()
    }
    fn parse(&self, text: &str) -> Result<usize, String> {
        within(parse_count(text)?, self.min, self.max)
    }
    fn show(&self, value: &usize) -> String {
        value.to_string()
    }
    fn range(&self) -> String {
        format!("{} to {}", self.min, self.max)
    }
}

/// A power of two, `min ..= max`.
#[derive(Clone, Copy, Debug)]
pub struct PowerOfTwo {
    /// The smallest value accepted.
    pub min: usize,
    /// The largest value accepted.
    pub max: usize,
}

impl Kind for PowerOfTwo {
    type Value = usize;
    fn type_name(&self) -> String {
        "count".to_owned()
    }
    fn parse(&self, text: &str) -> Result<usize, String> {
        let value = within(parse_count(text)?, self.min, self.max)?;
        if value.is_power_of_two() {
            Ok(value)
        } else {
            Err("not a power of two".to_owned())
        }
    }
    fn show(&self, value: &usize) -> String {
        value.to_string()
    }
    fn range(&self) -> String {
        format!("a power of two from {} to {}", self.min, self.max)
    }
}

/// `auto` (held as `None`: the runtime chooses), or a value of another kind.
#[derive(Clone, Copy, Debug)]
pub struct Auto<K>(
    /// The kind of an explicit value.
    pub K,
);

impl<K: Kind> Kind for Auto<K> {
    type Value = Option<K::Value>;
    fn type_name(&self) -> String {
        format!("{} or auto", self.0.type_name())
    }
    fn parse(&self, text: &str) -> Result<Self::Value, String> {
        if text.trim().eq_ignore_ascii_case("auto") {
            Ok(None)
        } else {
            self.0.parse(text).map(Some)
        }
    }
    fn show(&self, value: &Self::Value) -> String {
        match value {
            None => "auto".to_owned(),
            Some(value) => self.0.show(value),
        }
    }
    fn range(&self) -> String {
        format!("auto, or {}", self.0.range())
    }
}

/// A time span, written as a number of the unit or with the suffix `ms`, `s` or `min`.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The unit of a bare number, in milliseconds: 1 or 1000.
    pub unit_ms: u64,
    /// The shortest span accepted, in units.
    pub min: u64,
    /// The longest span accepted, in units.
    pub max: u64,
}

impl Span {
    const fn unit(&self) -> &'static str {
        if self.unit_ms == 1 { "ms" } else { "s" }
    }
}

impl Kind for Span {
    type Value = Duration;
    fn type_name(&self) -> String {
        if self.unit_ms == 1 {
            "milliseconds".to_owned()
        } else {
            "seconds".to_owned()
        }
    }
    fn parse(&self, text: &str) -> Result<Duration, String> {
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err("not a time span".to_owned());
        }
        let unit_ms = match unit.trim_start() {
            "" => self.unit_ms,
            "ms" => 1,
            "s" => 1000,
            "min" => 60_000,
            _ => return Err("not a unit of time; use ms, s or min".to_owned()),
        };
        let millis = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit_ms))
            .ok_or("too long")?;
        if millis < self.min * self.unit_ms {
            Err("too short".to_owned())
        } else if millis > self.max * self.unit_ms {
            Err("too long".to_owned())
        } else {
            Ok(Duration::from_millis(millis))
        }
    }
    fn show(&self, value: &Duration) -> String {
        let millis = value.as_millis();
        if millis.is_multiple_of(u128::from(self.unit_ms)) {
            format!("{} {}", millis / u128::from(self.unit_ms), self.unit())
        } else {
            format!("{millis} ms")
        }
    }
    fn range(&self) -> String {
        format!(
            "{} {unit} to {} {unit}",
            self.min,
            self.max,
            unit = self.unit()
        )
    }
}

/// `on` or `off`; `1`, `yes`, `true` and `0`, `no`, `false` are read too.
#[derive(Clone, Copy, Debug)]
pub struct Switch;

impl Kind for Switch {
    type Value = bool;
    fn type_name(&self) -> String {
        "switch".to_owned()
    }
    fn parse(&self, text: &str) -> Result<bool, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "on" | "1" | "yes" | "true" => Ok(true),
            "off" | "0" | "no" | "false" => Ok(false),
            _ => Err("neither on nor off".to_owned()),
        }
    }
    fn show(&self, value: &bool) -> String {
        if *value { "on" } else { "off" }.to_owned()
    }
    fn range(&self) -> String {
        "on, off".to_owned()
    }
}

/// The path of a file; `none`, or nothing set, is `None`.
#[derive(Clone, Copy, Debug)]
pub struct FilePath;

impl Kind for FilePath {
    type Value = Option<PathBuf>;
    fn type_name(&self) -> String {
        "path".to_owned()
    }
    fn parse(&self, text: &str) -> Result<Self::Value, String> {
        match text {
            "" => Err("an empty path".to_owned()),
            "none" => Ok(None),
            path => Ok(Some(PathBuf::from(path))),
        }
    }
    fn show(&self, value: &Self::Value) -> String {
        match value {
            None => "none".to_owned(),
            Some(path) => path.display().to_string(),
        }
    }
    fn range(&self) -> String {
        "none, or the path of a file".to_owned()
    }
}

/// A closed set of words.
pub trait Words: Copy + PartialEq + Sized + 'static {
    /// Each word with its value.
    const WORDS: &'static [(&'static str, Self)];
}

/// One word out of a closed set.
#[derive(Clone, Copy, Debug)]
pub struct OneOf<T>(std::marker::PhantomData<T>);

impl<T> OneOf<T> {
    /// The kind.
    #[must_use]
    pub const fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<T> Default for OneOf<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Words> Kind for OneOf<T> {
    type Value = T;
    fn type_name(&self) -> String {
        "word".to_owned()
    }
    fn parse(&self, text: &str) -> Result<T, String> {
        let text = text.trim();
        T::WORDS
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(text))
            .map(|&(_, value)| value)
            .ok_or_else(|| "not one of the words".to_owned())
    }
    fn show(&self, value: &T) -> String {
        T::WORDS
            .iter()
            .find(|(_, known)| known == value)
            .map_or_else(String::new, |(word, _)| (*word).to_owned())
    }
    fn range(&self) -> String {
        let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
        words.join(", ")
    }
}

macro_rules! words {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $vdoc:literal])+ $variant:ident = $word:literal,)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $vdoc])+ $variant,)+ }

        impl Words for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant),)+];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word,)+ })
            }
        }
    )+};
}

words! {
    /// How a sender writes to its chunks.
    ChunkCopy {
        /// As the processor prefers.
        Auto = "auto",
        /// By stores, into lines that it has asked for ahead.
        Owned = "owned",
        /// By `rep movsb`, in whole chunks. A message of up to two goes in halves, if the two ranks send in turn.
        String = "string",
    }

    /// Which copy kernel moves payload.
    CopyKernel {
        /// The C library's, and non-temporal stores for long transfers.
        Auto = "auto",
        /// The C library's.
        Memcpy = "memcpy",
        /// Non-temporal stores, which leave the cache to others.
        NonTemporal = "nt",
        /// `rep movsb`.
        Rep = "rep",
    }

    /// How a device for RDMA reaches a rank's peers.
    VerbsMode {
        /// By connections while there is memory for them.
        Auto = "auto",
        /// By reliable connections.
        Connections = "rc",
        /// By extended connections: one for each other node, whose ranks share it.
        Extended = "xrc",
        /// By datagrams, whose order and losses are the library's.
        Datagrams = "ud",
    }

    /// Whether a wait may sleep.
    WaitSleep {
        /// As on.
        Auto = "auto",
        /// It may, after it has polled and yielded.
        On = "on",
        /// It never does.
        Off = "off",
    }

    /// Whom a rank permits to read its memory where the kernel demands a permission (Yama, ptrace_scope 1).
    Ptracer {
        /// Nobody; the kernel's setting stands.
        Off = "off",
        /// One peer at a time, the one that is about to copy.
        Peer = "peer",
        /// Any process of the same user.
        Any = "any",
    }

    /// By which interface of the kernel module the layers xpmem and knem work.
    ModuleAbi {
        /// The extension where both ranks have it, else the plain interfaces.
        Auto = "auto",
        /// Only /dev/onecopy.
        Onecopy = "onecopy",
        /// Only /dev/xpmem and /dev/knem.
        Plain = "plain",
    }

    /// How much is logged.
    LogLevel {
        /// Nothing.
        Off = "off",
        /// Failures.
        Error = "error",
        /// What a user should look at.
        Warn = "warn",
        /// What was chosen and why.
        Info = "info",
        /// What happens to each connection.
        Debug = "debug",
        /// What happens to each message.
        Trace = "trace",
    }
}

/// Which layers may carry payload. Control messages always travel through `cico`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerList {
    /// Every layer that this machine has.
    All,
    /// Only these.
    Only(Vec<&'static str>),
    /// Every layer but these.
    Except(Vec<&'static str>),
}

impl LayerList {
    /// The names that a list may contain.
    pub const KNOWN: &'static [&'static str] = LAYERS;

    /// Whether the layer may carry payload.
    #[must_use]
    pub fn allows(&self, layer: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(&layer),
            Self::Except(names) => !names.contains(&layer),
        }
    }
}

impl fmt::Display for LayerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Only(names) => f.write_str(&names.join(",")),
            Self::Except(names) => write!(f, "^{}", names.join(",")),
        }
    }
}

/// A list of layers: `all`, `cico,heap`, or `^cma` for all but cma.
#[derive(Clone, Copy, Debug)]
pub struct Layers;

impl Kind for Layers {
    type Value = LayerList;
    fn type_name(&self) -> String {
        "list".to_owned()
    }
    fn parse(&self, text: &str) -> Result<LayerList, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("all") {
            return Ok(LayerList::All);
        }
        let (except, list) = match text.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let mut names = Vec::new();
        for name in list.split(',').map(str::trim) {
            let known = LayerList::KNOWN.iter().find(|known| **known == name);
            match known {
                None if name.is_empty() => return Err("an empty name in the list".to_owned()),
                None => return Err(format!("no layer is called '{name}'")),
                Some(known) if !names.contains(known) => names.push(*known),
                Some(_) => {}
            }
        }
        Ok(if except {
            LayerList::Except(names)
        } else {
            LayerList::Only(names)
        })
    }
    fn show(&self, value: &LayerList) -> String {
        value.to_string()
    }
    fn range(&self) -> String {
        format!(
            "all, or a list of {}; ^ before the list: all but these",
            LayerList::KNOWN.join(", ")
        )
    }
}
