//! Where scenarios come from: TOML files, one scenario each, and those that are built in.
//!
//! An argument that is the name of a built-in scenario means that one, anything else is a file. A file
//! without `name` is named after itself. Built-in ones are files too, so that they can be copied.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use forebay_policy::simulate::Scenario;

use crate::hint::Hinted;

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*]
    };
}

const BUILT_IN: [(&str, &str); 9] = built_in![
    "one",
    "4-equal",
    "4-staggered",
    "8-staggered",
    "speeds",
    "3-to-1",
    "sweep",
    "validation",
    "folds",
];

/// Names of the built-in scenarios.
pub(super) const NAMES: [&str; 9] = {
    let mut names = [""; 9];
    let mut at = 0;
    while at < names.len() {
        names[at] = BUILT_IN[at].0;
        at += 1;
    }
    names
};

/// What to do about a scenario that is wrong.
pub(super) const CURE: &str =
    "`forebay simulate --show 4-staggered` prints one that works; docs/simulate.md has every field";

/// A scenario, and what to call its origin when something is wrong with it.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) origin: String,
    pub(super) scenario: Scenario,
}

/// The text of a built-in scenario.
pub(super) fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|one| one.0 == name).map(|one| one.1)
}

/// Every built-in scenario with the first line of its text.
pub(super) fn list() -> String {
    let first = |text: &'static str| text.lines().next().unwrap_or_default().trim_start_matches("# ");
    BUILT_IN.iter().map(|(name, text)| format!("{name:<13}{}\n", first(text))).collect()
}

/// Reads what was named, or all built-in scenarios.
pub(super) fn read(named: &[PathBuf]) -> Result<Vec<Source>> {
    let all = NAMES.map(PathBuf::from);
    let named = if named.is_empty() { &all[..] } else { named };
    let sources = named.iter().map(|path| read_one(path)).collect::<Result<Vec<_>>>()?;
    for (at, one) in sources.iter().enumerate() {
        let name = &one.scenario.name;
        if let Some(other) = sources[..at].iter().find(|other| other.scenario.name == *name) {
            let said = format!("{} and {} are both named {name:?}", other.origin, one.origin);
            bail!(Hinted::new(said, "give one of them another `name`"));
        }
    }
    Ok(sources)
}

fn read_one(path: &Path) -> Result<Source> {
    if let Some(text) = path.to_str().and_then(built_in) {
        return parse(path, format!("built-in scenario {}", path.display()), text);
    }
    let origin = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| {
        let cure = format!("name a file, or a built-in scenario: {}", NAMES.join(", "));
        Hinted::new(format!("cannot read {origin}: {error}"), cure)
    })?;
    parse(path, origin, &text)
}

fn parse(path: &Path, origin: String, text: &str) -> Result<Source> {
    let parsed = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let place = before.map_or_else(String::new, |text| format!(":{}", text.matches('\n').count() + 1));
        Hinted::new(format!("{origin}{place}: {}", error.message()), CURE)
    });
    let mut scenario: Scenario = parsed?;
    if scenario.name.is_empty() {
        let stem = path.file_stem().context("a scenario file has a name")?;
        scenario.name = stem.to_string_lossy().into_owned();
    }
    Ok(Source { origin, scenario })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint;

    fn wrong(text: &str) -> String {
        let path = Path::new("my.toml");
        hint::render(&parse(path, "my.toml".into(), text).unwrap_err())
    }

    #[test]
    fn built_in_scenarios_parse_and_are_named_as_their_files() {
        for (source, name) in read(&[]).unwrap().iter().zip(NAMES) {
            assert_eq!(source.scenario.name, name);
            source.scenario.members().unwrap();
        }
        assert_eq!(list().lines().count(), NAMES.len());
        assert!(list().starts_with("one          One job alone"), "{}", list());
    }

    #[test]
    fn an_unknown_field_is_an_error_that_names_file_and_line() {
        let said = wrong("samples = 10\n\n[[jobs]]\nspeeed = 3.0\n");
        assert!(
            said.starts_with("error: my.toml:4: unknown field `speeed`, expected one of `count`"),
            "{said}"
        );
        assert!(said.contains("\nhint: `forebay simulate --show"), "{said}");
        assert!(wrong("pool = \"big\"\n").starts_with("error: my.toml:1: invalid type"));
        let said = wrong("samples = 10\n[[jobs]]\norder = \"any\"\n");
        assert!(said.contains("order \"any\": \"ready\", \"strict\" or an integer"), "{said}");
    }

    #[test]
    fn a_file_without_a_name_is_named_after_itself() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        fs::write(&file, "samples = 700\n").unwrap();
        let sources = read(&[file.clone(), "one".into()]).unwrap();
        assert_eq!((sources[0].scenario.name.as_str(), sources[0].scenario.samples), ("mine", 700));
        assert_eq!(sources[1].scenario.name, "one");
        assert!(read(&[file.clone(), file]).unwrap_err().to_string().contains("both named \"mine\""));
    }

    #[test]
    fn a_missing_file_is_told_with_the_built_in_names() {
        let said = hint::render(&read(&["nowhere.toml".into()]).unwrap_err());
        assert!(said.starts_with("error: cannot read nowhere.toml: "), "{said}");
        assert!(said.contains("hint: name a file, or a built-in scenario: one, 4-equal"), "{said}");
    }
}
