//! Message brokers, one file per broker.
