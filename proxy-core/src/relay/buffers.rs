//! The read buffers of one thread.
//!
//! A connection that waits holds no buffer: it takes one for the moment of a read, and gives it back when nothing is
//! left in it. What it must keep for longer moves to heap of its own, no larger than it needs ([`Buffer::settle`]).

use std::cell::RefCell;
use std::rc::Rc;

/// How much is read at once.
const SIZE: usize = 32 * 1024;
/// How many unused buffers a thread keeps. Rarely are more than three in use: one that is read into, one for each head.
const KEPT: usize = 8;

/// The buffers that are not in use.
#[derive(Default)]
pub(super) struct Buffers {
    free: RefCell<Vec<Vec<u8>>>,
}

/// Bytes in order: appended at the end, consumed from the front.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    consumed: usize,
    /// Where the memory goes when it is dropped; `None`: it is the holder's own.
    home: Option<Rc<Buffers>>,
}

impl Buffers {
    /// An empty buffer with room for one read.
    pub(super) fn take(self: &Rc<Self>) -> Buffer {
        let free = self.free.borrow_mut().pop();
        Buffer {
            bytes: free.unwrap_or_else(|| Vec::with_capacity(SIZE)),
            consumed: 0,
            home: Some(Rc::clone(self)),
        }
    }

    fn put(&self, mut bytes: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        // One that a large head made grow is not kept.
        if free.len() < KEPT && bytes.capacity() == SIZE {
            bytes.clear();
            free.push(bytes);
        }
    }
}

impl Buffer {
    /// What is there and not consumed.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.consumed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the first `count` bytes out. Emptied, a buffer of the holder's own gives its memory up.
    pub(super) fn consume(&mut self, count: usize) {
        self.consumed += count;
        debug_assert!(self.consumed <= self.bytes.len());
        if self.is_empty() {
            self.consumed = 0;
            if self.home.is_some() {
                self.bytes.clear();
            } else {
                self.bytes = Vec::new();
            }
        }
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// For whoever composes or reads at the end; the front must not be touched.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// For a longer stay: moves what is left to memory of its own, just large enough, and gives the buffer back.
    pub(super) fn settle(&mut self) {
        if let Some(home) = self.home.take() {
            let own = self.unread().to_vec();
            self.consumed = 0;
            home.put(std::mem::replace(&mut self.bytes, own));
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.put(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_used_again_and_is_empty() {
        let buffers = Rc::new(Buffers::default());
        let mut first = buffers.take();
        first.append(b"left over");
        let memory = first.end().as_ptr();
        drop(first);
        let mut second = buffers.take();
        assert!(second.is_empty());
        assert_eq!(second.end().as_ptr(), memory);
    }

    #[test]
    fn a_settled_buffer_keeps_only_what_is_unread_and_gives_the_rest_back() {
        let buffers = Rc::new(Buffers::default());
        let mut buffer = buffers.take();
        buffer.append(b"head and body");
        buffer.consume(9);
        buffer.settle();
        assert_eq!(buffer.unread(), b"body");
        assert_eq!(buffer.end().capacity(), 4);
        assert_eq!(buffers.free.borrow().len(), 1);
        buffer.consume(4);
        assert_eq!(buffer.end().capacity(), 0);
    }

    #[test]
    fn only_some_are_kept_and_none_that_grew() {
        let buffers = Rc::new(Buffers::default());
        let many: Vec<Buffer> = (0..2 * KEPT).map(|_| buffers.take()).collect();
        drop(many);
        assert_eq!(buffers.free.borrow().len(), KEPT);
        let mut grown = buffers.take();
        grown.append(&[0; 2 * SIZE]);
        drop(grown);
        assert_eq!(buffers.free.borrow().len(), KEPT - 1);
    }
}
