//! Which region of the old content a piece of the new tar has most in common with. Pure.
//!
//! Both are sampled where a rolling hash of a few bytes says so, so that the same bytes are sampled on both sides wherever
//! they stand. A sample that the old content has once votes for the place where it stands there.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The bytes of a sample.
pub(super) const SAMPLE: usize = 32;
/// One place in so many is sampled.
const RARITY: u64 = 16;
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Votes are counted by so many bytes.
const BUCKET: u64 = 128 * 1024;

/// Calls `take` with hash and place of every sample in `bytes`.
fn samples(bytes: &[u8], mut take: impl FnMut(u64, usize)) {
    if bytes.len() < SAMPLE {
        return;
    }
    // What the byte that leaves the sample has been multiplied with.
    let leaving = (0..SAMPLE).fold(1u64, |power, _| power.wrapping_mul(FACTOR));
    let add = |hash: u64, byte: u8| {
        hash.wrapping_mul(FACTOR)
            .wrapping_add(u64::from(byte).wrapping_add(1))
    };
    let mut hash = bytes[..SAMPLE]
        .iter()
        .fold(0, |hash, byte| add(hash, *byte));
    for end in SAMPLE..=bytes.len() {
        // The low bits know only the low bits of each byte.
        if (hash >> 40).is_multiple_of(RARITY) {
            take(hash, end - SAMPLE);
        }
        if let Some(byte) = bytes.get(end) {
            let left = u64::from(bytes[end - SAMPLE]).wrapping_add(1);
            hash = add(hash, *byte).wrapping_sub(left.wrapping_mul(leaving));
        }
    }
}

/// The samples are hashes already.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Where the old content's samples stand; none for those that it has more than once.
#[derive(Default)]
pub(super) struct Index {
    places: HashMap<u64, Option<u64>, BuildHasherDefault<Same>>,
    length: u64,
}

impl Index {
    /// Adds `bytes` that stand at `at`. Pieces come in order and overlap by one byte less than a [`SAMPLE`].
    pub(super) fn add(&mut self, at: u64, bytes: &[u8]) {
        samples(bytes, |hash, place| {
            let place = at + place as u64;
            self.places
                .entry(hash)
                .and_modify(|known| *known = None)
                .or_insert(Some(place));
        });
        self.length = self.length.max(at + bytes.len() as u64);
    }

    /// Offset and length of the region of at most `most` bytes that `piece` has most in common with. `near` is where it would be if
    /// nothing were known.
    pub(super) fn best(&self, piece: &[u8], near: u64, most: u64) -> (u64, u64) {
        if self.length <= most {
            return (0, self.length);
        }
        let mut votes = vec![0u64; self.length.div_ceil(BUCKET) as usize];
        samples(piece, |hash, _| {
            if let Some(Some(place)) = self.places.get(&hash)
                && let Some(votes) = votes.get_mut((place / BUCKET) as usize)
            {
                *votes += 1;
            }
        });
        let wide = ((most / BUCKET) as usize).clamp(1, votes.len());
        let mut sum: u64 = votes[..wide].iter().sum();
        // The best windows in a row: their middle has something on both sides.
        let (mut best, mut first, mut last) = (sum, 0usize, 0usize);
        for start in 1..=votes.len() - wide {
            sum = sum + votes[start + wide - 1] - votes[start - 1];
            if sum > best {
                (best, first, last) = (sum, start, start);
            } else if sum == best && last + 1 == start {
                last = start;
            }
        }
        let offset = if best == 0 {
            near
        } else {
            ((first + last) / 2) as u64 * BUCKET
        };
        (offset.min(self.length - most), most)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Bytes that repeat nowhere.
    pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn the_rolling_hash_is_that_of_the_bytes_wherever_they_stand() {
        let bytes = noise(1, 5_000);
        let mut all = Vec::new();
        samples(&bytes, |hash, at| all.push((hash, at)));
        assert!((100..700).contains(&all.len()), "{}", all.len());
        for (hash, at) in all {
            let mut alone = Vec::new();
            samples(&bytes[at..at + SAMPLE], |hash, at| alone.push((hash, at)));
            assert_eq!(alone, [(hash, 0)]);
        }
        samples(&bytes[..SAMPLE - 1], |_, _| unreachable!());
    }

    #[test]
    fn the_region_with_most_in_common_is_found_wherever_it_lies() {
        let old = noise(2, 4 << 20);
        let mut index = Index::default();
        index.add(0, &old);
        for at in [0, 1_000_001, 2_500_000, (4 << 20) - 300_000] {
            let mut piece = noise(3, 50_000);
            piece.extend_from_slice(&old[at..at + 300_000]);
            let (offset, length) = index.best(&piece, 0, 1 << 20);
            assert_eq!(length, 1 << 20);
            assert!(
                offset <= at as u64 && at as u64 + 300_000 <= offset + length,
                "{at}: {offset}"
            );
        }
    }

    #[test]
    fn what_is_everywhere_or_nowhere_has_no_vote() {
        let mut old = vec![0; 2 << 20];
        old.extend(noise(4, 2 << 20));
        let mut index = Index::default();
        index.add(0, &old);
        assert_eq!(index.best(&[0; 10_000], 777, 1 << 20), (777, 1 << 20));
        let beyond = index.best(&noise(5, 10_000), u64::MAX, 1 << 20);
        assert_eq!(beyond, (3 << 20, 1 << 20), "within the old content");
        assert_eq!(index.best(&[], 0, 1 << 30), (0, 4 << 20), "all of it");
        assert_eq!(Index::default().best(&old, 5, 1 << 20), (0, 0));
    }
}
