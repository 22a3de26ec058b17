//! TLS towards upstreams; set up at its first use, so that a worker without `https` upstreams pays nothing.

use std::sync::{Arc, OnceLock};

use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, crypto};

/// One configuration, and so one session cache, for all threads.
#[derive(Clone, Default)]
pub(super) struct Tls {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Authorities that are trusted beside the machine's own.
    extra: Vec<CertificateDer<'static>>,
    connector: OnceLock<Result<TlsConnector, String>>,
}

impl Tls {
    /// Trusts these authorities, too.
    #[cfg(test)]
    pub(super) fn trusting(extra: Vec<CertificateDer<'static>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                extra,
                connector: OnceLock::new(),
            }),
        }
    }

    /// Shakes hands; the certificate must be the host's and be signed by an authority that this machine trusts.
    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, String> {
        let Shared { extra, connector } = &*self.shared;
        let connector = connector
            .get_or_init(|| build(extra))
            .as_ref()
            .map_err(Clone::clone)?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        connector
            .connect(name, stream)
            .await
            .map_err(|error| error.to_string())
    }
}

fn build(extra: &[CertificateDer<'static>]) -> Result<TlsConnector, String> {
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
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
