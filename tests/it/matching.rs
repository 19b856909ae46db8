//! Routes by conditions made of others, regular expressions, files of networks, times,
//! shares and the name in a TLS handshake.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::run;
use evenkeel_testkit::tls::Authority;
use evenkeel_testkit::{Proxy, RawClient, TempDir, replace_file};

use crate::setup::{ask_status, figures, program, test};

/// A program with these routes, each of which answers with its number. The last one takes all
/// other requests.
fn routes(matches: &[&str]) -> String {
    let mut config =
        "[server]\nworkers = 1\n[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n".to_owned();
    for (number, wanted) in matches.iter().enumerate() {
        config +=
            &format!("[[route]]\nmatch = {{ {wanted} }}\nanswer = {{ body = \"{number}\" }}\n");
    }
    config + "[[route]]\nanswer = { body = \"none\" }\n"
}

fn ask(client: &mut RawClient, host: &str, path: &str, fields: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    let response = client.ask(request).unwrap();
    match response.status {
        200 => response.text(),
        status => status.to_string(),
    }
}

#[test]
fn conditions_made_of_others() {
    test(|| {
        let config = routes(&[
            "any = [{ host = 'admin.test' }, { host = 'www.test', path = '/admin/*' }], not = { header = { X-Office = true } }",
            "all = [{ path = '/files/*' }, { path = '**.pdf' }]",
            "not = [{ path = '/public/*' }, { host = '*.test' }, { method = 'GET' }]",
        ]);
        let proxy = Proxy::start(program(), &config).unwrap();
        let mut client = proxy.client();
        for (host, path, fields, expected) in [
            ("admin.test", "/", "", "0"),
            ("admin.test", "/", "X-Office: 1\r\n", "none"),
            ("www.test", "/admin/x", "", "0"),
            ("www.test", "/%61dmin/x", "", "0"),
            // Every reading of the path must find the same route, at every depth.
            ("www.test", "/admin%2Fx", "", "400"),
            ("www.test", "/x/..%2fadmin/y", "", "400"),
            ("www.test", "/other%2Fx", "", "none"),
            ("a.test", "/files/a.pdf", "", "1"),
            ("a.test", "/files/a.png", "", "none"),
        ] {
            assert_eq!(
                ask(&mut client, host, path, fields),
                expected,
                "{host}{path}"
            );
        }
        let post = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(client.ask(post).unwrap().text(), "2");
    });
}

#[test]
fn regular_expressions() {
    test(|| {
        let config = routes(&[
            "path = { regex = '^/u/(?<id>[0-9]+)$' }",
            "host = { regex = '^api[0-9]\\.test$' }",
            "header = { X-A = { regex = '^a+$' } }",
            "query = { q = { regex = '^[^ ]+ b' } }",
            "path = { regex = '^/(a*)*b$' }",
        ]);
        let proxy = Proxy::start(program(), &config).unwrap();
        let mut client = proxy.client();
        for (host, path, fields, expected) in [
            ("a.test", "/u/12", "", "0"),
            ("a.test", "/%75/12", "", "0"),
            ("a.test", "/u/12x", "", "none"),
            ("a.test", "/x/..%2fu/12", "", "400"),
            ("API7.test", "/", "", "1"),
            ("api7.test.", "/", "", "1"),
            ("api77.test", "/", "", "none"),
            ("a.test", "/", "X-A: aaa\r\n", "2"),
            ("a.test", "/", "X-A: aab\r\n", "none"),
            ("a.test", "/?q=a+b", "", "3"),
            ("a.test", "/aaab", "", "4"),
        ] {
            assert_eq!(
                ask(&mut client, host, path, fields),
                expected,
                "{host}{path}"
            );
        }
        // An engine that goes back would not come to an end.
        let begin = Instant::now();
        let path = format!("/{}", "a".repeat(6000));
        assert_eq!(ask(&mut client, "a.test", &path, ""), "none");
        assert!(
            begin.elapsed() < Duration::from_secs(2),
            "{:?}",
            begin.elapsed()
        );
    });
}

#[test]
fn a_file_of_networks_is_read_again_when_it_changes() {
    test(|| {
        let folder = TempDir::new().unwrap();
        let file = folder.join("nets.txt");
        fs::write(&file, "# nobody yet\n192.0.2.0/24\n").unwrap();
        let wanted = format!(
            "client = [\"198.51.100.7\", {{ file = \"{}\" }}]",
            file.display()
        );
        let proxy = Proxy::start(program(), &routes(&[&wanted])).unwrap();
        let mut client = proxy.client();
        let mut answer = || ask(&mut client, "a.test", "/", "");
        assert_eq!(answer(), "none");
        replace_file(&file, "192.0.2.0/24\n::ffff:127.0.0.0/104 # this machine\n");
        until("it is read again", || answer() == "0");
        // A file with a mistake changes nothing, and the mistake is reported with its line.
        replace_file(&file, "192.0.2.0/24\n127.0.0.one\n");
        let said = "nets.txt:2: `127.0.0.one` is not a valid address or network";
        until("the line is told", || proxy.stderr().contains(said));
        assert_eq!(answer(), "0");
        replace_file(&file, "");
        until("it is read again", || answer() == "none");
        let said = "reloaded, and the file has no networks";
        until("it is said", || proxy.stderr().contains(said));
        fs::remove_file(&file).unwrap();
        until("it is missed", || proxy.stderr().contains("No such file"));
        assert_eq!(answer(), "none");
        replace_file(&file, "0.0.0.0/0");
        until("it is there again", || answer() == "0");
    });
}

#[test]
fn a_file_with_a_mistake_is_told_by_a_gauge() {
    test(|| {
        let folder = TempDir::new().unwrap();
        let file = folder.join("nets.txt");
        fs::write(&file, "192.0.2.0/24\n").unwrap();
        let wanted = format!("client = {{ file = \"{}\" }}", file.display());
        let config = routes(&[&wanted]) + "[status]\nbind = \"127.0.0.1:0\"\n";
        let proxy = Proxy::start(program(), &config).unwrap();
        let mistaken = |count: u64| figures(&proxy)["network_files_mistaken"] == count;
        assert!(mistaken(0));
        replace_file(&file, "127.0.0.one\n");
        until("the mistake is counted", || mistaken(1));
        let metrics = ask_status(&proxy, "/metrics", "").text();
        assert!(metrics.contains("\nevenkeel_network_files_mistaken 1\n"));
        assert!(metrics.contains("\nevenkeel_user_files_mistaken 0\n"));
        replace_file(&file, "192.0.2.0/24\n198.51.100.0/24\n");
        until("it is right again", || mistaken(0));
    });
}

#[test]
fn a_file_with_a_mistake_is_refused_at_the_start() {
    test(|| {
        let folder = TempDir::new().unwrap();
        fs::write(folder.join("nets.txt"), "10.0.0.0/8\n10.0.0.0/99\n").unwrap();
        let config = folder.join("evenkeel.toml");
        for (name, expected) in [
            ("nets.txt", "nets.txt:2: `10.0.0.0/99` is not a network"),
            ("other.txt", "other.txt: No such file"),
        ] {
            let wanted = format!("client = {{ file = \"{name}\" }}");
            fs::write(&config, routes(&[&wanted])).unwrap();
            let mut command = Command::new(program());
            command.arg("check").arg(&config);
            let output = run(command, Duration::from_secs(20)).unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains(expected), "{said}");
        }
    });
}

#[test]
fn times_of_day() {
    test(|| {
        // The one holds while the other does not, except between two minutes.
        let config = routes(&[
            "path = '/all', time = '00:00-24:00'",
            "path = '/none', not = { time = ['00:00-12:00 UTC', '12:00-24:00 UTC'] }",
            "path = '/half', time = 'mon-sun 00:00-12:00 UTC'",
            "path = '/half', time = '12:00-00:00 UTC'",
        ]);
        let proxy = Proxy::start(program(), &config).unwrap();
        let mut client = proxy.client();
        assert_eq!(ask(&mut client, "a.test", "/all", ""), "0");
        assert_eq!(ask(&mut client, "a.test", "/none", ""), "none");
        let hours = || {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            now.as_secs() / 3600 % 24
        };
        let (before, answer, after) = (hours(), ask(&mut client, "a.test", "/half", ""), hours());
        let expected = |hour| if hour < 12 { "2" } else { "3" };
        assert!(
            answer == expected(before) || answer == expected(after),
            "{answer}"
        );
    });
}

#[test]
fn a_random_share() {
    test(|| {
        const ASKED: usize = 4000;
        let config = routes(&["share = 0.1", "share = 0.5", "share = 1"]);
        let proxy = Proxy::start(program(), &config).unwrap();
        let mut client = proxy.client();
        let mut counts = [0; 3];
        for _ in 0..ASKED {
            let answer = ask(&mut client, "a.test", "/", "");
            counts[answer.parse::<usize>().unwrap()] += 1;
        }
        // Six times the deviation to both sides: less often wrong than once in a billion.
        for (count, share) in counts.into_iter().zip([0.1, 0.45, 0.45]) {
            let expected = share * ASKED as f64;
            let bound = 6.0 * (expected * (1.0 - share)).sqrt();
            assert!((count as f64 - expected).abs() < bound, "{counts:?}");
        }
    });
}

#[test]
fn the_name_in_a_handshake() {
    test(|| {
        let authority = Authority::new().unwrap();
        let folder = TempDir::new().unwrap();
        let issued = authority.issue(&["a.test", "b.test"]).unwrap();
        let (chain, key) = issued.write(folder.path(), "site").unwrap();
        let config = routes(&["sni = 'a.test'", "not = { sni = 'b.test' }"]).replace(
            "\"127.0.0.1:0\"\n",
            &format!(
                "\"127.0.0.1:0\"\ntls = {{ certificates = [{{ chain = \"{}\", key = \"{}\" }}] }}\n",
                chain.display(),
                key.display()
            ),
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        let trusting = authority.trusting(rustls::ALL_VERSIONS).unwrap();
        for (name, expected) in [("a.test", "0"), ("b.test", "none")] {
            let address = proxy.socket_addr("web");
            let mut client = RawClient::connect_tls(address, name, trusting.clone()).unwrap();
            assert_eq!(ask(&mut client, name, "/", ""), expected);
        }
    });
}

#[test]
fn explain_shows_what_each_condition_has() {
    test(|| {
        let folder = TempDir::new().unwrap();
        fs::write(folder.join("nets.txt"), "10.0.0.0/8\n").unwrap();
        let config = folder.join("evenkeel.toml");
        let text = routes(&[
            "any = [{ path = { regex = '^/u/' }, listener = 'web' }, { client = { file = 'nets.txt' } }], not = { method = 'GET' }",
            "share = 0.000001",
            "time = '00:00-24:00 UTC', not = { path = '/x' }",
        ]);
        fs::write(&config, text).unwrap();
        let mut command = Command::new(program());
        command.args([
            "explain",
            "GET",
            "http://a.test/u/1",
            "--client",
            "10.1.2.3",
            "--config",
        ]);
        command.arg(&config);
        let output = run(command, Duration::from_secs(20)).unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        for expected in [
            "  + any: one of these must hold\n      all of\n        + listener web: the request has web\n        + path regex ^/u/: the request has /u/1\n      or all of\n        + client file nets.txt (1 networks): the request has 10.1.2.3\n",
            "  - not: none of these may hold\n      all of\n        + method GET: the request has GET\n",
            "  - share below 0.000001: the request has 0.",
            ", drawn at random\n",
            "  + time 00:00-24:00 UTC: the request has ",
            "route route-3: matches\n",
        ] {
            assert!(said.contains(expected), "{expected}\n{said}");
        }
    });
}
