//! A folder for one test. Unlike a plain temporary folder it goes away even with read-only packages in it.

use std::path::{Path, PathBuf};

use crate::home::Home;

pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap().keep())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = crate::files::remove_tree(&self.0);
    }
}

/// A home that was made, and the folder around it, which must live as long.
pub(crate) fn home() -> (Scratch, Home) {
    let folder = Scratch::new();
    let home = Home::at(folder.path().join("home"));
    home.create().unwrap();
    (folder, home)
}
