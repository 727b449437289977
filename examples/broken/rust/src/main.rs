//! The gallery's services in Rust: `broken-rust HOLE PORT FOLDER`.
//!
//! [`service`] is correct; a [`hole::Hole`] changes one aspect of it.

use anyhow::Context as _;

mod hole;
mod holes;
mod service;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, port, folder] = &arguments[..] else {
        anyhow::bail!("usage: broken-rust HOLE PORT FOLDER");
    };
    let hole = holes::named(name).with_context(|| format!("unknown hole `{name}`"))?;
    service::serve(hole, port.parse()?, folder).await
}
