//! The sender of a request. Here each bearer token is a tenant of its own; put your verification of tokens in its
//! place. The tenant's name is in records, logs and events, so it is a hash of the token.

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, header, request::Parts},
};
use idem_service::{axum, idem_http::Authenticated};
use sha2::{Digest as _, Sha256};

/// The tenant of a request, for routes without a key.
#[derive(Debug)]
pub(crate) struct Bearer(pub(crate) String);

/// The tenant that the token names. Asked before anything is read of the request's body, or looked up.
pub(crate) fn tenant(parts: &Parts) -> Option<Authenticated> {
    name(parts).map(Authenticated::tenant)
}

fn name(parts: &Parts) -> Option<String> {
    Some(hex::encode(&Sha256::digest(token(parts)?)[..16]))
}

fn token(parts: &Parts) -> Option<&str> {
    let mut all = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (all.next()?, all.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

impl<S: Sync> FromRequestParts<S> for Bearer {
    type Rejection = (StatusCode, [(header::HeaderName, &'static str); 1]);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        name(parts).map(Self).ok_or((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]))
    }
}
