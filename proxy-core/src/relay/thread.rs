//! What the connections of one relay thread share.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::watch;

use super::buffers::Buffers;
use super::counters::Counters;
use super::ending::WebSockets;
use super::held::Register;
use super::timeouts::Timeouts;
use super::tls::Tls;
use super::upstream::Upstreams;
use super::{Drain, Phase, http2};
use crate::config::Config;
use crate::gateway::Gateway;

/// What a thread is started with.
pub(super) struct Setup {
    pub(super) number: usize,
    pub(super) config: Arc<Config>,
    pub(super) gateway: Arc<Gateway>,
    pub(super) counters: Arc<Counters>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) tls: Tls,
}

/// What the connections of one thread share.
pub(super) struct Thread {
    pub(super) config: Arc<Config>,
    /// The field line that answers get in addition; empty unless configured.
    pub(super) via: String,
    pub(super) gateway: Arc<Gateway>,
    pub(super) counters: Arc<Counters>,
    /// What is to be done with connections between two requests, once it was asked for.
    pub(super) drain: RefCell<Option<Drain>>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) buffers: Rc<Buffers>,
    pub(super) timeouts: Rc<Timeouts>,
    pub(super) upstreams: Upstreams,
    pub(super) websockets: Rc<WebSockets>,
    pub(super) register: Rc<Register>,
    /// The upstream connections of requests that are in HTTP/2 on one side at least.
    pub(super) http2: http2::Upstreams,
}

impl Thread {
    pub(super) fn new(setup: Setup) -> Self {
        let via = match setup.config.server.via.as_str() {
            "" => String::new(),
            pseudonym => format!("Via: 1.1 {pseudonym}\r\n"),
        };
        Self {
            config: setup.config,
            via,
            gateway: setup.gateway,
            counters: setup.counters,
            drain: RefCell::new(None),
            phase: setup.phase,
            buffers: Rc::default(),
            timeouts: Rc::default(),
            http2: http2::Upstreams::new(setup.tls.clone()),
            upstreams: Upstreams::new(setup.tls),
            websockets: Rc::default(),
            register: Rc::default(),
        }
    }

    /// Whether every answer from now on is the last one on its connection.
    pub(super) fn is_closing(&self) -> bool {
        matches!(&*self.drain.borrow(), Some(Drain::Close))
    }
}
