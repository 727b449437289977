//! The room for a proxy that guards services in any language.
//!
//! Empty so far: there is nothing to use here, and nothing is promised.
//! Services in Rust are guarded with the layer in `refrain::http`.

pub mod admin;
