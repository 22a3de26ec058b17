//! The smallest program that a package can have: it prints one line and ends. Made here byte by byte, so that a package
//! for these tests weighs a few hundred bytes and no compiler is needed.

/// Where the kernel puts the file.
const BASE: u64 = 0x40_0000;
/// The headers' length; the code follows.
const HEADERS: u64 = 64 + 56;

/// A static ELF program for this machine that prints `line` and ends with 0.
pub fn printing(line: &str) -> Vec<u8> {
    let (machine, code) = if cfg!(target_arch = "aarch64") {
        (183u16, aarch64(line))
    } else {
        (62u16, x86_64(line))
    };
    let length = HEADERS + code.len() as u64 + line.len() as u64;
    let mut bytes = Vec::new();
    bytes.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    bytes.extend(2u16.to_le_bytes()); // an executable
    bytes.extend(machine.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend((BASE + HEADERS).to_le_bytes()); // entry
    bytes.extend(64u64.to_le_bytes()); // program headers
    bytes.extend(0u64.to_le_bytes()); // no sections
    bytes.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes()); // loaded
    bytes.extend(5u32.to_le_bytes()); // to read and execute
    for word in [0, BASE, BASE, length, length, 0x1000] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(code);
    bytes.extend(line.as_bytes());
    bytes
}

fn x86_64(line: &str) -> Vec<u8> {
    const LENGTH: u64 = 31;
    let text = (BASE + HEADERS + LENGTH) as u32;
    let mut code = vec![0xb8, 1, 0, 0, 0, 0xbf, 1, 0, 0, 0, 0xbe]; // write(1,
    code.extend(text.to_le_bytes());
    code.push(0xba);
    code.extend((line.len() as u32).to_le_bytes());
    code.extend([0x0f, 0x05, 0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05]); // exit(0)
    code
}

fn aarch64(line: &str) -> Vec<u8> {
    let words: [u32; 8] = [
        0xd280_0808,                            // x8 = write
        0xd280_0020,                            // x0 = 1
        0x1000_0001 | 6 << 5,                   // x1 = the text, 24 bytes on
        0xd280_0002 | (line.len() as u32) << 5, // x2 = its length
        0xd400_0001,
        0xd280_0ba8, // x8 = exit
        0xd280_0000, // x0 = 0
        0xd400_0001,
    ];
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn it_prints_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    std::fs::write(&path, printing("rollproxy 1.2.3\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    let command = &mut std::process::Command::new(&path);
    let patience = std::time::Duration::from_secs(10);
    let output = staging::process::run_bounded(command, patience, &|| false).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"rollproxy 1.2.3\n");
}
