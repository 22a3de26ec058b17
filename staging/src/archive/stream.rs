//! The byte side of an archive: tar blocks, bare or in gzip, with every way of ending early told apart.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;

use super::ArchiveError;

const BLOCK: usize = 512;
/// Tar writers pad the end to their record size, 10 KiB usually; no honest one pads with more than this.
const MAX_END_PADDING: u64 = 1024 * 1024;

/// The side that delivers the bytes. Its error is put aside, for the decoder above could not hand it back whole.
struct Source<R> {
    inner: R,
    failure: Option<io::Error>,
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.inner.read(buffer) {
                // Kept from the decoder, which would lose its place in the gzip header.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.failure = Some(error);
                    return Err(io::Error::other("the source failed"));
                }
                Ok(count) => return Ok(count),
            }
        }
    }
}

/// The bytes of a tar, whatever is around them.
pub(super) trait Bytes {
    /// Some bytes; none at the end.
    fn some(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError>;
    /// That nothing comes after the end.
    fn nothing_more(&mut self) -> Result<(), ArchiveError>;
}

/// A tar in gzip.
pub(super) struct Gzip<R>(GzDecoder<BufReader<Source<R>>>);

impl<R: Read> Gzip<R> {
    pub(super) fn new(reader: R) -> Self {
        let source = Source {
            inner: reader,
            failure: None,
        };
        Gzip(GzDecoder::new(BufReader::with_capacity(64 * 1024, source)))
    }

    /// Whose fault it was.
    fn failed(&mut self, error: io::Error) -> ArchiveError {
        if let Some(source) = self.0.get_mut().get_mut().failure.take() {
            return ArchiveError::Read { source };
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::Truncated,
            _ => ArchiveError::Corrupt {
                why: error.to_string(),
            },
        }
    }
}

impl<R: Read> Bytes for Gzip<R> {
    fn some(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        self.0.read(buffer).map_err(|error| self.failed(error))
    }

    fn nothing_more(&mut self) -> Result<(), ArchiveError> {
        match self.0.get_mut().fill_buf().map(<[u8]>::len) {
            Ok(0) => Ok(()),
            Ok(_) => Err(ArchiveError::Trailing {
                place: "after the end of the gzip",
            }),
            Err(error) => Err(self.failed(error)),
        }
    }
}

/// A bare tar.
pub(super) struct Plain<R>(R);

impl<R: Read> Plain<R> {
    pub(super) fn new(reader: R) -> Self {
        Plain(reader)
    }
}

impl<R: Read> Bytes for Plain<R> {
    fn some(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome.map_err(|source| ArchiveError::Read { source }),
            }
        }
    }

    fn nothing_more(&mut self) -> Result<(), ArchiveError> {
        Ok(())
    }
}

/// A tar, read once from front to end.
pub(super) struct Stream<B>(B);

impl<B: Bytes> Stream<B> {
    pub(super) fn new(bytes: B) -> Self {
        Stream(bytes)
    }

    /// The next entry's header; `None` at the end-of-archive mark.
    pub(super) fn next_header(&mut self) -> Result<Option<tar::Header>, ArchiveError> {
        let mut block = [0u8; BLOCK];
        self.exact(&mut block)?;
        if block.iter().all(|byte| *byte == 0) {
            self.exact(&mut block)?;
            if block.iter().any(|byte| *byte != 0) {
                return Err(ArchiveError::Corrupt {
                    why: "a lone zero block stands between entries".to_owned(),
                });
            }
            return Ok(None);
        }
        let header = tar::Header::from_byte_slice(&block).clone();
        let stored = header.cksum().ok();
        // The checksum is taken with its own field as spaces.
        let sum = block.iter().enumerate().fold(0u32, |sum, (at, byte)| {
            sum + if (148..156).contains(&at) {
                32
            } else {
                u32::from(*byte)
            }
        });
        if stored != Some(sum) {
            return Err(ArchiveError::Corrupt {
                why: "an entry's header has a wrong checksum: this is no tar inside the gzip"
                    .to_owned(),
            });
        }
        Ok(Some(header))
    }

    /// Gives the bytes of an entry piece by piece, then skips its padding.
    pub(super) fn contents(
        &mut self,
        size: u64,
        buffer: &mut [u8],
        take: &mut dyn FnMut(&[u8]) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let mut left = size;
        while left > 0 {
            let want = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let count = self.0.some(&mut buffer[..want])?;
            if count == 0 {
                return Err(ArchiveError::Truncated);
            }
            take(&buffer[..count])?;
            left -= count as u64;
        }
        let over = (size % BLOCK as u64) as usize;
        if over > 0 {
            let mut padding = [0u8; BLOCK];
            self.exact(&mut padding[over..])?;
        }
        Ok(())
    }

    /// Reads to the very end: nothing but zero padding, a right trailer where there is one, and nothing after it.
    pub(super) fn finish(&mut self, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        let mut padding = 0u64;
        loop {
            let count = self.0.some(buffer)?;
            if count == 0 {
                break;
            }
            padding += count as u64;
            if padding > MAX_END_PADDING || buffer[..count].iter().any(|byte| *byte != 0) {
                return Err(ArchiveError::Trailing {
                    place: "after the end of the tar",
                });
            }
        }
        self.0.nothing_more()
    }

    fn exact(&mut self, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        let mut filled = 0;
        while filled < buffer.len() {
            let count = self.0.some(&mut buffer[filled..])?;
            if count == 0 {
                return Err(ArchiveError::Truncated);
            }
            filled += count;
        }
        Ok(())
    }
}
