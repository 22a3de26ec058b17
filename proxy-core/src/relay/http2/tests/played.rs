//! An HTTP/2 upstream that the test plays, request by request.

use h2::server::{Builder, SendResponse};
use tokio::sync::{Notify, mpsc};

use super::*;

/// Its requests come to the test, which answers or does not.
pub(super) struct Played {
    pub(super) address: SocketAddr,
    pub(super) connections: Rc<Cell<usize>>,
    /// Connections that are open now.
    pub(super) open: Rc<Cell<usize>>,
    /// Makes every connection say GOAWAY.
    pub(super) goaway: Rc<Notify>,
    requests: mpsc::UnboundedReceiver<Asked>,
}

/// One request, and the means to answer it.
pub(super) struct Asked {
    /// The number of its connection, from one.
    pub(super) connection: usize,
    pub(super) head: http::request::Parts,
    pub(super) body: RecvStream,
    pub(super) respond: SendResponse<Bytes>,
}

impl Played {
    pub(super) async fn start() -> Self {
        Self::start_with(Builder::new()).await
    }

    pub(super) async fn start_with(builder: Builder) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let played = Self {
            address,
            connections: Rc::default(),
            open: Rc::default(),
            goaway: Rc::default(),
            requests,
        };
        let (connections, open) = (Rc::clone(&played.connections), Rc::clone(&played.open));
        let goaway = Rc::clone(&played.goaway);
        tokio::task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                connections.set(connections.get() + 1);
                let number = connections.get();
                let (builder, sender) = (builder.clone(), sender.clone());
                let (open, goaway) = (Rc::clone(&open), Rc::clone(&goaway));
                tokio::task::spawn_local(async move {
                    open.set(open.get() + 1);
                    serve_one(stream, &builder, &goaway, number, &sender).await;
                    open.set(open.get() - 1);
                });
            }
        });
        played
    }

    /// How a front reaches it.
    pub(super) fn config(&self) -> UpstreamConfig {
        UpstreamConfig {
            http2: true,
            ..UpstreamConfig::new(format!("http://{}", self.address))
        }
    }

    pub(super) async fn front(&self) -> Front {
        Front::with(self.config(), |_| {}).await
    }

    pub(super) async fn next(&mut self) -> Asked {
        soon(self.requests.recv()).await.unwrap()
    }

    pub(super) fn has_next(&mut self) -> bool {
        !self.requests.is_empty()
    }
}

async fn serve_one(
    stream: TcpStream,
    builder: &Builder,
    goaway: &Notify,
    number: usize,
    sender: &mpsc::UnboundedSender<Asked>,
) {
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    loop {
        tokio::select! {
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                let (head, body) = request.into_parts();
                let asked = Asked { connection: number, head, body, respond };
                if sender.send(asked).is_err() {
                    return;
                }
            }
            () = goaway.notified() => connection.graceful_shutdown(),
        }
    }
}

impl Asked {
    /// Answers with this head and what the test will send.
    pub(super) fn answer(&mut self) -> h2::SendStream<Bytes> {
        self.respond
            .send_response(Response::new(()), false)
            .unwrap()
    }

    pub(super) async fn answer_whole(mut self) {
        read(&mut self.body).await.unwrap();
        let mut stream = self.answer();
        stream
            .send_data(Bytes::from_static(b"whole"), true)
            .unwrap();
    }

    /// Waits for the stream to be reset, and says with what; `down` is the answer's body, once there is one.
    pub(super) async fn reset(&mut self, down: Option<&mut h2::SendStream<Bytes>>) -> h2::Reason {
        let reset = match down {
            Some(down) => soon(std::future::poll_fn(|cx| down.poll_reset(cx))).await,
            None => soon(std::future::poll_fn(|cx| self.respond.poll_reset(cx))).await,
        };
        reset.unwrap()
    }
}
