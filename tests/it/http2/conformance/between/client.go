package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// The numbers of the fields of ClientCompatRequest that are read here.
const (
	clientVersion = 2
	clientHost    = 6
	clientPort    = 7
)

// The proxies before the servers that the suite names, by address and version.
type proxies struct {
	evenkeel string
	started  map[target]*proxy
}

// A server of the suite.
type target struct {
	version  uint64
	endpoint string
}

// The same request, to the proxy before the server that it names.
func (p *proxies) between(request []byte) ([]byte, error) {
	all, err := fields(request)
	if err != nil {
		return nil, err
	}
	var server target
	host, port := "", uint64(0)
	var changed []byte
	for _, field := range all {
		switch field.number {
		case clientHost:
			host = string(field.bytes)
			continue
		case clientPort:
			port = field.value
			continue
		case clientVersion:
			server.version = field.value
		}
		changed = append(changed, field.whole...)
	}
	server.endpoint = fmt.Sprintf("%s:%d", host, port)
	proxy := p.started[server]
	if proxy == nil {
		site := site{version: server.version, behind: server.version, endpoint: server.endpoint}
		proxy, err = site.start(p.evenkeel)
		if err != nil {
			return nil, err
		}
		p.started[server] = proxy
	}
	changed = appendBytes(changed, clientHost, []byte("127.0.0.1"))
	return appendNumber(changed, clientPort, uint64(proxy.port)), nil
}

// Passes the suite's requests on to a client, which then asks Evenkeel.
func beClient(evenkeel string, client []string) error {
	before := command(client[0], client[1:]...)
	before.Stdout = os.Stdout
	requests, err := before.StdinPipe()
	if err != nil {
		return err
	}
	if err := before.Start(); err != nil {
		return err
	}
	all := proxies{evenkeel: evenkeel, started: map[target]*proxy{}}
	defer func() {
		for _, proxy := range all.started {
			proxy.end()
		}
	}()
	for {
		request, err := readMessage(os.Stdin)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the suite's request: %w", err)
		}
		if request, err = all.between(request); err != nil {
			return err
		}
		if err := writeMessage(requests, request); err != nil {
			return err
		}
	}
	_ = requests.Close()
	return before.Wait()
}
