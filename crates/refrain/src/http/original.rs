//! What the client asked for: below a router's prefix only the rest of it is left in a request's head.

use std::{borrow::Cow, sync::Arc};

use http::{Uri, request::Parts, uri::PathAndQuery};

#[cfg(feature = "axum")]
use super::layer::{names, report_loudly};
use super::{RefrainLayer, layer::Shared};
use crate::{Error, ErrorKind, Operation, Result, policy::Pattern};

pub(super) type UriOf = Arc<dyn Fn(&Parts) -> Option<Uri> + Send + Sync>;

/// The prefix below which the layer stands.
#[derive(Debug, Clone)]
pub(super) struct Prefix {
    /// Without a slash at its end.
    path: String,
    pattern: Pattern,
}

impl RefrainLayer {
    /// Says what the client asked for, where a router has left less of it in the request's head.
    ///
    /// Policies, fingerprints, scopes and derived keys go by the whole path; the service still sees what the router left.
    /// With the feature `axum` the layer knows it from axum's `OriginalUri`; this is for other routers, and goes before that.
    /// `None` stands for the head's own.
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

    /// Says below which prefix the layer stands, such as that of a router's `nest`.
    ///
    /// Operations that [apply to no request below it](Self::out_of_reach) are reported when the layer is put to use.
    /// Where nothing else tells what the client asked for, the prefix is put in front of the path;
    /// one with `{name}` in it cannot be.
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
    /// [`ErrorKind::Invalid`] where the prefix is no path.
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

    /// The operations of its policy that apply to no request below the prefix that [`under`](Self::under) says:
    /// no path there matches them, or a more specific operation matches the same paths.
    /// Operations for every path (`POST *`) are the fallback of the others, and never among them.
    pub fn out_of_reach(&self) -> impl Iterator<Item = &Operation> {
        let prefix = self.shared.prefix.as_ref();
        prefix
            .into_iter()
            .flat_map(|prefix| self.shared.policy.out_of_reach(&prefix.pattern))
    }
}

impl Shared {
    /// What the client asked for.
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

    /// Reports operations that match nothing below axum's `nest`, at the first request that comes through one.
    ///
    /// Only such a request tells the prefix. Without the report, a rule that was written without it would be off silently.
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
    /// The target with the prefix in front of its path.
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
