//! nginx and HAProxy over TLS at both ends: as the client of the program, and as its endpoint.

use evenkeel_testkit::process::{Peer, Running};
use evenkeel_testkit::{Proxy, RawClient, TempDir};

use super::Issuing;
use crate::foreign_origins::start_nginx;
use crate::setup::{Site, origin, pattern, test};

/// The program between `front.sock` and `back.sock` of another one, which speaks TLS with it
/// on both sides.
struct Between {
    issuing: Issuing,
    dir: TempDir,
    proxy: Proxy,
}

impl Between {
    fn new() -> Self {
        let issuing = Issuing::new();
        issuing.issue("here", &["here.test"]);
        issuing.issue("back", &["back.test"]);
        let ca = issuing.ca();
        let dir = TempDir::new().unwrap();
        let proxy = Site {
            listener: &issuing.listener(&["here"], ""),
            upstream: &format!("tls = {{ ca = '{ca}', name = 'back.test' }}\n"),
            ..Site::default()
        }
        .start(&[format!("unix:{}", dir.join("back.sock").display())]);
        Between {
            issuing,
            dir,
            proxy,
        }
    }

    /// The path of a socket of the other program.
    fn socket(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Has bodies go both ways, over connections that are kept.
    fn carries(&self, front: &str) {
        let mut client = RawClient::connect_unix(self.dir.join(front)).unwrap();
        let body = pattern(300_000);
        for _ in 0..5 {
            let answer = client.get("/custom-payload?size=3000000").unwrap();
            assert_eq!((answer.status, answer.body.len()), (200, 3_000_000));
            let mut post =
                b"POST /echo HTTP/1.1\r\nHost: here.test\r\nContent-Length: 300000\r\n\r\n"
                    .to_vec();
            post.extend_from_slice(&body);
            assert!(client.ask(post).unwrap().body == body);
        }
    }
}

#[test]
fn nginx_at_both_ends() {
    test(|| {
        let (between, origin) = (Between::new(), origin());
        let (issuing, address) = (&between.issuing, between.proxy.address("web"));
        let back = format!(
            "server {{ listen unix:{} ssl; client_max_body_size 0;
               ssl_certificate {}; ssl_certificate_key {};
               location / {{ proxy_pass http://{}; }} }}",
            between.socket("back.sock"),
            issuing.path("back.crt"),
            issuing.path("back.key"),
            origin.address,
        );
        let front = format!(
            "client_max_body_size 0;
             location / {{ proxy_pass https://{address}; proxy_http_version 1.1;
               proxy_set_header Connection ''; proxy_set_header Host here.test;
               proxy_ssl_verify on; proxy_ssl_trusted_certificate {};
               proxy_ssl_server_name on; proxy_ssl_name here.test; }}",
            issuing.ca(),
        );
        let _nginx = start_nginx(&between.dir, &back, &front);
        between.carries("nginx.sock");
    });
}

#[test]
fn haproxy_at_both_ends() {
    test(|| {
        let (between, origin) = (Between::new(), origin());
        let (issuing, address) = (&between.issuing, between.proxy.address("web"));
        // HAProxy takes a certificate and its key from one file.
        let pem = [issuing.path("back.crt"), issuing.path("back.key")];
        let pem = pem.map(|it| std::fs::read_to_string(it).unwrap()).concat();
        let pem_path = issuing.path("back.pem");
        std::fs::write(&pem_path, pem).unwrap();
        let config = format!(
            "defaults\n mode http\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n\
             frontend front\n bind unix@{}\n default_backend here\n\
             backend here\n server one {address} ssl verify required ca-file {} \
             sni str(here.test) verifyhost here.test\n\
             frontend back\n bind unix@{} ssl crt {pem_path}\n default_backend app\n\
             backend app\n server two {}\n",
            between.socket("front.sock"),
            issuing.ca(),
            between.socket("back.sock"),
            origin.address,
        );
        let front = between.dir.join("front.sock");
        let _haproxy = Running::start_peer(Peer::Haproxy, &between.dir, &config, &front).unwrap();
        between.carries("front.sock");
    });
}
