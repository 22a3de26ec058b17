//! Where the frames of a WebSocket begin and end (RFC 6455, section 5.2): their headers are followed, nothing else is
//! looked at. Pure.

/// A close frame to the client: 1012, the service restarts.
pub const RESTARTING: [u8; 4] = [0x88, 2, 0x03, 0xf4];
/// What is said to the upstream: 1001, the client's side goes away.
const GOING_AWAY: [u8; 2] = [0x03, 0xe9];

/// One direction of a WebSocket, as far as it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frames {
    at: At,
    /// The frame under way is a close frame.
    closing: bool,
    /// A close frame went by: nothing may follow it.
    closed: bool,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum At {
    /// The first byte of a frame.
    #[default]
    Boundary,
    /// The byte with the mask bit and the short length.
    Length,
    /// So many bytes of a long length, behind those that came.
    LongLength { left: u8, value: u64, masked: bool },
    /// So many bytes of mask and payload; never zero.
    Rest(u64),
    /// Anybody's guess: a length was no length.
    Unknown,
}

impl Frames {
    /// Bytes went by.
    pub fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.step(bytes);
            bytes = &bytes[taken..];
        }
    }

    /// As many of these bytes go by as belong to the frame under way; none between two frames.
    pub fn finish(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() && !self.is_between() {
            done += self.step(&bytes[done..]);
        }
        done
    }

    /// Whether a frame may be put in here.
    pub fn is_between(&self) -> bool {
        self.at == At::Boundary
    }

    /// Whether a close frame went by, so that nothing may follow.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether no more boundary will be known.
    pub fn is_lost(&self) -> bool {
        self.at == At::Unknown
    }

    /// Takes at least one byte of some.
    fn step(&mut self, bytes: &[u8]) -> usize {
        const CLOSE: u8 = 8;
        let first = bytes[0];
        let mut taken = 1;
        self.at = match self.at {
            At::Boundary => {
                self.closing = first & 0x0f == CLOSE;
                At::Length
            }
            At::Length => {
                let masked = first & 0x80 != 0;
                match first & 0x7f {
                    126 => long(2, masked),
                    127 => long(8, masked),
                    short => rest(u64::from(short), masked),
                }
            }
            At::LongLength {
                left,
                value,
                masked,
            } => {
                let value = value << 8 | u64::from(first);
                match left {
                    1 => rest(value, masked),
                    _ => At::LongLength {
                        left: left - 1,
                        value,
                        masked,
                    },
                }
            }
            At::Rest(left) => {
                taken = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                match left - taken as u64 {
                    0 => At::Boundary,
                    left => At::Rest(left),
                }
            }
            At::Unknown => {
                taken = bytes.len();
                At::Unknown
            }
        };
        self.closed |= self.closing && self.is_between();
        taken
    }
}

fn long(left: u8, masked: bool) -> At {
    At::LongLength {
        left,
        value: 0,
        masked,
    }
}

/// The highest bit of a length must be zero.
fn rest(length: u64, masked: bool) -> At {
    match length.saturating_add(if masked { 4 } else { 0 }) {
        _ if length >> 63 != 0 => At::Unknown,
        0 => At::Boundary,
        left => At::Rest(left),
    }
}

/// The close frame for the upstream, which must be masked.
pub fn going_away(mask: [u8; 4]) -> [u8; 8] {
    let [a, b, c, d] = mask;
    let [high, low] = GOING_AWAY;
    [0x88, 0x82, a, b, c, d, high ^ a, low ^ b]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: u8 = 0x81;
    const CLOSE: u8 = 0x88;

    /// A frame as a sender writes it, its payload of ones.
    fn frame(first: u8, length: usize, masked: bool) -> Vec<u8> {
        let bit = if masked { 0x80 } else { 0 };
        let mut bytes = vec![first];
        match length {
            0..126 => bytes.push(bit | u8::try_from(length).unwrap()),
            126..0x1_0000 => {
                bytes.push(bit | 126);
                bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            _ => {
                bytes.push(bit | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(vec![0xff; length + if masked { 4 } else { 0 }]);
        bytes
    }

    #[test]
    fn each_kind_of_header_ends_where_its_length_says() {
        for first in [TEXT, 0x01, 0x80, 0x82, 0xc2, 0x89, CLOSE] {
            for length in [0, 1, 125, 126, 127, 0xffff, 0x1_0000, 200_000] {
                for masked in [false, true] {
                    let bytes = frame(first, length, masked);
                    let mut frames = Frames::default();
                    assert!(frames.is_between());
                    frames.advance(&bytes[..1]);
                    assert!(!frames.is_between());
                    let rest = [&bytes[1..], b"next"].concat();
                    assert_eq!(
                        frames.finish(&rest),
                        bytes.len() - 1,
                        "{first:x} {length} {masked}"
                    );
                    assert!(frames.is_between());
                    assert_eq!(frames.finish(b"next"), 0);
                    assert_eq!(frames.is_closed(), first == CLOSE);
                }
            }
        }
    }

    /// Frames in a row, and after which bytes each begins.
    fn some(seed: u64) -> (Vec<u8>, Vec<usize>) {
        let noise = fixtures::script::noise(seed, 64);
        let (mut bytes, mut begins) = (Vec::new(), vec![0]);
        for pair in noise.chunks(2) {
            let length = match pair[0] % 4 {
                0 => usize::from(pair[1] % 4),
                1 => usize::from(pair[1]),
                2 => 200 + usize::from(pair[1]) * 3,
                _ => 0x1_0000 + usize::from(pair[1]),
            };
            bytes.extend(frame(TEXT, length, pair[0] & 8 != 0));
            begins.push(bytes.len());
        }
        (bytes, begins)
    }

    #[test]
    fn however_bytes_are_cut_the_same_boundaries_are_found() {
        for seed in 0..20 {
            let (bytes, begins) = some(seed);
            let cuts = fixtures::script::noise(seed + 1_000, 4_096);
            let (mut frames, mut at) = (Frames::default(), 0);
            let mut cuts = cuts.iter().cycle();
            while at < bytes.len() {
                let cut = usize::from(*cuts.next().unwrap()) * 7 + 1;
                let piece = &bytes[at..(at + cut).min(bytes.len())];
                // Sometimes only to the end of the frame.
                let taken = match cut % 3 {
                    0 if !frames.is_between() => frames.finish(piece),
                    _ => {
                        frames.advance(piece);
                        piece.len()
                    }
                };
                at += taken;
                assert_eq!(frames.is_between(), begins.contains(&at), "{seed}: {at}");
                assert!(!frames.is_closed() && !frames.is_lost());
            }
        }
    }

    #[test]
    fn a_frame_cut_at_any_byte_is_finished_and_no_byte_more() {
        for length in [0, 5, 126, 0x1_0000] {
            let bytes = frame(TEXT, length, false);
            let next = [&bytes[..], &frame(TEXT, 3, false)].concat();
            for cut in 1..bytes.len() {
                let mut frames = Frames::default();
                frames.advance(&bytes[..cut]);
                assert_eq!(
                    frames.finish(&next[cut..]),
                    bytes.len() - cut,
                    "{length}: {cut}"
                );
                assert!(frames.is_between());
            }
        }
    }

    #[test]
    fn a_close_frame_that_was_said_already_is_the_last() {
        let mut frames = Frames::default();
        let close = frame(CLOSE, 2, false);
        frames.advance(&close[..3]);
        assert!(!frames.is_closed());
        frames.advance(&close[3..]);
        assert!(frames.is_closed() && frames.is_between());
    }

    #[test]
    fn a_length_that_is_none_loses_the_boundaries_for_good() {
        let mut frames = Frames::default();
        frames.advance(&[TEXT, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert!(frames.is_lost() && !frames.is_between());
        assert_eq!(frames.finish(b"whatever"), 8);
        assert!(frames.is_lost());
        let mut lost = Frames::default();
        lost.advance(&[0xff; 20]);
        assert!(lost.is_lost() && !lost.is_closed());
        let mut longest = Frames::default();
        longest.advance(&[TEXT, 0xff, 0x7f, 255, 255, 255, 255, 255, 255, 255, 1]);
        assert!(!longest.is_lost() && !longest.is_between());
    }

    #[test]
    fn whatever_comes_and_however_it_is_cut_the_same_is_made_of_it() {
        for seed in 0..3_000 {
            let mut bytes = fixtures::script::noise(seed, 80);
            // Short lengths, and now and then a long one, so that many frames begin.
            for byte in &mut bytes {
                *byte &= if *byte & 0x40 == 0 { 0x8f } else { 0xff };
            }
            let mut whole = Frames::default();
            whole.advance(&bytes);
            for cut in 0..bytes.len() {
                let mut frames = Frames::default();
                frames.advance(&bytes[..cut]);
                let rest = &bytes[cut..];
                let taken = frames.finish(rest);
                assert!(taken <= rest.len());
                assert!(taken == rest.len() || frames.is_between());
                frames.advance(&rest[taken..]);
                assert_eq!(frames, whole, "{seed}: {cut}");
            }
        }
    }

    #[test]
    fn what_is_said_at_the_end_is_a_frame_of_its_kind() {
        for bytes in [&RESTARTING[..], &going_away([1, 2, 3, 4])] {
            let mut frames = Frames::default();
            frames.advance(bytes);
            assert!(frames.is_closed() && frames.is_between());
        }
        assert_eq!(u16::from_be_bytes([RESTARTING[2], RESTARTING[3]]), 1012);
        let masked = going_away([7, 9, 200, 3]);
        assert_eq!(u16::from_be_bytes([masked[6] ^ 7, masked[7] ^ 9]), 1001);
    }
}
