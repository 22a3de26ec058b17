//! What becomes of heads between HTTP/2 and HTTP/1.1.

use super::*;

/// The head as the upstream got it: start line and fields.
async fn echoed(front: &Front, request: http::request::Builder) -> (String, Vec<(String, String)>) {
    let mut client = front.connect().await;
    let request = request.header("x-fixture-echo-head", "1").body(()).unwrap();
    let (status, echo) = json(client.ask(request, b"{}").await).await;
    assert_eq!(status, 200, "{echo}");
    let fields = serde_json::from_value(echo["fields"].clone()).unwrap();
    (echo["request"].as_str().unwrap().to_owned(), fields)
}

fn of<'a>(fields: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    fields
        .iter()
        .filter(|(field, _)| field.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
        .collect()
}

#[tokio::test]
async fn a_request_becomes_http1_with_the_upstreams_own_host() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let request = post("/v1/chat/completions?a=b%20c")
            .header("authorization", "Bearer key")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .header("accept", "x")
            .header("accept", "y");
        let (start, fields) = echoed(&front, request).await;
        assert_eq!(start, "POST /v1/chat/completions?a=b%20c HTTP/1.1");
        assert_eq!(of(&fields, "host"), [upstream.address().to_string()]);
        assert_eq!(of(&fields, "authorization"), ["Bearer key"]);
        assert_eq!(of(&fields, "cookie"), ["a=1; b=2"]);
        assert_eq!(of(&fields, "accept"), ["x", "y"]);
        assert_eq!(of(&fields, "transfer-encoding"), ["chunked"]);
        for name in ["te", "connection", "via", "x-forwarded-for"] {
            assert_eq!(of(&fields, name), [""; 0], "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn configured_fields_are_added_in_both_directions() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::with(UpstreamConfig::new(upstream.url()), |config| {
            config.server.via = "edge".into();
            config.server.forwarded = true;
        })
        .await;
        let (_, fields) = echoed(&front, post("/v1/x").header("via", "2 other")).await;
        assert_eq!(of(&fields, "via"), ["2 other", "2 edge"]);
        assert_eq!(of(&fields, "x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(of(&fields, "x-forwarded-proto"), ["http"]);
        assert_eq!(of(&fields, "x-forwarded-host"), ["proxy"]);
        let mut client = front.connect().await;
        let answer = client.ask(post("/v1/x").body(()).unwrap(), b"{}").await;
        assert_eq!(answer.headers()["via"], "1.1 edge");
    })
    .await;
}

#[tokio::test]
async fn a_get_without_a_body_has_none_and_one_with_a_body_keeps_it() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let client = front.connect().await;
        let request = || Request::get("http://proxy/v1/models").body(()).unwrap();
        let mut sender = client.sender.clone().ready().await.unwrap();
        let (answer, _) = sender.send_request(request(), true).unwrap();
        let (status, echo) = json(soon(answer).await.unwrap()).await;
        assert_eq!((status, echo["bytes"].as_u64()), (200, Some(0)));

        let (answer, mut stream) = sender.send_request(request(), false).unwrap();
        stream
            .send_data(Bytes::from_static(b"data"), false)
            .unwrap();
        stream.send_data(Bytes::from_static(b"more"), true).unwrap();
        let (status, echo) = json(soon(answer).await.unwrap()).await;
        assert_eq!((status, echo["bytes"].as_u64()), (200, Some(8)));
    })
    .await;
}

#[tokio::test]
async fn our_own_pages_are_answered_and_a_head_has_no_body() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let client = front.connect().await;
        let mut sender = client.sender.clone().ready().await.unwrap();
        for (method, path, status, length) in [
            ("GET", "/health", 200, 15),
            ("HEAD", "/health", 200, 0),
            ("GET", "/nothing", 404, 1),
            ("HEAD", "/nothing", 404, 0),
        ] {
            let request = Request::builder()
                .method(method)
                .uri(format!("http://proxy{path}"));
            let (answer, _) = sender
                .send_request(request.body(()).unwrap(), true)
                .unwrap();
            let answer = soon(answer).await.unwrap();
            assert_eq!(answer.status(), status, "{method} {path}");
            assert_ne!(answer.headers()["content-length"], "0");
            let body = read(&mut answer.into_body()).await.unwrap();
            assert!(body.len() >= length && (length > 0) != body.is_empty());
        }
        assert_eq!(upstream.counts().connections, 0);
    })
    .await;
}
