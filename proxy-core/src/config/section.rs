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

    pub(super) fn flag(&mut self, key: &'static str, into: &mut bool) -> Result<(), ConfigError> {
        match self.take(key) {
            None => {}
            Some(Value::Boolean(flag)) => *into = flag,
            Some(other) => return Err(self.refuse(key, &other, "true or false")),
        }
        Ok(())
    }

    /// The error for a value of this table that is not allowed.
    pub(super) fn refuse(&self, key: &str, value: &Value, allowed: &str) -> ConfigError {
        ConfigError::CheckValue {
            origin: self.origin.to_owned(),
            key: self.name(key),
            value: masked(&to_json(value.clone()).to_string()),
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

/// A value as it may be shown to anybody: what a URL in it holds before `@` and after `?` is hidden.
pub(super) fn masked(value: &str) -> String {
    let mut shown = String::new();
    let mut rest = value;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = after.find(['"', ' ', ',']).unwrap_or(after.len());
        let (url, further) = after.split_at(end);
        let (url, query) = url
            .split_once('?')
            .map_or((url, ""), |(url, _)| (url, "?…"));
        let authority = url.find('/').unwrap_or(url.len());
        match url[..authority].rfind('@') {
            Some(user) => {
                shown.push_str("…@");
                shown.push_str(&url[user + 1..]);
            }
            None => shown.push_str(url),
        }
        shown.push_str(query);
        rest = further;
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::masked;

    #[test]
    fn what_a_url_holds_in_secret_is_hidden_wherever_it_stands() {
        for (written, shown) in [
            (
                r#""https://me:sk-1@api.example/v1""#,
                r#""https://…@api.example/v1""#,
            ),
            (
                r#""https://api.example/v1?key=sk-1&x=2""#,
                r#""https://api.example/v1?…""#,
            ),
            (
                r#"["http://a:b@c","http://d?e"]"#,
                r#"["http://…@c","http://d?…"]"#,
            ),
            (
                r#""http://127.0.0.1:8787/a@b""#,
                r#""http://127.0.0.1:8787/a@b""#,
            ),
            ("42", "42"),
        ] {
            assert_eq!(masked(written), shown);
        }
    }
}
