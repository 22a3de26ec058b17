//! The temporary home, the feed, and the commands an operator would type.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use control::Client;
use control::types::Status;
use staging::home::Home;

use super::programs::Programs;
use super::{Line, Result, failed};

/// How long the supervisor may take to serve, and to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A temporary folder with everything in it.
pub struct Scene {
    folder: tempfile::TempDir,
    home: Home,
    publish: PathBuf,
    bin: PathBuf,
}

/// The running supervisor.
pub struct Serving {
    child: std::process::Child,
    client: Client,
    address: SocketAddr,
}

impl Scene {
    /// Makes feed and keys, a home that pins their root, and the launcher's three names.
    pub async fn set(programs: &Programs, upstream: &str) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("rollproxy-demo-")
            .tempdir()
            .map_err(|error| failed(format!("cannot make a temporary folder: {error}")))?;
        let home = Home::at(folder.path().join("home"));
        let bin = folder.path().join("bin");
        home.create()?;
        install_launcher(&programs.launcher, &bin)
            .map_err(|error| failed(format!("{}: {error}", bin.display())))?;
        let scene = Self {
            home,
            bin,
            publish: programs.publish.clone(),
            folder,
        };

        let made = scene.publisher("init", &[]).await?;
        let digest = made["rootSha256"].as_str().unwrap_or_default().to_owned();
        let root = scene.feed().join("metadata/1.root.json");
        let url = format!("file://{}", scene.feed().display());
        // The one time that a program outside a package is run: there is none yet.
        let init = ["init", "--feed", &url, "--sha256", &digest, "--root"];
        let output = scene
            .run(
                &programs.updater,
                init.map(OsStr::new).into_iter().chain([root.as_os_str()]),
            )
            .await?;
        succeeded("rollproxy-updater init", &output)?;
        scene.configure(upstream)?;
        std::fs::copy(&programs.updater, scene.bin.join("first-updater"))
            .map_err(|error| failed(format!("{}: {error}", scene.bin.display())))?;
        Ok(scene)
    }

    /// Where everything lies.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn feed(&self) -> PathBuf {
        self.folder.path().join("feed")
    }

    /// Adds to what `init` wrote: a free port, the embedded provider behind both providers' routes, and a probation
    /// that is short enough to watch.
    fn configure(&self, upstream: &str) -> Result<()> {
        let path = self.home.config_file();
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        let text = format!(
            "{written}\n[server]\nlisten = [\"127.0.0.1:0\"]\n\n[upstreams.anthropic]\nurl = \"{upstream}\"\n\n[upstreams.openai]\nurl = \"{upstream}\"\n\n[rollout]\nprobation = \"2s\"\n"
        );
        std::fs::write(&path, text).map_err(|error| failed(format!("{}: {error}", path.display())))
    }

    /// Packs, signs and adds a version. It is offered once it is promoted.
    pub async fn publish(&self, version: &str, programs: &Path) -> Result<()> {
        let folder = programs.as_os_str();
        self.publisher(
            "add",
            &[
                OsStr::new("--version"),
                OsStr::new(version),
                OsStr::new("--bin-dir"),
                folder,
            ],
        )
        .await?;
        Ok(())
    }

    async fn promote(&self, version: &str) -> Result<()> {
        self.publisher(
            "promote",
            &["--channel", "stable", "--version", version].map(OsStr::new),
        )
        .await?;
        Ok(())
    }

    async fn publisher(&self, verb: &str, more: &[&OsStr]) -> Result<serde_json::Value> {
        let (feed, keys) = (self.feed(), self.folder.path().join("keys"));
        let common = [
            OsStr::new(verb),
            OsStr::new("--format"),
            OsStr::new("json"),
            OsStr::new("--feed"),
            feed.as_os_str(),
            OsStr::new("--keys"),
            keys.as_os_str(),
        ];
        let output = self
            .run(
                &self.publish,
                common.into_iter().chain(more.iter().copied()),
            )
            .await?;
        succeeded(&format!("rollproxy-publish {verb}"), &output)
    }

    /// Promotes a version and lets the updater bring it.
    pub async fn check(&self, version: &str) -> Result<Line> {
        let (code, answer) = self.run_check(version).await?;
        let outcome = answer["verdict"]["verdict"]
            .as_str()
            .or(answer["outcome"].as_str())
            .unwrap_or("no outcome");
        Ok(Line {
            what: format!("rollproxy-updater check → {version}"),
            outcome: match &answer["error"]["message"] {
                serde_json::Value::String(message) => format!("{outcome}: {message}"),
                _ => outcome.to_owned(),
            },
            as_it_should: code == Some(0) && self.selected().as_deref() == Some(version),
        })
    }

    /// Promotes a broken version and lets the updater find out.
    pub async fn check_refused(&self, version: &str) -> Result<Line> {
        let before = self.selected();
        let (code, answer) = self.run_check(version).await?;
        let error = &answer["error"];
        let why = error["message"]
            .as_str()
            .or(answer["verdict"]["reason"].as_str())
            .unwrap_or("no reason given");
        let code_word = error["code"]
            .as_str()
            .or(answer["verdict"]["code"].as_str())
            .unwrap_or("-");
        Ok(Line {
            what: format!("rollproxy-updater check → {version} (broken)"),
            outcome: format!("refused [{code_word}]: {why}"),
            as_it_should: code == Some(1) && self.selected() == before,
        })
    }

    async fn run_check(&self, version: &str) -> Result<(Option<i32>, serde_json::Value)> {
        self.promote(version).await?;
        let installed = self.selected().is_some();
        let program = self.bin.join(if installed {
            "rollproxy-updater"
        } else {
            "first-updater"
        });
        let output = self
            .run(&program, ["check", "--format", "json"].map(OsStr::new))
            .await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let answer = text
            .lines()
            .next_back()
            .and_then(|line| serde_json::from_str(line).ok());
        let answer = answer.ok_or_else(|| {
            failed(format!(
                "rollproxy-updater check gave no answer: {}",
                String::from_utf8_lossy(&output.stderr)
            ))
        })?;
        Ok((output.status.code(), answer))
    }

    /// Pins an installed version.
    pub async fn select(&self, version: &str) -> Result<Line> {
        let output = self
            .run(
                &self.bin.join("rollproxy"),
                ["select", version].map(OsStr::new),
            )
            .await?;
        let text = String::from_utf8_lossy(if output.status.success() {
            &output.stdout
        } else {
            &output.stderr
        })
        .into_owned();
        Ok(Line {
            what: format!("rollproxy select {version}"),
            outcome: text
                .trim()
                .lines()
                .next_back()
                .unwrap_or("no answer")
                .to_owned(),
            as_it_should: output.status.success() && self.selected().as_deref() == Some(version),
        })
    }

    fn selected(&self) -> Option<String> {
        let selection = staging::selection::read(&self.home).ok().flatten()?;
        Some(selection.version.to_string())
    }

    /// Starts the selected package's supervisor through the launcher, and waits until it serves.
    pub async fn start(&self) -> Result<Serving> {
        let log = self.folder.path().join("supervisor.log");
        let file = std::fs::File::create(&log)
            .map_err(|error| failed(format!("{}: {error}", log.display())))?;
        let child = self
            .command(&self.bin.join("rollproxy"))
            .arg("serve")
            .stderr(file)
            .spawn()
            .map_err(|error| failed(format!("cannot start the supervisor: {error}")))?;
        let mut serving = Serving {
            child,
            client: Client::new(&self.home),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(address) = serving.status().and_then(|status| serving_at(&status)) {
                serving.address = address;
                return Ok(serving);
            }
            if tokio::time::Instant::now() > deadline {
                return Err(failed(format!(
                    "nobody serves after {PATIENCE:?}; see {}",
                    log.display()
                )));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A command of this scene: its home, and nothing else of our environment.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("ROLLPROXY_HOME", self.home.root())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    async fn run<'a>(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item = &'a OsStr>,
    ) -> Result<Output> {
        let mut command = self.command(program);
        command
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let name = program.display().to_string();
        tokio::task::spawn_blocking(move || command.output())
            .await
            .map_err(|error| failed(format!("{name}: {error}")))?
            .map_err(|error| failed(format!("{name}: {error}")))
    }
}

fn serving_at(status: &Status) -> Option<SocketAddr> {
    status.rolling.active.as_ref()?;
    status.listeners.iter().find_map(|at| at.parse().ok())
}

impl Serving {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The control socket's client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    fn status(&self) -> Option<Status> {
        self.client.status().ok()
    }

    /// SIGTERM, and its end.
    pub async fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).unwrap_or(0);
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGTERM,
        )
        .map_err(|error| failed(format!("cannot signal the supervisor: {error}")))?;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(failed(format!("the supervisor ended with {status}")));
                }
                Ok(None) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => {
                    return Err(failed(format!("cannot wait for the supervisor: {error}")));
                }
            }
        }
        Err(failed("the supervisor did not stop".to_owned()))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // After `stop` it has ended and this does nothing; on an early error it must not stay behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One program and its two further names, as on a host.
fn install_launcher(launcher: &Path, bin: &Path) -> std::io::Result<()> {
    std::fs::create_dir(bin)?;
    std::fs::copy(launcher, bin.join("rollproxy-launcher"))?;
    for name in ["rollproxy", "rollproxy-updater"] {
        std::os::unix::fs::symlink("rollproxy-launcher", bin.join(name))?;
    }
    Ok(())
}

fn succeeded(what: &str, output: &Output) -> Result<serde_json::Value> {
    if !output.status.success() {
        let words = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        return Err(failed(format!(
            "{what} ended with {}: {}",
            output.status,
            words.trim()
        )));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(serde_json::from_str(text.trim()).unwrap_or_default())
}
