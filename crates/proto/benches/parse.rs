//! The cost of heads: `cargo bench -p evenkeel-proto`. Nothing here allocates
//! once warm; the head and the output buffer are used again as in a worker.

use divan::{Bencher, black_box};
use evenkeel_proto::http1::write::{
    self, ClientInfo, Forward, Marks, Persistence, ResponseEdits, Transcode, Via,
};
use evenkeel_proto::http1::{BodyDecoder, parse_request, parse_response};
use evenkeel_proto::{
    BodyFraming, Coding, Conditions, LoopId, Method, RequestHead, ResponseHead, Scheme, Validators,
    file_path,
};

const PLAIN: &[u8] =
    b"GET /1k HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: wrk/4.2.0\r\nAccept: */*\r\n\r\n";

const BROWSER: &[u8] = b"GET /img/2007/06/photo-1234567.jpg?size=120&v=3 HTTP/1.1\r\n\
Host: img.example.com\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
Accept-Language: en-US,en;q=0.7,is;q=0.3\r\n\
Accept-Encoding: gzip, deflate, br, zstd\r\n\
Referer: https://www.example.com/articles/2007/06/a-title-of-some-length/\r\n\
Connection: keep-alive\r\n\
Cookie: session=3f2504e04f8911d39a0c0305e82c3301; theme=dark; _ga=GA1.2.1234567890.1234567890\r\n\
Upgrade-Insecure-Requests: 1\r\n\
Sec-Fetch-Dest: document\r\n\
Sec-Fetch-Mode: navigate\r\n\
Sec-Fetch-Site: same-origin\r\n\
If-Modified-Since: Tue, 05 Jun 2007 10:00:00 GMT\r\n\
Cache-Control: max-age=0\r\n\r\n";

const POST: &[u8] = b"POST /api/v1/items HTTP/1.1\r\nHost: api.example.com\r\nContent-Type: application/json\r\nContent-Length: 345\r\nAuthorization: Bearer 0123456789abcdef0123456789abcdef\r\nAccept: application/json\r\nUser-Agent: client/1.2\r\n\r\n";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
Server: nginx/1.31.0\r\n\
Date: Tue, 05 Jun 2007 10:00:00 GMT\r\n\
Content-Type: image/jpeg\r\n\
Content-Length: 4500\r\n\
Last-Modified: Tue, 05 Jun 2007 09:00:00 GMT\r\n\
Connection: keep-alive\r\n\
ETag: \"46653f10-1194\"\r\n\
Expires: Wed, 06 Jun 2007 10:00:00 GMT\r\n\
Cache-Control: max-age=86400\r\n\
Accept-Ranges: bytes\r\n\r\n";

fn main() {
    divan::main();
}

fn request_named(name: &str) -> &'static [u8] {
    match name {
        "plain" => PLAIN,
        "browser" => BROWSER,
        _ => POST,
    }
}

#[divan::bench(args = ["plain", "browser", "post"])]
fn request_parse(bencher: Bencher<'_, '_>, name: &str) {
    let bytes = request_named(name);
    let mut head = RequestHead::default();
    bencher.bench_local(|| parse_request(black_box(bytes), &mut head));
}

#[divan::bench(args = ["plain", "browser", "post"])]
fn request_write(bencher: Bencher<'_, '_>, name: &str) {
    let bytes = request_named(name);
    let mut head = RequestHead::default();
    parse_request(bytes, &mut head).expect("a sound request");
    let client = ClientInfo {
        address: Some(b"192.0.2.1"),
        scheme: Scheme::Http,
        relayed: None,
        forward: Forward {
            x_forwarded: true,
            ..Forward::NOTHING
        },
        default_host: b"app:8080",
        certificate: None,
        is_early: false,
        marks: Marks::NONE,
        loop_id: &LoopId::ZERO,
        via: Via::Kept,
    };
    let mut out = Vec::new();
    bencher.bench_local(|| {
        out.clear();
        write::request_head(&mut out, black_box(bytes), black_box(&head), client);
        out.len()
    });
}

#[divan::bench]
fn response_parse(bencher: Bencher<'_, '_>) {
    let mut head = ResponseHead::default();
    bencher.bench_local(|| parse_response(black_box(RESPONSE), Method::Get, &mut head));
}

#[divan::bench]
fn response_write(bencher: Bencher<'_, '_>) {
    let mut head = ResponseHead::default();
    parse_response(RESPONSE, Method::Get, &mut head).expect("a sound response");
    let mut out = Vec::new();
    bencher.bench_local(|| {
        out.clear();
        let edits = ResponseEdits {
            transcode: Transcode::Raw,
            persistence: Persistence::Keep,
            request_id: None,
            strict_transport: None,
        };
        let (response, head) = (black_box(RESPONSE), black_box(&head));
        write::response_head(&mut out, response, head, edits, None);
        out.len()
    });
}

/// 16 KB in chunks of 4 KB.
#[divan::bench]
fn chunked_advance(bencher: Bencher<'_, '_>) {
    let chunk = [b"1000\r\n".as_slice(), &[b'x'; 4096], b"\r\n"].concat();
    let body = [chunk.repeat(4).as_slice(), b"0\r\n\r\n"].concat();
    bencher.bench_local(|| {
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        decoder
            .advance(black_box(&body))
            .map(|taken| taken.consumed)
    });
}

/// The cost of a request for a file besides its head.
#[divan::bench(args = ["plain", "browser"])]
fn file_conditions(bencher: Bencher<'_, '_>, name: &str) {
    let bytes = request_named(name);
    let mut head = RequestHead::default();
    parse_request(bytes, &mut head).expect("a sound request");
    let validators = Validators {
        entity_tag: b"\"46653f10-1194\"",
        modified: Some(1_181_034_000),
    };
    bencher.bench_local(|| {
        let conditions = Conditions::of(black_box(&head), black_box(bytes));
        let precondition = if conditions.is_plain() {
            None
        } else {
            Some(conditions.precondition(bytes, &validators))
        };
        (precondition, conditions.coding(bytes, &Coding::ALL))
    });
}

#[divan::bench(args = ["/img/2007/06/photo-1234567.jpg", "/img/2007/06/photo%201234567.jpg"])]
fn file_path_decode(bencher: Bencher<'_, '_>, path: &str) {
    bencher.bench_local(|| {
        let decoded = file_path::decode(black_box(path.as_bytes()))?;
        let is_hidden = file_path::is_hidden(&decoded);
        Ok::<_, evenkeel_proto::PathError>((decoded, is_hidden))
    });
}
