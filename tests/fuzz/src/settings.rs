// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user or a foreign launcher sets: knobs, values, command lines, environments, PMI.

use crate::input::Input;
use onecopy::fuzzing;
use onecopy_obs::values::parse_size;
use onecopy_obs::{KNOBS, Knobs};

/// PMI-1: the first byte says which side of it is ours.
pub(crate) fn pmi(data: &[u8]) {
    let Some((&side, rest)) = data.split_first() else {
        return;
    };
    if side % 2 == 1 {
        return fuzzing::pmi_client(rest);
    }
    // A line is said by the rank that its last byte names; some ranks end behind it.
    let lines = rest.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let last = line.iter().rev().nth(1).copied().unwrap_or(0);
        (usize::from(last & 1), last == b'!', line)
    });
    onecopy_launch::fuzzing::pmi_server(2, lines);
}

pub(crate) fn pmi_seeds() -> Vec<Vec<u8>> {
    let server = [
        "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes \ncmd=get_appnum\ncmd=get_universe_size\n",
        "cmd=init pmi_version=1 pmi_subversion=1 \ncmd=get_my_kvsname\ncmd=barrier_in\ncmd=barrier_in \n",
        "cmd=put kvsname=k key=a value=x y\ncmd=get kvsname=k key=a\ncmd=finalize\ncmd=abort exitcode=3\n",
        "mcmd=spawn\nnprocs=1\nendcmd\ncmd=publish_name service=a port=b\ncmd=init pmi_version=1!\n",
    ];
    let client = [
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\ncmd=maxes kvsname_max=256 keylen_max=64 vallen_max=40\n\
         cmd=my_kvsname kvsname=kvs_1\ncmd=put_result rc=0\ncmd=barrier_out rc=0\ncmd=get_result rc=0 value=v\ncmd=finalize_ack rc=0\n",
    ];
    let seed = |side: u8, text: &str| [&[side], text.as_bytes()].concat();
    let mut seeds: Vec<_> = server.iter().map(|text| seed(2, text)).collect();
    seeds.extend(client.iter().map(|text| seed(1, text)));
    seeds
}

const VARIABLES: &[&str] = &[
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_NUM_NODES",
];

/// Text: words, of which the first byte says what they are.
pub(crate) fn settings(data: &[u8]) {
    let Some((&what, rest)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    let mut lines = text.split('\n');
    match what % 4 {
        0 => knobs(&mut lines),
        1 => {
            let arguments: Vec<String> = lines.take(12).map(str::to_owned).collect();
            onecopy_cli::fuzzing::command_line(&arguments);
        }
        2 => {
            let mut input = Input::new(rest);
            let mut set = Vec::new();
            while !input.is_over() && set.len() < 16 {
                let name = VARIABLES[usize::from(input.byte()) % VARIABLES.len()];
                let value = String::from_utf8_lossy(&input.piece(12)).into_owned();
                set.push((name, value));
            }
            fuzzing::environment(&|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.clone())
            });
        }
        _ => {
            // A size that is read is shown so that it is read again.
            if let Ok(bytes) = parse_size(&text) {
                let shown = onecopy_obs::values::show_size(bytes);
                assert_eq!(parse_size(&shown), Ok(bytes), "{shown}");
            }
        }
    }
}

/// Lines of name and value. A value that is taken is shown so that it is taken again, to the same.
fn knobs(lines: &mut dyn Iterator<Item = &str>) {
    let pairs: Vec<(String, String)> = lines
        .filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            let number = name
                .bytes()
                .fold(0usize, |sum, byte| sum + usize::from(byte));
            // The full name, or any knob.
            let name = match KNOBS.iter().find(|knob| knob.name == name) {
                Some(knob) => knob.name,
                None => KNOBS[number % KNOBS.len()].name,
            };
            Some((name.to_owned(), value.to_owned()))
        })
        .collect();
    for (name, value) in &pairs {
        let mut knobs = Knobs::default();
        // The refusal says the value and what would be taken.
        if let Err(error) = knobs.set(name, value) {
            assert!(!error.to_string().is_empty());
        }
    }
    let _ = Knobs::from_iter(pairs).is_ok();
}

pub(crate) fn settings_seeds() -> Vec<Vec<u8>> {
    let mut all: Vec<u8> = vec![0];
    for knob in KNOBS {
        all.extend(format!("{}=auto\n", knob.name).bytes());
    }
    let values = [
        "64K",
        "10",
        "3 ms",
        "on",
        "^cma",
        "cico,heap",
        "/tmp/x",
        "2min",
        "1.5G",
    ];
    let mut seeds = vec![all];
    for (value, knob) in values.iter().zip(KNOBS.iter().cycle().step_by(3)) {
        seeds.push([&[0], format!("{}={value}", knob.name).as_bytes()].concat());
        seeds.push([&[3], value.as_bytes()].concat());
    }
    let lines = [
        "run\n-n\n2\n--bind\nnone\n./program\n-x",
        "bench\nall\n--mechanism\nauto\n--ranks\n2",
        "memory\n-n\n16",
        "tune\n--help",
        "info\n--explain\n64K",
        "env\n--json",
    ];
    seeds.extend(lines.map(|line| [&[1], line.as_bytes()].concat()));
    let mut slurm = vec![2];
    for (number, value) in [
        (7u8, "0"),
        (8, "4"),
        (9, "3"),
        (10, "12"),
        (5, "0"),
        (11, "1"),
    ] {
        slurm.extend([number, value.len() as u8]);
        slurm.extend(value.bytes());
    }
    let mut mpirun = vec![2];
    for (number, value) in [(0u8, "1"), (1, "2"), (2, "2"), (3, "ns@1")] {
        mpirun.extend([number, value.len() as u8]);
        mpirun.extend(value.bytes());
    }
    seeds.extend([slurm, mpirun]);
    seeds
}
