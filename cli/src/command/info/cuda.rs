// SPDX-License-Identifier: MIT OR Apache-2.0
//! `onecopy info cuda`.

use std::io::Write;
use std::process::ExitCode;

use onecopy_cuda::survey::{Device, Survey, survey};
use serde_json::{Value, json};

use super::super::{CliError, print};

/// Shows the driver of CUDA and its devices, or why there are none.
pub(super) fn run(json: bool) -> Result<ExitCode, CliError> {
    let found = survey();
    print(|out| {
        if json {
            return writeln!(out, "{:#}", as_json(&found));
        }
        write_text(&found, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What a message from or to this machine's devices goes by.
const WAY: &str = "staged: asynchronous copies through host memory, then as memory of the host";

fn write_text(found: &Result<Survey, String>, out: &mut dyn Write) -> std::io::Result<()> {
    let survey = match found {
        Ok(survey) => survey,
        Err(reason) => return writeln!(out, "no device memory: {reason}"),
    };
    let (major, minor) = survey.version;
    writeln!(out, "driver of CUDA {major}.{minor}")?;
    for device in &survey.devices {
        let Device {
            ordinal,
            name,
            bus,
            memory,
            capability: (major, minor),
            peers,
            shows_virtual,
            shows_pools,
        } = device;
        let gib = memory >> 30;
        writeln!(
            out,
            "device {ordinal}: {name}, {bus}, {gib} GiB, compute capability {major}.{minor}"
        )?;
        if !peers.is_empty() {
            let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
            writeln!(
                out,
                "  its memory is in reach of device {}",
                peers.join(", ")
            )?;
        }
        let how = |shows: &bool| match shows {
            true => "if it was made for file descriptors",
            false => "never: the device exports no file descriptors of it",
        };
        writeln!(
            out,
            "  shown to other ranks: memory of cudaMalloc; virtual memory {}; memory of pools {}",
            how(shows_virtual),
            how(shows_pools)
        )?;
    }
    writeln!(out, "messages of device memory: {WAY}")
}

fn as_json(found: &Result<Survey, String>) -> Value {
    match found {
        Err(reason) => json!({ "driver": null, "reason": reason }),
        Ok(survey) => json!({
            "driver": format!("{}.{}", survey.version.0, survey.version.1),
            "devices": survey.devices.iter().map(|device| json!({
                "ordinal": device.ordinal,
                "name": device.name,
                "bus": device.bus,
                "memory_bytes": device.memory,
                "compute_capability": format!("{}.{}", device.capability.0, device.capability.1),
                "peers": device.peers,
                "shows_virtual_memory": device.shows_virtual,
                "shows_pools": device.shows_pools,
            })).collect::<Vec<_>>(),
            "messages": WAY,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(found: &Result<Survey, String>) -> String {
        let mut out = Vec::new();
        write_text(found, &mut out).expect("memory takes text");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn it_says_what_there_is_or_why_not() {
        let missing =
            Err("dlopen of libcuda.so.1: not found; install the NVIDIA driver".to_owned());
        assert!(text(&missing).contains("install the NVIDIA driver"));
        assert_eq!(as_json(&missing)["driver"], Value::Null);
        let found = Ok(Survey {
            version: (12, 4),
            devices: vec![Device {
                ordinal: 1,
                name: "a device".into(),
                bus: "0000:02:00.0".into(),
                memory: 3 << 30,
                capability: (9, 0),
                peers: vec![0, 2],
                shows_virtual: true,
                shows_pools: false,
            }],
        });
        let shown = text(&found);
        assert!(shown.contains("driver of CUDA 12.4"), "{shown}");
        assert!(
            shown.contains("device 1: a device, 0000:02:00.0, 3 GiB"),
            "{shown}"
        );
        assert!(shown.contains("in reach of device 0, 2"), "{shown}");
        assert!(shown.contains("virtual memory if it was made"), "{shown}");
        assert!(shown.contains("memory of pools never"), "{shown}");
        assert_eq!(as_json(&found)["devices"][0]["memory_bytes"], 3u64 << 30);
    }
}
