//! The store on a real PostgreSQL: what every store must pass, and what only a server can do to one.

mod suite;
mod support;
