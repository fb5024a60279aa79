//! TLS against a server that makes its own certificate.

use idem_core::{Store as _, store::Bookkeeping as _};
use idem_tokio_postgres::{PostgresOptions, PostgresStore};

use crate::{
    consumers::{Write, consumer, keys, messages, process},
    fixture::Fixture,
    scratch::Scratch,
};

/// For the name localhost; an authority of its own, because it signed itself.
const MAKE_CERTIFICATE: &str = "COPY (SELECT 1) TO PROGRAM 'openssl req -x509 -newkey rsa:2048 -nodes -days 2 \
     -subj /CN=idem-test -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE \
     -keyout server.key -out server.crt 2>/dev/null && chmod 600 server.key'";

/// A cluster that speaks TLS, and the path of its certificate.
async fn with_tls(name: &str) -> (Scratch, Fixture, String) {
    let scratch = Scratch::new(name).await;
    let fixture = Fixture::on(&scratch.url).await;
    for statement in [MAKE_CERTIFICATE, "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"] {
        fixture.run(statement).await;
    }
    fixture.until("SELECT current_setting('ssl') = 'on'").await;
    let path = std::env::temp_dir().join(format!("{}.pem", fixture.schema));
    std::fs::write(&path, fixture.text("SELECT pg_read_file('server.crt')").await).unwrap();
    (scratch, fixture, path.display().to_string())
}

fn options(fixture: &Fixture, url: &str) -> PostgresOptions {
    let options = format!("options=-c%20search_path%3D{}", fixture.schema);
    PostgresOptions::parse(&format!("{url}&{options}")).unwrap().schema(fixture.schema.clone())
}

const ENCRYPTED: &str = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
     WHERE application_name = 'encrypted'";

/// S9: with the right root everything goes over TLS; with none or for another name nothing does.
#[tokio::test]
async fn s9_a_certificate_and_its_name_are_checked() {
    let (scratch, fixture, root) = with_tls("tls").await;
    let by_address = format!("{}?sslmode=verify-full", scratch.url);
    let url = by_address.replace("127.0.0.1", "localhost");
    let store = options(&fixture, &format!("{url}&sslrootcert={root}")).application_name("encrypted").build().unwrap();
    store.bookkeeping().verify().await.unwrap();
    let consumer = consumer(store.clone(), Write);
    assert_eq!(process(&consumer, messages(&keys(3))).await, "PPP");
    assert_eq!(fixture.text(ENCRYPTED).await, "t");

    let of_nobody = PostgresStore::connect(&url).await.unwrap_err();
    assert!(format!("{of_nobody:?}").contains("UnknownIssuer"), "{of_nobody:?}");
    let of_another_name = PostgresStore::connect(&format!("{by_address}&sslrootcert={root}")).await.unwrap_err();
    assert!(format!("{of_another_name:?}").contains("NotValidForName"), "{of_another_name:?}");
    std::fs::remove_file(root).unwrap();
    store.disconnect().await;
    fixture.drop().await;
    scratch.down().await;
}

/// A server without TLS is accepted by a client that prefers TLS, and refused by one that requires it.
#[tokio::test]
async fn s9_plaintext_is_refused_where_tls_is_required() {
    let fixture = Fixture::new().await;
    let url = crate::fixture::url();
    PostgresStore::connect(&format!("{url}?sslmode=prefer")).await.unwrap();
    assert!(PostgresStore::connect(&format!("{url}?sslmode=require")).await.is_err());
    fixture.drop().await;
}
