//! What comes from an upstream is one answer or none, however the network cuts it into pieces.
//!
//! An answer that two programs would end at two places is how one client gets another's; so is a connection on which something is left.

mod answers;
mod requests;
