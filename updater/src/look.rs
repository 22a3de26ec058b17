//! The first half of a check: what the feed offers, and whether this host takes it.

use staging::home::Home;
use staging::policy::Offer;
use staging::report::{Exit, Failure, Report};
use staging::{TARGET, clock, package, update_state};

use crate::answer::Answer;
use crate::before::Before;
use crate::feed::{Downloader, Feed, FeedError, FeedSettings, Release};
use crate::interrupt::Interrupt;
use crate::job::{Options, say, shown};
use crate::policy::{self, Choice, Facts, Way};
use crate::retry::{self, retrying};
use crate::settings::Settings;

/// What is to be installed.
pub struct Found {
    /// What the feed offers.
    pub release: Release,
    /// Who brings it.
    pub downloader: Downloader,
    /// Whether it is published already.
    pub here: bool,
}

/// Who looks, and for what.
pub struct Look<'a> {
    /// The home.
    pub home: &'a Home,
    /// What the check was asked to do.
    pub options: &'a Options,
    /// What the home says.
    pub settings: &'a Settings,
    /// Where the feed is.
    pub feed: &'a FeedSettings,
    /// What stood when the check began.
    pub before: &'a Before,
}

impl Look<'_> {
    /// Asks the feed and decides. None = nothing is to be done, and the answer says why.
    ///
    /// # Errors
    /// What the feed, the home or a signal says; and a release that cannot be taken from what runs here.
    pub async fn look(
        &self,
        interrupt: &mut Interrupt,
        answer: &mut Answer,
    ) -> Result<Option<Found>, Failure> {
        let Self {
            home,
            options,
            settings,
            before,
            ..
        } = *self;
        let mut feed = Feed::open(self.feed, home)?;
        let limit = settings.limits.inactivity;
        let mut failed = None;
        let ask = async || -> Result<Option<Release>, FeedError> {
            let asked = ask(&mut feed, &settings.channel).await;
            failed = asked
                .as_ref()
                .err()
                .map(|error| Failure::from(error as &dyn Report));
            asked
        };
        let asked = tokio::time::timeout(limit, retrying(retry::WITHIN_A_RUN, ask));
        let asked = interrupt.unless(async { Ok(asked.await) }).await?;
        // An earlier try that failed says more than that the time ended during the next.
        let Some(release) = asked.unwrap_or_else(|_| Err(failed.unwrap_or_else(|| self.slow())))?
        else {
            say(
                options,
                &format!("the channel {} has nothing for {TARGET}", settings.channel),
            );
            answer.end("noRelease", Exit::Done);
            return Ok(None);
        };
        answer.version = Some(release.version.clone());
        let offer = Offer {
            version: release.version.clone(),
            archive: release.sha256.clone(),
        };
        let state = update_state::read(home)?;
        let installed = package::list(home)?;
        let facts = Facts {
            selection: before.selection.as_ref(),
            state: &state,
            running: before.running(),
            installed: &installed,
        };
        let dead_end = match facts.current() {
            Some(current) => tokio::time::timeout(limit, feed.about(current, TARGET))
                .await
                .map_err(|_| self.slow())??
                .and_then(|it| it.dead_end),
            None => None,
        };
        let way = Way {
            minimum: release.custom.minimum_version.as_ref(),
            dead_end: dead_end.as_deref(),
        };
        let here = match policy::choose(&offer, way, facts) {
            Choice::Skip(skip) => {
                say(options, &skip.to_string());
                answer.end(policy::word(&skip), Exit::Done);
                return Ok(None);
            }
            Choice::DeadEnd { current, reason } => {
                return Err(Failure::new(
                    "DEAD_END",
                    format!(
                        "{} is offered, but no update leads on from {current}, which runs here: {reason}; the publisher says what to do by hand",
                        release.version
                    ),
                    Exit::Failed,
                    false,
                ));
            }
            Choice::Barrier { minimum, current } => {
                return Err(Failure::new(
                    "BELOW_MINIMUM",
                    format!(
                        "{} can be updated to from {minimum} on, and {current} runs here; install a version between first",
                        release.version
                    ),
                    Exit::Failed,
                    false,
                ));
            }
            Choice::Roll => true,
            Choice::Install => false,
        };
        if options.dry_run {
            say(
                options,
                &format!(
                    "{} is available (selected: {})",
                    release.version,
                    shown(before.selected())
                ),
            );
            answer.end("available", Exit::Available);
            return Ok(None);
        }
        Ok(Some(Found {
            release,
            downloader: feed.downloader(),
            here,
        }))
    }

    /// A feed that answers all the time and never ends: each read is in time, the whole is not.
    fn slow(&self) -> Failure {
        FeedError::Slow {
            url: self.feed.url.to_string(),
            limit: self.settings.limits.inactivity,
        }
        .into()
    }
}

/// Brings the metadata up to date and reads the channel.
async fn ask(feed: &mut Feed, channel: &str) -> Result<Option<Release>, FeedError> {
    feed.refresh(clock::now()).await?;
    feed.release(channel, TARGET).await
}
