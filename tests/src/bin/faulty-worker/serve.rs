//! Serving a connection: short answers, one or one after the other.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

/// What becomes of connections between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    Keep,
    GiveBack,
    Close,
}

/// What a connection tells the main loop.
pub enum News {
    /// A request was answered, with our own 503 or well.
    Answered { failed: bool },
    /// Between two requests it was let go.
    LetGo(OwnedFd),
}

/// What all connections share.
#[derive(Clone)]
pub struct Service {
    /// Without it, a connection ends with its first answer.
    pub keep_alive: bool,
    /// Every how many requests one is answered 503; zero is never.
    pub fails_every: u64,
    pub idle: watch::Receiver<Idle>,
    pub news: mpsc::UnboundedSender<News>,
    /// Requests that began.
    pub begun: Arc<AtomicU64>,
}

impl Service {
    /// Serves one connection to its end.
    pub async fn serve(mut self, socket: OwnedFd) {
        let Ok(mut stream) = TcpStream::from_std(std::net::TcpStream::from(socket)) else {
            return;
        };
        loop {
            match self.next(&stream).await {
                Idle::Keep => {}
                Idle::Close => return,
                Idle::GiveBack => {
                    if let Ok(socket) = stream.into_std() {
                        let _ = self.news.send(News::LetGo(socket.into()));
                    }
                    return;
                }
            }
            if self.answer(&mut stream).await.is_err() || !self.keep_alive {
                return;
            }
        }
    }

    /// Waits for the first byte of a request, which is not read, or for what is to become of the connection without it.
    async fn next(&mut self, stream: &TcpStream) -> Idle {
        if !self.keep_alive {
            return Idle::Keep;
        }
        let mut byte = [0];
        tokio::select! {
            biased;
            came = stream.peek(&mut byte) => match came {
                Ok(1..) => Idle::Keep,
                _ => Idle::Close,
            },
            told = self.idle.wait_for(|idle| *idle != Idle::Keep) => told.map_or(Idle::Close, |idle| *idle),
        }
    }

    async fn answer(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        tokio::io::copy(
            &mut (&mut *stream).take(length.unwrap_or(0)),
            &mut tokio::io::sink(),
        )
        .await?;
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let failed = self.fails_every != 0 && number.is_multiple_of(self.fails_every);
        let status = if failed { "503 Broken" } else { "200 OK" };
        let close = if self.keep_alive {
            ""
        } else {
            "connection: close\r\n"
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 6\r\n{close}\r\nfaulty");
        let written = stream.write_all(answer.as_bytes()).await;
        let _ = self.news.send(News::Answered { failed });
        written
    }
}
