use super::condition::{
    Any, Client, Cookie, Header, Host, Listener, Method, Not, Path, Query, Scheme, Share,
};
use super::*;

/// A request as a test writes it.
struct Sent {
    listener: usize,
    method: &'static str,
    host: &'static str,
    path: &'static str,
    query: &'static str,
    client: &'static str,
    scheme: &'static str,
    fields: Vec<(&'static str, &'static str)>,
    draw: u64,
    unix_seconds: i64,
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
            scheme: "http",
            fields: Vec::new(),
            draw: 7,
            unix_seconds: 0,
        }
    }
}

pub(super) fn path_regex(text: &str) -> PathPattern {
    let regex = RegexPattern::new(text, Case::Sensitive).unwrap();
    PathPattern::Regex(Box::new(regex))
}

pub(super) fn host_regex(text: &str) -> HostPattern {
    let regex = RegexPattern::new(text, Case::Insensitive).unwrap();
    HostPattern::Regex(Box::new(regex))
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
    fn scheme(&self) -> &'static str {
        self.scheme
    }
    fn draw(&self) -> u64 {
        self.draw
    }
    fn unix_seconds(&self) -> i64 {
        self.unix_seconds
    }
    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let same = move |field: &&(&str, &str)| field.0.eq_ignore_ascii_case(name);
        self.fields
            .iter()
            .filter(same)
            .map(|(_, value)| value.as_bytes())
    }
}

fn holds(condition: impl Into<Condition>, request: &Sent) -> bool {
    let rule = Rule::new(vec![condition.into()]);
    let is_met = rule.is_met_by(request);
    let found = RouteTable::new(vec![rule]).find(request);
    assert_eq!(is_met, found == Ok(0));
    is_met
}

fn value(pattern: &str) -> ValuePattern {
    ValuePattern::new(pattern).unwrap()
}

#[test]
fn schemes_are_told_apart() {
    for (scheme, expected) in [("https", true), ("http", false)] {
        let request = Sent {
            scheme,
            ..Sent::default()
        };
        assert_eq!(holds(Condition::from(Scheme("https")), &request), expected);
    }
}

#[test]
fn the_first_rule_that_matches_wins() {
    let path = |path: &str| Condition::from(Path(vec![PathPattern::new(path).unwrap()]));
    let table = RouteTable::new(vec![
        Rule::new(vec![path("/a/b")]),
        Rule::new(vec![
            path("/a/*"),
            Condition::from(Method(vec!["POST".into()])),
        ]),
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
        ("GET", "/a/x/./y", 2),
        ("GET", "/a//x", 2),
        ("GET", "/x//y/../z", 3),
        ("GET", "/never", 3),
        ("OPTIONS", "*", 3),
    ] {
        let request = Sent {
            method,
            path,
            ..Sent::default()
        };
        assert_eq!(table.find(&request), Ok(expected), "{method} {path}");
    }
}

/// Models of servers, each written without a look at the code under test: what
/// path each of them makes of a target.
mod servers {
    /// Percent-decodes; a name stays as it is.
    fn decoded(path: &str) -> String {
        let mut text = String::new();
        let mut rest = path;
        while let Some(at) = rest.find('%') {
            text.push_str(&rest[..at]);
            let byte = u8::from_str_radix(&rest[at + 1..at + 3], 16).unwrap();
            text.push(char::from(byte));
            rest = &rest[at + 3..];
        }
        text + rest
    }

    /// RFC 3986 §5.2.4, where `is` recognises dot segments.
    fn resolved(path: &str, is: impl Fn(&str, &str) -> bool) -> String {
        let mut kept: Vec<&str> = Vec::new();
        let segments: Vec<_> = path[1..].split('/').collect();
        for (index, segment) in segments.iter().enumerate() {
            let is_dots = is(segment, ".") || is(segment, "..");
            if is(segment, "..") {
                kept.pop();
            }
            if !is_dots {
                kept.push(segment);
            } else if index + 1 == segments.len() {
                kept.push("");
            }
        }
        format!("/{}", kept.join("/"))
    }

    fn merged(path: &str) -> String {
        let mut path = path.to_owned();
        while path.contains("//") {
            path = path.replace("//", "/");
        }
        path
    }

    fn without_parameters(path: &str) -> String {
        let names = path.split('/').map(|it| it.split(';').next().unwrap());
        names.collect::<Vec<_>>().join("/")
    }

    fn is_same(segment: &str, dots: &str) -> bool {
        segment == dots
    }

    /// Node's `new URL(target, base).pathname`.
    fn whatwg(target: &str) -> String {
        let path = target.replace('\\', "/");
        let path = match path.strip_prefix("//") {
            Some(rest) => {
                let rest = rest.trim_start_matches('/');
                rest.find('/').map_or("/", |at| &rest[at..]).to_owned()
            }
            None => path,
        };
        resolved(&path, |segment, dots| {
            segment.to_lowercase().replace("%2e", ".") == dots
        })
    }

    /// Python's `urlsplit(target).path`.
    fn urlsplit(target: &str) -> String {
        match target.strip_prefix("//") {
            Some(rest) => rest.find('/').map_or("", |at| &rest[at..]).to_owned(),
            None => target.to_owned(),
        }
    }

    /// The path that a server makes of a path.
    type Model = fn(&str) -> String;

    pub(super) const ALL: [(&str, Model); 11] = [
        ("as written", str::to_owned),
        ("decoding", decoded),
        ("RFC 3986", |path| resolved(path, is_same)),
        ("RFC 3986, decoding", |path| {
            resolved(&decoded(path), is_same)
        }),
        ("RFC 3986, then decoding", |path| {
            decoded(&resolved(path, is_same))
        }),
        ("Node", whatwg),
        ("Python", urlsplit),
        ("nginx", |path| resolved(&merged(&decoded(path)), is_same)),
        ("IIS", |path| {
            resolved(&merged(&decoded(path).replace('\\', "/")), is_same)
        }),
        ("Tomcat", |path| {
            let path = decoded(&without_parameters(path));
            resolved(&merged(&path.replace('\\', "/")), is_same)
        }),
        ("Jetty", |path| {
            decoded(&without_parameters(&resolved(path, is_same)))
        }),
    ];
}

/// Every path of up to four of these segments.
#[test]
fn no_server_finds_what_a_rule_refuses() {
    const SEGMENTS: [&str; 15] = [
        "@dmin", "%40dmin", "x", "..", ".", "", "%2e%2e", ";", "..;", "%2f", "\\", "%5c", "..%2f",
        "%3b", "%2fx",
    ];
    let patterns = ["/@dmin", "/@dmin/*"].map(|it| PathPattern::new(it).unwrap());
    let table = RouteTable::new(vec![
        Rule::new(vec![Condition::from(Path(patterns.into()))]),
        Rule::default(),
    ]);
    let is_refused = |path: &str| path == "/@dmin" || path.starts_with("/@dmin/");
    let mut paths = vec![String::new()];
    let mut from = 0;
    for _ in 0..4 {
        let until = paths.len();
        for at in from..until {
            let longer = SEGMENTS.iter().map(|it| format!("{}/{it}", paths[at]));
            paths.extend(longer.collect::<Vec<_>>());
        }
        from = until;
    }
    for path in paths.iter().skip(1).map(|it| format!("{it}/s")) {
        let request = Sent {
            path: Box::leak(path.clone().into_boxed_str()),
            ..Sent::default()
        };
        let route = table.find(&request);
        // Longer ones may have too many readings.
        let is_short = path.matches('/').count() < 4;
        if is_short && !path.contains("dmin") {
            assert_eq!(route, Ok(1), "{path}");
        }
        for (name, read) in servers::ALL {
            let read = read(&path);
            let is_passed = route == Ok(1);
            assert!(
                !is_passed || !is_refused(&read),
                "{path}: {name} has {read}"
            );
        }
    }
}

#[test]
fn no_rule_no_route() {
    let none = Err(Unrouted::NoRoute);
    assert_eq!(RouteTable::default().find(&Sent::default()), none);
    let post = Rule::new(vec![Condition::from(Method(vec!["POST".into()]))]);
    assert_eq!(RouteTable::new(vec![post]).find(&Sent::default()), none);
}

#[test]
fn listeners_methods_and_clients() {
    let get = Sent::default();
    assert!(holds(Condition::from(Listener(vec![2, 0])), &get));
    assert!(!holds(Condition::from(Listener(vec![1])), &get));
    assert!(holds(
        Condition::from(Method(vec!["PUT".into(), "GET".into()])),
        &get
    ));
    assert!(holds(Condition::from(Method(vec!["get".into()])), &get));
    assert!(!holds(Condition::from(Method(vec!["GETS".into()])), &get));
    let near = || Condition::from(Client::new(vec!["192.0.2.0/24".parse().unwrap()], vec![]));
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
        let condition = Condition::from(Header {
            name: name.into(),
            value: pattern,
        });
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
        let condition = Condition::from(Query {
            name: name.into(),
            value: pattern,
        });
        assert_eq!(holds(condition, &request), expected, "{shown}");
    }
    let absent = Condition::from(Query {
        name: String::new(),
        value: ValuePattern::Present,
    });
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
        let condition = Condition::from(Cookie {
            name: name.into(),
            value: pattern,
        });
        assert_eq!(holds(condition, &request), expected, "{shown}");
    }
}

#[test]
fn a_host_condition_takes_any_of_its_patterns() {
    let hosts = || {
        let patterns = ["a.example", "*.b.example"];
        Condition::from(Host(
            patterns
                .iter()
                .map(|it| HostPattern::new(it).unwrap())
                .collect(),
        ))
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

/// Random rules and requests.
mod random {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    /// Conditions of every kind, more often the ones that the index uses.
    fn conditions() -> impl Strategy<Value = Condition> {
        prop_oneof![Condition::any(), Condition::any_indexed()]
    }

    pub(super) fn rules(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Rule>> {
        let rule = proptest::collection::vec(conditions(), 0..4).prop_map(Rule::new);
        proptest::collection::vec(rule, count)
    }

    pub(super) fn requests() -> impl Strategy<Value = Sent> {
        let fields = prop_oneof![
            Just(vec![]),
            Just(vec![("X-A", "a")]),
            Just(vec![("X-A", " b "), ("Cookie", "a=ab; b=a"), ("x-a", "")]),
        ];
        let hosts = [
            "a.test",
            "x.A.test",
            "b.test.",
            "y.x.a.test",
            "a.TEST",
            "x.test",
            "test",
            ".test",
            "a.test:80",
            "[::1]",
            "",
        ];
        let paths = [
            "/a",
            "/a/b",
            "/%61//b",
            "/a%2fb/..;",
            "*",
            "/",
            "/a/",
            "/a/b/",
            "/a/b/c",
            "/a%2Fb",
            "/b/../a/b",
            "/a;x/b",
            "/c",
            "//a/b",
            "/x.b",
            "/a%00",
            "/A/b",
            "/a/*/b",
            "//a%2f../b\\..\\c%5c../d;e%2f..\\f;..%5cg%3b%2f/../",
        ];
        let pick = || any::<Index>();
        (
            0..3usize,
            select(&["GET", "POST"][..]),
            pick().prop_map(move |at| *at.get(&hosts)),
            pick().prop_map(move |at| *at.get(&paths)),
            select(&["", "a=a", "a&b=1&a=%61b"][..]),
            select(&["10.1.2.3", "::1", "::ffff:10.0.0.1"][..]),
            select(&["http", "https"][..]),
            (fields, any::<u64>(), 0..1_000_000_i64),
        )
            .prop_map(
                |(
                    listener,
                    method,
                    host,
                    path,
                    query,
                    client,
                    scheme,
                    (fields, draw, unix_seconds),
                )| Sent {
                    draw,
                    unix_seconds,
                    listener,
                    method,
                    host,
                    path,
                    query,
                    client,
                    scheme,
                    fields,
                },
            )
    }

    impl std::fmt::Debug for Sent {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let Sent {
                listener,
                method,
                host,
                path,
                query,
                client,
                scheme,
                fields,
                draw,
                unix_seconds,
            } = self;
            write!(
                f,
                "{listener}: {method} {scheme} {host}{path}?{query} from {client} {fields:?} \
                 drawn {draw} at {unix_seconds}"
            )
        }
    }
}

mod explained {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The rule that is explained to match is the one that is found, where
        /// every reading finds it. Every rule before it has a condition that does
        /// not hold.
        #[test]
        fn agrees_with_find(
            rules in random::rules(0..5),
            request in random::requests(),
        ) {
            let count = rules.len();
            let table = RouteTable::new(rules);
            let trials = table.explain(&request);
            let explained = trials.last().filter(|it| it.matches()).map(|it| it.rule);
            let readings = table.readings(&request);
            let is_ambiguous = readings.iter().any(|it| it.rule != explained);
            prop_assume!(!matches!(table.find(&request), Err(Unrouted::NulInPath)));
            prop_assume!(reading::readings(request.path.as_bytes()).is_ok());
            prop_assert_eq!(
                table.find(&request),
                match (explained, is_ambiguous) {
                    (_, true) => Err(Unrouted::AmbiguousPath),
                    (Some(rule), false) => Ok(rule),
                    (None, false) => Err(Unrouted::NoRoute),
                }
            );
            prop_assert_eq!(trials.len(), explained.map_or(count, |rule| rule + 1));
            for trial in trials.iter().filter(|it| Some(it.rule) != explained) {
                prop_assert!(trial.checks.iter().any(|check| !check.holds));
            }
            for check in trials.iter().flat_map(|it| &it.checks) {
                let is_said = !check.condition.wanted().is_empty();
                prop_assert!(is_said == check.alternatives.is_empty());
            }
        }
    }

    #[test]
    fn says_what_was_wanted_and_found() {
        let table = RouteTable::new(vec![Rule::new(vec![
            Condition::from(Path(vec![
                PathPattern::new("/a\\*/*").unwrap(),
                PathPattern::new("**.p*g").unwrap(),
            ])),
            Condition::from(Host(vec![HostPattern::new("*.a.test").unwrap()])),
            Condition::from(Header {
                name: "X-A".into(),
                value: ValuePattern::new("\\*b").unwrap(),
            }),
        ])]);
        let request = Sent {
            path: "/x/../%61",
            fields: vec![("x-a", " 1 "), ("X-A", "2")],
            ..Sent::default()
        };
        let trials = table.explain(&request);
        let said: Vec<_> = trials[0]
            .checks
            .iter()
            .map(|it| {
                let texts = it.found.iter().map(|it| String::from_utf8_lossy(it));
                let found: Vec<_> = texts.collect();
                let wanted = it.condition.wanted().join("|");
                format!("{} {wanted}: {}", it.condition.subject(), found.join("|"))
            })
            .collect();
        assert_eq!(
            said,
            [
                "host *.a.test: example.com",
                "path /a\\*/*|**.p*g: /a",
                "header X-A \\*b: 1|2",
            ]
        );
    }
}

mod indexed {
    use super::*;
    use proptest::prelude::*;

    /// The search without an index: each rule in order, each condition in order.
    fn find_in_order(rules: &[Rule], facts: &Sent) -> Result<usize, Unrouted> {
        let first = |request: &RoutedRequest<'_, Sent>| {
            let holds = |rule: &Rule| rule.conditions().iter().all(|it| it.holds(request));
            rules.iter().position(holds)
        };
        let request = RoutedRequest::new(facts);
        let found = first(&request);
        let oddity = reading::oddity(facts.path());
        if oddity == Oddity::Nul {
            return Err(Unrouted::NulInPath);
        }
        let has_compared_path = request.normal_path.get().is_some();
        if oddity == Oddity::Ambiguous && has_compared_path {
            let readings = reading::readings(facts.path());
            let readings = readings.map_err(|reading::TooMany| Unrouted::AmbiguousPath)?;
            for path in readings {
                if first(&RoutedRequest::read_as(facts, path)) != found {
                    return Err(Unrouted::AmbiguousPath);
                }
            }
        }
        found.ok_or(Unrouted::NoRoute)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Compares tables in which each host has an index by path, only hosts with many rules
        /// have one, or none has.
        #[test]
        fn finds_what_a_search_in_order_finds(
            rules in random::rules(0..24),
            requests in proptest::collection::vec(random::requests(), 1..16),
            linear_up_to in prop_oneof![Just(0_usize), Just(3), Just(100)],
        ) {
            let table = RouteTable::indexed_above(linear_up_to, rules);
            for request in requests {
                let expected = find_in_order(&table.rules, &request);
                prop_assert_eq!(table.find(&request), expected, "{:?}", request);
            }
        }
    }

    fn looked_at(table: &RouteTable, host: &'static str, path: &'static str) -> (usize, usize) {
        let sent = Sent {
            host,
            path,
            ..Sent::default()
        };
        let request = RoutedRequest::new(&sent);
        let mut count = 0;
        let mut search = Search::new(|number, proof| {
            count += 1;
            table.rules[number as usize].holds_beyond(proof, &request)
        });
        let index = table.index.as_ref().expect("many rules");
        index.offer(&request, &mut search);
        (search.finish().expect("a rule for every host"), count)
    }

    /// Two routes for each of 10,000 hosts, and one behind them all.
    #[test]
    fn of_many_hosts_only_one_is_looked_at() {
        let rule = |host: &str, path: Option<&str>| {
            let mut conditions = vec![Condition::from(Host(vec![HostPattern::new(host).unwrap()]))];
            conditions
                .extend(path.map(|it| Condition::from(Path(vec![PathPattern::new(it).unwrap()]))));
            Rule::new(conditions)
        };
        let hosts = (0..10_000).map(|number| format!("host-{number}.example.com"));
        let mut rules: Vec<_> = hosts
            .flat_map(|host| [rule(&host, Some("/api/*")), rule(&host, None)])
            .collect();
        rules.push(rule("*.example.com", None));
        rules.push(Rule::default());
        let table = RouteTable::new(rules);
        for (host, path, expected) in [
            ("host-0.example.com", "/api/x", (0, 1)),
            ("host-9999.example.com", "/api/x", (19_998, 1)),
            ("HOST-9999.example.com", "/", (19_999, 2)),
            ("other.example.com", "/", (20_000, 1)),
            ("example.com", "/", (20_001, 1)),
        ] {
            assert_eq!(looked_at(&table, host, path), expected, "{host}{path}");
        }
    }

    /// Each of 10,000 rules has two alternatives: the index has it under both.
    #[test]
    fn of_many_alternatives_only_those_that_match_are_looked_at() {
        let host = |text: &str| Condition::from(Host(vec![HostPattern::new(text).unwrap()]));
        let path = |text: &str| Condition::from(Path(vec![PathPattern::new(text).unwrap()]));
        let rules = (0..10_000).map(|number| {
            let of_host = AllOf::new(vec![host(&format!("h{number}.test")), path("/a/*")]);
            let of_path = AllOf::new(vec![host("b.test"), path(&format!("/p{number}/*"))]);
            Rule::new(vec![Any(vec![of_host, of_path]).into()])
        });
        let mut rules: Vec<_> = rules.collect();
        rules.push(Rule::default());
        let table = RouteTable::new(rules);
        for (host, path, expected) in [
            ("h9999.test", "/a/x", (9_999, 1)),
            ("h9999.test", "/b", (10_000, 2)),
            ("b.test", "/p9999/x", (9_999, 1)),
            ("b.test", "/q", (10_000, 1)),
            ("c.test", "/p9999/x", (10_000, 1)),
        ] {
            assert_eq!(looked_at(&table, host, path), expected, "{host}{path}");
        }
    }

    #[test]
    fn of_many_paths_only_those_that_match_are_looked_at() {
        let path = |path: &str| {
            Rule::new(vec![Condition::from(Path(vec![
                PathPattern::new(path).unwrap(),
            ]))])
        };
        let mut rules: Vec<_> = (0..10_000)
            .map(|number| path(&format!("/p{number}/*")))
            .collect();
        rules.push(path("/p7"));
        rules.push(path("/p7/a/b"));
        rules.push(path("/p*/glob"));
        rules.push(path("/*"));
        let table = RouteTable::new(rules);
        for (path, expected) in [
            ("/p0/x", (0, 1)),
            ("/p9999/a/b", (9999, 1)),
            ("/p7", (10_000, 1)),
            // The glob is asked of every path that nothing before it has.
            ("/p10000/glob", (10_002, 1)),
            ("/q", (10_003, 2)),
        ] {
            assert_eq!(looked_at(&table, "a.test", path), expected, "{path}");
        }
    }
}

/// Conditions made of others.
mod nested {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> Condition {
        Path(vec![PathPattern::new(text).unwrap()]).into()
    }

    fn host(text: &str) -> Condition {
        Host(vec![HostPattern::new(text).unwrap()]).into()
    }

    fn any(alternatives: Vec<Vec<Condition>>) -> Condition {
        Any(alternatives.into_iter().map(AllOf::new).collect()).into()
    }

    fn not(alternatives: Vec<Vec<Condition>>) -> Condition {
        Not(alternatives.into_iter().map(AllOf::new).collect()).into()
    }

    fn sent(host: &'static str, path: &'static str) -> Sent {
        Sent {
            host,
            path,
            ..Sent::default()
        }
    }

    #[test]
    fn any_and_not() {
        let either = || {
            any(vec![
                vec![host("a.test"), path("/x/*")],
                vec![host("b.test")],
            ])
        };
        for (host, path, expected) in [
            ("a.test", "/x/1", true),
            ("a.test", "/y", false),
            ("b.test", "/y", true),
            ("c.test", "/x/1", false),
        ] {
            assert_eq!(holds(either(), &sent(host, path)), expected, "{host}{path}");
            let neither = not(vec![vec![either()]]);
            assert_eq!(holds(neither, &sent(host, path)), !expected, "{host}{path}");
        }
        assert!(holds(any(vec![vec![]]), &Sent::default()));
        assert!(!holds(not(vec![vec![]]), &Sent::default()));
    }

    /// A path that servers read in two ways, below a rule that compares it at depth.
    #[test]
    fn every_reading_counts_at_every_depth() {
        let admin = || path("/admin/*");
        for guard in [
            any(vec![vec![admin()], vec![host("none.test")]]),
            any(vec![vec![not(vec![vec![not(vec![vec![admin()]])]])]]),
            any(vec![vec![Path(vec![path_regex("^/admin/")]).into()]]),
        ] {
            for linear_up_to in [0, 8] {
                let rules = vec![Rule::new(vec![guard.clone()]), Rule::default()];
                let table = RouteTable::indexed_above(linear_up_to, rules);
                for (path, expected) in [
                    ("/admin/x", Ok(0)),
                    ("/other", Ok(1)),
                    ("/admin%2Fx", Err(Unrouted::AmbiguousPath)),
                    ("/x/..%2fadmin/y", Err(Unrouted::AmbiguousPath)),
                    ("/other%2Fx", Ok(1)),
                ] {
                    assert_eq!(table.find(&sent("a.test", path)), expected, "{path}");
                }
            }
        }
    }

    #[test]
    fn which_listeners_may_meet_a_rule() {
        let listener = |index| Condition::from(Listener(vec![index]));
        for (conditions, expected) in [
            (vec![], [true, true]),
            (vec![listener(0)], [true, false]),
            (
                vec![any(vec![vec![listener(0), path("/x")]])],
                [true, false],
            ),
            (
                vec![any(vec![vec![listener(0)], vec![path("/x")]])],
                [true, true],
            ),
            (vec![not(vec![vec![listener(0)]])], [false, true]),
            (vec![not(vec![vec![listener(0), path("/x")]])], [true, true]),
            (
                vec![any(vec![vec![not(vec![vec![listener(1)]])]])],
                [true, false],
            ),
        ] {
            let rule = Rule::new(conditions);
            assert_eq!([0, 1].map(|it| rule.may_meet(it)), expected, "{rule:?}");
        }
    }

    proptest! {
        /// No request that came by a listener takes a rule that it may not meet.
        #[test]
        fn a_rule_that_holds_may_be_met(
            rules in random::rules(1..4),
            request in random::requests(),
        ) {
            for rule in rules {
                prop_assert!(!rule.is_met_by(&request) || rule.may_meet(request.listener));
            }
        }
    }

    #[test]
    fn shares_are_drawn_once_for_a_request() {
        let share = |part, salt| Share { part, salt };
        let draws = 20_000;
        let request = |draw| Sent {
            draw,
            ..Sent::default()
        };
        let held = |share: &Share| {
            let held = (0..draws).filter(|&draw| holds(share.clone(), &request(draw)));
            held.collect::<Vec<_>>()
        };
        for part in [0.1, 0.5, 1.0] {
            let (one, other) = (held(&share(part, 1)), held(&share(part, 2)));
            let expected = part * draws as f64;
            assert!((one.len() as f64 - expected).abs() < 300.0, "{}", one.len());
            // Conditions are drawn for apart from one another.
            let both = one.iter().filter(|it| other.contains(it)).count() as f64;
            assert!((both - expected * part).abs() < 300.0, "{both}");
            assert_eq!(one, held(&share(part, 1)));
        }
    }

    #[test]
    fn regexes_of_the_path() {
        let regex = |text: &str| {
            Condition::from(Path(vec![
                PathPattern::new("/plain").unwrap(),
                path_regex(text),
            ]))
        };
        let rule = Rule::new(vec![any(vec![
            vec![host("a.test"), regex("^/u/(?<id>[0-9]+)")],
            vec![host("b.test"), regex("^/(?<id>[a-z])")],
        ])]);
        let regexes = rule.path_regexes();
        assert_eq!(regexes.len(), 2);
        let found = regexes[0].captures(b"/u/12/x");
        let found = found.as_ref().and_then(|it| it.named("id"));
        assert_eq!(found, Some(&b"12"[..]));
        assert!(regexes[0].captures(b"/plain").is_none());
    }
}

mod covered {
    use super::*;
    use proptest::prelude::*;

    fn rule(host: Option<&str>, path: Option<&str>) -> Rule {
        let host = host.map(|it| Host(vec![HostPattern::new(it).unwrap()]).into());
        let path = path.map(|it| Path(vec![PathPattern::new(it).unwrap()]).into());
        Rule::new([host, path].into_iter().flatten().collect())
    }

    #[test]
    fn a_rule_behind_one_that_takes_all_of_it() {
        for (earlier, later, expected) in [
            ((Some("a.test"), None), (Some("a.test"), Some("/x")), true),
            ((Some("*.test"), None), (Some("A.test"), Some("/x")), true),
            ((Some("*.test"), None), (Some("*.b.test"), None), true),
            ((Some("*.b.test"), None), (Some("*.test"), None), false),
            ((None, Some("/a/*")), (None, Some("/a/b/*")), true),
            (
                (None, Some("/a/*")),
                (Some("a.test"), Some("/a/*.png")),
                true,
            ),
            ((None, Some("/a/*")), (None, Some("/a*")), false),
            ((None, Some("/a/*")), (None, Some("/a")), false),
            ((None, Some("/a*")), (None, Some("/ab")), true),
            ((None, Some("/a")), (None, None), false),
            ((Some("a.test"), Some("/a")), (Some("a.test"), None), false),
        ] {
            let rules = vec![rule(earlier.0, earlier.1), rule(later.0, later.1)];
            let is = [Covered { rule: 1, by: 0 }];
            for linear_up_to in [0, 8] {
                let table = RouteTable::indexed_above(linear_up_to, rules.clone());
                let said = table.covered(1);
                assert_eq!(said == is, expected, "{earlier:?} {later:?}: {said:?}");
            }
        }
    }

    #[test]
    fn every_listener_is_as_good_as_none() {
        let of = |listeners: &[usize]| Rule::new(vec![Listener(listeners.to_vec()).into()]);
        let table = RouteTable::new(vec![of(&[0, 1]), Rule::default()]);
        assert_eq!(table.covered(2), [Covered { rule: 1, by: 0 }]);
        assert_eq!(table.covered(3), []);
    }

    /// It costs little to look for them among many.
    #[test]
    fn of_many_rules_few_are_compared() {
        let mut rules: Vec<_> = (0..10_000)
            .map(|number| rule(Some(&format!("h{number}.test")), Some("/api/*")))
            .collect();
        rules.push(rule(Some("h7.test"), Some("/api/x")));
        let table = RouteTable::new(rules);
        let rivals = table
            .index
            .as_ref()
            .unwrap()
            .rivals(table.rules[10_000].conditions(), 10_000);
        assert_eq!(rivals, [7]);
        assert_eq!(
            table.covered(1),
            [Covered {
                rule: 10_000,
                by: 7
            }]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn what_is_covered_is_never_found(
            rules in random::rules(2..12),
            requests in proptest::collection::vec(random::requests(), 1..16),
            linear_up_to in prop_oneof![Just(0_usize), Just(100)],
        ) {
            let table = RouteTable::indexed_above(linear_up_to, rules);
            let covered = table.covered(3);
            for request in requests {
                let found = table.find(&request);
                for it in &covered {
                    prop_assert_ne!(found, Ok(it.rule), "{:?} {:?}", request, it);
                }
            }
        }
    }
}
