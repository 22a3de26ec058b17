//! HTTPS: whose certificates are believed, and what is said about the others.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;

/// The certificates of the tests: an authority, and one of `localhost` that it signed.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/tls")
        .join(name)
}

/// Serves the files of `folder` over TLS until the test ends; says on which port.
async fn serve(folder: PathBuf) -> u16 {
    let chain = vec![CertificateDer::from_pem_file(fixture("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let (acceptor, listener) = (
        TlsAcceptor::from(Arc::new(config)),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    );
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, folder) = (acceptor.clone(), folder.clone());
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.ok()?;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.ok()?);
                }
                let head = String::from_utf8(head).ok()?;
                let path = head.split(' ').nth(1)?.trim_start_matches('/').to_owned();
                let (status, body) = match std::fs::read(folder.join(path)) {
                    Ok(body) => (200, body),
                    Err(_) => (404, Vec::new()),
                };
                let head = format!(
                    "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await.ok()?;
                stream.write_all(&body).await.ok()?;
                stream.shutdown().await.ok()
            });
        }
    });
    port
}

async fn refresh(world: &World, url: &str, ca_file: Option<PathBuf>) -> Result<Feed, FeedError> {
    let settings = FeedSettings::new(url)?.with_ca_file(ca_file)?;
    let mut feed = Feed::open(&settings, &world.home)?;
    feed.refresh(world.now).await?;
    Ok(feed)
}

#[tokio::test]
async fn a_feed_under_an_authority_of_ones_own_is_read_with_its_certificate() {
    let world = World::with_release(b"archive").await;
    let port = serve(world.place.feed.clone()).await;
    let url = format!("https://localhost:{port}/");
    let mut feed = refresh(&world, &url, Some(fixture("ca.pem")))
        .await
        .unwrap();
    let release = feed
        .release("stable", staging::TARGET)
        .await
        .unwrap()
        .unwrap();
    let done = feed
        .downloader()
        .download(
            &release.wanted(),
            &world.home.downloads(),
            PATIENCE,
            &mut |_| {},
            None,
        )
        .await
        .unwrap();
    assert_eq!(std::fs::read(done.path).unwrap(), b"archive");
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_or_of_another_name_is_refused() {
    let world = World::with_release(b"archive").await;
    let port = serve(world.place.feed.clone()).await;
    for (host, ca_file) in [("localhost", None), ("127.0.0.1", Some(fixture("ca.pem")))] {
        let url = format!("https://ann:s3cret@{host}:{port}/");
        let error = refresh(&world, &url, ca_file).await.unwrap_err();
        // Somebody between may be gone tomorrow: it is tried again, and never believed.
        assert_eq!(
            (error.code(), error.retry()),
            ("FEED_UNREACHABLE", true),
            "{error}"
        );
        assert!(error.to_string().contains("certificate"), "{error}");
        assert!(
            !format!("{error} {error:?}").contains("s3cret"),
            "{error:?}"
        );
    }
    assert_eq!(Feed::cached(&world.home).unwrap().timestamp, None);
}

#[tokio::test]
async fn what_does_not_speak_tls_is_said_to_be_out_of_reach() {
    let world = World::with_release(b"archive").await;
    let plain = super::server::Server::of(&world.place.feed).await;
    let url = plain.url.replace("http://", "https://");
    let error = refresh(&world, &url, Some(fixture("ca.pem")))
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), error.retry()),
        ("FEED_UNREACHABLE", true),
        "{error}"
    );
}
