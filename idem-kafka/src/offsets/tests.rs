use super::Offsets;

/// The obvious model: every delivered offset in order, and whether it is finished.
#[derive(Default)]
struct Model(Vec<(i64, bool)>);

impl Model {
    fn position(&self, start: i64) -> i64 {
        let lowest = self.0.iter().find(|(_, finished)| !finished).map(|(offset, _)| *offset);
        lowest.unwrap_or_else(|| self.0.last().map_or(start, |(offset, _)| offset + 1))
    }

    /// Whether it is unfinished, and one after it is finished.
    fn holds_back(&self, at: i64) -> bool {
        self.0.contains(&(at, false)) && self.0.iter().any(|(offset, finished)| *finished && *offset > at)
    }

    /// Whether one before it is unfinished.
    fn is_held_back(&self, at: i64) -> bool {
        self.0.iter().any(|(offset, finished)| !*finished && *offset < at)
    }
}

/// A small generator, so that a red run can be repeated by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

#[test]
fn e3_the_position_is_the_lowest_unfinished_in_any_order_of_finishing() {
    for seed in 0..300 {
        let (mut random, start) = (Random(seed), 17);
        let (mut offsets, mut model) = (Offsets::new(start), Model::default());
        let mut last = start;
        for _ in 0..200 {
            if random.below(2) == 0 {
                // Compaction, aborted transactions and markers leave gaps of any width (E4).
                let offset = offsets.next() + i64::try_from(random.below(4)).unwrap();
                assert!(offsets.deliver(offset), "seed {seed}");
                model.0.push((offset, false));
            } else if !model.0.is_empty() {
                let place = random.below(model.0.len());
                let (offset, finished) = &mut model.0[place];
                assert_eq!(offsets.finish(*offset), !*finished, "seed {seed}");
                *finished = true;
            }
            let position = offsets.position();
            assert_eq!(position, model.position(start), "seed {seed}");
            assert!(position >= last, "seed {seed}: from {last} back to {position}");
            assert_eq!(offsets.in_hand(), model.0.iter().filter(|(_, finished)| !finished).count());
            let any =
                start + i64::try_from(random.below(usize::try_from(offsets.next() + 1 - start).unwrap())).unwrap();
            assert_eq!(offsets.holds_back(any), model.holds_back(any), "seed {seed}: {any}");
            if let Some((delivered, _)) = model.0.get(random.below(model.0.len().max(1))) {
                let held_back = model.is_held_back(*delivered);
                assert_eq!(offsets.is_held_back(*delivered), held_back, "seed {seed}: {delivered}");
            }
            last = position;
        }
    }
}

#[test]
fn e4_gaps_are_never_waited_for() {
    let mut offsets = Offsets::new(3);
    assert_eq!(offsets.position(), 3);
    for offset in [5, 9, 10] {
        assert!(offsets.deliver(offset));
    }
    assert_eq!(offsets.position(), 5);
    assert!(offsets.finish(5) && offsets.finish(10));
    assert_eq!(offsets.position(), 9);
    assert!(offsets.finish(9));
    assert_eq!(offsets.position(), 11);
}

#[test]
fn d5_a_released_message_holds_the_position_and_is_out_of_hand() {
    let mut offsets = Offsets::new(0);
    assert!((0..3).all(|offset| offsets.deliver(offset)));
    assert!(offsets.release(1) && offsets.finish(0) && offsets.finish(2));
    assert_eq!((offsets.position(), offsets.in_hand()), (1, 0));
    assert!(!offsets.finish(1) && !offsets.release(1), "a handle is single-use");
    assert_eq!(offsets.position(), 1);
}

#[test]
fn an_offset_is_delivered_once_an_assignment() {
    let mut offsets = Offsets::new(7);
    assert!(!offsets.deliver(6) && offsets.deliver(7) && !offsets.deliver(7));
    assert!(offsets.finish(7) && !offsets.deliver(7));
    assert_eq!((offsets.position(), offsets.in_hand()), (8, 0));
}
