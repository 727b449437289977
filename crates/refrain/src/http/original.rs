//! The URI that the client requested: below a router's prefix, the request's head has only the rest of the path.

use std::{borrow::Cow, sync::Arc};

use http::{Uri, request::Parts, uri::PathAndQuery};

#[cfg(feature = "axum")]
use super::layer::{names, report_loudly};
use super::{RefrainLayer, layer::LayerState};
use crate::{Error, ErrorKind, Operation, Result, policy::Pattern};

pub(super) type UriOf = Arc<dyn Fn(&Parts) -> Option<Uri> + Send + Sync>;

/// The router prefix that the layer is nested under.
#[derive(Debug, Clone)]
pub(super) struct Prefix {
    /// Without a slash at its end.
    path: String,
    pattern: Pattern,
}

impl RefrainLayer {
    /// Sets a function that returns the URI that the client requested, for routers that strip a prefix from the request's head.
    ///
    /// Policies, fingerprints, scopes and derived keys use the whole path; the service still sees the stripped one.
    /// With the feature `axum` the layer reads axum's `OriginalUri`; this function is for other routers, and takes precedence.
    /// If it returns `None`, the layer continues as if it were not set.
    ///
    /// ```
    /// use refrain::{Engine, Policy, http::RefrainLayer, store::Memory};
    ///
    /// #[derive(Clone)]
    /// struct WholeUri(http::Uri);
    ///
    /// let layer = RefrainLayer::new(Engine::new(Memory::new()), Policy::default())
    ///     .with_original_uri(|head| Some(head.extensions.get::<WholeUri>()?.0.clone()));
    /// ```
    #[must_use]
    pub fn with_original_uri(
        mut self,
        uri: impl Fn(&Parts) -> Option<Uri> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.shared).original = Some(Arc::new(uri));
        self
    }

    /// Sets the router prefix that the layer is nested under, such as that of a router's `nest`.
    ///
    /// Operations that [apply to no request below it](Self::out_of_reach) are reported when the layer is applied.
    /// If the original URI is not known otherwise, the prefix is prepended to the path, unless it contains a `{name}`.
    ///
    /// ```
    /// use refrain::{Engine, Operation, Policy, http::RefrainLayer, store::Memory};
    ///
    /// let policy = Policy::default()
    ///     .with(Operation::new("POST /eu/pay")?)?
    ///     .with(Operation::new("POST /us/pay")?)?;
    /// let layer = RefrainLayer::new(Engine::new(Memory::new()), policy).under("/eu")?;
    /// let unused: Vec<_> = layer.out_of_reach().map(|it| &it.name[..]).collect();
    /// assert_eq!(unused, ["POST /us/pay"]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the prefix is not a path.
    pub fn under(mut self, prefix: &str) -> Result<Self> {
        let pattern: Pattern = format!("* {prefix}").parse()?;
        if prefix.contains('*') {
            let message =
                format!("`{prefix}` is no prefix; write it as the router has it, like /v1");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let path = prefix.trim_end_matches('/').into();
        Arc::make_mut(&mut self.shared).prefix = Some(Prefix { path, pattern });
        Ok(self)
    }

    /// The operations of the policy that apply to no request below the prefix set with [`under`](Self::under):
    /// no path there matches them, or a more specific operation matches the same paths.
    /// Operations for every path (`POST *`) are fallbacks, and never listed.
    pub fn out_of_reach(&self) -> impl Iterator<Item = &Operation> {
        let prefix = self.shared.prefix.as_ref();
        prefix
            .into_iter()
            .flat_map(|prefix| self.shared.policy.out_of_reach(&prefix.pattern))
    }
}

impl LayerState {
    /// The URI that the client requested.
    pub(super) fn uri<'h>(&self, head: &'h Parts) -> Cow<'h, Uri> {
        if let Some(uri) = self.original.as_ref().and_then(|original| original(head)) {
            return Cow::Owned(uri);
        }
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(uri)) = head.extensions.get() {
            self.report_nest(head, uri);
            return Cow::Borrowed(uri);
        }
        let put_in_front = self
            .prefix
            .as_ref()
            .and_then(|prefix| prefix.join(&head.uri));
        put_in_front.map_or(Cow::Borrowed(&head.uri), Cow::Owned)
    }

    /// Reports operations that match nothing below axum's `nest`, at the first nested request.
    ///
    /// Only such a request contains the prefix. Without the report, an operation written without the prefix would silently
    /// not be guarded.
    #[cfg(feature = "axum")]
    fn report_nest(&self, head: &Parts, original: &Uri) {
        if self.nest_reported.is_set() || original.path().len() == head.uri.path().len() {
            return;
        }
        let nest = head.extensions.get::<axum::extract::NestedPath>();
        let Some(nest) = nest.filter(|_| self.nest_reported.set() && self.prefix.is_none()) else {
            return;
        };
        let nest = nest.as_str();
        let Ok(prefix) = format!("* {nest}").parse::<Pattern>() else {
            return;
        };
        let unreached: Vec<_> = self.policy.out_of_reach(&prefix).collect();
        if !unreached.is_empty() {
            report_loudly(&format!(
                "no request below `{nest}`, where the router nests the layer, reaches these operations: {}; \
                 write their whole paths, such as `{}/...`, unless the layer is nested elsewhere too",
                names(&unreached),
                nest.trim_end_matches('/')
            ));
        }
    }
}

impl Prefix {
    /// The URI with the prefix prepended to its path.
    fn join(&self, uri: &Uri) -> Option<Uri> {
        if self.pattern.names().next().is_some() {
            return None;
        }
        let rest = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(format!("{}{rest}", self.path).parse().ok()?);
        Uri::from_parts(parts).ok()
    }
}
