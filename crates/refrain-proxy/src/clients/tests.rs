//! What comes from a client is one request or none, however the network cuts it into pieces, and what is left behind it is the next one's.

mod heads;
mod inlets;
mod replies;
