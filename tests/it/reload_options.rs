//! How a configuration comes into force that is loaded again: one that goes back by
//! itself unless it is confirmed, and one whose new endpoints must be well.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::{Proxy, RawClient};

use crate::control::{ask, ctl, json, texts};
use crate::reload::{OTHER, SITE, listening, reload, site, with_hello, write};
use crate::setup::{assert_serves, figures, get, nobody, origin, program, test};

/// Reloads the file, to be confirmed within this time.
#[track_caller]
fn reload_to_confirm(proxy: &Proxy, config: &str, time: &str) -> String {
    write(proxy, config);
    let answer = ask(proxy, &format!("reload confirm {time}"));
    assert!(answer.starts_with("reloaded: "), "{answer}");
    assert!(answer.contains("it waits to be confirmed"), "{answer}");
    answer
}

fn evenkeel(proxy: &Proxy, args: &[&str]) -> Output {
    let mut command = Command::new(program());
    let config = proxy.path("evenkeel.toml");
    command.args(args).arg("--config").arg(config);
    command.output().unwrap()
}

fn hello(client: &mut RawClient) -> u16 {
    client.ask(get("/hello")).unwrap().status
}

/// The hash of the configuration in force.
fn in_force(proxy: &Proxy) -> String {
    let generations = json(proxy, "show generations");
    generations[0]["config"].as_str().unwrap().to_owned()
}

#[test]
fn it_goes_back_by_itself() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let before = in_force(&proxy);
        let mut client = proxy.client();
        assert_eq!(hello(&mut client), 404);
        let answer = reload_to_confirm(&proxy, &with_hello(&config), "2s");
        for part in ["`evenkeel confirm`", "within 2s", &before] {
            assert!(answer.contains(part), "{part}: {answer}");
        }
        assert_eq!(hello(&mut client), 200);
        let shown = ask(&proxy, "show generations");
        let line = format!(
            "generation 1 waits for `evenkeel confirm`: without it, configuration {before} comes back"
        );
        assert!(shown.contains(&line), "{shown}");
        let line = "generation 0 is kept until generation 1 is confirmed";
        assert!(shown.contains(line), "{shown}");
        let shown = json(&proxy, "show generations");
        assert_eq!(shown[0]["unconfirmed"]["reverts_to"], before);
        let kept = |at: usize| {
            (
                shown[at]["generation"].as_u64(),
                shown[at]["kept_until_confirmed"].as_bool(),
            )
        };
        assert_eq!(
            [kept(0), kept(1)],
            [(Some(1), Some(false)), (Some(0), Some(true))]
        );
        until("it goes back", || hello(&mut client) == 404);
        assert_eq!(in_force(&proxy), before);
        let line = format!("was not confirmed in time; configuration {before} comes back");
        until("it is said", || proxy.stderr().contains(&line));
        let figures = figures(&proxy);
        assert_eq!(figures["reloads_reverted"], 1);
        assert_eq!(figures["reloads"], 2);
        assert_eq!(figures["generation"], 2);
        assert_eq!(figures["listeners"][0]["open"], 1);
        // The kept generation is dropped.
        until("one generation is left", || {
            json(&proxy, "show generations").as_array().unwrap().len() == 1
        });
        let (code, _, said) = texts(&evenkeel(&proxy, &["confirm"]));
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("no configuration waits to be confirmed: "),
            "{said}"
        );
    });
}

#[test]
fn a_confirmed_one_stays() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        write(&proxy, &with_hello(&config));
        let (code, said, _) = texts(&evenkeel(&proxy, &["reload", "--confirm", "1h"]));
        assert_eq!(code, Some(0));
        assert!(said.contains("within 3600s"), "{said}");
        let (code, said, _) = texts(&evenkeel(&proxy, &["confirm"]));
        assert_eq!(code, Some(0));
        let hash = in_force(&proxy);
        let expected = format!("confirmed: configuration {hash} stays in force, generation 1\n");
        assert_eq!(said, expected);
        assert!(!ask(&proxy, "show generations").contains("waits"));
        assert_eq!(hello(&mut proxy.client()), 200);
        let (code, said, error) = texts(&ctl(&proxy, &["reload", "--confirm", "1m30s"]));
        assert_eq!(code, Some(0), "{error}");
        assert!(said.contains("within 90s"), "{said}");
        assert_eq!(texts(&ctl(&proxy, &["confirm"])).0, Some(0));
        let (code, _, error) = texts(&ctl(&proxy, &["confirm"]));
        assert_eq!(code, Some(1), "{error}");
    });
}

#[test]
fn a_further_reload_decides() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let hello_config = with_hello(&config);
        let (first, mut client) = (in_force(&proxy), proxy.client());
        // A plain reload stays in force, and ends the wait of the one before.
        reload_to_confirm(&proxy, &hello_config, "1h");
        let answer = reload(&proxy, &hello_config);
        let line = "no configuration waits to be confirmed any more";
        assert!(answer.contains(line), "{answer}");
        assert!(ask(&proxy, "confirm").starts_with("error: no configuration waits"));
        // A refused one changes nothing, and with a wait the last that was to stay
        // comes back.
        let second = in_force(&proxy);
        assert_ne!(first, second);
        reload_to_confirm(&proxy, &config, "1h");
        write(&proxy, "[[listener]");
        assert!(ask(&proxy, "reload").starts_with("error: "));
        assert!(ask(&proxy, "reload confirm 1s").starts_with("error: "));
        let other = hello_config.replace("workers = 1", "workers = 1\ndrain_timeout = '3s'");
        let answer = reload_to_confirm(&proxy, &other.replace("/hello", "/other"), "1s");
        assert!(answer.contains(&second), "{answer}");
        until("the second is back", || in_force(&proxy) == second);
        assert_eq!(hello(&mut client), 200);
    });
}

#[test]
fn listeners_come_back() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let free: SocketAddr = nobody().parse().unwrap();
        let other = OTHER.replace("127.0.0.1:0", &free.to_string());
        let any = OTHER.replace("other", "any");
        reload(&proxy, &format!("{config}{other}{any}"));
        let mut client = proxy.client();
        let mut stays = RawClient::connect(listening(&proxy, "any")).unwrap();
        assert_serves(&mut stays);
        reload_to_confirm(&proxy, &format!("{config}{any}"), "1s");
        // Until then the socket that is going may still accept.
        until("it goes back", || figures(&proxy)["reloads_reverted"] == 1);
        until("it listens again", || RawClient::connect(free).is_ok());
        assert_serves(&mut RawClient::connect(free).unwrap());
        // Listeners with any port keep theirs.
        assert_serves(&mut client);
        assert_serves(&mut stays);
        assert_eq!(figures(&proxy)["generation"], 3);
        // A listener that can't come back is reported, and can be given up.
        reload_to_confirm(&proxy, &format!("{config}{any}"), "2s");
        until("nobody listens there", || RawClient::connect(free).is_err());
        let _holder = TcpListener::bind(free).unwrap();
        until("it is said", || {
            proxy.stderr().contains("can't come back, so ")
        });
        assert_eq!(figures(&proxy)["reloads_refused"], 1);
        let answer = ask(&proxy, "confirm");
        assert!(answer.starts_with("confirmed: "), "{answer}");
        assert_serves(&mut stays);
    });
}

#[test]
fn an_upgrade_and_a_drain_meanwhile() {
    test(|| {
        let (origin, mut proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        reload_to_confirm(&proxy, &with_hello(&config), "1h");
        let answer = ask(&proxy, "upgrade");
        let why = "upgrade failed (not-started): the program can't be started: the configuration \
                   in force waits to be confirmed";
        assert!(answer.contains(why), "{answer}");
        assert_eq!(figures(&proxy)["upgrades_failed"], 1);
        proxy.terminate();
        until("the wait ends", || {
            let line = "no configuration waits to be confirmed any more: the process is draining";
            proxy.stderr().contains(line)
        });
        assert!(proxy.wait(STEP).expect("it ends").success());
        assert!(
            !proxy.stderr().contains("reload reverted"),
            "{}",
            proxy.stderr()
        );
    });
}

#[test]
fn new_endpoints_must_be_well() {
    test(|| {
        let (known, proxy) = site();
        let other = origin();
        let new = other.address.to_string();
        let [one, two] = [nobody(), nobody()];
        let config = SITE.config(&[known.address.to_string()]);
        let with_api = |endpoints: &[&str], more: &str| {
            format!("{config}[upstream.api]\nendpoints = {endpoints:?}\n{more}\n").replacen(
                "[[route]]",
                "[[route]]\nmatch = { path = \"/api/*\" }\nupstream = \"api\"\n[[route]]",
                1,
            )
        };
        std::fs::write(proxy.path("none.json"), "[]").unwrap();
        let nothing =
            with_api(&[], "").replace("endpoints = []", "endpoints_file = \"$DIR/none.json\"");
        for (config, reasons) in [
            (
                with_api(&[&one, &two], ""),
                vec![
                    "upstream api: no endpoint passes its probe (".to_owned(),
                    format!("{one}: connection refused"),
                    format!("{two}: connection refused"),
                ],
            ),
            (
                with_api(&[&new], "health = { path = \"/status/503\" }"),
                vec![format!("{new}: status 503")],
            ),
            (
                nothing,
                vec!["upstream api would have no endpoint".to_owned()],
            ),
        ] {
            write(&proxy, &config);
            let (code, _, said) = texts(&evenkeel(&proxy, &["reload", "--require-healthy"]));
            assert_eq!(code, Some(1), "{said}");
            for reason in reasons {
                assert!(said.contains(&reason), "{reason}: {said}");
            }
        }
        assert!(
            proxy
                .stderr()
                .contains("reload refused: upstream api: no endpoint passes")
        );
        let seen = figures(&proxy);
        assert_eq!(
            (&seen["generation"], &seen["reloads_refused"]),
            (&0.into(), &3.into())
        );
        // One that is well is enough; an endpoint of before is, whatever it is.
        for config in [
            with_api(&[&one, &new], "health = { path = \"/ping\" }"),
            with_api(&[&one, &two], ""),
        ] {
            write(&proxy, &config);
            let answer = ask(&proxy, "reload require-healthy");
            assert!(answer.starts_with("reloaded: "), "{answer}");
        }
        // With both, nothing waits where it is refused.
        write(&proxy, &with_api(&[&two], "").replace("api", "other"));
        let (code, _, said) = texts(&ctl(
            &proxy,
            &["reload", "--require-healthy", "--confirm", "1h"],
        ));
        assert_eq!(code, Some(1), "{said}");
        assert!(ask(&proxy, "confirm").starts_with("error: no configuration waits"));
    });
}

#[test]
fn wrong_calls() {
    test(|| {
        let (_origin, proxy) = site();
        for (args, says) in [
            (
                &["reload", "--dry-run", "--confirm", "60s"][..],
                "--dry-run",
            ),
            (&["reload", "--dry-run", "--require-healthy"], "--dry-run"),
            (&["reload", "--confirm", "0s"], "1s to 24h"),
            (&["reload", "--confirm", "48h"], "1s to 24h"),
            (&["reload", "--confirm", "60"], "a duration needs a unit"),
            (&["reload", "--confirm"], "--confirm"),
        ] {
            let (code, _, said) = texts(&evenkeel(&proxy, args));
            assert_eq!(code, Some(2), "{args:?}: {said}");
            assert!(said.contains(says), "{args:?}: {said}");
        }
        for (command, says) in [
            ("reload confirm", "needs a time"),
            ("reload confirm 0s", "1s to 24h"),
            ("reload frob", "unknown option `frob`"),
        ] {
            let answer = ask(&proxy, command);
            assert!(answer.starts_with("error: "), "{answer}");
            assert!(answer.contains(says), "{answer}");
        }
        assert_eq!(figures(&proxy)["generation"], 0);
    });
}
