//! Routes with `auth`: clients show who they are by a password.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin, Response, TempDir, replace_file};

use crate::reload::reload;
use crate::setup::{assert_logged, assert_refused, program, test};
use crate::words;

// Of `secret` and `other`, made by crypt(3): of the lowest cost, and of higher ones.
const SECRET: &str = "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
const OTHER: &str = "$2y$04$abcdefghijklmnopqrstuu0HtfOlPbTiymk5tcV.3TsFPDd3SYZqu";
const SECRET_10: &str = "$2b$10$abcdefghijklmnopqrstuuqflPDzB6gcMhKa1rZqKiun2YGL5sa2u";
const SECRET_12: &str = "$2b$12$abcdefghijklmnopqrstuuT1Iwu6o8Wx7BoOyIMHfgVJq6JO/IJhW";
const SECRET_14: &str = "$2b$14$abcdefghijklmnopqrstuug2/T3netL3BPRcnafSaAr9lEfTNoLyC";

// `USER:PASSWORD` in base64.
const KIM_SECRET: &str = "a2ltOnNlY3JldA==";
const KIM_OTHER: &str = "a2ltOm90aGVy";
const JO_SECRET: &str = "am86c2VjcmV0";

/// A folder with a file of users.
fn users(lines: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::write(dir.join("users"), lines).unwrap();
    dir
}

/// The program with these routes before an origin that answers with the head that it got.
/// `$USERS` is the file of users.
fn start(routes: &str, users: &TempDir) -> (RawOrigin, Proxy) {
    let origin = origin();
    let proxy = Proxy::start(program(), &config(routes, users, &origin)).unwrap();
    (origin, proxy)
}

fn config(routes: &str, users: &TempDir, origin: &RawOrigin) -> String {
    let routes = routes.replace("$USERS", users.join("users").to_str().unwrap());
    format!(
        "[server]\nworkers = 1\ncontrol = \"$DIR/control.sock\"\n\n\
         [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\n\
         {routes}\n\n[upstream.app]\nendpoints = [\"{}\"]\n",
        origin.address
    )
}

/// An origin that answers with the head that it got, which may be stored.
fn origin() -> RawOrigin {
    RawOrigin::start(|_, mut stream| {
        while let Ok(head) = stream.read_head() {
            let len = head.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nCache-Control: public, max-age=60\r\nContent-Length: {len}\r\n\r\n{head}"
            );
            stream.send(answer).unwrap();
        }
    })
    .unwrap()
}

/// Asks with these lines in the head.
fn ask(client: &mut RawClient, path: &str, lines: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n");
    client.ask(request).unwrap()
}

/// Asks with this user and password.
fn ask_as(client: &mut RawClient, path: &str, pair: &str) -> Response {
    ask(client, path, &format!("Authorization: Basic {pair}\r\n"))
}

const OFFICE: &str = r#"
[[route]]
name = "office"
upstream = "app"
auth = { basic = "$USERS" }
request_headers.set = { X-User = "{user}" }
"#;

#[test]
fn a_user_with_the_right_password_goes_on() {
    test(|| {
        let users = users(&format!("# all of us\nkim:{SECRET}\njo:{OTHER}\n"));
        let (_origin, proxy) = start(OFFICE, &users);
        let mut client = proxy.client();
        let response = ask(&mut client, "/a", "");
        assert_refused(&response, words::UNAUTHORIZED);
        let challenge = response.field("www-authenticate");
        let expected = "Basic realm=\"office\", charset=\"UTF-8\"";
        assert_eq!(challenge, Some(expected));
        let good = format!("Authorization: Basic {KIM_SECRET}\r\n");
        for lines in [
            format!("Authorization: Basic {KIM_OTHER}\r\n"),
            format!("Authorization: Basic {JO_SECRET}\r\n"),
            "Authorization: Basic bm9ib2R5OnNlY3JldA==\r\n".to_owned(),
            "Authorization: Basic a2lt\r\n".to_owned(),
            "Authorization: Bearer x\r\n".to_owned(),
            format!("{good}{good}"),
            format!("{good}Authorization: Bearer x\r\n"),
            format!("Authorization: Basic {}\r\n", "A".repeat(4000)),
        ] {
            let response = ask(&mut client, "/a", &lines);
            assert_refused(&response, words::UNAUTHORIZED);
        }
        // An unread body is dropped.
        let post = "POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc";
        assert_refused(&client.ask(post).unwrap(), words::UNAUTHORIZED);
        for turn in 0..3 {
            let response = ask_as(&mut client, "/a", KIM_SECRET);
            assert_eq!(response.status, 200, "{turn}: {response:?}");
            let head = response.text();
            assert!(head.contains("X-User: kim\r\n"), "{head}");
            assert!(head.contains(&good), "{head}");
        }
        assert_logged(&proxy, words::UNAUTHORIZED);
        until("the user is logged", || {
            let lines = proxy.access_log_json();
            let of_user = lines.iter().filter(|it| it["user"] == "kim");
            of_user.filter(|it| it["status"] == 200).count() == 3
        });
        let lines = proxy.access_log_json();
        let mut refused = lines.iter().filter(|it| it["status"] == 401);
        assert!(refused.all(|it| it.get("user").is_none()), "{lines:?}");
    });
}

#[test]
fn credentials_stay_here_where_the_route_removes_them() {
    const ROUTE: &str = r#"
[[route]]
upstream = "app"
auth = { basic = "$USERS", realm = 'the "office"' }
request_headers = { remove = ["Authorization"] }
"#;
    test(|| {
        let users = users(&format!("kim:{SECRET}\n"));
        let (_origin, proxy) = start(ROUTE, &users);
        let mut client = proxy.client();
        let response = ask(&mut client, "/a", "");
        let expected = "Basic realm=\"the \\\"office\\\"\", charset=\"UTF-8\"";
        assert_eq!(response.field("www-authenticate"), Some(expected));
        let head = ask_as(&mut client, "/a", KIM_SECRET).text().to_lowercase();
        assert!(!head.contains("authorization"), "{head}");
    });
}

#[test]
fn nothing_of_a_route_is_reached_without_a_password() {
    const ROUTES: &str = r#"
[[route]]
match = { path = "/cached" }
upstream = "app"
cache = true
auth = { basic = "$USERS" }
[[route]]
match = { path = "/files/*" }
files = "$FILES"
auth = { basic = "$USERS" }
[[route]]
match = { path = "/answer" }
answer = { body = "inside" }
auth = { basic = "$USERS" }
[[route]]
match = { path = "/both" }
answer = { body = "inside" }
auth = { basic = "$USERS" }
deny = "127.0.0.1"
[[route]]
match = { path = "/limited" }
answer = { body = "inside" }
auth = { basic = "$USERS" }
limit = { rate = "3/h", burst = 3 }
[[route]]
answer = { body = "outside" }
"#;
    test(|| {
        let users = users(&format!("kim:{SECRET}\n"));
        fs::create_dir(users.join("files")).unwrap();
        fs::write(users.join("files/a.txt"), "a file").unwrap();
        let routes = ROUTES.replace("$FILES", users.path().to_str().unwrap());
        let (_origin, proxy) = start(&routes, &users);
        let mut client = proxy.client();
        // A stored response is served only to clients that may ask for it.
        let response = ask_as(&mut client, "/cached", KIM_SECRET);
        assert_eq!(response.status, 200, "{response:?}");
        let response = ask_as(&mut client, "/cached", KIM_SECRET);
        assert_eq!(response.status, 200, "{response:?}");
        until("it is a hit", || {
            let lines = proxy.access_log_json();
            lines.iter().any(|it| it["cache"] == "hit")
        });
        for path in [
            "/cached",
            "/files/a.txt",
            "/files/none",
            "/answer",
            "/%61nswer",
        ] {
            assert_refused(&ask(&mut client, path, ""), words::UNAUTHORIZED);
            let response = ask_as(&mut client, path, KIM_OTHER);
            assert_refused(&response, words::UNAUTHORIZED);
        }
        let response = ask_as(&mut client, "/files/a.txt", KIM_SECRET);
        assert_eq!(response.text(), "a file");
        assert_eq!(ask_as(&mut client, "/answer", KIM_SECRET).text(), "inside");
        // The address comes first, then the limit.
        let response = ask_as(&mut client, "/both", KIM_SECRET);
        assert_refused(&response, words::DENIED);
        for expected in [401, 401, 401, 429, 429] {
            let response = ask_as(&mut client, "/limited", KIM_OTHER);
            assert_eq!(response.status, expected);
        }
        // However it is written, the path is that of the rule, or is refused.
        for path in [
            "//answer",
            "/x/..;/answer",
            "/%2e%2e/answer",
            "/answer%2f",
            "/x/../answer",
        ] {
            let response = ask(&mut client, path, "");
            let text = response.text();
            assert!(
                matches!(response.status, 401 | 400) || text == "outside",
                "{path}: {response:?}"
            );
        }
    });
}

#[test]
fn a_client_that_has_logged_in_costs_no_verification() {
    test(|| {
        let users = users(&format!("kim:{SECRET_12}\n"));
        let (origin, proxy) = start(OFFICE, &users);
        let mut client = proxy.client();
        let begun = Instant::now();
        assert_eq!(ask_as(&mut client, "/a", KIM_SECRET).status, 200);
        let first = begun.elapsed();
        let begun = Instant::now();
        for _ in 0..20 {
            assert_eq!(ask_as(&mut client, "/a", KIM_SECRET).status, 200);
        }
        let others = begun.elapsed();
        assert!(others < first, "{others:?}, but {first:?}");
        // A reload forgets no user whose file is the same.
        let text = config(&format!("{OFFICE}\n# another\n"), &users, &origin);
        reload(&proxy, &text);
        let begun = Instant::now();
        assert_eq!(ask_as(&mut client, "/a", KIM_SECRET).status, 200);
        assert!(begun.elapsed() < first / 2, "{:?}", begun.elapsed());
        // Another password is verified each time, as often as it is wrong.
        for _ in 0..2 {
            let begun = Instant::now();
            let response = ask_as(&mut client, "/a", KIM_OTHER);
            assert_refused(&response, words::UNAUTHORIZED);
            assert!(begun.elapsed() > first / 3, "{:?}", begun.elapsed());
        }
    });
}

#[test]
fn the_clock_does_not_tell_who_is_a_user() {
    test(|| {
        let users = users(&format!("kim:{SECRET_10}\n"));
        let (_origin, proxy) = start(OFFICE, &users);
        let mut client = proxy.client();
        let mut took = |pair: &str| {
            let begun = Instant::now();
            let response = ask_as(&mut client, "/a", pair);
            assert_refused(&response, words::UNAUTHORIZED);
            begun.elapsed()
        };
        // A busy machine makes some of them longer, and none shorter.
        let (mut known, mut unknown) = (Duration::MAX, Duration::MAX);
        for round in 1..=50 {
            known = known.min(took(KIM_OTHER));
            unknown = unknown.min(took(JO_SECRET));
            if round >= 5 && unknown > known / 2 && known > unknown / 2 {
                assert!(known > Duration::from_millis(5), "{known:?}");
                return;
            }
        }
        panic!("{known:?}, {unknown:?}");
    });
}

#[test]
fn a_file_of_users_is_read_again_when_it_changes() {
    test(|| {
        let users = users(&format!("kim:{SECRET}\n"));
        let file = users.join("users");
        let (_origin, proxy) = start(OFFICE, &users);
        let mut client = proxy.client();
        assert_eq!(ask_as(&mut client, "/a", KIM_SECRET).status, 200);
        replace_file(&file, &format!("kim:{OTHER}\n"));
        until("the new password counts", || {
            ask_as(&mut client, "/a", KIM_OTHER).status == 200
        });
        // The remembered pair of the old file is forgotten.
        let response = ask_as(&mut client, "/a", KIM_SECRET);
        assert_refused(&response, words::UNAUTHORIZED);
        replace_file(&file, "kim:hunter2\n");
        let said = "users:1: the hash of user `kim` is not a hash";
        until("the mistake is told", || proxy.stderr().contains(said));
        assert!(!proxy.stderr().contains("hunter2"), "{}", proxy.stderr());
        assert_eq!(ask_as(&mut client, "/a", KIM_OTHER).status, 200);
        // Remembered pairs hold for this file alone.
        replace_file(&file, &format!("kim:{SECRET}\njo:{SECRET}\n"));
        until("it is right again", || {
            ask_as(&mut client, "/a", JO_SECRET).status == 200
        });
        let response = ask_as(&mut client, "/a", KIM_OTHER);
        assert_refused(&response, words::UNAUTHORIZED);
    });
}

#[test]
fn too_many_verifications_are_refused() {
    test(|| {
        let users = users(&format!("kim:{SECRET_14}\n"));
        let (_origin, proxy) = start(OFFICE, &users);
        let request =
            format!("GET /a HTTP/1.1\r\nHost: a.test\r\nAuthorization: Basic {KIM_OTHER}\r\n\r\n");
        let mut waiting: Vec<_> = (0..80).map(|_| proxy.client()).collect();
        for client in &mut waiting {
            client.send(&request).unwrap();
        }
        let mut last = waiting.pop().unwrap();
        let response = last.read_response("GET").unwrap();
        assert_refused(&response, words::AUTH_BUSY);
        assert!(response.field("retry-after").is_some(), "{response:?}");
        assert_logged(&proxy, words::AUTH_BUSY);
        // Passwords of clients that have left are not verified.
        drop(waiting);
        assert_eq!(ask_as(&mut last, "/a", KIM_SECRET).status, 200);
    });
}

#[test]
fn a_mistaken_file_is_told_with_its_line() {
    test(|| {
        let users = users(&format!("kim:{SECRET}\n\njo:hunter2\n"));
        let text = config(OFFICE, &users, &origin());
        let text = text.replace("$DIR", users.path().to_str().unwrap());
        fs::write(users.join("evenkeel.toml"), text).unwrap();
        let check = || {
            let mut command = Command::new(program());
            command.arg("check").arg(users.join("evenkeel.toml"));
            let output = command.output().unwrap();
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let said = check();
        assert!(said.contains("users:3: the hash of user `jo`"), "{said}");
        assert!(said.contains("htpasswd -B"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
        fs::remove_file(users.join("users")).unwrap();
        let said = check();
        assert!(said.contains("htpasswd -cB"), "{said}");
    });
}

#[test]
fn explain_says_that_a_password_is_asked_for() {
    test(|| {
        let users = users(&format!("kim:{SECRET}\n"));
        let (_origin, proxy) = start(OFFICE, &users);
        let mut explain = Command::new(program());
        explain.arg("explain").arg("--config");
        explain.arg(proxy.path("evenkeel.toml"));
        let output = explain.args(["GET", &proxy.url("/a")]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("auth: a password of one of 1 users in "),
            "{text}"
        );
        assert!(
            text.contains("without one the answer is 401 unauthorized"),
            "{text}"
        );
    });
}
