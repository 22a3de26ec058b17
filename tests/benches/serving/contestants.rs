//! Who stands between load and upstream: nobody, one of the peers, or Rollproxy.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::machine::{self, find};
use harness::{Proxy, Starting, TestHome};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::wire::{Request, Want};

/// Starts a program after what belongs to its start.
const ENV: &str = "/usr/bin/env";

/// A contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    Direct,
    Nginx,
    Haproxy,
    /// Another build of Rollproxy.
    Before,
    Rollproxy,
}

impl Name {
    pub const ALL: [Self; 5] = [
        Self::Direct,
        Self::Nginx,
        Self::Haproxy,
        Self::Before,
        Self::Rollproxy,
    ];

    pub const fn text(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Before => "before",
            Self::Rollproxy => "rollproxy",
        }
    }

    /// Its first line about itself; nothing if it is not installed.
    pub fn version(self) -> Option<String> {
        let flag = match self {
            Self::Direct => return Some("load and upstream alone".to_owned()),
            Self::Before => return Some("another build of Rollproxy".to_owned()),
            Self::Rollproxy => return Some(rollproxy::COMPILED_VERSION.to_owned()),
            Self::Nginx | Self::Haproxy => "-v",
        };
        let output = Command::new(find(self.text())?).arg(flag).output().ok()?;
        let words = [output.stdout, output.stderr].concat();
        let words = String::from_utf8_lossy(&words).into_owned();
        words.lines().next().map(str::to_owned)
    }
}

/// A contestant that serves.
pub struct Running {
    pub address: SocketAddrV4,
    /// Supervisor or master, and workers; the first is the root.
    pub pids: Vec<i32>,
    holder: Option<Holder>,
}

/// What must be held while it runs.
enum Holder {
    Peer(Child),
    Rollproxy(Box<Proxy>),
}

/// What is common to all starts.
pub struct Stage<'a> {
    pub upstream: SocketAddrV4,
    pub home: &'a TestHome,
    pub runtime: &'a tokio::runtime::Runtime,
    /// What is started for Rollproxy: the launcher, or a `rollproxy` itself.
    pub rollproxy: PathBuf,
    pub before: Option<PathBuf>,
    /// Workers or threads: as many as Rollproxy takes by itself.
    pub cores: usize,
}

impl Stage<'_> {
    /// Starts it fresh and waits until it has answered.
    pub fn start(&self, name: Name) -> Running {
        let mut running = match name {
            Name::Direct => Running {
                address: self.upstream,
                pids: Vec::new(),
                holder: None,
            },
            Name::Nginx => self.peer(name, nginx, |program, file| {
                program.arg("-p").arg(file.parent().unwrap());
                program.arg("-e").arg("stderr").arg("-c").arg(file);
            }),
            Name::Haproxy => self.peer(name, haproxy, |program, file| {
                program.arg("-db").arg("-f").arg(file);
            }),
            Name::Before => self.rollproxy(self.before.as_ref().unwrap()),
            Name::Rollproxy => self.rollproxy(&self.rollproxy),
        };
        running.wait_until_it_answers(name);
        if let Some(root) = running.pids.first() {
            running.pids = machine::tree(*root);
        }
        running
    }

    fn peer(
        &self,
        name: Name,
        configuration: fn(&Self, &Path, u16) -> String,
        arguments: fn(&mut Command, &Path),
    ) -> Running {
        let folder = self.home.folder().join(name.text());
        std::fs::create_dir_all(&folder).unwrap();
        let port = free_port();
        let file = folder.join("configuration");
        std::fs::write(&file, configuration(self, &folder, port)).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let mut program = Command::new(ENV);
        ends_with_us(&mut program, &find(name.text()).unwrap());
        arguments(&mut program, &file);
        let child = program
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Running {
            address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            pids: vec![i32::try_from(child.id()).unwrap()],
            holder: Some(Holder::Peer(child)),
        }
    }

    /// Through supervisor and hand-off; logging as by default, where the harness wants more.
    fn rollproxy(&self, program: &Path) -> Running {
        let mut command = Command::new(ENV);
        command.args(["-u", "ROLLPROXY_LOG"]);
        ends_with_us(&mut command, program);
        command.arg("serve");
        let proxy = self.runtime.block_on(async {
            let proxy = Starting::run(self.home, &mut command).answering().await;
            proxy.serves().await;
            proxy
        });
        let std::net::SocketAddr::V4(address) = proxy.address else {
            panic!("{} is no IPv4 address", proxy.address);
        };
        Running {
            address,
            pids: vec![proxy.pid()],
            holder: Some(Holder::Rollproxy(Box::new(proxy))),
        }
    }
}

/// As its authors advise for a gateway of streams: connections to the upstream kept, nothing buffered, nothing logged.
fn nginx(stage: &Stage<'_>, folder: &Path, port: u16) -> String {
    let (folder, cores, upstream) = (folder.display(), stage.cores, stage.upstream);
    format!(
        "worker_processes {cores};
worker_rlimit_nofile 20000;
daemon off;
pid {folder}/pid;
error_log stderr warn;
events {{
    worker_connections 8192;
}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    tcp_nodelay on;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
    upstream provider {{
        server {upstream};
        keepalive 256;
        keepalive_requests 1000000000;
        keepalive_timeout 1h;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096 reuseport;
        location / {{
            proxy_pass http://provider;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"
    )
}

/// Likewise.
fn haproxy(stage: &Stage<'_>, _: &Path, port: u16) -> String {
    let (cores, upstream) = (stage.cores, stage.upstream);
    format!(
        "global
    nbthread {cores}
    maxconn 8192
defaults
    mode http
    option http-keep-alive
    option http-no-delay
    http-reuse always
    timeout connect 10s
    timeout client 1h
    timeout server 1h
    timeout http-request 30s
    timeout http-keep-alive 1h
frontend port
    bind 127.0.0.1:{port} backlog 4096
    default_backend provider
backend provider
    server provider {upstream}
"
    )
}

impl Running {
    /// What the processes used so far, in nanoseconds: all of them, and the root alone.
    pub fn processor_time(&self) -> (u64, u64) {
        let all = self.pids.iter().map(|pid| machine::processor_time(*pid));
        let root = self.pids.first();
        (
            all.sum(),
            root.map_or(0, |pid| machine::processor_time(*pid)),
        )
    }

    /// What the processes hold, in KiB.
    pub fn memory_kib(&self) -> u64 {
        let all = self.pids.iter().map(|pid| machine::memory_kib(*pid));
        all.sum()
    }

    fn wait_until_it_answers(&mut self, name: Name) {
        let mut request = Request::new(&self.address.to_string(), Want::LastAnswer);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match ask(self.address, request.numbered(1)) {
                Ok(true) => return,
                seen if Instant::now() > deadline => {
                    panic!("{} does not serve: {seen:?}", name.text())
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
            if let Some(Holder::Peer(child)) = &mut self.holder {
                let ended = child.try_wait().unwrap();
                assert!(ended.is_none(), "{} ended: {ended:?}", name.text());
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for pid in &self.pids {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        match self.holder.take() {
            Some(Holder::Peer(mut child)) => drop(child.wait()),
            Some(Holder::Rollproxy(proxy)) => drop(proxy),
            None => {}
        }
    }
}

/// `program`, ended by SIGTERM when the bench is, however that ends: nothing may be left
/// over that the next run would be measured beside.
fn ends_with_us(command: &mut Command, program: &Path) {
    if let Some(setpriv) = find("setpriv") {
        command.arg(setpriv).args(["--pdeathsig", "TERM"]);
    }
    command.arg(program);
}

/// Whether the answer is 200.
fn ask(address: SocketAddrV4, request: &[u8]) -> std::io::Result<bool> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.write_all(request)?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200 "))
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
