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
    config.routes = vec![Route {
        path: "/v1/*".into(),
        header: None,
        upstream: "mine".into(),
    }];
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
        path: path.into(),
        header: header.map(Into::into),
        upstream: upstream.into(),
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
    config.routes.push(Route {
        path: "/x".into(),
        header: None,
        upstream: "gone".into(),
    });
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
        (Failure::NoTunnel, 501, false),
    ] {
        let answer = answers::failure(Shape::OpenAi, kind, "openai");
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(
            (answer.status, kind.is_failure_to_serve()),
            (status, counted)
        );
        assert_eq!(body["error"]["code"], kind.code());
        assert_eq!(
            body["error"]["message"]
                .as_str()
                .unwrap()
                .contains("openai"),
            kind != Failure::NoTunnel
        );
    }
    let answer = answers::failure(Shape::Anthropic, Failure::AnswerTimeout, "anthropic");
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["error"]["type"], "timeout_error");
}
