//! What the fuzz targets check; how to run them is in `fuzz/README.md`.

pub mod invariants;
mod reference;

use rollproxy::relay::fuzzing as pure;
