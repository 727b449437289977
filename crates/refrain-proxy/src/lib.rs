//! The Refrain proxy as a library.
