#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_proto::fuzz::http2_server(data));
