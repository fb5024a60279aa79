use super::*;

fn through(message: &Message) -> Message {
    let frame = frame(&WireMessage::from(message)).unwrap();
    serde_json::from_slice::<WireMessage>(&frame[4..]).unwrap().try_into().unwrap()
}

#[test]
fn a_message_is_the_same_on_the_other_side() {
    let mut headers = Headers::default();
    headers.push("a", Some(Bytes::from_static(b"\xff\0")));
    headers.push("b", None);
    headers.push("a", Some(Bytes::new()));
    let all: Vec<u8> = (0..=255).collect();
    let full = Message::new(all.clone())
        .with_headers(headers)
        .with_id("id")
        .with_record_key(all.clone())
        .with_type("purchase")
        .with_ordering_key(OrderingKey::new(all))
        .with_origin(Origin::new("orders/1"))
        .with_sent_at(SystemTime::UNIX_EPOCH + std::time::Duration::new(1, 2));
    for message in [full, Message::tombstone(), Message::new(""), Message::new("{\"hex\": \"zz\"} zürich \0")] {
        assert!(through(&message) == message, "{message:?}");
    }
}

#[test]
fn bytes_that_are_no_hex_are_refused() {
    for hex in ["0", "0g", "zz", "000", "é"] {
        assert!(Bytes::try_from(WireBytes::Hex { hex: hex.to_owned() }).is_err(), "{hex}");
    }
}

#[tokio::test]
async fn frames_are_read_whole_or_not_at_all() {
    let told = |id| Told { id, tell: Tell::Done };
    let bytes = [frame(&told(1)).unwrap(), frame(&told(2)).unwrap()].concat();
    let mut from = &bytes[..];
    for id in [1, 2] {
        assert_eq!(read::<Told>(&mut from).await.unwrap().unwrap().id, id);
    }
    assert!(read::<Told>(&mut from).await.unwrap().is_none());
    for cut in 1..bytes.len() / 2 {
        assert!(read::<Told>(&mut &bytes[..cut]).await.unwrap().is_none(), "cut at {cut}");
    }
    let long = (u32::MAX).to_be_bytes();
    assert!(read::<Told>(&mut &long[..]).await.is_err(), "a length beyond the limit");
    let garbage = [&4u32.to_be_bytes()[..], b"what"].concat();
    assert!(read::<Told>(&mut &garbage[..]).await.is_err());
}
