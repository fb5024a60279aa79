//! TLS by rustls: a server's certificate is always checked, and its name too.

use std::{borrow::Cow, sync::Arc};

use idem_core::StoreError;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Takes what tokio-postgres does not know out of a URL's parameters: `sslrootcert`, which is answered, and the two
/// strictest of libpq's `sslmode`s, which are `require` here because nothing less is ever checked.
pub(crate) fn take_parameters(url: &str) -> (Cow<'_, str>, Option<String>) {
    let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let Some((before, parameters)) = url.split_once('?').filter(|_| is_url) else { return (url.into(), None) };
    let mut root = None;
    let mut kept = Vec::new();
    for parameter in parameters.split('&') {
        match parameter.split_once('=') {
            Some(("sslrootcert", path)) => root = Some(decode(path)),
            Some(("sslmode", "verify-ca" | "verify-full")) => kept.push("sslmode=require"),
            Some(_) | None => kept.push(parameter),
        }
    }
    (format!("{before}?{}", kept.join("&")).into(), root)
}

/// A path out of a URL, in which a few characters are written as `%2F`.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        // `from_str_radix` takes a sign.
        let digits = after.get(..2).filter(|pair| pair.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|pair| std::str::from_utf8(pair).ok());
        match digits.and_then(|pair| u8::from_str_radix(pair, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => (bytes, rest) = (push(bytes, byte), &after[2..]),
            None => (bytes, rest) = (push(bytes, first), after),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn push(mut bytes: Vec<u8>, byte: u8) -> Vec<u8> {
    bytes.push(byte);
    bytes
}

fn refused(problem: String) -> StoreError {
    let cure = "Give the path of a PEM file with the certificates of the authority that signed the server's".to_owned();
    StoreError::Refused { problem, cure }
}

/// Trusts the certificates in this file only.
pub(crate) fn config_with_root(path: &str) -> Result<ClientConfig, StoreError> {
    let unreadable = |error: &dyn std::fmt::Display| refused(format!("sslrootcert cannot be read: {error}"));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))? {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    if roots.is_empty() {
        return Err(refused("sslrootcert holds no certificate".to_owned()));
    }
    config(roots)
}

fn config(roots: RootCertStore) -> Result<ClientConfig, StoreError> {
    // Not the process's default provider, which may not be set, and would then panic.
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| refused(format!("TLS cannot be set up: {error}")))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The maker of each connection's TLS.
pub(crate) fn connector(given: Option<ClientConfig>) -> Result<MakeRustlsConnect, StoreError> {
    let config = match given {
        Some(config) => config,
        None => config(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect())?,
    };
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_the_driver_does_not_know_are_taken_out() {
        let (url, root) =
            take_parameters("postgres://u@db/x?sslmode=verify-full&sslrootcert=%2Fetc%2Fca%20x.pem&application_name=a");
        assert_eq!(url, "postgres://u@db/x?sslmode=require&application_name=a");
        assert_eq!(root.as_deref(), Some("/etc/ca x.pem"));
        for url in ["postgres://u@db/x", "postgres://u@db/x?sslmode=prefer", "host=db password=a?sslrootcert=b"] {
            assert_eq!(take_parameters(url), (url.into(), None));
        }
    }

    #[test]
    fn an_escape_is_two_digits_without_a_sign() {
        assert_eq!((decode("a%2Fb").as_str(), decode("a%+1b").as_str(), decode("%").as_str()), ("a/b", "a%+1b", "%"));
    }

    #[test]
    fn a_root_that_cannot_be_read_is_refused_with_its_cure() {
        let error = config_with_root("/nonexistent/ca.pem").unwrap_err();
        assert!(matches!(&error, StoreError::Refused { problem, .. } if problem.contains("sslrootcert")), "{error}");
    }
}
