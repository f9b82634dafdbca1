// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where Debian's packages come from: the mirrors that this machine's own apt sources name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{self, find};
use crate::{Error, Result, cache};

/// One source of apt, of either format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Source {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
    /// A keyring's path, or keys, as deb822 has them.
    signed_by: Option<String>,
    trusted: bool,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Mirrors {
    sources: Vec<Source>,
}

/// What names a release of Debian.
const RELEASES: &[&str] = &[
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
    "experimental",
];

/// What may follow such a name.
const PARTS: &[&str] = &["updates", "backports", "proposed-updates", "security"];

const SECURITY: &str = "-security";

impl Mirrors {
    /// `ONECOPY_VM_MIRROR`, or what apt's own files say.
    ///
    /// # Errors
    ///
    /// When apt is missing, or one of its files cannot be read.
    pub fn of_machine() -> Result<Self> {
        if let Ok(mirror) = std::env::var("ONECOPY_VM_MIRROR") {
            return Ok(Self::under(&mirror));
        }
        let config = find("apt-config", "apt")?;
        let asked = [
            ("list", "Dir::Etc::sourcelist/f"),
            ("parts", "Dir::Etc::sourceparts/d"),
        ];
        let mut command = Command::new(config);
        command.env_remove("APT_CONFIG").arg("shell");
        command.args(asked.iter().flat_map(|(name, key)| [*name, *key]));
        let text = program::output(&mut command)?;
        let path = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
                .map(|value| PathBuf::from(value.trim_matches('\'')))
        };
        Self::read(path("list").as_deref(), path("parts").as_deref())
    }

    /// One whose archives are `debian` and `debian-security` in this place.
    #[must_use]
    pub fn under(place: &str) -> Self {
        let place = place.trim_end_matches('/');
        let source = |archive: &str, suite: &str| Source {
            uri: format!("{place}/{archive}"),
            suites: vec![suite.to_owned()],
            components: vec!["main".to_owned()],
            ..Source::default()
        };
        Self {
            sources: vec![
                source("debian", "stable"),
                source("debian-security", "stable-security"),
            ],
        }
    }

    /// The files of apt: a list, and a folder of lists of either format.
    fn read(list: Option<&Path>, parts: Option<&Path>) -> Result<Self> {
        let mut files: Vec<PathBuf> = list
            .filter(|l| l.is_file())
            .map(Into::into)
            .into_iter()
            .collect();
        if let Some(parts) = parts.filter(|parts| parts.is_dir()) {
            let mut entries = cache::entries(parts)?;
            entries.sort();
            files.extend(entries);
        }
        let mut sources = Vec::new();
        for file in files {
            let read = || fs::read_to_string(&file).map_err(Error::io(file.display().to_string()));
            match file.extension().and_then(|end| end.to_str()) {
                Some("list") => sources.extend(one_line(&read()?)),
                Some("sources") => sources.extend(deb822(&read()?)),
                _ => {}
            }
        }
        Ok(Self { sources })
    }

    /// What tells apt where these suites are: a file in the format deb822. `keyring` has Debian's keys, for sources
    /// that name none.
    ///
    /// # Errors
    ///
    /// When no source is one of Debian's archive, or the keys are missing.
    pub fn stanzas(
        &self,
        suites: &[String],
        types: &str,
        arch: &str,
        keyring: &str,
    ) -> Result<String> {
        let mut text = String::new();
        for suite in suites {
            let source = self.place(suite)?;
            let keys = match &source.signed_by {
                _ if source.trusted => "Trusted: yes".to_owned(),
                Some(keys) => format!("Signed-By: {keys}"),
                None if Path::new(keyring).exists() => format!("Signed-By: {keyring}"),
                None => {
                    return Err(Error::Missing {
                        what: keyring.to_owned(),
                        packages: "debian-archive-keyring".to_owned(),
                    });
                }
            };
            // Of what lies in files apt makes no copies, and these are to be in our cache.
            let uri = source
                .uri
                .strip_prefix("file:")
                .map_or_else(|| source.uri.clone(), |path| format!("copy:{path}"));
            text.push_str(&format!(
                "Types: {types}\nURIs: {uri}\nSuites: {suite}\nComponents: main\nArchitectures: {arch}\n{keys}\n\n"
            ));
        }
        Ok(text)
    }

    /// The source that has a suite: one that names it, or one of the same archive.
    fn place(&self, suite: &str) -> Result<Source> {
        let security = suite.ends_with(SECURITY);
        let names = |source: &Source, wanted: &dyn Fn(&str) -> bool| {
            source.components.iter().any(|name| name == "main")
                && source.suites.iter().any(|s| wanted(s))
        };
        let best = |wanted: &dyn Fn(&str) -> bool| {
            self.sources
                .iter()
                .filter(|source| names(source, wanted))
                .min_by_key(|source| foreign(source))
                .cloned()
        };
        if let Some(source) = best(&|name| name == suite)
            .or_else(|| best(&|name| is_debian(name) && name.ends_with(SECURITY) == security))
        {
            return Ok(source);
        }
        // Security updates lie beside the archive.
        let beside = best(&is_debian).filter(|_| security).and_then(|source| {
            let uri = source.uri.trim_end_matches('/').strip_suffix("/debian")?;
            let uri = format!("{uri}/debian-security");
            Some(Source { uri, ..source })
        });
        beside.ok_or_else(|| {
            Error::Refused(format!(
                "no apt source of this machine is a mirror of Debian that may have the suite {suite}. Add one to \
                 /etc/apt/sources.list.d, or let ONECOPY_VM_MIRROR name the place of 'debian' and 'debian-security'"
            ))
        })
    }
}

fn is_debian(suite: &str) -> bool {
    RELEASES.iter().any(|release| {
        suite.strip_prefix(release).is_some_and(|rest| {
            rest.is_empty()
                || rest
                    .strip_prefix('-')
                    .is_some_and(|part| PARTS.contains(&part))
        })
    })
}

/// How much speaks against a source's being Debian's: others name their suites alike, but have keys of their own.
fn foreign(source: &Source) -> u8 {
    match &source.signed_by {
        Some(keys) if keys.contains("debian-archive") => 0,
        None => 1,
        Some(_) => 2,
    }
}

/// `deb [options] URI SUITE COMPONENT ...`
fn one_line(text: &str) -> Vec<Source> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let mut rest = line.strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t']) {
        return None; // sources, or something else
    }
    rest = rest.trim_start();
    let mut source = Source::default();
    if let Some(options) = rest.strip_prefix('[') {
        let (options, after) = options.split_once(']')?;
        rest = after;
        for option in options.split_whitespace() {
            match option.split_once('=') {
                Some(("signed-by", keys)) => source.signed_by = Some(keys.to_owned()),
                Some(("trusted", value)) => source.trusted = value == "yes",
                _ => {}
            }
        }
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    source.uri = words.next()?;
    source.suites = vec![words.next()?];
    source.components = words.collect();
    Some(source)
}

/// Stanzas of fields. A field goes on in lines that begin with a blank.
fn deb822(text: &str) -> Vec<Source> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines
        .split(|line| line.trim().is_empty())
        .flat_map(stanza)
        .collect()
}

fn stanza(lines: &[&str]) -> Vec<Source> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in lines {
        match (line.starts_with([' ', '\t']), line.split_once(':')) {
            (true, _) => {
                if let Some((_, value)) = fields.last_mut() {
                    value.push('\n');
                    value.push_str(line);
                }
            }
            (false, Some((name, value))) => {
                fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
            }
            (false, None) => {}
        }
    }
    let field = |name: &str| {
        let found = fields.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    let words = |name: &str| {
        field(name)
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let off = ["no", "false", "without", "off", "disable", "0"];
    if off.contains(&field("enabled").to_ascii_lowercase().as_str())
        || !words("types").contains(&"deb".to_owned())
    {
        return Vec::new();
    }
    let keys = field("signed-by");
    words("uris")
        .into_iter()
        .map(|uri| Source {
            uri,
            suites: words("suites"),
            components: words("components"),
            signed_by: (!keys.is_empty()).then(|| keys.to_owned()),
            trusted: field("trusted").eq_ignore_ascii_case("yes"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

    fn files(list: &str, parts: &[(&str, &str)]) -> Mirrors {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("sources.list");
        cache::write(&path, list).expect("list");
        let folder = folder.path().join("sources.list.d");
        cache::make(&folder).expect("folder");
        for (name, text) in parts {
            cache::write(&folder.join(name), text).expect("part");
        }
        Mirrors::read(Some(&path), Some(&folder)).expect("sources")
    }

    fn uri(mirrors: &Mirrors, suite: &str) -> String {
        mirrors.place(suite).expect("a place").uri
    }

    #[test]
    fn lists_of_either_format_are_read() {
        let mirrors = files(
            "# a comment\ndeb [ arch=amd64 signed-by=/k.gpg ] http://one.example/debian bookworm main contrib # why\n\
             deb-src http://one.example/debian bookworm main\n",
            &[
                (
                    "debian.sources",
                    "Types: deb deb-src\n# a comment\nURIs: https://two.example/debian-security\nSuites: bookworm-security\n\
                     Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
                     Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: trixie\nComponents: main\n",
                ),
                (
                    "old.list.save",
                    "deb http://saved.example/debian trixie main\n",
                ),
            ],
        );
        assert_eq!(mirrors.sources.len(), 2, "{mirrors:?}");
        assert_eq!(mirrors.sources[0].signed_by.as_deref(), Some("/k.gpg"));
        assert_eq!(mirrors.sources[0].components, ["main", "contrib"]);
        assert_eq!(uri(&mirrors, "bookworm"), "http://one.example/debian");
        let security = "https://two.example/debian-security";
        assert_eq!(uri(&mirrors, "bookworm-security"), security);
        // The archive has other suites than those that this machine uses.
        assert_eq!(
            uri(&mirrors, "trixie-backports"),
            "http://one.example/debian"
        );
        assert_eq!(uri(&mirrors, "bullseye-security"), security);
    }

    #[test]
    fn others_archives_are_not_debians() {
        let mirrors = files(
            "deb [signed-by=/usr/share/keyrings/vendor.gpg] http://vendor.example/apt bookworm main\n\
             deb http://node.example/node_20.x nodistro main\n",
            &[(
                "debian.sources",
                "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\
                 Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
            )],
        );
        assert_eq!(uri(&mirrors, "bookworm"), "http://mirror.example/debian");
        assert_eq!(uri(&mirrors, "sid"), "http://mirror.example/debian");
        // No source has security updates: they lie beside.
        let beside = "http://mirror.example/debian-security";
        assert_eq!(uri(&mirrors, "bookworm-security"), beside);
        let none = files("deb http://node.example/node_20.x nodistro main\n", &[]);
        let text = none.place("trixie").expect_err("none").to_string();
        assert!(
            text.contains("suite trixie") && text.contains("ONECOPY_VM_MIRROR"),
            "{text}"
        );
    }

    #[test]
    fn a_folder_is_a_mirror() {
        let mirrors = files(
            "deb [trusted=yes] file:///srv/debian bookworm main\n",
            &[(
                "x.sources",
                "Types: deb\nURIs: copy:/srv/debian-security\nSuites: bookworm-security\nComponents: main\n\
                Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ==\n -----END PGP PUBLIC KEY BLOCK-----\n",
            )],
        );
        let suites = ["bookworm".to_owned(), "bookworm-security".to_owned()];
        let text = mirrors
            .stanzas(&suites, "deb", "amd64", KEYS)
            .expect("stanzas");
        assert!(
            text.contains("URIs: copy:///srv/debian\nSuites: bookworm\n"),
            "{text}"
        );
        assert!(text.contains("Trusted: yes\n"), "{text}");
        assert!(text.contains("Signed-By: \n -----BEGIN PGP"), "{text}");
        assert!(
            text.contains(" -----END PGP PUBLIC KEY BLOCK-----\n\n"),
            "{text}"
        );
    }

    #[test]
    fn a_mirror_that_is_named_has_both_archives() {
        let mirrors = Mirrors::under("http://near.example/");
        assert_eq!(
            uri(&mirrors, "bookworm-backports"),
            "http://near.example/debian"
        );
        let security = "http://near.example/debian-security";
        assert_eq!(uri(&mirrors, "trixie-security"), security);
    }
}
