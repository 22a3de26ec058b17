//! HTTP/2 through hyper.
use std::rc::Rc;
use super::stream::Io;
use super::thread::Thread;
use super::tls::Tls;
pub(super) struct Upstreams;
impl Upstreams {
    pub(super) fn new(_tls: Tls) -> Self { Self }
    pub(super) fn sweep(&self) {}
}
pub(super) async fn serve(_thread: &Rc<Thread>, _io: Io, _first: Vec<u8>) {}
