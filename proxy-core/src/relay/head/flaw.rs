//! What can be wrong with a head, said in one sentence that never repeats what was sent.

/// What can be wrong with the lines of any head, of a request or of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// No end within [`super::HEAD_LIMIT`].
    #[error("the head is larger than 64 KiB")]
    TooLarge,
    /// More than [`super::FIELD_LIMIT`].
    #[error("the head has more than 256 fields")]
    TooManyFields,
    /// A line feed without its carriage return.
    #[error("a line of the head does not end in CR LF")]
    LineEnding,
    /// A name that is no token, a space before the colon, a folded line, a control character.
    #[error("a field of the head is malformed")]
    Field,
    /// A name that some servers take for one of the fields that say where a body ends.
    #[error("a field's name is a misspelled Content-Length or Transfer-Encoding")]
    Misspelled,
    /// Legal around any value, and read differently where it matters most.
    #[error("there is a tab beside the value of Host, Content-Length or Transfer-Encoding")]
    Tab,
    /// Looking each one up in each field must stay cheap.
    #[error("Connection names more than 64 fields")]
    TooManyOptions,
    /// No digits, something else besides them, or too many of them.
    #[error("Content-Length is not a number")]
    Length,
    /// Even if they agree.
    #[error("there is more than one Content-Length")]
    TwoLengths,
    /// Two answers to the question where the body ends.
    #[error("there are both Content-Length and Transfer-Encoding")]
    LengthAndCoding,
    /// Not `chunked`, and no list of known codings before it.
    #[error("Transfer-Encoding is malformed, or does not end in chunked")]
    Coding,
    /// Even if one of them is empty.
    #[error("there is more than one Transfer-Encoding")]
    TwoCodings,
    /// Known codings before a final `chunked`.
    #[error("only the transfer coding chunked is supported")]
    UnsupportedCoding,
    /// HTTP/1.0 knows no codings; somebody on the way may have ignored it.
    #[error("there is a Transfer-Encoding in HTTP/1.0")]
    CodingBeforeHttp11,
}

/// Why a request is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// As any head could have it.
    #[error(transparent)]
    Head(#[from] Flaw),
    /// Not `method target version` with one space between them.
    #[error("the request line is malformed")]
    RequestLine,
    /// Well formed, but neither HTTP/1.1 nor HTTP/1.0.
    #[error("only HTTP/1.1 and HTTP/1.0 are supported here")]
    Version,
    /// A character that no URL has, or a form that does not go with the method.
    #[error("the request target is malformed")]
    Target,
    /// HTTP/1.1 asks for one.
    #[error("there is no Host")]
    NoHost,
    /// Even if they agree.
    #[error("there is more than one Host")]
    TwoHosts,
    /// Not `host` or `host:port`.
    #[error("Host is malformed")]
    Host,
    /// An absolute target names another host than `Host`.
    #[error("Host and the request target disagree")]
    OtherHost,
}

impl Refusal {
    /// The status to answer with.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Head(Flaw::TooLarge | Flaw::TooManyFields | Flaw::TooManyOptions) => 431,
            Self::Head(Flaw::UnsupportedCoding) => 501,
            Self::Version => 505,
            _ => 400,
        }
    }
}

/// Why an answer is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    /// As any head could have it.
    #[error(transparent)]
    Head(#[from] Flaw),
    /// Not HTTP/1.1 or HTTP/1.0, or no status of three digits.
    #[error("the status line is malformed")]
    StatusLine,
}
