//! The macro of a struct of statements.

/// Makes a struct of statements, each a field with its documentation.
macro_rules! statements {
    ($(#[$about:meta])+ $name:ident $(with $nested:ident: $type:ident)*; $($(#[$doc:meta])+ $field:ident: $text:expr;)+) => {
        $(#[$about])+
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])+ pub $field: Arc<str>,)+
            $(
                /// The statements outside of units of work.
                pub $nested: $type,
            )*
        }

        impl $name {
            /// The statements of PostgreSQL with the schema's quoted name in them.
            #[must_use]
            pub fn new(schema: &SchemaName) -> Self {
                Self {
                    $($field: Dialect::Postgres.render($text, schema).into(),)+
                    $($nested: $type::new(schema),)*
                }
            }

            /// Every statement with its field's name, so that a test can have each prepared by a server.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, &str)> {
                [$((stringify!($field), &*self.$field)),+].into_iter()$(.chain(self.$nested.all()))*
            }
        }
    };
}
pub(crate) use statements;
