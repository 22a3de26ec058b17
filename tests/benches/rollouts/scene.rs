//! A running Rollproxy as people run it: through the launcher, logging as by default.

use std::process::Command;
use std::time::Duration;

use control::types::{Outcome, Verdict};
use harness::machine::find;
use harness::{Proxy, Starting, TestHome, binaries, same_version, until};

/// The proxy ends before its home does.
pub struct Scene {
    pub proxy: Proxy,
    pub home: TestHome,
}

impl Scene {
    /// `rollout` is added to that table of its configuration.
    pub async fn start(upstream: &str, rollout: &str) -> Self {
        let home = TestHome::new();
        home.configure_upstream(upstream, &format!("[rollout]\n{rollout}"));
        for version in ["1.0.0", "1.1.0"] {
            home.install_proxy(version);
        }
        home.select("1.0.0");
        // Nothing may be left over that the next run would be measured beside.
        let mut command = Command::new("/usr/bin/env");
        command.args(["-u", "ROLLPROXY_LOG"]);
        if let Some(setpriv) = find("setpriv") {
            command.arg(setpriv).args(["--pdeathsig", "TERM"]);
        }
        command.arg(binaries().path("rollproxy-launcher"));
        command.arg("serve");
        let proxy = Starting::run(&home, &mut command).answering().await;
        proxy.serves().await;
        Self { proxy, home }
    }

    /// A new generation of the same version; why not, if it is not kept.
    pub async fn roll(&self) -> Result<Verdict, String> {
        match self.proxy.roll(same_version()).await {
            Ok(verdict) if verdict.verdict == Outcome::Kept => Ok(verdict),
            Ok(verdict) => Err(format!("not kept: {verdict:?}")),
            Err(error) => Err(format!("no verdict: {error}")),
        }
    }

    /// Waits until one generation is left.
    pub async fn drained(&self) {
        until("the former generations are gone", || {
            self.proxy.rolling().draining.is_empty()
        })
        .await;
    }
}

pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
