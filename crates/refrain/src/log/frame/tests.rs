//! A file that was cut or lost sectors while its last frame was written has a torn write.
//! Any other unreadable byte is damage: a log that took damage for a torn write would forget acknowledged data.

use proptest::{collection::vec, prelude::*};

use super::*;

const SEED: u64 = 0x5eed;
/// Offset of the first frame.
const START: usize = 48;
/// Length of the unwritten rest of an allocated file.
const SPARE: usize = 700;

/// Frames whose content is one body with a checksum.
#[derive(Debug)]
struct Plain<const IS_ALLOCATED: bool>;

impl<const ALLOCATED: bool> Format for Plain<ALLOCATED> {
    const MAGIC: [u8; 4] = *b"test";
    const HEADER_LEN: usize = 24;
    const IS_ALLOCATED: bool = ALLOCATED;
    type Content = Vec<u8>;

    fn checksum(bytes: &[u8], seed: u64) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(seed as u32);
        hasher.update(bytes);
        hasher.finalize()
    }

    fn ordinal(fields: &[u8]) -> Option<u64> {
        Reader(fields).u64()
    }

    fn content(frame: &[u8], _at: usize, seed: u64) -> Option<Vec<u8>> {
        let (content, tail) = frame.get(24..)?.split_last_chunk::<5>()?;
        let sum = Self::checksum(content, seed).to_le_bytes();
        (tail[..4] == sum && tail[4] == END).then(|| content.to_vec())
    }
}

type Growing = Plain<false>;
type Allocated = Plain<true>;

/// Builds a file of these frames; returns it with the end of each frame.
fn file<F: Format>(bodies: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let (mut file, mut ends) = (vec![7; START], Vec::new());
    for (ordinal, body) in (0_u64..).zip(bodies) {
        let place = FramePosition {
            seed: SEED,
            start: file.len(),
            ordinal,
        };
        let mut frame = vec![0; F::HEADER_LEN];
        frame.extend(body);
        frame.extend(F::checksum(body, SEED).to_le_bytes());
        finish::<F>(&mut frame, &ordinal.to_le_bytes(), place);
        file.extend(frame);
        ends.push(file.len());
    }
    if F::IS_ALLOCATED {
        file.resize(file.len() + SPARE, 0);
    }
    (file, ends)
}

/// Reads frames until another result; returns the bodies and that result.
fn read<F: Format<Content = Vec<u8>>>(
    file: &[u8],
    torn_from: usize,
) -> (Vec<Vec<u8>>, Found<Vec<u8>>) {
    let file = Bytes::copy_from_slice(file);
    let mut frames = Scanner::<F>::new(&file, SEED, START, torn_from);
    let mut bodies = Vec::new();
    loop {
        match frames.find() {
            Found::Frame { content, .. } => bodies.push(content),
            other => return (bodies, other),
        }
    }
}

fn check_whole<F: Format<Content = Vec<u8>>>(bodies: &[Vec<u8>]) {
    let (file, _) = file::<F>(bodies);
    assert_eq!(read::<F>(&file, 0), (bodies.to_vec(), Found::End));
}

/// Checks a file whose bytes from `cut` on were not written.
fn check_cut<F: Format<Content = Vec<u8>>>(bodies: &[Vec<u8>], cut: impl Fn(usize) -> usize) {
    let (mut file, ends) = file::<F>(bodies);
    let last = *ends.last().unwrap_or(&START);
    let cut = START + cut(last - START);
    match F::IS_ALLOCATED {
        true => file[cut..].fill(0),
        false => file.truncate(cut),
    }
    let whole = ends.iter().filter(|end| **end <= cut).count();
    let is_between = cut == START || ends.contains(&cut);
    let (read_bodies, found) = read::<F>(&file, 0);
    assert_eq!(read_bodies, bodies[..whole]);
    match is_between {
        true => assert_eq!(found, Found::End),
        false => assert!(
            matches!(found, Found::Torn { .. }),
            "cut at {cut}: {found:?}"
        ),
    }
    // An offset that was durable before is never torn.
    let (_, found) = read::<F>(&file, usize::MAX);
    assert_eq!(is_between, found == Found::End, "cut at {cut}: {found:?}");
}

/// Checks a file with one changed bit at the offset that `at` chooses.
fn check_flip<F: Format<Content = Vec<u8>>>(
    bodies: &[Vec<u8>],
    at: impl Fn(usize) -> usize,
    bit: u8,
) {
    let (mut file, ends) = file::<F>(bodies);
    let last = *ends.last().unwrap_or(&START);
    let at = START + at(last - START);
    file[at] ^= 1 << bit;
    let whole = ends.iter().filter(|end| **end <= at).count();
    let (read_bodies, found) = read::<F>(&file, 0);
    assert_eq!(read_bodies, bodies[..whole]);
    let end = ends[whole];
    assert_eq!(found, Found::Damage { end }, "bit {bit} at {at}");
}

/// Checks a file in which a sector was not written.
fn check_lost_sector<F: Format<Content = Vec<u8>>>(
    bodies: &[Vec<u8>],
    sector: impl Fn(usize) -> usize,
) {
    let (mut file, ends) = file::<F>(bodies);
    let end = *ends.last().unwrap_or(&START);
    let sector = sector(end.div_ceil(SECTOR));
    let range = (sector * SECTOR).max(START)..end.min((sector + 1) * SECTOR);
    let Some(first) = range.clone().find(|at| file[*at] != 0) else {
        return;
    };
    file[range.clone()].fill(0);
    let whole = ends.iter().filter(|end| **end <= first).count();
    let last_start = ends[..ends.len() - 1].last().copied().unwrap_or(START);
    let (read_bodies, found) = read::<F>(&file, 0);
    assert_eq!(read_bodies, bodies[..whole]);
    if range.start >= last_start {
        // If all of the frame is lost, an allocated file looks as if it had never been written.
        let is_unwritten = F::IS_ALLOCATED && range.end == end && first == last_start;
        let is_torn = matches!(found, Found::Torn { .. }) || is_unwritten && found == Found::End;
        assert!(is_torn, "{range:?}: {found:?}");
    } else if range.end < last_start {
        assert!(
            matches!(found, Found::Damage { .. }),
            "{range:?}: {found:?}"
        );
    } else {
        // A torn write does not lose a sector that contains a part of the previous frame.
        assert!(F::IS_ALLOCATED || found != Found::End, "{range:?}");
    }
}

/// Bodies, among them some full of zeros, which look like sectors that were not written.
fn bodies() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let zeros = (0_usize..2_000).prop_map(|len| vec![0; len]);
    vec(prop_oneof![vec(any::<u8>(), 0..600), zeros], 1..5)
}

proptest! {
    #[test]
    fn frames_read_back_as_written(bodies in bodies()) {
        check_whole::<Growing>(&bodies);
        check_whole::<Allocated>(&bodies);
    }

    #[test]
    fn cut_write_is_torn(bodies in bodies(), cut in any::<prop::sample::Index>()) {
        check_cut::<Growing>(&bodies, |len| cut.index(len));
        check_cut::<Allocated>(&bodies, |len| cut.index(len));
    }

    #[test]
    fn flipped_bit_is_damage_up_to_the_next_frame(
        bodies in bodies(),
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        check_flip::<Growing>(&bodies, |len| at.index(len), bit);
        check_flip::<Allocated>(&bodies, |len| at.index(len), bit);
    }

    #[test]
    fn lost_sector_is_torn_in_the_last_frame_and_damage_before(
        bodies in bodies(),
        sector in any::<prop::sample::Index>(),
    ) {
        check_lost_sector::<Growing>(&bodies, |count| sector.index(count));
        check_lost_sector::<Allocated>(&bodies, |count| sector.index(count));
    }

    #[test]
    fn any_bytes_are_safe_to_scan(bytes in vec(any::<u8>(), START..2_000)) {
        read::<Growing>(&bytes, 0);
        read::<Allocated>(&bytes, 0);
    }
}

/// A frame of another number is not a torn write: it was durable in another place or at another time.
#[test]
fn frame_with_another_number_is_damage() {
    let bodies = [b"one".to_vec(), b"two".to_vec()];
    let (whole, ends) = file::<Growing>(&bodies);
    let mut moved = whole[..START].to_vec();
    moved.extend(&whole[ends[0]..]);
    for cut in [0, 3] {
        let (_, found) = read::<Growing>(&moved[..moved.len() - cut], 0);
        let end = moved.len() - cut;
        assert_eq!(found, Found::Damage { end });
    }
}

/// A copy of a frame inside a damaged body is not taken for the next frame.
#[test]
fn scan_continues_after_damage_at_the_next_frame() {
    let (inner, _) = file::<Growing>(&[b"forged".to_vec()]);
    let bodies = [inner, b"two".to_vec(), b"three".to_vec()];
    let (mut whole, ends) = file::<Growing>(&bodies);
    whole[START + 2] ^= 1;
    let whole = Bytes::from(whole);
    let mut frames = Scanner::<Growing>::new(&whole, SEED, START, 0);
    assert_eq!(frames.find(), Found::Damage { end: ends[0] });
    for (body, end) in bodies.iter().zip(&ends).skip(1) {
        let content = body.clone();
        assert_eq!(frames.find(), Found::Frame { content, end: *end });
    }
    assert_eq!(frames.find(), Found::End);
}
