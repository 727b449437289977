//! What the client asked for: below a router's prefix only the rest of it is left in a request's head.

use std::{borrow::Cow, sync::Arc};

use http::{Uri, request::Parts, uri::PathAndQuery};

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
    /// Operations that [no path below it](Self::out_of_reach) belongs to are reported when the layer is put to use.
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

    /// The operations of its policy that match nothing below the prefix that [`under`](Self::under) says.
    pub fn out_of_reach(&self) -> impl Iterator<Item = &Operation> {
        let prefix = self.shared.prefix.as_ref();
        prefix.into_iter().flat_map(|prefix| {
            let operations = self.shared.policy.operations();
            operations.filter(|it| !it.reaches_below(&prefix.pattern))
        })
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
            return Cow::Borrowed(uri);
        }
        let put_in_front = self
            .prefix
            .as_ref()
            .and_then(|prefix| prefix.join(&head.uri));
        put_in_front.map_or(Cow::Borrowed(&head.uri), Cow::Owned)
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
