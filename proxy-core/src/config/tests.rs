use std::ffi::OsString;

use fixtures::configs;
use staging::report::{Exit, Report};

use super::*;

fn nothing(_: &str) -> Option<OsString> {
    None
}

fn read(text: &str) -> Result<Loaded, ConfigError> {
    parse(text, "/home/config.toml", &nothing)
}

#[test]
fn no_file_is_the_defaults() {
    let home = tempfile::tempdir().unwrap();
    let loaded = load(&staging::home::Home::at(home.path()), &nothing).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.warnings.is_empty());
    let listen: Vec<String> = loaded
        .config
        .server
        .listen
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(listen, ["127.0.0.1:8787", "[::1]:8787"]);
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn every_key_is_read() {
    let config = read(configs::FULL).unwrap().strict().unwrap().config;
    let default = Config::default();
    assert_eq!(
        config.server,
        Server {
            listen: config.server.listen.clone(),
            unix_mode: 0o660,
            stop_timeout: Duration::from_secs(120),
            unready_window: Duration::from_secs(3),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::ZERO,
            send_timeout: Duration::from_secs(60),
            idle_timeout: Duration::ZERO,
            max_connections: 500,
            via: "rollproxy".into(),
            forwarded: true,
        }
    );
    assert_eq!(config.server.listen.len(), 4);
    assert_eq!(
        config.upstreams["anthropic"],
        Upstream {
            first_byte_timeout: Duration::from_secs(300),
            ..default.upstreams["anthropic"].clone()
        }
    );
    assert_eq!(config.upstreams["openai"], default.upstreams["openai"]);
    assert_eq!(
        config.upstreams["local"],
        Upstream {
            url: "http://127.0.0.1:11434/base".into(),
            connect_timeout: Duration::from_millis(250),
            first_byte_timeout: Duration::ZERO,
            idle_timeout: Duration::from_secs(600),
            http2: true,
        }
    );
    assert_eq!(
        config.routes,
        [
            Route {
                path: "/v1/messages*".into(),
                header: Some("x-local".into()),
                upstream: "local".into(),
                upgrade: vec!["websocket".into(), "mqtt/5".into()],
                connect: true,
            },
            Route {
                path: "/v1/messages*".into(),
                header: None,
                upstream: "anthropic".into(),
                upgrade: Vec::new(),
                connect: false,
            },
        ]
    );
    assert_eq!(
        config.rollout,
        Rollout {
            ready_timeout: Duration::from_secs(10),
            transfer_timeout: Duration::from_secs(2),
            ping_interval: Duration::from_secs(5),
            ping_timeout: Duration::from_secs(6),
            queue_limit: 64,
            queue_timeout: Duration::from_secs(15),
            recovery_min: Duration::from_millis(100),
            recovery_max: Duration::from_secs(5),
            probation: Duration::ZERO,
            drain_deadline: Duration::ZERO,
            probation_error_percent: 50,
            probation_min_requests: 5,
            drain_cap: 4,
            refresh_supervisor: false,
            on_event: vec!["/usr/bin/logger".to_owned(), "--tag".to_owned()],
        }
    );
    assert_eq!(
        config.update,
        serde_json::json!({ "channel": "stable", "shares": [1, 2.5, true] })
    );
    assert_eq!(
        config.budget,
        serde_json::json!({ "tokens_per_minute": 1000 })
    );
    assert_eq!(config.telemetry, serde_json::json!({ "level": "info" }));
}

#[test]
fn a_bad_value_is_refused_with_file_key_value_and_what_is_allowed() {
    for (text, key, allowed) in configs::BAD {
        let refusal = read(text)
            .err()
            .unwrap_or_else(|| panic!("accepted: {text}"));
        let message = refusal.to_string();
        for part in ["/home/config.toml", key, allowed] {
            assert!(message.contains(part), "{text}: {message} lacks {part}");
        }
        assert_eq!(
            (refusal.exit(), refusal.retry()),
            (Exit::Configuration, false)
        );
    }
}

#[test]
fn what_is_no_toml_is_refused_with_its_line() {
    let refusal = read("[server]\nlisten = [").unwrap_err();
    assert_eq!(refusal.code(), "CONFIG_SYNTAX");
    assert!(refusal.to_string().contains("line 2"), "{refusal}");
}

#[test]
fn unknown_keys_are_warnings_when_serving_and_an_error_when_checking() {
    let loaded = read(configs::NEWER).unwrap();
    let unknown = [
        "server.flux_capacity",
        "upstreams.openai.flux",
        "routes[0].flux",
        "rollout.flux_timeout",
        "flux",
        "flux_table",
    ];
    assert_eq!(
        loaded.warnings.len(),
        unknown.len(),
        "{:?}",
        loaded.warnings
    );
    for (warning, key) in loaded.warnings.iter().zip(unknown) {
        assert!(
            warning.starts_with(&format!("unknown key {key} (known here: ")),
            "{warning}"
        );
    }
    assert_eq!(loaded.config.routes.len(), 1);
    let refusal = loaded.strict().unwrap_err();
    assert_eq!(refusal.code(), "CONFIG_UNKNOWN_KEY");
    assert!(
        unknown.iter().all(|key| refusal.to_string().contains(key)),
        "{refusal}"
    );
}

#[test]
fn the_environment_replaces_the_listeners() {
    let env = |value: &'static str| {
        move |name: &str| (name == LISTEN_VARIABLE).then(|| OsString::from(value))
    };
    let loaded = parse(
        configs::FULL,
        "x",
        &env("127.0.0.1:0, [::1]:0, unix:/a.sock"),
    )
    .unwrap();
    let listen: Vec<String> = loaded
        .config
        .server
        .listen
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(listen, ["127.0.0.1:0", "[::1]:0", "unix:/a.sock"]);
    assert_eq!(parse("", "x", &env("")).unwrap().config, Config::default());
    let refusal = parse("", "x", &env("nowhere")).unwrap_err().to_string();
    assert!(
        refusal.contains(LISTEN_VARIABLE)
            && refusal.contains("nowhere")
            && refusal.contains("127.0.0.1:8787"),
        "{refusal}"
    );
}

#[test]
fn an_unreadable_file_is_an_error_that_names_it() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("config.toml")).unwrap();
    let refusal = load(&staging::home::Home::at(home.path()), &nothing).unwrap_err();
    assert_eq!(refusal.code(), "CONFIG_UNREADABLE");
    assert!(refusal.to_string().contains("config.toml"), "{refusal}");
}

#[test]
fn a_snapshot_is_read_back_and_is_the_same_bytes_again() {
    let config = read(configs::FULL).unwrap().config;
    let snapshot = config.to_snapshot().unwrap();
    assert_eq!(Config::from_snapshot(&snapshot).unwrap(), config);
    assert_eq!(
        Config::from_snapshot(&snapshot)
            .unwrap()
            .to_snapshot()
            .unwrap(),
        snapshot
    );
    let json: serde_json::Value = serde_json::from_slice(&snapshot).unwrap();
    assert_eq!(
        (&json["schema"], &json["rollout"]["readyTimeoutMs"]),
        (&1.into(), &10_000.into())
    );
    assert_eq!(json["server"]["listen"][0], "127.0.0.1:9000");
}

#[test]
fn a_snapshot_of_another_version_is_read_if_its_schema_is_known() {
    let mut json: serde_json::Value =
        serde_json::from_slice(&Config::default().to_snapshot().unwrap()).unwrap();
    json["rollout"]["newer"] = 1.into();
    json["newer"] = serde_json::json!({ "a": 1 });
    json["rollout"].as_object_mut().unwrap().remove("drainCap");
    json.as_object_mut().unwrap().remove("telemetry");
    // As written before these settings were there.
    for key in [
        "headerTimeoutMs",
        "bodyTimeoutMs",
        "sendTimeoutMs",
        "idleTimeoutMs",
        "maxConnections",
        "via",
        "forwarded",
    ] {
        assert!(
            json["server"]
                .as_object_mut()
                .unwrap()
                .remove(key)
                .is_some(),
            "{key}"
        );
    }
    for upstream in json["upstreams"].as_object_mut().unwrap().values_mut() {
        upstream.as_object_mut().unwrap().remove("http2");
    }
    for route in json["routes"].as_array_mut().unwrap() {
        route.as_object_mut().unwrap().remove("upgrade");
        route.as_object_mut().unwrap().remove("connect");
    }
    assert_eq!(
        Config::from_snapshot(json.to_string().as_bytes()).unwrap(),
        Config::default()
    );
    json["schema"] = 2.into();
    assert_eq!(
        Config::from_snapshot(json.to_string().as_bytes())
            .unwrap_err()
            .code(),
        "CONFIG_SNAPSHOT_NEWER"
    );
    assert_eq!(
        Config::from_snapshot(b"{}").unwrap_err().code(),
        "CONFIG_SNAPSHOT"
    );
}

#[test]
fn the_digest_follows_the_configuration_and_nothing_else() {
    let plain = read("").unwrap().digest;
    assert_eq!(plain.len(), 64);
    assert_eq!(
        read("# a comment\n[server]\nstop_timeout = \"90s\"")
            .unwrap()
            .digest,
        plain
    );
    assert_ne!(
        read("[server]\nstop_timeout = \"91s\"").unwrap().digest,
        plain
    );
    assert_ne!(read("[update]\nchannel = \"beta\"").unwrap().digest, plain);
}
