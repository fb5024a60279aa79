//! How large the next unit is. Pure.

/// How many messages the next unit takes: fewer after others got in the way, more again when it is calm.
#[derive(Debug)]
pub(super) struct BatchSize {
    pub(super) max: usize,
    now: usize,
}

impl BatchSize {
    pub(super) fn new(max: usize) -> Self {
        Self { max, now: max }
    }

    pub(super) fn now(&self) -> usize {
        self.now
    }

    pub(super) fn shrink(&mut self) {
        self.now = (self.now / 2).max(1);
    }

    pub(super) fn grow(&mut self) {
        self.now = (self.now + self.now / 4 + 1).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_shrinks_to_one_and_grows_back_to_its_maximum() {
        let mut size = BatchSize::new(100);
        (0..10).for_each(|_| size.shrink());
        assert_eq!(size.now(), 1);
        (0..30).for_each(|_| size.grow());
        assert_eq!(size.now(), 100);
    }
}
