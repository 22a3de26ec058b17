//! The feed client behind the command line that the public TUF client conformance suite
//! (<https://github.com/theupdateframework/tuf-conformance>) drives: how to run it stands in tests/python/README.md.
//!
//! Nothing of it is shipped. It holds no TUF logic of its own: what it answers is what [`updater::feed`] does.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};
use staging::home::Home;
use staging::{clock, digest};
use updater::feed::{Feed, FeedSettings, RootSource, pin_root};

/// Drives the feed client as the conformance suite asks for it.
#[derive(Parser)]
struct Cli {
    /// Where verified metadata are shown to the suite; the home lies below it
    #[arg(long)]
    metadata_dir: PathBuf,
    /// The URL of the folder of metadata
    #[arg(long)]
    metadata_url: Option<String>,
    /// A file to download; may be given several times
    #[arg(long)]
    target_name: Vec<String>,
    /// The URL of the folder of targets
    #[arg(long)]
    target_base_url: Option<String>,
    /// Where downloaded files are put
    #[arg(long)]
    target_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Pin a root of trust
    Init {
        /// Its file
        root: PathBuf,
    },
    /// Bring the metadata up to date
    Refresh,
    /// Bring the metadata up to date, and files after them
    Download,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let home = Home::at(std::path::absolute(&cli.metadata_dir)?.join("home"));
    home.create()?;
    let outcome = runtime.block_on(run(&cli, &home));
    // What was verified before an error stays trusted, and is shown too.
    show(&home.feed(), &cli.metadata_dir)?;
    outcome
}

async fn run(cli: &Cli, home: &Home) -> Result<(), Box<dyn Error>> {
    if let Command::Init { root } = &cli.command {
        let bytes = std::fs::read(root)?;
        std::fs::copy(root, cli.metadata_dir.join("root.json"))?;
        let sha256 = digest::of(&bytes);
        return Ok(pin_root(home, &RootSource::Bytes(bytes), &sha256).await?);
    }
    let url = cli
        .metadata_url
        .as_deref()
        .ok_or("--metadata-url is missing")?;
    let base = url
        .trim_end_matches('/')
        .strip_suffix("metadata")
        .ok_or("our feeds have their metadata in a folder of that name")?;
    if let Some(targets) = &cli.target_base_url
        && targets.trim_end_matches('/') != format!("{base}targets")
    {
        return Err("our feeds have their targets beside their metadata".into());
    }
    let mut feed = Feed::open(&FeedSettings::new(base)?, home)?;
    feed.refresh(clock::now()).await?;
    if matches!(cli.command, Command::Download) {
        let into = cli.target_dir.as_deref().ok_or("--target-dir is missing")?;
        for name in &cli.target_name {
            download(&mut feed, home, name, into).await?;
        }
    }
    Ok(())
}

async fn download(
    feed: &mut Feed,
    home: &Home,
    name: &str,
    into: &Path,
) -> Result<(), Box<dyn Error>> {
    let wanted = feed.target(name).await?.ok_or("there is no such target")?;
    let inactivity = Duration::from_secs(30);
    let downloaded = feed
        .downloader()
        .download(&wanted, &home.downloads(), inactivity, &mut |_| {}, None)
        .await?;
    // One file name a target name, whatever it is made of.
    let place = into.join(digest::of(name.as_bytes()));
    let bytes = std::fs::read(downloaded.path)?;
    if std::fs::read(&place).ok().as_deref() != Some(&bytes) {
        std::fs::write(place, bytes)?;
    }
    Ok(())
}

/// Copies the cache's metadata to where the suite looks for them, and takes away what is no longer trusted.
fn show(cache: &Path, folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)?.chain(std::fs::read_dir(cache)?) {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|_| path.is_file()) else {
            continue;
        };
        let (cached, shown) = (cache.join(name), folder.join(name));
        if name == "versions.json" {
            continue;
        }
        if cached.is_file() {
            std::fs::copy(cached, shown)?;
        } else if name != "root.json" {
            std::fs::remove_file(shown)?;
        }
    }
    Ok(())
}
