//! What a package is and how it gets onto disk.
