//! The meaning of the client library's errors: the broker refuses, or it cannot be reached now.

use std::error::Error as StdError;

use idem_core::SourceError;
use lapin::{Error, ErrorKind};

use crate::options::Settings;

/// Reply codes of AMQP 0-9-1 after which only a person can help.
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// Refused where only a person can help, else unavailable.
pub(crate) fn classify(settings: &Settings, doing: &'static str, error: Error) -> SourceError {
    if let Some(refused) = refusal(settings, &error) {
        return refused;
    }
    // Which hosts were asked belongs to that, because it is the first thing to look at.
    if let ErrorKind::IOError(problem) = error.kind() {
        let hosts = settings.uris.iter().map(|uri| match (uri.authority.host.as_str(), uri.authority.port) {
            (host, port) if host.contains(':') => format!("[{host}]:{port}"),
            (host, port) => format!("{host}:{port}"),
        });
        let hosts = hosts.collect::<Vec<_>>().join(", ");
        return SourceError::unavailable(doing, format!("RabbitMQ at {hosts} does not answer: {problem}"));
    }
    SourceError::unavailable(doing, error)
}

/// Whether this is the broker's refusal, rather than an unreachable broker.
pub(crate) fn is_refused(settings: &Settings, error: &Error) -> bool {
    refusal(settings, error).is_some()
}

fn refusal(settings: &Settings, error: &Error) -> Option<SourceError> {
    if let Some(why) = untrusted(error) {
        return Some(SourceError::refused(
            format!("the certificate of {} is not trusted: {why}", settings.uri.authority.host),
            "Name the authority that signed it in `authorities`, or the host by the name in its certificate",
        ));
    }
    if wants_certificate(error) {
        return Some(SourceError::refused(
            format!(
                "the broker at {} does not let this client in without a certificate that it knows",
                settings.uri.authority.host
            ),
            "Give one in `client_certificate`, signed by an authority that the broker trusts",
        ));
    }
    let (code, text) = reply(error)?;
    let Settings { queue, uri, .. } = settings;
    let vhost = &uri.vhost;
    match code {
        // Another program's exclusive consumer, or a node that is restarting, goes away by itself.
        ACCESS_REFUSED if text.contains("exclusive use") => None,
        NOT_FOUND if text.contains("down or inaccessible") => None,
        NOT_FOUND => Some(SourceError::refused(
            format!("queue \"{queue}\" does not exist in vhost {vhost:?}"),
            "Declare it, or correct the name; idem declares no queues",
        )),
        ACCESS_REFUSED if text.contains("Login was refused") => Some(SourceError::refused(
            format!("the broker does not let user {:?} in", uri.authority.userinfo.username),
            "Check user and password of the URL",
        )),
        ACCESS_REFUSED => Some(SourceError::refused(
            format!("queue \"{queue}\" may not be used: {text}"),
            format!(
                "Grant user {:?} the right to read it: rabbitmqctl set_permissions",
                uri.authority.userinfo.username
            ),
        )),
        NOT_ALLOWED => Some(SourceError::refused(
            format!("vhost {vhost:?} may not be used: {text}"),
            "Correct the end of the URL, or grant the user access to the vhost",
        )),
        RESOURCE_LOCKED => Some(SourceError::refused(
            format!("queue \"{queue}\" is exclusive to another connection"),
            "Declare it without `exclusive`: several workers share a queue",
        )),
        _ => None,
    }
}

/// The fault of the broker's certificate, where that is why no connection came about.
#[cfg(feature = "tls")]
fn untrusted(error: &Error) -> Option<String> {
    let ErrorKind::IOError(error) = error.kind() else { return None };
    let inner = error.get_ref()?;
    idem_core::internal::chain(inner).find_map(|error| match error.downcast_ref::<rustls::Error>() {
        Some(rustls::Error::InvalidCertificate(why)) => Some(why.to_string()),
        Some(_) | None => None,
    })
}

/// Whether the broker asked for a certificate of this client's, and got none, or none that it trusts.
#[cfg(feature = "tls")]
fn wants_certificate(error: &Error) -> bool {
    use rustls::AlertDescription as Alert;

    let ErrorKind::IOError(error) = error.kind() else { return false };
    let told = error.get_ref().into_iter().flat_map(|inner| idem_core::internal::chain(inner));
    let mut alerts = told.filter_map(|error| match error.downcast_ref::<rustls::Error>() {
        Some(rustls::Error::AlertReceived(alert)) => Some(*alert),
        Some(_) | None => None,
    });
    alerts.any(|alert| {
        let about_certificates = [
            Alert::CertificateRequired,
            Alert::BadCertificate,
            Alert::UnsupportedCertificate,
            Alert::CertificateRevoked,
            Alert::CertificateExpired,
            Alert::CertificateUnknown,
            Alert::UnknownCA,
        ];
        about_certificates.contains(&alert)
    })
}

#[cfg(not(feature = "tls"))]
fn wants_certificate(_error: &Error) -> bool {
    false
}

#[cfg(not(feature = "tls"))]
fn untrusted(_error: &Error) -> Option<String> {
    None
}

/// The code and text with which the broker closed a channel or connection.
pub(crate) fn reply(error: &Error) -> Option<(u16, String)> {
    if let ErrorKind::ProtocolError(error) = error.kind() {
        Some((error.get_id(), error.get_message().to_string()))
    } else {
        None
    }
}

/// Whether the broker refuses a message for its size.
pub(crate) fn is_too_large(error: &Error) -> bool {
    reply(error).is_some_and(|(code, text)| code == PRECONDITION_FAILED && text.contains("size"))
}

/// The cure for a channel that the broker closed, where it says why.
pub(crate) fn cure(error: &(dyn StdError + 'static)) -> &'static str {
    let timed_out = |error: &Error| reply(error).is_some_and(|(_, text)| text.contains("acknowledgement"));
    if error.downcast_ref::<Error>().is_some_and(timed_out) {
        "messages were held for longer than the broker's consumer_timeout: raise that, or tell idem of it"
    } else {
        "idem connects again; unsettled messages come back"
    }
}
