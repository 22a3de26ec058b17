//! What holds generations.

use control::types::{Held, HeldStream, StreamKind, Streams};

use super::{Look, Tone, bytes, counted, labelled, span, table};

/// Every generation that was asked about.
pub fn streams(streams: &Streams, look: Look) -> String {
    if streams.generations.is_empty() {
        return "no generation runs".to_owned();
    }
    let each: Vec<String> = streams.generations.iter().map(|h| held(h, look)).collect();
    each.join("\n\n")
}

/// One generation: how many streams, and the oldest of them.
pub fn held(held: &Held, look: Look) -> String {
    let counted_when = match held.unknown {
        Some(_) => "last counted ",
        None => "",
    };
    let head = format!(
        "generation {} ({}, {}): {counted_when}{}",
        held.generation,
        held.place.word(),
        held.version,
        counted(held.total, "stream")
    );
    let mut lines = vec![look.paint(Tone::Strong, &head)];
    if let Some(unknown) = &held.unknown {
        lines.extend(labelled("unknown", unknown));
    }
    if !held.streams.is_empty() {
        let rows: Vec<Vec<String>> = held.streams.iter().map(row).collect();
        let heads = ["age", "kind", "in", "out", "client", "route"];
        lines.extend(table(&heads, &[2, 3], &rows));
        if let Some(first) = lines.get_mut(1) {
            *first = look.paint(Tone::Quiet, first);
        }
    }
    let more = held.total.saturating_sub(held.streams.len() as u64);
    if more > 0 && !held.streams.is_empty() {
        lines.push(format!("  and {more} more, all younger"));
    }
    lines.join("\n")
}

fn row(stream: &HeldStream) -> Vec<String> {
    let kind = match stream.kind {
        StreamKind::Exchange => "request",
        StreamKind::WebSocket => "websocket",
        StreamKind::Tunnel => "tunnel",
        StreamKind::Unknown => "other",
    };
    vec![
        span(i64::try_from(stream.age_ms / 1_000).unwrap_or(i64::MAX)),
        kind.to_owned(),
        bytes(stream.bytes_in),
        bytes(stream.bytes_out),
        printable(&stream.client),
        printable(&stream.route),
    ]
}

/// What clients chose themselves must not move a terminal's cursor.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
