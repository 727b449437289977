//! The response future of a guarded service.

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
    layer::LayerState,
    run::{Detached, Ran, Task},
    service::ServiceResult,
};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pin_project! {
    /// The response future of a [`RefrainService`](super::RefrainService).
    pub struct ResponseFuture<F, R, E>
    where
        R: Send,
        R: 'static,
        E: Send,
        E: 'static,
    {
        telling: Option<Telling>,
        #[pin]
        way: ResponseState<F, R, E>,
    }
}

pin_project! {
    /// State of a response: ready, or the future that produces it.
    #[project = ResponseStateProjection]
    pub(super) enum ResponseState<F, R, E>
    where
        R: Send,
        R: 'static,
        E: Send,
        E: 'static,
    {
        /// The response is ready; `None` after it was returned. Boxed to keep the enum small, because it is moved.
        Here { answer: Option<Box<Response<Body<R>>>> },
        /// Response of the inner service to an unguarded request.
        Through { #[pin] future: F, decision: Option<Decision> },
        /// The operation runs.
        Running { running: Detached<R, E>, shared: Arc<LayerState> },
        /// Waits for the body or for the store; resolves to the next state.
        Waiting { future: Boxed<ResponseState<F, R, E>> },
        /// Any other future of the response.
        Boxed { future: Boxed<ServiceResult<R, E>> },
    }
}

impl<F, R: Send + 'static, E: Send + 'static> ResponseState<F, R, E> {
    /// A response that is ready.
    pub(super) fn here(answer: Response<Body<R>>) -> Self {
        let answer = Some(Box::new(answer));
        Self::Here { answer }
    }

    /// The response to a request that passes unguarded.
    pub(super) fn through(future: F, decision: Option<Decision>) -> Self {
        Self::Through { future, decision }
    }

    /// The response of a running operation.
    pub(super) fn running(task: Task<R, E>, shared: Arc<LayerState>) -> Self {
        let running = Detached::new(task);
        Self::Running { running, shared }
    }

    /// The response to a request that waits for the next state.
    pub(super) fn waiting(future: impl Future<Output = Self> + Send + 'static) -> Self {
        let future = Box::pin(future);
        Self::Waiting { future }
    }

    /// The response of any other future.
    pub(super) fn boxed(
        future: impl Future<Output = ServiceResult<R, E>> + Send + 'static,
    ) -> Self {
        let future = Box::pin(future);
        Self::Boxed { future }
    }
}

impl<F, R: Send, E: Send> ResponseFuture<F, R, E> {
    /// A response in this state, reported to the observer when it is ready.
    pub(super) fn told(telling: Option<Telling>, way: ResponseState<F, R, E>) -> Self {
        Self { telling, way }
    }
}

impl<F, R: Send, E: Send> From<ResponseState<F, R, E>> for ResponseFuture<F, R, E> {
    fn from(way: ResponseState<F, R, E>) -> Self {
        Self::told(None, way)
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Send + 'static,
    E: Send + 'static,
{
    type Output = ServiceResult<R, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let answer = loop {
            let next = match this.way.as_mut().project() {
                ResponseStateProjection::Here { answer } => match answer.take() {
                    Some(answer) => break Ok(*answer),
                    None => return Poll::Pending,
                },
                ResponseStateProjection::Through { future, decision } => {
                    break ready!(future.poll(context)).map(|response| match decision {
                        Some(decision) => marked(*decision, passed(response)),
                        None => passed(response),
                    });
                }
                ResponseStateProjection::Running { running, shared } => {
                    break match ready!(Pin::new(running).poll(context)) {
                        Ran::Answered(response) => Ok(*response),
                        Ran::Erred(error) => Err(error),
                        Ran::Failed(problem) => Ok(shared.refuse(&problem)),
                        Ran::Overtaken(verdict) => Ok(shared.other(&verdict)),
                    };
                }
                ResponseStateProjection::Boxed { future } => {
                    break ready!(future.as_mut().poll(context));
                }
                ResponseStateProjection::Waiting { future } => {
                    ready!(future.as_mut().poll(context))
                }
            };
            this.way.set(next);
        };
        if let Some(telling) = this.telling.take() {
            telling.tell(&answer);
        }
        Poll::Ready(answer)
    }
}

/// An unguarded response, without the `Refrain-Outcome` header.
pub(super) fn passed<R>(mut response: Response<R>) -> Response<Body<R>> {
    response.headers_mut().remove(REFRAIN_OUTCOME);
    response.map(Body::through)
}

impl<F, R: Send, E: Send> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}
