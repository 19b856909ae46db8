#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel::observe::access_log::fuzz::line(data));
