//! gRPC's tests of interoperability, with the client and the server of grpc-go; those with a
//! server that breaks rules are in `bad_peer.rs`
//! (<https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md>).

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evenkeel_testkit::Proxy;
use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::process::{repository, run};

use crate::setup::{Site, nobody};

/// Cases that need nothing but a server.
const CASES: [&str; 15] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "rpc_soak",
];

/// The server, which ends with the test.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let address: SocketAddr = nobody().parse().unwrap();
        let mut command = Command::new(repository().join(".go/bin/interop-server"));
        command.arg(format!("--port={}", address.port()));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        until("it listens", || TcpStream::connect(address).is_ok());
        Server { child, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn proxy(server: &Server) -> Proxy {
    let site = Site {
        listener: "h2c = true",
        upstream: "protocol = \"h2\"\nhealth = { protocol = \"tcp\" }",
        ..Site::default()
    };
    site.start(&[server.address.to_string()])
}

#[test]
fn grpc_go_gets_what_it_gets_of_its_own_server() {
    within(Duration::from_secs(120), || {
        let server = Server::start();
        let proxy = proxy(&server);
        for case in CASES {
            let mut command = Command::new(repository().join(".go/bin/interop-client"));
            let web = proxy.socket_addr("web");
            command.arg(format!("--server_host={}", web.ip()));
            command.arg(format!("--server_port={}", web.port()));
            command.arg(format!("--test_case={case}"));
            command.args(["--soak_iterations=200", "--soak_num_threads=10"]);
            let output = run(command, Duration::from_secs(30)).unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{case}: {said}");
        }
    });
}
