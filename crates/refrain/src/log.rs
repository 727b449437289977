//! Append-only logs on a local disk: the parts that the embedded store, the audit log and the client's journal share.
//!
//! A log has one writer thread. It takes all jobs that [wait](commit::Queue), encodes them, [appends](commit::Appender)
//! them with one write and one sync, and only then replies.
//! A [failure](failure::Failure) either leaves the log as it was, or its content is unknown: then the owner latches the
//! log shut, and rejects all further requests.
//! After a crash, a [scan](frame::Scanner) decides whether unreadable bytes are a torn write, in which nothing was
//! acknowledged, or damage.
//!
//! The owners keep what only they need: the store its images, index and compaction, the audit log its hash chain of
//! lines, the journal its index of calls.

pub(crate) mod commit;
pub mod disk;
pub(crate) mod failure;
pub(crate) mod folder;
pub(crate) mod frame;

#[cfg(test)]
mod tests;
