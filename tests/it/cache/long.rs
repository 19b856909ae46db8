//! Bodies that are too long for memory: they go to the disk while they arrive.

use evenkeel_testkit::TempDir;

use super::tiers::{ask, with_disk, with_disk_and, with_disk_of};
use super::*;

/// Longer than memory takes, and more than may wait for the disk.
const LEN: usize = 7_000_000;

/// Bytes sent before the endpoint waits.
const FIRST_LEN: usize = 6_000_000;

fn body() -> Vec<u8> {
    let numbers = (0..LEN / 10 + 1).map(|number| format!("{number:09} "));
    let mut body = numbers.collect::<String>().into_bytes();
    body.truncate(LEN);
    body
}

/// Answers with a long body, whose end it sends once it is let. `head` is all of the head
/// but its first line.
fn long(head: &'static str) -> (Endpoint, Arc<AtomicBool>) {
    let is_let = Arc::new(AtomicBool::new(false));
    let is_open = is_let.clone();
    let endpoint = Endpoint::scripted(move |_, stream| {
        let head = format!("HTTP/1.1 200 OK\r\nETag: \"a\"\r\n{head}\r\n");
        let is_chunked = head.contains("chunked");
        let send = |stream: &mut RawStream, part: &[u8]| {
            if is_chunked && stream.send(format!("{:x}\r\n", part.len())).is_err() {
                return false;
            }
            stream.send(part).is_ok() && (!is_chunked || stream.send("\r\n").is_ok())
        };
        let body = body();
        let (first, rest) = body.split_at(FIRST_LEN);
        if stream.send(head).is_err() || !send(stream, first) {
            return false;
        }
        until("it is let", || is_open.load(SeqCst));
        send(stream, rest) && (!is_chunked || stream.send("0\r\n\r\n").is_ok())
    });
    (endpoint, is_let)
}

const WITH_LENGTH: &str = "Content-Length: 7000000\r\nCache-Control: max-age=60\r\n";
const WITH_CHUNKS: &str = "Transfer-Encoding: chunked\r\nCache-Control: max-age=60\r\n";

#[test]
fn a_long_body_is_stored_while_it_arrives() {
    test(|| {
        for head in [WITH_LENGTH, WITH_CHUNKS] {
            let (endpoint, is_let) = long(head);
            let folder = TempDir::new().unwrap();
            let mut proxy = with_disk(&endpoint, &folder).unwrap();
            let mut clients = ask_all(&proxy, 2, GET);
            until("it is asked", || endpoint.count() == 1);
            // A client that does not read holds up no other client.
            let mut slow = clients.remove(0);
            let mut fast = clients.remove(0);
            fast.read_head().unwrap();
            fast.skip_len(FIRST_LEN as u64).unwrap();
            // A client that comes late gets the beginning too.
            let mut late = ask_all(&proxy, 1, GET).remove(0);
            late.read_head().unwrap();
            late.skip_len(FIRST_LEN as u64).unwrap();
            let range = "GET /a HTTP/1.1\r\nHost: a\r\nRange: bytes=6999990-\r\n\r\n";
            let mut partial = ask_all(&proxy, 1, range).remove(0);
            is_let.store(true, SeqCst);
            let part = partial.read_response("GET").unwrap();
            assert_eq!((part.status, part.text()), (206, "000699999 ".to_owned()));
            let whole = slow.read_response("GET").unwrap();
            assert!(whole.body == body(), "{}", whole.head);
            drop((fast, late));
            let stored = ask(&proxy, "/a", "");
            assert!(stored.body == body(), "{}", stored.head);
            assert_eq!(stored.field("content-length"), Some("7000000"));
            assert_eq!(endpoint.count(), 1, "{head}");
            proxy.terminate();
            assert!(proxy.wait(Duration::from_secs(20)).unwrap().success());
            let proxy = with_disk(&endpoint, &folder).unwrap();
            until("it is found", || {
                ask(&proxy, "/a", "Cache-Control: only-if-cached\r\n").body == body()
            });
            assert_eq!(endpoint.count(), 1, "{head}");
        }
    });
}

#[test]
fn a_long_body_is_validated_where_it_lies() {
    test(|| {
        // Fresh for a while once it is confirmed, or never.
        for (confirmed, count) in [("max-age=60", 2), ("no-cache", 4)] {
            let endpoint = Endpoint::scripted(move |head, stream| {
                if head.contains("If-None-Match: \"a\"") {
                    let fields =
                        format!("Cache-Control: {confirmed}\r\nX-New: 1\r\nETag: \"a\"\r\n");
                    return stream
                        .send(format!("HTTP/1.1 304 Word\r\n{fields}\r\n"))
                        .is_ok();
                }
                let head = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 7000000\r\n\
                            Cache-Control: no-cache\r\n\r\n";
                stream.send(head).is_ok() && stream.send(body()).is_ok()
            });
            let folder = TempDir::new().unwrap();
            let proxy = with_disk(&endpoint, &folder).unwrap();
            assert!(ask(&proxy, "/a", "").body == body());
            until("it is stored", || {
                figures(&proxy)["caches"][0]["fetches"].as_u64() == Some(0)
            });
            for _ in 0..3 {
                let answer = ask(&proxy, "/a", "");
                assert!(answer.status == 200 && answer.body == body());
                assert_eq!(answer.field("x-new"), Some("1"));
            }
            let part = ask(&proxy, "/a", "Range: bytes=10-19\r\n");
            assert_eq!((part.status, part.text()), (206, "000000001 ".to_owned()));
            let expected = count + u32::from(confirmed == "no-cache") as usize;
            assert_eq!(endpoint.count(), expected, "{confirmed}");
            let words = results(&proxy, 5);
            assert_eq!(words[..2], ["miss", "revalidated"], "{words:?}");
            // An object invalidated meanwhile is gone with its head.
            let post = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
            proxy.client().ask(post).unwrap();
            ask(&proxy, "/a", "");
            assert!(!endpoint.asked().last().unwrap().contains("If-None-Match"));
        }
    });
}

#[test]
fn what_memory_does_not_take_is_validated_too() {
    test(|| {
        // Longer than an eighth of the memory, and short enough to be read whole.
        let text = "0123456789".repeat(70_000);
        let whole = text.clone();
        let endpoint = Endpoint::answering(move |head| {
            if head.contains("If-None-Match: \"a\"") {
                return "HTTP/1.1 304 Word\r\nETag: \"a\"\r\nX-New: 1\r\n\r\n".to_owned();
            }
            response(200, "Cache-Control: no-cache\r\nETag: \"a\"\r\n", &whole)
        });
        let folder = TempDir::new().unwrap();
        let proxy = with_disk_of(&endpoint, &folder, "2MiB", "finish = true").unwrap();
        assert!(ask(&proxy, "/a", "").text() == text);
        until("it is stored", || {
            figures(&proxy)["caches"][0]["fetches"].as_u64() == Some(0)
        });
        for _ in 0..3 {
            let answer = ask(&proxy, "/a", "");
            assert!(answer.status == 200 && answer.text() == text);
            assert_eq!(answer.field("x-new"), Some("1"));
        }
        let asked = endpoint.asked();
        assert!(asked[1..].iter().all(|it| it.contains("If-None-Match")));
    });
}

#[test]
fn the_newer_of_two_versions_is_sent() {
    test(|| {
        let number = AtomicUsize::new(0);
        let endpoint = Endpoint::answering(move |_| {
            let digit = number.fetch_add(1, SeqCst) % 10;
            response(200, FRESH, &digit.to_string().repeat(2_000_000))
        });
        let folder = TempDir::new().unwrap();
        let proxy = with_disk_of(&endpoint, &folder, "64MiB", "finish = true").unwrap();
        for turn in 0..20 {
            let forced = ask(&proxy, "/a", "Cache-Control: no-cache\r\n");
            let digit = (turn % 10).to_string();
            assert!(forced.text().starts_with(&digit));
            let stored = ask(&proxy, "/a", "");
            assert!(stored.text().starts_with(&digit), "turn {turn}");
        }
        assert_eq!(endpoint.count(), 20);
    });
}

#[test]
fn a_range_of_what_is_too_long_waits_for_nobody() {
    test(|| {
        let (endpoint, is_let) = long(WITH_CHUNKS);
        is_let.store(true, SeqCst);
        let address = endpoint.origin.address;
        let config = format!(
            "[server]\nworkers = 1\n[[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
             [cache.main]\nmemory = '8MiB'\n\
             [[route]]\nupstream = 'app'\ncache = {{ store = 'main', wait = '1m' }}\n\
             [upstream.app]\nendpoints = ['{address}']\n"
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        let began = std::time::Instant::now();
        let request = "GET /a HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"x\"\r\n\r\n";
        let answer = proxy.client().ask(request).unwrap();
        assert!(answer.status == 200 && answer.body == body());
        assert!(began.elapsed() < Duration::from_secs(9));
    });
}

#[test]
fn a_long_body_that_is_cut_off_or_purged_meanwhile_is_not_stored() {
    test(|| {
        let purge = "PURGE /a HTTP/1.1\r\nHost: a\r\n\r\n";
        for is_purged in [false, true] {
            let (endpoint, is_let) = long(WITH_LENGTH);
            let folder = TempDir::new().unwrap();
            let proxy = with_disk_and(&endpoint, &folder, "finish = false").unwrap();
            let mut client = ask_all(&proxy, 1, GET).remove(0);
            client.read_head().unwrap();
            client.skip_len(FIRST_LEN as u64).unwrap();
            if is_purged {
                assert_eq!(proxy.client().ask(purge).unwrap().status, 200);
                is_let.store(true, SeqCst);
                client.skip_len((LEN - FIRST_LEN) as u64).unwrap();
            } else {
                client.reset();
            }
            until("the fetch has ended", || {
                figures(&proxy)["caches"][0]["fetches"].as_u64() == Some(0)
            });
            is_let.store(true, SeqCst);
            let answer = ask(&proxy, "/a", "");
            assert!(answer.body == body(), "{}", answer.head);
            assert_eq!(endpoint.count(), 2, "purged: {is_purged}");
            let stored = ask(&proxy, "/a", "Cache-Control: only-if-cached\r\n");
            assert!(stored.body == body(), "{}", stored.head);
        }
    });
}
