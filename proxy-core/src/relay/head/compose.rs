//! Copying a head's lines, but for a few.

use httparse::Header;

use super::fields::{self, Marked};

/// The lines of a head that was parsed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lines<'b> {
    /// From the first line to the final empty one.
    pub(super) head: &'b [u8],
    /// Where the first field begins.
    pub(super) fields: usize,
    pub(super) lines: &'b [Header<'b>],
}

impl Lines<'_> {
    /// Appends the field lines byte for byte, run by run; in the place of each one that is `touched`, what `instead` appends.
    pub(super) fn copy_except(
        &self,
        touched: Marked,
        out: &mut Vec<u8>,
        mut instead: impl FnMut(usize, &mut Vec<u8>),
    ) {
        let mut copied = self.fields;
        for number in touched.iter() {
            let begin = fields::begin(self.head, &self.lines[number]);
            out.extend_from_slice(&self.head[copied..begin]);
            instead(number, out);
            copied = fields::end(self.head, self.lines, number);
        }
        out.extend_from_slice(&self.head[copied..self.head.len() - 2]);
    }
}
