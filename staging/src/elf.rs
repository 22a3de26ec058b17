//! Whether a file is a program for this machine, told from its first 64 bytes.

use std::io::{self, Read};
use std::path::Path;

use crate::files;

const HEADER: u64 = 64;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const TYPE_EXECUTABLE: u16 = 2;
const TYPE_SHARED: u16 = 3;
const MACHINE_X86_64: u16 = 62;
const MACHINE_AARCH64: u16 = 183;

/// Looks at a file's header.
pub(crate) fn check_file(path: &Path) -> io::Result<Result<(), String>> {
    let mut header = Vec::new();
    files::open_regular(path)?
        .take(HEADER)
        .read_to_end(&mut header)?;
    Ok(check(&header, std::env::consts::ARCH))
}

/// Judges a header for a processor; what is wrong with it otherwise.
fn check(header: &[u8], arch: &str) -> Result<(), String> {
    if header.len() < HEADER as usize || !header.starts_with(b"\x7fELF") {
        return Err("it is no ELF program".to_owned());
    }
    if header[4] != CLASS_64 || header[5] != LITTLE_ENDIAN {
        return Err("it is no 64-bit little-endian program".to_owned());
    }
    // A position-independent executable is of the shared type.
    let kind = u16::from_le_bytes([header[16], header[17]]);
    if kind != TYPE_EXECUTABLE && kind != TYPE_SHARED {
        return Err(format!("its ELF type {kind} is not that of a program"));
    }
    let machine = match u16::from_le_bytes([header[18], header[19]]) {
        MACHINE_X86_64 => "x86_64".to_owned(),
        MACHINE_AARCH64 => "aarch64".to_owned(),
        other => format!("ELF machine {other}"),
    };
    if machine != arch {
        return Err(format!(
            "it is built for {machine}, and this machine is {arch}"
        ));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The header of a program for a machine.
    pub(crate) fn header(machine: u16, kind: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[4] = CLASS_64;
        bytes[5] = LITTLE_ENDIAN;
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes
    }

    #[test]
    fn this_very_program_passes() {
        check_file(Path::new("/proc/self/exe")).unwrap().unwrap();
    }

    #[test]
    fn each_processor_accepts_its_own_only() {
        for kind in [TYPE_EXECUTABLE, TYPE_SHARED] {
            assert_eq!(check(&header(MACHINE_X86_64, kind), "x86_64"), Ok(()));
            assert_eq!(check(&header(MACHINE_AARCH64, kind), "aarch64"), Ok(()));
        }
        let error = check(&header(MACHINE_AARCH64, TYPE_SHARED), "x86_64").unwrap_err();
        assert!(
            error.contains("aarch64") && error.contains("x86_64"),
            "{error}"
        );
        assert!(check(&header(243, TYPE_SHARED), "x86_64").is_err());
    }

    #[test]
    fn everything_else_is_no_program() {
        let good = header(MACHINE_X86_64, TYPE_SHARED);
        assert!(check(b"#!/bin/sh\necho rollproxy 1.0.0\n", "x86_64").is_err());
        for length in 0..good.len() {
            assert!(check(&good[..length], "x86_64").is_err(), "{length}");
        }
        for (at, byte) in [(0, 0u8), (4, 1), (5, 2), (16, 1), (16, 4)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(check(&bad, "x86_64").is_err(), "{at}");
        }
    }
}
