//! TLS towards upstreams; set up at its first use, so that a worker without `https` upstreams pays nothing.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, AlertDescription, ClientConfig, crypto};

/// One configuration, and so one session cache, for all threads.
#[derive(Clone, Default)]
pub(super) struct Tls {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Authorities that are trusted beside the machine's own.
    extra: Vec<CertificateDer<'static>>,
    connectors: OnceLock<Result<Connectors, String>>,
}

/// One a protocol that is offered (ALPN); the verifier and the session cache are the same.
struct Connectors {
    http1: TlsConnector,
    http2: TlsConnector,
}

/// Why there is no encrypted connection that speaks HTTP/2.
pub(super) enum NoHttp2 {
    /// The handshake failed.
    Failed(String),
    /// The upstream chose another protocol, or none.
    NotSpoken,
}

impl Tls {
    /// Trusts these authorities, too.
    #[cfg(test)]
    pub(super) fn trusting(extra: Vec<CertificateDer<'static>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                extra,
                connectors: OnceLock::new(),
            }),
        }
    }

    /// Shakes hands; the certificate must be the host's and be signed by an authority that this machine trusts.
    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, String> {
        let connector = &self.connectors()?.http1;
        let name = server_name(host)?;
        connector
            .connect(name, stream)
            .await
            .map_err(|error| error.to_string())
    }

    /// As [`Tls::connect`], for HTTP/2 and nothing else.
    pub(super) async fn connect_http2(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, NoHttp2> {
        let connector = &self.connectors().map_err(NoHttp2::Failed)?.http2;
        let name = server_name(host).map_err(NoHttp2::Failed)?;
        match connector.connect(name, stream).await {
            Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => Ok(stream),
            Ok(_other) => Err(NoHttp2::NotSpoken),
            Err(error) if is_refused_protocol(&error) => Err(NoHttp2::NotSpoken),
            Err(error) => Err(NoHttp2::Failed(error.to_string())),
        }
    }

    fn connectors(&self) -> Result<&Connectors, String> {
        let Shared { extra, connectors } = &*self.shared;
        connectors
            .get_or_init(|| build(extra))
            .as_ref()
            .map_err(Clone::clone)
    }
}

fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())
}

/// Whether the upstream's own word was that it knows none of the protocols offered.
fn is_refused_protocol(error: &io::Error) -> bool {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(
        inner,
        Some(rustls::Error::AlertReceived(
            AlertDescription::NoApplicationProtocol
        ))
    )
}

fn build(extra: &[CertificateDer<'static>]) -> Result<Connectors, String> {
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let verifier = Verifier::new_with_extra_roots(extra.iter().cloned(), Arc::clone(&provider))
        .map_err(|error| error.to_string())?;
    // "Dangerous" is any verifier but rustls' own; this one is the platform's.
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let mut http2 = config.clone();
    http2.alpn_protocols = vec![b"h2".to_vec()];
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Connectors {
        http1: TlsConnector::from(Arc::new(config)),
        http2: TlsConnector::from(Arc::new(http2)),
    })
}
