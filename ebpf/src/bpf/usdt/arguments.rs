// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where arguments of probe points are, as notes have it: `-8@%rdi 4@-20(%rbp) 8@$5 4@8(%rax,%rbx,4)`, or on other
//! processors `-8@x0 4@[sp, 16] 8@5`.

/// Where one argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Argument {
    /// Bytes; negative if it is signed.
    size: i8,
    location: Location,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Constant(i64),
    /// In a register, which lies there in what the kernel saved.
    Register(i16),
    Memory {
        offset: i64,
        base: i16,
        /// The register and by how much its value is shifted.
        index: Option<(i16, u8)>,
    },
}

impl Argument {
    /// As `ebpf/bpf/runtime.h` has it.
    pub(super) fn words(&self) -> [u64; 2] {
        let (value, kind, base, index, index_shift) = match self.location {
            Location::Constant(value) => (value, 0_u8, 0, -1, 0),
            Location::Register(base) => (0, 1, base, -1, 0),
            Location::Memory {
                offset,
                base,
                index,
            } => {
                let (index, shift) = index.unwrap_or((-1, 0));
                (offset, 2, base, index, shift)
            }
        };
        let shift = 64 - 8 * self.size.unsigned_abs().min(8);
        let [base_low, base_high] = base.to_ne_bytes();
        let [index_low, index_high] = index.to_ne_bytes();
        let rest = [
            kind,
            shift,
            u8::from(self.size < 0),
            index_shift,
            base_low,
            base_high,
            index_low,
            index_high,
        ];
        [value.cast_unsigned(), u64::from_ne_bytes(rest)]
    }
}

/// The arguments of a note. One that is not understood is a zero, so that the others keep their places.
pub(super) fn parse(text: &[u8]) -> Vec<Argument> {
    let text = String::from_utf8_lossy(text);
    let mut found = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        // There are blanks inside of brackets.
        let closed = rest.find('[').filter(|open| {
            let blank = rest.find(' ').unwrap_or(rest.len());
            *open < blank
        });
        let from = closed.map_or(0, |open| {
            rest[open..].find(']').map_or(open, |length| open + length)
        });
        let end = rest[from..]
            .find(' ')
            .map_or(rest.len(), |length| from + length);
        found.push(one(&rest[..end]).unwrap_or(Argument {
            size: 8,
            location: Location::Constant(0),
        }));
        rest = rest[end..].trim_start();
    }
    found
}

fn one(text: &str) -> Option<Argument> {
    let (size, location) = text.split_once('@')?;
    let size: i8 = size.trim_end_matches('f').parse().ok()?;
    let location = if let Some(constant) = location.strip_prefix('$') {
        Location::Constant(constant.parse().ok()?)
    } else if let Some(inside) = location.strip_prefix('[') {
        let inside = inside.strip_suffix(']')?;
        let (base, offset) = inside.split_once(',').unwrap_or((inside, "0"));
        Location::Memory {
            offset: offset.trim().trim_start_matches('#').parse().ok()?,
            base: register(base.trim())?,
            index: None,
        }
    } else if let Some((offset, inside)) = location.split_once('(') {
        let inside = inside.strip_suffix(')')?;
        let mut parts = inside.split(',');
        let base = register(parts.next()?)?;
        let offset = match offset {
            "" => 0,
            offset => offset.parse().ok()?,
        };
        let index = match parts.next() {
            Some(name) => {
                let scale: u32 = parts.next().map_or(Some(1), |text| text.parse().ok())?;
                Some((register(name)?, u8::try_from(scale.checked_ilog2()?).ok()?))
            }
            None => None,
        };
        Location::Memory {
            offset,
            base,
            index,
        }
    } else if let Ok(constant) = location.parse() {
        Location::Constant(constant)
    } else {
        Location::Register(register(location)?)
    };
    Some(Argument { size, location })
}

/// Where a register lies in what the kernel saved.
fn register(name: &str) -> Option<i16> {
    if cfg!(target_arch = "x86_64") {
        x86_64(name.strip_prefix('%')?)
    } else if cfg!(target_arch = "aarch64") {
        aarch64(name)
    } else {
        None
    }
}

/// Names of the registers of x86-64 in the order in which they lie in `pt_regs`: 64, 32, 16 and 8 bits.
const X86_64: [(&str, &str, &str, &str, i16); 17] = [
    ("r15", "r15d", "r15w", "r15b", 0),
    ("r14", "r14d", "r14w", "r14b", 8),
    ("r13", "r13d", "r13w", "r13b", 16),
    ("r12", "r12d", "r12w", "r12b", 24),
    ("rbp", "ebp", "bp", "bpl", 32),
    ("rbx", "ebx", "bx", "bl", 40),
    ("r11", "r11d", "r11w", "r11b", 48),
    ("r10", "r10d", "r10w", "r10b", 56),
    ("r9", "r9d", "r9w", "r9b", 64),
    ("r8", "r8d", "r8w", "r8b", 72),
    ("rax", "eax", "ax", "al", 80),
    ("rcx", "ecx", "cx", "cl", 88),
    ("rdx", "edx", "dx", "dl", 96),
    ("rsi", "esi", "si", "sil", 104),
    ("rdi", "edi", "di", "dil", 112),
    ("rip", "eip", "ip", "ip", 128),
    ("rsp", "esp", "sp", "spl", 152),
];

fn x86_64(name: &str) -> Option<i16> {
    let found = X86_64
        .iter()
        .find(|(a, b, c, d, _)| [a, b, c, d].contains(&&name));
    found.map(|found| found.4)
}

fn aarch64(name: &str) -> Option<i16> {
    if name == "sp" {
        return Some(31 * 8);
    }
    let number: i16 = name.strip_prefix(['x', 'w'])?.parse().ok()?;
    (0..31).contains(&number).then_some(number * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn all_forms_of_x86_64_are_understood() {
        let found = parse(b"-8@%rdi 4@-20(%rbp) 8@$-5 1@%al -2@8(%rax,%rbx,4) 4@(%rsp) nonsense");
        let memory = |offset, base, index| Location::Memory {
            offset,
            base,
            index,
        };
        let expected = [
            (-8, Location::Register(112)),
            (4, memory(-20, 32, None)),
            (8, Location::Constant(-5)),
            (1, Location::Register(80)),
            (-2, memory(8, 80, Some((40, 2)))),
            (4, memory(0, 152, None)),
            (8, Location::Constant(0)),
        ];
        let expected = expected.map(|(size, location)| Argument { size, location });
        assert_eq!(found, expected);
        assert_eq!(parse(b""), []);
    }

    #[test]
    fn registers_of_other_processors_have_places() {
        assert_eq!(aarch64("x30"), Some(240));
        assert_eq!(aarch64("w0"), Some(0));
        assert_eq!(aarch64("sp"), Some(248));
        assert_eq!(aarch64("x31"), None);
    }

    #[test]
    fn words_say_how_a_value_is_cut() {
        let argument = Argument {
            size: -4,
            location: Location::Register(112),
        };
        let [value, rest] = argument.words();
        assert_eq!(value, 0);
        assert_eq!(rest.to_ne_bytes()[..4], [1, 32, 1, 0]);
    }
}
