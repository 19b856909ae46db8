use super::*;

/// A request as a test writes it.
struct Sent {
    listener: usize,
    method: &'static str,
    host: &'static str,
    path: &'static str,
    query: &'static str,
    client: &'static str,
    fields: Vec<(&'static str, &'static str)>,
}

impl Default for Sent {
    fn default() -> Self {
        Self {
            listener: 0,
            method: "GET",
            host: "example.com",
            path: "/",
            query: "",
            client: "192.0.2.1",
            fields: Vec::new(),
        }
    }
}

impl Facts for Sent {
    fn listener(&self) -> usize {
        self.listener
    }
    fn method(&self) -> &[u8] {
        self.method.as_bytes()
    }
    fn host(&self) -> &[u8] {
        self.host.as_bytes()
    }
    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }
    fn query(&self) -> &[u8] {
        self.query.as_bytes()
    }
    fn client(&self) -> IpAddr {
        self.client.parse().unwrap()
    }
    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let same = move |field: &&(&str, &str)| field.0.eq_ignore_ascii_case(name);
        self.fields
            .iter()
            .filter(same)
            .map(|(_, value)| value.as_bytes())
    }
}

fn holds(condition: Condition, request: &Sent) -> bool {
    RouteTable::new(vec![Rule::new(vec![condition])]).find(request) == Some(0)
}

fn value(pattern: &str) -> ValuePattern {
    ValuePattern::new(pattern).unwrap()
}

#[test]
fn the_first_rule_that_matches_wins() {
    let path = |path: &str| Condition::Path(vec![PathPattern::new(path).unwrap()]);
    let table = RouteTable::new(vec![
        Rule::new(vec![path("/a/b")]),
        Rule::new(vec![path("/a/*"), Condition::Method(vec!["POST".into()])]),
        Rule::new(vec![path("/a/*")]),
        Rule::default(),
        Rule::new(vec![path("/never")]),
    ]);
    for (method, path, expected) in [
        ("GET", "/a/b", 0),
        ("POST", "/a/b", 0),
        ("POST", "/a/c", 1),
        ("GET", "/a/c", 2),
        ("GET", "/%61/c", 2),
        ("GET", "/x/../a//b", 0),
        ("GET", "/never", 3),
        ("OPTIONS", "*", 3),
    ] {
        let request = Sent {
            method,
            path,
            ..Sent::default()
        };
        assert_eq!(table.find(&request), Some(expected), "{method} {path}");
    }
}

#[test]
fn no_rule_no_route() {
    assert_eq!(RouteTable::default().find(&Sent::default()), None);
    let post = Rule::new(vec![Condition::Method(vec!["POST".into()])]);
    assert_eq!(RouteTable::new(vec![post]).find(&Sent::default()), None);
}

#[test]
fn listeners_methods_and_clients() {
    let get = Sent::default();
    assert!(holds(Condition::Listener(vec![2, 0]), &get));
    assert!(!holds(Condition::Listener(vec![1]), &get));
    assert!(holds(
        Condition::Method(vec!["PUT".into(), "GET".into()]),
        &get
    ));
    assert!(!holds(Condition::Method(vec!["get".into()]), &get));
    let near = || Condition::Client(vec!["192.0.2.0/24".parse().unwrap()]);
    assert!(holds(near(), &get));
    assert!(holds(
        near(),
        &Sent {
            client: "::ffff:192.0.2.9",
            ..Sent::default()
        }
    ));
    assert!(!holds(
        near(),
        &Sent {
            client: "192.0.3.1",
            ..Sent::default()
        }
    ));
}

#[test]
fn headers() {
    let fields = vec![
        ("X-Kind", "blue"),
        ("x-kind", " green "),
        ("Accept", "*/*"),
        ("x-empty", ""),
    ];
    let request = Sent {
        fields,
        ..Sent::default()
    };
    for (name, pattern, expected) in [
        ("x-kind", value("blue"), true),
        ("x-kind", value("green"), true),
        ("x-kind", value("gre*"), true),
        ("x-kind", value("re"), false),
        ("x-kind", value("Blue"), false),
        ("accept", value("\\*/\\*"), true),
        ("accept", value("\\*/html"), false),
        ("x-empty", ValuePattern::Present, true),
        ("x-empty", value(""), true),
        ("x-empty", ValuePattern::Absent, false),
        ("x-none", ValuePattern::Present, false),
        ("x-none", ValuePattern::Absent, true),
        ("x-none", value("*"), false),
    ] {
        let shown = format!("{name} {pattern:?}");
        let condition = Condition::Header {
            name: name.into(),
            value: pattern,
        };
        assert_eq!(holds(condition, &request), expected, "{shown}");
    }
}

#[test]
fn query_parameters() {
    let query = "a=1&b&c=x%20y+z&%64=4&a=2&&=odd";
    let request = Sent {
        query,
        ..Sent::default()
    };
    for (name, pattern, expected) in [
        ("a", value("1"), true),
        ("a", value("2"), true),
        ("a", value("3"), false),
        ("b", ValuePattern::Present, true),
        ("b", value(""), true),
        ("c", value("x y z"), true),
        ("c", value("x*z"), true),
        ("d", value("4"), true),
        ("e", ValuePattern::Present, false),
        ("e", ValuePattern::Absent, true),
    ] {
        let shown = format!("{name} {pattern:?}");
        let condition = Condition::Query {
            name: name.into(),
            value: pattern,
        };
        assert_eq!(holds(condition, &request), expected, "{shown}");
    }
    let absent = Condition::Query {
        name: String::new(),
        value: ValuePattern::Present,
    };
    assert!(!holds(absent, &Sent::default()));
}

#[test]
fn cookies() {
    let fields = vec![
        ("Cookie", "beta=1; id=\"x=y\";empty="),
        ("cookie", "late=yes"),
    ];
    let request = Sent {
        fields,
        ..Sent::default()
    };
    for (name, pattern, expected) in [
        ("beta", value("1"), true),
        ("Beta", value("1"), false),
        ("id", value("x=y"), true),
        ("empty", value(""), true),
        ("late", value("y*"), true),
        ("eta", ValuePattern::Present, false),
    ] {
        let shown = format!("{name} {pattern:?}");
        let condition = Condition::Cookie {
            name: name.into(),
            value: pattern,
        };
        assert_eq!(holds(condition, &request), expected, "{shown}");
    }
}

#[test]
fn a_host_condition_takes_any_of_its_patterns() {
    let hosts = || {
        let patterns = ["a.example", "*.b.example"];
        Condition::Host(
            patterns
                .iter()
                .map(|it| HostPattern::new(it).unwrap())
                .collect(),
        )
    };
    for (host, expected) in [
        ("A.example", true),
        ("x.b.example", true),
        ("c.example", false),
    ] {
        assert_eq!(
            holds(
                hosts(),
                &Sent {
                    host,
                    ..Sent::default()
                }
            ),
            expected,
            "{host}"
        );
    }
}

#[test]
fn balance_keys() {
    let request = |path, query, cookie| Sent {
        path,
        query,
        fields: vec![("Cookie", cookie), ("X-User", "anna")],
        ..Sent::default()
    };
    let one = request("/a", "page=1", "id=7");
    let keys = [
        BalanceKey::Uri,
        BalanceKey::Header("x-user".into()),
        BalanceKey::Cookie("id".into()),
        BalanceKey::Query("page".into()),
        BalanceKey::Client,
    ];
    let same = |key: &BalanceKey, other: &Sent| key.hash(&one) == key.hash(other);
    let shares = |other: &Sent| keys.each_ref().map(|key| same(key, other));
    assert_eq!(shares(&request("/a", "page=1", "id=7")), [true; 5]);
    let elsewhere = shares(&request("/b", "page=1", "id=7"));
    assert_eq!(elsewhere, [false, true, true, true, true]);
    let of_another = shares(&request("/a", "page=1", "id=8"));
    assert_eq!(of_another, [true, true, false, true, true]);
    let next_page = shares(&request("/a", "page=2", "id=7"));
    assert_eq!(next_page, [false, true, true, false, true]);
    let none = BalanceKey::Header("x-none".into());
    assert_eq!(none.hash(&one), BalanceKey::Uri.hash(&one));
}
