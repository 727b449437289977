//! What every private server can be told, once for all of them.

/// Gives a server with `process`, `settings` and `run` the ways to look at it, end it, pause it and start it again.
/// `$stop` is how [`Process`](crate::process::Process) ends it in good order.
macro_rules! lifecycle {
    ($server:ident, $stop:ident) => {
        impl $server {
            /// What it has written to its log so far.
            #[must_use]
            pub fn log(&self) -> String {
                self.process.log()
            }

            /// Whether it was started and has not ended since.
            pub fn is_running(&mut self) -> bool {
                self.process.is_running()
            }

            /// Kills all its processes with SIGKILL; what it was doing is lost, what it acknowledged is not.
            ///
            /// # Errors
            /// When they do not end.
            pub fn kill(&mut self) -> io::Result<()> {
                self.process.kill()
            }

            /// Shuts it down in good order.
            ///
            /// # Errors
            /// When it does not end.
            pub fn stop(&mut self) -> io::Result<()> {
                self.process.$stop(GENTLY)
            }

            /// Stops all its processes with SIGSTOP: connections stay, nobody answers.
            ///
            /// # Errors
            /// When no signal can be sent.
            pub fn pause(&self) -> io::Result<()> {
                self.process.signal("STOP")
            }

            /// Lets it go on after [`pause`](Self::pause).
            ///
            /// # Errors
            /// When no signal can be sent.
            pub fn resume(&self) -> io::Result<()> {
                self.process.signal("CONT")
            }

            /// Starts it again on the same folder and port; if it still runs, it is shut down first.
            ///
            /// # Errors
            /// As [`start`](Self::start).
            pub fn restart(&mut self) -> io::Result<()> {
                self.stop()?;
                self.run()
            }

            /// As [`restart`](Self::restart), with these settings instead of those before.
            ///
            /// # Errors
            /// As [`start`](Self::start).
            pub fn restart_with(&mut self, settings: &[(&str, &str)]) -> io::Result<()> {
                self.set(settings);
                self.restart()
            }

            fn set(&mut self, settings: &[(&str, &str)]) {
                let owned = settings
                    .iter()
                    .map(|(name, value)| ((*name).into(), (*value).into()));
                self.settings = owned.collect();
            }
        }
    };
}
