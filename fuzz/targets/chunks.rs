#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rollproxy_fuzz::invariants::chunks(bytes));
