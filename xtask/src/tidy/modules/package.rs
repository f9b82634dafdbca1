// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modules of one package, and the arrows between them.

use std::collections::{BTreeMap, HashMap};

use syn::visit::Visit;

use super::super::cycles::{ArrowSite, Arrows, Name};
use super::reader::{Module, Reader};

/// The modules of one package.
#[derive(Debug, Default)]
pub(super) struct Package {
    /// By their paths from the root of the package: `coll::fold`; the root's is empty.
    pub(super) modules: BTreeMap<Name, Module>,
}

impl Package {
    /// Reads a package's modules, beginning with its root file.
    pub(super) fn read(root: &str, texts: &HashMap<&str, &str>) -> Result<Self, String> {
        let mut package = Self::default();
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        package.read_module(String::new(), root, folder, texts)?;
        Ok(package)
    }

    fn read_module(
        &mut self,
        name: Name,
        file: &str,
        folder: &str,
        texts: &HashMap<&str, &str>,
    ) -> Result<(), String> {
        let text = texts
            .get(file)
            .ok_or_else(|| format!("{file} does not exist"))?;
        let parsed = syn::parse_file(text).map_err(|error| format!("{file}: {error}"))?;
        let mut reader = Reader {
            here: segments(&name),
            module: Module {
                file: file.to_owned(),
                ..Module::default()
            },
            children: Vec::new(),
        };
        reader.visit_file(&parsed);
        let Reader {
            module, children, ..
        } = reader;
        self.modules.insert(name.clone(), module);
        for (child, path) in children {
            let below = if name.is_empty() {
                child.clone()
            } else {
                format!("{name}::{child}")
            };
            let file = path.map_or_else(
                || format!("{folder}/{}.rs", below.replace("::", "/")),
                |path| format!("{folder}/{path}"),
            );
            // One that is made by the build has no file here.
            if texts.contains_key(file.as_str()) {
                self.read_module(below, &file, folder, texts)?;
            }
        }
        Ok(())
    }

    /// The module that a path leads to, through what others show.
    fn resolve(&self, path: &[String]) -> Option<Name> {
        let mut path = path.to_vec();
        for _ in 0..8 {
            let (name, module) = (0..=path.len()).rev().find_map(|len| {
                let name = path[..len].join("::");
                Some((name.clone(), self.modules.get(&name)?))
            })?;
            let depth = segments(&name).len();
            let shown = path.get(depth).and_then(|next| module.shows.get(next));
            let Some(shown) = shown else {
                return Some(name);
            };
            let rest = path[depth + 1..].to_vec();
            path = shown.iter().cloned().chain(rest).collect();
        }
        None
    }

    pub(super) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (name, module) in &self.modules {
            let targets = arrows.entry(name.clone()).or_default();
            for (path, line) in &module.paths {
                let Some(target) = self.resolve(path) else {
                    continue;
                };
                let is_below =
                    target == *name || name.is_empty() || target.starts_with(&format!("{name}::"));
                // The root only shows what others have, and is above all of them.
                if is_below || target.is_empty() {
                    continue;
                }
                targets.entry(target).or_insert_with(|| ArrowSite {
                    file: module.file.clone(),
                    line: *line,
                });
            }
        }
        arrows
    }
}

fn segments(name: &str) -> Vec<String> {
    name.split("::")
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}
