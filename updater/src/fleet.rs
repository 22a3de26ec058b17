//! A FleetLock server: asked before a rollout, so that not every host of a fleet rolls at once.
//!
//! The protocol is that of Fedora CoreOS' update agent (`v1/pre-reboot` takes a slot, `v1/steady-state` gives it back;
//! both may be repeated): <https://coreos.github.io/zincati/development/fleetlock/protocol>. A rollout stands where a
//! reboot stands there.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use serde::Deserialize;
use staging::report::{Exit, Report};
use url::Url;

use crate::feed::{Location, certificates};

/// How long the server may take for one answer.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The header that tells such a request from one that a page was tricked into.
const HEADER: &str = "fleet-lock-protocol";
/// No error of a server comes near this many bytes.
const MAX_ANSWER: usize = 16 * 1024;
/// Characters of a server's own words that are shown.
const MAX_QUOTE: usize = 200;

/// Why the fleet's lock was not had or not given back.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// Not a URL to ask.
    #[error(
        "the FleetLock server {url} cannot be asked: {reason}; write update.fleet_lock as https://HOST/PATH"
    )]
    Url {
        /// The URL without credentials.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No answer.
    #[error(
        "the FleetLock server {url} does not answer: {reason}; without it nothing is rolled here"
    )]
    Unreachable {
        /// What was asked, without credentials.
        url: String,
        /// Why, in a few words.
        reason: String,
    },
    /// It said no.
    #[error("the FleetLock server {url} refused ({status}, {kind}): {words}")]
    Refused {
        /// What was asked, without credentials.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The server's word for the reason.
        kind: String,
        /// Its explanation, shortened.
        words: String,
    },
}

impl Report for FleetError {
    fn code(&self) -> &'static str {
        match self {
            Self::Url { .. } => "FLEET_LOCK_URL",
            Self::Unreachable { .. } => "FLEET_LOCK_UNREACHABLE",
            Self::Refused { .. } => "FLEET_LOCK_REFUSED",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Url { .. } => Exit::Configuration,
            Self::Unreachable { .. } | Self::Refused { .. } => Exit::Deferred,
        }
    }

    fn retry(&self) -> bool {
        !matches!(self, Self::Url { .. })
    }
}

/// The lock that a fleet shares, as this host sees it.
#[derive(Debug, Clone)]
pub struct FleetLock {
    base: Url,
    shown: Location,
    group: String,
    id: String,
    patience: Duration,
    http: reqwest::Client,
}

/// The server, without credentials, and the group.
impl fmt::Display for FleetLock {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} (group {})", self.shown, self.group)
    }
}

/// What a server answers with when it says no.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    kind: String,
    value: String,
}

impl FleetLock {
    /// The lock at `base`, asked for as member `id` of `group`. Contacts nobody.
    ///
    /// # Errors
    /// [`FleetError::Url`]
    pub fn new(base: &str, group: &str, id: &str) -> Result<Self, FleetError> {
        Self::with_patience(base, group, id, PATIENCE)
    }

    /// As [`FleetLock::new`], with another time for each answer.
    ///
    /// # Errors
    /// [`FleetError::Url`]
    pub fn with_patience(
        base: &str,
        group: &str,
        id: &str,
        patience: Duration,
    ) -> Result<Self, FleetError> {
        let unusable = |url: String, reason: &str| FleetError::Url {
            url,
            reason: reason.to_owned(),
        };
        let shown: Location = base
            .parse()
            .map_err(|_| unusable("(given)".to_owned(), "it is not an http or https URL"))?;
        let base = Url::parse(base)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| unusable(shown.to_string(), "it is not an http or https URL"))?;
        let http = client(&base, patience, &[])
            .map_err(|_| unusable(shown.to_string(), "the client cannot be set up"))?;
        Ok(Self {
            base,
            shown,
            group: group.to_owned(),
            id: id.to_owned(),
            patience,
            http,
        })
    }

    /// The same, trusting the certificates in this file, too.
    ///
    /// # Errors
    /// [`FleetError::Url`] with what is wrong with the file.
    pub fn trusting(mut self, ca_file: Option<&Path>) -> Result<Self, FleetError> {
        let unusable = |reason: String| FleetError::Url {
            url: self.shown.to_string(),
            reason,
        };
        let certificates = certificates(ca_file).map_err(|error| unusable(error.to_string()))?;
        if !certificates.is_empty() {
            self.http = client(&self.base, self.patience, &certificates)
                .map_err(|_| unusable("the client cannot be set up".to_owned()))?;
        }
        Ok(self)
    }

    /// How the server knows this host.
    #[must_use]
    pub fn member(&self) -> &str {
        &self.id
    }

    /// Takes a slot, or keeps the one that is held already.
    ///
    /// # Errors
    /// The server's refusal, or that it does not answer.
    pub async fn pre_reboot(&self) -> Result<(), FleetError> {
        self.ask("pre-reboot").await
    }

    /// Gives the slot back, if one is held.
    ///
    /// # Errors
    /// The server's refusal, or that it does not answer.
    pub async fn steady_state(&self) -> Result<(), FleetError> {
        self.ask("steady-state").await
    }

    async fn ask(&self, operation: &str) -> Result<(), FleetError> {
        let mut url = self.base.clone();
        let shown = format!("{}v1/{operation}", self.shown);
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["v1", operation]);
        }
        let body = serde_json::json!({
            "client_params": { "group": self.group, "id": self.id }
        });
        let mut response = self
            .http
            .post(url)
            .header(HEADER, "true")
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string())
            .send()
            .await
            .map_err(|error| unreachable(&shown, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        // What it says explains; that it could not be read to the end takes nothing from the refusal.
        while let Ok(Some(block)) = response.chunk().await {
            bytes.extend_from_slice(&block);
            if bytes.len() > MAX_ANSWER {
                break;
            }
        }
        let refusal: Refusal = serde_json::from_slice(&bytes).unwrap_or_default();
        let or = |text: String, default: &str| match printable(&text) {
            text if text.is_empty() => default.to_owned(),
            text => text,
        };
        Err(FleetError::Refused {
            url: shown,
            status: status.as_u16(),
            kind: or(refusal.kind, "no kind"),
            words: or(refusal.value, "no reason was given"),
        })
    }
}

fn client(
    base: &Url,
    patience: Duration,
    certificates: &[reqwest::Certificate],
) -> reqwest::Result<reqwest::Client> {
    let local = match base.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    };
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("rollproxy-updater/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(patience.min(Duration::from_secs(10)))
        .timeout(patience)
        // A lock is asked for where the operator said, nowhere else.
        .redirect(Policy::none());
    if local {
        builder = builder.no_proxy();
    }
    if base.scheme() == "http" {
        // The machine's certificates are read only where they can matter.
        builder = builder.tls_certs_only([]);
    } else if !certificates.is_empty() {
        builder = builder.tls_certs_merge(certificates.to_vec());
    }
    builder.build()
}

/// The innermost cause: the outer ones repeat the URL with its credentials.
fn unreachable(shown: &str, error: &reqwest::Error) -> FleetError {
    let mut reason = "the request failed".to_owned();
    if error.is_timeout() {
        "it takes too long".clone_into(&mut reason);
    } else {
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            reason = printable(&inner.to_string());
            cause = inner.source();
        }
    }
    FleetError::Unreachable {
        url: shown.to_owned(),
        reason,
    }
}

fn printable(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_QUOTE)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A server that answers once, and gives back what it was asked.
    async fn answering(answer: String) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"}}") {
                let mut block = [0; 1024];
                let count = stream.read(&mut block).await.unwrap();
                assert_ne!(count, 0, "the request ended early");
                asked.extend_from_slice(&block[..count]);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(asked).unwrap()
        });
        (address.to_string(), task)
    }

    fn answer(status: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    #[tokio::test]
    async fn a_slot_is_asked_for_and_given_back_in_the_protocol_s_words() {
        for operation in ["pre-reboot", "steady-state"] {
            let (address, server) = answering(answer("200 OK", "")).await;
            let lock = FleetLock::new(&format!("http://{address}/locks"), "web", "id-1").unwrap();
            let asked = match operation {
                "pre-reboot" => lock.pre_reboot().await,
                _ => lock.steady_state().await,
            };
            asked.unwrap();
            let request = server.await.unwrap();
            assert!(
                request.starts_with(&format!("POST /locks/v1/{operation} HTTP/1.1\r\n")),
                "{request}"
            );
            assert!(
                request.contains("fleet-lock-protocol: true\r\n"),
                "{request}"
            );
            assert!(
                request.ends_with(r#"{"client_params":{"group":"web","id":"id-1"}}"#),
                "{request}"
            );
        }
    }

    #[tokio::test]
    async fn a_refusal_defers_and_says_the_server_s_reason_in_plain_characters() {
        let body = r#"{"kind":"failed_lock","value":"all slots\u001b[31m are taken"}"#;
        let (address, _server) = answering(answer("409 Conflict", body)).await;
        let base = format!("http://user:secret@{address}/");
        let error = FleetLock::new(&base, "default", "i")
            .unwrap()
            .pre_reboot()
            .await
            .unwrap_err();
        assert_eq!(error.exit(), Exit::Deferred);
        assert!(error.retry());
        let text = error.to_string();
        for part in [
            "409",
            "failed_lock",
            "all slots[31m are taken",
            "v1/pre-reboot",
        ] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        assert!(!text.contains("secret") && !text.contains("user"), "{text}");
    }

    #[tokio::test]
    async fn what_is_no_answer_of_such_a_server_defers_too() {
        for (status, body) in [
            ("500 Oops", "<html>oops"),
            ("404 Not Found", ""),
            ("302 Found", "{}"),
            ("403 Forbidden", r#"{"kind":7}"#),
        ] {
            let (address, _server) = answering(answer(status, body)).await;
            let lock = FleetLock::new(&format!("http://{address}"), "default", "i").unwrap();
            let error = lock.pre_reboot().await.unwrap_err();
            assert_eq!(error.code(), "FLEET_LOCK_REFUSED", "{status}: {error}");
            assert!(error.to_string().contains("no reason was given"), "{error}");
        }
    }

    #[tokio::test]
    async fn nobody_there_or_nobody_answering_defers_without_showing_credentials() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Listens and never accepts: the connection is made by the kernel, and no answer comes.
        let silent = format!("http://user:secret@{address}/");
        let lock =
            FleetLock::with_patience(&silent, "default", "i", Duration::from_millis(200)).unwrap();
        let error = lock.pre_reboot().await.unwrap_err();
        assert_eq!(error.code(), "FLEET_LOCK_UNREACHABLE");
        assert!(!error.to_string().contains("secret"), "{error}");
        drop(listener);
        let error = FleetLock::new(&silent, "default", "i")
            .unwrap()
            .pre_reboot()
            .await
            .unwrap_err();
        assert_eq!(error.code(), "FLEET_LOCK_UNREACHABLE");
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn what_is_no_http_url_is_the_configuration_s_fault() {
        for base in ["", "fleet", "ftp://x/", "file:///x", "http://"] {
            let error = FleetLock::new(base, "default", "i").unwrap_err();
            assert_eq!(error.exit(), Exit::Configuration, "{base}");
        }
    }
}
