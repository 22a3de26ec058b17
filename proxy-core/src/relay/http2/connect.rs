//! A connection to an upstream, encrypted where its address says so.

use std::io;

use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::super::tls::{NoHttp2, Tls};
use super::wants_http2;
use crate::gateway::Target;
use crate::gateway::answers::Failure;

pub(super) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Why there is no connection: what the client is told, and what the log says.
pub(super) type Refused = (Failure, String);

/// Connects; on an encrypted connection the protocol is agreed on.
pub(super) async fn connect(tls: &Tls, target: &Target) -> Result<Stream, Refused> {
    let failed = |error: io::Error| (failure_of(&error), error.to_string());
    let stream = TcpStream::connect((target.host(), target.port()))
        .await
        .map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    if !target.is_tls() {
        return Ok(Either::Left(stream));
    }
    let host = target.host();
    let encrypted = match wants_http2(target) {
        false => tls
            .connect(host, stream)
            .await
            .map_err(|cause| (Failure::Unreachable, cause))?,
        true => match tls.connect_http2(host, stream).await {
            Ok(stream) => stream,
            Err(NoHttp2::Failed(cause)) => return Err((Failure::Unreachable, cause)),
            Err(NoHttp2::NotSpoken) => {
                let cause = "the upstream did not choose h2 in the TLS handshake";
                return Err((Failure::NoHttp2, cause.to_owned()));
            }
        },
    };
    Ok(Either::Right(Box::new(encrypted)))
}

/// Descriptors are ours: an upstream is not to blame for a limit of this process or host.
fn failure_of(error: &io::Error) -> Failure {
    const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();
    const ENFILE: i32 = rustix::io::Errno::NFILE.raw_os_error();
    match error.raw_os_error() {
        Some(EMFILE | ENFILE) => Failure::NoDescriptors,
        _ => Failure::Unreachable,
    }
}
