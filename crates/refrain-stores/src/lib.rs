//! Stores that need a server, one file per driver.
