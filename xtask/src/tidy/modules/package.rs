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
            type_of_self: None,
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
                // The root only shows what others have, and is above all of them.
                if !is_within(&target, name) && !target.is_empty() {
                    targets
                        .entry(target)
                        .or_insert_with(|| ArrowSite::new(&module.file, *line));
                }
            }
        }
        self.draw_calls(&mut arrows);
        arrows
    }

    /// Draws an arrow where a method calls another one of its type that a different module defines: no import shows it.
    fn draw_calls(&self, arrows: &mut Arrows) {
        let mut homes: HashMap<(&str, &str), Vec<&Name>> = HashMap::new();
        for (name, module) in &self.modules {
            for (own, method) in &module.methods {
                homes.entry((own, method)).or_default().push(name);
            }
        }
        for (name, module) in &self.modules {
            for (own, method, line) in &module.calls {
                // Types of the same name in several modules cannot be told apart here.
                let Some([home]) = homes
                    .get(&(own.as_str(), method.as_str()))
                    .map(Vec::as_slice)
                else {
                    continue;
                };
                if !is_within(home, name) {
                    let targets = arrows.entry(name.clone()).or_default();
                    targets
                        .entry((*home).clone())
                        .or_insert_with(|| ArrowSite::new(&module.file, *line));
                }
            }
        }
    }
}

/// Whether a module is this one or below it.
fn is_within(module: &str, this: &str) -> bool {
    this.is_empty() || module == this || module.starts_with(&format!("{this}::"))
}

fn segments(name: &str) -> Vec<String> {
    name.split("::")
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}
