//! What travels, the same bytes for everybody: requests, answers and events of fixed length, made once, with places for
//! numbers, so that both ends can check every byte and spend next to nothing on it.

use std::sync::OnceLock;

/// Bytes of a request's and of an answer's body.
pub const BODY: usize = 512;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// An answer, on a connection that stays.
    Answer,
    /// An answer, on a connection that ends with it.
    LastAnswer,
    /// Events until the client leaves.
    Stream,
}

/// Bytes with a place for a number of eight hexadecimal digits.
#[derive(Clone)]
struct Form {
    bytes: Vec<u8>,
    number_at: usize,
}

impl Form {
    /// The place is the first run of eight zeros.
    fn new(bytes: Vec<u8>) -> Self {
        let number_at = bytes.windows(8).position(|at| at == b"00000000").unwrap();
        Self { bytes, number_at }
    }

    fn number(&mut self, number: u32) -> &[u8] {
        put_hex(number.into(), &mut self.bytes[self.number_at..][..8]);
        &self.bytes
    }

    /// The number in `bytes`, if all the rest is as it should be.
    fn read(&self, bytes: &[u8]) -> Option<u32> {
        let (from, to) = (self.number_at, self.number_at + 8);
        let same = bytes.len() == self.bytes.len()
            && bytes[..from] == self.bytes[..from]
            && bytes[to..] == self.bytes[to..];
        same.then(|| hex(&bytes[from..to]))?
            .and_then(|number| u32::try_from(number).ok())
    }
}

/// A whole request.
pub struct Request(Form);

impl Request {
    /// As a client of the API sends it to `host`.
    pub fn new(host: &str, want: Want) -> Self {
        let close = match want {
            Want::LastAnswer => "Connection: close\r\n",
            Want::Answer | Want::Stream => "",
        };
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nHost: {host}\r\nUser-Agent: serving-bench/1\r\nAccept: */*\r\n\
             Content-Type: application/json\r\nanthropic-version: 2023-06-01\r\nx-api-key: none-needed\r\n\
             {close}Content-Length: {BODY}\r\n\r\n"
        );
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&request_body(want == Want::Stream).bytes);
        Self(Form::new(bytes))
    }

    /// With its number.
    pub fn numbered(&mut self, number: u32) -> &[u8] {
        self.0.number(number)
    }
}

/// Whether events are asked for, and the request's number; nothing if a byte of the body is not as it was sent.
pub fn read_request_body(body: &[u8]) -> Option<(bool, u32)> {
    static FORMS: OnceLock<[Form; 2]> = OnceLock::new();
    let [answer, stream] = FORMS.get_or_init(|| [request_body(false), request_body(true)]);
    let read = |form: &Form, wants| Some((wants, form.read(body)?));
    read(answer, false).or_else(|| read(stream, true))
}

fn request_body(stream: bool) -> Form {
    let word = if stream { "true " } else { "false" };
    filled(&format!(
        r#"{{"stream":{word},"id":"00000000","model":"bench","messages":[{{"role":"user","content":""#
    ))
}

/// A whole answer of the upstream.
pub struct Answer {
    keep: Form,
    close: Form,
}

impl Answer {
    pub fn new() -> Self {
        let whole = |close: &str| {
            let mut bytes = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nrequest-id: req_bench\r\n\
                 {close}content-length: {BODY}\r\n\r\n"
            )
            .into_bytes();
            bytes.extend_from_slice(&answer_body().bytes);
            Form::new(bytes)
        };
        Self {
            keep: whole(""),
            close: whole("connection: close\r\n"),
        }
    }

    /// To the request of that number.
    pub fn to(&mut self, number: u32, last: bool) -> &[u8] {
        let form = if last {
            &mut self.close
        } else {
            &mut self.keep
        };
        form.number(number)
    }
}

/// The number in an answer's body; nothing if a byte of it is not as it was sent.
pub fn read_answer_body(body: &[u8]) -> Option<u32> {
    static FORM: OnceLock<Form> = OnceLock::new();
    FORM.get_or_init(answer_body).read(body)
}

fn answer_body() -> Form {
    filled(
        r#"{"id":"00000000","type":"message","role":"assistant","content":[{"type":"text","text":""#,
    )
}

/// `start`, then text, then what closes three brackets, [`BODY`] bytes together.
fn filled(start: &str) -> Form {
    const END: &str = "\"}]}";
    let text = "words ".bytes().cycle();
    let mut bytes = start.as_bytes().to_vec();
    bytes.extend(text.take(BODY - start.len() - END.len()));
    bytes.extend_from_slice(END.as_bytes());
    Form::new(bytes)
}

/// The head of an event stream.
pub const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
    cache-control: no-cache\r\nrequest-id: req_bench\r\ntransfer-encoding: chunked\r\n\r\n";

const EVENT: &[u8] =
    b"event: content_block_delta\ndata: {\"stream\":\"SSSSSSSS\",\"n\":\"NNNNNNNN\",\
    \"at\":\"AAAAAAAAAAAAAAAA\",\"text\":\"some words\"}\n\n";
/// Bytes of an event.
pub const EVENT_LENGTH: usize = EVENT.len();
const STREAM_AT: usize = place(b'S', 8);
const NUMBER_AT: usize = place(b'N', 8);
const TIME_AT: usize = place(b'A', 16);

/// Where so many of one letter stand.
const fn place(letter: u8, many: usize) -> usize {
    let (mut at, mut run) = (0, 0);
    while run < many {
        run = if EVENT[at] == letter { run + 1 } else { 0 };
        at += 1;
    }
    at - many
}

/// One event, framed as a chunk.
pub struct Event(Vec<u8>, usize);

impl Event {
    pub fn new() -> Self {
        let mut bytes = format!("{EVENT_LENGTH:x}\r\n").into_bytes();
        let start = bytes.len();
        bytes.extend_from_slice(EVENT);
        bytes.extend_from_slice(b"\r\n");
        Self(bytes, start)
    }

    /// The event of that number in that stream, sent now.
    pub fn chunk(&mut self, stream: u32, number: u32) -> &[u8] {
        let event = &mut self.0[self.1..];
        put_hex(stream.into(), &mut event[STREAM_AT..][..8]);
        put_hex(number.into(), &mut event[NUMBER_AT..][..8]);
        put_hex(now(), &mut event[TIME_AT..][..16]);
        &self.0
    }
}

/// When an event was sent; nothing if it is not the one of that number in that stream.
pub fn read_event(bytes: &[u8], stream: u32, number: u32) -> Option<u64> {
    let is = |range: std::ops::Range<usize>| bytes[range.clone()] == EVENT[range];
    let right = bytes.len() == EVENT_LENGTH
        && is(0..STREAM_AT)
        && is(STREAM_AT + 8..NUMBER_AT)
        && is(NUMBER_AT + 8..TIME_AT)
        && is(TIME_AT + 16..EVENT_LENGTH)
        && hex(&bytes[STREAM_AT..][..8]) == Some(stream.into())
        && hex(&bytes[NUMBER_AT..][..8]) == Some(number.into());
    right.then(|| hex(&bytes[TIME_AT..][..16]))?
}

/// Nanoseconds of the machine's monotonic clock: the same in every process.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

fn put_hex(number: u64, into: &mut [u8]) {
    let mut left = number;
    for digit in into.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(left & 15) as usize];
        left >>= 4;
    }
}

fn hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number: u64, digit| {
        Some(number << 4 | u64::from((*digit as char).to_digit(16)?))
    })
}
