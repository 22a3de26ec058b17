//! A small HTTP server for a folder, that can be told to misbehave.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub path: String,
    /// The start of the range asked for.
    pub range: Option<u64>,
    pub authorization: Option<String>,
    pub if_range: Option<String>,
    /// All of it, as it came.
    pub head: String,
}

/// What is answered.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Send the body without announcing its length.
    pub unannounced: bool,
    /// Send the head and this many bytes of the body, then wait until the client is gone.
    pub stall_after: Option<usize>,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            body: body.into(),
            ..Self::default()
        }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

type Special = dyn Fn(&Request) -> Option<Reply> + Send + Sync;

/// Serves until dropped.
pub struct Server {
    pub url: String,
    seen: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Serves a folder as any static file server does.
    pub async fn of(folder: impl Into<PathBuf>) -> Self {
        Self::with(folder, |_| None).await
    }

    /// Serves a folder, but for requests that `special` answers itself.
    pub async fn with(
        folder: impl Into<PathBuf>,
        special: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (folder, special, log) = (folder.into(), Arc::new(special), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (folder, special, log) =
                    (folder.clone(), Arc::clone(&special), Arc::clone(&log));
                tokio::spawn(async move {
                    let _ = serve(stream, folder, &*special, &log).await;
                });
            }
        });
        Self { url, seen, task }
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    folder: PathBuf,
    special: &Special,
    log: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let request = parse(&String::from_utf8_lossy(&head));
    log.lock().unwrap().push(request.clone());
    let reply = special(&request).unwrap_or_else(|| from_folder(&folder, &request));
    send(&mut stream, reply).await
}

async fn send(stream: &mut TcpStream, reply: Reply) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let announced = reply
        .headers
        .iter()
        .any(|(name, _)| *name == "Content-Length");
    if !reply.unannounced && !announced {
        head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    if let Some(count) = reply.stall_after {
        stream.write_all(&reply.body[..count]).await?;
        // Ends when the client closes its side.
        return stream.read_u8().await.map(drop);
    }
    stream.write_all(&reply.body).await?;
    stream.shutdown().await
}

fn parse(head: &str) -> Request {
    let header = |name: &str| {
        head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name)
                .then(|| value.trim().to_owned())
        })
    };
    Request {
        path: head.split(' ').nth(1).unwrap_or_default().to_owned(),
        range: header("range").and_then(|range| {
            range
                .strip_prefix("bytes=")?
                .strip_suffix('-')?
                .parse()
                .ok()
        }),
        authorization: header("authorization"),
        if_range: header("if-range"),
        head: head.to_owned(),
    }
}

fn from_folder(folder: &std::path::Path, request: &Request) -> Reply {
    let Ok(bytes) = std::fs::read(folder.join(request.path.trim_start_matches('/'))) else {
        return Reply::new(404, "<html>no such file").header("Content-Type", "text/html");
    };
    match request.range {
        Some(from) if (from as usize) < bytes.len() => Reply::new(206, &bytes[from as usize..])
            .header(
                "Content-Range",
                format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len()),
            ),
        Some(_) => Reply::new(416, ""),
        None => Reply::new(200, bytes),
    }
}
