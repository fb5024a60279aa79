//! The meaning of errors of SQS and of the SDK: a person must act, or it passes.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use idem_core::SourceError;

use crate::options::queue_name;

/// The codes by which SQS rejects this client's identity.
const NOT_LET_IN: [&str; 10] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];

pub(crate) const UNKNOWN_QUEUE: [&str; 4] =
    ["AWS.SimpleQueueService.NonExistentQueue", "InvalidAddress", "NonExistentQueue", "QueueDoesNotExist"];

/// Refused where only a person can help, else unavailable.
pub(crate) fn classify<E>(url: &str, doing: &'static str, error: SdkError<E>) -> SourceError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let queue = queue_name(url);
    let code = error.code().unwrap_or_default();
    if UNKNOWN_QUEUE.contains(&code) {
        return SourceError::refused(
            format!("queue {queue:?} does not exist at {url}"),
            "Create it, or correct the URL, the region or the account; idem creates no queues",
        );
    }
    if NOT_LET_IN.contains(&code) {
        return SourceError::refused(
            format!("SQS does not let this client in to queue {queue:?}: {code}"),
            "Check the credentials, the region and this machine's clock",
        );
    }
    if is_denied(&error) {
        return SourceError::refused(
            format!("queue {queue:?} may not be used while {doing}: {code}"),
            "Grant sqs:ReceiveMessage, sqs:DeleteMessage, sqs:ChangeMessageVisibility and sqs:GetQueueAttributes on the \
             queue, sqs:SendMessage on one for dead letters, and the use of their keys",
        );
    }
    if has_no_credentials(&error) {
        return SourceError::refused(
            format!("there are no credentials for queue {queue:?}"),
            "Give the client credentials, such as a role or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        );
    }
    if has_no_region(&error) {
        return SourceError::refused(
            format!("there is no region to sign requests to queue {queue:?} for"),
            "Give the client a region: AWS_REGION, or the region of a profile",
        );
    }
    if let SdkError::ConstructionFailure(_) = error {
        let problem = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        return SourceError::refused(
            format!("no request to queue {queue:?} can be made: {problem}"),
            "Give the client a region and an endpoint",
        );
    }
    // SQS was not asked. It passes: a role's metadata answer again, or somebody signs in.
    if let Some(failed) = idem_core::internal::chain(&error).find(|link| link.is::<CredentialsError>()) {
        let mut texts: Vec<_> = idem_core::internal::chain(failed).map(ToString::to_string).collect();
        // Each provider of a chain wraps the same words around its cause.
        texts.dedup();
        let text = format!(
            "the credentials for queue {queue:?} cannot be loaded (for a profile with SSO, run aws sso login): {}",
            texts.join(": ")
        );
        return SourceError::unavailable(doing, text);
    }
    // Which host was asked belongs to that, because it is the first thing to look at.
    if let SdkError::DispatchFailure(_) | SdkError::TimeoutError(_) = error {
        let texts: Vec<_> = idem_core::internal::chain(&error).map(ToString::to_string).collect();
        let text =
            format!("SQS does not answer for {url}, or for what AWS_ENDPOINT_URL says instead: {}", texts.join(": "));
        return SourceError::unavailable(doing, text);
    }
    SourceError::Unavailable { doing, source: Box::new(error) }
}

/// Whether no connection could be made, so that nothing has left (O100). The SDK says of this no more than of one that broke: that it
/// failed. The client below it does say so. A client of another kind counts as one that may have sent something.
pub(crate) fn could_not_connect(error: &(dyn Error + 'static)) -> bool {
    let is_connect = |error: &hyper_util::client::legacy::Error| error.is_connect();
    idem_core::internal::chain(error).any(|error| error.downcast_ref().is_some_and(is_connect))
}

/// Also by the key that the queue is encrypted with: `KmsAccessDenied`, `KMS.AccessDeniedException`.
pub(crate) fn is_denied(error: &impl ProvideErrorMetadata) -> bool {
    error.code().is_some_and(|code| code.contains("AccessDenied"))
}

/// The SDK has no type for it.
fn has_no_region(error: &(dyn Error + 'static)) -> bool {
    idem_core::internal::chain(error).any(|error| error.to_string().contains("missing signing region"))
}

/// Whether no provider has credentials, as opposed to a provider that cannot be reached now.
fn has_no_credentials(error: &(dyn Error + 'static)) -> bool {
    idem_core::internal::chain(error).any(|error| {
        // Errors whose types are the SDK's own: of a client without any provider, and of a machine whose metadata, the last
        // place to look, are closed to us.
        let text = error.to_string();
        if text.contains("auth scheme") || text.contains("IMDS is disabled") {
            return true;
        }
        let of_credentials = error.downcast_ref::<CredentialsError>();
        matches!(
            of_credentials,
            Some(CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_))
        )
    })
}
