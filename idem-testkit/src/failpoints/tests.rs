use super::*;

fn one(text: &str) -> Armed {
    let mut all = parse(text).unwrap();
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0)
}

#[test]
fn an_entry_has_a_point_an_action_and_how_often() {
    let armed = one("claimed=abort");
    assert_eq!((armed.point, armed.skip, armed.times), ("claimed", 0, u64::MAX));
    assert!(matches!(armed.action, Action::Abort));
    let armed = one("guard=3*error");
    assert_eq!((armed.skip, armed.times), (0, 3));
    assert!(matches!(armed.action, Action::Error));
    let armed = one("recv=5+panic");
    assert_eq!((armed.skip, armed.times), (5, u64::MAX));
    assert!(matches!(armed.action, Action::Panic));
    let armed = one(" ack_sent = 10 + 2 * sleep(250) ");
    assert_eq!((armed.point, armed.skip, armed.times), ("ack_sent", 10, 2));
    assert!(matches!(armed.action, Action::Sleep(time) if time == Duration::from_millis(250)));
    assert!(matches!(one("drain=park").action, Action::Park(_)));
}

#[test]
fn every_point_of_core_can_be_armed() {
    let text: Vec<String> = failpoint::ALL.iter().map(|point| format!("{point}=1*abort")).collect();
    let points: Vec<_> = parse(&text.join(";")).unwrap().into_iter().map(|armed| armed.point).collect();
    assert_eq!(points, failpoint::ALL);
    assert!(parse("").unwrap().is_empty() && parse(" ; ;").unwrap().is_empty());
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let error = parse("claimed=abort;comit_sent=abort").unwrap_err();
    assert_eq!(error, ParseFailpointsError::UnknownPoint { name: "comit_sent".to_owned() });
    for point in failpoint::ALL {
        assert!(error.to_string().contains(point), "{error} lists {point}");
    }
    for action in ["explode", "", "sleep", "sleep(1", "sleep 5", "Abort"] {
        let error = parse(&format!("claimed={action}")).unwrap_err();
        assert_eq!(error, ParseFailpointsError::UnknownAction { action: action.to_owned() });
    }
    for number in ["x", "", "-1", "1.5"] {
        let expected = ParseFailpointsError::Number { number: number.to_owned() };
        assert_eq!(parse(&format!("claimed={number}*abort")).unwrap_err(), expected);
        assert_eq!(parse(&format!("claimed={number}+abort")).unwrap_err(), expected);
    }
    // A pass that is armed zero times would test nothing, without a word.
    assert_eq!(parse("claimed=0*abort").unwrap_err(), ParseFailpointsError::Number { number: "0".to_owned() });
    assert_eq!(parse("claimed").unwrap_err(), ParseFailpointsError::Form { entry: "claimed".to_owned() });
}

/// One test, because the failpoints of a process are shared.
#[tokio::test]
async fn armed_points_skip_act_and_then_are_quiet() {
    assert!(arm("clean_chunk=1*error;unknown=abort").is_err());
    assert!(failpoint::hit(failpoint::CLEAN_CHUNK).await.is_ok(), "a text with an error in it arms nothing");
    arm("clean_chunk=1+2*error").unwrap();
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(failpoint::hit(failpoint::CLEAN_CHUNK).await.is_err());
    }
    assert_eq!(answers, [false, true, true, false, false]);

    let armed = arm("clean_chunk=1*park").unwrap();
    let stored = tokio::spawn(failpoint::hit(failpoint::CLEAN_CHUNK));
    let Action::Park(notify) = &armed[0].action else { panic!("{armed:?}") };
    notify.notify_one();
    assert!(stored.await.unwrap().is_ok());
    failpoint::disarm_all();
}
