//! Hands the sockets and the store of a running proxy to the process that replaces it.
//!
//! The new process connects to the control socket of the old one, which first passes its listening sockets, and then closes
//! its embedded store. The new process opens it with the leases of the old one, and serves. From then on the old process
//! makes its calls to the store through the new one, until its last request has ended.
//!
//! | part | contents |
//! |---|---|
//! | `channel` | messages and file descriptors over the control socket |
//! | `remote` | the store of the old process, once the new one holds it |
//! | `serving` | the new process, which answers these calls |

mod channel;
pub use channel::{Channel, Message, VERSION};

mod remote;
pub use remote::RemoteStore;

mod serving;
pub use serving::ServedStores;
