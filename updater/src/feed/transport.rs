//! Bytes from a feed: one request, bounded, over `file://`, `http://` or `https://`.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_RANGE, LAST_MODIFIED,
    RANGE, RETRY_AFTER,
};
use reqwest::redirect::Policy;
use reqwest::{Response, StatusCode};
use sigstore_tuf::transport::FetchFuture;
use sigstore_tuf::{Error as Tuf, Repository};
use staging::clock;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::location::{Location, masked};
use super::{FeedError, FeedSettings, tls};

/// How many redirects are followed.
const REDIRECTS: usize = 5;
/// The longest tag that is kept.
const MAX_TAG: usize = 256;
/// The longest time for which a server is left alone because it asked for that.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Bytes read from a local feed at a time.
const BLOCK: usize = 128 * 1024;

/// Why bytes did not come. Every URL in it is masked already.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    #[error("{url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("{url}: status {status}")]
    Status {
        url: String,
        status: u16,
        retry_after: Option<Duration>,
    },
    #[error("{url}: encoded")]
    Encoded { url: String },
    #[error("{url}: a web page")]
    WebPage { url: String },
    #[error("{url}: larger than {limit} bytes")]
    Oversized { url: String, limit: u64 },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// Asks one copy of a feed for files: the feed itself, or one of its mirrors. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Client {
    sites: Arc<[Site]>,
    at: usize,
    read_timeout: Duration,
}

/// A copy of the feed, and how it is reached.
#[derive(Debug)]
struct Site {
    location: Location,
    http: reqwest::Client,
}

/// The answer to one request.
#[derive(Debug)]
pub(super) enum Answer {
    /// There is no such file.
    Absent,
    /// The file, from byte `from` on.
    Content {
        /// Where the content starts: as asked for, or 0.
        from: u64,
        /// Bytes announced from there on.
        length: Option<u64>,
        /// What names this state of the file, for asking for the rest of exactly this one later.
        tag: Option<String>,
        body: Body,
    },
}

/// Where in a file to begin, and which state of it to go on with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct From<'a> {
    /// The first byte wanted.
    pub(super) byte: u64,
    /// The bytes of the whole file, if they are known.
    pub(super) total: Option<u64>,
    /// The tag that came with what is there already.
    pub(super) tag: Option<&'a str>,
}

/// The bytes of an answer, block by block.
#[derive(Debug)]
pub(super) enum Body {
    File {
        path: PathBuf,
        file: File,
    },
    Http {
        url: String,
        response: Box<Response>,
    },
}

impl Client {
    pub(super) fn new(settings: &FeedSettings) -> Result<Self, FeedError> {
        let certificates = tls::certificates(settings.ca_file.as_deref())?;
        let sites = std::iter::once(&settings.url)
            .chain(&settings.mirrors)
            .map(|location| {
                let http = http_client(settings, location, &certificates);
                let http = http.map_err(|e| FeedError::Client {
                    url: location.to_string(),
                    reason: cause(&e),
                })?;
                Ok(Site {
                    location: location.clone(),
                    http,
                })
            })
            .collect::<Result<_, FeedError>>()?;
        Ok(Self {
            sites,
            at: 0,
            read_timeout: settings.read_timeout,
        })
    }

    /// Where all copies are: the feed itself, then its mirrors.
    pub(super) fn locations(&self) -> Vec<&Location> {
        self.sites.iter().map(|site| &site.location).collect()
    }

    /// The same feed at another copy.
    pub(super) fn on(&self, site: usize) -> Self {
        Self {
            at: site.min(self.sites.len() - 1),
            ..self.clone()
        }
    }

    /// The number of the copy that is asked.
    pub(super) fn site(&self) -> usize {
        self.at
    }

    pub(super) fn location(&self) -> &Location {
        &self.sites[self.at].location
    }

    /// Asks for a file from a byte on; a server that cannot do that sends all of it.
    pub(super) async fn get(
        &self,
        at: &Location,
        from: From<'_>,
    ) -> Result<Answer, TransportError> {
        match at.path() {
            Some(path) => open(path, from.byte).await,
            None => {
                match self.request(at, from).await? {
                    Some(answer) => Ok(answer),
                    // It answered with another range than asked for, or none at all: all of it, then.
                    None => self.request(at, From::default()).await?.ok_or_else(|| {
                        TransportError::Status {
                            url: at.to_string(),
                            status: StatusCode::PARTIAL_CONTENT.as_u16(),
                            retry_after: None,
                        }
                    }),
                }
            }
        }
    }

    /// A whole small file, or `None` if there is none.
    pub(super) async fn fetch(
        &self,
        at: &Location,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, TransportError> {
        let Answer::Content {
            mut body, length, ..
        } = self.get(at, From::default()).await?
        else {
            return Ok(None);
        };
        let oversized = || TransportError::Oversized {
            url: at.to_string(),
            limit,
        };
        if length.is_some_and(|length| length > limit) {
            return Err(oversized());
        }
        let mut bytes = Vec::new();
        while let Some(block) = body.next().await? {
            if (bytes.len() + block.len()) as u64 > limit {
                return Err(oversized());
            }
            bytes.extend_from_slice(&block);
        }
        // Some servers call every unknown path a page, and give it no type.
        let start = bytes.trim_ascii_start();
        if start.first() == Some(&b'<') {
            return Err(TransportError::WebPage {
                url: at.to_string(),
            });
        }
        Ok(Some(bytes))
    }

    /// One request; `None` if the range asked for is not what was answered.
    async fn request(
        &self,
        at: &Location,
        from: From<'_>,
    ) -> Result<Option<Answer>, TransportError> {
        let url = at.to_string();
        let mut request = self.sites[self.at]
            .http
            .get(at.url().clone())
            .header(ACCEPT_ENCODING, "identity");
        if from.byte > 0 {
            request = request.header(RANGE, format!("bytes={}-", from.byte));
            // A file that is another one since comes whole, not as a piece that fits nothing.
            if let Some(tag) = from.tag {
                request = request.header(IF_RANGE, tag);
            }
        }
        let response = request
            .send()
            .await
            .map_err(|e| unreachable(&url, self.read_timeout, &e))?;
        let byte = match response.status() {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT if from.byte > 0 && continues(&response, from) => from.byte,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if from.byte > 0 => {
                return Ok(None);
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => return Ok(Some(Answer::Absent)),
            status => {
                return Err(TransportError::Status {
                    url: masked(response.url()),
                    status: status.as_u16(),
                    retry_after: retry_after(&response, clock::now()),
                });
            }
        };
        if is_page(&response) {
            return Err(TransportError::WebPage { url });
        }
        if is_encoded(&response) {
            return Err(TransportError::Encoded { url });
        }
        Ok(Some(Answer::Content {
            from: byte,
            length: response.content_length(),
            tag: tag(&response),
            body: Body::Http {
                url,
                response: Box::new(response),
            },
        }))
    }
}

impl Body {
    /// The next block, `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, TransportError> {
        match self {
            Self::Http { url, response } => {
                response
                    .chunk()
                    .await
                    .map_err(|e| TransportError::Unreachable {
                        url: url.clone(),
                        reason: if e.is_timeout() {
                            "the transfer stalled".to_owned()
                        } else {
                            format!("the transfer broke off ({})", cause(&e))
                        },
                    })
            }
            Self::File { path, file } => {
                let mut block = Vec::with_capacity(BLOCK);
                let count = file.take(BLOCK as u64).read_to_end(&mut block).await;
                match count {
                    Ok(0) => Ok(None),
                    Ok(_) => Ok(Some(block.into())),
                    Err(source) => Err(TransportError::File {
                        path: path.clone(),
                        source,
                    }),
                }
            }
        }
    }
}

/// A file of a local feed.
async fn open(path: PathBuf, from: u64) -> Result<Answer, TransportError> {
    let failed = |source| TransportError::File {
        path: path.clone(),
        source,
    };
    // Looked at before it is opened: opening a pipe would wait for a writer.
    let about = match tokio::fs::metadata(&path).await {
        Ok(about) => about,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Answer::Absent),
        Err(e) => return Err(failed(e)),
    };
    if !about.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let mut file = File::open(&path).await.map_err(failed)?;
    let from = from.min(about.len());
    file.seek(io::SeekFrom::Start(from)).await.map_err(failed)?;
    Ok(Answer::Content {
        from,
        length: Some(about.len() - from),
        tag: None,
        body: Body::File { path, file },
    })
}

fn http_client(
    settings: &FeedSettings,
    location: &Location,
    certificates: &[reqwest::Certificate],
) -> reqwest::Result<reqwest::Client> {
    let builder = || {
        let builder = reqwest::Client::builder()
            .user_agent(concat!("rollproxy-updater/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(settings.connect_timeout)
            .read_timeout(settings.read_timeout)
            .redirect(redirects())
            // Digests are of the bytes as published: nothing on the way may unpack them.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate();
        if location.is_loopback() {
            builder.no_proxy()
        } else {
            builder
        }
    };
    let only = |builder: reqwest::ClientBuilder| builder.tls_certs_only(certificates.to_vec());
    let merged = |builder: reqwest::ClientBuilder| builder.tls_certs_merge(certificates.to_vec());
    match location.url().scheme() {
        "https" => merged(builder()).build(),
        // The machine's own certificates are read only where they can matter.
        _ if location.is_loopback() => only(builder()).build(),
        // A plain feed works where no certificates are installed; a redirect to https then does not.
        _ => merged(builder())
            .build()
            .or_else(|_| only(builder()).build()),
    }
}

/// A few redirects, never from https to http. One that is not followed is answered as the status it came with.
fn redirects() -> Policy {
    Policy::custom(|attempt| {
        let from_https = attempt
            .previous()
            .last()
            .is_some_and(|url| url.scheme() == "https");
        let downgrade = from_https && attempt.url().scheme() != "https";
        if downgrade || attempt.previous().len() > REDIRECTS {
            attempt.stop()
        } else {
            attempt.follow()
        }
    })
}

/// Whether a partial answer goes on exactly where was asked, in a file of the length that was signed for.
fn continues(response: &Response, from: From<'_>) -> bool {
    let header = response.headers().get(CONTENT_RANGE);
    let range = header.and_then(|range| range.to_str().ok());
    range.and_then(content_range).is_some_and(|(start, total)| {
        start == from.byte && total.is_none_or(|total| from.total.is_none_or(|all| all == total))
    })
}

/// The first byte of `bytes 5-9/10`, and the length of the whole unless it is `*`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((start, total))
}

/// What `If-Range` may be asked with: a strong tag, or else the date.
fn tag(response: &Response) -> Option<String> {
    let text = |name| response.headers().get(name)?.to_str().ok();
    text(ETAG)
        .filter(|tag| tag.starts_with('"'))
        .or_else(|| text(LAST_MODIFIED))
        .filter(|tag| tag.len() <= MAX_TAG)
        .map(str::to_owned)
}

/// How long the server asks to be left alone, at most a day: seconds, or a date.
fn retry_after(response: &Response, now: Timestamp) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    wait_of(text, now)
}

fn wait_of(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let then = jiff::fmt::rfc2822::DateTimeParser::new()
                .parse_timestamp(text)
                .ok()?;
            Duration::try_from(then.duration_since(now)).ok()?
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

fn is_encoded(response: &Response) -> bool {
    let encoding = response.headers().get(CONTENT_ENCODING);
    encoding.is_some_and(|encoding| {
        !encoding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"identity")
    })
}

fn is_page(response: &Response) -> bool {
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| {
        kind.trim_start()
            .to_ascii_lowercase()
            .starts_with("text/html")
    })
}

fn unreachable(url: &str, patience: Duration, error: &reqwest::Error) -> TransportError {
    let reason = match () {
        () if error.is_connect() && error.is_timeout() => "connecting took too long".to_owned(),
        () if error.is_timeout() => format!("no answer within {} ms", patience.as_millis()),
        () => cause(error),
    };
    TransportError::Unreachable {
        url: url.to_owned(),
        reason,
    }
}

/// The innermost cause in printable characters. The outer ones repeat the URL with its credentials.
fn cause(error: &reqwest::Error) -> String {
    let Some(mut innermost) = error.source() else {
        return "the request failed".to_owned();
    };
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    text.chars()
        .filter(|c| matches!(c, ' '..='~'))
        .take(160)
        .collect()
}

/// Which metadata file was asked for last; what goes wrong next is about that one.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace(Arc<Mutex<String>>);

impl Trace {
    pub(super) fn last(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn note(&self, name: &str) {
        name.clone_into(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The feed as the TUF client sees it.
#[derive(Debug)]
pub(super) struct MetadataTransport {
    client: Client,
    trace: Trace,
}

impl MetadataTransport {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            trace: Trace::default(),
        }
    }

    pub(super) fn trace(&self) -> Trace {
        self.trace.clone()
    }

    async fn metadata(&self, name: &str, limit: u64) -> sigstore_tuf::Result<Option<Vec<u8>>> {
        self.trace.note(name);
        let at = self
            .client
            .location()
            .metadata(name)
            .map_err(|e| Tuf::transport_with_source("", e))?;
        match self.client.fetch(&at, limit).await {
            // Stores that may not be listed answer so for what is not there; the next root usually is not.
            Err(TransportError::Status { status: 403, .. }) if name.ends_with(".root.json") => {
                Ok(None)
            }
            outcome => outcome.map_err(|e| Tuf::transport_with_source("", e)),
        }
    }

    async fn target(&self, path: &str, limit: u64) -> sigstore_tuf::Result<Option<Vec<u8>>> {
        let at = self
            .client
            .location()
            .target(path)
            .map_err(|e| Tuf::transport_with_source("", e))?;
        self.client
            .fetch(&at, limit)
            .await
            .map_err(|e| Tuf::transport_with_source("", e))
    }
}

impl Repository for MetadataTransport {
    fn fetch_metadata<'a>(&'a self, name: &'a str, max_length: u64) -> FetchFuture<'a> {
        Box::pin(self.metadata(name, max_length))
    }

    fn fetch_target<'a>(&'a self, path: &'a str, max_length: u64) -> FetchFuture<'a> {
        Box::pin(self.target(path, max_length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_or_not_believed() {
        for (text, read) in [
            ("bytes 5-9/10", Some((5, Some(10)))),
            ("bytes 5-9/*", Some((5, None))),
            ("bytes */10", None),
            ("items 5-9/10", None),
            ("bytes 5-9", None),
            ("bytes x-9/10", None),
            ("bytes 5-9/ten", None),
        ] {
            assert_eq!(content_range(text), read, "{text}");
        }
    }

    #[test]
    fn a_wait_is_seconds_or_a_date_and_never_longer_than_a_day() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        for (text, seconds) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("99999999999", Some(86_400)),
            ("Fri, 02 Jan 2026 03:05:05 GMT", Some(60)),
            ("Fri, 02 Jan 2099 03:05:05 GMT", Some(86_400)),
            // Long ago: at once, as if nothing had been asked for.
            ("Thu, 01 Jan 2026 03:05:05 GMT", None),
            ("soon", None),
            ("-5", None),
        ] {
            assert_eq!(
                wait_of(text, now).map(|wait| wait.as_secs()),
                seconds,
                "{text}"
            );
        }
    }
}
