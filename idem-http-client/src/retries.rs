//! How long a client tries, and how it paces its tries.

use std::time::Duration;

/// How long a client tries, and its pauses. The deadline and the provider's memory bound every wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retries {
    /// How long one [`send`](super::IdempotentClient::send) may try in all. Asking about the key may take [`ask_for`](Self::ask_for) and 5 s
    /// more. Defaults to 60 s.
    pub deadline: Duration,
    /// How long one try may take, from the connection to the last byte of the answer. Defaults to 15 s.
    pub try_within: Duration,
    /// The most tries. Defaults to 12; at least 1 is made.
    pub tries_max: u32,
    /// The pause after the first try. Defaults to 200 ms.
    pub first: Duration,
    /// The longest pause, unless the server asks for a longer one. Defaults to 10 s.
    pub max: Duration,
    /// The longest pause that a server may ask for with `Retry-After`; a longer one is cut to this. Defaults to 60 s.
    pub retry_after_max: Duration,
    /// How long the server may wait for a request in progress when it is [asked](super::Profile::status_endpoint) about the key, in whole seconds.
    /// Defaults to 10 s.
    pub ask_for: Duration,
    /// The largest answer that is read, in bytes. A larger one is known by its status and headers alone. Defaults to 1 MiB.
    pub answer_bytes_max: usize,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            try_within: Duration::from_secs(15),
            tries_max: 12,
            first: Duration::from_millis(200),
            max: Duration::from_secs(10),
            retry_after_max: Duration::from_secs(60),
            ask_for: Duration::from_secs(10),
            answer_bytes_max: 1 << 20,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty),* $(,)?) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

impl Retries {
    setters! {
        /// Sets how long one call may try in all.
        deadline: Duration,
        /// Sets how long one try may take.
        try_within: Duration,
        /// Sets the most tries.
        tries_max: u32,
        /// Sets the pause after the first try.
        first: Duration,
        /// Sets the longest pause.
        max: Duration,
        /// Sets the longest pause that a server may ask for.
        retry_after_max: Duration,
        /// Sets how long the server may wait when it is asked.
        ask_for: Duration,
        /// Sets the largest answer that is read.
        answer_bytes_max: usize,
    }

    /// The pause after this many tries (from 1). `spread` in `0.0..1.0` picks a point: between half and the whole of a doubling pause, and
    /// up to a tenth beyond a pause that the server asked for, because many clients got the same one.
    pub(super) fn pause(&self, tries: u32, asked: Option<Duration>, spread: f64) -> Duration {
        if let Some(asked) = asked {
            return asked.min(self.retry_after_max).max(self.first).mul_f64(1.0 + spread / 10.0);
        }
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(tries.saturating_sub(1).min(31)));
        doubled.min(self.max).mul_f64(0.5 + spread / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_a_servers_wish_is_bounded() {
        let retries = Retries::default();
        let pause = |tries| retries.pause(tries, None, 1.0);
        assert_eq!([pause(1), pause(2), pause(3)].map(|pause| pause.as_millis()), [200, 400, 800]);
        assert_eq!((pause(9), pause(u32::MAX)), (retries.max, retries.max));
        assert_eq!(retries.pause(1, None, 0.0), Duration::from_millis(100));
        let asked = |seconds| retries.pause(3, Some(Duration::from_secs(seconds)), 0.0);
        assert_eq!((asked(0), asked(7)), (retries.first, Duration::from_secs(7)));
        assert_eq!((asked(90), asked(u64::MAX)), (retries.retry_after_max, retries.retry_after_max));
        assert_eq!(retries.pause(1, Some(Duration::from_secs(10)), 1.0), Duration::from_secs(11));
    }
}
