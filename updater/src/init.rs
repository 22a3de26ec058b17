//! `init`: makes a home, pins the root of trust, and names the feed.

use staging::home::Home;
use staging::report::{Exit, Failure, Format, line};

use crate::feed::{self, FeedError, FeedSettings, RootSource};
use crate::settings::{self, Settings, Written};

/// What `init` was given.
#[derive(Debug)]
pub struct Options {
    /// The feed's URL.
    pub feed: String,
    /// Where the root of trust is taken from: a path or a URL.
    pub root: String,
    /// The SHA-256 that the root must have.
    pub sha256: String,
    /// The channel to follow.
    pub channel: String,
    /// How to answer.
    pub format: Format,
}

/// Makes the home ready for `check`. Done twice, it changes nothing the second time.
///
/// # Errors
/// What is wrong with the URL, the root or the home. The root is pinned before the feed is named, so that a home never
/// names a feed it cannot judge.
pub async fn init(home: &Home, options: &Options) -> Result<Exit, Failure> {
    // Whatever can be wrong about the words is found out before anything is made.
    FeedSettings::new(&options.feed)?;
    let source: RootSource = options.root.parse()?;
    home.create()?;
    home.check()?;
    let limit = Settings::read(home)?.limits.inactivity;
    let pinning = feed::pin_root(home, &source, &options.sha256);
    // It waits for nothing but the bytes: what is cut short here has changed nothing.
    tokio::time::timeout(limit, pinning)
        .await
        .unwrap_or_else(|_| {
            Err(FeedError::Slow {
                url: source.to_string(),
                limit,
            })
        })?;
    let written = settings::add(home, &options.feed, &options.channel)?;
    let file = home.config_file();
    match options.format {
        Format::Json => line(
            &serde_json::json!({
                "schema": 1,
                "outcome": "ready",
                "home": home.root().to_string_lossy(),
                "config": match written {
                    Written::Added => "added",
                    Written::Kept => "kept",
                },
            })
            .to_string(),
        ),
        Format::Text => {
            line(&format!(
                "{} is ready; the root of trust is pinned",
                home.root().display()
            ));
            match written {
                Written::Added => line(&format!("[update] was added to {}", file.display())),
                Written::Kept => {
                    let same = Settings::read(home)?.feed.as_deref() == Some(&options.feed);
                    let advice = if same {
                        ""
                    } else {
                        "; its feed is another one, look at it"
                    };
                    line(&format!(
                        "{} has an [update] already, it is left as it is{advice}",
                        file.display()
                    ));
                }
            }
        }
    }
    Ok(Exit::Done)
}
