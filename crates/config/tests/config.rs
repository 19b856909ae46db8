//! Configurations as users write them: golden diagnostics, layers, examples,
//! and the pages that derive from the types.
//!
//! `BLESS=1 cargo test -p evenkeel-config --test config` rewrites the expected diagnostics and
//! the derived pages. Look at the difference before committing it.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_cache::rules::ClientDirectives;
use evenkeel_config::{
    AccessLogFormat, Action, BalanceKey, Check, CodedRequests, Colour, Disk, Files, Loaded,
    NameLookup, ProbeRequest, Proxying, Report, Upstream,
};
use evenkeel_net::Address;
use evenkeel_policy::health::HealthSettings;
use evenkeel_policy::queue::Discipline;
use evenkeel_proto::coding::Coding;

/// The candidates of a route, as they were written.
fn written(candidates: &[evenkeel_config::Candidate]) -> Vec<String> {
    candidates.iter().map(ToString::to_string).collect()
}

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn repository() -> &'static Path {
    Path::new(REPOSITORY)
}

fn toml_files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|it| it.extension().is_some_and(|it| it == "toml"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no configuration in {folder}");
    paths
}

fn load_text(text: &str) -> Result<Loaded, Report> {
    evenkeel_config::load_text("test.toml", text, NameLookup::Skip)
}

/// Compares with what stands in `path`, or writes it there when blessing;
/// says whether it was the same.
fn is_as_expected(path: &Path, actual: &str) -> bool {
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, actual).unwrap();
        return true;
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    let same = expected == actual;
    if !same {
        eprintln!("{} differs; it would be:\n{actual}", path.display());
    }
    same
}

#[test]
fn diagnostics_are_as_expected() {
    let mut different = Vec::new();
    for path in toml_files("crates/config/tests/config") {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        let report = match evenkeel_config::load_text(&name, &bytes, NameLookup::Skip) {
            Ok(loaded) => loaded.warnings,
            Err(report) => report,
        };
        let shown = report.render(Colour::Off);
        assert!(!shown.is_empty(), "{name} has nothing to report");
        if !is_as_expected(&path.with_extension("expected"), &shown) {
            different.push(name);
        }
    }
    assert!(
        different.is_empty(),
        "diagnostics differ: {different:?} (BLESS=1 accepts them)"
    );
}

/// Each folder is a configuration of several files. Paths start at this crate's folder, because
/// the expected output shows them.
#[test]
fn diagnostics_of_several_files_are_as_expected() {
    let mut different = Vec::new();
    let mut folders: Vec<_> = fs::read_dir("tests/config/include")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    assert!(!folders.is_empty());
    for folder in folders {
        let path = folder.join("evenkeel.toml");
        let shown = match evenkeel_config::load(&path, &[], [], NameLookup::Skip) {
            Ok(loaded) => {
                let files: Vec<_> = loaded.files.iter().map(|it| it.display()).collect();
                let routes: Vec<_> = loaded.config.routes.iter().map(|it| &it.name).collect();
                format!(
                    "files: {files:#?}\nfolders: {:#?}\nroutes: {routes:?}\n{}",
                    loaded.folders,
                    loaded.warnings.render(Colour::Off)
                )
            }
            Err(report) => report.render(Colour::Off),
        };
        if !is_as_expected(&folder.join("expected"), &shown) {
            different.push(folder);
        }
    }
    assert!(
        different.is_empty(),
        "diagnostics differ: {different:?} (BLESS=1 accepts them)"
    );
}

#[test]
fn an_include_stands_in_a_file() {
    let folder = Folder::new("include-set");
    fs::write(folder.0.join("evenkeel.toml"), PLAIN).unwrap();
    let shown = folder.load(&["include=[\"a.toml\"]"], &[]).unwrap_err();
    let shown = shown.to_string();
    assert!(shown.contains("`include` works only in a file"), "{shown}");
}

/// A broken file, a link that leads nowhere, a folder, and one that may not be read.
#[test]
fn an_included_file_that_cannot_be_read_is_a_mistake() {
    let folder = Folder::new("include-broken");
    let text = format!("include = ['conf.d/*.toml', 'more']\n{PLAIN}");
    fs::write(folder.0.join("evenkeel.toml"), text).unwrap();
    let conf = folder.0.join("conf.d");
    fs::create_dir_all(conf.join("folder.toml")).unwrap();
    fs::create_dir_all(folder.0.join("more")).unwrap();
    fs::write(
        conf.join("half.toml"),
        "[upstream.other]\nendpoints = [\"10.",
    )
    .unwrap();
    fs::write(conf.join("empty.toml"), "").unwrap();
    std::os::unix::fs::symlink("nowhere", conf.join("link.toml")).unwrap();
    let shown = folder.load(&[], &[]).unwrap_err().render(Colour::Off);
    for expected in [
        "conf.d/half.toml:2:18",
        "conf.d/link.toml: No such file or directory",
        "more: Is a directory",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    assert!(!shown.contains("folder.toml"), "{shown}");
}

#[test]
fn what_is_waited_for_is_neither_included_nor_loaded_again() {
    let folder = Folder::new("include-pipes");
    let made = std::process::Command::new("mkfifo")
        .arg(folder.0.join("pipe"))
        .status();
    assert!(made.unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(folder.0.join("socket")).unwrap();
    std::os::unix::fs::symlink("pipe", folder.0.join("link")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.0.join("zero")).unwrap();
    let main = folder.0.join("main.toml");
    let again = |path: &Path| {
        let loaded = evenkeel_config::load_again(path, &[], []);
        loaded.unwrap_err().render(Colour::Off)
    };
    let first = || {
        let loaded = evenkeel_config::load(&main, &[], [], NameLookup::Skip);
        loaded.unwrap_err().render(Colour::Off)
    };
    for name in ["pipe", "socket", "link", "zero"] {
        let refused = format!("{name}: it is not a file");
        let shown = again(&folder.0.join(name));
        assert!(shown.contains(&refused), "{shown}");
        fs::write(&main, format!("include = ['{name}']")).unwrap();
        for shown in [again(&main), first()] {
            assert!(shown.contains(&refused), "{shown}");
            assert!(shown.contains("main.toml:1:12"), "{shown}");
        }
    }
    // `local.toml` is named nowhere: it is found beside the file.
    fs::write(&main, PLAIN).unwrap();
    std::os::unix::fs::symlink("pipe", folder.0.join("local.toml")).unwrap();
    for shown in [again(&main), first()] {
        assert!(shown.contains("local.toml: it is not a file"), "{shown}");
    }
}

#[test]
fn every_example_loads_without_a_warning() {
    for path in toml_files("examples") {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.display().to_string();
        match evenkeel_config::load_text(&name, &text, NameLookup::Skip) {
            Ok(loaded) => assert_eq!(loaded.warnings.render(Colour::Off), "", "{name}"),
            Err(report) => panic!("{report}"),
        }
    }
}

#[test]
fn the_effective_configuration_is_one_that_loads_to_itself() {
    for path in toml_files("examples") {
        assert_loads_to_itself(
            &path.display().to_string(),
            &fs::read_to_string(&path).unwrap(),
        );
    }
}

/// Loads `text` as the file `name`; its effective configuration must load and
/// mean the same, but for secrets.
fn assert_loads_to_itself(name: &str, text: &str) -> Loaded {
    let load = |text: &str| {
        let loaded = evenkeel_config::load_text(name, text, NameLookup::Skip);
        loaded.unwrap_or_else(|report| panic!("{report}"))
    };
    let first = load(text);
    let second = load(&first.effective);
    assert_eq!(first.effective, second.effective, "{name}");
    let secrets = first.config.upstreams.iter().flat_map(|it| &it.probe);
    let secrets = secrets.filter_map(|it| asked(&it.check));
    let secrets: Vec<_> = secrets.flat_map(|it| &it.headers).collect();
    let shown = [&first.config, &second.config].map(|config| {
        let shown = format!("{config:#?}");
        let shown = secrets.iter().fold(shown, |shown, (_, secret)| {
            shown.replace(&format!("{secret:?}"), "\"***\"")
        });
        if secrets.is_empty() {
            shown
        } else {
            shown.replace(&format!("hash: {}", config.hash), "hash: 0")
        }
    });
    assert_eq!(shown[0], shown[1], "{name}");
    first
}

#[test]
fn derived_pages_are_up_to_date() {
    let docs = repository().join("docs");
    let page = is_as_expected(
        &docs.join("configuration.md"),
        &evenkeel_config::reference(),
    );
    let schema = is_as_expected(
        &docs.join("configuration.schema.json"),
        &evenkeel_config::schema(),
    );
    assert!(
        page && schema,
        "run `make docs` (BLESS=1 cargo test --test config)"
    );
}

#[test]
fn the_example_of_the_reference_page_loads() {
    let page = evenkeel_config::reference();
    let example = page
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    load_text(example.expect("an example")).unwrap();
}

const PLAIN: &str = r#"
[[listener]]
name = "web"
bind = ":8080"

[[route]]
name = "all"
upstream = "app"

[upstream.app]
endpoints = ["10.0.0.1:80"]
"#;

#[test]
fn defaults_are_filled_in() {
    let config = load_text(PLAIN).unwrap().config;
    assert!(config.server.workers >= 1);
    assert_eq!(config.server.drain_timeout, Duration::from_secs(30));
    let listener = &config.listeners[0];
    assert_eq!(listener.bind, Address::Tcp("0.0.0.0:8080".parse().unwrap()));
    assert_eq!(listener.limits.head_bytes, 32 * 1024);
    assert_eq!(listener.limits.target_bytes, 8 * 1024);
    assert_eq!(listener.limits.body_bytes, None);
    assert_eq!(listener.timeouts.head, Duration::from_secs(10));
    assert_eq!(config.access_logs.of(0, None), None);
    let upstream = &config.upstreams[0];
    assert_eq!(upstream.retries, 2);
    assert_eq!(upstream.pool.max_idle, 1024);
    assert_eq!(upstream.timeouts.connect, Duration::from_secs(1));
    assert_eq!(upstream.timeouts.total, None);
    assert_eq!(upstream.endpoints[0].weight, 1);
    assert_eq!(upstream.endpoints[0].name, "10.0.0.1:80");
    assert_eq!(upstream.key, BalanceKey::Uri);
    let queue = &upstream.queue;
    assert_eq!((queue.settings.max, queue.settings.hold), (1000, true));
    assert_eq!(queue.settings.discipline, Discipline::Fifo);
    assert_eq!(queue.timeout, Duration::from_secs(10));
    assert_eq!((queue.answer.status, queue.answer.retry_after_s), (503, 1));
    assert_eq!(queue.answer.body, None);
    assert_eq!(upstream.health, HealthSettings::default());
    assert!(upstream.probe.is_none() && upstream.lanes.is_empty());
    assert!(matches!(
        config.routes[0].action,
        Action::Upstream(Proxying {
            lane: None,
            priority: 0,
            ..
        })
    ));
}

/// The request of a probe by HTTP.
fn asked(check: &Check) -> Option<&ProbeRequest> {
    match check {
        Check::Http(request) => Some(request),
        _ => None,
    }
}

/// The upstream `app` of [`PLAIN`] with these lines added.
fn upstream_with(lines: &str) -> Upstream {
    let loaded = assert_loads_to_itself("test.toml", &format!("{PLAIN}{lines}"));
    loaded.config.upstreams.into_iter().next().unwrap()
}

#[test]
fn the_queue_of_an_example() {
    let path = repository().join("examples/queue.toml");
    let text = fs::read_to_string(&path).unwrap();
    let config = assert_loads_to_itself(path.to_str().unwrap(), &text).config;
    let queue = &config.upstreams[0].queue;
    assert_eq!(queue.settings.max, 200);
    assert_eq!(queue.settings.discipline, Discipline::Codel);
    assert_eq!(queue.settings.target, Duration::from_millis(250));
    assert_eq!(queue.timeout, Duration::from_secs(20));
    let (content_type, body) = queue.answer.body.as_ref().unwrap();
    assert_eq!(content_type, "image/gif");
    assert_eq!(
        *body,
        fs::read(repository().join("examples/busy.gif")).unwrap()
    );
    assert_eq!(queue.answer.retry_after_s, 5);
}

#[test]
fn the_lanes_of_an_example() {
    let text = fs::read_to_string(repository().join("examples/lanes.toml")).unwrap();
    let config = assert_loads_to_itself("lanes.toml", &text).config;
    let lane = &config.upstreams[0].lanes[0];
    assert_eq!((lane.name.as_str(), lane.max_in_flight), ("slow", 4));
    let kept = config.routes.iter().map(|route| match &route.action {
        Action::Upstream(proxying) => (proxying.lane, proxying.priority),
        _ => panic!("{route:?}"),
    });
    assert_eq!(
        kept.collect::<Vec<_>>(),
        [(Some(0), 0), (None, 9), (None, 5)]
    );
}

#[test]
fn the_probes_of_an_example() {
    let text = fs::read_to_string(repository().join("examples/health.toml")).unwrap();
    let config = assert_loads_to_itself("health.toml", &text).config;
    let [api, app, search] = &config.upstreams[..] else {
        panic!("{:?}", config.upstreams)
    };
    let probe = api.probe.as_ref().unwrap();
    let request = asked(&probe.check).unwrap();
    assert_eq!(probe.port, Some(9090));
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("GET", "/status?brief=1")
    );
    assert_eq!(request.host.as_deref(), Some("api.example.com"));
    assert_eq!(
        request.headers,
        [("X-Probe-Token".into(), "a-shared-word".into())]
    );
    assert_eq!(request.expect, [200..=200, 300..=399]);
    assert_eq!(request.body.as_deref(), Some("\"database\": \"up\""));
    let request = asked(&app.probe.as_ref().unwrap().check).unwrap();
    assert_eq!(request.expect, [200..=399]);
    assert_eq!((request.method.as_str(), &request.host), ("GET", &None));
    assert_eq!(app.health.slow_start, Some(Duration::from_secs(30)));
    let probe = search.probe.as_ref().unwrap();
    assert_eq!(
        (&probe.check, search.health.guard),
        (&Check::Connect, false)
    );
    assert_eq!(probe.interval, Duration::from_secs(5));
    assert_eq!(probe.timeout, Duration::from_secs(1));
}

#[test]
fn probes_of_other_protocols() {
    let check = |keys: &str| {
        upstream_with(&format!("health = {{ {keys} }}"))
            .probe
            .unwrap()
            .check
    };
    let pong = Check::Bytes {
        send: b"PING\r\n".into(),
        receive: b"+PONG".into(),
    };
    assert_eq!(check(r#"send = "PING\r\n", receive = "+PONG""#), pong);
    let hex = "protocol = 'tcp', send_hex = '50494e47 0D0a', receive_hex = '2b 50 4f 4e 47'";
    assert_eq!(check(hex), pong);
    let Check::Bytes { send, .. } = check("receive = 'ready'") else {
        panic!("no bytes")
    };
    assert!(send.is_empty());
    assert_eq!(check("protocol = 'tcp'"), Check::Connect);
    let request = check("protocol = 'http'");
    let request = asked(&request).unwrap();
    assert_eq!(
        (&*request.path, &request.expect[..]),
        ("/", &[200..=399][..])
    );
    let user = || "evenkeel".to_owned();
    assert_eq!(
        check("protocol = 'postgres'"),
        Check::Postgres { user: user() }
    );
    assert_eq!(check("protocol = 'mysql'"), Check::Mysql { user: user() });
    let user = "monitor".to_owned();
    assert_eq!(
        check("protocol = 'mysql', user = 'monitor'"),
        Check::Mysql { user }
    );
    assert_eq!(check("protocol = 'redis'"), Check::Redis);
    assert_eq!(check("protocol = 'smtp'"), Check::Smtp);
    assert_eq!(check("protocol = 'tls'"), Check::Tls { server_name: None });
    let server_name = Some("db.example.com".to_owned());
    assert_eq!(
        check("protocol = 'tls', host = 'db.example.com'"),
        Check::Tls { server_name }
    );
}

#[test]
fn defaults_that_depend_on_other_keys() {
    let probe = |lines| upstream_with(lines).probe.unwrap();
    let timeout = probe("health = { interval = '300ms' }").timeout;
    assert_eq!(timeout, Duration::from_millis(300));
    let health = upstream_with("health = { rise = 1, fall = 1 }").health;
    assert_eq!((health.rise, health.fall), (1, 1));
    let settings = upstream_with("queue.discipline = 'adaptive-lifo'")
        .queue
        .settings;
    assert_eq!(settings.discipline, Discipline::AdaptiveLifo);
    assert_eq!(settings.target, Duration::from_millis(100));
    assert_eq!(upstream_with("queue.max = 0").queue.settings.max, 0);
    let shown = assert_loads_to_itself("test.toml", PLAIN).effective;
    assert!(
        !shown.contains("target = \"100ms\"") && !shown.contains("key ="),
        "{shown}"
    );
    assert!(
        shown.contains("queue = { max = 1000, timeout = \"10s\", hold = true"),
        "{shown}"
    );
    assert_eq!(upstream_with("").buffer, None);
    let standard = upstream_with("buffer = true").buffer.unwrap();
    assert_eq!((standard.request_bytes, standard.min_rate), (65_536, 1_024));
    let limited = "{ address = '10.0.0.1:80', max_in_flight = 2 }";
    let limited = PLAIN.replace("\"10.0.0.1:80\"", limited);
    let limited = assert_loads_to_itself("test.toml", &limited).config;
    assert_eq!(limited.upstreams[0].buffer, Some(standard));
    assert_eq!(limited.server.buffer_memory, 256 << 20);
    let buffer = upstream_with("buffer.response = '1MiB'").buffer.unwrap();
    assert_eq!(
        (buffer.request_bytes, buffer.response_bytes),
        (65_536, 1 << 20)
    );
    assert_eq!(upstream_with("buffer = false").buffer, None);
    let statuses = "health = { path = '/', expect = '204' }";
    assert_eq!(asked(&probe(statuses).check).unwrap().expect, [204..=204]);
    let answer = |file: &str| {
        let line = format!("queue.answer = {{ file = '{file}', retry_after = '1500ms' }}");
        upstream_with(&line).queue.answer
    };
    let gif = answer("../../examples/busy.gif");
    assert_eq!(gif.body.unwrap().0, "image/gif");
    assert_eq!(gif.retry_after_s, 2);
    let toml = answer("Cargo.toml").body.unwrap();
    assert_eq!(toml.0, "application/octet-stream");
}

/// The files of each route of a configuration that loads to itself; `None` for a
/// route without.
fn files_of(name: &str, text: &str) -> Vec<Option<Files>> {
    let routes = assert_loads_to_itself(name, text).config.routes;
    let files = routes.into_iter().map(|route| match route.action {
        Action::Files(files) => Some(*files),
        _ => None,
    });
    files.collect()
}

/// The one route of a configuration, with these lines in it.
fn route_with(lines: &str) -> String {
    format!(
        "[[listener]]\nbind=':1'\n[[route]]\n{lines}\n[upstream.app]\n\
         endpoints=[{{ address='10.0.0.1:80', max_in_flight=4 }}]\nlanes={{ slow=2 }}"
    )
}

#[test]
fn defaults_of_files() {
    for lines in ["files = '/srv/img'", "files = { root = '/srv/img' }"] {
        let files = files_of("test.toml", &route_with(lines));
        let files = files[0].as_ref().unwrap();
        assert_eq!(files.root, Path::new("/srv/img"));
        assert_eq!(
            (files.strip.as_str(), &files.not_found, files.fallback),
            ("", &None, None)
        );
        assert_eq!(written(&files.candidates), ["$path"]);
        assert_eq!(files.index, ["index.html"]);
        assert!(!files.is_listed && !files.shows_hidden);
        assert!(files.types.is_empty() && files.cache_control.is_empty());
        assert_eq!(files.default_type, "application/octet-stream");
        assert!(files.precompressed.is_empty() && files.compression.is_none());
        let overload = &files.overload;
        assert_eq!((overload.status, overload.retry_after_s), (503, 1));
        assert_eq!(overload.body, None);
    }
    let disk = load_text(&route_with("files = '/'")).unwrap().config.disk;
    let standard = Disk {
        in_flight: 4,
        queue_max: 1000,
        queue_timeout: Duration::from_secs(1),
        open_files: 8192,
        check_interval: Duration::from_secs(1),
    };
    assert_eq!(disk, standard);
}

#[test]
fn files_as_written() {
    let text = route_with(
        "lane = 'slow'\npriority = 3\n[route.files]\nroot = 'site'\nstrip = '/img/'\nindex = []\n\
         try = ['$path', '$path.html', '/index.html']\nupstream = 'app'\nnot_found = '/404.html'\n\
         listing = true\nhidden = true\ntypes = { webp = 'image/webp', a = 'x/y' }\n\
         default_type = 'text/plain; charset=utf-8'\nprecompressed = ['br', 'zstd', 'gzip']\n\
         compress = { types = ['Text/'], min = 0, max = '2MiB', codings = ['gzip', 'br'] }\n\
         cache_control = { '/z/*' = 'max-age=1', '/a/**.css' = 'max-age=2', '**' = 'no-cache' }\n\
         overload = { status = 429, retry_after = '2s', file = '../../examples/busy.gif' }",
    );
    let files = files_of("test.toml", &text).remove(0).unwrap();
    assert_eq!(files.root, std::env::current_dir().unwrap().join("site"));
    assert_eq!(files.strip, "/img");
    assert_eq!(
        written(&files.candidates),
        ["$path", "$path.html", "/index.html"]
    );
    assert!(files.index.is_empty());
    let proxying = Proxying {
        upstream: 0,
        lane: Some(0),
        priority: 3,
    };
    assert_eq!(files.fallback, Some(proxying));
    assert_eq!(files.not_found.as_deref(), Some("/404.html"));
    assert!(files.is_listed && files.shows_hidden);
    let own = [("webp", "image/webp"), ("a", "x/y")];
    assert_eq!(
        files.types,
        own.map(|(ending, own)| (ending.into(), own.into()))
    );
    assert_eq!(files.default_type, "text/plain; charset=utf-8");
    let value = |path: &[u8]| {
        let mut pairs = files.cache_control.iter();
        let found = pairs.find(|(pattern, _)| pattern.matches(path));
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(value(b"/z/a.css"), Some("max-age=1"));
    assert_eq!(value(b"/a/b/c.css"), Some("max-age=2"));
    assert_eq!(value(b"/"), Some("no-cache"));
    assert_eq!(
        files.precompressed,
        [Coding::Brotli, Coding::Zstd, Coding::Gzip]
    );
    let compression = files.compression.unwrap();
    assert_eq!(compression.types, ["text/"]);
    assert_eq!(compression.codings, [Coding::Gzip, Coding::Brotli]);
    assert_eq!(
        (compression.min_bytes, compression.max_bytes),
        (0, 2 * 1024 * 1024)
    );
    let overload = files.overload;
    assert_eq!((overload.status, overload.retry_after_s), (429, 2));
    assert_eq!(overload.body.unwrap().0, "image/gif");
}

#[test]
fn what_compresses_nothing_is_a_mistake() {
    for lines in ["types = []", "codings = []"] {
        let text = route_with(&format!(
            "files = {{ root = '.', compress = {{ {lines} }} }}"
        ));
        let shown = load_text(&text).unwrap_err().to_string();
        assert!(shown.contains("nothing would be compressed"), "{shown}");
    }
    let files = |compress| {
        let text = route_with(&format!("files = {{ root = '.', compress = {compress} }}"));
        files_of("test.toml", &text).remove(0).unwrap()
    };
    assert!(files("false").compression.is_none());
    let with_all = |compress| format!("{:?}", files(compress).compression.unwrap());
    assert_eq!(with_all("true"), with_all("{}"));
}

#[test]
fn what_compresses_no_response_is_a_mistake() {
    let load = |lines: &str| load_text(&route_with(&format!("upstream = 'app'\n{lines}")));
    for lines in ["compress.types = []", "compress.codings = []"] {
        let shown = load(lines).unwrap_err().to_string();
        assert!(shown.contains("nothing would be compressed"), "{shown}");
    }
    let route = |lines| load(lines).unwrap().config.routes.remove(0);
    assert!(route("").compression.is_none());
    assert!(route("compress = false").compression.is_none());
    let with_all = |lines| format!("{:?}", route(lines).compression.unwrap());
    assert_eq!(with_all("compress = true"), with_all("compress = {}"));
    assert_eq!(route("").coded_requests, CodedRequests::Pass);
    let refusing = route("coded_requests = 'refuse'").coded_requests;
    assert_eq!(refusing, CodedRequests::Refuse);
    let compression = route("compress = { types = ['Text/'], min = 0, br_level = 6 }").compression;
    let compression = compression.unwrap();
    assert_eq!(compression.types, ["text/"]);
    assert_eq!((compression.min_bytes, compression.br_level), (0, 6));
}

#[test]
fn the_files_of_an_example() {
    let path = repository().join("examples/files.toml");
    let text = fs::read_to_string(&path).unwrap();
    let routes = files_of(path.to_str().unwrap(), &text);
    let [Some(images), None, Some(downloads), Some(app)] = &routes[..] else {
        panic!("{routes:?}")
    };
    assert_eq!(images.overload.body.as_ref().unwrap().0, "image/gif");
    assert!(downloads.is_listed && downloads.strip == "/download");
    assert_eq!(written(&app.candidates), ["$path", "/index.html"]);
    let compression = app.compression.as_ref().unwrap();
    let types = &compression.types;
    for gains in ["text/", "application/javascript", "image/svg+xml"] {
        assert!(types.iter().any(|it| it == gains), "{gains}");
    }
    let codings = [Coding::Zstd, Coding::Brotli, Coding::Gzip];
    assert_eq!(compression.codings, codings);
    assert_eq!(
        (compression.min_bytes, compression.max_bytes),
        (1024, 1024 * 1024)
    );
}

#[test]
fn a_folder_that_is_not_there_is_a_warning() {
    let folder = Folder::new("roots");
    let path = folder.0.join("evenkeel.toml");
    fs::write(
        &path,
        route_with("files = { root = 'site', upstream = 'app' }"),
    )
    .unwrap();
    let warnings = |lookup| {
        let loaded = evenkeel_config::load(&path, &[], [], lookup).unwrap();
        loaded.warnings.to_string()
    };
    assert!(!warnings(NameLookup::Skip).contains("no folder"));
    let shown = warnings(NameLookup::System);
    let looked_for = format!(
        "the folder {} does not exist",
        folder.0.join("site").display()
    );
    assert!(shown.contains(&looked_for), "{shown}");
    fs::write(folder.0.join("site"), "a file").unwrap();
    let is_none = format!("{} is not a folder", folder.0.join("site").display());
    assert!(warnings(NameLookup::System).contains(&is_none));
    fs::remove_file(folder.0.join("site")).unwrap();
    fs::create_dir(folder.0.join("site")).unwrap();
    assert!(!warnings(NameLookup::System).contains("no folder"));
}

/// Their balancers may not be there yet; whether they are is not what these
/// tests are about.
#[test]
fn options_of_single_balancers() {
    let report = |lines: &str| match load_text(&format!("{PLAIN}{lines}")) {
        Ok(_) => String::new(),
        Err(report) => report.to_string(),
    };
    let refuses = "so a queue is never used";
    let peak = "balance = 'fair'\nfair = { weight_mode = 'peak', status = 503 }\n";
    for queue in ["queue = {}", "queue = { hold = true }", "queue.max = 5"] {
        let shown = report(&format!("{peak}{queue}"));
        assert!(
            shown.contains(refuses) && shown.contains("`peak` is chosen here"),
            "{shown}"
        );
    }
    for queue in ["", "queue.max = 0"] {
        let shown = report(&format!("{peak}{queue}"));
        assert!(
            !shown.contains("refuses") && !shown.contains("status"),
            "{shown}"
        );
    }
    for balance in ["carp", "consistent-hash"] {
        for key in [
            "'uri'",
            "'client'",
            "{ header = 'X-User' }",
            "{ query = 'a b' }",
        ] {
            let shown = report(&format!("balance = '{balance}'\nkey = {key}"));
            assert!(!shown.contains("key"), "{shown}");
        }
    }
}

#[test]
fn a_file_is_read_from_the_folder_of_the_configuration() {
    let folder = Folder::new("files");
    let lines = "queue.answer = { status = 429, file = 'pages/busy.html' }";
    fs::write(folder.0.join("evenkeel.toml"), format!("{PLAIN}{lines}")).unwrap();
    let shown = folder.load(&[], &[]).unwrap_err().to_string();
    let looked_for = folder.0.join("pages/busy.html");
    assert!(shown.contains(&looked_for.display().to_string()), "{shown}");
    assert!(shown.contains("evenkeel.toml:12:39"), "{shown}");
    fs::create_dir(folder.0.join("pages")).unwrap();
    let shown = folder.load(&["upstream.app.queue.answer.file=pages"], &[]);
    assert!(shown.unwrap_err().to_string().contains("directory"));
    fs::write(&looked_for, vec![b'a'; 1024 * 1024 + 1]).unwrap();
    let shown = folder.load(&[], &[]).unwrap_err().to_string();
    assert!(shown.contains("larger than 1 MiB"), "{shown}");
    fs::write(&looked_for, "busy").unwrap();
    let answer = folder.load(&[], &[]).unwrap().config.upstreams[0]
        .queue
        .answer
        .clone();
    assert_eq!(answer.status, 429);
    assert_eq!(
        answer.body,
        Some(("text/html; charset=utf-8".into(), b"busy".to_vec()))
    );
    // In another folder, by variable: an absolute path is kept.
    let path = looked_for.display().to_string();
    let variable = ("EVENKEEL_UPSTREAM__APP__QUEUE__ANSWER__FILE", path.as_str());
    assert!(folder.load(&[], &[variable]).is_ok());
}

#[test]
fn a_route_stores_by_default_what_says_so_itself() {
    let text = PLAIN.replace("upstream = \"app\"", "upstream = \"app\"\ncache = true");
    let config = assert_loads_to_itself("cache", &text).config;
    let [store] = &config.caches[..] else {
        panic!("{:?}", config.caches);
    };
    assert_eq!((&*store.name, store.memory_bytes), ("default", 64 << 20));
    assert!(store.disk.is_none() && store.shared.is_none());
    let cache = config.routes[0].cache.as_ref().unwrap();
    assert_eq!((cache.store, cache.min_uses, cache.waiters), (0, 1, 10_000));
    assert_eq!(cache.wait, Duration::from_secs(10));
    assert!(cache.finish && cache.reports_status && cache.purge_from.is_none());
    assert!(cache.bypass.is_empty());
    // The same as where no route has settings.
    let defaults = evenkeel_cache::Rules::default();
    assert_eq!(format!("{:?}", cache.rules), format!("{defaults:?}"));
    assert!(load_text(PLAIN).unwrap().config.caches.is_empty());
}

#[test]
fn the_caches_of_an_example() {
    let text = fs::read_to_string(repository().join("examples/cache.toml")).unwrap();
    let config = assert_loads_to_itself("cache.toml", &text).config;
    let [store] = &config.caches[..] else {
        panic!("{:?}", config.caches);
    };
    assert_eq!((&*store.name, store.memory_bytes), ("main", 512 << 20));
    let disk = store.disk.as_ref().unwrap();
    assert_eq!(disk.path, Path::new("/var/cache/evenkeel"));
    assert_eq!(disk.size_bytes, 50 << 30);
    let pages = config.routes[0].cache.as_ref().unwrap();
    let rules = &pages.rules;
    assert_eq!(rules.key.query.ignore.len(), 3);
    assert!(rules.key.query.only.is_empty() && !rules.key.query.is_sorted);
    let seconds = Duration::from_secs;
    assert_eq!(rules.ttl, [(200, seconds(60)), (404, seconds(10))]);
    assert_eq!(rules.stale_while_revalidate, seconds(30));
    assert_eq!(rules.stale_if_error, seconds(3600));
    assert_eq!(pages.bypass.len(), 1);
    let from = pages.purge_from.as_ref().unwrap();
    assert!(from.contains(Some("10.1.2.3".parse().unwrap())));
    assert!(!from.contains(Some("192.0.2.1".parse().unwrap())) && !from.contains(None));
    assert!(config.routes[1].cache.is_some() && config.routes[2].cache.is_none());
}

#[test]
fn caches_as_written() {
    let text = format!(
        "{}\n[cache.zoo]\n[cache.default]\nmemory = '2MiB'\n\
         [cache.main]\nshared = 'redis://me:s3cret@10.0.0.5/2'\n\
         disk = {{ path = 'files', size = '1GiB' }}\n",
        route_with(
            "upstream = 'app'\ncache = { store = 'main', heuristic = true, min_uses = 3, \
             store_cookies = true, client_directives = 'ignore', max_object = '1KiB', waiters = 0, \
             wait = '0s', finish = false, cache_status = false, \
             key = { query = { only = ['id', 'p*'], sort = true }, headers = ['X-A'], cookies = ['Lang'] }, \
             bypass = [{ client = '10.0.0.0/8', header = { x-a = '1' } }, { query = { q = true } }] }"
        )
    );
    let loaded = load_text(&text).unwrap();
    let again = load_text(&loaded.effective).unwrap();
    assert_eq!(again.effective, loaded.effective);
    let shown = format!("{}{:?}", loaded.effective, loaded.config);
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("redis://me:***@10.0.0.5/2"), "{shown}");
    let config = loaded.config;
    let names: Vec<_> = config.caches.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["default", "main", "zoo"]);
    assert_eq!(config.caches[0].memory_bytes, 2 << 20);
    let disk = config.caches[1].disk.as_ref().unwrap();
    assert!(disk.path.is_absolute() && disk.path.ends_with("files"));
    let shared = config.caches[1].shared.as_ref().unwrap();
    assert_eq!(shared.password.as_ref().unwrap().0, "s3cret");
    assert_eq!((shared.user.as_deref(), shared.database), (Some("me"), 2));
    let cache = config.routes[0].cache.as_ref().unwrap();
    assert_eq!((cache.store, cache.min_uses, cache.waiters), (1, 3, 0));
    assert_eq!(cache.wait, Duration::ZERO);
    assert!(!cache.finish && !cache.reports_status);
    assert_eq!(cache.bypass.len(), 2);
    assert_eq!(cache.bypass[0].conditions().len(), 2);
    // A socket has no password, whatever its name is.
    let text = text.replace("redis://me:s3cret@10.0.0.5/2", "unix:/run/a@b");
    let shown = assert_loads_to_itself("sockets", &text).effective;
    assert!(shown.contains("unix:/run/a@b"), "{shown}");
    let rules = &cache.rules;
    assert!(rules.heuristic && rules.stores_cookies && rules.key.query.is_sorted);
    assert_eq!(rules.client_directives, ClientDirectives::Ignored);
    assert_eq!(rules.max_body_bytes, 1024);
    assert_eq!(rules.key.headers, ["x-a"]);
    assert_eq!(rules.key.cookies, ["Lang"]);
}

#[test]
fn upstreams_are_sorted_and_routes_find_them() {
    let text = "[[listener]]\nbind=':1'\n[[route]]\nmatch={path='/z'}\nupstream='z'\n\
                [[route]]\nupstream='a'\n[upstream.z]\nendpoints=['1.1.1.1:1']\n\
                [upstream.a]\nendpoints=['1.1.1.1:1']";
    let config = load_text(text).unwrap().config;
    let names: Vec<_> = config.upstreams.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["a", "z"]);
    assert!(matches!(&config.routes[0].action, Action::Upstream(it) if it.upstream == 1));
    assert!(matches!(&config.routes[1].action, Action::Upstream(it) if it.upstream == 0));
    assert_eq!(config.routes[1].name, "route-2");
}

#[test]
fn listeners_and_routes_say_otherwise_about_their_access_logs() {
    // The log of the route, as destination, format and selection.
    let shown = |global: &str, listener: &str, route: &str| {
        let text = format!(
            "{global}\n[[listener]]\nbind=':1'\n{listener}\n[[route]]\nanswer={{}}\n{route}"
        );
        let logs = load_text(&text).unwrap().config.access_logs;
        let log = &logs.logs[logs.of(0, Some(0))?];
        let selection = log.selection;
        let format = match &log.format {
            AccessLogFormat::Template(_) => "template".to_owned(),
            format => format!("{format:?}").to_lowercase(),
        };
        Some(format!(
            "{} {format} {} {:?} {}",
            logs.destinations[log.destination],
            selection.errors,
            selection.slower_than.unwrap_or_default(),
            selection.sample
        ))
    };
    let global = "access_log = { path = '/l', format = 'json' }";
    for (global, listener, route, expected) in [
        ("", "", "", None),
        (
            "access_log = true",
            "",
            "",
            Some("on standard output combined false 0ns 1"),
        ),
        ("access_log = false", "", "", None),
        (global, "", "", Some("/l json false 0ns 1")),
        (global, "access_log = false", "", None),
        (
            global,
            "access_log = false",
            "access_log = true",
            Some("on standard output combined false 0ns 1"),
        ),
        (global, "", "access_log = false", None),
        (
            global,
            "access_log = true",
            "access_log = true",
            Some("/l json false 0ns 1"),
        ),
        (
            global,
            "access_log = { path = '/m' }",
            "access_log = { template = '{status}' }",
            Some("/m template false 0ns 1"),
        ),
        (
            global,
            "access_log = { syslog = '/dev/log' }",
            "",
            Some("/dev/log json false 0ns 1"),
        ),
        (
            "",
            "access_log = { format = 'httplog' }",
            "",
            Some("on standard output httplog false 0ns 1"),
        ),
        (
            "access_log = { only = 'errors', slower_than = '1s' }",
            "",
            "",
            Some("on standard output combined true 1s 0"),
        ),
        (
            "access_log = { sample = 0.5 }",
            "access_log = { only = 'errors' }",
            "",
            Some("on standard output combined true 0ns 0"),
        ),
        (
            "access_log = { only = 'errors', sample = 0.25 }",
            "access_log = { path = '/m' }",
            "access_log = { only = 'all' }",
            Some("/m combined false 0ns 1"),
        ),
        (
            "access_log = { slower_than = '1s' }",
            "access_log = { slower_than = '0s' }",
            "",
            Some("on standard output combined false 0ns 1"),
        ),
    ] {
        assert_eq!(
            shown(global, listener, route).as_deref(),
            expected,
            "{global} / {listener} / {route}"
        );
    }
}

#[test]
fn a_log_is_one_file_however_its_path_is_written() {
    let text = "access_log = { path = 'logs/l' }\n[[listener]]\nbind=':1'\n\
                access_log = { path = './logs//l' }\n[[listener]]\nbind=':2'\n\
                access_log = { path = 'logs/./l' }\n[[route]]\nanswer={}";
    let logs = load_text(text).unwrap().config.access_logs;
    assert_eq!(logs.destinations.len(), 1, "{:?}", logs.destinations);
}

#[test]
fn access_logs_that_are_alike_are_one() {
    let text = "access_log = { path = '/l' }\n[[listener]]\nbind=':1'\n[[listener]]\nbind=':2'\n\
                access_log = { format = 'json' }\n[[route]]\nanswer={}\naccess_log = { path = '/l' }";
    let logs = load_text(text).unwrap().config.access_logs;
    assert_eq!(logs.destinations.len(), 1);
    assert_eq!(logs.logs.len(), 2);
    assert_eq!(logs.of(0, Some(0)), logs.of(0, None));
    assert_eq!(logs.of(1, Some(0)), logs.of(1, None));
    assert_loads_to_itself("logs", text);
    assert_loads_to_itself(
        "conditions",
        "access_log = { slower_than = '0s', syslog = 'udp://a:1' }\n[[listener]]\nbind=':1'\n[[route]]\nanswer={}",
    );
}

#[test]
fn an_access_log_without_keys_stays_one() {
    let global = "access_log = { path = '/l', format = 'json' }";
    for (listener, route) in [
        ("access_log = {}", ""),
        ("access_log = false", "access_log = {}"),
    ] {
        let text = format!(
            "{global}\n[[listener]]\nbind=':1'\n{listener}\n[[route]]\nmatch = {{ header = {{}} }}\nanswer={{}}\n{route}"
        );
        let loaded = assert_loads_to_itself("empty", &text);
        assert!(loaded.config.access_logs.of(0, Some(0)).is_some(), "{text}");
        let effective = loaded.effective;
        assert!(effective.contains("\naccess_log = {}\n"), "{effective}");
        assert!(!effective.contains("match"), "{effective}");
    }
}

#[test]
fn no_output_has_a_secret() {
    let folder = Folder::new("secrets");
    let text = format!(
        "{PLAIN}health = {{ path = '/', headers = {{ X-Key = 'hidden-1' }} }}\n\
         [otlp]\nurl = 'http://127.0.0.1:4318'\nheaders = {{ Authorization = 'hidden-2' }}\n"
    );
    fs::write(folder.0.join("evenkeel.toml"), &text).unwrap();
    // Overridden, and as secret as before.
    let local = "[otlp.headers]\nauthorization = 'hidden-3'\n";
    fs::write(folder.0.join("local.toml"), local).unwrap();
    let load = |set: &str, variable: &str| {
        folder.load(&[set], &[("EVENKEEL_OTLP__HEADERS__X_TOKEN", variable)])
    };
    let loaded = load("otlp.headers.X-Token='hidden-4'", "hidden-5").unwrap();
    let headers = &loaded.config.otlp.as_ref().unwrap().headers;
    assert!(
        headers
            .iter()
            .any(|(_, value)| value == "hidden-5" || value == "hidden-4")
    );
    let layers: Vec<_> = loaded.warnings.layers().collect();
    assert!(
        layers
            .iter()
            .any(|it| it.starts_with("--set otlp.headers.X-Token="))
    );
    let shown = format!("{}{layers:?}{}", loaded.effective, loaded.warnings);
    assert!(!shown.contains("hidden-"), "{shown}");
    assert!(shown.contains("Authorization = \"***\""), "{shown}");
    assert!(shown.contains("X-Key = \"***\""), "{shown}");
    // A mistake in a secret does not name it either.
    let report = load("otlp.headers.X-Token=\"hidden-\u{e4}\"", "hidden-5").unwrap_err();
    let shown = report.render(Colour::Off);
    assert!(
        shown.contains("this is not text of printable ASCII"),
        "{shown}"
    );
    assert!(!shown.contains("hidden-"), "{shown}");
    // A value that a later layer overrides is a secret too.
    let sets = [
        "otlp.headers.X='hidden-6'",
        "otlp.headers.X=hidden-7",
        "listener.0.bind=:x",
    ];
    let shown = folder.load(&sets, &[]).unwrap_err();
    let shown = format!("{shown}{:?}", shown.layers().collect::<Vec<_>>());
    assert!(!shown.contains("hidden-"), "{shown}");
    assert!(shown.contains("--set listener.0.bind=:x"), "{shown}");
}

/// The report of mistakes in this text, in which no secret may be.
#[track_caller]
fn without_secret(report: &Report, mistake: &str) -> String {
    let layers: Vec<_> = report.layers().collect();
    let shown = format!("{report}{layers:?}");
    assert!(shown.contains(mistake), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
    shown
}

#[test]
fn a_mistake_shows_no_secret() {
    for (lines, mistake) in [
        // The name of the table is wrong, or that of one above it.
        ("[otlp]\nheader = { X = 's3cret' }", "unknown key `header`"),
        ("[otlp]\nauth = 's3cret'", "unknown key `auth`"),
        ("[otlp]\nauth = ['s3cret']", "unknown key `auth`"),
        ("[oltp.headers]\nX = 's3cret'", "unknown key `oltp`"),
        (
            "heath = { headers = { X = \"s3cret\" } }",
            "unknown key `heath`",
        ),
        (
            "heath = [{ headers = { X = \"s3cret\" } }]",
            "unknown key `heath`",
        ),
        ("headers = 'X: s3cret'", "unknown key `headers`"),
        (
            "health = { path = '/', heders = { X = 's3cret' } }",
            "unknown key `heders`",
        ),
        ("[server]\nheaders = 's3cret'", "unknown key `headers`"),
        // Its type is.
        ("[otlp]\nheaders = 'X: s3cret'", "this is text"),
        ("[otlp]\nheaders = [{ X = 's3cret' }]", "this is a list"),
        ("[[otlp]]\nheaders = { X = 's3cret' }", "this is a list"),
        ("[otlp.headers]\nX = ['s3cret']", "this is a list"),
        // A document that is no TOML.
        (
            "[otlp.headers]\nX = 's3cret-1'\nX = \"s3cret-2\"",
            "is defined twice",
        ),
        (
            "[otlp]\nheaders = { X = 's3cret-1', X = \"s3cret-2\" }",
            "is defined twice",
        ),
        (
            "[otlp]\nheaders = { X = 's3cret-1' }\nheaders = { X = \"s3cret-2\" }",
            "is defined twice",
        ),
        ("[otlp]\nheaders = { X = \"s3cret }", "invalid basic string"),
        ("[otlp]\nheaders = { X = s3cret }", "must be quoted"),
        ("[otlp]\nheaders = { X = Basic s3cret= }", "must be quoted"),
        ("[otlp]\nheaders = { X: \"s3cret\" }", "error"),
        ("[otlp]\nheaders = { X \"s3cret\" }", "error"),
        ("[otlp.headers]\nX \"s3cret\"", "error"),
        ("[otlp.headers]\n\"s3cret\"", "error"),
        ("[otlp.headers]\nX = \"\"\"\\\ns3cret==", "error"),
        ("[otlp.headers]\nX = \"s3cret\\q\"", "error"),
        ("otlp]\nheaders = { X = \"s3cret }", "error"),
        // A secret in a URL that has a mistake.
        (
            "[cache.c]\nshared = 'redis://u:s3cret@h/x'",
            "not a valid URL of a Redis server",
        ),
        (
            "[cache.c]\nshared = 'redis://u:a/s3cret#@h:x'",
            "not a valid URL of a Redis server",
        ),
        (
            "[cache.c]\nshared = 'u:s3cret@10.0.0.5:6379'",
            "not a valid URL of a Redis server",
        ),
        (
            "[cache.c]\nshared = ['redis://u:s3cret@h']",
            "this is a list",
        ),
        ("[otlp\nheaders = { X = \"s3cret }", "error"),
        (
            "health = { path = '/', headers = { X = 's3cret } }",
            "error",
        ),
    ] {
        let report = load_text(&format!("{PLAIN}{lines}\n")).unwrap_err();
        without_secret(&report, mistake);
    }
}

#[test]
fn a_broken_line_keeps_what_is_no_secret() {
    for (lines, line) in [
        ("[otlp.headers]\nX = 's3cret' 'b'", "X = '******' '*'"),
        (
            "[otlp]\nheaders = { X = s3cret }",
            "headers = { * = ****** }",
        ),
        ("[[listener]]\nbind = :80", "bind = :80"),
        ("[upstream.app", "[upstream.app"),
    ] {
        let report = load_text(&format!("{PLAIN}{lines}\n")).unwrap_err();
        let shown = without_secret(&report, "error");
        assert!(shown.contains(&format!(" | {line}\n")), "{line}: {shown}");
    }
}

#[test]
fn a_mistake_in_a_variable_or_a_set_shows_no_secret() {
    let folder = Folder::new("broken-secrets");
    fs::write(folder.0.join("evenkeel.toml"), PLAIN).unwrap();
    for (name, value, mistake) in [
        ("EVENKEEL_OTLP__HEADERS", "{ A = \"s3cret\"", "this is text"),
        (
            "EVENKEEL_UPSTREAM__APP",
            "{ health = { headers = { A = \"s3cret\"",
            "this is text",
        ),
        (
            "EVENKEEL_UPSTREAM__APP__HEATH",
            "{ headers = { A = \"s3cret\"",
            "unknown key `heath`",
        ),
        ("EVENKEEL_OLTP__HEADERS__X", "s3cret", "unknown key `oltp`"),
        ("EVENKEEL_OTLP__HEADERS__X__Y", "s3cret", "this is a table"),
        ("EVENKEEL_OTLP__HEADER__X", "s3cret", "unknown key `header`"),
    ] {
        let report = folder.load(&[], &[(name, value)]).unwrap_err();
        without_secret(&report, mistake);
    }
    for (set, mistake) in [
        ("otlp={ headers = { A = \"s3cret\"", "this is text"),
        ("upstream=[{ headers = { A = \"s3cret\"", "this is text"),
        ("oltp={ headers = { A = \"s3cret\"", "unknown key `oltp`"),
        ("otlp.headers..X=s3cret", "an empty key"),
        ("otlp.headers.X s3cret", "expected `key=value`"),
        ("otlp.headers.\"X=s3cret", "expected `key=value`"),
        ("listener.0.headers.X=s3cret", "unknown key `headers`"),
        ("listener.7.headers.X=s3cret", "there is no item `7`"),
    ] {
        let report = folder.load(&[set], &[]).unwrap_err();
        without_secret(&report, mistake);
    }
}

#[test]
fn no_output_has_the_password_of_a_url() {
    let redirect = "redirect = 'https://user:hidden@example.com$path'";
    let text = format!("[[listener]]\nbind=':1'\n[[route]]\n{redirect}\n");
    let loaded = load_text(&text).unwrap();
    let effective = loaded.effective;
    assert!(
        effective.contains("https://user:***@example.com$path"),
        "{effective}"
    );
    let collector = format!("{text}[otlp]\nurl = 'http://user:hidden@127.0.0.1:4318'\n");
    let endpoint = "[upstream.app]\nendpoints = ['http://user:hidden@127.0.0.1']\n";
    for text in [collector, format!("{text}{endpoint}")] {
        let shown = load_text(&text).unwrap_err().to_string();
        assert!(!shown.contains("hidden"), "{shown}");
        assert!(shown.contains("user:******@127.0.0.1"), "{shown}");
        assert!(shown.contains("`http://user:***@127.0.0.1"), "{shown}");
    }
}

#[test]
fn a_token_that_everybody_may_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("token");
    let token = folder.0.join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    let text = format!("{PLAIN}[status]\ntoken_file = 'token'\n");
    fs::write(folder.0.join("evenkeel.toml"), text).unwrap();
    for (mode, expected) in [(0o600, false), (0o640, false), (0o604, true), (0o644, true)] {
        fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        let shown = folder.load(&[], &[]).unwrap().warnings.to_string();
        assert_eq!(
            shown.contains("every user of this machine can read the token"),
            expected,
            "{mode:o}: {shown}"
        );
    }
}

#[test]
fn an_own_key_of_sticky_cookies_that_everybody_may_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("sticky-key");
    let key = folder.0.join("state.json.sticky-key");
    fs::write(&key, [7; 32]).unwrap();
    let text = |sticky: &str| {
        format!(
            "[server]\nstate_file = 'state.json'\n[[listener]]\nbind = ':8080'\n\
             [[route]]\nupstream = 'app'\nsticky = {sticky}\n\
             [upstream.app]\nendpoints = ['127.0.0.1:1']\n"
        )
    };
    for (sticky, mode, expected) in [
        ("'s'", 0o600, false),
        ("'s'", 0o644, true),
        ("{ cookie = 's', keys = 'own.key' }", 0o644, false),
    ] {
        fs::write(folder.0.join("own.key"), [9; 32]).unwrap();
        let own = fs::Permissions::from_mode(0o600);
        fs::set_permissions(folder.0.join("own.key"), own).unwrap();
        fs::write(folder.0.join("evenkeel.toml"), text(sticky)).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let shown = folder.load(&[], &[]).unwrap().warnings.to_string();
        let what = "every user of this machine can read the key of sticky cookies beside";
        assert_eq!(shown.contains(what), expected, "{sticky} {mode:o}: {shown}");
    }
}

#[test]
fn a_status_page_at_a_public_address_is_warned_of() {
    for (bind, expected) in [
        ("127.0.0.1:8404", false),
        ("[::1]:8404", false),
        ("10.1.2.3:8404", false),
        ("172.31.0.1:8404", false),
        ("192.168.0.1:8404", false),
        ("100.64.0.1:8404", false),
        ("[fd00::1]:8404", false),
        ("[fe80::1]:8404", false),
        ("unix:/run/status.sock", false),
        (":8404", true),
        ("[::]:8404", true),
        ("203.0.113.7:8404", true),
        ("100.128.0.1:8404", true),
        ("[2001:db8::1]:8404", true),
    ] {
        let loaded = load_text(&format!("{PLAIN}[status]\nbind = '{bind}'\n")).unwrap();
        let shown = loaded.warnings.to_string();
        let is_warned = shown.contains("the status page listens at a public address");
        assert_eq!(is_warned, expected, "{bind}: {shown}");
    }
}

/// A folder of this test's own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn load(&self, sets: &[&str], variables: &[(&str, &str)]) -> Result<Loaded, Report> {
        let sets: Vec<_> = sets.iter().map(|it| (*it).to_owned()).collect();
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        evenkeel_config::load(
            &self.0.join("evenkeel.toml"),
            &sets,
            variables,
            NameLookup::Skip,
        )
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn each_layer_wins_over_the_one_before() {
    let folder = Folder::new("layers");
    fs::write(folder.0.join("evenkeel.toml"), PLAIN).unwrap();
    let retries = |sets: &[&str], variables: &[(&str, &str)]| {
        folder
            .load(sets, variables)
            .unwrap_or_else(|it| panic!("{it}"))
            .config
            .upstreams[0]
            .retries
    };
    let variable = ("EVENKEEL_UPSTREAM__APP__RETRIES", "5");
    let others = ("EVENKEEL_PORT", "tcp://10.0.0.1:80");
    assert_eq!(retries(&[], &[]), 2);
    fs::write(folder.0.join("local.toml"), "[upstream.app]\nretries = 4").unwrap();
    assert_eq!(retries(&[], &[others]), 4);
    assert_eq!(retries(&[], &[variable]), 5);
    assert_eq!(retries(&["upstream.app.retries=6"], &[variable]), 6);
    assert_eq!(
        retries(&["upstream.app.retries=6", "upstream.app.retries=7"], &[]),
        7
    );
}

#[test]
fn items_are_reached_by_name_and_by_index() {
    let folder = Folder::new("items");
    fs::write(folder.0.join("evenkeel.toml"), PLAIN).unwrap();
    let local = "[[listener]]\nname='web'\nbacklog=7\n[[listener]]\nname='more'\nbind=':2'";
    fs::write(folder.0.join("local.toml"), local).unwrap();
    let sets = [
        "listener.web.bind=:9090",
        "listener.1.backlog=8",
        "listener.admin.bind=127.0.0.1:1",
        "upstream.app.endpoints=[\"10.0.0.9:80\", { address = \"10.0.0.8:80\", weight = 3 }]",
        "upstream.app.endpoints.1.weight=4",
        "upstream.app.timeouts.connect=250ms",
        "upstream.\"x.y\".balance=random",
    ];
    let variables = [
        ("EVENKEEL_ROUTE__ALL__MATCH__PATH", "/a/*"),
        ("EVENKEEL_SERVER__WORKERS", "3"),
    ];
    let loaded = folder
        .load(&sets, &variables)
        .unwrap_or_else(|report| panic!("{report}"));
    let config = &loaded.config;
    let binds: Vec<_> = config
        .listeners
        .iter()
        .map(|it| (it.name.as_str(), it.accepting.backlog))
        .collect();
    assert_eq!(binds, [("web", 7), ("more", 8), ("admin", 4096)]);
    assert_eq!(
        config.listeners[0].bind,
        Address::Tcp("0.0.0.0:9090".parse().unwrap())
    );
    assert_eq!(config.server.workers, 3);
    assert_eq!(config.upstreams[0].endpoints[1].weight, 4);
    assert_eq!(
        config.upstreams[0].timeouts.connect,
        Duration::from_millis(250)
    );
    assert_eq!(config.upstreams[1].name, "x.y");
    assert!(
        loaded.effective.contains("path = \"/a/*\""),
        "{}",
        loaded.effective
    );
}

#[test]
fn a_mistake_names_the_layer_it_comes_from() {
    let folder = Folder::new("places");
    fs::write(folder.0.join("evenkeel.toml"), PLAIN).unwrap();
    fs::write(folder.0.join("local.toml"), "[server]\nworker = 2").unwrap();
    let sets = [
        "upstream.app.balance=randm",
        "listener.web.bind.x=1",
        "listener.7.bind=:1",
        "nothing",
    ];
    let variables = [("EVENKEEL_SERVER__DRAIN_TIMEOUT", "10")];
    let shown = folder
        .load(&sets, &variables)
        .unwrap_err()
        .render(Colour::Off);
    for expected in [
        "local.toml:2:1",
        "did you mean `workers`?",
        "environment variable:1:32",
        "EVENKEEL_SERVER__DRAIN_TIMEOUT=10",
        "--set:1:22",
        "did you mean `random`?",
        "cannot set `x` within text",
        "there is no item `7`",
        "expected `key=value`",
    ] {
        assert!(
            shown.contains(expected),
            "{expected} is missing in:\n{shown}"
        );
    }
}

#[test]
fn a_variable_with_one_underscore_is_warned_of() {
    let folder = Folder::new("one-underscore");
    fs::write(folder.0.join("evenkeel.toml"), PLAIN).unwrap();
    for (name, expected) in [
        ("EVENKEEL_SERVER_WORKERS", "`EVENKEEL_SERVER__WORKERS`"),
        (
            "EVENKEEL_SERVER_DRAIN_TIMEOUT",
            "`EVENKEEL_SERVER__DRAIN_TIMEOUT`",
        ),
        (
            "EVENKEEL_LISTENER_WEB_BIND",
            "`EVENKEEL_LISTENER__WEB__BIND`",
        ),
        (
            "EVENKEEL_UPSTREAM_MY_APP_QUEUE_MAX",
            "`EVENKEEL_UPSTREAM__MY_APP__QUEUE__MAX`",
        ),
        ("EVENKEEL_ACCESS_LOG", "`--set access_log=VALUE`"),
    ] {
        let loaded = folder.load(&[], &[(name, "2")]).unwrap();
        let shown = loaded.warnings.to_string();
        let title = format!("the variable `{name}` sets nothing");
        assert!(shown.contains(&title), "{shown}");
        assert!(shown.contains(expected), "{shown}");
    }
    // As Kubernetes sets them for a service of this name.
    for name in [
        "EVENKEEL_CONFIG",
        "EVENKEEL_PORT",
        "EVENKEEL_SERVICE_HOST",
        "EVENKEEL_PORT_80_TCP_ADDR",
        "EVENKEEL_STATUS_SERVICE_PORT",
        "EVENKEEL_UPSTREAM_PORT_80_TCP_PROTO",
    ] {
        let loaded = folder.load(&[], &[(name, "2")]).unwrap();
        assert_eq!(loaded.warnings.to_string(), "", "{name}");
    }
}

#[test]
fn an_item_that_no_file_has_is_warned_of() {
    let folder = Folder::new("new-item");
    fs::write(folder.0.join("evenkeel.toml"), PLAIN).unwrap();
    let shown = |set: &str| {
        let loaded = folder.load(&[set], &[]).unwrap();
        loaded.warnings.to_string()
    };
    let said = shown("listener.other.bind=:9");
    assert!(
        said.contains("no file has an item `other`, so this would add a new one"),
        "{said}"
    );
    assert_eq!(shown("listener.0.bind=:9"), "");
}

/// A line of a mistake, where no part of it is a secret.
#[test]
fn a_mistake_shows_what_is_no_secret() {
    for (lines, line) in [
        ("health = '/healthz'", "health = '/healthz'"),
        ("access_log = { path = '-' }", "access_log = { path = '-' }"),
        ("via = yes", "via = yes"),
        ("via = true;", "via = true;"),
        ("retries = 2 3", "retries = 2 3"),
        ("health = 's3cret'", "health = '******'"),
        (
            "health = '/S3cret0123456789'",
            "health = '*****************'",
        ),
        ("[status]\ntoken = 's3cret'", "token = '******'"),
        (
            "[server]\nadmin_password = 's3cret'",
            "admin_password = '******'",
        ),
        ("via = true; token = s3cret", "via = ****; ***** = ******"),
    ] {
        let report = load_text(&format!("{PLAIN}{lines}\n")).unwrap_err();
        let shown = report.to_string();
        assert!(shown.contains(&format!(" | {line}\n")), "{line}: {shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}

#[test]
fn names_are_looked_up_when_asked_for() {
    let load = |host: &str, lookup| {
        let endpoint = format!("endpoints = [\"{host}\"]");
        let text = PLAIN.replace("endpoints = [\"10.0.0.1:80\"]", &endpoint);
        evenkeel_config::load_text("test.toml", &text, lookup)
    };
    let endpoint =
        |host, lookup| load(host, lookup).unwrap().config.upstreams[0].endpoints[0].clone();
    assert_eq!(
        endpoint("localhost:81", NameLookup::Skip).name,
        "localhost:81"
    );
    // The running process knows them, not the configuration.
    let loaded = load("localhost:81", NameLookup::System).unwrap();
    assert_eq!(loaded.warnings.to_string(), "");
    let upstream = &loaded.config.upstreams[0];
    assert!(upstream.endpoints.is_empty() && upstream.queue.settings.grows);
    assert_eq!(upstream.sources[0].text(), "localhost:81");
    // Two dots in a row are no name, so that no server is asked.
    for lookup in [NameLookup::Skip, NameLookup::Later] {
        let loaded = load("no..host:81", lookup).unwrap();
        assert_eq!(loaded.warnings.to_string(), "");
    }
    let shown = load("no..host:81", NameLookup::System).unwrap();
    let shown = shown.warnings.to_string();
    assert!(
        shown.contains("warning: look up `no..host`") && shown.contains("test.toml:11:14"),
        "{shown}"
    );
}

#[test]
fn a_file_that_is_not_there_is_a_mistake() {
    let folder = Folder::new("missing");
    let shown = folder.load(&[], &[]).unwrap_err().to_string();
    assert!(shown.contains("evenkeel.toml: No such file"), "{shown}");
}

/// A configuration that is cut off or mistyped at any character either loads, or gives a
/// report that can be shown. `EVENKEEL_TEST_SAMPLE=N` tries every Nth character only.
#[test]
fn a_damaged_configuration_is_reported() {
    let typed = [
        "\"", "[", "]", "{", "}", "=", ".", "é", "\n", "\0", "9", "#",
    ];
    let every = std::env::var("EVENKEEL_TEST_SAMPLE");
    let every = every.map_or(1, |every| every.parse().expect("a number"));
    for (number, path) in toml_files("examples").into_iter().enumerate() {
        let text = fs::read_to_string(&path).unwrap();
        for (at, c) in text.char_indices().step_by(every) {
            let (before, after) = (&text[..at], &text[at + c.len_utf8()..]);
            let damaged = format!("{before}{}{after}", typed[(at + number) % typed.len()]);
            for text in [before, &damaged] {
                let name = path.to_str().unwrap();
                if let Err(report) = evenkeel_config::load_text(name, text, NameLookup::Skip) {
                    assert!(report.mistake_count() > 0);
                    assert!(report.render(Colour::Off).contains("error: "), "{text}");
                }
            }
        }
    }
}

/// The changes from one configuration to another, one a line.
fn changes(before: &Loaded, now: &Loaded) -> String {
    let changes = evenkeel_config::diff(&before.config, &now.config);
    changes.iter().map(|it| format!("{it}\n")).collect()
}

#[test]
fn diffs_are_as_expected() {
    let mut are_same = true;
    for path in toml_files("crates/config/tests/diff") {
        let text = path.to_str().unwrap();
        let Some(name) = text.strip_suffix(".before.toml") else {
            continue;
        };
        let read = |end: &str| load_text(&fs::read_to_string(format!("{name}{end}")).unwrap());
        let [before, now] = [read(".before.toml"), read(".after.toml")].map(Result::unwrap);
        let expected = format!("{name}.expected");
        are_same &= is_as_expected(Path::new(&expected), &changes(&before, &now));
        assert_eq!(changes(&before, &before), "", "{name}");
    }
    assert!(are_same);
}

#[test]
fn settings_that_were_kept_are_still_to_come() {
    let load = |text: &str| {
        let text = format!("{text}\n[[listener]]\nbind = ':0'\n[[route]]\nanswer = {{}}");
        load_text(&text).unwrap()
    };
    for (before, now, differs) in [
        ("[server]\nworkers = 1", "[server]\nworkers = 3", "workers"),
        ("", "[server]\nworkers = 3", "workers"),
        ("[server]\nworkers = 3", "", "workers"),
        ("", "[status]\nbind = ':8404'", "status"),
        ("[status]\nbind = ':8404'", "", "status"),
        (
            "[status]\nbind = ':8404'",
            "[status]\nbind = ':1'",
            "status",
        ),
    ] {
        let (first, file) = (load(before), load(now));
        let mut kept = load(now);
        assert_eq!(kept.config.keep_fixed(&first.config).len(), 1, "{now}");
        let said = changes(&kept, &file);
        assert!(said.contains(differs) && said.contains("restart"), "{said}");
        assert_eq!(changes(&first, &kept), "", "{before} then {now}");
    }
}

#[test]
fn only_what_holds_is_compared() {
    let load = |text: &str| {
        let text = format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n[upstream.app]\n{text}"
        );
        load_text(&text).unwrap()
    };
    let short = load("endpoints = ['127.0.0.1:1']\nhealth = { path = '/' }");
    let long = load(
        "balance = 'adaptive'\nendpoints = [{ weight = 1, address = '127.0.0.1:1' }]\n\
         health = { method = 'GET', path = '/' }\n[server]\ndrain_timeout = '30s'",
    );
    assert_eq!(changes(&short, &long), "");
    assert_eq!(changes(&long, &short), "");
}

#[test]
fn a_diff_shows_no_secret() {
    let load = |token: &str, password: &str| {
        load_text(&format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nredirect = 'https://me:{password}@example.com/'\n\
             [upstream.app]\nhealth = {{ path = '/', headers = {{ x-token = '{token}' }} }}"
        ))
        .unwrap()
    };
    let told = changes(&load("hunter1", "first"), &load("hunter2", "second"));
    for secret in ["hunter", "first", "second", "\u{10FFFF}"] {
        assert!(!told.contains(secret), "{told}");
    }
    assert_eq!(told.lines().count(), 2, "{told}");
    let config = load("hunter1", "first").config;
    assert!(!format!("{config:?}").contains("hunter1\u{0}"));
}

#[test]
fn many_hosts_are_compared_at_once() {
    use std::fmt::Write as _;
    let load = |hosts: usize, weight: usize| {
        let mut text = String::from("[[listener]]\nbind = ':0'\n");
        for host in 0..hosts {
            let _ = write!(
                text,
                "[[route]]\nmatch = {{ host = 'h{host}.example' }}\nupstream = 'u{host}'\n"
            );
        }
        for host in 0..hosts {
            let port = 1 + host % 60_000;
            let weight = if host == 77 { weight } else { 1 };
            let _ = write!(
                text,
                "[upstream.u{host}]\nendpoints = [{{ address = '10.0.0.1:{port}', weight = {weight} }}]\n"
            );
        }
        load_text(&text).unwrap()
    };
    let (before, now) = (load(10_000, 1), load(10_001, 5));
    let begun = std::time::Instant::now();
    let told = changes(&before, &now);
    let took = begun.elapsed();
    assert_eq!(
        told,
        "route route-10001 is added\nupstream u10000 is added\n\
         upstream u77: endpoint 10.0.0.1:78: weight changes from 1 to 5\n"
    );
    // Unoptimised, beside other tests: a tenth of it else.
    assert!(took < Duration::from_secs(5), "{took:?}");
    eprintln!("compared in {took:?}");
}
