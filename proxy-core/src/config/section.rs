//! Reading one table: every value asked for is taken out, so that what is left over is unknown.

use std::time::Duration;

use toml::{Table, Value};

use super::{ConfigError, duration};

/// One table of the file while it is being read.
pub(super) struct Section<'a> {
    origin: &'a str,
    /// The table's own name with a dot after it; empty for the top of the file.
    prefix: String,
    table: Table,
    known: Vec<&'static str>,
}

/// Which durations a key accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Zero {
    /// Zero has a meaning (never, at once).
    Allowed,
    /// Zero would make the thing impossible.
    Refused,
}

impl<'a> Section<'a> {
    pub(super) fn top(origin: &'a str, table: Table) -> Self {
        Self {
            origin,
            prefix: String::new(),
            table,
            known: Vec::new(),
        }
    }

    /// The table under `key`; an empty one if it is not there.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Section<'a>, ConfigError> {
        let table = self.table_or_empty(key)?;
        Ok(self.child(key, table))
    }

    /// A table that was found below this one, for reading.
    pub(super) fn child(&self, key: &str, table: Table) -> Section<'a> {
        Section {
            origin: self.origin,
            prefix: format!("{}{key}.", self.prefix),
            table,
            known: Vec::new(),
        }
    }

    pub(super) fn table_or_empty(&mut self, key: &'static str) -> Result<Table, ConfigError> {
        match self.take(key) {
            None => Ok(Table::new()),
            Some(Value::Table(table)) => Ok(table),
            Some(other) => Err(self.refuse(key, &other, "a table")),
        }
    }

    /// Takes the value out; from here on the key counts as known.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    pub(super) fn text(
        &mut self,
        key: &'static str,
        allowed: &str,
    ) -> Result<Option<String>, ConfigError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.refuse(key, &other, allowed)),
        }
    }

    pub(super) fn duration(
        &mut self,
        key: &'static str,
        into: &mut Duration,
        zero: Zero,
    ) -> Result<(), ConfigError> {
        let Some(value) = self.take(key) else {
            return Ok(());
        };
        let allowed = match zero {
            Zero::Allowed => duration::ALLOWED.to_owned(),
            Zero::Refused => format!("{}; not zero", duration::ALLOWED),
        };
        let parsed = value.as_str().and_then(duration::parse_duration);
        match parsed {
            Some(parsed) if zero == Zero::Allowed || !parsed.is_zero() => *into = parsed,
            _ => return Err(self.refuse(key, &value, &allowed)),
        }
        Ok(())
    }

    pub(super) fn count(
        &mut self,
        key: &'static str,
        into: &mut usize,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<(), ConfigError> {
        let Some(value) = self.take(key) else {
            return Ok(());
        };
        let number = value
            .as_integer()
            .and_then(|number| usize::try_from(number).ok());
        match number {
            Some(number) if range.contains(&number) => *into = number,
            _ => {
                let allowed = format!("a whole number from {} to {}", range.start(), range.end());
                return Err(self.refuse(key, &value, &allowed));
            }
        }
        Ok(())
    }

    /// The error for a value of this table that is not allowed.
    pub(super) fn refuse(&self, key: &str, value: &Value, allowed: &str) -> ConfigError {
        ConfigError::CheckValue {
            origin: self.origin.to_owned(),
            key: self.name(key),
            value: to_json(value.clone()).to_string(),
            allowed: allowed.to_owned(),
        }
    }

    /// The error for a key of this table that must be there.
    pub(super) fn missing(&self, key: &str, allowed: &str) -> ConfigError {
        ConfigError::FindKey {
            origin: self.origin.to_owned(),
            key: self.name(key),
            allowed: allowed.to_owned(),
        }
    }

    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Ends the reading: whatever nobody asked for is unknown.
    pub(super) fn finish(self, unknown: &mut Vec<String>) {
        let known = self.known.join(", ");
        for key in self.table.keys() {
            unknown.push(format!(
                "unknown key {} (known here: {known})",
                self.name(key)
            ));
        }
    }
}

/// The same as JSON; dates become strings.
pub(super) fn table_to_json(table: Table) -> serde_json::Value {
    serde_json::Value::Object(
        table
            .into_iter()
            .map(|(key, value)| (key, to_json(value)))
            .collect(),
    )
}

fn to_json(value: Value) -> serde_json::Value {
    match value {
        Value::String(text) => text.into(),
        Value::Integer(number) => number.into(),
        Value::Float(number) => number.into(),
        Value::Boolean(flag) => flag.into(),
        Value::Datetime(time) => time.to_string().into(),
        Value::Array(list) => list.into_iter().map(to_json).collect(),
        Value::Table(table) => table_to_json(table),
    }
}
