//! What the tests of every store and service share.

pub mod disk;
