//! File and environment to [`Config`].

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::Path;

use staging::home::Home;
use toml::{Table, Value};
use url::Url;

use super::section::{Section, Zero, table_to_json as opaque};
use super::{Config, ConfigError, ListenAddress, Rollout, Route, Server, Upstream, listen};

/// The environment variable that replaces `server.listen`: addresses with commas between them.
pub const LISTEN_VARIABLE: &str = "ROLLPROXY_LISTEN";

const LISTEN_ALLOWED: &str = "a list of addresses, each an IP address and a port or a Unix socket, for example [\"127.0.0.1:8787\", \"[::1]:8787\", \"unix:/run/rollproxy.sock\"]";
const MODE_ALLOWED: &str =
    "the permissions of the Unix sockets in octal, from \"0000\" to \"0777\", for example \"0660\"";
const URL_ALLOWED: &str = "an http:// or https:// address without user, password, query or fragment, for example \"https://api.anthropic.com\"";
const PATH_ALLOWED: &str =
    "a path that starts with /, with * only as its last character, for example \"/v1/messages*\"";
const HEADER_ALLOWED: &str = "the name of a header field, for example \"anthropic-version\"";
const VIA_ALLOWED: &str = "a pseudonym of letters, digits and !#$%&'*+-.^_`|~, for example \"rollproxy\", or \"\" for none";
const UPGRADE_ALLOWED: &str = "a list of protocols as Upgrade names them, for example [\"websocket\"], or [] for none; never HTTP itself (h2c)";

const ON_EVENT_ALLOWED: &str = "a list of an absolute path and its arguments, for example [\"/usr/local/bin/tell-us\", \"rollproxy\"], or [] for none";

/// More connections than a process can have descriptors for on any Linux by default.
const MOST_CONNECTIONS: usize = 1_048_576;

/// A configuration, with what a person should hear about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What was found and ignored: keys that this version does not know.
    pub warnings: Vec<String>,
    /// [`Config::digest`] of the configuration.
    pub digest: String,
    /// The file that was read, or should have been.
    pub origin: String,
}

impl Loaded {
    /// For `config check`: unknown keys are an error there. When serving they are warnings, so that a rollback survives the
    /// keys of a newer version.
    ///
    /// # Errors
    /// [`ConfigError::KnowKeys`] naming all of them.
    pub fn strict(self) -> Result<Self, ConfigError> {
        if self.warnings.is_empty() {
            return Ok(self);
        }
        Err(ConfigError::KnowKeys {
            origin: self.origin,
            keys: self.warnings,
        })
    }
}

/// Reads the home's `config.toml` and the environment. No file is no error: the defaults serve both providers.
///
/// # Errors
/// [`ConfigError`] naming file, key, value and what is allowed.
pub fn load(home: &Home, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Loaded, ConfigError> {
    let path = home.config_file();
    let text = read_file(&path).map_err(|source| ConfigError::ReadFile {
        path: path.clone(),
        source,
    })?;
    parse(&text, &path.display().to_string(), env)
}

/// The longest configuration file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// The whole file; empty where it is not there. The supervisor reads it in its only loop: a FIFO
/// there, or a file without end, must not stop it.
fn read_file(path: &Path) -> io::Result<String> {
    let bytes = staging::files::read_bounded(path, MAX_FILE)?.unwrap_or_default();
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// The parser's words and the place, without the line itself: it may hold a secret, and this text is
/// shown in places that anybody may read.
fn one_line(error: &toml::de::Error, text: &str) -> String {
    let what = error.message().lines().collect::<Vec<_>>().join("; ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return what;
    };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line}, column {column}: {what}")
}

/// The pure half of [`load`]: `origin` names the text in messages.
///
/// # Errors
/// As [`load`].
pub fn parse(
    text: &str,
    origin: &str,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Loaded, ConfigError> {
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| ConfigError::ParseFile {
            origin: origin.to_owned(),
            cause: one_line(&error, text),
        })?;
    let mut unknown = Vec::new();
    let mut top = Section::top(origin, table);
    let mut config = Config::default();

    read_server(top.section("server")?, &mut config.server, &mut unknown)?;
    read_upstreams(&mut top, &mut config.upstreams, &mut unknown)?;
    read_routes(
        &mut top,
        &mut config.routes,
        &config.upstreams,
        &mut unknown,
    )?;
    read_rollout(top.section("rollout")?, &mut config.rollout, &mut unknown)?;
    config.update = opaque(top.table_or_empty("update")?);
    config.budget = opaque(top.table_or_empty("budget")?);
    config.telemetry = opaque(top.table_or_empty("telemetry")?);
    top.finish(&mut unknown);
    read_environment(&mut config.server, env)?;

    let digest = config.digest()?;
    Ok(Loaded {
        config,
        warnings: unknown,
        digest,
        origin: origin.to_owned(),
    })
}

fn read_server(
    mut section: Section<'_>,
    server: &mut Server,
    unknown: &mut Vec<String>,
) -> Result<(), ConfigError> {
    if let Some(value) = section.take("listen") {
        let texts: Option<Vec<&str>> = value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_str).collect());
        let addresses = texts.and_then(parse_addresses);
        server.listen =
            addresses.ok_or_else(|| section.refuse("listen", &value, LISTEN_ALLOWED))?;
    }
    if let Some(text) = section.text("unix_mode", MODE_ALLOWED)? {
        server.unix_mode = parse_mode(&text)
            .ok_or_else(|| section.refuse("unix_mode", &Value::String(text), MODE_ALLOWED))?;
    }
    section.duration("stop_timeout", &mut server.stop_timeout, Zero::Allowed)?;
    section.duration("unready_window", &mut server.unready_window, Zero::Allowed)?;
    section.duration("header_timeout", &mut server.header_timeout, Zero::Refused)?;
    section.duration("body_timeout", &mut server.body_timeout, Zero::Allowed)?;
    section.duration("send_timeout", &mut server.send_timeout, Zero::Allowed)?;
    section.duration("idle_timeout", &mut server.idle_timeout, Zero::Allowed)?;
    section.count(
        "max_connections",
        &mut server.max_connections,
        0..=MOST_CONNECTIONS,
    )?;
    if let Some(via) = section.text("via", VIA_ALLOWED)? {
        if !via.is_empty() && !is_token(&via) {
            return Err(section.refuse("via", &Value::String(via), VIA_ALLOWED));
        }
        server.via = via;
    }
    section.flag("forwarded", &mut server.forwarded)?;
    section.finish(unknown);
    Ok(())
}

/// At least one address, none twice (but any number of free ports).
fn parse_addresses(texts: Vec<&str>) -> Option<Vec<ListenAddress>> {
    let addresses: Vec<ListenAddress> = texts
        .iter()
        .map(|text| text.trim().parse())
        .collect::<Result<_, _>>()
        .ok()?;
    let named = addresses.iter().filter(|address| !address.is_any_port());
    let distinct: BTreeSet<_> = named.clone().collect();
    (!addresses.is_empty() && distinct.len() == named.count()).then_some(addresses)
}

/// `0600` or `600`: three octal digits, perhaps with a zero before them.
fn parse_mode(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('0').unwrap_or(text);
    let is_mode = digits.len() == 3 && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    is_mode.then(|| u32::from_str_radix(digits, 8).ok())?
}

/// A table of the name of a default changes that one; another name adds one.
fn read_upstreams(
    top: &mut Section<'_>,
    upstreams: &mut BTreeMap<String, Upstream>,
    unknown: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let tables = top.table_or_empty("upstreams")?;
    let all = top.child("upstreams", Table::new());
    for (name, value) in tables {
        let Value::Table(table) = value else {
            return Err(all.refuse(&name, &value, "a table with a url"));
        };
        let mut section = all.child(&name, table);
        let given = section.text("url", URL_ALLOWED)?;
        let mut upstream = match (given, upstreams.get(&name)) {
            (Some(url), former) => {
                let url = base_url(&url)
                    .ok_or_else(|| section.refuse("url", &Value::String(url), URL_ALLOWED))?;
                former.map_or_else(
                    || Upstream::new(url.clone()),
                    |former| Upstream {
                        url: url.clone(),
                        ..former.clone()
                    },
                )
            }
            (None, Some(former)) => former.clone(),
            (None, None) => return Err(section.missing("url", URL_ALLOWED)),
        };
        section.duration(
            "connect_timeout",
            &mut upstream.connect_timeout,
            Zero::Refused,
        )?;
        section.duration(
            "first_byte_timeout",
            &mut upstream.first_byte_timeout,
            Zero::Allowed,
        )?;
        section.duration("idle_timeout", &mut upstream.idle_timeout, Zero::Allowed)?;
        section.flag("http2", &mut upstream.http2)?;
        section.finish(unknown);
        upstreams.insert(name, upstream);
    }
    Ok(())
}

/// The address in its normal form without a trailing slash, if it can be an upstream's.
fn base_url(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    plain.then(|| url.as_str().trim_end_matches('/').to_owned())
}

/// Routes in the file replace the default ones: their order decides, so the two cannot be mixed.
fn read_routes(
    top: &mut Section<'_>,
    routes: &mut Vec<Route>,
    upstreams: &BTreeMap<String, Upstream>,
    unknown: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let Some(value) = top.take("routes") else {
        return Ok(());
    };
    let Value::Array(tables) = value else {
        return Err(top.refuse("routes", &value, "tables: [[routes]]"));
    };
    routes.clear();
    for (index, value) in tables.into_iter().enumerate() {
        let name = format!("routes[{index}]");
        let Value::Table(table) = value else {
            return Err(top.refuse(&name, &value, "a table: [[routes]]"));
        };
        let mut section = top.child(&name, table);
        routes.push(read_route(&mut section, upstreams)?);
        section.finish(unknown);
    }
    Ok(())
}

fn read_route(
    section: &mut Section<'_>,
    upstreams: &BTreeMap<String, Upstream>,
) -> Result<Route, ConfigError> {
    let path = section
        .text("path", PATH_ALLOWED)?
        .ok_or_else(|| section.missing("path", PATH_ALLOWED))?;
    let exact = path.strip_suffix('*').unwrap_or(&path);
    if !exact.starts_with('/')
        || exact
            .contains(|c: char| matches!(c, '*' | '?' | '#') || c.is_whitespace() || c.is_control())
    {
        return Err(section.refuse("path", &Value::String(path), PATH_ALLOWED));
    }
    let header = match section.text("header", HEADER_ALLOWED)? {
        None => None,
        Some(name) => match http::HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => Some(name.as_str().to_owned()),
            Err(_) => return Err(section.refuse("header", &Value::String(name), HEADER_ALLOWED)),
        },
    };
    let names = upstreams
        .keys()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let allowed = format!("the name of an upstream: {names}");
    let upstream = section
        .text("upstream", &allowed)?
        .ok_or_else(|| section.missing("upstream", &allowed))?;
    if !upstreams.contains_key(&upstream) {
        return Err(section.refuse("upstream", &Value::String(upstream), &allowed));
    }
    let mut route = Route {
        header,
        ..Route::new(path, upstream)
    };
    if let Some(value) = section.take("upgrade") {
        route.upgrade =
            protocols(&value).ok_or_else(|| section.refuse("upgrade", &value, UPGRADE_ALLOWED))?;
    }
    section.flag("connect", &mut route.connect)?;
    Ok(route)
}

/// Protocols by name, with a version or without (RFC 9110, 7.8). HTTP itself would let requests by that nobody looked at.
fn protocols(value: &Value) -> Option<Vec<String>> {
    let name = |value: &Value| {
        let text = value.as_str()?.to_ascii_lowercase();
        let (name, version) = text.split_once('/').unwrap_or((&text, "-"));
        let good = is_token(name) && is_token(version) && !matches!(name, "h2c" | "h2" | "http");
        good.then_some(text)
    };
    value.as_array()?.iter().map(name).collect()
}

/// A program by its absolute path, for a service has no folder of its own to look in, and its arguments.
fn command(value: &Value) -> Option<Vec<String>> {
    let word = |value: &Value| {
        let text = value.as_str()?;
        (!text.contains('\0')).then(|| text.to_owned())
    };
    let words: Vec<String> = value.as_array()?.iter().map(word).collect::<Option<_>>()?;
    let good = words
        .first()
        .is_none_or(|program| Path::new(program).is_absolute());
    good.then_some(words)
}

/// RFC 9110, 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn read_rollout(
    mut section: Section<'_>,
    rollout: &mut Rollout,
    unknown: &mut Vec<String>,
) -> Result<(), ConfigError> {
    section.duration("ready_timeout", &mut rollout.ready_timeout, Zero::Refused)?;
    section.duration(
        "transfer_timeout",
        &mut rollout.transfer_timeout,
        Zero::Refused,
    )?;
    section.duration("ping_interval", &mut rollout.ping_interval, Zero::Refused)?;
    section.duration("ping_timeout", &mut rollout.ping_timeout, Zero::Refused)?;
    section.count("queue_limit", &mut rollout.queue_limit, 1..=65_536)?;
    section.duration("queue_timeout", &mut rollout.queue_timeout, Zero::Refused)?;
    section.duration("recovery_min", &mut rollout.recovery_min, Zero::Refused)?;
    section.duration("recovery_max", &mut rollout.recovery_max, Zero::Refused)?;
    if rollout.recovery_max < rollout.recovery_min {
        let value = Value::String(super::format_duration(rollout.recovery_max));
        let least = super::format_duration(rollout.recovery_min);
        return Err(section.refuse(
            "recovery_max",
            &value,
            &format!("at least recovery_min, which is \"{least}\""),
        ));
    }
    section.duration("probation", &mut rollout.probation, Zero::Allowed)?;
    section.count(
        "probation_error_percent",
        &mut rollout.probation_error_percent,
        1..=100,
    )?;
    section.count(
        "probation_min_requests",
        &mut rollout.probation_min_requests,
        1..=1_000_000,
    )?;
    section.duration("drain_deadline", &mut rollout.drain_deadline, Zero::Allowed)?;
    section.count("drain_cap", &mut rollout.drain_cap, 1..=64)?;
    section.flag("refresh_supervisor", &mut rollout.refresh_supervisor)?;
    if let Some(value) = section.take("on_event") {
        rollout.on_event =
            command(&value).ok_or_else(|| section.refuse("on_event", &value, ON_EVENT_ALLOWED))?;
    }
    section.finish(unknown);
    Ok(())
}

/// The environment wins over the file: it is what a unit, a container or a test can set without editing.
fn read_environment(
    server: &mut Server,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Result<(), ConfigError> {
    let Some(value) = env(LISTEN_VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(());
    };
    let addresses = value
        .to_str()
        .and_then(|text| parse_addresses(text.split(',').collect()));
    server.listen = addresses.ok_or_else(|| ConfigError::CheckValue {
        origin: "environment".to_owned(),
        key: LISTEN_VARIABLE.to_owned(),
        value: format!("{value:?}"),
        allowed: format!(
            "addresses with commas between them, each {}",
            listen::ALLOWED
        ),
    })?;
    Ok(())
}
