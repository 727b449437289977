//! What the tests of every store and service share.
