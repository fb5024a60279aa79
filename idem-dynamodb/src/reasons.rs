//! Why DynamoDB did not commit a transaction, and which of its actions was the cause.

use aws_sdk_dynamodb::{
    error::SdkError, operation::transact_write_items::TransactWriteItemsError, types::CancellationReason,
};

use crate::{error::DynamoError, item::Item};

/// The answer to a transaction that was not confirmed.
pub(crate) enum Cancelled {
    /// DynamoDB has cancelled it, for these reasons, one an action: it has no effect.
    For(Vec<Reason>, DynamoError),
    /// It was refused as a whole, or its outcome is not known.
    Whole(DynamoError),
}

/// What DynamoDB says of an action.
pub(crate) struct Reason {
    code: String,
    /// The item as it is, where its condition failed.
    pub(crate) item: Option<Item>,
}

impl Reason {
    pub(crate) fn is_condition(&self) -> bool {
        self.code == "ConditionalCheckFailed"
    }

    fn is_conflict(&self) -> bool {
        self.code == "TransactionConflict"
    }

    fn is_throttled(&self) -> bool {
        matches!(self.code.as_str(), "ThrottlingError" | "ProvisionedThroughputExceeded")
    }

    fn is_none(&self) -> bool {
        self.code == "None"
    }
}

impl From<CancellationReason> for Reason {
    fn from(reason: CancellationReason) -> Self {
        Self { code: reason.code.unwrap_or_default(), item: reason.item }
    }
}

pub(crate) fn of_transaction(error: SdkError<TransactWriteItemsError>) -> Cancelled {
    let reasons = match error.as_service_error() {
        Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
            cancelled.cancellation_reasons().iter().cloned().map(Reason::from).collect()
        }
        _ => return Cancelled::Whole(DynamoError::of("TransactWriteItems", error)),
    };
    Cancelled::For(reasons, DynamoError::of("TransactWriteItems", error))
}

impl Cancelled {
    /// The first action whose condition failed.
    pub(crate) fn condition(&self) -> Option<(usize, &Reason)> {
        match self {
            Self::For(reasons, _) => reasons.iter().enumerate().find(|(_, reason)| reason.is_condition()),
            Self::Whole(_) => None,
        }
    }

    pub(crate) fn is_condition(&self) -> bool {
        self.condition().is_some()
    }

    /// Whether other transactions alone were in the way.
    pub(crate) fn is_conflict(&self) -> bool {
        match self {
            Self::For(reasons, _) => {
                reasons.iter().any(Reason::is_conflict) && reasons.iter().all(|it| it.is_none() || it.is_conflict())
            }
            Self::Whole(error) => error.is_in_transaction(),
        }
    }

    pub(crate) fn is_throttled(&self) -> bool {
        match self {
            Self::For(reasons, _) => reasons.iter().any(Reason::is_throttled),
            Self::Whole(error) => error.is_throttled(),
        }
    }

    /// Whether it may have been applied, or may still be.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Self::Whole(error) if error.is_unknown())
    }

    pub(crate) fn passes(&self) -> bool {
        self.is_unknown() || self.is_conflict() || self.is_throttled()
    }

    /// The error, with the code of the first reason in place of that of the cancellation.
    pub(crate) fn into_error(self) -> DynamoError {
        match self {
            Self::Whole(error) => error,
            Self::For(reasons, error) => {
                let code = reasons.into_iter().find(|reason| !reason.is_none()).map(|reason| reason.code);
                error.for_code(code)
            }
        }
    }
}
