use super::*;

fn sent_on(head: &str, change: impl FnOnce(&mut Onward<'_>)) -> String {
    let mut onward = Onward {
        path_and_query: ["/v1/other?x", "", "", ""],
        authority: "upstream.example",
        upgrade: false,
        extra: b"",
    };
    change(&mut onward);
    let mut out = Vec::new();
    request(head.as_bytes(), |head| head.write_onward(&onward, &mut out)).unwrap();
    String::from_utf8(out).unwrap()
}

fn sent_back(head: &str, change: impl FnOnce(&mut Back<'_>)) -> String {
    let mut back = Back {
        close: false,
        chunks: true,
        upgrade: false,
        extra: b"",
    };
    change(&mut back);
    let mut out = Vec::new();
    answer(head.as_bytes(), Asked::Other, |head| {
        head.write_onward(&back, &mut out);
    })
    .unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn fields_go_on_byte_for_byte_and_host_is_replaced_in_its_place() {
    assert_eq!(
        sent_on(
            "POST /a HTTP/1.1\r\nX-ONE:1\r\nhOsT:  here \r\nx-two:   2  \r\nCONTENT-length: 5\r\nx-one:\r\n\r\n",
            |_| {}
        ),
        "POST /v1/other?x HTTP/1.1\r\nX-ONE:1\r\nhOsT: upstream.example\r\nx-two:   2  \r\nCONTENT-length: 5\r\nx-one:\r\n\r\n"
    );
}

#[test]
fn a_missing_host_is_put_first() {
    assert_eq!(
        sent_on("\r\nGET /a HTTP/1.0\r\nA: b\r\n\r\n", |_| {}),
        "GET /v1/other?x HTTP/1.1\r\nHost: upstream.example\r\nA: b\r\n\r\n"
    );
}

#[test]
fn an_answer_goes_back_byte_for_byte() {
    assert_eq!(
        sent_back(
            "HTTP/1.0 299 \u{e9}  odd\r\nServer:x\r\nKEEP-alive: 5\r\nset-cookie: a\r\nSet-Cookie: b\r\n\r\n",
            |_| {}
        ),
        "HTTP/1.1 299 \u{e9}  odd\r\nServer:x\r\nset-cookie: a\r\nSet-Cookie: b\r\n\r\n"
    );
}
