//! What commands draw for people: values in, text out.

mod status;
mod streams;

pub use status::status;
pub use streams::{held, streams};

/// The width that everything is made for. What is longer by itself, an address or a version, may stick out.
const WIDTH: usize = 80;

/// How a picture may look.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look {
    /// Whether colours may be used.
    pub colour: bool,
}

/// What a colour says.
#[derive(Debug, Clone, Copy)]
enum Tone {
    Good,
    Notable,
    Bad,
    Quiet,
    Strong,
}

impl Look {
    /// As this process's output is seen: colours on a terminal, unless `NO_COLOR` says otherwise.
    pub fn of_output() -> Self {
        use std::io::IsTerminal;
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            colour: !refused && std::io::stdout().is_terminal(),
        }
    }

    fn paint(self, tone: Tone, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Notable => "33",
            Tone::Bad => "31",
            Tone::Quiet => "2",
            Tone::Strong => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// A table: a row of heads, then rows; `right` names the columns of numbers.
fn table(heads: &[&str], right: &[usize], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .chain([heads[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            line.push_str("  ");
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            if right.contains(&column) {
                line.push_str(&pad);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&pad);
            }
        }
        line.trim_end().to_owned()
    };
    std::iter::once(line(heads.to_vec()))
        .chain(
            rows.iter()
                .map(|row| line(row.iter().map(String::as_str).collect())),
        )
        .collect()
}

/// `label     text`, wrapped between words, what follows indented.
fn labelled(label: &str, text: &str) -> Vec<String> {
    const LABEL: usize = 13;
    let mut lines = Vec::new();
    let mut line = format!("  {label:<width$}", width = LABEL - 2);
    let mut empty = true;
    for word in text.split_whitespace() {
        let longer = line.chars().count() + 1 + word.chars().count();
        if !empty && longer > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(LABEL)));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
    lines
}

/// `45s`, `12m`, `3h 5m`, `2d 4h`.
fn age(since: jiff::Timestamp, now: jiff::Timestamp) -> String {
    span(now.duration_since(since).as_secs())
}

/// So many seconds; less than none is none.
fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// `812 B`, `1.2 kB`, `34 MB`.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count < 1_000 {
        return format!("{count} B");
    }
    let (mut value, mut unit) = (count as f64 / 1_000.0, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    if value < 9.95 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

/// `1 stream`, `2 streams`.
fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests;
