//! The first half of a check: what the feed offers, and whether this host takes it.

use jiff::Timestamp;
use staging::home::Home;
use staging::locks::StateLock;
use staging::node::NodeId;
use staging::policy::{Offer, Skip};
use staging::report::{Exit, Failure, Report, note};
use staging::update_state::{Pending, Refused, UpdateState};
use staging::version::PackageVersion;
use staging::{TARGET, clock, package, retention, update_state};

use crate::answer::{Answer, Offered, Patch};
use crate::before::{Before, LOCK_TIMEOUT};
use crate::bring::{self, Order};
use crate::feed::{Downloader, Feed, FeedError, FeedSettings, Release};
use crate::interrupt::Interrupt;
use crate::job::{Options, say, shown};
use crate::policy::{self, Choice, Facts, Heading, Terms, Way};
use crate::retry::{self, retrying};
use crate::settings::Settings;
use crate::sound;

/// What is to be installed.
pub struct Found {
    /// What the feed offers.
    pub release: Release,
    /// Who brings it.
    pub downloader: Downloader,
    /// What is to be done about it.
    pub task: Task,
    /// Installed versions, those first from which a patch is likeliest to start.
    pub installed: Vec<PackageVersion>,
}

/// What is to be done about a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Bring it, publish it, roll to it.
    Install,
    /// It is published: roll to it.
    Roll,
    /// It is selected, and its package is damaged or gone: bring it again.
    Repair,
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
    /// This host.
    pub node: &'a NodeId,
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
        let mut feed = Feed::open(self.feed, self.home)?;
        let offered = self.ask(&mut feed, interrupt).await?;
        let state = update_state::read(self.home)?;
        let installed = package::list(self.home)?;
        if let Some(found) = self
            .repair(&mut feed, offered.as_ref(), &state, &installed, answer)
            .await?
        {
            return self.hand_over(found, answer);
        }
        if self.drop_withdrawn(&mut feed, &state).await? {
            // What stood at the beginning does not stand any more: the next check goes on from here.
            answer.end("withdrawn", Exit::Done);
            return Ok(None);
        }
        let Some(offered) = offered else {
            let channel = &self.settings.channel;
            self.say(&format!("the channel {channel} has nothing for {TARGET}"));
            answer.end("noRelease", Exit::Done);
            return Ok(None);
        };
        let facts = Facts {
            selection: self.before.selection.as_ref(),
            state: &state,
            running: self.before.running(),
            installed: &installed,
        };
        answer.version = Some(offered.version.clone());
        let (release, channel_version) =
            match policy::heads(&offered.version, &offered.barriers, facts) {
                Err(skip) => return self.skip(&skip, answer),
                Ok(Heading::Offer) => (offered, None),
                Ok(Heading::Barrier(barrier)) => {
                    let release = self.step(&mut feed, &barrier, &offered).await?;
                    self.say(&format!(
                        "{} is offered, and the feed wants {barrier} to have run before",
                        offered.version
                    ));
                    (release, Some(offered.version))
                }
            };
        answer.version = Some(release.version.clone());
        let dead_end = match facts.current() {
            Some(current) => {
                let about = self.in_time(feed.about(current, TARGET)).await?;
                about.and_then(|about| about.dead_end)
            }
            None => None,
        };
        let way = Way {
            minimum: release.custom.minimum_version.as_ref(),
            dead_end: dead_end.as_deref(),
        };
        let offer = Offer {
            version: release.version.clone(),
            archive: release.sha256.clone(),
        };
        let choice = policy::choose(&offer, way, facts, self.terms(&release));
        answer.offer = Some(Offered {
            channel_version,
            size: release.length,
            notes: release.notes.clone(),
            patch: None,
            at: None,
        });
        let is_barrier = answer
            .offer
            .as_ref()
            .is_some_and(|offer| offer.channel_version.is_some());
        let task = match choice {
            Choice::Skip(Skip::KnownBad { .. }) if is_barrier => {
                return Err(barred(&release.version, answer));
            }
            Choice::Skip(skip) => return self.skip(&skip, answer),
            Choice::Wait(waiting) => {
                if let Some(offer) = &mut answer.offer {
                    offer.at = waiting.at;
                }
                let found = self.found(release, &feed, Task::Install, &installed);
                if self.options.dry_run {
                    self.tell(&found, answer).await;
                }
                self.say(&format!("{} waits: {waiting}", found.release.version));
                answer.end(waiting.word(), Exit::Done);
                return Ok(None);
            }
            Choice::Refused(refused) => return Err(again(&refused)),
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
            Choice::BelowMinimum { minimum, current } => {
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
            Choice::Roll => match sound::damage(self.home, &release.version, self.options.now) {
                None => Task::Roll,
                Some(damage) => {
                    note(&format!("warning: {}; it is brought again", damage.message));
                    Task::Install
                }
            },
            Choice::Install => Task::Install,
        };
        if let Some(offer) = &mut answer.offer {
            offer.at = Some(clock::now());
        }
        let found = self.found(release, &feed, task, &installed);
        if self.options.dry_run {
            self.tell(&found, answer).await;
            self.say("a check takes it now");
        }
        self.hand_over(found, answer)
    }

    /// What time it is for an archive.
    pub fn terms<'t>(&'t self, release: &'t Release) -> Terms<'t> {
        Terms {
            now: clock::now(),
            at_once: self.options.now,
            ramp: release.custom.ramp.as_ref(),
            position: self.node.position(&release.sha256),
            windows: &self.settings.windows,
        }
    }

    /// Brings the metadata up to date and reads the channel.
    async fn ask(
        &self,
        feed: &mut Feed,
        interrupt: &mut Interrupt,
    ) -> Result<Option<Release>, Failure> {
        let mut failed = None;
        let channel = &self.settings.channel;
        let ask = async || -> Result<Option<Release>, FeedError> {
            let asked = async {
                feed.refresh(clock::now()).await?;
                feed.release(channel, TARGET).await
            };
            let asked = asked.await;
            failed = asked
                .as_ref()
                .err()
                .map(|error| Failure::from(error as &dyn Report));
            asked
        };
        let limit = self.settings.limits.inactivity;
        let asked = tokio::time::timeout(limit, retrying(retry::WITHIN_A_RUN, ask));
        let asked = interrupt.unless(async { Ok(asked.await) }).await?;
        // An earlier try that failed says more than that the time ended during the next.
        asked.unwrap_or_else(|_| Err(failed.unwrap_or_else(|| self.slow())))
    }

    /// One more question to the feed.
    async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, FeedError>>,
    ) -> Result<T, Failure> {
        let limit = self.settings.limits.inactivity;
        let asked = tokio::time::timeout(limit, asked).await;
        Ok(asked.map_err(|_| self.slow())??)
    }

    /// The release of a version that must have run before `offered`.
    async fn step(
        &self,
        feed: &mut Feed,
        barrier: &PackageVersion,
        offered: &Release,
    ) -> Result<Release, Failure> {
        let step = self.in_time(feed.version(barrier, TARGET)).await?;
        step.ok_or_else(|| {
            Failure::new(
                "BARRIER_MISSING",
                format!(
                    "the feed wants {barrier} to have run before {}, and has no archive of it: the publisher must add it again",
                    offered.version
                ),
                Exit::Failed,
                true,
            )
        })
    }

    /// The selected version, if its package is damaged or gone and can be had again.
    async fn repair(
        &self,
        feed: &mut Feed,
        offered: Option<&Release>,
        state: &UpdateState,
        installed: &[PackageVersion],
        answer: &mut Answer,
    ) -> Result<Option<Found>, Failure> {
        let home = self.home;
        let Some(selected) = self.before.selected() else {
            return Ok(None);
        };
        let Some(damage) = sound::damage(home, selected, self.options.now) else {
            return Ok(None);
        };
        let gone = !installed.contains(selected);
        let cannot = |why: &str| {
            note(&format!(
                "warning: {}; it cannot be brought again: {why}",
                damage.message
            ));
            Ok(None)
        };
        if !gone && retention::running(home, selected)? > 0 {
            return cannot("programs run from it; stop or move them to another version first");
        }
        let release = match offered {
            Some(offered) if offered.version == *selected => Some(offered.clone()),
            _ => self.in_time(feed.version(selected, TARGET)).await?,
        };
        let Some(release) = release else {
            return cannot("the feed does not have it");
        };
        if !gone && state.archives.get(selected) != Some(&release.sha256) {
            return cannot("the feed has it with other contents");
        }
        if let Some(refused) = policy::refused(&release.sha256, state, self.options.now) {
            return Err(again(refused));
        }
        note(&format!("warning: {}; it is brought again", damage.message));
        answer.version = Some(selected.clone());
        answer.offer = Some(Offered {
            channel_version: offered.map(|offered| offered.version.clone()),
            size: release.length,
            notes: release.notes.clone(),
            patch: None,
            at: Some(clock::now()),
        });
        let found = self.found(release, feed, Task::Repair, installed);
        if self.options.dry_run {
            self.tell(&found, answer).await;
        }
        Ok(Some(found))
    }

    /// A version that waits, and that its publisher has taken back, waits no more.
    async fn drop_withdrawn(&self, feed: &mut Feed, state: &UpdateState) -> Result<bool, Failure> {
        let Some(pending) = &state.pending else {
            return Ok(false);
        };
        let version = &pending.version;
        if self.options.dry_run || self.in_time(feed.version(version, TARGET)).await?.is_some() {
            return Ok(false);
        }
        let lock = StateLock::acquire(self.home, LOCK_TIMEOUT)?;
        update_state::modify(&lock, self.home, |state| {
            let withdrawn = |pending: &Pending| pending.version == *version;
            state.pending = state.pending.take().filter(|pending| !withdrawn(pending));
        })?;
        self.say(&format!(
            "{version} was pending, and the feed has it no more: nothing rolls to it; check again for what the feed offers instead"
        ));
        Ok(true)
    }

    fn found(
        &self,
        release: Release,
        feed: &Feed,
        task: Task,
        installed: &[PackageVersion],
    ) -> Found {
        // What is selected is likeliest to be what a patch starts from; then what is newest.
        let mut installed = installed.to_vec();
        let selected = self.before.selected();
        installed.sort_by(|a, b| {
            (Some(b) == selected)
                .cmp(&(Some(a) == selected))
                .then(b.cmp(a))
        });
        installed.retain(|version| *version != release.version);
        Found {
            release,
            downloader: feed.downloader(),
            task,
            installed,
        }
    }

    /// Gives on what is to be done; a dry run ends here.
    fn hand_over(&self, found: Found, answer: &mut Answer) -> Result<Option<Found>, Failure> {
        if !self.options.dry_run {
            return Ok(Some(found));
        }
        answer.end("available", Exit::Available);
        Ok(None)
    }

    /// Says what a person wants to know before a version is taken.
    async fn tell(&self, found: &Found, answer: &mut Answer) {
        let release = &found.release;
        self.say(&format!(
            "{} is available (selected: {})",
            release.version,
            shown(self.before.selected())
        ));
        let patch = match found.task {
            Task::Roll => None,
            Task::Install | Task::Repair => {
                let validator = self.settings.validator();
                bring::patch_for(self.order(found, "dry-run", &validator)).await
            }
        };
        let size = match (&patch, found.task) {
            (_, Task::Roll) => "it is here already".to_owned(),
            (Some(patch), _) => format!(
                "{} bytes, or {} with the patch from {}",
                release.length, patch.length, patch.from
            ),
            (None, _) => format!("{} bytes", release.length),
        };
        self.say(&format!("size: {size}"));
        for line in release.notes.lines() {
            self.say(&format!("notes: {line}"));
        }
        if let Some(offer) = &mut answer.offer {
            offer.patch = patch.map(|patch| Patch {
                from: patch.from,
                size: patch.length,
            });
        }
    }

    /// The order to bring what was found.
    pub fn order<'o>(
        &'o self,
        found: &'o Found,
        job: &'o str,
        validator: &'o staging::validate::Validator,
    ) -> Order<'o> {
        Order {
            home: self.home,
            job,
            release: &found.release,
            downloader: &found.downloader,
            limits: self.settings.limits,
            validator,
            format: self.options.format,
            reserve: self.settings.reserve,
            installed: &found.installed,
            delta: self.settings.delta,
        }
    }

    fn skip(&self, skip: &Skip, answer: &mut Answer) -> Result<Option<Found>, Failure> {
        self.say(&skip.to_string());
        answer.end(policy::word(skip), Exit::Done);
        Ok(None)
    }

    fn say(&self, text: &str) {
        say(self.options, text);
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

/// No release leads past a barrier, and this one failed here: waiting for the next release would be for ever.
fn barred(barrier: &PackageVersion, answer: &Answer) -> Failure {
    let beyond = answer
        .offer
        .as_ref()
        .and_then(|offer| offer.channel_version.as_ref());
    Failure::new(
        "BARRIER_KNOWN_BAD",
        format!(
            "{} is offered, and {barrier} must have run here before it, which is known bad here: try it again with `rollproxy select {barrier}`, or ask the publisher for another way",
            shown(beyond)
        ),
        Exit::Failed,
        false,
    )
}

/// What was wrong with an archive is said again at every check, and not found out again.
fn again(refused: &Refused) -> Failure {
    let since: Timestamp = refused.at;
    Failure::new(
        &refused.code,
        format!(
            "{} could not be installed here at {since} and is not brought again (--now tries, another archive is judged anew): {}",
            refused.version, refused.message
        ),
        Exit::Failed,
        false,
    )
}
