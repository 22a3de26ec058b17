use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use serde_json::{Value, json};

use super::*;
use crate::config::{Route, Upstream};

struct Process {
    ready: AtomicBool,
}

impl Vitals for Process {
    fn ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn status(&self) -> Value {
        json!({ "workerVersion": "1.2.3" })
    }
}

fn gateway(config: &Config) -> (Gateway, Arc<Process>) {
    let process = Arc::new(Process {
        ready: AtomicBool::new(true),
    });
    (
        Gateway::new(config, Arc::clone(&process) as Arc<dyn Vitals>).unwrap(),
        process,
    )
}

/// `METHOD /path?query [field…]` decided: `scheme://authority/path?query`, or the local answer.
fn decide(
    gateway: &Gateway,
    method: &str,
    target: &str,
    fields: &[&'static str],
) -> Result<String, LocalAnswer> {
    let mut map = HeaderMap::new();
    for name in fields {
        map.insert(*name, "2023-06-01".parse().unwrap());
    }
    let (path, query) = target
        .split_once('?')
        .map_or((target, None), |(path, query)| (path, Some(query)));
    match gateway.decide(&RequestHead {
        method,
        path,
        query,
        upgrade: None,
        fields: &map,
    }) {
        Decision::Forward(forward) => Ok(format!(
            "{}://{}{}",
            forward.target.scheme, forward.target.authority, forward.path_and_query
        )),
        Decision::Answer(answer) => Err(answer),
    }
}

#[test]
fn default_routes_send_each_api_to_its_provider() {
    const ANTHROPIC: &str = "https://api.anthropic.com";
    const OPENAI: &str = "https://api.openai.com";
    let (gateway, _) = gateway(&Config::default());
    let table: [(&str, &str, &[&'static str], &str); 16] = [
        ("POST", "/v1/messages", &[], ANTHROPIC),
        ("POST", "/v1/messages", &["anthropic-version"], ANTHROPIC),
        ("POST", "/v1/messages?beta=true", &[], ANTHROPIC),
        ("POST", "/v1/messages/count_tokens", &[], ANTHROPIC),
        (
            "GET",
            "/v1/messages/batches/msgbatch_1/results",
            &[],
            ANTHROPIC,
        ),
        ("GET", "/v1/models", &["anthropic-version"], ANTHROPIC),
        (
            "GET",
            "/v1/models?limit=5",
            &["anthropic-version"],
            ANTHROPIC,
        ),
        (
            "GET",
            "/v1/models/claude-1",
            &["anthropic-version"],
            ANTHROPIC,
        ),
        ("GET", "/v1/models", &[], OPENAI),
        ("GET", "/v1/models", &["x-api-key"], OPENAI),
        ("GET", "/v1/models/gpt-1", &[], OPENAI),
        ("DELETE", "/v1/models/ft:gpt-1%2Fmine", &[], OPENAI),
        ("POST", "/v1/chat/completions", &[], OPENAI),
        (
            "POST",
            "/v1/chat/completions",
            &["anthropic-version"],
            OPENAI,
        ),
        ("POST", "/v1/responses", &[], OPENAI),
        ("POST", "/v1/embeddings", &[], OPENAI),
    ];
    for (method, target, fields, provider) in table {
        assert_eq!(
            decide(&gateway, method, target, fields),
            Ok(format!("{provider}{target}")),
            "{method} {target} {fields:?}"
        );
    }
}

#[test]
fn a_refused_head_is_answered_with_the_parsers_own_sentence() {
    for (status, code) in [
        (400, "bad_request"),
        (431, "head_too_large"),
        (501, "transfer_coding_not_supported"),
        (505, "version_not_supported"),
    ] {
        let answer = answers::refused(Shape::default(), status, "there are two Hosts");
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer.status, status);
        assert_eq!(body["error"]["code"], code);
        assert_eq!(body["error"]["message"], "there are two Hosts");
    }
}

#[test]
fn options_of_the_server_as_a_whole_is_answered_here() {
    let (gateway, _) = gateway(&Config::default());
    let answer = decide(&gateway, "OPTIONS", "*", &[]).unwrap_err();
    assert_eq!(answer.status, 200);
    assert!(answer.allow.unwrap().contains("POST"));
    assert_eq!(decide(&gateway, "POST", "*", &[]).unwrap_err().status, 404);
}

#[test]
fn a_protocol_is_switched_to_only_if_the_route_names_all_that_is_offered() {
    let mut config = Config::default();
    config
        .upstreams
        .insert("a".into(), Upstream::new("http://a"));
    let route = |path: &str, upgrade: &[&str]| Route {
        upgrade: upgrade.iter().map(|name| (*name).to_owned()).collect(),
        ..Route::new(path, "a")
    };
    config.routes = vec![
        Route::new("/default", "a"),
        route("/none", &[]),
        route("/two", &["websocket", "mqtt/5"]),
    ];
    let (gateway, _) = gateway(&config);
    let fields = HeaderMap::new();
    for (path, upgrade, allowed) in [
        ("/default", "websocket", true),
        ("/default", "WebSocket/13", true),
        ("/default", "mqtt/5", false),
        ("/default", "websocket, h2c", false),
        ("/default", "h2c", false),
        ("/default", "", false),
        ("/default", " , ", false),
        ("/default", "websockets", false),
        ("/none", "websocket", false),
        ("/two", "mqtt/5 ,\twebsocket", true),
        ("/two", "mqtt/4", false),
        ("/two", "mqtt", false),
        ("/two", "websocket, mqtt/4", false),
    ] {
        let decision = gateway.decide(&RequestHead {
            method: "GET",
            path,
            query: None,
            upgrade: Some(upgrade),
            fields: &fields,
        });
        match decision {
            Decision::Forward(forward) => {
                assert!(allowed && forward.upgrade, "{path} {upgrade:?}");
            }
            Decision::Answer(answer) => {
                assert_eq!((answer.status, allowed), (501, false), "{path} {upgrade:?}");
            }
        }
    }
    for (path, upgrade) in [("/none", None), ("/status", Some("websocket"))] {
        let decision = gateway.decide(&RequestHead {
            method: "GET",
            path,
            query: None,
            upgrade,
            fields: &fields,
        });
        match decision {
            Decision::Forward(forward) => assert!(!forward.upgrade),
            Decision::Answer(answer) => assert_eq!((path, answer.status), ("/status", 200)),
        }
    }
}

#[test]
fn a_tunnel_is_opened_to_exactly_the_host_and_port_of_a_route_that_allows_it() {
    let mut config = Config::default();
    for (name, url) in [
        ("plain", "http://plain.example"),
        ("tls", "https://tls.example/base"),
        ("other", "http://other.example:8080"),
        ("six", "http://[::1]:9000"),
    ] {
        config.upstreams.insert(name.into(), Upstream::new(url));
    }
    let open = |upstream: &str| Route {
        connect: true,
        ..Route::new("/x", upstream)
    };
    config.routes = vec![
        Route::new("/x", "other"),
        open("plain"),
        open("tls"),
        open("six"),
    ];
    let (gateway, _) = gateway(&config);
    for (authority, upstream) in [
        ("plain.example:80", Some("plain")),
        ("PLAIN.Example:80", Some("plain")),
        ("tls.example:443", Some("tls")),
        ("[::1]:9000", Some("six")),
        ("plain.example", None),
        ("plain.example:", None),
        ("plain.example:443", None),
        ("plain.example:080", None),
        ("plain.example:80/", None),
        ("me@plain.example:80", None),
        ("plain.example.:80", None),
        ("::1:9000", None),
        ("other.example:8080", None),
        ("", None),
    ] {
        let target = gateway.connect(authority);
        assert_eq!(
            target.map(|target| target.name.as_str()),
            upstream,
            "{authority}"
        );
    }
    assert_eq!(answers::connect_refused(Shape::default()).status, 403);
}

#[test]
fn an_unknown_path_is_404_in_the_clients_own_error_shape() {
    let (gateway, _) = gateway(&Config::default());
    for (target, fields, shape) in [
        ("/", &[][..], "openai"),
        ("/v1", &[], "openai"),
        ("/v1/modelsx", &[], "openai"),
        ("/v1/chat/completions/", &[], "openai"),
        ("/V1/messages", &[], "openai"),
        ("*", &[], "openai"),
        ("/v1/complete", &["anthropic-version"], "anthropic"),
        ("/v1/modelsx", &["anthropic-version"], "anthropic"),
    ] {
        let answer = decide(&gateway, "POST", target, fields).unwrap_err();
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer.status, 404, "{target}");
        if shape == "anthropic" {
            assert_eq!(body["type"], "error", "{target}");
            assert_eq!(body["error"]["type"], "not_found_error", "{target}");
        } else {
            assert_eq!(body["error"]["type"], "invalid_request_error", "{target}");
            assert_eq!(body["error"]["code"], "no_route", "{target}");
            assert_eq!(body["error"]["param"], Value::Null, "{target}");
        }
        assert!(
            body["error"]["message"].as_str().unwrap().contains(target),
            "{target}"
        );
    }
}

#[test]
fn a_huge_path_is_shortened_in_the_answer() {
    let (gateway, _) = gateway(&Config::default());
    let answer = decide(&gateway, "GET", &format!("/{}", "é".repeat(30_000)), &[]).unwrap_err();
    assert_eq!(answer.status, 404);
    assert!(answer.body.len() < 1_000, "{}", answer.body.len());
}

#[test]
fn own_pages_tell_the_process_vital_signs() {
    let (gateway, process) = gateway(&Config::default());
    let page = |method, target| decide(&gateway, method, target, &[]).unwrap_err();
    assert_eq!(
        page("GET", "/health"),
        answers::json(200, Bytes::from_static(b"{\"status\":\"ok\"}"))
    );
    assert_eq!(page("HEAD", "/health?x=1").status, 200);
    assert_eq!(page("GET", "/ready").status, 200);
    process.ready.store(false, Ordering::Relaxed);
    assert_eq!(page("GET", "/ready").status, 503);
    assert_eq!(page("GET", "/health").status, 200);
    assert_eq!(
        page("GET", "/status").body,
        Bytes::from_static(b"{\"workerVersion\":\"1.2.3\"}")
    );
}

#[test]
fn own_pages_refuse_other_methods() {
    let (gateway, _) = gateway(&Config::default());
    for path in ["/health", "/ready", "/status"] {
        let answer = decide(&gateway, "POST", path, &[]).unwrap_err();
        assert_eq!(
            (answer.status, answer.allow),
            (405, Some("GET, HEAD")),
            "{path}"
        );
    }
}

#[test]
fn an_upstreams_own_path_goes_before_the_requests() {
    let mut config = Config::default();
    config.upstreams.insert(
        "mine".into(),
        Upstream::new("http://127.0.0.1:9000/base/path"),
    );
    config.routes = vec![Route::new("/v1/*", "mine")];
    let (gateway, _) = gateway(&config);
    assert_eq!(
        decide(&gateway, "GET", "/v1/a%2Fb?q=%20&r", &[]),
        Ok("http://127.0.0.1:9000/base/path/v1/a%2Fb?q=%20&r".into())
    );
    assert_eq!(
        decide(&gateway, "GET", "/v1/?", &[]),
        Ok("http://127.0.0.1:9000/base/path/v1/?".into())
    );
    assert_eq!(decide(&gateway, "GET", "/v2", &[]).unwrap_err().status, 404);
}

#[test]
fn the_first_route_that_matches_wins() {
    let mut config = Config::default();
    config
        .upstreams
        .insert("a".into(), Upstream::new("http://a"));
    config
        .upstreams
        .insert("b".into(), Upstream::new("http://b"));
    let route = |path: &str, header: Option<&str>, upstream: &str| Route {
        header: header.map(Into::into),
        ..Route::new(path, upstream)
    };
    config.routes = vec![
        route("/x", Some("x-b"), "b"),
        route("/x*", None, "a"),
        route("/x", None, "b"),
    ];
    let (gateway, _) = gateway(&config);
    assert_eq!(decide(&gateway, "GET", "/x", &[]), Ok("http://a/x".into()));
    assert_eq!(
        decide(&gateway, "GET", "/x", &["x-b"]),
        Ok("http://b/x".into())
    );
    assert_eq!(
        decide(&gateway, "GET", "/xy", &["x-b"]),
        Ok("http://a/xy".into())
    );
}

#[test]
fn a_route_without_its_upstream_is_refused_by_name() {
    let mut config = Config::default();
    config.routes.push(Route::new("/x", "gone"));
    let process = Arc::new(Process {
        ready: AtomicBool::new(true),
    });
    let refusal = Gateway::new(&config, process).err().unwrap();
    assert_eq!(refusal.code(), "CONFIG_ROUTE_WITHOUT_UPSTREAM");
    assert!(
        refusal.to_string().contains("/x") && refusal.to_string().contains("gone"),
        "{refusal}"
    );
}

#[test]
fn failures_have_a_status_a_code_and_the_upstreams_name() {
    use answers::Failure;
    for (kind, status, counted) in [
        (Failure::Unreachable, 502, true),
        (Failure::NoAnswer, 502, true),
        (Failure::ConnectTimeout, 504, true),
        (Failure::AnswerTimeout, 504, true),
        (Failure::NoHttp2, 502, true),
    ] {
        let answer = answers::failure(Shape::OpenAi, kind, "openai");
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(
            (answer.status, kind.is_failure_to_serve()),
            (status, counted)
        );
        assert_eq!(body["error"]["code"], kind.code());
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("openai"), "{message}");
    }
    for (kind, status, counted) in [
        (Failure::NoTunnel, 501, false),
        (Failure::UnknownCoding, 501, false),
        (Failure::BadBody, 400, false),
        (Failure::HeadTimeout, 408, false),
        (Failure::BodyTimeout, 408, false),
        (Failure::ClientGone, 499, false),
        (Failure::NoDescriptors, 503, true),
    ] {
        let answer = answers::failure(Shape::OpenAi, kind, "openai");
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(
            (answer.status, kind.is_failure_to_serve()),
            (status, counted)
        );
        assert_eq!(body["error"]["code"], kind.code());
        let message = body["error"]["message"].as_str().unwrap();
        assert!(!message.contains("openai"), "{message}");
    }
    let answer = answers::failure(Shape::Anthropic, Failure::AnswerTimeout, "anthropic");
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["error"]["type"], "timeout_error");
}
