//! Third-party clients of HTTP/2. A test fails if its client is missing.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::TempDir;
use evenkeel_testkit::deadline::within;
use evenkeel_testkit::process::{python, run};

use super::Both;
use crate::foreign_clients::{curl, output_of};
use crate::setup::{Site, pattern, site, test};
use crate::tls::Issuing;

/// The arguments that make curl speak HTTP/2 to this URL.
fn with_http2(both: &Both, url: &str) -> Vec<String> {
    let mut args = if url.starts_with("https:") {
        vec![
            "--http2".to_owned(),
            "--cacert".to_owned(),
            both.issuing.ca(),
        ]
    } else {
        vec!["--http2-prior-knowledge".to_owned()]
    };
    args.push(url.to_owned());
    args
}

#[track_caller]
fn curl_by_http2(both: &Both, url: &str, more: &[&str]) -> String {
    let args = with_http2(both, url);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    curl(&[&args[..], more].concat())
}

#[test]
fn curl_gets() {
    test(|| {
        let both = Both::new();
        let version = ["--write-out", " %{http_version} %{http_code}"];
        for (path, expected) in [
            ("/ping", "pong 2 200"),
            ("/5", "abcde 2 200"),
            ("/chunked/5", "abcde 2 200"),
            ("/close/5", "abcde 2 200"),
            ("/status/103", "pong 2 200"),
            ("/status/204", " 2 204"),
            ("/status/304", " 2 304"),
        ] {
            for url in both.urls(path) {
                assert_eq!(curl_by_http2(&both, &url, &version), expected, "{url}");
            }
        }
        for url in both.urls("/chunked/3000000") {
            let body = curl_by_http2(&both, &url, &[]).into_bytes();
            assert!(body == pattern(3_000_000), "{url}");
        }
        for url in both.urls("/large-payload") {
            let head = curl_by_http2(&both, &url, &["--head"]);
            assert!(head.starts_with("HTTP/2 200"), "{head}");
            assert!(head.contains("\r\ncontent-length: 200000\r\n"), "{head}");
            assert!(head.ends_with("\r\n\r\n"), "{head}");
        }
        assert_eq!(both.origin.stats().in_flight, 0);
    });
}

#[test]
fn curl_posts() {
    test(|| {
        let both = Both::new();
        let dir = TempDir::new().unwrap();
        let file = dir.join("body");
        std::fs::write(&file, pattern(1_000_000)).unwrap();
        let data = format!("@{}", file.display());
        for url in both.urls("/echo") {
            for more in [
                &["--data-binary", &data[..]][..],
                // Without a length.
                &["-H", "Content-Length:", "--data-binary", &data],
                &["-H", "Expect: 100-continue", "--data-binary", &data],
            ] {
                let body = curl_by_http2(&both, &url, more).into_bytes();
                assert!(body == pattern(1_000_000), "{url} {more:?}");
            }
        }
    });
}

/// Over TLS alone: with prior knowledge, curl 7.88 does not get as far with any server.
#[test]
fn curl_gets_a_hundred_at_once() {
    test(|| {
        let both = Both::new();
        let url = both.tls("/custom-payload?size=[30000-30099]");
        let dir = TempDir::new().unwrap();
        let files = dir.join("#1").display().to_string();
        let more = [
            "--parallel",
            "--parallel-max",
            "100",
            "--write-out",
            "%{http_version} %{http_code} %{num_connects}\n",
            "--output",
            &files,
        ];
        let printed = curl_by_http2(&both, &url, &more);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines.len(), 100, "{printed}");
        assert!(lines.iter().all(|it| it.starts_with("2 200 ")), "{printed}");
        let opened = lines.iter().filter(|it| it.ends_with(" 1")).count();
        assert_eq!(opened, 1, "connections: {printed}");
        for size in 30_000..30_100 {
            let got = std::fs::read(dir.join(&size.to_string())).unwrap();
            assert!(got == pattern(size), "{url}: {size}");
        }
    });
}

/// HTTP/1 stays on the same listener. An offer to upgrade to HTTP/2 (RFC 7540 §3.2, dropped by
/// RFC 9113) is ignored, and not passed on to endpoints.
#[test]
fn an_upgrade_from_http1_is_not_taken() {
    test(|| {
        let both = Both::new();
        let more = ["--write-out", " %{http_version}"];
        let url = both.plain("/headers");
        let said = curl(&[&["--http2", &url][..], &more].concat()).to_lowercase();
        assert!(said.ends_with(" 1.1"), "{said}");
        assert!(!said.contains("h2c"), "{said}");
        assert!(!said.contains("http2-settings"), "{said}");
        let said = curl(&[&["--http1.1", &url][..], &more].concat());
        assert!(said.ends_with(" 1.1"), "{said}");
    });
}

#[test]
fn it_can_be_turned_off_and_is_off_in_plain_text() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["127.0.0.1"]);
        let tls = issuing.listener(&["a"], "");
        let (_origin, proxy) = Site {
            listener: &format!("{tls}\nhttp2 = false"),
            ..Site::default()
        }
        .with_origin();
        let url = format!("https://{}/ping", proxy.address("web"));
        let ca = issuing.ca();
        let printed = curl(&[
            "--http2",
            "--cacert",
            &ca,
            "--write-out",
            " %{http_version}",
            &url,
        ]);
        assert_eq!(printed, "pong 1.1");

        let (_origin, proxy) = site();
        let mut command = Command::new("curl");
        command.args(["--silent", "--max-time", "10", "--http2-prior-knowledge"]);
        command.arg(proxy.url("/ping"));
        let output = run(command, Duration::from_secs(20));
        assert!(!output.unwrap().status.success());
    });
}

#[track_caller]
fn nghttp(args: &[&str]) -> String {
    output_of(Command::new("nghttp"), args)
}

/// Requests of the report that `nghttp --stat` ends with: code and size of each.
fn stat_lines(report: &str) -> Vec<(String, String)> {
    let lines = report.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(4);
        let (code, size) = (words.next()?, words.next()?);
        let is_code = code.len() == 3 && code.bytes().all(|it| it.is_ascii_digit());
        is_code.then(|| (code.to_owned(), size.to_owned()))
    });
    lines.collect()
}

#[test]
fn nghttp_gets_many_through_small_windows() {
    test(|| {
        let both = Both::new();
        for url in both.urls("/medium-payload") {
            for windows in [&[][..], &["-w", "16"], &["-w", "10", "-W", "16"]] {
                let args = [&["-n", "-s", "-y", "-m", "50"][..], windows, &[&url]];
                let report = nghttp(&args.concat());
                let lines = stat_lines(&report);
                assert_eq!(lines.len(), 50, "{windows:?}: {report}");
                for (code, size) in lines {
                    assert_eq!((&code[..], &size[..]), ("200", "19K"), "{report}");
                }
            }
            // Tables of all sizes, padding, and heads in several frames.
            for more in [
                &["-c", "0"][..],
                &["-c", "4096", "--encoder-header-table-size", "64"],
                &["-b", "100"],
                &["--continuation"],
            ] {
                let args = [&["-n", "-s", "-y", "-m", "5"][..], more, &[&url]].concat();
                let report = nghttp(&args);
                let lines = stat_lines(&report);
                assert_eq!(lines.len(), 5, "{more:?}: {report}");
                assert!(
                    lines.iter().all(|(code, _)| code == "200"),
                    "{more:?}: {report}"
                );
            }
        }
    });
}

#[test]
fn nghttp_posts_with_trailers() {
    test(|| {
        let both = Both::new();
        let dir = TempDir::new().unwrap();
        let file = dir.join("body");
        std::fs::write(&file, pattern(50_000)).unwrap();
        let data = file.display().to_string();
        for url in both.urls("/echo") {
            let plain = nghttp(&["-y", "-d", &data, &url]);
            assert!(plain.into_bytes() == pattern(50_000), "{url}");
            // A body with trailers has no length.
            let more = ["--no-content-length", "--trailer", "x-checked: yes"];
            let args = [&["-v", "-n", "-y", "-d", &data][..], &more, &[&url]];
            let said = nghttp(&args.concat());
            let (_, answered) = said.split_once(":status: 200").expect(&said);
            assert!(answered.contains("x-checked: yes"), "{url}: {said}");
        }
    });
}

#[test]
fn h2load_reports_no_errors() {
    test(|| {
        let both = Both::new();
        let dir = TempDir::new().unwrap();
        let file = dir.join("body");
        std::fs::write(&file, pattern(5_000)).unwrap();
        let data = file.display().to_string();
        let cases = [
            ("/custom-payload?size=1024", &[][..]),
            ("/chunked/100000", &[]),
            ("/medium-payload", &["-w", "12", "-W", "16"]),
            ("/echo", &["-d", &data]),
        ];
        for (path, more) in cases {
            for url in both.urls(path) {
                let args = [&["-n", "1000", "-c", "10", "-m", "10"][..], more, &[&url]];
                let report = output_of(Command::new("h2load"), &args.concat());
                let expected = "requests: 1000 total, 1000 started, 1000 done, 1000 succeeded, \
                                0 failed, 0 errored, 0 timeout";
                assert!(report.contains(expected), "{url} {more:?}: {report}");
                assert!(report.contains("1000 2xx"), "{url} {more:?}: {report}");
            }
        }
        assert_eq!(both.origin.stats().requests, 8_000);
    });
}

const NODE_CLIENT: &str = r#"
const assert = require("assert"), fs = require("fs"), http2 = require("http2");
const [url, ca] = process.argv.slice(1);
const options = ca ? { ca: fs.readFileSync(ca), servername: "a.test" } : {};
const session = http2.connect(url, options);
function ask(head, body, trailers) {
  return new Promise((done, fail) => {
    const own = { endStream: body === undefined, waitForTrailers: trailers !== undefined };
    const stream = session.request(head, own);
    const answer = { interim: [], parts: [] };
    stream.on("headers", (it) => answer.interim.push(it[":status"]));
    stream.on("response", (it) => { answer.head = it; });
    stream.on("trailers", (it) => { answer.trailers = it; });
    stream.on("wantTrailers", () => stream.sendTrailers(trailers));
    stream.on("data", (it) => answer.parts.push(it));
    stream.on("error", fail);
    stream.on("close", () => { answer.body = Buffer.concat(answer.parts); done(answer); });
    if (body !== undefined) stream.end(body);
  });
}
async function main() {
  const post = { ":method": "POST", ":path": "/echo" };
  const bodies = Array.from({ length: 50 }, (_, i) => Buffer.alloc(20000 + i, i));
  const answers = await Promise.all(bodies.map((it) => ask(post, it)));
  answers.forEach((it, i) => assert(it.head[":status"] === 200 && it.body.equals(bodies[i])));

  const slow = session.request({ ":path": "/slow/9000" });
  slow.on("error", () => {});
  const closed = new Promise((done) => slow.on("close", done));
  const beside = ask({ ":path": "/slow/200" });
  slow.close(http2.constants.NGHTTP2_CANCEL);
  await closed;
  assert.equal((await beside).body.toString(), "pong");

  const body = Buffer.alloc(50000, 7);
  const echoed = await ask({ ...post, trailer: "x-checked" }, body, { "x-checked": "yes" });
  assert(echoed.body.equals(body));
  assert.equal(echoed.trailers["x-checked"], "yes");

  const hinted = await ask({ ":path": "/status/103" });
  assert.deepEqual([hinted.interim, hinted.head[":status"]], [[103], 200]);

  const cookies = await ask({ ":path": "/headers", cookie: ["a=1", "b=2", "c=3"] });
  assert(/^cookie: a=1; b=2; c=3\r$/im.test(cookies.body.toString()), cookies.body.toString());

  await new Promise((done, fail) => session.ping((error) => error ? fail(error) : done()));
  session.close();
  console.log("done");
}
main().catch((error) => { console.error(error); process.exit(1); });
"#;

#[test]
fn node_client() {
    test(|| {
        let both = Both::new();
        let ca = both.issuing.ca();
        let [plain, tls] = both.urls("/");
        for args in [vec![&plain[..]], vec![&tls, &ca]] {
            let args = [&["-e", NODE_CLIENT][..], &args].concat();
            assert_eq!(output_of(Command::new("node"), &args).trim(), "done");
        }
        assert_eq!(both.origin.stats().in_flight, 0);
    });
}

/// Go compiles its client first.
#[test]
fn go_client() {
    within(Duration::from_secs(150), || {
        let both = Both::new();
        let mut command = Command::new("go");
        command.arg("run").arg(file("client.go"));
        command.args([both.tls(""), both.issuing.ca()]);
        let output = run(command, Duration::from_secs(120)).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "done");
        assert_eq!(both.origin.stats().in_flight, 0);
    });
}

fn file(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/http2");
    PathBuf::from(folder).join(name)
}

/// A page whose fifty images come by the connection that it came by.
#[test]
fn chromium_loads_a_page() {
    within(Duration::from_secs(120), || {
        let dir = TempDir::new().unwrap();
        let mut page = "<!doctype html><title>images</title>\n".to_owned();
        for n in 0..50 {
            page += &format!("<img src=\"{n}.svg\">\n");
            let image = format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"9\"/>",
                n + 1
            );
            std::fs::write(dir.join(&format!("{n}.svg")), image).unwrap();
        }
        std::fs::write(dir.join("index.html"), page).unwrap();
        let route = format!(
            "[[route]]\nmatch = {{ path = \"/page/*\" }}\n\
             files = {{ root = {:?}, strip = \"/page\" }}",
            dir.path()
        );
        let both = Both::with(&route);
        let mut command = python();
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/http2_page.py"));
        command.args([&both.tls("/page/index.html"), "50"]);
        let output = run(command, Duration::from_secs(100)).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{}", both.proxy.stderr());
    });
}
