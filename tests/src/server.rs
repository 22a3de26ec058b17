//! A file server on loopback: honest by default, with tricks for tests.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What is done to paths that contain a given text.
#[derive(Debug, Clone)]
pub enum Trick {
    /// Only so many bytes of the body, then the connection is closed.
    CutAfter(usize),
    /// So many bytes of the body, then nothing, while the connection stays open.
    StallAfter(usize),
    /// So many bytes of the body; the rest once somebody lets it go on.
    HoldAfter(usize, Arc<tokio::sync::Notify>),
    /// The body in small pieces with a pause after each.
    Drip(usize, Duration),
    /// Another body with status 200.
    Replace(Vec<u8>),
    /// Another status, without a body.
    Status(u16),
}

/// Serves a folder until dropped.
pub struct FileServer {
    address: SocketAddr,
    tricks: Arc<Mutex<HashMap<String, Trick>>>,
    seen: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl FileServer {
    /// Serves `root` on a free port.
    pub async fn start(root: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tricks: Arc<Mutex<HashMap<String, Trick>>> = Arc::default();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (root, for_task, log) = (root.to_owned(), tricks.clone(), seen.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, root.clone(), for_task.clone(), log.clone()));
            }
        });
        Self {
            address,
            tricks,
            seen,
            task,
        }
    }

    /// Its URL, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on paths that contain `part` are tricked.
    pub fn trick(&self, part: &str, trick: Trick) {
        self.tricks.lock().unwrap().insert(part.to_owned(), trick);
    }

    /// Honest again.
    pub fn honest(&self) {
        self.tricks.lock().unwrap().clear();
    }

    /// The paths that were asked for so far.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    root: PathBuf,
    tricks: Arc<Mutex<HashMap<String, Trick>>>,
    seen: Arc<Mutex<Vec<String>>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let path = text.split(' ').nth(1).unwrap_or("/").to_owned();
    seen.lock().unwrap().push(path.clone());
    let trick = {
        let tricks = tricks.lock().unwrap();
        tricks
            .iter()
            .find(|(part, _)| path.contains(part.as_str()))
            .map(|(_, trick)| trick.clone())
    };
    // The client may leave at any time: that is what some tests are about.
    let _ = answer(&mut stream, &root, &path, range(&text), trick).await;
}

/// The first byte of a `Range: bytes=N-` request.
fn range(head: &str) -> Option<usize> {
    let line = head
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with("range:"))?;
    line.split_once("bytes=")?
        .1
        .trim_end_matches('-')
        .trim()
        .parse()
        .ok()
}

async fn answer(
    stream: &mut TcpStream,
    root: &Path,
    path: &str,
    range: Option<usize>,
    trick: Option<Trick>,
) -> std::io::Result<()> {
    let file = root.join(path.trim_start_matches('/'));
    let body = match (&trick, std::fs::read(file)) {
        (Some(Trick::Status(status)), _) => {
            return head(stream, &format!("{status} Tricked"), 0, "").await;
        }
        (Some(Trick::Replace(body)), _) => body.clone(),
        (_, Ok(body)) => body,
        (_, Err(_)) => return head(stream, "404 Not Found", 0, "").await,
    };
    let total = body.len();
    let body = match range {
        Some(from) if from < total => {
            let field = format!("content-range: bytes {from}-{}/{total}\r\n", total - 1);
            head(stream, "206 Partial Content", total - from, &field).await?;
            body[from..].to_vec()
        }
        _ => {
            head(stream, "200 OK", total, "").await?;
            body
        }
    };
    match trick {
        Some(Trick::CutAfter(bytes)) => stream.write_all(&body[..bytes.min(body.len())]).await,
        Some(Trick::StallAfter(bytes)) => {
            stream.write_all(&body[..bytes.min(body.len())]).await?;
            // Until the client leaves.
            let _ = stream.read_u8().await;
            Ok(())
        }
        Some(Trick::HoldAfter(bytes, go_on)) => {
            let (first, rest) = body.split_at(bytes.min(body.len()));
            stream.write_all(first).await?;
            go_on.notified().await;
            stream.write_all(rest).await
        }
        Some(Trick::Drip(bytes, pause)) => {
            for piece in body.chunks(bytes) {
                stream.write_all(piece).await?;
                tokio::time::sleep(pause).await;
            }
            Ok(())
        }
        _ => stream.write_all(&body).await,
    }
}

async fn head(
    stream: &mut TcpStream,
    status: &str,
    length: usize,
    more: &str,
) -> std::io::Result<()> {
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).await
}
