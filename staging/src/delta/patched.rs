//! The new archive's tar, made from an installed package and a patch while it is read.

use std::io::{self, Read};
use std::path::Path;

use zstd::zstd_safe::{self, DCtx};

use super::content::Content;
use super::{DeltaError, Head, MAGIC, REGION, SEGMENT};
use crate::manifest::Manifest;

/// Reads the tar that a patch makes. Whatever the patch holds: no more memory than a segment, a region and a frame of their
/// largest size, no byte from anywhere but the old package, and an error instead of a surprise.
pub struct Patched<R> {
    content: Content,
    patch: R,
    begun: bool,
    ended: bool,
    region: Vec<u8>,
    frame: Vec<u8>,
    made: Vec<u8>,
    /// Bytes of `made` that were read already.
    taken: usize,
}

impl<R> std::fmt::Debug for Patched<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patched").finish_non_exhaustive()
    }
}

impl<R: Read> Patched<R> {
    /// The tar that `patch` makes from the package at `old_root`, whose manifest is `old`. That its files are what the
    /// manifest says was checked by the caller, if it wants no surprise at the end.
    ///
    /// # Errors
    /// [`DeltaError::Read`], [`DeltaError::OtherManifest`]
    pub fn open(old_root: &Path, old: &Manifest, patch: R) -> Result<Patched<R>, DeltaError> {
        Ok(Patched {
            content: Content::open(old_root, old)?,
            patch,
            begun: false,
            ended: false,
            region: Vec::new(),
            frame: Vec::new(),
            made: Vec::new(),
            taken: 0,
        })
    }

    /// Gives the reader of the patch back, which has come to its end if the tar has.
    pub fn into_inner(self) -> R {
        self.patch
    }

    /// What region, frame and segment take at present.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> (usize, usize, usize) {
        (
            self.region.capacity(),
            self.frame.capacity(),
            self.made.capacity(),
        )
    }

    /// Makes the next segment; an empty one is the end.
    fn next(&mut self) -> io::Result<()> {
        if !self.begun {
            let mut magic = [0; MAGIC.len()];
            self.patch.read_exact(&mut magic)?;
            if magic != *MAGIC {
                return Err(invalid("this is no patch that this version knows"));
            }
            self.begun = true;
        }
        let mut head = [0; Head::BYTES];
        self.patch.read_exact(&mut head)?;
        let head = Head::from_bytes(head);
        self.made.clear();
        self.taken = 0;
        if head.makes == 0 {
            return self.end(head);
        }
        let (makes, length, frame) = check(head)?;
        room(&mut self.region, length);
        self.content.read(head.offset, &mut self.region)?;
        room(&mut self.frame, frame);
        self.patch.read_exact(&mut self.frame)?;
        self.made.reserve_exact(makes);
        let count = decompress(&self.region, &self.frame, &mut self.made)
            .map_err(|why| invalid(&format!("a frame of the patch is damaged: {why}")))?;
        if count != makes {
            return Err(invalid(
                "a frame of the patch makes another number of bytes",
            ));
        }
        Ok(())
    }

    fn end(&mut self, head: Head) -> io::Result<()> {
        if head != Head::END {
            return Err(invalid("the patch's last segment is not empty"));
        }
        if self.patch.read(&mut [0])? != 0 {
            return Err(invalid("something follows the end of the patch"));
        }
        self.ended = true;
        Ok(())
    }
}

impl<R: Read> Read for Patched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.made.len() && !self.ended && !buffer.is_empty() {
            self.next()?;
        }
        let rest = &self.made[self.taken..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }
}

/// Makes a buffer exactly so long, without the spare room of a growing one.
fn room(buffer: &mut Vec<u8>, length: usize) {
    buffer.clear();
    buffer.reserve_exact(length);
    buffer.resize(length, 0);
}

/// What a segment asks for, if it is no more than it may.
fn check(head: Head) -> io::Result<(usize, usize, usize)> {
    let bounded = |number: u32, most: usize, what: &str| match usize::try_from(number) {
        Ok(number) if number <= most => Ok(number),
        _ => Err(invalid(&format!("the patch asks for {what}"))),
    };
    Ok((
        bounded(head.makes, SEGMENT, "too large a segment")?,
        bounded(head.length, REGION, "too large a region")?,
        bounded(
            head.frame,
            zstd_safe::compress_bound(SEGMENT),
            "too large a frame",
        )?,
    ))
}

/// Into the capacity of `made` and no further: zstd writes to where it is to be, without a window of its own.
fn decompress(region: &[u8], frame: &[u8], made: &mut Vec<u8>) -> Result<usize, &'static str> {
    let mut context = DCtx::try_create().ok_or("no memory")?;
    context
        .ref_prefix(region)
        .map_err(zstd_safe::get_error_name)?;
    context
        .decompress(made, frame)
        .map_err(zstd_safe::get_error_name)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
