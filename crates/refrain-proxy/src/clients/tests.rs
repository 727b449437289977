//! Bytes from a client are one request or an error, however the network splits them, and the bytes after it belong to
//! the next request.

mod heads;
mod inlets;
mod replies;
