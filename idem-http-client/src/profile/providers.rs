//! The providers whose documentation was read. A value that no documentation states is an argument.

use std::time::Duration;

use http::{HeaderName, StatusCode, header::HeaderName as Name};
use idem_core::outbox::IdForm;

use super::{KeyPlace, Meaning, Profile};

const IDEMPOTENCY_KEY: HeaderName = Name::from_static("idempotency-key");
const IDEMPOTENT_REPLAYED: HeaderName = Name::from_static("idempotent-replayed");

const fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3_600)
}

impl Profile {
    /// A server that follows the IETF's draft `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header-07): the key in quotes, 422 for
    /// another request under it, 409 while it is in progress. A 409 that says no more is never taken for the operation's refusal: the
    /// draft's own example has neither a `Retry-After` nor a specific type. `memory` is the time for which the server remembers keys; the
    /// draft has each server publish it.
    #[must_use]
    pub fn ietf(memory: Duration) -> Self {
        Self::new("ietf", KeyPlace::QuotedHeader(IDEMPOTENCY_KEY), memory)
            .replayed(IDEMPOTENT_REPLAYED)
            .status(StatusCode::CONFLICT, Meaning::InProgress)
            .status(StatusCode::UNPROCESSABLE_ENTITY, Meaning::Refused)
            .word("/type", "idempotency-key-reused", Meaning::KeyReused)
            .word("/type", "key-reused", Meaning::KeyReused)
            .word("/type", "idempotency-in-progress", Meaning::InProgress)
            .word("/type", "in-progress", Meaning::InProgress)
            .word("/type", "outcome-unknown", Meaning::InProgress)
            .word("/type", "answer-not-kept", Meaning::AnswerGone)
    }

    /// A server that runs idem, with the profile `ietf` or `guardia`. The client understands its problems, and asks it about the key at
    /// `{path}/idempotency/{key}` before giving up. `memory` is its retention of keys (`keys_for`).
    ///
    /// Both of guardia's conflicts are 409. Their reasons distinguish them, because one is tried again and the other never.
    #[must_use]
    pub fn idem(memory: Duration, path: impl Into<String>) -> Self {
        Self::ietf(memory)
            .named("idem")
            .status_endpoint(path)
            // idem's own conflicts have a type or a time to wait; any other is the handler's.
            .status(StatusCode::CONFLICT, Meaning::Refused)
            // Nothing was done, or kept: the NotYet may succeed later, the others cannot.
            .word("/type", "failed-for-now", Meaning::NotYet)
            .word("/type", "paused", Meaning::NotYet)
            .word("/type", "overloaded", Meaning::NotYet)
            .word("/type", "body-late", Meaning::NotYet)
            .word("/type", "failed", Meaning::NotTaken)
            .word("/type", "response-refused", Meaning::NotTaken)
            .word("/type", "transaction-moved", Meaning::NotTaken)
            // It may have been done, and each try may do it again.
            .word("/type", "unprotected", Meaning::KeptFailure)
            .word("/reason", "IDEMPOTENCY_IN_PROGRESS", Meaning::InProgress)
            .word("/reason", "IDEMPOTENT_ANSWER_NOT_KEPT", Meaning::AnswerGone)
            .word("/reason", "CONFLICTING_IDEMPOTENT_REQUEST", Meaning::KeyReused)
    }

    /// Stripe's API v1. Keys of up to 255 characters, pruned once they are 24 hours old; after that a request is a new one. The first answer is
    /// kept once the endpoint has begun, 500 included, so a 500 ends in doubt at once. The client tries again only if Stripe sends
    /// `stripe-should-retry: true`.
    ///
    /// Source: <https://docs.stripe.com/api/idempotent_requests>, <https://docs.stripe.com/error-low-level>.
    #[must_use]
    pub fn stripe() -> Self {
        Self::new("stripe", KeyPlace::Header(IDEMPOTENCY_KEY), hours(24))
            .form(IdForm::V5)
            .replayed(IDEMPOTENT_REPLAYED)
            .retry_header(Name::from_static("stripe-should-retry"), true)
            .status(StatusCode::CONFLICT, Meaning::InProgress)
            .status(StatusCode::INTERNAL_SERVER_ERROR, Meaning::KeptFailure)
            .word("/error/type", "idempotency_error", Meaning::KeyReused)
            .word("/error/code", "idempotency_key_in_use", Meaning::InProgress)
    }

    /// Adyen. Keys of up to 64 characters, valid for at least 31 days and in one region only. A failure may be tried again only with
    /// `transient-error: true`; error 704, with 409 or 422, is "request already processed or in progress".
    ///
    /// Source: <https://docs.adyen.com/development-resources/api-idempotency>,
    /// <https://github.com/Adyen/adyen-java-api-library/issues/284>, <https://github.com/Adyen/adyen-java-api-library/pull/288>.
    #[must_use]
    pub fn adyen() -> Self {
        Self::new("adyen", KeyPlace::Header(IDEMPOTENCY_KEY), hours(24 * 31))
            .form(IdForm::V5)
            .key_bytes_max(64)
            .retry_header(Name::from_static("transient-error"), false)
            .status(StatusCode::CONFLICT, Meaning::InProgress)
            .word("/errorCode", "704", Meaning::InProgress)
    }

    /// Square: the member `idempotency_key` of the body, up to 45 characters for a payment. It does not publish how long it
    /// keeps keys, so `memory` is an argument: the time that Square has confirmed, or one that you accept.
    ///
    /// Source: <https://developer.squareup.com/docs/working-with-apis/idempotency>,
    /// <https://developer.squareup.com/forums/t/how-long-are-idempotency-keys-retained-for-the-createpayment-endpoint/28303>.
    #[must_use]
    pub fn square(memory: Duration) -> Self {
        Self::new("square", KeyPlace::Member("idempotency_key".into()), memory).form(IdForm::V5).key_bytes_max(45)
    }

    /// PayPal's orders, version 2: `PayPal-Request-Id`, up to 108 characters, kept for 6 hours (up to 72 by agreement; other APIs of
    /// PayPal's differ, see their references). Of two simultaneous requests it may fail the second.
    ///
    /// Source: <https://developer.paypal.com/api/rest/reference/idempotency>,
    /// <https://developer.paypal.com/api/orders/v2/orders-authorize>.
    #[must_use]
    pub fn paypal_orders() -> Self {
        Self::new("paypal-orders", KeyPlace::Header(Name::from_static("paypal-request-id")), hours(6))
            .form(IdForm::V5)
            .key_bytes_max(108)
    }

    /// Qonto: `X-Qonto-Idempotency-Key`, kept for 30 minutes, after which the same request makes a new resource. It keeps successes,
    /// and repeats them whatever the body is, so two intents under one key would go unnoticed.
    ///
    /// Source: <https://docs.qonto.com/get-started/general/idempotent-requests>.
    #[must_use]
    pub fn qonto() -> Self {
        let name = Name::from_static("x-qonto-idempotency-key");
        Self::new("qonto", KeyPlace::Header(name), Duration::from_secs(30 * 60)).form(IdForm::V5)
    }

    /// Plaid's `/transfer/authorization/create`: the member `idempotency_key` of the body, which expires after 48 hours. Only keys of the
    /// length of a UUID were examined.
    ///
    /// Source: Plaid's schema of `TransferAuthorizationCreateRequest`,
    /// <https://www.rubydoc.info/gems/plaid/38.0.0/Plaid/TransferAuthorizationCreateRequest>.
    #[must_use]
    pub fn plaid_transfer_authorization() -> Self {
        Self::new("plaid-transfer-authorization", KeyPlace::Member("idempotency_key".into()), hours(48))
            .form(IdForm::V5)
            .key_bytes_max(36)
    }

    /// TrueLayer's payments, version 3: `Idempotency-Key`, valid for 30 days from its creation; another payload is an error.
    ///
    /// Source: <https://docs.truelayer.com/docs/idempotency-for-payment-requests>.
    #[must_use]
    pub fn truelayer() -> Self {
        Self::new("truelayer", KeyPlace::Header(IDEMPOTENCY_KEY), hours(24 * 30)).form(IdForm::V5)
    }

    /// Checkout.com: `Cko-Idempotency-Key`, kept for 24 hours if the first answer was 2xx; after 4xx or 5xx the request is attempted
    /// again.
    ///
    /// Source: <https://www.checkout.com/docs/payments/manage-payments/idempotency>.
    #[must_use]
    pub fn checkout_com() -> Self {
        Self::new("checkout.com", KeyPlace::Header(Name::from_static("cko-idempotency-key")), hours(24))
            .form(IdForm::V5)
    }

    fn named(mut self, name: &'static str) -> Self {
        self.name = name.into();
        self
    }
}
