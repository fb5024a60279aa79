//! The certificates with which SNS signs, each fetched once.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use idem_core::BoxError;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use crate::receive::fetch::Fetch;

/// The most certificates that are kept. A region has one at a time, for years.
const KEPT_MAX: usize = 16;

/// The fetched certificates, by URL.
#[derive(Default)]
pub(super) struct Certificates(Mutex<HashMap<String, CertificateDer<'static>>>);

impl Certificates {
    /// The certificate at this URL. The caller has checked the host.
    pub(super) async fn get(&self, url: &str, fetch: &dyn Fetch) -> Result<CertificateDer<'static>, BoxError> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(url).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let pem = fetch.get(url).await?;
        let certificate = CertificateDer::from_pem_slice(&pem)?.into_owned();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(url.to_owned(), certificate.clone());
        Ok(certificate)
    }
}
