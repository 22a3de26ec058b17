//! A feed is a folder for any static file server: a plain nginx serves it, and a host reads it and downloads from it.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use publisher::{KeyRole, Promote, Rotate, add, promote, rotate};
use support::{Host, World, block_on, noise, version};
use updater::feed::{Feed, FeedSettings};

const PATIENCE: Duration = Duration::from_secs(20);

/// A running nginx; it ends with the test.
struct Nginx {
    child: Child,
    url: String,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|folder| folder.join("nginx"))
        .find(|program| program.is_file())
        .expect("nginx in PATH or /usr/sbin: install it, such as Debian's nginx-light")
}

/// Serves `feed` with no more configuration than where it lies.
fn serve(feed: &Path, folder: &Path) -> Nginx {
    // A port that was free a moment ago; who takes it meanwhile makes nginx end, and then there is another.
    for _ in 0..10 {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .unwrap()
            .port();
        let own = folder.join(format!("nginx-{port}"));
        fs::create_dir(&own).unwrap();
        let config = own.join("nginx.conf");
        let text = format!(
            "daemon off;\nmaster_process off;\npid {own}/pid;\nerror_log {own}/error.log;\nevents {{}}\n\
             http {{\n  access_log {own}/access.log;\n  client_body_temp_path {own}/a;\n  proxy_temp_path {own}/b;\n  \
             fastcgi_temp_path {own}/c;\n  uwsgi_temp_path {own}/d;\n  scgi_temp_path {own}/e;\n  \
             server {{ listen 127.0.0.1:{port}; root {feed}; }}\n}}\n",
            own = own.display(),
            feed = feed.display(),
        );
        fs::write(&config, text).unwrap();
        let mut child = Command::new(program())
            .args(["-e", "stderr", "-p"])
            .arg(&own)
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if child.try_wait().unwrap().is_some() {
                break;
            }
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Nginx {
                    child,
                    url: format!("http://127.0.0.1:{port}/"),
                };
            }
            assert!(Instant::now() < deadline, "nginx does not listen");
            std::thread::yield_now();
        }
    }
    panic!("nginx found no port");
}

fn download(host: &Host) -> (String, Vec<u8>) {
    block_on(async {
        let settings = FeedSettings::new(&host.url).unwrap();
        let mut feed = Feed::open(&settings, &host.home).unwrap();
        feed.refresh(jiff::Timestamp::now()).await.unwrap();
        let release = feed.release("stable", staging::TARGET).await.unwrap();
        let release = release.unwrap();
        let done = feed
            .downloader()
            .download(
                &release.wanted(),
                &host.home.downloads(),
                PATIENCE,
                &mut |_| {},
                None,
            )
            .await
            .unwrap();
        (release.version.to_string(), fs::read(done.path).unwrap())
    })
}

#[test]
#[ignore = "needs nginx"]
fn a_plain_nginx_serves_a_feed_from_its_first_release_through_a_rotation() {
    let world = World::initialised();
    let first = add(&world.place, &world.real("1.0.0", &noise(300_000, 1))).unwrap();
    promote(&world.place, &Promote::new("stable", version("1.0.0"))).unwrap();
    let nginx = serve(&world.place.feed, world.folder.path());
    let host = Host {
        url: nginx.url.clone(),
        ..world.host("h")
    };
    let served = |path: &Path| fs::read(path).unwrap();
    assert_eq!(download(&host), ("1.0.0".into(), served(&first.path)));

    let all = ["root", "targets", "snapshot", "timestamp", "channel-stable"];
    let roles = all.map(|role| role.parse::<KeyRole>().unwrap());
    rotate(&world.place, &Rotate::new(roles)).unwrap();
    let second = add(&world.place, &world.real("1.1.0", &noise(300_000, 2))).unwrap();
    promote(&world.place, &Promote::new("stable", version("1.1.0"))).unwrap();
    let new = Host {
        url: nginx.url.clone(),
        ..world.host("new")
    };
    for host in [&host, &new] {
        assert_eq!(download(host), ("1.1.0".into(), served(&second.path)));
    }
    // A page that nginx makes up itself is no feed and no channel.
    assert_eq!(host.offer("beta"), Ok(None));
}
