//! Answers as they are read back.

use std::collections::HashMap;

use idem_core::{Bytes, ResultBody, StoreError, message::Headers, results::KeptResult, store::Claim};

use crate::{
    check::errors::damaged_in,
    run::{headers::decode_headers, row::Row},
    text::key_id::{ClaimedId, key_id},
};

/// The bits of `kind`: for an error, and for an answer whose body and headers were erased.
const ERROR: i32 = 1;
const ERASED: i32 = 2;
/// The bit beside [`ERASED`] where the answer's time was over. A release that does not know it sees an erased one.
const EXPIRED: i32 = 4;

/// The answers that [`read_results`](crate::PostgresStatements::read_results) has found, in the order of the claims.
///
/// # Errors
/// [`StoreError::Schema`] where a row was not written by idem.
pub fn results_in_claim_order(claims: &[Claim], found: &[Row]) -> Result<Vec<Option<KeptResult>>, StoreError> {
    let id = |row: &Row| Ok::<ClaimedId, StoreError>((row.get("consumer")?, row.get("key_id")?));
    let found: HashMap<ClaimedId, &Row> =
        found.iter().map(|row| Ok((id(row)?, row))).collect::<Result<_, StoreError>>()?;
    let of = |claim: &Claim| found.get(&(claim.scope.0, key_id(claim.key.as_str()))).map(|row| kept(row)).transpose();
    claims.iter().map(of).collect()
}

/// The answer in a row of [`look_up`](crate::PostgresStatements::look_up); `None` where its record has none.
///
/// # Errors
/// As for [`results_in_claim_order`].
pub fn kept_beside(row: &Row) -> Result<Option<KeptResult>, StoreError> {
    row.get::<Option<i32>>("kind")?.map(|_| kept(row)).transpose()
}

fn kept(row: &Row) -> Result<KeptResult, StoreError> {
    let damaged = |what: &str| damaged_in("processed_results", what);
    let kind: i32 = row.get("kind")?;
    let is_error = kind & ERROR != 0;
    let status: Option<i32> = row.get("status")?;
    let status = status.map(u16::try_from).transpose().map_err(|_| damaged("status"))?;
    let reference: Option<&str> = row.get("reference")?;
    if kind & EXPIRED != 0 {
        return Ok(KeptResult::expired(is_error, status, reference.map(Into::into)));
    }
    if kind & ERASED != 0 {
        return Ok(KeptResult::erased(is_error, status));
    }
    let headers: Option<&str> = row.get("headers")?;
    let headers = headers.map_or_else(|| Some(Headers::default()), decode_headers).ok_or_else(|| damaged("headers"))?;
    let mut result = ResultBody::new(Bytes::from(row.get::<Vec<u8>>("body")?)).with_headers(headers);
    result.status = status;
    result.reference = reference.map(Into::into);
    result.content_type = row.get::<Option<&str>>("content_type")?.map(Into::into);
    let sealed_with: Option<i32> = row.get("sealed_with")?;
    let sealed_with = sealed_with.map_or(Ok(0), u16::try_from).map_err(|_| damaged("sealed_with"))?;
    let mut kept = KeptResult::new(is_error, result, sealed_with);
    kept.until = row.optional_instant("answer_until")?;
    Ok(kept)
}
