//! [`Router`]: picks a handler by the message's type.

use std::{borrow::Cow, collections::HashMap, fmt};

use crate::{
    config::Effects,
    handler::{BoxHandler, Handler},
    handler_error::{HandlerError, UnknownTypeError},
    key::JsonMember,
    message::Message,
    message_type::TypePlace,
    store::{Store, tx::Tx},
};

/// Picks a handler by the message's type.
///
/// | the type stands | |
/// |---|---|
/// | in the broker's own place: RabbitMQ's `type`, SQS' `EventType` or its envelope; or in the header of a CloudEvent in binary mode (`ce_type`) | nothing to say: it is [`Message::message_type`] |
/// | in a header or attribute of another name | [`Router::by_header`] |
/// | in the JSON payload, as in a CloudEvent in structured mode | [`Router::by_json`] |
///
/// A message whose type has no handler goes to the [fallback](Self::fallback), and without one it is dead-lettered as
/// `unknown-type`.
///
/// ```
/// use idem_core::{HandlerError, Message, Router, Store, Tx, handler_fn, json_fn};
///
/// # #[derive(serde::Deserialize)]
/// # struct Purchase {}
/// # #[derive(serde::Deserialize)]
/// # struct Refund {}
/// async fn purchase<S: Store>(purchase: Purchase, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
///     // …
/// #   Ok(())
/// }
/// async fn refund<S: Store>(refund: Refund, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
///     // …
/// #   Ok(())
/// }
/// // Of no concern to this consumer: the key is recorded, and nothing is written.
/// async fn pass_over<S: Store>(message: &Message, _: &mut Tx<'_, S>) -> Result<(), HandlerError> {
///     println!("passing over a message of type {:?}", message.message_type());
///     Ok(())
/// }
///
/// fn routes<S: Store>() -> Router<S> {
///     Router::new()
///         .on("purchase", json_fn(purchase))
///         .on("refund", json_fn(refund))
///         .fallback(handler_fn(pass_over))
/// }
/// ```
///
/// # The type and the key
/// The type is hashed with the payload (rule `raw+type/1`, see [`WithType`](crate::hash::WithType)): a message of another type
/// under a key that was used before is a conflict, set aside and never taken for a duplicate. Where one key names several
/// operations that are all to run, such as an order that is placed and later cancelled, the type belongs to the *key*:
/// [`Join`](crate::key::Join) of [`MessageType`](crate::key::MessageType) and the key.
///
/// A consumer that gets a router later starts as before. Records that it made without the type are compared without it.
///
/// A router among the handlers of another one goes by the place that the outer one goes by: only that place is hashed.
pub struct Router<S: Store> {
    place: TypePlace,
    routes: HashMap<String, Route<S>>,
    fallback: Option<Route<S>>,
    /// Whether any of them calls other systems.
    is_outside: bool,
}

struct Route<S: Store> {
    handler: BoxHandler<S>,
    /// `None`: as the handler itself answers.
    effects: Option<Effects>,
}

impl<S: Store> Route<S> {
    fn calls_outside(&self, message: Option<&Message>) -> bool {
        match self.effects {
            Some(effects) => effects == Effects::Outside,
            None => self.handler.calls_outside(message),
        }
    }
}

impl<S: Store> Default for Router<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Store> Router<S> {
    /// A router without routes.
    #[must_use]
    pub fn new() -> Self {
        Self { place: TypePlace::Message, routes: HashMap::new(), fallback: None, is_outside: false }
    }

    /// Takes the type from this header or attribute, such as `EventType`.
    #[must_use]
    pub fn by_header(mut self, name: &str) -> Self {
        self.place = TypePlace::Header(name.to_owned());
        self
    }

    /// Takes the type from this text in the JSON payload, such as `JsonMember::field("type")`. A payload that is no JSON, or in
    /// which it is repeated or no text, is dead-lettered as `malformed`; where it is missing or null, the message has no type.
    ///
    /// ```
    /// use idem_core::{Router, Store, json_fn, key::JsonMember};
    /// # use idem_core::{HandlerError, Tx};
    /// # #[derive(serde::Deserialize)]
    /// # struct Purchase {}
    /// # async fn purchase<S: Store>(_: Purchase, _: &mut Tx<'_, S>) -> Result<(), HandlerError> { Ok(()) }
    ///
    /// fn routes<S: Store>() -> Router<S> {
    ///     Router::new().by_json(JsonMember::field("type")).on("purchase", json_fn(purchase))
    /// }
    /// ```
    #[must_use]
    pub fn by_json(mut self, member: JsonMember) -> Self {
        self.place = TypePlace::Json(member);
        self
    }

    /// Handles messages of `message_type` by `handler`; a second call for the same type replaces the first.
    #[must_use]
    pub fn on(self, message_type: &str, handler: impl Handler<S>) -> Self {
        self.route(message_type, Route { handler: handler.boxed(), effects: None })
    }

    /// Handles messages of `message_type` by `handler`, which has these effects, where the consumer says [`Effects::InTransaction`].
    /// With [`Effects::Outside`] they run alone, each attempt counted before, in their order among the others of their ordering key; all
    /// other messages share transactions as before. The consumer needs a handler deadline then. Where the consumer says
    /// `Effects::Outside`, all of its messages run alone.
    ///
    /// ```
    /// use idem_core::{Effects, HandlerError, Message, Router, Store, Tx, handler_fn};
    ///
    /// # async fn place<S: Store>(_: &Message, _: &mut Tx<'_, S>) -> Result<(), HandlerError> { Ok(()) }
    /// # async fn call_the_provider(key: uuid::Uuid) -> Result<(), HandlerError> { Ok(()) }
    /// async fn charge<S: Store>(message: &Message, _: &mut Tx<'_, S>) -> Result<(), HandlerError> {
    ///     let key = message.derived_key("charge");
    ///     call_the_provider(key).await
    /// }
    ///
    /// fn routes<S: Store>() -> Router<S> {
    ///     Router::new().on("placed", handler_fn(place)).on_with(Effects::Outside, "charge", handler_fn(charge))
    /// }
    /// ```
    #[must_use]
    pub fn on_with(self, effects: Effects, message_type: &str, handler: impl Handler<S>) -> Self {
        self.route(message_type, Route { handler: handler.boxed(), effects: Some(effects) })
    }

    fn route(mut self, message_type: &str, route: Route<S>) -> Self {
        self.is_outside |= route.calls_outside(None);
        self.routes.insert(message_type.to_owned(), route);
        self
    }

    fn route_of(&self, message_type: Option<&str>) -> Option<&Route<S>> {
        message_type.and_then(|name| self.routes.get(name)).or(self.fallback.as_ref())
    }

    /// Handles messages of every other type by `handler`, and those without one, which includes a
    /// [`by_header`](Self::by_header) header that is repeated or no text. A second call replaces the first.
    #[must_use]
    pub fn fallback(mut self, handler: impl Handler<S>) -> Self {
        let route = Route { handler: handler.boxed(), effects: None };
        self.is_outside |= route.calls_outside(None);
        self.fallback = Some(route);
        self
    }
}

impl<S: Store> fmt::Debug for Router<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("types", &self.routes.keys()).finish_non_exhaustive()
    }
}

impl<S: Store> Handler<S> for Router<S> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        let message_type = self.place.read(message)?;
        match self.route_of(message_type.as_deref()) {
            Some(route) => route.handler.0.handle_dyn(message, tx).await,
            None => Err(UnknownTypeError(message_type.map(Cow::into_owned)).into()),
        }
    }

    fn dispatches_by(&self) -> Option<TypePlace> {
        Some(self.place.clone())
    }

    fn calls_outside(&self, message: Option<&Message>) -> bool {
        let (true, Some(message)) = (self.is_outside, message) else { return self.is_outside };
        // A type that cannot be read is a failure of `handle`.
        let Ok(message_type) = self.place.read(message) else { return false };
        self.route_of(message_type.as_deref()).is_some_and(|route| route.calls_outside(Some(message)))
    }
}
