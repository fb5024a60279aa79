//! TLS by rustls: a server's certificate is always checked, and its name too.

use std::{borrow::Cow, sync::Arc};

use idem_core::StoreError;
use percent_encoding::percent_decode_str;
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
            Some(("sslrootcert", path)) => root = Some(percent_decode_str(path).decode_utf8_lossy().into_owned()),
            Some(("sslmode", "verify-ca" | "verify-full")) => kept.push("sslmode=require"),
            Some(_) | None => kept.push(parameter),
        }
    }
    (format!("{before}?{}", kept.join("&")).into(), root)
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
        for (written, path) in [("a%2Fb", "a/b"), ("a%+1b", "a%+1b"), ("%", "%")] {
            let (_, root) = take_parameters(&format!("postgres://u@db/x?sslrootcert={written}"));
            assert_eq!(root.as_deref(), Some(path));
        }
    }

    #[test]
    fn a_root_that_cannot_be_read_is_refused_with_its_cure() {
        let error = config_with_root("/nonexistent/ca.pem").unwrap_err();
        assert!(matches!(&error, StoreError::Refused { problem, .. } if problem.contains("sslrootcert")), "{error}");
    }
}
