//! The future of a guarded service.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

use super::{
    Decision, REFRAIN_OUTCOME,
    body::Body,
    decision::{Telling, marked},
    layer::Shared,
    run::{Detached, Ran, Task},
    service::Answer,
};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pin_project! {
    /// The future of a [`RefrainService`](super::RefrainService).
    pub struct ResponseFuture<F, R, E>
    where
        R: Send,
        R: 'static,
        E: Send,
        E: 'static,
    {
        telling: Option<Telling>,
        #[pin]
        way: Way<F, R, E>,
    }
}

pin_project! {
    /// On which way the answer comes.
    #[project = OnWay]
    pub(super) enum Way<F, R, E>
    where
        R: Send,
        R: 'static,
        E: Send,
        E: 'static,
    {
        /// It is there. `None` once it was told. Boxed, because this is moved about.
        Here { answer: Option<Box<Response<Body<R>>>> },
        /// The service's own, unguarded.
        Through { #[pin] future: F, decision: Option<Decision> },
        /// The operation runs.
        Running { running: Detached<R, E>, shared: Arc<Shared> },
        /// What is waited for says how it goes on.
        Waiting { future: Boxed<Way<F, R, E>> },
        /// It comes of something else.
        Boxed { future: Boxed<Answer<R, E>> },
    }
}

impl<F, R: Send + 'static, E: Send + 'static> Way<F, R, E> {
    /// An answer that is there.
    pub(super) fn here(answer: Response<Body<R>>) -> Self {
        let answer = Some(Box::new(answer));
        Self::Here { answer }
    }

    /// The answer of a request that is let through.
    pub(super) fn through(future: F, decision: Option<Decision>) -> Self {
        Self::Through { future, decision }
    }

    /// The answer of an operation that runs.
    pub(super) fn running(task: Task<R, E>, shared: Arc<Shared>) -> Self {
        let running = Detached::new(task);
        Self::Running { running, shared }
    }

    /// The answer of a request that has to wait before it goes on.
    pub(super) fn waiting(future: impl Future<Output = Self> + Send + 'static) -> Self {
        let future = Box::pin(future);
        Self::Waiting { future }
    }

    /// The answer that something else comes to.
    pub(super) fn boxed(future: impl Future<Output = Answer<R, E>> + Send + 'static) -> Self {
        let future = Box::pin(future);
        Self::Boxed { future }
    }
}

impl<F, R: Send, E: Send> ResponseFuture<F, R, E> {
    /// The answer that comes on this way, of which somebody is told.
    pub(super) fn told(telling: Option<Telling>, way: Way<F, R, E>) -> Self {
        Self { telling, way }
    }
}

impl<F, R: Send, E: Send> From<Way<F, R, E>> for ResponseFuture<F, R, E> {
    fn from(way: Way<F, R, E>) -> Self {
        Self::told(None, way)
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Send + 'static,
    E: Send + 'static,
{
    type Output = Answer<R, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let answer = loop {
            let next = match this.way.as_mut().project() {
                OnWay::Here { answer } => match answer.take() {
                    Some(answer) => break Ok(*answer),
                    None => return Poll::Pending,
                },
                OnWay::Through { future, decision } => {
                    break ready!(future.poll(context)).map(|response| match decision {
                        Some(decision) => marked(*decision, passed(response)),
                        None => passed(response),
                    });
                }
                OnWay::Running { running, shared } => {
                    break match ready!(Pin::new(running).poll(context)) {
                        Ran::Answered(response) => Ok(*response),
                        Ran::Erred(error) => Err(error),
                        Ran::Failed(problem) => Ok(shared.refuse(&problem)),
                        Ran::Overtaken(verdict) => Ok(shared.other(&verdict)),
                    };
                }
                OnWay::Boxed { future } => break ready!(future.as_mut().poll(context)),
                OnWay::Waiting { future } => ready!(future.as_mut().poll(context)),
            };
            this.way.set(next);
        };
        if let Some(telling) = this.telling.take() {
            telling.tell(&answer);
        }
        Poll::Ready(answer)
    }
}

/// An unguarded answer as it is, without what the operation says to us alone.
pub(super) fn passed<R>(mut response: Response<R>) -> Response<Body<R>> {
    response.headers_mut().remove(REFRAIN_OUTCOME);
    response.map(Body::through)
}

impl<F, R: Send, E: Send> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}
