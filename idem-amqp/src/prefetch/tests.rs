use super::{Better::*, *};

const MIB: usize = 1 << 20;

/// A subscription with this prefetch at most, which has just begun.
fn begun(max: u16) -> Prefetch {
    let mut prefetch = Prefetch::new(max);
    prefetch.begin(prefetch.first());
    prefetch
}

fn deliver(prefetch: &mut Prefetch, count: usize, bytes: usize) {
    (0..count).for_each(|_| prefetch.delivered(bytes));
}

/// Grants its wishes for as long as messages of this size come, and returns each prefetch that it had.
fn grow(prefetch: &mut Prefetch, bytes: usize) -> Vec<u16> {
    let mut had = vec![prefetch.now];
    for _ in 0..2_000 {
        prefetch.delivered(bytes);
        prefetch.acknowledged(1);
        if let Some(More(next) | Less(next)) = prefetch.better() {
            prefetch.begin(next);
            had.push(next);
        }
    }
    had
}

#[test]
fn small_messages_have_all_of_it_after_nine_that_are_in_hand() {
    let mut prefetch = begun(300);
    assert_eq!(prefetch.better(), None, "nothing is known of their size");
    prefetch.delivered(100);
    assert_eq!(prefetch.better(), Some(More(8)));
    prefetch.begin(8);
    deliver(&mut prefetch, 7, 100);
    prefetch.settled();
    prefetch.delivered(100);
    assert_eq!(prefetch.better(), None, "more may be on their way");
    prefetch.delivered(100);
    assert_eq!(prefetch.better(), Some(More(300)));
    assert!(prefetch.holds_back());
    prefetch.settled();
    assert!(prefetch.holds_back(), "until it has begun");
    prefetch.begin(300);
    deliver(&mut prefetch, 1_000, 100);
    assert_eq!((prefetch.better(), prefetch.holds_back()), (None, false));
}

#[test]
fn it_never_exceeds_what_the_settings_allow() {
    for (max, had) in
        [(1, vec![1]), (2, vec![1, 2]), (7, vec![1, 7]), (12, vec![1, 8, 12]), (65_535, vec![1, 8, 65_535])]
    {
        assert_eq!(grow(&mut begun(max), 0), had);
    }
}

/// Each message may be as large as the largest of the last ones.
#[test]
fn large_messages_have_as_much_as_fits() {
    for (bytes, had) in [
        (8 * MIB, vec![1, 8]),
        (8 * MIB + 1, vec![1, 7]),
        (MIB, vec![1, 8, 64]),
        (40 * MIB, vec![1]),
        // One message has to be in hand, however large it is.
        (100 * MIB, vec![1]),
    ] {
        let mut prefetch = begun(300);
        assert_eq!(grow(&mut prefetch, bytes), had, "{bytes}");
        assert!(usize::from(prefetch.now) * bytes <= IN_HAND_BYTES || prefetch.now == 1, "{bytes}");
    }
}

#[test]
fn larger_messages_make_it_smaller_at_once() {
    let mut prefetch = begun(300);
    grow(&mut prefetch, 100);
    prefetch.delivered(8 * MIB);
    assert_eq!(prefetch.better(), Some(Less(8)));
    assert!(!prefetch.holds_back());
    prefetch.begin(8);
    prefetch.delivered(16 * MIB);
    assert_eq!(prefetch.better(), Some(Less(4)));
}

/// One message among small ones counts for at least 256, itself among them, and for 512 at most.
#[test]
fn a_large_message_is_forgotten_after_256_to_512_messages() {
    for before in [0, 100, 255] {
        let mut prefetch = begun(300);
        deliver(&mut prefetch, before, 100);
        prefetch.delivered(8 * MIB);
        prefetch.begin(8);
        deliver(&mut prefetch, 255, 100);
        assert_eq!(prefetch.better(), None, "{before}");
        deliver(&mut prefetch, 256, 100);
        assert_eq!(prefetch.better(), Some(More(300)), "{before}");
    }
}

#[test]
fn a_little_more_is_not_worth_a_subscription() {
    let mut prefetch = begun(300);
    assert_eq!(grow(&mut prefetch, MIB), [1, 8, 64]);
    assert_eq!(grow(&mut prefetch, MIB * 3 / 4), [64]);
    assert_eq!(grow(&mut prefetch, MIB / 2), [64, 128]);
    assert_eq!(grow(&mut prefetch, 1), [128, 300]);
}

/// G16: deliveries alone earn nothing where each counts against its message.
#[test]
fn g16_where_care_is_needed_only_what_went_well_earns_more() {
    let mut prefetch = begun(300);
    prefetch.be_careful();
    let mut had = Vec::new();
    for _ in 0..3 {
        deliver(&mut prefetch, 1_000, 100);
        assert_eq!(prefetch.better(), None);
        prefetch.acknowledged(u64::from(prefetch.now) * 4 - 1);
        assert_eq!(prefetch.better(), None);
        prefetch.acknowledged(1);
        let Some(More(next)) = prefetch.better() else { panic!("{prefetch:?}") };
        assert!(!prefetch.holds_back());
        prefetch.begin(next);
        had.push(next);
    }
    assert_eq!(had, [8, 64, 300]);
    prefetch.delivered(16 * MIB);
    assert_eq!(prefetch.better(), Some(Less(4)), "bytes count there too");
}
