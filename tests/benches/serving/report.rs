//! The tables, as Markdown.

use std::collections::BTreeMap;

use super::contestants::Name;
use super::measure::{Sample, Traced};
use super::scenarios::{Column, Scenario};

/// The samples of one scenario, a contestant's rounds in order.
pub type Rounds = BTreeMap<Name, Vec<Sample>>;

/// Medians; below them Rollproxy's ratios to the others, each the median of the rounds' own ratios.
pub fn table(scenario: &Scenario, rounds: &Rounds) {
    println!("\n### {}\n", scenario.title);
    let titles = scenario.columns.iter().map(|column| column.title);
    line("", titles.map(str::to_owned));
    println!("|---|{}", "---|".repeat(scenario.columns.len()));
    for (name, samples) in rounds {
        let cells = scenario.columns.iter().map(|column| {
            let values = samples.iter().filter_map(|sample| sample.get(column.key));
            median(values.copied().collect())
                .map_or(String::new(), |value| number(value, column.decimals))
        });
        line(name.text(), cells);
    }
    let Some(own) = rounds.get(&Name::Rollproxy) else {
        return;
    };
    for (name, others) in rounds.iter().filter(|(name, _)| **name != Name::Rollproxy) {
        let cells = scenario.columns.iter().map(|column| {
            ratio(column, own, others).map_or(String::new(), |ratio| format!("{ratio:.2}"))
        });
        line(&format!("rollproxy ÷ {}", name.text()), cells);
    }
}

fn ratio(column: &Column, own: &[Sample], others: &[Sample]) -> Option<f64> {
    let ratios = own.iter().zip(others).filter_map(|(own, other)| {
        let ratio = own.get(column.key)? / other.get(column.key)?;
        ratio.is_finite().then_some(ratio)
    });
    median(ratios.collect()).filter(|_| column.key != "beside")
}

/// Calls a request or an event, in all and the most frequent ones by name.
pub fn calls(traced: &[(&Scenario, Name, Traced)]) {
    println!("\n### System calls a request or an event\n");
    line("", ["", "calls", "of which"].map(str::to_owned).into_iter());
    println!("|---|---|---|---|");
    for (scenario, name, traced) in traced {
        let each = |calls: u64| calls as f64 / traced.work.max(1) as f64;
        let mut by_name: Vec<(&String, u64)> = traced
            .calls
            .iter()
            .map(|(name, calls)| (name, *calls))
            .collect();
        by_name.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
        let most: Vec<String> = by_name
            .iter()
            .filter(|(_, calls)| each(*calls) >= 0.05)
            .map(|(name, calls)| format!("{name} {:.2}", each(*calls)))
            .collect();
        let all = each(traced.calls.values().sum());
        let cells = [name.text().to_owned(), format!("{all:.2}"), most.join(", ")];
        line(scenario.key, cells.into_iter());
    }
    println!("\nFloors: 4.1 a request on a kept connection, 2.7 an event.");
}

fn line(first: &str, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.collect();
    println!("| {first} | {} |", cells.join(" | "));
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    match values.len() % 2 {
        1 => Some(values[middle]),
        _ => Some((values[middle] + values[middle + 1]) / 2.0),
    }
}

/// With commas between the thousands.
fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}
