//! `list`: the installed versions, and what is known about each. Writes nothing.

use staging::home::Home;
use staging::launch::LaunchError;
use staging::package::{self, Package};
use staging::report::{Exit, Failure, Format, line, note};
use staging::selection::{self, Selection};
use staging::update_state::{self, UpdateState};
use staging::version::PackageVersion;

/// One installed version.
#[derive(Debug, Default, PartialEq, Eq)]
struct Row {
    version: String,
    selected: bool,
    pinned: bool,
    previous: bool,
    pending: bool,
    known_bad: Option<String>,
    /// Why it cannot be opened.
    unusable: Option<String>,
}

/// Prints the installed versions, highest first.
pub fn run(home: &Home, format: Format) -> Result<Exit, Failure> {
    let versions = package::list(home)?;
    // Who mends a broken selection needs this list to do so.
    let (selection, unreadable) = match selection::read(home) {
        Ok(selection) => (selection, None),
        Err(error) => (None, Some(Failure::from(LaunchError::from(error)))),
    };
    if let Some(failure) = &unreadable {
        note(&format!("warning: {}", failure.message));
    }
    let state = update_state::read(home)?;
    let rows: Vec<Row> = versions
        .iter()
        .rev()
        .map(|version| {
            let opened = Package::open(home, version).map_err(Failure::from);
            row(version, opened, selection.as_ref(), &state)
        })
        .collect();
    match format {
        Format::Text if rows.is_empty() => {
            line(&format!(
                "no package is installed in {}",
                home.root().display()
            ));
        }
        Format::Text => rows.iter().for_each(|row| line(&text(row))),
        Format::Json => line(
            &serde_json::json!({
                "schema": 1,
                "selectionError": unreadable,
                "packages": rows.iter().map(json).collect::<Vec<_>>(),
            })
            .to_string(),
        ),
    }
    crate::DONE
}

fn row(
    version: &PackageVersion,
    opened: Result<Package, Failure>,
    selection: Option<&Selection>,
    state: &UpdateState,
) -> Row {
    let selected = selection.is_some_and(|selection| selection.version == *version);
    Row {
        version: version.to_string(),
        selected,
        pinned: selected && selection.is_some_and(|selection| selection.pinned),
        previous: !selected
            && selection.is_some_and(|selection| selection.previous.as_ref() == Some(version)),
        pending: state
            .pending
            .as_ref()
            .is_some_and(|pending| pending.version == *version),
        known_bad: state.bad_version(version).map(|bad| bad.cause.clone()),
        unusable: opened.err().map(|failure| failure.message),
    }
}

fn text(row: &Row) -> String {
    let mut words = Vec::new();
    for (said, word) in [
        (row.selected, "selected"),
        (row.pinned, "pinned"),
        (row.previous, "previous"),
        (row.pending, "pending"),
    ] {
        if said {
            words.push(word.to_owned());
        }
    }
    words.extend(
        row.known_bad
            .iter()
            .map(|cause| format!("known bad: {cause}")),
    );
    words.extend(
        row.unusable
            .iter()
            .map(|cause| format!("unusable: {cause}")),
    );
    if words.is_empty() {
        row.version.clone()
    } else {
        format!("{}  {}", row.version, words.join(", "))
    }
}

fn json(row: &Row) -> serde_json::Value {
    serde_json::json!({
        "version": row.version,
        "selected": row.selected,
        "pinned": row.pinned,
        "previous": row.previous,
        "pending": row.pending,
        "knownBad": row.known_bad,
        "unusable": row.unusable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> PackageVersion {
        text.parse().unwrap()
    }

    #[test]
    fn a_row_says_everything_that_is_known() {
        let selection: Selection = serde_json::from_str(
            r#"{"schema":1,"serial":3,"version":"1.1.0","previous":"1.0.0","pinned":true,"by":"person","at":"2026-01-02T03:04:05Z"}"#,
        )
        .unwrap();
        let mut state: UpdateState = serde_json::from_str(
            r#"{"schema":1,"archives":{"1.2.0":"d"},"pending":{"version":"1.3.0","job":"j","at":"2026-01-02T03:04:05Z"}}"#,
        )
        .unwrap();
        let at = selection.at;
        state.mark_bad("d", &version("1.2.0"), "crashed", at);
        let missing = || Err(Failure::new("X", "it is torn", Exit::NoPackage, false));
        for (of, said) in [
            ("1.0.0", "1.0.0  previous, unusable: it is torn"),
            ("1.1.0", "1.1.0  selected, pinned, unusable: it is torn"),
            ("1.2.0", "1.2.0  known bad: crashed, unusable: it is torn"),
            ("1.3.0", "1.3.0  pending, unusable: it is torn"),
        ] {
            let row = row(&version(of), missing(), Some(&selection), &state);
            assert_eq!(text(&row), said);
            assert_eq!(json(&row)["unusable"], "it is torn");
            assert_eq!(json(&row)["selected"], of == "1.1.0");
        }
        let bare = Row {
            version: "1.0.0".to_owned(),
            ..Row::default()
        };
        assert_eq!(text(&bare), "1.0.0");
    }
}
