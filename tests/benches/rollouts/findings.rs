//! What was found: tables for people, every figure for programs, and whether anybody lost anything.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Map, Value};

#[derive(Default)]
pub struct Findings {
    all: Map<String, Value>,
    wrong: Vec<String>,
}

impl Findings {
    /// Every figure of a part.
    pub fn keep(&mut self, part: &str, figures: Value) {
        self.all.insert(part.to_owned(), figures);
    }

    /// Somebody lost something.
    pub fn wrong(&mut self, what: String) {
        println!("\nWRONG: {what}");
        self.wrong.push(what);
    }

    pub fn finish(mut self, file: Option<&Path>) -> ExitCode {
        let clean = self.wrong.is_empty();
        self.all.insert("wrong".to_owned(), self.wrong.into());
        if let Some(file) = file {
            let text = format!("{:#}\n", Value::Object(self.all));
            std::fs::write(file, text).unwrap();
        }
        if clean {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// A table's heading and titles.
pub fn table(heading: &str, titles: &[&str]) {
    println!("\n### {heading}\n");
    println!("| {} |", titles.join(" | "));
    println!("|{}", "---|".repeat(titles.len()));
}

pub fn line(first: &str, cells: &[String]) {
    println!("| {first} | {} |", cells.join(" | "));
}

/// A goal beside what was measured.
pub fn goal(what: &str, found: f64, at_most: f64) {
    let met = if found <= at_most { "met" } else { "missed" };
    println!("- {what}: {found:.2} (goal: at most {at_most}), {met}");
}

pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

/// The value that this share of all, from 0 to 1, is not greater than.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = (values.len() as f64 * share).ceil() as usize;
    values
        .get(at.saturating_sub(1).min(last))
        .copied()
        .unwrap_or(f64::NAN)
}
