use control::types::Status;

use super::*;

fn status(generation: u64) -> News {
    let status: Status = serde_json::from_value(serde_json::json!({
        "schema": 1, "supervisorVersion": "1.0.0", "supervisorPid": 1, "nonce": "n", "since": "2026-01-02T12:00:00Z",
        "rolling": {"generation": generation}
    }))
    .unwrap();
    News::Status(Box::new(status))
}

fn away() -> News {
    News::Away(ControlError::NotRunning { home: "/h".into() })
}

fn view(terminal: bool, format: Format) -> View {
    View {
        terminal,
        format,
        look: Look::default(),
        last: None,
        away: 0,
    }
}

fn now() -> jiff::Timestamp {
    "2026-01-02T12:00:00.5Z".parse().unwrap()
}

#[test]
fn in_a_pipe_each_change_is_a_block_and_an_absence_is_told_once() {
    let mut view = view(false, Format::Text);
    let block = view.show(status(1), now());
    assert!(
        block.starts_with("2026-01-02T12:00:00Z\nrollproxy: nobody serves"),
        "{block}"
    );
    assert!(
        block.ends_with("\n\n") && !block.contains('\x1b'),
        "{block:?}"
    );
    // One cut is a supervisor that replaces itself.
    assert_eq!(view.show(away(), now()), "");
    assert_ne!(view.show(status(1), now()), "");
    assert_eq!(view.show(away(), now()), "");
    let told = view.show(away(), now());
    assert!(told.contains("error[NOT_RUNNING]"), "{told}");
    assert_eq!(view.show(away(), now()), "");
    assert_eq!(view.show(away(), now()), "");
    assert_ne!(view.show(status(1), now()), "");
}

#[test]
fn in_json_each_change_is_a_line() {
    let mut view = view(false, Format::Json);
    for (news, key) in [(status(1), "rolling"), (away(), ""), (away(), "error")] {
        let line = view.show(news, now());
        assert_eq!(line.matches('\n').count(), usize::from(!key.is_empty()));
        assert!(
            key.is_empty() || line.contains(&format!("{key:?}:")),
            "{line}"
        );
    }
}

#[test]
fn on_a_terminal_it_is_redrawn_from_the_top_and_keeps_what_it_last_was() {
    let mut view = view(true, Format::Text);
    let drawn = view.show(status(1), now());
    assert!(
        drawn.starts_with("\x1b[Hrollproxy: nobody serves"),
        "{drawn:?}"
    );
    assert!(drawn.ends_with("Ctrl-C ends\x1b[K\r\n\x1b[J"), "{drawn:?}");
    assert_eq!(view.show(away(), now()), "", "one cut does not flicker");
    let drawn = view.show(away(), now());
    assert!(
        drawn.starts_with("\x1b[Herror[NOT_RUNNING]") && drawn.contains("nobody serves"),
        "{drawn:?}"
    );
}
