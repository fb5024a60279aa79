//! Features that a worker is built with.

use std::process::Command;

/// G21: any RabbitMQ that is not on this machine is reached over TLS.
#[test]
fn g21_tls_is_built_in() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let asked =
        ["tree", "--offline", "--manifest-path", manifest, "--edges", "normal,features", "--invert", "idem-amqp"];
    let output = Command::new(cargo).args(asked).output().expect("cargo runs");
    let tree = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(tree.contains("idem-amqp feature \"tls\""), "{tree}");
}
