//! Destinations of a relay's file that are endpoints over HTTP.

use std::{path::Path, sync::Arc};

use idem_core::{
    BoxError,
    outbox::{CloudEvents, EventPublisher, OutgoingEvent},
};
use idem_webhook::{
    Secret,
    send::{Endpoint, WebhookPublisher},
};

use super::parts::WebhookPart;
use crate::secret_files;

/// The publisher that posts the events of this destination to its endpoint.
///
/// # Errors
/// One line that names the destination, and shows neither the endpoint nor a secret.
pub(crate) fn publisher(
    destination: &str,
    part: &WebhookPart,
    form: Option<CloudEvents>,
) -> Result<Arc<dyn EventPublisher>, BoxError> {
    let of = |why: String| format!("the webhook of {destination:?}: {why}");
    let secrets: Vec<Secret> = part.secrets.iter().map(|text| secret(text)).collect::<Result<_, _>>().map_err(of)?;
    let endpoint = Endpoint::new(&part.endpoint, secrets);
    let found = endpoint.clone();
    let publisher = WebhookPublisher::new(move |_: &OutgoingEvent| {
        let endpoint = found.clone();
        async move { Ok(Some(endpoint)) }
    });
    let mut publisher = publisher.map_err(|error| of(error.rule.to_owned()))?;
    if part.private_networks {
        publisher = publisher.allow_private_networks().map_err(|error| of(error.rule.to_owned()))?;
    }
    if part.plaintext {
        publisher = publisher.allow_plaintext();
    }
    if part.origin {
        publisher = publisher.send_origin();
    }
    if let Some(form) = form {
        publisher = publisher.cloud_events(form);
    }
    publisher.check(&endpoint).map_err(|error| of(error.rule.to_owned()))?;
    Ok(Arc::new(publisher))
}

/// A secret, from a file where it names one. Errors leave out the text behind the `@`: it may be a secret that
/// begins so.
fn secret(text: &str) -> Result<Secret, String> {
    let Some(file) = text.strip_prefix('@') else { return text.parse().map_err(told) };
    let file = Path::new(file);
    let text = std::fs::read_to_string(file).map_err(|error| {
        format!("one of its secrets is @ and a file (it is not shown) that cannot be read: {error}")
    })?;
    secret_files::warn_if_others_may(file, "secrets");
    text.trim_end_matches(['\r', '\n']).parse().map_err(told)
}

fn told(error: idem_webhook::ParseSecretError) -> String {
    format!("one of its secrets is not valid: {error}")
}
