//! The configurations of the pages on routes, in operation.

use evenkeel_testkit::RawOrigin;

use super::*;

/// The first configuration under a heading, for a listener without TLS.
fn plain(page: &str, heading: &str) -> Recipe {
    let mut recipe = Recipe::of_page(page, heading);
    recipe.text = recipe
        .text
        .replace("tls = { acme = \"you@example.com\" }\n", "")
        .replace("\":8443\"", "\"127.0.0.1:0\"");
    if !recipe.text.contains("[[listener]]") {
        let listener = "[[listener]]\nbind = \"127.0.0.1:0\"\n\n";
        recipe.text = format!("{listener}{}", recipe.text);
    }
    recipe
}

impl Recipe {
    /// Adds upstreams that the page leaves out, and their origins.
    fn and_upstreams<const N: usize>(mut self, names: [&str; N]) -> (Recipe, [OriginHandle; N]) {
        for name in names {
            self.text += &format!("\n[upstream.{name}]\nendpoints = [\"{name}\"]\n");
        }
        let origins = names.map(|name| {
            let options = OriginOptions {
                name: name.to_owned(),
                ..OriginOptions::default()
            };
            Origin::local(options).unwrap()
        });
        for (name, origin) in names.iter().zip(&origins) {
            let address = format!("endpoints = [\"{}\"]", origin.address);
            self = self.with(&format!("endpoints = [\"{name}\"]"), &address);
        }
        (self, origins)
    }
}

/// The target of the request that the origin got.
fn target(response: &Response) -> String {
    assert_eq!(response.status, 200, "{response:?}");
    let text = response.text();
    text.split(' ').nth(1).unwrap().to_owned()
}

/// An origin that answers with the head that it got.
fn mirror_of_heads() -> RawOrigin {
    let origin = RawOrigin::start(|_, mut stream| {
        while let Ok(head) = stream.read_head() {
            let len = head.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{head}");
            stream.send(answer).unwrap();
        }
    });
    origin.unwrap()
}

#[test]
fn paths_that_are_sent_on() {
    test(|| {
        let origin = mirror_of_heads();
        let recipe = plain("docs/changing-requests.md", "Paths");
        let site = recipe
            .with("10.0.0.1:8080", &origin.address.to_string())
            .start();
        for (asked, sent) in [
            ("/v1/a?b=1", "/v2/a?b=1"),
            ("/u/7/photos/2", "/users/photos/2?id=7"),
            ("/search?text=a%26b&x=1", "/find?q=a%26b&from=search"),
        ] {
            assert_eq!(target(&site.ask(asked, "")), sent, "{asked}");
        }
        assert_eq!(site.ask("/v1/..%2fadmin", "").status, 400);
    });
}

#[test]
fn fields_that_browsers_heed() {
    test(|| {
        let recipe = plain(
            "docs/changing-requests.md",
            "The same changes for many routes",
        );
        let (recipe, _origin) = recipe.with_origins(["10.0.0.1:8080"]);
        let site = recipe.start();
        for (path, allowed) in [("/ping", None), ("/api/a", Some("https://www.example.com"))] {
            let response = site.ask(path, "");
            assert_eq!(response.field("x-frame-options"), Some("DENY"), "{path}");
            let origin = response.field("access-control-allow-origin");
            assert_eq!(origin, allowed, "{path}");
        }
        let preflight = "OPTIONS /api/a HTTP/1.1\r\nHost: a\r\nOrigin: https://www.example.com\r\n\
                         Access-Control-Request-Method: PUT\r\n\r\n";
        let response = site.client().ask(preflight).unwrap();
        assert_eq!(response.status, 204);
        let methods = response.field("access-control-allow-methods");
        assert_eq!(methods, Some("GET, POST, PUT, DELETE"));
        assert_eq!(response.field("vary"), Some("Origin"));
    });
}

#[test]
fn a_password() {
    test(|| {
        // Of `secret`, of the lowest cost.
        let users = "kim:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";
        for (page, heading) in [
            ("docs/recipes.md", "A password"),
            (
                "docs/authentication.md",
                "A password in front of an application",
            ),
        ] {
            let (recipe, _origin) = plain(page, heading).with_origins(["10.0.0.1:8080"]);
            let site = recipe.with_file("users.htpasswd", users).start();
            let status = |fields: &str| site.ask_host("app.example.com", "/ping", fields).status;
            assert_eq!(status(""), 401);
            assert_eq!(status("Authorization: Basic a2ltOm90aGVy\r\n"), 401);
            assert_eq!(status("Authorization: Basic a2ltOnNlY3JldA==\r\n"), 200);
        }
    });
}

#[test]
fn single_sign_on() {
    test(|| {
        let application = mirror_of_heads();
        let portal = RawOrigin::start(|_, mut stream| {
            while let Ok(head) = stream.read_head() {
                let is_question = head.starts_with("GET /api/authz/forward-auth ");
                let answer = match head.contains("Cookie: session=kim") {
                    _ if !is_question => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nform",
                    true => "HTTP/1.1 200 OK\r\nRemote-User: kim\r\nContent-Length: 0\r\n\r\n",
                    false => {
                        "HTTP/1.1 302 Found\r\nLocation: https://auth.example.com/\r\n\
                         Content-Length: 0\r\n\r\n"
                    }
                };
                stream.send(answer).unwrap();
            }
        });
        let portal = portal.unwrap();
        for page in ["docs/recipes.md", "docs/authentication.md"] {
            let site = plain(page, "Single sign-on")
                .with("127.0.0.1:9091", &portal.address.to_string())
                .with("10.0.0.1:8080", &application.address.to_string())
                .start();
            let response = site.ask_host("app.example.com", "/", "Remote-User: root\r\n");
            let to = response.field("location");
            assert_eq!(
                (response.status, to),
                (302, Some("https://auth.example.com/"))
            );
            let fields = "Cookie: session=kim\r\nRemote-User: root\r\n";
            let text = site.ask_host("app.example.com", "/", fields).text();
            assert!(text.contains("Remote-User: kim\r\n"), "{text}");
            assert!(!text.contains("root"), "{text}");
            assert_eq!(site.ask_host("auth.example.com", "/", "").text(), "form");
        }
    });
}

#[test]
fn limits_on_clients() {
    test(|| {
        let first = "Limits on clients' requests";
        let (recipe, _origin) = plain("docs/limits.md", first).with_origins(["10.0.0.1:8080"]);
        let site = recipe.with("10/s", "1/h").start();
        let statuses = |site: &Cooked, path: &str, fields: &str| {
            let all = (0..25).map(|_| site.ask(path, fields).status);
            all.filter(|it| *it == 200).count()
        };
        assert_eq!(statuses(&site, "/ping", ""), 20);
        let refused = site.ask("/ping", "");
        assert_eq!(refused.status, 429);
        assert_eq!(refused.field("retry-after"), Some("3600"));

        let (recipe, _origin) =
            plain("docs/limits.md", "Try it first").with_origins(["10.0.0.1:8080"]);
        let site = recipe.with("10/s", "1/h").start();
        assert_eq!(statuses(&site, "/ping", ""), 25);

        let (recipe, _origin) =
            plain("docs/limits.md", "Per API key").with_origins(["10.0.0.1:8080"]);
        let site = recipe.with("60/m", "1/h").start();
        let passed = |fields: &str| {
            let all = (0..25).map(|_| site.ask("/api/a", fields).status);
            all.filter(|it| *it != 429).count()
        };
        assert_eq!(passed("X-Api-Key: k\r\n"), 25);
        assert_eq!(passed(""), 10);
    });
}

#[test]
fn a_page_for_errors() {
    test(|| {
        let mut recipe = plain("docs/error-pages.md", "A page of your own")
            .with_file("sorry.html", "<h1>Sorry</h1>");
        recipe.text += &format!(
            "\n[upstream.app]\nendpoints = [\"{}\"]\nqueue = {{ timeout = \"10ms\" }}\n",
            nobody()
        );
        let response = recipe.start().ask("/", "");
        assert_eq!(response.status, 503, "{response:?}");
        assert_eq!(response.text(), "<h1>Sorry</h1>");
        let content_type = response.field("content-type").unwrap();
        assert!(content_type.starts_with("text/html"), "{content_type}");
    });
}

#[test]
fn a_split() {
    test(|| {
        let recipe = plain("docs/routing.md", "A split by weight");
        let (recipe, _origins) = recipe.and_upstreams(["shop", "shop-next"]);
        let site = recipe
            .with("split = [", "split_by = \"{cookie:user}\"\nsplit = [")
            .start();
        let of = |user: u32| {
            let fields = format!("Cookie: user={user}\r\n");
            server_of(&site.ask("/shop/a", &fields))
        };
        let next = (0..200).filter(|it| of(*it) == "shop-next").count();
        assert!((2..=25).contains(&next), "{next}");
        assert!((0..20).all(|it| of(it) == of(it)));
    });
}

/// The origin that answered, whatever it did.
fn server_of(response: &Response) -> String {
    response.field("server").unwrap().to_owned()
}

#[test]
fn redirects_with_variables() {
    test(|| {
        let site = plain("docs/routing.md", "Redirects").start();
        let response = site.ask("/u/7", "");
        let to = response.field("location");
        let expected = Some("https://www.example.com/users?id=7");
        assert_eq!((response.status, to), (308, expected));
    });
}
