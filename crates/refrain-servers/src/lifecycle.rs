//! Methods that every private server has.

/// Implements log access, kill, stop, pause, resume and restart for a server with `process`, `settings` and
/// `run`. `$stop` is the method of [`Process`](crate::process::Process) that shuts the server down.
macro_rules! lifecycle {
    ($server:ident, $stop:ident) => {
        impl $server {
            /// The server's log so far.
            #[must_use]
            pub fn log(&self) -> String {
                self.process.log()
            }

            /// Whether the server is running.
            pub fn is_running(&mut self) -> bool {
                self.process.is_running()
            }

            /// Kills all processes of the server with SIGKILL; work in progress is lost, acknowledged data is not.
            ///
            /// # Errors
            /// If the processes do not end.
            pub fn kill(&mut self) -> io::Result<()> {
                self.process.kill()
            }

            /// Shuts the server down gracefully.
            ///
            /// # Errors
            /// If the server does not end.
            pub fn stop(&mut self) -> io::Result<()> {
                self.process.$stop(GENTLY)
            }

            /// Suspends all processes of the server with SIGSTOP: connections stay open, nothing answers.
            ///
            /// # Errors
            /// If the signal cannot be sent.
            pub fn pause(&self) -> io::Result<()> {
                self.process.signal("STOP")
            }

            /// Resumes the server after [`pause`](Self::pause).
            ///
            /// # Errors
            /// If the signal cannot be sent.
            pub fn resume(&self) -> io::Result<()> {
                self.process.signal("CONT")
            }

            /// Starts the server again with the same folder and port; a running server is shut down first.
            ///
            /// # Errors
            /// As [`start`](Self::start).
            pub fn restart(&mut self) -> io::Result<()> {
                self.stop()?;
                self.run()
            }

            /// As [`restart`](Self::restart), with new settings in place of the previous ones.
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
