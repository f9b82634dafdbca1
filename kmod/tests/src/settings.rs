// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tests change of the module's settings, and what puts it back where they could not.

use std::fs;

use crate::outcome::{At, Outcome};
use crate::system::{PARAMETERS, parameter, set_parameter};

/// The module's parameters, and the modes of its devices, as they were at one moment.
pub(crate) struct Settings {
    parameters: Vec<(String, String)>,
    modes: Vec<(&'static str, fs::Permissions)>,
}

impl Settings {
    pub(crate) fn take() -> Outcome<Self> {
        let mut parameters = Vec::new();
        for entry in fs::read_dir(PARAMETERS).at(PARAMETERS)? {
            let name = entry.at(PARAMETERS)?.file_name();
            let name = name.to_string_lossy().into_owned();
            let value = parameter(&name)?;
            parameters.push((name, value));
        }
        let modes = ["/dev/xpmem", "/dev/knem", "/dev/onecopy"]
            .into_iter()
            .map(|path| Ok((path, fs::metadata(path).at(path)?.permissions())))
            .collect::<Outcome<_>>()?;
        Ok(Self { parameters, modes })
    }

    pub(crate) fn restore(&self) -> Outcome {
        for (name, value) in &self.parameters {
            if parameter(name)? != *value {
                set_parameter(name, value)?;
            }
        }
        for (path, mode) in &self.modes {
            fs::set_permissions(path, mode.clone()).at(format_args!("chmod {path}"))?;
        }
        Ok(())
    }
}
