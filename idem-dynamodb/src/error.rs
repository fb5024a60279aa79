//! Errors of DynamoDB and of the SDK: what each means, and its text without a value of an item or expression.

use std::{error::Error, fmt};

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    operation::RequestId as _,
};
use idem_core::{BoxError, ErrorClass, StoreError, internal::chain};

/// Codes of requests that DynamoDB refuses for its load; the same request may be sent again.
const THROTTLED: [&str; 6] = [
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "ThrottlingError",
    "Throttling",
    "ProvisionedThroughputExceeded",
];

/// Codes by which AWS rejects this client's identity or rights.
const NOT_LET_IN: [&str; 9] = [
    "AccessDeniedException",
    "AccessDenied",
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];

/// An error of a request to DynamoDB.
///
/// `Display` has DynamoDB's own words, which may quote a value. Logs and dead letters have the operation, the code and the request id.
pub struct DynamoError {
    /// The operation, such as `UpdateItem`.
    operation: &'static str,
    /// The code that DynamoDB gave; `None` where no answer was read.
    code: Option<String>,
    request_id: Option<String>,
    /// Whether the request may have been applied although this error was answered.
    is_unknown: bool,
    source: BoxError,
}

impl DynamoError {
    pub(crate) fn of<E>(operation: &'static str, error: SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let code = error.code().map(str::to_owned);
        let request_id = error.request_id().map(str::to_owned);
        let is_unknown = match &error {
            SdkError::ConstructionFailure(_) => false,
            SdkError::DispatchFailure(_) | SdkError::TimeoutError(_) | SdkError::ResponseError(_) => true,
            SdkError::ServiceError(answer) => {
                answer.raw().status().is_server_error()
                    || matches!(code.as_deref(), None | Some("TransactionInProgressException"))
            }
            _ => true,
        };
        Self { operation, code, request_id, is_unknown, source: Box::new(error) }
    }

    /// The same error under the code of a part of it.
    pub(crate) fn for_code(self, code: Option<String>) -> Self {
        Self { code: code.or(self.code), ..self }
    }

    /// An error of idem's own, which was not sent.
    pub(crate) fn own(operation: &'static str, code: &str, problem: String) -> Self {
        Self { operation, code: Some(code.to_owned()), request_id: None, is_unknown: false, source: problem.into() }
    }

    /// The code that DynamoDB gave, such as `ValidationException`.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    pub(crate) fn is(&self, code: &str) -> bool {
        self.code() == Some(code)
    }

    /// Whether the request may have been applied, or may still be.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    pub(crate) fn is_throttled(&self) -> bool {
        self.code().is_some_and(|code| THROTTLED.contains(&code))
    }

    /// The item is part of a transaction that is being decided.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.is("TransactionConflictException")
    }

    /// Whether the same request may go well in a moment.
    pub(crate) fn passes(&self) -> bool {
        self.is_unknown || self.is_throttled() || self.is_in_transaction()
    }

    /// The class, by which the engine decides what to do next.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self.code() {
            Some("TransactionConflictException") => ErrorClass::RunUnitAgain,
            Some("ResourceNotFoundException") => ErrorClass::Infrastructure,
            Some(code) if NOT_LET_IN.contains(&code) => ErrorClass::Fatal,
            Some(code) if THROTTLED.contains(&code) => ErrorClass::Infrastructure,
            _ if self.is_unknown => ErrorClass::Infrastructure,
            Some(_) => ErrorClass::Permanent,
            None => ErrorClass::Fatal,
        }
    }

    /// The text without DynamoDB's words.
    pub(crate) fn without_values(&self) -> String {
        let mut text = match &self.code {
            Some(code) => format!("{} failed with {code}", self.operation),
            // Of the client itself: a host, a time-out, missing credentials.
            None => format!("{} was not answered: {}", self.operation, causes(&*self.source)),
        };
        if let Some(id) = &self.request_id {
            text.push_str(&format!(" (request {id})"));
        }
        text
    }

    pub(crate) fn into_store(self, doing: &'static str) -> StoreError {
        match self.class() {
            ErrorClass::Infrastructure => StoreError::unavailable(doing, self),
            ErrorClass::RunUnitAgain => StoreError::contended(doing, self),
            ErrorClass::Fatal => {
                let problem = format!("DynamoDB does not let this client in while {doing}: {}", self.without_values());
                let cure = match self.code() {
                    Some(code) if code.contains("AccessDenied") => {
                        format!("Grant dynamodb:{} on the table, and on those that handlers write to", self.action())
                    }
                    _ => "Check the credentials, the region, the endpoint and the clock of this machine".to_owned(),
                };
                StoreError::refused(problem, cure)
            }
            class @ (ErrorClass::Transient | ErrorClass::Permanent) => StoreError::failed(doing, class, self),
        }
    }

    /// The action of IAM. A transaction needs those of its parts.
    fn action(&self) -> &'static str {
        match self.operation {
            "TransactWriteItems" => "{PutItem,UpdateItem,DeleteItem,ConditionCheckItem}",
            other => other,
        }
    }
}

fn causes(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<_> = chain(error).map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

impl fmt::Display for DynamoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.operation, causes(&*self.source))
    }
}

impl fmt::Debug for DynamoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DynamoError").field(&self.without_values()).finish()
    }
}

impl Error for DynamoError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
