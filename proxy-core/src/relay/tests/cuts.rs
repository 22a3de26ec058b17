//! Any valid exchanges, pipelined and cut at any byte in both directions, arrive as the same bytes as uncut.
//!
//! A failing case prints its seed; `ROLLPROXY_SEED=<n> cargo test -p rollproxy random_exchanges` replays it.

use super::ends::*;
use super::*;

/// xorshift64*: small, seeded, the same everywhere.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }

    fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.roll(choices.len())]
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        // Full of what could be taken for framing.
        const BYTES: &[u8] = b"\r\n0\r\n\r\n:;aF5 \x00\xff\r\n";
        (0..length).map(|_| BYTES[self.roll(BYTES.len())]).collect()
    }

    fn body_length(&mut self) -> usize {
        match self.roll(20) {
            0..4 => 0,
            4 => 70_000 + self.roll(100_000),
            5..8 => 1 + self.roll(5_000),
            _ => 1 + self.roll(200),
        }
    }
}

/// One request and its answer, as they are sent and as they must arrive.
struct Exchange {
    request: Vec<u8>,
    onward: Vec<u8>,
    answer: Vec<u8>,
    back: Vec<u8>,
    /// The upstream's connection ends with this answer.
    closes: bool,
    /// How much of `onward` the upstream reads before it begins to answer.
    early: usize,
}

fn fields(dice: &mut Dice) -> Vec<u8> {
    const LINES: [&[u8]; 10] = [
        b"X-A: 1\r\n",
        b"x-a:2\r\n",
        b"X-Empty:\r\n",
        b"X-Spaces: \t a  b \t\r\n",
        b"X-Octets: \x80\xff\xc3\xbc\r\n",
        b"~odd!name: 0\r\n",
        b"Cookie: a=1; b=2\r\n",
        b"Cookie: c=3\r\n",
        b"X-Looks-Like: chunked\r\n",
        b"X-Length: 5\r\n",
    ];
    (0..dice.roll(6))
        .flat_map(|_| LINES[dice.roll(LINES.len())])
        .copied()
        .collect()
}

fn chunks(dice: &mut Dice, body: &[u8]) -> Vec<u8> {
    let mut framed = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let (piece, further) = rest.split_at(1 + dice.roll(rest.len().min(3_000)));
        rest = further;
        let zeros = "0".repeat(dice.roll(3));
        let size = match dice.one_in(2) {
            true => format!("{zeros}{:x}", piece.len()),
            false => format!("{zeros}{:X}", piece.len()),
        };
        let extension = dice.of(&["", "", ";x", ";x=y", ";x=\"a;b\""]);
        framed.extend_from_slice(format!("{size}{extension}\r\n").as_bytes());
        framed.extend_from_slice(piece);
        framed.extend_from_slice(b"\r\n");
    }
    framed.extend_from_slice(dice.of(&["0", "000", "0;last"]).as_bytes());
    framed.extend_from_slice(
        dice.of(&["\r\n\r\n", "\r\nX-Sum: 1\r\nx-sum:2\r\n\r\n"])
            .as_bytes(),
    );
    framed
}

/// A body and the lines of the head that frame it.
fn framed(dice: &mut Dice) -> (String, Vec<u8>) {
    let length = dice.body_length();
    let body = dice.bytes(length);
    match dice.one_in(2) {
        true => (format!("content-Length: {length}\r\n"), body),
        false => {
            let chunks = chunks(dice, &body);
            ("Transfer-Encoding: chunked\r\n".to_owned(), chunks)
        }
    }
}

impl Exchange {
    fn roll(dice: &mut Dice, ends: &Ends, last: bool) -> Self {
        let method = dice.of(&["GET", "POST", "HEAD", "PUT", "M-SEARCH"]);
        let (head, body) = request(dice, method);
        let onward_head = ends.onward(&head);
        let early = match dice.one_in(3) {
            true => onward_head.len() + dice.roll(body.len() + 1),
            false => onward_head.len() + body.len(),
        };
        let (answer, back, closes) = answer(dice, method, last);
        Self {
            request: [&head[..], &body].concat(),
            onward: [&onward_head[..], &body].concat(),
            answer,
            back,
            closes,
            early,
        }
    }
}

fn request(dice: &mut Dice, method: &str) -> (Vec<u8>, Vec<u8>) {
    let (framing, body) = match dice.one_in(3) {
        true => (String::new(), Vec::new()),
        false => framed(dice),
    };
    let target = dice.of(&["/v1/x", "/v1/a%20b?c=d", "/v1//?"]);
    let expect = dice.of(&["", "", "", "Expect: 100-continue\r\n"]);
    let line = format!("{method} {target} HTTP/1.1\r\n");
    let head = [
        line.as_bytes(),
        &fields(dice),
        b"Host: proxy\r\n",
        expect.as_bytes(),
        framing.as_bytes(),
        &fields(dice),
        b"\r\n",
    ]
    .concat();
    (head, body)
}

/// An answer as the upstream sends it and as the client must get it, and whether its connection ends with it.
fn answer(dice: &mut Dice, method: &str, last: bool) -> (Vec<u8>, Vec<u8>, bool) {
    let mut start = Vec::new();
    for _ in 0..dice.roll(3) {
        let interim = dice.of(&[
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        ]);
        start.extend_from_slice(interim.as_bytes());
    }
    let bodiless = dice.one_in(6);
    let status = match bodiless {
        true => dice.of(&["204 No Content", "304 Not Modified"]),
        false => dice.of(&["200 OK", "200 ", "401 Who  are you", "500 Oh"]),
    };
    start.extend_from_slice(format!("HTTP/1.1 {status}\r\n").as_bytes());
    start.extend_from_slice(&fields(dice));
    let until_close = last && !bodiless && method != "HEAD" && dice.one_in(3);
    let (framing, body) = if bodiless {
        (String::new(), Vec::new())
    } else if until_close {
        let length = dice.body_length();
        (String::new(), dice.bytes(length))
    } else {
        framed(dice)
    };
    let body = if method == "HEAD" { Vec::new() } else { body };
    let end = [framing.as_bytes(), b"\r\n", &body].concat();
    let closes = until_close || dice.one_in(6);
    let close: &[u8] = match closes && !until_close {
        true => b"Connection: close\r\n",
        false => b"",
    };
    (
        [&start[..], close, &end].concat(),
        [&start[..], &end].concat(),
        closes,
    )
}

/// Writes in pieces, with pauses in which the other side may or may not see a piece alone.
async fn write_cut(
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    bytes: &[u8],
    dice: &mut Dice,
) -> std::io::Result<()> {
    let most = [3, 40, 700, 20_000, usize::MAX][dice.roll(5)];
    // A large body in single bytes tells nothing more than a small one.
    let most = if bytes.len() > 20_000 {
        most.max(700)
    } else {
        most
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, further) = rest.split_at(1 + dice.roll(rest.len().min(most)));
        rest = further;
        to.write_all(piece).await?;
        match dice.roll(40) {
            0 => tokio::time::sleep(Duration::from_millis(1)).await,
            1..20 => tokio::task::yield_now().await,
            _ => {}
        }
    }
    Ok(())
}

/// The upstream: takes the exchanges in their order, on whatever connection they come, and compares every byte.
async fn play(ends: &Ends, exchanges: &[Exchange], mut dice: Dice, seed: u64) {
    let mut connection: Option<TcpStream> = None;
    for (number, exchange) in exchanges.iter().enumerate() {
        let mut stream = match connection.take() {
            None => ends.behind.accept().await.unwrap().0,
            // The relay may use the connection again, or not.
            Some(stream) => tokio::select! {
                biased;
                accepted = ends.behind.accept() => accepted.unwrap().0,
                () = has_bytes(&stream) => stream,
            },
        };
        stream.set_nodelay(true).unwrap();
        let mut came = vec![0; exchange.onward.len()];
        let (before, after) = came.split_at_mut(exchange.early);
        let (mut reading, mut writing) = stream.split();
        let read = tokio::io::AsyncReadExt::read_exact(&mut reading, before).await;
        assert!(read.is_ok(), "seed {seed}, request {number}: {read:?}");
        // The end of an answer may end the exchange: it stays back until the whole request is here.
        let (most, last) = exchange.answer.split_at(exchange.answer.len() - 1);
        let (read, written) = tokio::join!(
            tokio::io::AsyncReadExt::read_exact(&mut reading, after),
            write_cut(&mut writing, most, &mut dice)
        );
        assert!(read.is_ok(), "seed {seed}, request {number}: {read:?}");
        assert!(written.is_ok(), "seed {seed}, answer {number}: {written:?}");
        expect_same(&came, &exchange.onward, seed, &format!("request {number}"));
        assert!(
            reading.try_read(&mut [0]).is_err(),
            "seed {seed}, request {number}: more than it"
        );
        writing.write_all(last).await.unwrap();
        if exchange.closes {
            stream.shutdown().await.unwrap();
        } else {
            connection = Some(stream);
        }
    }
}

async fn has_bytes(stream: &TcpStream) {
    let closed = stream.peek(&mut [0]).await.unwrap_or(0) == 0;
    if closed {
        std::future::pending::<()>().await;
    }
}

#[track_caller]
fn expect_same(came: &[u8], wanted: &[u8], seed: u64, what: &str) {
    let differs = came
        .iter()
        .zip(wanted)
        .position(|(one, other)| one != other);
    let at = match differs {
        None if came.len() == wanted.len() => return,
        None => came.len().min(wanted.len()),
        Some(at) => at,
    };
    let around = |bytes: &[u8]| {
        shown(&bytes[at.saturating_sub(200).min(bytes.len())..(at + 100).min(bytes.len())])
    };
    panic!(
        "seed {seed}, {what}, byte {at} of {} (came: {}):\nwanted {}\n  came {}",
        wanted.len(),
        came.len(),
        around(wanted),
        around(came)
    );
}

/// What came without the line that a relay may add to an answer that ends with its connection.
fn without_close(came: Vec<u8>, last_from: usize) -> Vec<u8> {
    const LINE: &[u8] = b"\r\nconnection: close\r\n";
    let last = &came[last_from.min(came.len())..];
    let found = last
        .windows(LINE.len())
        .position(|part| part.eq_ignore_ascii_case(LINE));
    match found {
        None => came,
        Some(at) => {
            let at = last_from + at;
            [&came[..at], &came[at + LINE.len() - 2..]].concat()
        }
    }
}

async fn run(ends: &Ends, seed: u64) {
    let mut dice = Dice::new(seed);
    let number = 1 + dice.roll(6);
    let exchanges: Vec<Exchange> = (1..=number)
        .map(|index| Exchange::roll(&mut dice, ends, index == number))
        .collect();
    let requests: Vec<u8> = exchanges
        .iter()
        .flat_map(|one| one.request.clone())
        .collect();
    let answers: Vec<u8> = exchanges.iter().flat_map(|one| one.back.clone()).collect();
    let last_from = answers.len() - exchanges[number - 1].back.len();
    let (mut up, down) = (Dice::new(seed + 1), Dice::new(seed + 2));

    let client = ends.client().await;
    let (mut reading, mut writing) = client.stream.into_split();
    let mut came = Vec::new();
    let exchange = async {
        let sending = async {
            let written = write_cut(&mut writing, &requests, &mut up).await;
            assert!(written.is_ok(), "seed {seed}: {written:?}");
            // Half closed in half of the cases: nothing may depend on it.
            if dice.one_in(2) {
                writing.shutdown().await.unwrap();
                std::future::pending::<()>().await;
            }
            std::future::pending::<()>().await;
        };
        let receiving = async {
            let mut buffer = vec![0; 64 << 10];
            while came.len() < answers.len() {
                match tokio::io::AsyncReadExt::read(&mut reading, &mut buffer).await {
                    Ok(0) => break,
                    Ok(length) => came.extend_from_slice(&buffer[..length]),
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        };
        tokio::select! {
            () = async { tokio::join!(receiving, play(ends, &exchanges, down, seed)); } => {}
            () = sending => {}
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), exchange).await;
    let came = without_close(came, last_from);
    // Whatever came tells most about what went wrong: it is compared before the clock is.
    let length = came.len().min(answers.len());
    expect_same(&came[..length], &answers[..length], seed, "the answers");
    assert!(ended.is_ok(), "seed {seed}: no end after {length} bytes");
}

#[tokio::test]
async fn random_exchanges_arrive_as_they_were_sent_wherever_they_are_cut() {
    let ends = Ends::start().await;
    if let Ok(seed) = std::env::var("ROLLPROXY_SEED") {
        run(&ends, seed.parse().unwrap()).await;
        return;
    }
    for seed in 1..=400 {
        run(&ends, seed).await;
    }
}

#[tokio::test]
async fn one_exchange_cut_at_each_of_its_bytes_arrives_as_it_was_sent() {
    let ends = Ends::start().await;
    let request = "POST /v1/x HTTP/1.1\r\nX-A: \t1 \r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n\
        00B;x=\"y\"\r\nhello world\r\n1\r\n\r\r\n0\r\nX-Sum: 1\r\n\r\n";
    let answer = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 Fine  so\r\nX-B:2\r\nTransfer-Encoding: chunked\r\n\r\n\
        A;x\r\n0123456789\r\n1\r\n\n\r\n000\r\nX-Sum: 1\r\n\r\n";
    let mut client = ends.client().await;
    let mut upstream = None;
    let onward = ends.onward(request);
    for cut in 1..request.len().max(answer.len()) {
        let (before, after) = request.split_at(cut.min(request.len()));
        client.send(before).await;
        settle(&ends).await;
        client.send(after).await;
        let known = match &mut upstream {
            Some(known) => known,
            unknown => unknown.insert(ends.upstream().await),
        };
        known.expect(&onward).await;
        let (before, after) = answer.split_at(cut.min(answer.len()));
        known.send(before).await;
        settle(&ends).await;
        known.send(after).await;
        client.expect(answer).await;
    }
    client.expect_silence().await;
}

/// A moment in which a relay thread that has something to do does it.
async fn settle(ends: &Ends) {
    // It answers its own pages on the one thread that also serves the cut connection: after this one.
    let mut other = ends.client().await;
    other.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!(other.answer().await.0, 200);
}
