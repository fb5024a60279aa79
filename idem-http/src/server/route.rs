//! A route's name and settings.

use std::time::Duration;

use http::Method;

use super::{fingerprint::Fingerprint, state::Limits};
use crate::outcomes::is_known;

/// A route's name.
#[derive(Debug)]
pub(crate) struct RouteName {
    /// Method and path: the scope of keys.
    pub(crate) scope: String,
    is_bounded: bool,
}

impl RouteName {
    /// The route of this path, as the router knows it.
    pub(crate) fn new(method: &Method, template: &str) -> Self {
        Self { scope: format!("{method} {template}"), is_bounded: is_known(method) }
    }

    /// The name for metrics and spans, of which there are no more than the service has routes.
    pub(crate) fn label(&self) -> &str {
        if self.is_bounded { &self.scope } else { "other" }
    }
}

/// The routes that a question with this query is about: those that its `route` names, or else all.
///
/// # Errors
/// A text for the client, if it names none of them.
pub(super) fn asked_for<'r>(routes: &'r [String], query: Option<&str>) -> Result<Vec<&'r str>, String> {
    let all = || routes.iter().map(String::as_str);
    let Some(asked) = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("route=")) else {
        return Ok(all().collect());
    };
    // A form's way to write the blank; no method has a plus in it.
    let asked = decoded(&asked.replacen('+', " ", 1)).unwrap_or_default();
    if let Some(named) = all().find(|route| *route == asked) {
        return Ok(vec![named]);
    }
    let meant: Vec<_> = all().filter(|route| takes(route, &asked)).collect();
    if meant.is_empty() {
        return Err(format!(
            "no operation here is `{asked}`, and those that can be asked about are {}",
            routes.join(", ")
        ));
    }
    Ok(meant)
}

/// What is percent-encoded, as text.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decoded(encoded: &str) -> Result<String, &'static str> {
    let mut rest = encoded.bytes();
    let mut bytes = Vec::new();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let decoded = digit(rest.next()).zip(digit(rest.next())).map(|(high, low)| high * 16 + low);
                let decoded = decoded.and_then(|byte| u8::try_from(byte).ok());
                decoded.ok_or("a percent sign in the path is not followed by two hexadecimal digits")?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| "the last part of the path, decoded, is no UTF-8")
}

/// Whether a request of this method and path may be one to the route. A proxy may have put parts before the path, or taken some away.
fn takes(route: &str, asked: &str) -> bool {
    let (Some((method, template)), Some((asked_method, path))) = (route.split_once(' '), asked.split_once(' ')) else {
        return false;
    };
    let (template, path) = (parts(template), parts(path));
    // A part of a path that any other could be says nothing.
    let tells = |parts: &[&str]| parts.iter().any(|part| !part.starts_with('{'));
    let is_longer = (1..path.len()).any(|skipped| tells(&template) && all_take(&template, &path[skipped..]));
    let is_shorter =
        (1..template.len()).any(|skipped| tells(&template[skipped..]) && all_take(&template[skipped..], &path));
    let is_one = all_take(&template, &path) || is_longer || is_shorter;
    method == asked_method && is_one
}

fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

fn all_take(template: &[&str], path: &[&str]) -> bool {
    match (template, path) {
        ([], []) => true,
        ([part, ..], [_, ..]) if part.starts_with("{*") => true,
        ([part, template @ ..], [one, path @ ..]) => (part.starts_with('{') || part == one) && all_take(template, path),
        ([], [_, ..]) | ([_, ..], []) => false,
    }
}

/// Whether a route can have this name, and its requests records.
pub(crate) fn has_records(name: &str) -> bool {
    let Some((method, path)) = name.split_once(' ') else { return false };
    let is_in_capitals = !method.bytes().any(|byte| byte.is_ascii_lowercase());
    let has_method = Method::from_bytes(method.as_bytes()).is_ok_and(|method| is_in_capitals && !method.is_safe());
    has_method && path.starts_with('/') && !path.contains(char::is_whitespace)
}

/// The settings of a route.
#[derive(Debug, Clone)]
pub(crate) struct RouteSettings {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) body_bytes_max: usize,
    pub(crate) body_deadline: Duration,
    pub(crate) response_bytes_max: usize,
    pub(crate) decoded_before: bool,
}

impl RouteSettings {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            fingerprint: Fingerprint::raw(),
            body_bytes_max: limits.body_bytes_max,
            body_deadline: limits.body_deadline,
            response_bytes_max: limits.response_bytes_max,
            decoded_before: false,
        }
    }
}

/// The setters that routes and layers share, on their field `settings`.
macro_rules! route_setters {
    () => {
        /// Sets which part of the bodies of these routes is compared. Defaults to all bytes.
        #[must_use]
        pub fn fingerprint(mut self, fingerprint: $crate::Fingerprint) -> Self {
            self.settings.fingerprint = fingerprint;
            self
        }

        /// Sets the largest body of a request here, in bytes.
        #[must_use]
        pub fn body_bytes_max(mut self, bytes: usize) -> Self {
            self.settings.body_bytes_max = bytes;
            self
        }

        /// Sets how long a body may take to arrive here.
        #[must_use]
        pub fn body_deadline(mut self, deadline: std::time::Duration) -> Self {
            self.settings.body_deadline = deadline;
            self
        }

        /// Says that a layer outside of this one decodes bodies. The request's `Content-Digest` and `Repr-Digest` are then those of the coded
        /// body, and are not looked at here: [`VerifyDigest`](crate::VerifyDigest), outside of that layer, verifies them.
        #[must_use]
        pub fn bodies_are_decoded_before(mut self) -> Self {
            self.settings.decoded_before = true;
            self
        }
    };
}
pub(crate) use route_setters;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w156_a_question_names_its_route_by_name_or_by_a_path_to_it() {
        let routes =
            ["POST /charges", "POST /refunds", "PATCH /v1/accounts/{id}", "PUT /files/{*path}"].map(str::to_owned);
        let asked = |query: &str| asked_for(&routes, Some(query));
        assert_eq!(asked("").unwrap().len(), 4);
        for (query, route) in [
            ("route=POST%20/charges", 0),
            ("answer=true&route=POST+%2Frefunds", 1),
            ("route=POST%20/api/v2/refunds", 1),
            ("route=PATCH%20/v1/accounts/7", 2),
            ("route=PATCH%20/accounts/7", 2),
            ("route=PATCH%20/v1/accounts/%7Bid%7D", 2),
            ("route=PUT%20/files/a/b", 3),
        ] {
            assert_eq!(asked(query).unwrap(), [routes[route].as_str()], "{query}");
        }
        for query in [
            "route=PUT%20/charges",
            "route=POST%20/charges/7",
            "route=POST",
            "route=",
            "route=%zz",
            "route=POST%20/",
            "route=PATCH%20/charges",
        ] {
            assert!(asked(query).unwrap_err().contains("POST /refunds"), "{query}");
        }
    }
}
