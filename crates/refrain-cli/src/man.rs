//! `refrain man`: writes the manual pages.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;

/// Write the manual pages of all commands into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain man target/man                write refrain.1, refrain-proxy.1 and the others
  man target/man/refrain-proxy.1        read one of them
  refrain man ~/.local/share/man/man1   install them for yourself: `man refrain-proxy`

Packages contain the pages already.
Exit codes: 0 written, 1 the folder cannot be written, 2 wrong usage.")]
pub(crate) struct Args {
    /// Folder, which is created if it is missing
    folder: PathBuf,
}

pub(crate) fn run(args: &Args, command: clap::Command) -> anyhow::Result<ExitCode> {
    write(&args.folder, command).with_context(|| {
        let folder = args.folder.display();
        format!("cannot write the manual pages to {folder}; check the path and its permissions")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path, command: clap::Command) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let rendered = tempfile::tempdir_in(folder)?;
    clap_mangen::generate_to(command, rendered.path())?;
    for page in fs::read_dir(rendered.path())? {
        let page = page?;
        let text = fs::read_to_string(page.path())?;
        fs::write(folder.join(page.file_name()), with_lines_kept(&text))?;
    }
    Ok(())
}

/// Keeps the lines of examples and exit codes as they are written, and names their section.
fn with_lines_kept(page: &str) -> String {
    let Some((before, after)) = page.split_once("\n.SH EXTRA\n") else {
        return page.into();
    };
    let end = after.find("\n.SH ").unwrap_or(after.len());
    let (notes, rest) = after.split_at(end);
    format!("{before}\n.SH NOTES\n.nf\n{notes}\n.fi{rest}")
}
