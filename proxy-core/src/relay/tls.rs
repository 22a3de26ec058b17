//! TLS towards upstreams; set up at its first use, so that a worker without `https` upstreams pays nothing.

use std::sync::{Arc, OnceLock};

use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, crypto};

/// One configuration, and so one session cache, for all threads.
#[derive(Clone, Default)]
pub(super) struct Tls {
    connector: Arc<OnceLock<Result<TlsConnector, String>>>,
}

impl Tls {
    /// Shakes hands; the certificate must be the host's and be signed by one that this machine trusts.
    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, String> {
        let connector = self
            .connector
            .get_or_init(build)
            .as_ref()
            .map_err(Clone::clone)?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        connector
            .connect(name, stream)
            .await
            .map_err(|error| error.to_string())
    }
}

fn build() -> Result<TlsConnector, String> {
    let config =
        ClientConfig::builder_with_provider(Arc::new(crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(BuilderVerifierExt::with_platform_verifier)
            .map_err(|error| error.to_string())?;
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
