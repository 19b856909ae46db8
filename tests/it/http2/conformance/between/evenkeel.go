package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The versions of HTTP, by the suite's numbers.
const (
	http1 = 1
	http2 = 2
	// That of the clients.
	asClients = 0
)

// What Evenkeel is to be.
type site struct {
	// What clients speak, and what the endpoint does.
	version, behind uint64
	endpoint        string
	// PEM, where clients come by TLS.
	chain, key []byte
	// PEM of the authority of clients' certificates, where clients have to show them.
	clientCA []byte
}

// A running Evenkeel.
type proxy struct {
	it     *exec.Cmd
	folder string
	port   int
}

// Starts Evenkeel, which listens when this returns.
func (s site) start(program string) (*proxy, error) {
	folder, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return nil, err
	}
	config, err := s.config(folder)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "evenkeel.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	it := command(program, "run", "--config", file)
	it.Stderr = nil
	stderr, err := it.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := it.Start(); err != nil {
		return nil, err
	}
	late := time.AfterFunc(startLimit, func() { _ = it.Process.Kill() })
	defer late.Stop()
	lines := bufio.NewReader(stderr)
	port, err := portOf(lines)
	if err != nil {
		return nil, err
	}
	go panics(lines)
	return &proxy{it: it, folder: folder, port: port}, nil
}

func (p *proxy) end() {
	end(p.it)
	_ = os.RemoveAll(p.folder)
}

var listens = regexp.MustCompile(`listener web: listening on 127\.0\.0\.1:(\d+)`)

// The port that a line of the event log names.
func listening(line string) (int, bool) {
	found := listens.FindStringSubmatch(line)
	if found == nil {
		return 0, false
	}
	port, err := strconv.Atoi(found[1])
	return port, err == nil
}

// Reads the event log up to the line that names the port.
func portOf(lines *bufio.Reader) (int, error) {
	said := ""
	for {
		line, err := lines.ReadString('\n')
		if port, ok := listening(line); ok {
			return port, nil
		}
		said += line
		if err != nil {
			return 0, fmt.Errorf("Evenkeel does not listen: %s", said)
		}
	}
}

// Passes on what the event log says of panics, and drops the rest.
func panics(lines *bufio.Reader) {
	for {
		line, err := lines.ReadString('\n')
		if strings.Contains(line, "panic") {
			fmt.Fprint(os.Stderr, line)
		}
		if err != nil {
			return
		}
	}
}

func (s site) config(folder string) (string, error) {
	listener := "h2c = true"
	if s.chain != nil {
		clients := ""
		if s.clientCA != nil {
			clients = `, client = { ca = "client.pem" }`
		}
		listener = `tls = { certificates = [{ chain = "site.pem", key = "site.key" }]` + clients + " }"
		if s.version == http1 {
			listener += "\nhttp2 = false"
		}
	}
	files := map[string][]byte{"site.pem": s.chain, "site.key": s.key, "client.pem": s.clientCA}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return "", err
		}
	}
	protocol := "http/1.1"
	if s.behind == http2 {
		protocol = "h2"
	}
	return fmt.Sprintf(`[server]
workers = 2

[access_log]
path = %q

[[listener]]
name = "web"
bind = "127.0.0.1:0"
%s

[[route]]
upstream = "app"

[upstream.app]
endpoints = [%q]
protocol = %q
`, filepath.Join(folder, "access.log"), listener, s.endpoint, protocol), nil
}
