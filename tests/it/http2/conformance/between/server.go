package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// The numbers of the fields of ServerCompatRequest that are read here.
const (
	serverVersion  = 2
	serverUsesTLS  = 4
	serverClientCA = 5
	serverCreds    = 7
)

// What the suite asks of a server.
type wanted struct {
	site site
	// The same request without TLS, which ends at Evenkeel.
	plain []byte
}

func wantedOf(request []byte, behind uint64) (wanted, error) {
	all, err := fields(request)
	if err != nil {
		return wanted{}, err
	}
	var it wanted
	for _, field := range all {
		switch field.number {
		case serverUsesTLS:
			continue
		case serverClientCA:
			it.site.clientCA = field.bytes
			continue
		case serverCreds:
			creds, err := fields(field.bytes)
			if err != nil {
				return wanted{}, err
			}
			for _, part := range creds {
				switch part.number {
				case 1:
					it.site.chain = part.bytes
				case 2:
					it.site.key = part.bytes
				}
			}
			continue
		case serverVersion:
			it.site.version, it.site.behind = field.value, field.value
			if behind != asClients {
				it.site.behind = behind
				it.plain = appendNumber(it.plain, serverVersion, behind)
				continue
			}
		}
		it.plain = append(it.plain, field.whole...)
	}
	return it, nil
}

// Starts the server behind Evenkeel, and tells the suite where Evenkeel is. The server speaks
// this version of HTTP.
func beServer(evenkeel string, server []string, version uint64) error {
	request, err := readMessage(os.Stdin)
	if err != nil {
		return fmt.Errorf("the suite's request: %w", err)
	}
	wanted, err := wantedOf(request, version)
	if err != nil {
		return fmt.Errorf("the suite's request: %w", err)
	}
	running := command(server[0], server[1:]...)
	var toServer bytes.Buffer
	if err := writeMessage(&toServer, wanted.plain); err != nil {
		return err
	}
	running.Stdin = &toServer
	said, err := running.StdoutPipe()
	if err != nil {
		return err
	}
	if err := running.Start(); err != nil {
		return err
	}
	defer end(running)
	if wanted.site.endpoint, err = addressOf(said); err != nil {
		return fmt.Errorf("%s: %w", server[0], err)
	}
	proxy, err := wanted.site.start(evenkeel)
	if err != nil {
		return err
	}
	defer proxy.end()
	response := appendBytes(nil, 1, []byte("127.0.0.1"))
	response = appendNumber(response, 2, uint64(proxy.port))
	if wanted.site.chain != nil {
		response = appendBytes(response, 3, wanted.site.chain)
	}
	if err := writeMessage(os.Stdout, response); err != nil {
		return err
	}
	untilTold()
	return nil
}

// Where a server says that it is.
func addressOf(said io.Reader) (string, error) {
	response, err := readMessage(said)
	if err != nil {
		return "", err
	}
	all, err := fields(response)
	if err != nil {
		return "", err
	}
	host, port := "127.0.0.1", uint64(0)
	for _, field := range all {
		switch field.number {
		case 1:
			host = string(field.bytes)
		case 2:
			port = field.value
		}
	}
	return fmt.Sprintf("%s:%d", host, port), nil
}
