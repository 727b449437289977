//! Placeholder until the library beneath it stands.
fn main() {}
